//! Redis: one server that keeps an append-only file, several as a cluster, or with a sentinel.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::certificate::Certificate;
use crate::folder::Folder;
use crate::process::Process;
use crate::wait::until;
use crate::{lifecycle, must, ports, programs, run};

/// Nodes of a cluster agree within a second or two.
const AGREE_MAX: Duration = Duration::from_secs(60);
const SLOTS: usize = 16_384;

#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    /// More settings, as on its command line without the dashes.
    pub settings: Vec<(String, String)>,
    /// Variables of its environment.
    pub variables: Vec<(String, String)>,
    /// Whether it speaks TLS too, on another port; see [`Redis::tls_url`].
    pub tls: bool,
    /// Where its data is kept; without it, in a scratch folder.
    pub data: Option<PathBuf>,
    /// Its port; without it, a free one.
    pub port: Option<u16>,
}

#[derive(Debug)]
pub struct Redis {
    // Dropped in this order: first the process, then its folder.
    process: Process,
    port: u16,
    settings: Vec<(String, String)>,
    variables: Vec<(String, String)>,
    tls: Option<(Certificate, u16)>,
    folder: Folder,
}

lifecycle!(Redis);

impl Redis {
    #[track_caller]
    pub fn start() -> Self {
        Redis::start_with(&RedisOptions::default())
    }

    #[track_caller]
    pub fn start_with(options: &RedisOptions) -> Self {
        must(Redis::open(options))
    }

    pub fn open(options: &RedisOptions) -> Result<Self> {
        programs::redis_server()?;
        ports::with_free(options.port, |port| {
            let folder = Folder::open("redis", options.data.as_deref())?;
            let process = Process::new("Redis", folder.path(), "log", libc::SIGTERM);
            let settings = options.settings.clone();
            let variables = options.variables.clone();
            let tls = match options.tls {
                true => Some((Certificate::make(&folder)?, ports::free()?)),
                false => None,
            };
            let redis = Redis { process, port, settings, variables, tls, folder };
            redis.launch()?;
            Ok(redis)
        })
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its address with TLS, and what a client has to trust.
    pub fn tls_url(&self) -> Option<(String, &Certificate)> {
        let (certificate, port) = self.tls.as_ref()?;
        Some((format!("rediss://127.0.0.1:{port}"), certificate))
    }

    /// Servers of one cluster, each with its part of the slots and without replicas.
    #[track_caller]
    pub fn cluster(nodes: usize) -> Vec<Redis> {
        must(Redis::open_cluster(nodes))
    }

    fn open_cluster(nodes: usize) -> Result<Vec<Redis>> {
        let mut cluster: Vec<(Redis, String)> = Vec::new();
        for n in 0..nodes {
            let bus = ports::free()?.to_string();
            let settings = [("cluster-enabled", "yes"), ("cluster-port", bus.as_str())];
            let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let options = RedisOptions { settings: settings.into(), ..RedisOptions::default() };
            let node = Redis::open(&options)?;
            let slot = |n: usize| SLOTS * n / nodes;
            let (first, last) = (slot(n).to_string(), (slot(n + 1) - 1).to_string());
            node.ask(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])?;
            if let Some((first, _)) = cluster.first() {
                let port = node.port.to_string();
                first.ask(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
            }
            cluster.push((node, bus));
        }
        let known = format!("cluster_known_nodes:{nodes}\r");
        let agrees = |node: &Redis| {
            let info = node.ask(&["CLUSTER", "INFO"]).unwrap_or_default();
            info.contains("cluster_state:ok") && info.contains(&known)
        };
        let agreed = || cluster.iter().all(|(node, _)| agrees(node)).then_some(());
        until(AGREE_MAX, agreed).context("the nodes of the cluster do not agree")?;
        Ok(cluster.into_iter().map(|(node, _)| node).collect())
    }

    /// One command through `redis-cli`, with its answer as that prints it.
    #[track_caller]
    pub fn command(&self, words: &[&str]) -> String {
        must(self.ask(words)).trim_end_matches('\n').to_owned()
    }

    fn ask(&self, words: &[&str]) -> Result<String> {
        ask(self.port, words)
    }

    fn launch(&self) -> Result<()> {
        let mut command = Command::new(programs::redis_server()?);
        command.arg("--port").arg(self.port.to_string());
        command.args(["--bind", "127.0.0.1", "--daemonize", "no", "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", "everysec", "--dir"]);
        command.arg(self.folder.path());
        if let Some((certificate, port)) = &self.tls {
            command.arg("--tls-port").arg(port.to_string());
            command.arg("--tls-cert-file").arg(&certificate.certificate);
            command.arg("--tls-key-file").arg(&certificate.key);
            command.arg("--tls-ca-cert-file").arg(&certificate.authority);
            command.args(["--tls-auth-clients", "no"]);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        for (name, value) in &self.settings {
            command.arg(format!("--{name}")).arg(value);
        }
        self.process.launch(command, || self.answers())
    }

    fn answers(&self) -> Result<()> {
        pong(self.port)
    }
}

/// A sentinel that watches one server under the name `main`, and needs nobody's vote.
#[derive(Debug)]
pub struct Sentinel {
    process: Process,
    port: u16,
    watched: u16,
    folder: Folder,
}

lifecycle!(Sentinel);

impl Sentinel {
    /// Watches the server on that port.
    #[track_caller]
    pub fn start(watched: u16) -> Self {
        must(Sentinel::open(watched))
    }

    fn open(watched: u16) -> Result<Self> {
        programs::redis_server()?;
        ports::with_free(None, |port| {
            let folder = Folder::open("sentinel", None)?;
            let process = Process::new("Redis sentinel", folder.path(), "log", libc::SIGTERM);
            let sentinel = Sentinel { process, port, watched, folder };
            sentinel.launch()?;
            Ok(sentinel)
        })
    }

    /// The address under which potok asks it for the server.
    pub fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:{}/main", self.port)
    }

    /// The port of the server that it holds for the primary.
    #[track_caller]
    pub fn primary(&self) -> u16 {
        let said = must(ask(self.port, &["SENTINEL", "get-master-addr-by-name", "main"]));
        must(said.lines().nth(1).unwrap_or_default().parse())
    }

    /// Whether it knows a replica that it could make the primary.
    #[track_caller]
    pub fn knows_replica(&self) -> bool {
        must(ask(self.port, &["SENTINEL", "replicas", "main"])).contains("master-link-status\nok")
    }

    fn launch(&self) -> Result<()> {
        let file = self.folder.path().join("sentinel.conf");
        if !file.is_file() {
            // It writes into the file what it learns.
            let Sentinel { port, watched, .. } = self;
            let text = format!(
                "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {watched} 1\n\
                 sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n"
            );
            self.folder.write("sentinel.conf", &text)?;
        }
        let mut command = Command::new(programs::redis_server()?);
        command.arg(file).args(["--sentinel", "--dir"]).arg(self.folder.path());
        self.process.launch(command, || pong(self.port))
    }
}

fn ask(port: u16, words: &[&str]) -> Result<String> {
    let mut command = Command::new(programs::redis_cli()?);
    command.args(["-e", "--raw", "-h", "127.0.0.1", "-p"]).arg(port.to_string());
    command.args(words);
    run::output(command)
}

fn pong(port: u16) -> Result<()> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"PING\r\n")?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    ensure!(answer == "+PONG\r\n", "Redis answers {answer:?}");
    Ok(())
}
