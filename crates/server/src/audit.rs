//! Who did what: each change that a person makes is a record in the topic `potok-audit`.
//!
//! It is written before the answer. A log that does not take it is no reason to leave a person
//! without means: after a moment the change stands all the same, and the answer says that it is not
//! noted.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use bytes::Bytes;
use potok_core::{Headers, Output, ReadFrom};
use serde::{Deserialize, Serialize};

use crate::access::{Actor, Role, Visitor};
use crate::letters::{cause_of, without_predicate};
use crate::patience::soon;
use crate::request::Params;
use crate::{Admin, ApiError};

/// Where it lies.
pub(crate) const TOPIC: &str = "potok-audit";
/// How long the log may take.
const NOTE_MAX: Duration = Duration::from_secs(2);
/// How long programs wait for it.
const READ_MAX: Duration = Duration::from_secs(10);
/// As many as a page shows, and as one may ask for.
const PAGE: usize = 100;
const PAGE_MAX: usize = 1_000;

/// What an answer says where the change that it tells of is not noted.
pub(crate) const LOST: &str = "this is not noted in the audit: the log does not take it now";
/// In the head of an answer: something that whoever asked should know besides.
const WARNING: HeaderName = HeaderName::from_static("potok-warning");

/// Whether a note about what somebody did was lost.
#[derive(Clone, Debug, Default)]
pub(crate) struct NoteLoss(Arc<AtomicBool>);

impl NoteLoss {
    pub fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Has an answer say so.
    pub fn told(&self, mut answer: Response) -> Response {
        if self.is_any() {
            answer.headers_mut().insert(WARNING, HeaderValue::from_static(LOST));
        }
        answer
    }
}

/// Through which door somebody came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Door {
    Api,
    Dashboard,
}

/// One change.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AuditEntry {
    pub time: String,
    /// Who; `local` where nobody has to say.
    pub by: String,
    /// The address they came from; of a proxy where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IpAddr>,
    pub via: Door,
    /// `pause`, `close_group`, `replay` …
    pub action: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<String>,
    /// To what: a group's key, a filter, a topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// How many records, groups or dead letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// `done`, `started`, or why not.
    pub result: String,
    /// Whom to tell where it cannot be noted.
    #[serde(skip)]
    pub loss: NoteLoss,
}

impl AuditEntry {
    pub fn new(actor: &Actor, action: &str) -> Self {
        AuditEntry {
            time: String::new(),
            by: actor.by.clone(),
            from: actor.from,
            via: actor.via,
            action: action.to_owned(),
            pipeline: None,
            target: None,
            count: None,
            result: "done".to_owned(),
            loss: actor.loss.clone(),
        }
    }

    /// As somebody may read it: a predicate and an error quote what they are about.
    fn told(mut self, visitor: &Visitor) -> Self {
        if !visitor.may(Role::Operator) {
            self.target = self.target.as_deref().map(without_predicate);
            self.result = cause_of(&self.result);
        }
        self
    }

    pub fn pipeline(mut self, pipeline: &str) -> Self {
        self.pipeline = Some(pipeline.to_owned());
        self
    }

    pub fn target(mut self, target: impl Into<String>) -> Self {
        self.target = Some(target.into());
        self
    }

    pub fn count(mut self, count: u64) -> Self {
        self.count = Some(count);
        self
    }

    /// The same with how it went.
    pub fn result<T>(mut self, result: &Result<T, ApiError>) -> Self {
        if let Err(error) = result {
            self.result = format!("{}: {}", error.body.code, error.body.what);
        }
        self
    }
}

/// Notes a change; false where the log did not take it.
pub(crate) async fn note(admin: &Admin, mut entry: AuditEntry) -> bool {
    entry.time = admin.engine().clock().now().to_string();
    tracing::info!(
        by = entry.by,
        action = entry.action,
        pipeline = entry.pipeline.as_deref(),
        target = entry.target.as_deref(),
        result = entry.result,
        "by hand"
    );
    let output = Output {
        topic: TOPIC.into(),
        partition: None,
        key: Some(Bytes::copy_from_slice(entry.action.as_bytes())),
        headers: Headers::none(),
        // Serialising plain strings and numbers does not fail.
        value: Some(serde_json::to_vec(&entry).unwrap_or_default().into()),
    };
    let outputs = [output];
    let noted = tokio::time::timeout(NOTE_MAX, admin.engine().log().append(&outputs)).await;
    match noted {
        Ok(Ok(_)) => return true,
        Ok(Err(fault)) => {
            tracing::warn!(why = %fault, "a change could not be noted in {TOPIC}");
        }
        Err(_) => {
            tracing::warn!("a change could not be noted in {TOPIC}: the log does not answer");
        }
    }
    entry.loss.0.store(true, Ordering::Relaxed);
    false
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditQuery {
    limit: Option<usize>,
}

pub(crate) async fn list(
    State(admin): State<Admin>,
    visitor: Visitor,
    Params(wish): Params<AuditQuery>,
) -> Result<Json<Vec<AuditEntry>>, ApiError> {
    let most = wish.limit.unwrap_or(PAGE).clamp(1, PAGE_MAX);
    newest(&admin, &visitor, most, READ_MAX).await.map(Json)
}

/// The newest changes, newest first, as somebody may read them.
pub(crate) async fn newest(
    admin: &Admin,
    visitor: &Visitor,
    most: usize,
    within: Duration,
) -> Result<Vec<AuditEntry>, ApiError> {
    let entries = soon(within, read(admin, most)).await?;
    Ok(entries.into_iter().map(|entry| entry.told(visitor)).collect())
}

async fn read(admin: &Admin, most: usize) -> Result<Vec<AuditEntry>, ApiError> {
    let log = admin.engine().log();
    let topics = log.topics().await?;
    let Some(topic) = topics.iter().find(|known| known.topic == TOPIC) else {
        return Ok(Vec::new());
    };
    let from: Vec<u64> = topic.ends.iter().map(|end| end.saturating_sub(most as u64)).collect();
    let mut reader = log.read(TOPIC, ReadFrom::Offsets(from.into())).await?;
    let mut entries: Vec<AuditEntry> = Vec::new();
    while let Some(batch) = reader.next(false).await? {
        let values = batch.records.iter().filter_map(|record| record.value.as_deref());
        entries.extend(values.filter_map(|value| serde_json::from_slice(value).ok()));
    }
    entries.sort_by(|one, other| other.time.cmp(&one.time));
    entries.truncate(most);
    Ok(entries)
}
