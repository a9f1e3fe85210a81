//! `potok audit`: what people did.

use super::changes::listed;
use crate::client::{Client, Target};
use crate::failure::Failure;

/// Show what people did, by commands and on the dashboard, newest first
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok audit
  potok audit --limit 20 --json

It lies in the topic `potok-audit`: `potok read potok-audit` shows all that is kept.")]
pub struct Audit {
    /// Show so many, a thousand at most
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
    #[command(flatten)]
    place: Target,
}

impl Audit {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        let path = format!("/api/v1/audit?limit={}", self.limit);
        let entries = Client::find(&self.place)?.get_json(&path)?;
        let columns = ["time", "by", "via", "action", "pipeline", "target", "count", "result"];
        let heads = ["TIME", "WHO", "VIA", "WHAT", "PIPELINE", "WHICH", "COUNT", "RESULT"];
        listed(entries, columns, heads, "nobody has changed anything yet", json)
    }
}
