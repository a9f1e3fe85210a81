//! The keys of a webhook in pipeline files.

use std::sync::Arc;

use potok_config::{EntryCheck, Period, Refusal, Registry, Secret, Site, StageSettings};
use potok_core::{Fault, Stage};
use schemars::JsonSchema;
use serde::Deserialize;

use super::WebhookStage;

/// Adds the stage.
pub(crate) fn register(registry: &mut Registry) {
    registry.stage::<WebhookStageSettings>("webhook", &[]);
}

/// A program of yours that is asked over HTTP what becomes of events.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookStageSettings {
    /// An address that gets events by HTTP POST, as a JSON array of `{ "id", "topic", "key",
    /// "headers", "value" }`, at most 500 of them or about 1 MiB, and answers with an array of
    /// the same length: `{ "value": … }` is what the event becomes, `{ "filtered": true }`
    /// filters it, `{ "error": "…" }` is a failure, on which `on_error` decides, and `null`
    /// leaves the event as it was. The same call made again has the same `Idempotency-Key`. The
    /// address may hold a secret and is not shown.
    ///
    /// Example: `webhook: "${ENRICH_URL}"`
    pub webhook: Secret,
    /// How long it may take to answer. Afterwards the call is made again.
    ///
    /// Example: `timeout: 10s`
    #[serde(default = "ten_seconds")]
    pub timeout: Period,
}

fn ten_seconds() -> Period {
    Period::secs(10)
}

impl StageSettings for WebhookStageSettings {
    fn check(&self, entry: &mut EntryCheck<'_>) {
        if entry.is_raw() {
            let what = "`webhook` on raw bytes: they are no JSON to send";
            entry.refuse_as("P0148", "webhook", what, "use `format: json`");
        }
    }

    fn build(&self, site: &Site<'_>) -> Result<Arc<dyn Stage>, Vec<Refusal>> {
        let stage = WebhookStage::new(self.webhook.expose(), *self.timeout);
        let stage = stage.map_err(|fault| {
            let what = format!("{}: {}", site.label, fault.what);
            vec![Refusal::from(Fault { what, ..fault })]
        })?;
        Ok(Arc::new(stage))
    }
}
