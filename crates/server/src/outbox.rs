//! Outbox tables that pipelines of this process relay or stand by for: how they stand, and what people
//! do to rows by hand.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use potok_core::{Fault, Feed, OutboxStatus};
use serde::{Deserialize, Serialize};

use crate::access::{Actor, Role, Visitor};
use crate::audit::{self, AuditEntry};
use crate::letters::cause_of;
use crate::pipelines::running;
use crate::request::{self, Params};
use crate::{Admin, ApiError};

/// How long a database may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutboxFilter {
    pipeline: Option<String>,
}

#[derive(Serialize)]
pub(crate) struct AllOutboxes {
    outboxes: Vec<OutboxLine>,
}

/// The outbox of one pipeline, as `potok outbox status --json` prints it.
#[derive(Serialize)]
pub(crate) struct OutboxLine {
    pub pipeline: String,
    /// `None` where the database does not say.
    #[serde(flatten)]
    pub status: Option<OutboxStatus>,
    /// Why it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Every outbox here, or that of one pipeline.
pub(crate) async fn outboxes(
    admin: &Admin,
    pipeline: Option<&str>,
) -> Result<Vec<OutboxLine>, ApiError> {
    let asked = feeds(admin, pipeline).await?.into_iter().map(|(pipeline, feed)| async move {
        let answer = match feed.outbox() {
            Some(table) => soon(table.status()).await,
            None => Err(Fault::wait("it is gone")),
        };
        let (status, error) = match answer {
            Ok(status) => (Some(status), None),
            Err(fault) => (None, Some(fault.to_string())),
        };
        OutboxLine { pipeline, status, error }
    });
    Ok(futures::future::join_all(asked).await)
}

pub(crate) async fn list(
    State(admin): State<Admin>,
    visitor: Visitor,
    Params(which): Params<OutboxFilter>,
) -> Result<Json<AllOutboxes>, ApiError> {
    let mut outboxes = outboxes(&admin, which.pipeline.as_deref()).await?;
    if !visitor.may(Role::Operator) {
        // Errors quote what they are about.
        for OutboxLine { status, error, .. } in &mut outboxes {
            let rows = status.iter_mut().flat_map(|status| &mut status.failing);
            let errors = rows.map(|row| &mut row.error).chain(error);
            errors.for_each(|error| *error = cause_of(error));
        }
    }
    Ok(Json(AllOutboxes { outboxes }))
}

/// What to do to which rows.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RowsWish {
    /// Needed where several outboxes are here.
    pipeline: Option<String>,
    /// Ids of rows; without them all, where that makes sense.
    ids: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowAction {
    Retry,
    Skip,
}

/// Which rows it was done to.
#[derive(Serialize)]
pub(crate) struct RowsDone {
    pub pipeline: String,
    pub ids: Vec<String>,
}

pub(crate) async fn retry(
    State(admin): State<Admin>,
    actor: Actor,
    body: Body,
) -> Result<Json<RowsDone>, ApiError> {
    let RowsWish { pipeline, ids } = request::json(body).await?;
    act(&admin, &actor, RowAction::Retry, pipeline.as_deref(), ids).await.map(Json)
}

pub(crate) async fn skip(
    State(admin): State<Admin>,
    actor: Actor,
    body: Body,
) -> Result<Json<RowsDone>, ApiError> {
    let RowsWish { pipeline, ids } = request::json(body).await?;
    act(&admin, &actor, RowAction::Skip, pipeline.as_deref(), ids).await.map(Json)
}

/// Tries rows again now, or marks them as processed without publishing them.
pub(crate) async fn act(
    admin: &Admin,
    actor: &Actor,
    action: RowAction,
    pipeline: Option<&str>,
    ids: Option<Vec<String>>,
) -> Result<RowsDone, ApiError> {
    let feeds = feeds(admin, pipeline).await?;
    let [(pipeline, feed)] = feeds.as_slice() else {
        let known: Vec<&str> = feeds.iter().map(|(pipeline, _)| pipeline.as_str()).collect();
        let what = format!("several outboxes are here: {}", known.join(", "));
        return Err(ApiError::usage(what).hint("name the pipeline"));
    };
    let Some(table) = feed.outbox() else { return Err(none(Some(pipeline))) };
    let word = match action {
        RowAction::Retry => "retry_rows",
        RowAction::Skip => "skip_rows",
    };
    let done = match (action, &ids) {
        (RowAction::Retry, ids) => soon(table.retry(ids.as_deref())).await,
        (RowAction::Skip, Some(ids)) => soon(table.skip(ids)).await,
        (RowAction::Skip, None) => return Err(ApiError::usage("which rows? `ids` names them")),
    };
    let done = done.map_err(ApiError::from);
    let target = ids.map_or_else(|| "all".to_owned(), |ids| ids.join(" "));
    let entry = AuditEntry::new(actor, word).pipeline(pipeline).target(target).result(&done);
    let count = done.as_ref().map_or(0, |ids| ids.len() as u64);
    audit::note(admin, entry.count(count)).await;
    Ok(RowsDone { pipeline: pipeline.clone(), ids: done? })
}

/// Pipelines whose source is an outbox.
async fn feeds(
    admin: &Admin,
    pipeline: Option<&str>,
) -> Result<Vec<(String, Arc<dyn Feed>)>, ApiError> {
    let mut feeds = admin.engine().feeds(pipeline);
    feeds.retain(|(_, feed)| feed.outbox().is_some());
    if !feeds.is_empty() {
        return Ok(feeds);
    }
    if let Some(pipeline) = pipeline {
        running(admin, pipeline).await?;
    }
    Err(none(pipeline))
}

fn none(pipeline: Option<&str>) -> ApiError {
    let what = match pipeline {
        Some(pipeline) => format!("pipeline `{pipeline}` relays no outbox"),
        None => "no pipeline that runs here relays an outbox".to_owned(),
    };
    ApiError::new(StatusCode::NOT_FOUND, "P1330", what)
        .hint("run one with `source: { outbox: … }`, or name the file: `potok outbox status FILE`")
}

/// An answer of a database, or that there is none.
pub(crate) async fn soon<T>(answer: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let answer = tokio::time::timeout(ANSWER_MAX, answer).await;
    answer.unwrap_or_else(|_| Err(Fault::wait("the database does not answer").code("P1331")))
}
