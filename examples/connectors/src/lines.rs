//! A destination: each message becomes a line of a file.

use std::path::PathBuf;

use async_trait::async_trait;
use potok_config::{Destination, EntryCheck, Refusal, SinkSettings, Site};
use potok_core::{Batch, Fault, Receipt, Sink};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::fs::OpenOptions;
use tokio::io::AsyncWriteExt;
use tokio::sync::Mutex;

/// A file that gets a line for each message.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinesSettings {
    /// The file; it is made where it does not exist.
    ///
    /// Example: `lines: out.ndjson`
    lines: String,
    /// What stands before each line.
    ///
    /// Example: `prefix: "> "`
    #[serde(default)]
    prefix: String,
}

impl SinkSettings for LinesSettings {
    fn label(&self) -> &str {
        &self.lines
    }

    fn check(&self, entry: &mut EntryCheck<'_>) {
        if self.prefix.contains('\n') {
            let what = "`prefix` has a line break: one message would be two lines";
            entry.refuse("prefix", what, "give it on one line");
        }
    }

    fn build(&self, _site: &Site<'_>) -> Result<Destination, Vec<Refusal>> {
        let (path, prefix) = (PathBuf::from(&self.lines), self.prefix.clone());
        Ok(Destination::from(LinesSink { path, prefix, turn: Mutex::default() }))
    }
}

struct LinesSink {
    path: PathBuf,
    prefix: String,
    /// Lanes take turns, so that their lines do not mix.
    turn: Mutex<()>,
}

impl LinesSink {
    async fn append(&self, lines: &[u8]) -> std::io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path).await?;
        file.write_all(lines).await?;
        file.sync_data().await
    }

    /// Whoever can mend a file is a person; until then the pipeline waits.
    fn away(&self, error: std::io::Error) -> Fault {
        Fault::wait(format!("{} cannot be written", self.path.display())).because(error)
    }
}

#[async_trait]
impl Sink for LinesSink {
    async fn probe(&self) -> Result<(), Fault> {
        self.append(b"").await.map_err(|error| self.away(error))
    }

    /// All lines in one write. After a crash in the middle the same messages come again, and their
    /// lines are there twice: a file cannot tell. A destination that can compares `message.id`.
    async fn deliver(&self, batch: &Batch) -> Result<Receipt, Fault> {
        let mut lines = Vec::new();
        for message in &batch.messages {
            lines.extend_from_slice(self.prefix.as_bytes());
            lines.extend_from_slice(&message.value);
            lines.push(b'\n');
        }
        let _turn = self.turn.lock().await;
        self.append(&lines).await.map_err(|error| self.away(error))?;
        Ok(Receipt::delivered())
    }
}
