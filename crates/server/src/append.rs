//! Into a topic: all records of a request durable, then the answer.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use potok_core::{Output, RECORD_BYTES_MAX};
use serde::Serialize;

use crate::frame::{FRAME_TYPE, read_records};
use crate::line::{LINES_TYPE, read_lines};
use crate::{Admin, ApiError, request};

/// One record of the largest size and what stands around it.
const BODY_BYTES_MAX: usize = RECORD_BYTES_MAX + (1 << 20);
/// The budget for bodies is counted in units of this size.
pub(crate) const BODY_UNIT: usize = 4 << 10;

/// A body that has not arrived by then gives its room back.
const ARRIVAL_MAX: Duration = Duration::from_secs(60);

/// How long the log may take to say who reads a topic.
const ASK_MAX: Duration = Duration::from_secs(2);
/// Nobody reads a longer list of topics.
const KNOWN_MAX: usize = 20;

#[derive(Serialize)]
pub(crate) struct AppendAnswer {
    appended: usize,
    /// Nobody reads the topic: probably another one was meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    unread: Option<UnreadTopic>,
}

/// A topic that no pipeline reads.
#[derive(Serialize)]
struct UnreadTopic {
    /// It came to be with these records.
    new_topic: bool,
    /// Topics that are read.
    known: Vec<String>,
}

pub(crate) async fn records(
    State(admin): State<Admin>,
    Path(topic): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<AppendAnswer>, ApiError> {
    if let Some(purpose) = admin.engine().own_topic(&topic).await {
        return Err(potok_core::not_by_hand(&topic, &purpose).into());
    }
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok())
        .unwrap_or(BODY_BYTES_MAX);
    if length > BODY_BYTES_MAX {
        return Err(request::too_large(BODY_BYTES_MAX));
    }
    let units = u32::try_from(length / BODY_UNIT + 1).unwrap_or(u32::MAX);
    // The semaphore is never closed; an error could only mean that the process is ending.
    let _room = admin.bodies().acquire_many(units).await.map_err(|_| ApiError::usage("closed"))?;
    let arrival = tokio::time::timeout(ARRIVAL_MAX, request::whole(body, BODY_BYTES_MAX));
    let body = arrival.await.map_err(|_| {
        let what = "the body of the request did not arrive in time";
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "P0501", what)
    })??;
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let topic: Arc<str> = topic.into();
    let outputs = read(content_type, body, &topic)?;
    if outputs.is_empty() {
        return Ok(Json(AppendAnswer { appended: 0, unread: None }));
    }
    let unread = unread(&admin, &topic).await;
    admin.engine().log().append(&outputs).await?;
    Ok(Json(AppendAnswer { appended: outputs.len(), unread }))
}

/// Says so where nobody reads a topic. Asks the log only where no pipeline of this process does, and
/// says nothing where the log has no answer: whoever sends waits for it.
async fn unread(admin: &Admin, topic: &str) -> Option<UnreadTopic> {
    let mut known: Vec<String> = admin.engine().reads().iter().map(ToString::to_string).collect();
    if known.iter().any(|known| known == topic) {
        return None;
    }
    let groups =
        tokio::time::timeout(ASK_MAX, admin.engine().consumer_groups()).await.ok()?.ok()?;
    let mut own: Vec<&str> = Vec::new();
    for group in groups.iter() {
        let info = &group.info;
        own.extend([&*info.dead_letters, &*info.resolved, &*info.replay]);
        own.extend(info.internal.as_deref());
        known.extend(group.partitions.iter().map(|partition| partition.topic.clone()));
    }
    if known.iter().any(|known| known == topic) {
        return None;
    }
    let topics = tokio::time::timeout(ASK_MAX, admin.engine().log().topics()).await.ok()?.ok()?;
    known.retain(|topic| !own.contains(&topic.as_str()));
    known.sort();
    known.dedup();
    known.truncate(KNOWN_MAX);
    Some(UnreadTopic { new_topic: topics.iter().all(|there| there.topic != topic), known })
}

fn read(
    content_type: Option<&str>,
    body: Bytes,
    topic: &Arc<str>,
) -> Result<Vec<Output>, ApiError> {
    let kind = content_type.and_then(|kind| kind.split(';').next()).map(str::trim);
    let read = match kind {
        Some(FRAME_TYPE) => read_records(body, topic),
        Some(LINES_TYPE | "application/json") => read_lines(&body, topic),
        _ => Err(format!("records come as {FRAME_TYPE} or as lines of JSON, {LINES_TYPE}")),
    };
    read.map_err(|error| ApiError::usage("the records cannot be read").because(error))
}
