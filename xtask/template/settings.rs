//! The keys of Sample in pipeline files and in `potok.yaml`.

use potok_config::{
    ConnectionKind, ConnectionName, Destination, EntryCheck, Misfit, Period, Refusal, Registry,
    SinkSettings, Site, is_url,
};
use potok_core::Fault;
use schemars::JsonSchema;
use serde::Deserialize;

use super::SampleSink;

/// `samples` in `potok.yaml`.
const CONNECTIONS: ConnectionKind = ConnectionKind {
    key: "samples",
    variable: "POTOK_SAMPLE_",
    description: "Servers of Sample by name. Variable: `POTOK_SAMPLE_` and the name in capitals.\n\n\
        Example: `samples: { main: \"sample://localhost:7000\" }`",
    check: |text| match is_url(text, &["sample"]) {
        true => Ok(()),
        false => Err(Misfit {
            what: "this is not the address of a Sample server".to_owned(),
            hint: "`sample://host:port`".to_owned(),
        }),
    },
};

/// Adds the destination.
pub(crate) fn register(registry: &mut Registry) {
    registry.connections(CONNECTIONS).sink::<SampleSettings>("sample", &[]);
}

/// A server of Sample, which gets each message as a line.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SampleSettings {
    /// The server, by its name in `potok.yaml` under `samples`.
    ///
    /// Example: `sample: main`
    pub sample: ConnectionName,
    /// How long it may take to answer.
    ///
    /// Example: `timeout: 5s`
    #[serde(default = "five_seconds")]
    pub timeout: Period,
}

fn five_seconds() -> Period {
    Period::secs(5)
}

impl SinkSettings for SampleSettings {
    fn label(&self) -> &str {
        &self.sample
    }

    fn check(&self, entry: &mut EntryCheck<'_>) {
        if entry.is_raw() {
            let what = "lines of raw bytes: a line break in one would be two messages";
            entry.refuse("sample", what, "use `format: json`");
        }
    }

    fn build(&self, site: &Site<'_>) -> Result<Destination, Vec<Refusal>> {
        let location = site.connections.named(&CONNECTIONS, &self.sample).ok_or_else(|| {
            let what = format!("{}: nothing says where `{}` is", site.label, self.sample);
            let hint = "set `samples` in potok.yaml, or its variable";
            vec![Refusal::at(["sample"], Fault::fix(what).code("P0152").hint(hint))]
        })?;
        Ok(Destination::from(SampleSink::new(location.text.expose(), *self.timeout)))
    }
}
