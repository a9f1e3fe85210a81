//! `potok hub who`, `potok hub disconnect`: questions to a hub that runs on this machine.

use std::io::Write;
use std::time::Duration;

use potok_core::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::client::{HttpProcess, encode};
use crate::failure::Failure;
use crate::terminal::{self, Table};

/// Nodes are asked for a second; more is a hub that hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

#[derive(clap::Subcommand)]
pub enum Ask {
    Who(UserConnections),
    Disconnect(Disconnect),
}

/// Show who is connected, since when and from where, on all nodes
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok hub who
  potok hub who --user alice --json")]
pub struct UserConnections {
    /// Only this user
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// At most so many connections
    #[arg(long, default_value_t = 200, value_name = "COUNT")]
    limit: usize,
    #[command(flatten)]
    place: HubAddress,
}

/// Close all connections of a user, on all nodes; tokens issued until now are refused for a day
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok hub disconnect alice
  potok hub disconnect alice --may-return")]
pub struct Disconnect {
    user: String,
    /// The tokens they have stay good
    #[arg(long)]
    may_return: bool,
    #[command(flatten)]
    place: HubAddress,
}

#[derive(clap::Args)]
struct HubAddress {
    /// Admin address of the hub
    #[arg(long, default_value = "127.0.0.1:7603", value_name = "HOST:PORT")]
    admin: String,
}

#[derive(Deserialize)]
struct ConnectionsAnswer {
    total: usize,
    connections: Vec<Value>,
    silent_nodes: Vec<String>,
}

impl Ask {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        match self {
            Ask::Who(who) => who.run(json),
            Ask::Disconnect(disconnect) => disconnect.run(json),
        }
    }
}

impl UserConnections {
    fn run(self, json: bool) -> Result<(), Failure> {
        let user = self.user.map(|user| format!("&user={}", encode(&user))).unwrap_or_default();
        let path = format!("/connections?limit={}{user}", self.limit);
        let listed: ConnectionsAnswer = self.place.ask(&path, false)?;
        let mut out = terminal::out();
        if json {
            for connection in &listed.connections {
                writeln!(out, "{connection}")?;
            }
        } else {
            let mut table =
                Table::new(&["USER", "SINCE", "FROM", "TRANSPORT", "PROTOCOL", "CLIENT", "NODE"]);
            for connection in &listed.connections {
                let text = |key: &str| connection[key].as_str().unwrap_or_default().to_owned();
                let since = connection["since_timestamp_seconds"].as_u64().unwrap_or_default();
                table.row([
                    text("user"),
                    Timestamp(since as i64 * 1000).to_string(),
                    text("address"),
                    text("transport"),
                    text("protocol"),
                    text("agent"),
                    text("node"),
                ]);
            }
            table.print(&mut out)?;
            if listed.total > listed.connections.len() {
                writeln!(out, "{} of {}", listed.connections.len(), listed.total)?;
            }
        }
        out.flush()?;
        for node in listed.silent_nodes {
            eprintln!("node {node} does not answer; its connections are not shown");
        }
        Ok(())
    }
}

impl Disconnect {
    fn run(self, json: bool) -> Result<(), Failure> {
        let (user, may_return) = (encode(&self.user), self.may_return);
        let path = format!("/disconnect?user={user}&may_return={may_return}");
        let answer: Value = self.place.ask(&path, true)?;
        let mut out = terminal::out();
        match json {
            true => writeln!(out, "{answer}")?,
            false => writeln!(out, "closed {}", answer["closed"])?,
        }
        out.flush()?;
        Ok(())
    }
}

impl HubAddress {
    fn ask<T: serde::de::DeserializeOwned>(&self, path: &str, post: bool) -> Result<T, Failure> {
        let failure = |cause: String| {
            Failure::new("P1110", format!("no hub answers on {}", self.admin))
                .because(cause)
                .hint("potok hub prints its admin address; name it with --admin")
        };
        let method = if post { "POST" } else { "GET" };
        HttpProcess::new(&self.admin)?.ask(method, path, ANSWER_WITHIN).map_err(failure)
    }
}
