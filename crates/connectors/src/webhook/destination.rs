//! The keys of a webhook as a destination, and where its name leads.

use hyper::header::{HeaderName, HeaderValue};
use potok_config::{
    ConnectionKind, ConnectionName, Destination, EntryCheck, Misfit, OrderedMap, Period, Refusal,
    Registry, Secret, SinkSettings, Site, is_url,
};
use potok_core::Fault;
use schemars::JsonSchema;
use serde::Deserialize;

use super::WebhookSink;

/// Adds the destination.
pub(crate) fn register(registry: &mut Registry) {
    registry.connections(CONNECTIONS).sink::<WebhookSinkSettings>("webhook", &[]);
}

/// `webhooks` in `potok.yaml`.
pub const CONNECTIONS: ConnectionKind = ConnectionKind {
    key: "webhooks",
    variable: "POTOK_WEBHOOK_",
    description: "Addresses of webhooks by name. Variable: `POTOK_WEBHOOK_` and the name in \
        capitals, other characters as `_` (`chat-batches` is `POTOK_WEBHOOK_CHAT_BATCHES`). \
        Without an address, what goes to a webhook goes to a topic of its name.\n\n\
        Example: `webhooks: { push: https://push.example/v1 }`",
    check: |text| match is_url(text, &["http", "https"]) {
        true => Ok(()),
        false => Err(Misfit {
            what: "this is not the address of a webhook".to_owned(),
            hint: "`https://host/path` or `http://…`".to_owned(),
        }),
    },
};

/// An address that gets each message by HTTP POST: the body is its value byte for byte, the header
/// `Idempotency-Key` its delivery id, the same whenever it is sent again. A status 2xx means that
/// it was taken. 401, 403, 429, 503 and an address that cannot be reached are waited for, other
/// 5xx and a missing answer are tried again, other 4xx make the record a dead letter `refused`.
/// Redirects are not followed. Up to 16 messages are on their way at a time: those of one key go one
/// after another, others arrive in any order. In a pipeline with groups the key is what `once_by` makes
/// of the message, else its own, so messages of one group may change places; with `order_by` those that
/// have the same value there keep their order.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookSinkSettings {
    /// The webhook, by its name in `potok.yaml` under `webhooks`. Without an address there, it is a
    /// topic of that name in the log.
    ///
    /// Example: `webhook: chat-batches`
    pub webhook: ConnectionName,
    /// Headers that are sent with every message. They may hold secrets and are not shown.
    ///
    /// Example: `headers: { Authorization: "Bearer ${TOKEN}" }`
    #[serde(default)]
    pub headers: OrderedMap<Secret>,
    /// How long the webhook may take to answer. Afterwards the message is sent again.
    ///
    /// Example: `timeout: 10s`
    #[serde(default = "ten_seconds")]
    pub timeout: Period,
    /// Signs each body: the header `X-Hub-Signature-256` is `sha256=` and the HMAC-SHA256 of the
    /// body with this secret, in hexadecimal.
    ///
    /// Example: `secret: "${WEBHOOK_SECRET}"`
    pub secret: Option<Secret>,
}

impl SinkSettings for WebhookSinkSettings {
    fn label(&self) -> &str {
        &self.webhook
    }

    fn check(&self, entry: &mut EntryCheck<'_>) {
        for (name, _) in self.headers.iter() {
            let path = format!("headers.{name}");
            if HeaderName::try_from(name).is_err() {
                let what = format!("`{name}` is not the name of a header");
                entry.refuse(&path, what, "letters, digits and `-`, e.g. `X-Source`");
            } else if OWN_HEADERS.iter().any(|own| own.eq_ignore_ascii_case(name)) {
                let what = format!("the header `{name}` is set by potok");
                entry.refuse(&path, what, "remove it");
            }
        }
        let values =
            self.headers.iter().filter(|(_, value)| HeaderValue::try_from(value.expose()).is_err());
        for (name, _) in values {
            let what = format!("the value of `{name}` has characters that no header takes");
            entry.refuse(&format!("headers.{name}"), what, "one line of plain text");
        }
    }

    fn build(&self, site: &Site<'_>) -> Result<Destination, Vec<Refusal>> {
        let Some(location) = site.connections.named(&CONNECTIONS, &self.webhook) else {
            return Ok(Destination::Topic(self.webhook.as_str().into()));
        };
        let sink = WebhookSink::new(location.text.expose(), *self.timeout).map_err(|fault| {
            let what = format!("{}: {}", site.label, fault.what);
            vec![Refusal::from(Fault { what, ..fault })]
        })?;
        let headers = self.headers.iter();
        let sink = sink.with_headers(
            headers.map(|(name, value)| (name.to_owned(), value.expose().to_owned())),
        );
        Ok(Destination::from(match &self.secret {
            Some(secret) => sink.with_secret(secret.expose()),
            None => sink,
        }))
    }
}

/// What every message has, and a file must not say otherwise.
const OWN_HEADERS: [&str; 4] = ["Idempotency-Key", "X-Hub-Signature-256", "Content-Length", "Host"];

fn ten_seconds() -> Period {
    Period::secs(10)
}
