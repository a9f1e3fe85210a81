//! The destination: each message is one POST, with its value as the body, byte for byte.
//!
//! ```text
//! POST <address>
//! Content-Type: application/json       or what `headers` says
//! Idempotency-Key: orders/0/41@…/0/0   the delivery id: the same whenever it is sent again
//! X-Hub-Signature-256: sha256=…        with `secret`: HMAC-SHA256 of the body, in hexadecimal
//! ```
//!
//! Any status 2xx means that the receiver has it. Promised: a message that the receiver refuses
//! takes no other with it, and one whose answer was lost is sent again under the same key. Not
//! here: dropping duplicates, which only the receiver can, and following redirects.

use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use hyper::StatusCode;
use percent_encoding::{CONTROLS, utf8_percent_encode};
use potok_core::{Batch, Fault, Message, Outcome, Reason, Receipt, Sink, SinkLimits};
use ring::hmac;

use super::address::WebhookAddress;
use super::client::{ReplyBody, WebhookClient};
use super::fault;

/// Messages that are on their way at the same time in one call.
const MESSAGES_MAX: usize = 16;
/// More of an answer is not read: its beginning is shown, and nothing else depends on it.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The header with the signature, as others call it too.
const SIGNATURE: &str = "x-hub-signature-256";

/// Posts messages to one address.
pub struct WebhookSink {
    client: WebhookClient,
    /// What is sent with every message.
    headers: Vec<(String, String)>,
    secret: Option<hmac::Key>,
}

impl WebhookSink {
    /// A sink that posts to `url` and waits so long for each answer. Connects when it is called
    /// first.
    pub fn new(url: &str, timeout: Duration) -> Result<Self, Fault> {
        let client = WebhookClient::new(WebhookAddress::parse(url)?, timeout, ANSWER_BYTES_MAX)?;
        Ok(WebhookSink { client, headers: Vec::new(), secret: None })
    }

    /// The same with these headers on every message.
    #[must_use]
    pub fn with_headers(mut self, headers: impl IntoIterator<Item = (String, String)>) -> Self {
        self.headers = headers.into_iter().collect();
        self
    }

    /// The same with a signature of every body, made with this secret.
    #[must_use]
    pub fn with_secret(mut self, secret: &str) -> Self {
        self.secret = Some(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()));
        self
    }

    async fn send(&self, message: &Message) -> Outcome {
        let id = message.id.to_string();
        let mut headers = self.headers.clone();
        // A name of a topic may have letters that no header takes.
        let id = utf8_percent_encode(&id, CONTROLS).to_string();
        headers.push(("idempotency-key".to_owned(), id));
        headers.extend(self.signature(&message.value).map(|sign| (SIGNATURE.to_owned(), sign)));
        match self.client.post(message.value.clone(), &headers).await {
            Ok(reply) if reply.status.is_success() => Outcome::Delivered,
            Ok(reply) => {
                let said = match reply.body {
                    ReplyBody::Whole(said) => self.client.shown(&said),
                    ReplyBody::TooLong | ReplyBody::Broken(_) => String::new(),
                };
                Outcome::Failed(refused(reply.status, &said))
            }
            Err(fault) => Outcome::Failed(fault),
        }
    }

    fn signature(&self, body: &[u8]) -> Option<String> {
        let tag = hmac::sign(self.secret.as_ref()?, body);
        let hex = tag.as_ref().iter().map(|byte| format!("{byte:02x}"));
        Some(format!("sha256={}", hex.collect::<String>()))
    }
}

#[async_trait]
impl Sink for WebhookSink {
    fn limits(&self) -> SinkLimits {
        SinkLimits { batch_records_max: MESSAGES_MAX, per_message: true, ..SinkLimits::default() }
    }

    /// Any answer shows that somebody is there, but for those by which a server says that it is
    /// not: many webhooks know nothing but POST.
    async fn probe(&self) -> Result<(), Fault> {
        let status = self.client.ask().await?;
        match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                Err(refused(status, ""))
            }
            _ => Ok(()),
        }
    }

    async fn deliver(&self, batch: &Batch) -> Result<Receipt, Fault> {
        let sent = batch.messages.iter().map(|message| self.send(message));
        let mut receipt = Receipt::delivered();
        for (index, outcome) in join_all(sent).await.into_iter().enumerate() {
            if !matches!(outcome, Outcome::Delivered) {
                receipt.set(index, outcome);
            }
        }
        Ok(receipt)
    }
}

/// Whose move it is when a message was not taken.
fn refused(status: StatusCode, said: &str) -> Fault {
    let fault = match status.as_u16() {
        401 | 403 => Fault::wait("the webhook does not let potok in")
            .code("P1001")
            .hint("check the credentials in its address, its headers and its secret"),
        429 | 503 => Fault::wait("the webhook takes no calls just now").code("P1001"),
        400..=499 if status != StatusCode::REQUEST_TIMEOUT => {
            Fault::set_aside(Reason::Refused, "the webhook refused the message").code("P1003")
        }
        300..=399 => Fault::fix("the webhook leads to another address, and is not followed")
            .code("P1005")
            .hint("give the connection the address it leads to, then `potok resume`"),
        _ => Fault::retry("the webhook failed").code("P1002"),
    };
    fault.because(fault::answered(status, said))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The example that GitHub's documentation of this header has.
    #[test]
    fn a_body_is_signed_as_receivers_expect() {
        let sink = WebhookSink::new("http://host", Duration::from_secs(1)).unwrap();
        assert_eq!(sink.signature(b"Hello, World!"), None);
        let sign = sink.with_secret("It's a Secret to Everybody").signature(b"Hello, World!");
        let expected = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        assert_eq!(sign.as_deref(), Some(expected));
    }
}
