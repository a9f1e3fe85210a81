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

use potok_hub::tokens::Authority;
use potok_hub::tokens::issuer::Issuer;
use potok_hub::{
    AckRule, Answer, Answers, Frame, Hub as _, HubSettings, Node, Outgoing, Ticket, UserId,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::token::{Auth, data_dir, development, period};
use crate::failure::Failure;
use crate::process::Signals;
use crate::{folder, terminal};

/// Run a SignalR hub: send lines of input to people, print who acknowledged
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok hub                                   development tokens: potok token mint --sub alice
  potok hub --issuer https://id.example.com/realms/shop --audience potok --listen 0.0.0.0:7602
  echo '{\"user\":\"alice\",\"payload\":{\"text\":\"hi\"}}' | potok hub

A line of input is one message: user, payload, and if you like method (notify) and id. Each answer
is a line of output: acknowledged, nobody, no_answer or unavailable. Clients connect to
/hubs/NAME with @microsoft/signalr 7 or newer.")]
pub struct Hub {
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
    /// Offer WebSockets alone: for several copies behind a load balancer without affinity
    #[arg(long)]
    websockets_only: bool,
    /// How long clients may take to acknowledge
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = period)]
    ack_within: Duration,
    /// At the end, connections are closed over this time
    #[arg(long, default_value = "1s", value_name = "DURATION", value_parser = period)]
    drain: Duration,
    /// Data folder, for the development key [default: ./potok-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl Hub {
    /// Does it.
    pub fn run(self, json: bool) -> Result<(), Failure> {
        folder::block_on(self.serve(json))
    }

    async fn serve(self, json: bool) -> Result<(), Failure> {
        let address = address(&self.listen)?;
        let authority = self.authority(address)?;
        let settings = HubSettings {
            name: self.name.clone(),
            origins: self.origins.clone(),
            sticky: !self.websockets_only,
            ..HubSettings::default()
        };
        let mut signals = Signals::listen()?;
        let listener = potok_hub::listen(address).map_err(|error| {
            Failure::new("P1101", format!("the hub cannot listen on {address}")).because(error)
        })?;
        let address = listener.local_addr()?;
        let node = Node::start(settings, authority, HashMap::new());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let stopped = async { drop(stopped.await) };
        let serving = tokio::spawn(potok_hub::serve(listener, node.clone(), stopped));
        self.announce(address, json)?;
        tokio::select! {
            () = signals.next() => {}
            failure = self.send_lines(&node) => return failure,
        }
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
        Ok(())
    }

    fn authority(&self, address: SocketAddr) -> Result<Arc<dyn Authority>, Failure> {
        if let Some(settings) = self.auth.settings()? {
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
        Ok(development(&data_dir(self.data_dir.as_deref())?)?)
    }

    fn announce(&self, address: SocketAddr, json: bool) -> Result<(), Failure> {
        let mut out = terminal::out();
        let url = format!("http://{address}/hubs/{}", self.name);
        match json {
            true => writeln!(out, "{}", json!({ "hub": url, "pid": std::process::id() }))?,
            false => writeln!(out, "hub  {url}")?,
        }
        out.flush()?;
        Ok(())
    }

    /// Sends the lines of the input, then waits for ever.
    async fn send_lines(&self, node: &Arc<Node>) -> Result<(), Failure> {
        let printer = Arc::new(Printer::default());
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        let mut number = 0;
        while let Some(line) = lines.next_line().await? {
            number += 1;
            if line.trim().is_empty() {
                continue;
            }
            match printer.message(&line, number, self.ack_within) {
                Ok(outgoing) => {
                    // Refused only while it is drained, and then nobody waits for the rest.
                    let _ = node.send(vec![outgoing], printer.clone()).await;
                }
                Err(why) => {
                    let what = format!("line {number} is no message");
                    return Err(Failure::new("P1107", what).because(why).of_usage());
                }
            }
        }
        std::future::pending().await
    }
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
struct Line {
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
    fn message(&self, line: &str, number: u64, ack_within: Duration) -> Result<Outgoing, String> {
        let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let id = line.id.unwrap_or_else(|| format!("line-{number}"));
        let payload = line.payload.to_string();
        let limit = potok_hub::Limits::default().message_bytes;
        let frame = Frame::new(&line.method, &id, payload.as_bytes(), limit)
            .map_err(|refused| refused.to_string())?;
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
        let mut out = terminal::out();
        for (ticket, answer) in answers {
            let Some((user, id)) = open.remove(ticket) else { continue };
            let answer = match answer {
                Answer::Acknowledged => "acknowledged",
                Answer::Nobody => "nobody",
                Answer::NoAnswer { .. } => "no_answer",
                Answer::Unavailable => "unavailable",
            };
            // Whoever started us may have gone.
            let _ = writeln!(out, "{}", json!({"user": user, "id": id, "answer": answer}));
        }
        let _ = out.flush();
    }
}
