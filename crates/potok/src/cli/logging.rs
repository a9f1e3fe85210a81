//! What the process tells its operator: structured lines on stderr, or in a file.

use std::fs::File;
use std::io;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::failure::Failure;

/// How much is logged, and how.
#[derive(clap::Args, Clone, Debug)]
pub struct Logging {
    /// What to log on stderr: error, warn, info, debug, trace, or a filter such as
    /// potok_flow=debug; RUST_LOG says the same
    #[arg(long, global = true, value_name = "LEVEL")]
    log_level: Option<String>,
    /// How to log
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

impl Logging {
    /// Logs from now on, into `file` or to stderr.
    pub fn start(&self, default: &str, file: Option<File>) -> Result<(), Failure> {
        let environment = std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty());
        let filter = self.log_level.clone().or(environment).unwrap_or_else(|| default.to_owned());
        let filter = EnvFilter::try_new(&filter).map_err(|error| {
            Failure::usage(format!("`{filter}` is not a log level")).because(error)
        })?;
        let writer = match file {
            Some(file) => BoxMakeWriter::new(file),
            None => BoxMakeWriter::new(io::stderr),
        };
        let logging = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
        let started = match self.log_format {
            LogFormat::Text => logging.with_ansi(false).with_target(false).try_init(),
            LogFormat::Json => logging.json().flatten_event(true).try_init(),
        };
        // Only a second start can fail, and there is one.
        drop(started);
        Ok(())
    }
}
