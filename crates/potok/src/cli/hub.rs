//! `potok hub`: a hub on its own, that sends what it is told and says what became of it.
//!
//! Pipelines do not deliver to it yet; it is for trying clients and tokens, and for tests.

use std::collections::HashMap;
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use potok_config::Connections;
use potok_hub::tokens::Authority;
use potok_hub::tokens::issuer::Issuer;
use potok_hub::{
    AckRule, Answer, Answers, Directory, Frame, Hub as _, HubSettings, Limits, Network, Node,
    Outgoing, RedisDirectory, Ticket, UserId,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::hub_ask;
use super::token::{Auth, connections, development, period};
use crate::failure::Failure;
use crate::process::Signals;
use crate::{folder, limits, terminal};

/// Run a SignalR hub: send lines of input to people, print who acknowledged
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok hub                                   development tokens: potok token mint --sub alice
  potok hub --issuer https://id.example.com/realms/shop --audience potok --listen 0.0.0.0:7602
  echo '{\"user\":\"alice\",\"payload\":{\"text\":\"hi\"}}' | potok hub
  POTOK_HUB_REDIS=redis://127.0.0.1:6379 potok hub    one of several nodes
  potok hub who                               who is connected to the hub of this machine
  potok hub disconnect alice

A line of input is one message: user, payload, and if you like method (notify) and id. Each answer
is a line of output: acknowledged, nobody, no_answer, unavailable, or refused for a line that is no
message. Clients connect to /hubs/NAME with @microsoft/signalr 7 or newer.")]
#[command(args_conflicts_with_subcommands = true)]
pub struct Hub {
    #[command(subcommand)]
    ask: Option<hub_ask::Ask>,
    /// Address for clients; port 0 picks one
    #[arg(long, default_value = "127.0.0.1:7602", value_name = "HOST:PORT")]
    listen: String,
    /// The hub is at /hubs/NAME
    #[arg(long, default_value = "notifications", value_name = "NAME")]
    name: String,
    #[command(flatten)]
    auth: Auth,
    /// Origin whose pages may connect, e.g. https://app.example.com; may be repeated
    #[arg(long = "origin", value_name = "ORIGIN")]
    origins: Vec<String>,
    /// Proxy whose X-Forwarded headers are believed, an address or a network such as 10.0.0.0/8; may
    /// be repeated [default: auth.trusted_proxies]
    #[arg(long = "trusted-proxy", value_name = "ADDRESS")]
    trusted_proxies: Vec<Network>,
    /// Redis where the nodes of the hub find each other; without it there is one node
    /// [default: POTOK_HUB_REDIS]
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// Another node counts as dead when it has not been heard of for this long
    #[arg(long, default_value = "15s", value_name = "DURATION", value_parser = period)]
    lease: Duration,
    /// Offer WebSockets alone, as several nodes do
    #[arg(long, conflicts_with = "sticky")]
    websockets_only: bool,
    /// Several nodes, and a balancer that sends every request of a client to the same one: offer
    /// server-sent events, long polling and stateful reconnects too
    #[arg(long)]
    sticky: bool,
    /// Address for metrics, `potok hub who` and `potok hub disconnect`; this machine only, port 0
    /// picks one
    #[arg(long, default_value = "127.0.0.1:7603", value_name = "HOST:PORT")]
    admin: String,
    /// How long clients may take to acknowledge
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = period)]
    ack_within: Duration,
    /// At the end, connections are closed over at most this time, 50 a second or more
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = period)]
    drain: Duration,
    /// Connections, of which `auth` is used [default: ./potok.yaml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data folder, for the development key [default: ./potok-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl Hub {
    pub fn run(mut self, json: bool) -> Result<(), Failure> {
        if let Some(ask) = self.ask.take() {
            return ask.run(json);
        }
        folder::block_on(self.serve(json))
    }

    async fn serve(self, json: bool) -> Result<(), Failure> {
        let address = address(&self.listen)?;
        let connections = connections(self.config.as_deref(), self.data_dir.as_deref())?;
        let authority = self.authority(address, &connections)?;
        let directory = self.directory()?;
        let origins = match self.origins.is_empty() {
            true => connections.auth.origins,
            false => self.origins.clone(),
        };
        let trusted_proxies = match self.trusted_proxies.is_empty() {
            true => {
                let named = connections.auth.trusted_proxies.iter();
                let named: Result<_, String> = named.map(|network| network.parse()).collect();
                named.map_err(|why| Failure::new("P1101", why).of_usage())?
            }
            false => self.trusted_proxies.clone(),
        };
        let settings = HubSettings {
            name: self.name.clone(),
            origins,
            trusted_proxies,
            sticky: match (self.sticky, self.websockets_only) {
                (true, _) => Some(true),
                (_, true) => Some(false),
                _ => None,
            },
            limits: self.limits(),
            ..HubSettings::default()
        };
        let mut signals = Signals::listen()?;
        let listener = potok_hub::listen(address).map_err(|error| {
            Failure::new("P1101", format!("the hub cannot listen on {address}")).because(error)
        })?;
        let address = listener.local_addr()?;
        let admin = self.admin().await?;
        let admin_address = admin.local_addr()?;
        let node = match directory {
            None => Node::start(settings, authority, HashMap::new()),
            Some(directory) => Node::start_among(settings, authority, HashMap::new(), directory),
        };
        let admin = axum::serve(admin, potok_hub::admin(node.clone())).into_future();
        tokio::spawn(admin);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let stopped = async { drop(stopped.await) };
        let serving = tokio::spawn(potok_hub::serve(listener, node.clone(), stopped));
        self.announce(address, admin_address, json)?;
        let failure = tokio::select! {
            () = signals.next() => Ok(()),
            Err(failure) = self.send_lines(&node) => Err(failure),
        };
        // Those who ask now are told to go elsewhere.
        node.drain(self.drain).await;
        drop(stop);
        let _ = serving.await;
        let stats = node.stats();
        tracing::info!(
            acknowledged = stats.acknowledged,
            nobody = stats.nobody,
            no_answer = stats.no_answer,
            "the hub stopped"
        );
        failure
    }

    fn limits(&self) -> Limits {
        let usual = Limits::default();
        let connections = usual.connections.min(limits::sockets());
        if connections < usual.connections {
            tracing::info!(connections, "as many as files may be open (ulimit -n)");
        }
        Limits { lease: self.lease, connections, ..usual }
    }

    /// Where nodes find each other.
    fn directory(&self) -> Result<Option<Arc<dyn Directory>>, Failure> {
        let set = || std::env::var("POTOK_HUB_REDIS").ok().filter(|value| !value.is_empty());
        let Some(url) = self.redis.clone().or_else(set) else { return Ok(None) };
        // The address may hold a password, and is not repeated.
        let directory = RedisDirectory::new(&url, &self.name).map_err(|why| {
            Failure::new("P1108", "the address of the hub's Redis is wrong")
                .because(why)
                .of_usage()
                .hint("one server: redis://host:port, or rediss:// with TLS")
        })?;
        Ok(Some(Arc::new(directory)))
    }

    /// The listener of metrics and questions.
    async fn admin(&self) -> Result<tokio::net::TcpListener, Failure> {
        let address = address(&self.admin)?;
        if !address.ip().is_loopback() {
            let what = format!(
                "others could reach the admin address {address}, and it asks nobody who they are"
            );
            return Err(Failure::new("P1109", what)
                .of_usage()
                .hint("a loopback address such as 127.0.0.1:7603"));
        }
        tokio::net::TcpListener::bind(address).await.map_err(|error| {
            Failure::new("P1101", format!("the hub cannot listen on {address}"))
                .because(error)
                .hint("another hub may run here: --admin 127.0.0.1:0 picks a free port")
        })
    }

    fn authority(
        &self,
        address: SocketAddr,
        connections: &Connections,
    ) -> Result<Arc<dyn Authority>, Failure> {
        if let Some(settings) = self.auth.settings(&connections.auth)? {
            if let Some(doubt) = potok_config::Auth::doubt(&settings.user) {
                tracing::warn!("{doubt}");
            }
            let issuer = Issuer::start(settings);
            return Ok(issuer
                .map_err(|why| Failure::new("P1106", "the issuer cannot be used").because(why))?);
        }
        if !address.ip().is_loopback() {
            let what = format!("a hub on {address} needs an issuer of tokens");
            return Err(Failure::new("P1102", what).of_usage().hint(
                "set --issuer and --audience; the development issuer serves this machine alone",
            ));
        }
        Ok(development(&connections.data_dir)?)
    }

    fn announce(&self, address: SocketAddr, admin: SocketAddr, json: bool) -> Result<(), Failure> {
        let mut out = terminal::out();
        let url = format!("http://{address}/hubs/{}", self.name);
        match json {
            true => {
                let admin = format!("http://{admin}");
                let line = json!({ "hub": url, "admin": admin, "pid": std::process::id() });
                writeln!(out, "{line}")?;
            }
            false => writeln!(out, "hub  {url}\nadmin  http://{admin}")?,
        }
        out.flush()?;
        Ok(())
    }

    /// Sends the lines of the input, then waits for ever. A line that is no message is refused in the
    /// output; it costs no client its connection, and the next line is read.
    async fn send_lines(&self, node: &Arc<Node>) -> Result<(), Failure> {
        let printer = Arc::new(Printer::default());
        let mut input = BufReader::new(tokio::io::stdin());
        let (mut line, mut number) = (Vec::new(), 0);
        while input.read_until(b'\n', &mut line).await? > 0 {
            number += 1;
            let said = std::mem::take(&mut line);
            if said.trim_ascii().is_empty() {
                continue;
            }
            match printer.message(&said, number, self.ack_within) {
                Ok(outgoing) => {
                    let ticket = outgoing.ticket;
                    // Drained, or Redis cannot be asked where the user is: nothing was sent.
                    if node.send(vec![outgoing], printer.clone()).await.is_err() {
                        printer.settle(&[(ticket, Answer::Unavailable)]);
                    }
                }
                Err(refused) => {
                    let why = &refused.why;
                    tracing::warn!(code = "P1107", "line {number} is no message: {why}");
                    print(&[refused.line(number)]);
                }
            }
        }
        std::future::pending().await
    }
}

/// A line that is no message, and why.
struct RefusedLine {
    /// For whom it was to be, and under which name, where it says so.
    named: Option<(String, String)>,
    why: String,
}

impl RefusedLine {
    fn line(&self, number: u64) -> Value {
        let mut line = json!({"line": number, "answer": "refused", "why": self.why});
        if let Some((user, id)) = &self.named {
            line["user"] = json!(user);
            line["id"] = json!(id);
        }
        line
    }
}

/// Lines of output. Whoever started us may have gone.
fn print(lines: &[Value]) {
    let mut out = terminal::out();
    for line in lines {
        let _ = writeln!(out, "{line}");
    }
    let _ = out.flush();
}

fn address(text: &str) -> Result<SocketAddr, Failure> {
    let found = text.to_socket_addrs().ok().and_then(|mut all| all.next());
    found.ok_or_else(|| {
        Failure::new("P1101", format!("`{text}` is no address to listen on"))
            .of_usage()
            .hint("host and port, e.g. 127.0.0.1:7602")
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PushLine {
    user: String,
    payload: Value,
    #[serde(default = "usual_method")]
    method: String,
    id: Option<String>,
}

fn usual_method() -> String {
    "notify".to_owned()
}

/// Prints answers as they come.
#[derive(Default)]
struct Printer {
    next: AtomicU64,
    open: Mutex<HashMap<Ticket, (String, String)>>,
}

impl Printer {
    fn message(
        &self,
        line: &[u8],
        number: u64,
        ack_within: Duration,
    ) -> Result<Outgoing, RefusedLine> {
        let line: PushLine = serde_json::from_slice(line)
            .map_err(|error| RefusedLine { named: None, why: error.to_string() })?;
        let id = line.id.unwrap_or_else(|| format!("line-{number}"));
        let payload = line.payload.to_string();
        let limit = potok_hub::Limits::default().message_bytes;
        let frame = match Frame::new(&line.method, &id, payload.as_bytes(), limit) {
            Ok(frame) => frame,
            Err(refused) => {
                return Err(RefusedLine { named: Some((line.user, id)), why: refused.to_string() });
            }
        };
        let ticket = Ticket(self.next.fetch_add(1, Ordering::Relaxed));
        let user = UserId::new(&line.user);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.insert(ticket, (line.user, id));
        Ok(Outgoing { ticket, user, frame, ack_within, ack: AckRule::Any })
    }
}

impl Answers for Printer {
    fn settle(&self, answers: &[(Ticket, Answer)]) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lines = Vec::with_capacity(answers.len());
        for (ticket, answer) in answers {
            let Some((user, id)) = open.remove(ticket) else { continue };
            let answer = match answer {
                Answer::Acknowledged => "acknowledged",
                Answer::Nobody => "nobody",
                Answer::NoAnswer { .. } => "no_answer",
                Answer::Unavailable => "unavailable",
            };
            lines.push(json!({"user": user, "id": id, "answer": answer}));
        }
        // Under the lock: answers that come at once are lines one after another.
        print(&lines);
    }
}
