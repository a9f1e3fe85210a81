//! The stage: events go out, what becomes of them comes back.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hyper::StatusCode;
use potok_core::{Event, Fault, Stage, StageLimits, StageResult};

use super::address::WebhookAddress;
use super::client::{ReplyBody, WebhookClient};
use super::{answer, call, fault};

/// Events of one call.
const EVENTS_MAX: usize = 500;
/// Bytes of their values.
const BYTES_MAX: usize = 1 << 20;
/// A longer answer is none.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Asks an address what becomes of events.
pub struct WebhookStage {
    client: WebhookClient,
}

impl WebhookStage {
    /// A stage that posts to `url` and waits so long for the answer. Connects when it is called
    /// first.
    pub fn new(url: &str, timeout: Duration) -> Result<Self, Fault> {
        let client = WebhookClient::new(WebhookAddress::parse(url)?, timeout, ANSWER_BYTES_MAX)?;
        Ok(WebhookStage { client })
    }
}

impl WebhookStage {
    /// The body of the answer to one call.
    async fn ask(&self, body: Bytes, name: &str) -> Result<Bytes, Fault> {
        let headers = [("idempotency-key".to_owned(), name.to_owned())];
        let reply = self.client.post(body, &headers).await?;
        match (reply.body, reply.status) {
            (ReplyBody::Whole(body), StatusCode::OK) => Ok(body),
            (ReplyBody::Whole(said), status) => {
                Err(fault::refused_stage(status, &self.client.shown(&said)))
            }
            (_, status) if status != StatusCode::OK => Err(fault::refused_stage(status, "")),
            (ReplyBody::TooLong, _) => Err(fault::too_long(ANSWER_BYTES_MAX)),
            (ReplyBody::Broken(cause), _) => Err(fault::broken(cause)),
        }
    }
}

#[async_trait]
impl Stage for WebhookStage {
    fn limits(&self) -> StageLimits {
        StageLimits { events_max: EVENTS_MAX, bytes_max: BYTES_MAX }
    }

    async fn apply(&self, events: Vec<Event>) -> Result<Vec<StageResult>, Fault> {
        let call = call::of(&events);
        let body = match call.body {
            Some(body) => self.ask(body, &call.name).await?,
            None => Default::default(),
        };
        let asked = call.failed.iter().filter(|failed| failed.is_none()).count();
        let mut answers = match asked {
            0 => Vec::new(),
            _ => answer::read(&body, asked),
        }
        .into_iter();
        let staged = events.into_iter().zip(call.failed).map(|(event, failed)| {
            match failed.map_or_else(|| answers.next(), |fault| Some(Err(fault))) {
                Some(Ok(answer)) => answer.applied_to(event),
                Some(Err(fault)) => StageResult::Failed(fault),
                // There is one for each that was asked about.
                None => StageResult::Failed(answer::missing()),
            }
        });
        Ok(staged.collect())
    }
}
