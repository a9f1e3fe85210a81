//! `potok token`: tokens of the development issuer, and why a token is refused.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use potok_config::Connections;
use potok_hub::AuthSettings;
use potok_hub::tokens::development::{self, DevelopmentIssuer};
use potok_hub::tokens::issuer::Issuer;
use potok_hub::tokens::{Authority, Refusal};
use serde_json::json;

use crate::failure::Failure;
use crate::{folder, private, terminal, wire};

/// Tokens for the hub: make one for development, or learn why one is refused
#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  potok token mint --sub alice
  potok token check - < token.txt")]
pub enum Token {
    Mint(Mint),
    Check(CheckToken),
}

/// Make a token that the hub of this data folder accepts while no issuer is set
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok token mint --sub alice
  potok token mint --sub alice --ttl 24h --data-dir ./try")]
pub struct Mint {
    /// The user it speaks for
    #[arg(long, value_name = "USER")]
    sub: String,
    /// How long it counts, at most 24h
    #[arg(long, default_value = "1h", value_name = "DURATION", value_parser = period)]
    ttl: Duration,
    /// Data folder [default: ./potok-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// Say whether the hub accepts a token, and which rule refuses it
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok token check - < token.txt
  potok token check - --issuer https://id.example.com/realms/shop --audience potok < token.txt

A token on the command line is seen by everybody who can list processes; `-` reads it.")]
pub struct CheckToken {
    /// The token, or `-` to read it
    token: String,
    #[command(flatten)]
    auth: Auth,
    /// Connections [default: ./potok.yaml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data folder [default: ./potok-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// Whose tokens count.
#[derive(clap::Args)]
pub struct Auth {
    /// Issuer of the tokens, as in their `iss` [default: POTOK_AUTH_ISSUER, or auth.issuer]
    #[arg(long, value_name = "URL")]
    issuer: Option<String>,
    /// Audience that must be in their `aud` [default: POTOK_AUTH_AUDIENCE, or auth.audience]
    #[arg(long, value_name = "NAME")]
    audience: Option<String>,
    /// Where the issuer's keys are, if its own address cannot be reached from here
    #[arg(long, value_name = "URL")]
    jwks_url: Option<String>,
    /// Claim that names the user [default: auth.user, or sub]
    #[arg(long, value_name = "CLAIM")]
    user_claim: Option<String>,
    /// Role that every user must have, `name` or `client:name`; may be repeated
    #[arg(long = "role", value_name = "ROLE")]
    roles: Vec<String>,
    /// Client whose tokens count; may be repeated, without it all do
    #[arg(long = "client", value_name = "ID")]
    clients: Vec<String>,
}

impl Auth {
    /// What is asked of tokens, where an issuer is set: by flags, else as `auth` of the connections
    /// says.
    pub fn settings(&self, auth: &potok_config::Auth) -> Result<Option<AuthSettings>, Failure> {
        let (issuer, audience) = auth.issuer.clone().unzip();
        let or = |flags: &Vec<String>, set: &Vec<String>| {
            if flags.is_empty() { set.clone() } else { flags.clone() }
        };
        match (self.issuer.clone().or(issuer), self.audience.clone().or(audience)) {
            (Some(issuer), Some(audience)) => Ok(Some(AuthSettings {
                jwks_url: self.jwks_url.clone().or_else(|| auth.jwks_url.clone()),
                user: self.user_claim.clone().unwrap_or_else(|| auth.user.clone()),
                roles: or(&self.roles, &auth.roles),
                clients: or(&self.clients, &auth.clients),
                ..AuthSettings::new(&issuer, &audience)
            })),
            (None, None) => Ok(None),
            (Some(_), None) => Err(half("an issuer without an audience", "--audience")),
            (None, Some(_)) => Err(half("an audience without an issuer", "--issuer")),
        }
    }
}

fn half(what: &str, flag: &str) -> Failure {
    Failure::new("P1103", what).of_usage().hint(format!("add {flag}, or its variable"))
}

/// `90s`, `1h30m`.
pub fn period(text: &str) -> Result<Duration, String> {
    let period: Result<potok_config::Period, _> = serde_json::from_value(json!(text));
    period.map(|period| period.0).map_err(|error| error.to_string())
}

/// Where things are; the development issuer's key is in the data folder.
pub fn connections(config: Option<&Path>, data_dir: Option<&Path>) -> Result<Connections, Failure> {
    let flags = potok_config::Flags {
        data_dir: data_dir.map(Path::to_owned),
        ..potok_config::Flags::default()
    };
    wire::connections(config, &flags)
}

/// The development issuer of a folder.
pub fn development(folder: &Path) -> Result<Arc<DevelopmentIssuer>, Failure> {
    let opened = private::make_folder(folder).and_then(|()| DevelopmentIssuer::open(folder));
    opened.map_err(|error| {
        let what = format!("the development key in {} cannot be used", folder.display());
        Failure::new("P1104", what).because(error)
    })
}

impl Token {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        match self {
            Token::Mint(mint) => mint.run(json),
            Token::Check(check) => folder::block_on(check.run(json)),
        }
    }
}

impl Mint {
    fn run(self, json: bool) -> Result<(), Failure> {
        let issuer = development(&connections(None, self.data_dir.as_deref())?.data_dir)?;
        let token = issuer
            .mint(&self.sub, self.ttl, development::now())
            .map_err(|error| Failure::new("P1104", "no token can be made").because(error))?;
        let mut out = terminal::out();
        match json {
            true => writeln!(out, "{}", json!({ "token": token }))?,
            false => writeln!(out, "{token}")?,
        }
        out.flush()?;
        Ok(())
    }
}

impl CheckToken {
    async fn run(self, json: bool) -> Result<(), Failure> {
        let mut token = self.token;
        if token == "-" {
            token = String::new();
            std::io::stdin().take(64 << 10).read_to_string(&mut token)?;
        }
        let token = token.trim();
        let connections = connections(self.config.as_deref(), self.data_dir.as_deref())?;
        let authority: Arc<dyn Authority> = match self.auth.settings(&connections.auth)? {
            Some(settings) => Arc::new(issuer(settings)?),
            None => development(&connections.data_dir)?,
        };
        let person = authority.verify(token).await.map_err(|refusal| {
            let failure = Failure::new("P1105", format!("the token is refused: {refusal}"));
            let failure = failure.hint(refusal.hint());
            match (&refusal, authority.not_ready()) {
                (Refusal::NoKeys, Some(why)) => failure.because(why),
                _ => failure,
            }
        })?;
        let left = person.expires.duration_since(development::now()).unwrap_or_default().as_secs();
        let mut out = terminal::out();
        match json {
            true => {
                let line = json!({"user": person.user.as_str(), "expires_in_seconds": left});
                writeln!(out, "{line}")?;
            }
            false => writeln!(out, "good: user {}, {left} s left", person.user.as_str())?,
        }
        out.flush()?;
        Ok(())
    }
}

fn issuer(settings: AuthSettings) -> Result<Issuer, Failure> {
    Issuer::new(settings)
        .map_err(|why| Failure::new("P1106", "the issuer cannot be used").because(why))
}
