//! `potok listen`: a client of a hub in the terminal.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use potok_hub::client::{ClientEvent, Disconnection, Listener};
use potok_hub::tokens::development;
use serde_json::json;

use super::token::{connections, development};
use crate::failure::Failure;
use crate::process::Signals;
use crate::{folder, terminal};

/// A token of one's own making, made anew for every connection.
const TOKEN_LIFE: Duration = Duration::from_secs(60 * 60);
/// Before connecting again: doubled with every failure, and a random part of it.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Connect to a hub as a user, print what arrives and acknowledge it
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok listen --user alice                   with a token of this data folder's development issuer
  potok listen --token - --url https://hub.example.com/hubs/notifications < token.txt
  potok listen --user alice --count 1 --json

Each message is a line: its method, id and payload. It connects again when the connection breaks, and
prints what it missed as far as the hub kept it.")]
pub struct Listen {
    /// The user, whose token is made here; for hubs without an issuer
    #[arg(long, value_name = "USER", required_unless_present = "token")]
    user: Option<String>,
    /// A token to connect with instead; `-` reads it
    #[arg(long, value_name = "TOKEN", conflicts_with = "user")]
    token: Option<String>,
    /// The hub
    #[arg(long, default_value = "http://127.0.0.1:7602/hubs/notifications", value_name = "URL")]
    url: String,
    /// Stop after so many messages
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,
    /// Data folder with the development key [default: ./potok-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl Listen {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        folder::block_on(self.listen(json))
    }

    async fn listen(self, json: bool) -> Result<(), Failure> {
        let mut listener = Listener::new(&self.url).map_err(|why| {
            Failure::new("P1111", why)
                .of_usage()
                .hint("as potok hub prints it: http://127.0.0.1:7602/hubs/notifications")
        })?;
        let given = self.given_token()?;
        let mut signals = Signals::listen()?;
        let mut left = self.count;
        let mut pause = PAUSE;
        loop {
            let token = match &given {
                Some(token) => token.clone(),
                None => self.mint()?,
            };
            let heard = |heard: ClientEvent| {
                let shown = show(&heard, json);
                match heard {
                    ClientEvent::Connected => pause = PAUSE,
                    ClientEvent::Message { .. } => left = left.map(|left| left.saturating_sub(1)),
                    ClientEvent::Gap => {}
                }
                // Whoever reads us may have gone.
                shown.is_ok() && left != Some(0)
            };
            let ended = tokio::select! {
                () = signals.next() => return Ok(()),
                ended = listener.listen(&token, heard) => ended,
            };
            match ended {
                Ok(()) => return Ok(()),
                Err(Disconnection::ForGood(why)) => {
                    return Err(Failure::new("P1112", "the hub does not let us listen")
                        .because(why)
                        .hint("potok token check - says which rule refuses a token"));
                }
                Err(Disconnection::ForNow(why)) => {
                    eprintln!("connecting again: {}", terminal::plain(&why))
                }
            }
            tokio::select! {
                () = signals.next() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn given_token(&self) -> Result<Option<String>, Failure> {
        let Some(token) = &self.token else { return Ok(None) };
        let mut token = token.clone();
        if token == "-" {
            token = String::new();
            std::io::stdin().take(64 << 10).read_to_string(&mut token)?;
        }
        Ok(Some(token.trim().to_owned()))
    }

    fn mint(&self) -> Result<String, Failure> {
        let issuer = development(&connections(None, self.data_dir.as_deref())?.data_dir)?;
        let user = self.user.as_deref().unwrap_or_default();
        issuer
            .mint(user, TOKEN_LIFE, development::now())
            .map_err(|error| Failure::new("P1104", "no token can be made").because(error))
    }
}

fn show(heard: &ClientEvent, json: bool) -> std::io::Result<()> {
    let mut out = terminal::out();
    match (heard, json) {
        (ClientEvent::Connected, true) => writeln!(out, "{}", json!({"event": "connected"}))?,
        (ClientEvent::Connected, false) => eprintln!("connected"),
        (ClientEvent::Gap, true) => writeln!(out, "{}", json!({"event": "gap"}))?,
        (ClientEvent::Gap, false) => eprintln!("the hub does not know what came meanwhile"),
        (ClientEvent::Message { method, id, payload }, true) => {
            let line = json!({"event": "message", "method": method, "id": id, "payload": payload});
            writeln!(out, "{line}")?;
        }
        (ClientEvent::Message { method, id, payload }, false) => {
            // Both come from outside; the payload is JSON, which has no control characters.
            let (method, id) = (terminal::plain(method), terminal::plain(id));
            writeln!(out, "{method}  {id}  {payload}")?;
        }
    }
    out.flush()
}
