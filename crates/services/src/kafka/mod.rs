//! Apache Kafka: one node or several, each broker and controller (KRaft).
//!
//! Clients use [`servers`](Kafka::servers). With [`KafkaOptions::proxied`] those are proxies, and
//! brokers tell clients to come back through them; brokers among themselves, tools and the calls
//! here go past them.

pub(crate) mod node;
mod wire;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use self::node::{Node, Ports};
use crate::cache::KafkaJars;
use crate::certificate::Certificate;
use crate::folder::Folder;
use crate::proxy::Proxy;
use crate::wait::{PATIENCE, until};
use crate::{must, ports, run};

#[derive(Clone, Debug)]
pub struct KafkaOptions {
    /// How many nodes; topics get as many replicas, up to three.
    pub nodes: usize,
    /// More lines for each node's `server.properties`.
    pub properties: Vec<(String, String)>,
    /// More options for each node's Java.
    pub java: Vec<String>,
    /// Whether a [`Proxy`] stands in front of each node; see [`Kafka::proxy`].
    pub proxied: bool,
    /// Whether there is a listener with TLS and SASL too; see [`Kafka::secure_servers`].
    pub secure: bool,
    /// Who may log in there, by PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512: name and password.
    pub users: Vec<(String, String)>,
    /// Where its data is kept; without it, in a scratch folder.
    pub data: Option<PathBuf>,
    /// The port of the first node; without it, a free one.
    pub port: Option<u16>,
}

impl Default for KafkaOptions {
    fn default() -> Self {
        KafkaOptions {
            nodes: 1,
            properties: Vec::new(),
            java: Vec::new(),
            proxied: false,
            secure: false,
            users: vec![("potok".to_owned(), "potok-secret".to_owned())],
            data: None,
            port: None,
        }
    }
}

#[derive(Debug)]
pub struct Kafka {
    // Dropped in this order: first what runs, then its folder.
    nodes: Vec<Node>,
    proxies: Vec<Proxy>,
    jars: KafkaJars,
    certificate: Option<Certificate>,
    folder: Folder,
}

impl Kafka {
    /// One node.
    #[track_caller]
    pub fn start() -> Self {
        Kafka::start_with(&KafkaOptions::default())
    }

    /// A cluster of `nodes`.
    #[track_caller]
    pub fn cluster(nodes: usize) -> Self {
        Kafka::start_with(&KafkaOptions { nodes, ..KafkaOptions::default() })
    }

    #[track_caller]
    pub fn start_with(options: &KafkaOptions) -> Self {
        must(Kafka::open(options))
    }

    pub fn open(options: &KafkaOptions) -> Result<Self> {
        Kafka::open_with_jars(options, &KafkaJars::find()?)
    }

    pub(crate) fn open_with_jars(options: &KafkaOptions, jars: &KafkaJars) -> Result<Self> {
        ensure!(options.nodes > 0, "a cluster has at least one node");
        ports::with_free(options.port, |port| {
            let folder = Folder::open("kafka", options.data.as_deref())?;
            let certificate = options.secure.then(|| Certificate::make(&folder)).transpose()?;
            let mut kafka = Kafka {
                nodes: Vec::new(),
                proxies: Vec::new(),
                jars: jars.clone(),
                certificate,
                folder,
            };
            let mut ports = Vec::new();
            for index in 0..options.nodes {
                let data = if index == 0 { port } else { ports::free()? };
                let advertised = kafka.proxied(options, data)?;
                let (internal, controller) = (ports::free()?, ports::free()?);
                let secure = if options.secure { ports::free()? } else { 0 };
                ports.push(Ports { data, advertised, internal, controller, secure });
            }
            for index in 0..options.nodes {
                let certificate = kafka.certificate.as_ref();
                let node = Node::prepare(index, &ports, options, certificate, jars, &kafka.folder)?;
                kafka.nodes.extend(node);
            }
            kafka.launch()?;
            Ok(kafka)
        })
    }

    fn proxied(&mut self, options: &KafkaOptions, data: u16) -> Result<u16> {
        if !options.proxied {
            return Ok(data);
        }
        let proxy = Proxy::open(([127, 0, 0, 1], data).into())?;
        let port = proxy.port();
        self.proxies.push(proxy);
        Ok(port)
    }

    /// `127.0.0.1:P,…`, for clients.
    pub fn servers(&self) -> String {
        self.addresses(|ports| ports.advertised)
    }

    /// The same past any proxy, for what looks on from the side.
    pub fn direct_servers(&self) -> String {
        self.addresses(|ports| ports.internal)
    }

    /// `127.0.0.1:P,…` of the listeners with SASL over TLS.
    pub fn secure_servers(&self) -> String {
        self.addresses(|ports| ports.secure)
    }

    /// What a client has to trust there.
    pub fn certificate(&self) -> Option<&Certificate> {
        self.certificate.as_ref()
    }

    /// The proxy in front of a node, counted from 0.
    #[track_caller]
    pub fn proxy(&self, node: usize) -> &Proxy {
        must(self.proxies.get(node).context("no proxy was asked for in front of this node"))
    }

    /// Creates a topic with a replica on each node, up to three; returns when every node knows it
    /// and every partition has a leader.
    #[track_caller]
    pub fn create_topic(&self, topic: &str, partitions: u32, config: &[(&str, &str)]) {
        let replicas = self.nodes.len().min(3);
        must(self.ask(|port| wire::create_topic(port, topic, partitions, replicas, config)));
        must(self.known(topic, Some(partitions as usize)));
    }

    /// Gives a topic more partitions, `total` of them; returns when each has a leader.
    #[track_caller]
    pub fn add_partitions(&self, topic: &str, total: u32) {
        must(self.ask(|port| wire::create_partitions(port, topic, total)));
        must(self.known(topic, Some(total as usize)));
    }

    /// Deletes a topic; returns when no node knows it any more.
    #[track_caller]
    pub fn delete_topic(&self, topic: &str) {
        must(self.ask(|port| wire::delete_topic(port, topic)));
        must(self.known(topic, None));
    }

    /// The topics of the cluster, internal ones too.
    #[track_caller]
    pub fn topics(&self) -> Vec<String> {
        let metadata = must(self.ask(wire::metadata));
        metadata.topics.into_iter().map(|topic| topic.name).collect()
    }

    /// The offset behind the last record of each partition.
    #[track_caller]
    pub fn end_offsets(&self, topic: &str) -> Vec<i64> {
        self.offsets(topic, wire::END)
    }

    /// The offset of the first record of each partition that is still there.
    #[track_caller]
    pub fn start_offsets(&self, topic: &str) -> Vec<i64> {
        self.offsets(topic, wire::START)
    }

    #[track_caller]
    fn offsets(&self, topic: &str, edge: i64) -> Vec<i64> {
        // Leaders change while nodes come and go.
        let offsets = until(PATIENCE, || self.try_offsets(topic, edge).ok());
        must(offsets.with_context(|| format!("no leader tells the offsets of `{topic}`")))
    }

    /// Runs one of Kafka's own tools against the cluster and returns what it prints, e.g.
    /// `tool("consumer.group.ConsumerGroupCommand", &["--list"])`.
    #[track_caller]
    pub fn tool(&self, class: &str, args: &[&str]) -> String {
        let run = || {
            let whole = class.starts_with("org.") || class.starts_with("kafka.");
            let prefix = if whole { "" } else { "org.apache.kafka.tools." };
            let mut command = node::java_tool(&self.jars)?;
            command.arg(format!("{prefix}{class}"));
            if !args.contains(&"--bootstrap-server") {
                command.args(["--bootstrap-server", &self.direct_servers()]);
            }
            command.args(args);
            run::output(command)
        };
        must(run())
    }

    /// How many nodes it has.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// SIGKILL to all nodes.
    #[track_caller]
    pub fn kill(&self) {
        self.nodes.iter().for_each(|node| must(node.process.kill()));
    }

    /// Stops all nodes in good order; kills those for which that takes too long.
    #[track_caller]
    pub fn stop(&self) {
        must(self.stop_all());
    }

    /// SIGSTOP to all nodes.
    #[track_caller]
    pub fn freeze(&self) {
        self.nodes.iter().for_each(|node| must(node.process.freeze()));
    }

    /// Ends [`freeze`](Self::freeze).
    #[track_caller]
    pub fn thaw(&self) {
        self.nodes.iter().for_each(|node| must(node.process.thaw()));
    }

    /// Starts all nodes on the same data and ports, stopping those that run; returns when all
    /// answer.
    #[track_caller]
    pub fn restart(&self) {
        must(self.stop_all().and_then(|()| self.launch()));
    }

    /// SIGKILL to one node, counted from 0.
    #[track_caller]
    pub fn kill_node(&self, node: usize) {
        must(self.node(node).process.kill());
    }

    /// Stops one node in good order.
    #[track_caller]
    pub fn stop_node(&self, node: usize) {
        must(self.node(node).process.stop());
    }

    /// SIGSTOP to one node.
    #[track_caller]
    pub fn freeze_node(&self, node: usize) {
        must(self.node(node).process.freeze());
    }

    /// Ends [`freeze_node`](Self::freeze_node).
    #[track_caller]
    pub fn thaw_node(&self, node: usize) {
        must(self.node(node).process.thaw());
    }

    /// Starts one node on its data and ports, stopping it where it runs; returns when it answers.
    #[track_caller]
    pub fn restart_node(&self, node: usize) {
        let node = self.node(node);
        let start = || {
            node.process.stop()?;
            node.start(&self.folder)?;
            node.ready(1)
        };
        must(start());
    }

    /// The process of the first node; 0 while it does not run.
    pub fn pid(&self) -> u32 {
        self.pids().first().copied().unwrap_or_default()
    }

    /// The processes of all nodes; 0 for one that does not run.
    pub fn pids(&self) -> Vec<u32> {
        self.nodes.iter().map(|node| node.process.pid().unwrap_or_default()).collect()
    }

    /// The port for clients of the first node: a proxy's where one stands in front.
    pub fn port(&self) -> u16 {
        self.nodes.first().map(|node| node.ports.advertised).unwrap_or_default()
    }

    /// What the nodes have written to their logs so far, one after another.
    pub fn logs(&self) -> String {
        self.nodes.iter().map(|node| node.process.logs()).collect()
    }

    /// Where its data lies.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn launch(&self) -> Result<()> {
        for node in &self.nodes {
            node.start(&self.folder)?;
        }
        self.nodes.iter().try_for_each(|node| node.ready(self.nodes.len()))
    }

    /// All at once: the last ones could not hand over anything any more.
    fn stop_all(&self) -> Result<()> {
        self.nodes.iter().for_each(|node| node.process.ask_to_stop());
        self.nodes.iter().try_for_each(|node| node.process.wait_stopped())
    }

    #[track_caller]
    fn node(&self, node: usize) -> &Node {
        must(self.nodes.get(node).with_context(|| format!("there is no node {node}")))
    }

    fn addresses(&self, port: impl Fn(&Ports) -> u16) -> String {
        let addresses = self.nodes.iter().map(|node| format!("127.0.0.1:{}", port(&node.ports)));
        addresses.collect::<Vec<_>>().join(",")
    }

    /// Asks the nodes that run, one after another, until one answers.
    fn ask<T>(&self, question: impl Fn(u16) -> Result<T>) -> Result<T> {
        let mut answer = Err(anyhow::anyhow!("no node of Kafka runs"));
        for node in self.running() {
            answer = question(node.ports.internal);
            if answer.is_ok() {
                break;
            }
        }
        answer
    }

    fn try_offsets(&self, topic: &str, edge: i64) -> Result<Vec<i64>> {
        let topics = self.ask(wire::metadata)?.topics;
        let found = topics.into_iter().find(|found| found.name == topic);
        let leaders = found.with_context(|| format!("there is no topic `{topic}`"))?.leaders;
        let offset = |(partition, leader): (usize, Option<i32>)| {
            let leader = leader.context("nobody leads it")?;
            let node = self.nodes.get(usize::try_from(leader - 1)?).context("unknown leader")?;
            wire::offset(node.ports.internal, topic, i32::try_from(partition)?, edge)
        };
        leaders.into_iter().enumerate().map(offset).collect()
    }

    fn running(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.process.pid().is_some())
    }

    /// Waits until all running nodes see `topic` with that many partitions, or not at all.
    fn known(&self, topic: &str, partitions: Option<usize>) -> Result<()> {
        let seen = |node: &Node| -> Result<bool> {
            let topics = wire::metadata(node.ports.internal)?.topics;
            let found = topics.into_iter().find(|seen| seen.name == topic);
            Ok(match (found, partitions) {
                (None, None) => true,
                (Some(found), Some(wanted)) => {
                    found.leaders.len() == wanted && found.leaders.iter().all(Option::is_some)
                }
                _ => false,
            })
        };
        let all = || self.running().all(|node| seen(node).unwrap_or(false));
        let known = until(PATIENCE, || all().then_some(()));
        known.with_context(|| format!("the nodes do not agree on topic `{topic}`"))
    }
}
