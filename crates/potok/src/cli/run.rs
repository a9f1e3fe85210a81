//! `potok run`: pipelines at work until a signal.

use std::io::Write;
use std::path::PathBuf;

use potok_config::{Connections, Flags};
use serde_json::json;

use super::logging::Logging;
use crate::failure::Failure;
use crate::process::{Process, Signals};
use crate::{folder, terminal, wire};

/// Run pipelines until SIGTERM or Ctrl-C, then finish what is in flight
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok run pipelines/orders.yaml
  potok run pipelines/*.yaml --data-dir /var/lib/potok --admin 127.0.0.1:0
  potok run orders.yaml --config potok.yaml --log-format json

Flags win over the environment (POTOK_DATA_DIR, POTOK_ADMIN, …), which wins over potok.yaml.
A second signal stops at once; nothing is lost by that, only done again.")]
pub struct Run {
    /// Pipeline files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    listen: ListenOptions,
}

/// Where a process works and listens.
#[derive(clap::Args)]
pub struct ListenOptions {
    /// Data folder [default: ./potok-data]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Address for the dashboard, health, metrics and these commands [default: 127.0.0.1:7600];
    /// port 0 picks one. Beyond this machine it needs `auth` and asks for access tokens
    #[arg(long, value_name = "HOST:PORT")]
    pub admin: Option<String>,
    /// Address for HTTP sources [default: 127.0.0.1:7601]; port 0 picks one. Nothing listens where
    /// no pipeline has an HTTP source
    #[arg(long, value_name = "HOST:PORT")]
    pub http: Option<String>,
    /// Connections file [default: ./potok.yaml if there is one]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl ListenOptions {
    /// The connections these flags, the environment and the file lead to.
    pub fn connections(&self) -> Result<Connections, Failure> {
        let flags = Flags {
            data_dir: self.data_dir.clone(),
            admin: self.admin.clone(),
            http: self.http.clone(),
        };
        wire::connections(self.config.as_deref(), &flags)
    }
}

impl Run {
    pub fn run(self, json: bool, logging: &Logging) -> Result<(), Failure> {
        logging.start("info", None)?;
        let (pipelines, connections) = wire::load_with(&self.files, self.listen.connections())?;
        let plans = wire::plans(&pipelines, &connections)?;
        for warning in pipelines.iter().flat_map(|pipeline| &pipeline.warnings) {
            let place = format!("{}:{}:{}", warning.file, warning.line, warning.column);
            let (code, hint) = (warning.code, warning.hint.as_deref().unwrap_or_default());
            tracing::warn!(place, code, hint, "{}", warning.what);
        }
        for (pipeline, what) in wire::without_address(&pipelines, &plans) {
            tracing::info!(pipeline, "{what}");
        }
        let names: Vec<String> = plans.iter().map(|plan| plan.name.clone()).collect();
        folder::block_on(async {
            let mut signals = Signals::listen()?;
            let mut process = Process::start(&connections, &pipelines, plans).await?;
            // Nobody has to read this; the process works all the same.
            let _ = announce(&process, &connections, &names, json);
            tokio::select! {
                () = signals.next() => {}
                failure = process.failed() => return Err(failure),
            }
            tracing::info!("stopping: what is in flight ends first; a second signal stops at once");
            for (pipeline, held_records) in process.stop(&mut signals).await? {
                tracing::info!(pipeline, held_records, "held records go on at the next start");
            }
            Ok(())
        })
    }
}

fn announce(
    process: &Process,
    connections: &Connections,
    pipelines: &[String],
    json: bool,
) -> std::io::Result<()> {
    let mut out = terminal::out();
    let data_dir = folder::absolute(&connections.data_dir);
    if json {
        let line = json!({
            "admin": process.address.to_string(),
            "http": process.http().map(|address| address.to_string()),
            "data_dir": data_dir,
            "pid": std::process::id(),
            "pipelines": pipelines,
        });
        writeln!(out, "{line}")?;
    } else {
        writeln!(out, "data folder  {}", data_dir.display())?;
        writeln!(out, "admin        http://{}", process.address)?;
        if let Some(address) = process.http() {
            writeln!(out, "HTTP sources http://{address}")?;
        }
        for pipeline in pipelines {
            writeln!(out, "pipeline     {pipeline}")?;
        }
    }
    out.flush()
}
