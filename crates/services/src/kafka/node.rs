//! One node of a Kafka cluster: broker and controller in one process.

use std::fmt::Write;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::{KafkaOptions, wire};
use crate::cache::KafkaJars;
use crate::certificate::Certificate;
use crate::folder::Folder;
use crate::process::Process;
use crate::{programs, run};

/// The cluster every node here belongs to; clusters are told apart by their ports.
pub const CLUSTER: &str = "MkU3OEVBNTcwNTJENDM2Qg";

/// The ports of one node.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// For clients, plain.
    pub data: u16,
    /// What clients are told to connect to: the same, or a proxy in front of it.
    pub advertised: u16,
    /// Between brokers, and for tools, which no proxy disturbs.
    pub internal: u16,
    pub controller: u16,
    /// For clients, SASL over TLS.
    pub secure: u16,
}

#[derive(Debug)]
pub struct Node {
    pub process: Process,
    pub ports: Ports,
    name: String,
    jars: KafkaJars,
    java: Vec<String>,
}

impl Node {
    /// Writes settings and formatted data for node `index` of the cluster with `ports`.
    pub fn prepare(
        index: usize,
        ports: &[Ports],
        options: &KafkaOptions,
        certificate: Option<&Certificate>,
        jars: &KafkaJars,
        folder: &Folder,
    ) -> Result<Option<Self>> {
        let Some(own) = ports.get(index).copied() else { return Ok(None) };
        let name = format!("node-{}", index + 1);
        let place = folder.inner(&name)?;
        folder.inner(&format!("{name}/tmp"))?;
        let data = folder.inner(&format!("{name}/data"))?;
        let mut properties = String::new();
        for (key, value) in settings(index, ports, own) {
            writeln!(properties, "{key}={value}")?;
        }
        writeln!(properties, "log.dirs={}", data.display())?;
        if let Some(certificate) = certificate {
            properties.push_str(&secure(certificate, &options.users, folder, &name)?);
        }
        for (key, value) in &options.properties {
            writeln!(properties, "{key}={value}")?;
        }
        folder.write(&format!("{name}/server.properties"), &properties)?;
        let process = Process::new(&format!("Kafka {name}"), &place, "log", libc::SIGTERM);
        let node =
            Node { process, ports: own, name, jars: jars.clone(), java: options.java.clone() };
        if !data.join("meta.properties").is_file() {
            node.format(index, certificate.map(|_| options.users.as_slice()), folder)?;
        }
        Ok(Some(node))
    }

    pub fn start(&self, folder: &Folder) -> Result<()> {
        let place = folder.join(&self.name);
        let mut command = Command::new(&programs::java()?.0);
        command.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData"]);
        command.args(class_data(&self.jars)?).args(&self.java);
        // Where Kafka unpacks its compression libraries, and leaves them when it is killed.
        command.arg(format!("-Djava.io.tmpdir={}", place.join("tmp").display()));
        command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn");
        command.arg("-Dorg.slf4j.simpleLogger.showDateTime=true");
        command.args(["-cp", &self.jars.classpath, "kafka.Kafka"]);
        command.arg(place.join("server.properties"));
        self.process.start(command)
    }

    /// Returns when the node takes requests and sees a cluster of `brokers`.
    pub fn ready(&self, brokers: usize) -> Result<()> {
        self.process.ready(|| {
            // Also where clients come: a node whose port is taken answers inside before it ends.
            wire::answers(self.ports.data)?;
            wire::answers(self.ports.internal)?;
            let seen = wire::metadata(self.ports.internal)?.brokers;
            anyhow::ensure!(seen >= brokers, "it sees {seen} of {brokers} brokers");
            Ok(())
        })
    }

    /// Makes an empty data folder the node's own. Without users, what the tool writes is always
    /// the same but for two names, and was written once, when Kafka was installed.
    fn format(&self, index: usize, users: Option<&[(String, String)]>, at: &Folder) -> Result<()> {
        let inside = |file: &str| format!("{}/data/{file}", self.name);
        let Some(users) = users else {
            let checkpoint = self.jars.folder.join("formatted/bootstrap.checkpoint");
            fs::copy(checkpoint, at.join(&inside("bootstrap.checkpoint")))?;
            let node = index + 1;
            let text = format!(
                "version=1\ncluster.id={CLUSTER}\nnode.id={node}\ndirectory.id={}\n",
                directory_id()
            );
            at.write(&inside("meta.properties"), &text)?;
            return Ok(());
        };
        let mut command = java_tool(&self.jars)?;
        command.args(["kafka.tools.StorageTool", "format", "-t", CLUSTER, "--ignore-formatted"]);
        command.arg("-c").arg(at.join(&self.name).join("server.properties"));
        for (user, password) in users {
            for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
                let user = format!("{mechanism}=[name={user},password={password}]");
                command.arg("--add-scram").arg(user);
            }
        }
        run::output(command).map(drop)
    }
}

/// A JVM that is gone before it would pay to compile much.
pub fn java_tool(jars: &KafkaJars) -> Result<Command> {
    let mut command = Command::new(&programs::java()?.0);
    command.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]);
    command.args(class_data(jars)?);
    command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn");
    command.args(["-cp", &jars.classpath]);
    Ok(command)
}

/// The option for a quick start, where class data was made for this Java.
fn class_data(jars: &KafkaJars) -> Result<Vec<String>> {
    let archive = jars.class_data()?;
    if !archive.is_file() {
        return Ok(Vec::new());
    }
    let archive = format!("-XX:SharedArchiveFile={}", archive.display());
    Ok(vec![archive, "-Xlog:cds=off".to_owned(), "-Xlog:cds*=off".to_owned()])
}

fn settings(index: usize, cluster: &[Ports], own: Ports) -> Vec<(&'static str, String)> {
    let nodes = cluster.len();
    let voter =
        |(index, ports): (usize, &Ports)| format!("{}@127.0.0.1:{}", index + 1, ports.controller);
    let voters: Vec<_> = cluster.iter().enumerate().map(voter).collect();
    let at = |name: &str, port: u16| format!("{name}://127.0.0.1:{port}");
    let mut listeners = vec![at("PLAINTEXT", own.data), at("INTERNAL", own.internal)];
    let mut advertised = vec![at("PLAINTEXT", own.advertised), at("INTERNAL", own.internal)];
    let mut protocols = "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned();
    if own.secure != 0 {
        listeners.push(at("SECURE", own.secure));
        advertised.push(at("SECURE", own.secure));
        protocols.push_str(",SECURE:SASL_SSL");
    }
    listeners.push(at("CONTROLLER", own.controller));
    let replicas = nodes.min(3).to_string();
    let in_sync = nodes.min(3).div_ceil(2).to_string();
    let fixed = FIXED.iter().map(|(name, value)| (*name, (*value).to_owned()));
    let mut settings = vec![
        ("process.roles", "broker,controller".to_owned()),
        ("node.id", (index + 1).to_string()),
        ("controller.quorum.voters", voters.join(",")),
        ("listeners", listeners.join(",")),
        ("advertised.listeners", advertised.join(",")),
        ("inter.broker.listener.name", "INTERNAL".to_owned()),
        ("controller.listener.names", "CONTROLLER".to_owned()),
        ("listener.security.protocol.map", protocols),
        ("default.replication.factor", replicas.clone()),
        ("min.insync.replicas", in_sync.clone()),
        ("offsets.topic.replication.factor", replicas.clone()),
        ("transaction.state.log.replication.factor", replicas.clone()),
        ("transaction.state.log.min.isr", in_sync.clone()),
        ("share.coordinator.state.topic.replication.factor", replicas),
        ("share.coordinator.state.topic.min.isr", in_sync),
    ];
    settings.extend(fixed);
    settings
}

/// Small, and quick to notice who is gone: a broker killed and started again waits for its old
/// session to end.
const FIXED: [(&str, &str); 13] = [
    ("auto.create.topics.enable", "false"),
    ("offsets.topic.num.partitions", "4"),
    ("transaction.state.log.num.partitions", "4"),
    ("group.initial.rebalance.delay.ms", "0"),
    ("group.min.session.timeout.ms", "1000"),
    ("group.consumer.min.session.timeout.ms", "1000"),
    ("group.consumer.min.heartbeat.interval.ms", "100"),
    ("group.consumer.session.timeout.ms", "6000"),
    ("group.consumer.heartbeat.interval.ms", "500"),
    ("broker.session.timeout.ms", "2000"),
    ("broker.heartbeat.interval.ms", "250"),
    ("log.segment.bytes", "16777216"),
    ("log.cleaner.dedupe.buffer.size", "2097152"),
];

/// The listener with TLS and names. Every user is known to PLAIN and to SCRAM.
fn secure(
    certificate: &Certificate,
    users: &[(String, String)],
    folder: &Folder,
    node: &str,
) -> Result<String> {
    // One file with both, the key first.
    let mut pair = fs::read_to_string(&certificate.key)?;
    pair.push_str(&fs::read_to_string(&certificate.certificate)?);
    let pair: PathBuf = folder.write(&format!("{node}/pair.pem"), &pair)?;
    let login = "org.apache.kafka.common.security";
    let plain: Vec<_> =
        users.iter().map(|(user, password)| format!("user_{user}=\"{password}\"")).collect();
    let lines = [
        ("ssl.keystore.type", "PEM".to_owned()),
        ("ssl.keystore.location", pair.display().to_string()),
        ("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512".to_owned()),
        (
            "plain.sasl.jaas.config",
            format!("{login}.plain.PlainLoginModule required {};", plain.join(" ")),
        ),
        ("scram-sha-256.sasl.jaas.config", format!("{login}.scram.ScramLoginModule required;")),
        ("scram-sha-512.sasl.jaas.config", format!("{login}.scram.ScramLoginModule required;")),
    ];
    let lines = lines.map(|(name, value)| format!("listener.name.secure.{name}={value}\n"));
    Ok(lines.concat())
}

/// 16 random bytes in the alphabet of Kafka's own names, as it writes them.
fn directory_id() -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let letter = |number: u64| char::from(*LETTERS.get(number as usize % 64).unwrap_or(&b'A'));
    let chance = RandomState::new();
    // The first is a letter, so that the name is none of those Kafka reserves; the 22nd carries
    // two bits.
    let first = letter(chance.hash_one(0) % 52);
    let middle = (1..21).map(|place| letter(chance.hash_one(place)));
    let last = letter((chance.hash_one(21) % 4) << 4);
    [first].into_iter().chain(middle).chain([last]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_a_name_like_those_of_kafka() {
        for _ in 0..100 {
            let id = directory_id();
            assert_eq!(id.len(), 22, "{id}");
            assert!("AQgw".contains(id.chars().last().unwrap()), "{id}");
        }
    }
}
