//! What the process tells its operator: structured lines on stderr, or in a file.

use std::fmt;
use std::fs::File;
use std::io;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

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
        // Whatever the filter asks for: tokens are in no log.
        let silent = |target: &str| target.starts_with(potok_hub::UNLOGGED_TARGET);
        let discreet = filter_fn(move |metadata| !silent(metadata.target()));
        let started = match self.log_format {
            LogFormat::Text => {
                logging.with_ansi(false).with_target(false).finish().with(discreet).try_init()
            }
            LogFormat::Json => {
                let logging = logging.fmt_fields(JsonFields::new()).event_format(JsonLine);
                logging.finish().with(discreet).try_init()
            }
        };
        // Only a second start can fail, and there is one.
        drop(started);
        Ok(())
    }
}

/// A line is one object: what was said, and of which pipeline and destination, side by side.
struct JsonLine;

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = Fields::default();
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        line.0.insert("timestamp".to_owned(), time.into());
        line.0.insert("level".to_owned(), event.metadata().level().to_string().into());
        line.0.insert("target".to_owned(), event.metadata().target().into());
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>().map(|fields| fields.as_str());
            if let Some(Ok(fields)) = fields.map(serde_json::from_str::<Map<String, Value>>) {
                line.0.extend(fields);
            }
        }
        event.record(&mut line);
        writeln!(writer, "{}", Value::Object(line.0))
    }
}

#[derive(Default)]
struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_of_json_has_what_it_is_about_beside_what_it_says() {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let logging = tracing_subscriber::fmt().fmt_fields(JsonFields::new());
        let logging = logging.event_format(JsonLine).with_writer(move || writer.clone());
        tracing::subscriber::with_default(logging.finish(), || {
            let run = tracing::error_span!("run", pipeline = %"orders");
            let deliver = tracing::error_span!(parent: &run, "deliver", destination = "db orders");
            deliver.in_scope(|| tracing::warn!(why = "away", times = 3, "gate closed"));
        });
        let line = buffer.0.lock().unwrap().clone();
        let line: Value = serde_json::from_slice(&line).unwrap();
        for (field, value) in [
            ("pipeline", Value::from("orders")),
            ("destination", "db orders".into()),
            ("message", "gate closed".into()),
            ("level", "WARN".into()),
            ("why", "away".into()),
            ("times", 3.into()),
        ] {
            assert_eq!(line[field], value, "{line}");
        }
        assert!(line["timestamp"].is_string(), "{line}");
    }
}
