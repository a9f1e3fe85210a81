//! What pipelines hold, and what people ask of it.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use potok_core::{CloseReason, Fault};
use potok_flow::{Engine, GroupCursor, GroupPage, GroupView};
use serde::{Deserialize, Serialize};

use crate::pipelines::running;
use crate::request::Params;
use crate::{Admin, ApiError};

/// Groups of a page: as many as one gets who does not say, and as one may ask for.
const PAGE: usize = 1_000;
const PAGE_MAX: usize = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GroupFilter {
    pipeline: Option<String>,
    id: Option<String>,
    /// How many, at most.
    limit: Option<usize>,
    /// What the page before said.
    after: Option<String>,
}

/// Some of the groups that wait, here or in feeds.
#[derive(Serialize)]
pub(crate) struct Page {
    groups: Vec<GroupView>,
    total: u64,
    next: Option<String>,
}

/// Where the groups of feeds go on: behind so many of them.
const FEEDS: &str = "feeds.";

/// A page of what is held, or what is held of one key. What waits in feeds comes last.
pub(crate) async fn list(
    State(admin): State<Admin>,
    Params(which): Params<GroupFilter>,
) -> Result<Json<Page>, ApiError> {
    let pipeline = which.pipeline.as_deref();
    if let Some(pipeline) = pipeline {
        running(&admin, pipeline).await?;
    }
    if let Some(id) = &which.id {
        let mut groups = admin.engine().groups_of(pipeline, id);
        groups.extend(admin.engine().feed_groups_of(pipeline, id).await?);
        return Ok(Json(Page { total: groups.len() as u64, groups, next: None }));
    }
    let limit = which.limit.unwrap_or(PAGE).clamp(1, PAGE_MAX);
    let unknown = |after: &str| ApiError::usage(format!("`after={after}` is not what a page said"));
    let (after, skip) = match which.after.as_deref() {
        None => (None, None),
        Some(after) => match after.strip_prefix(FEEDS) {
            Some(skip) => (None, Some(skip.parse::<u64>().map_err(|_| unknown(after))?)),
            None => (Some(after.parse::<GroupCursor>().map_err(|()| unknown(after))?), None),
        },
    };
    let held = match skip {
        Some(_) => GroupPage {
            total: admin.engine().groups(pipeline, None, 1).total,
            ..GroupPage::default()
        },
        None => admin.engine().groups(pipeline, after.as_ref(), limit),
    };
    let GroupPage { mut groups, mut total, next } = held;
    let mut next = next.map(|next| next.to_string());
    let room = if next.is_some() { 0 } else { limit.saturating_sub(groups.len()) };
    let skip = skip.unwrap_or(0);
    let (in_feeds, waiting) = admin.engine().feed_groups(pipeline, skip, room).await?;
    let shown = skip + waiting.len() as u64;
    if next.is_none() && shown < in_feeds && (!waiting.is_empty() || room == 0) {
        next = Some(format!("{FEEDS}{shown}"));
    }
    total += in_feeds;
    groups.extend(waiting);
    Ok(Json(Page { groups, total, next }))
}

pub(crate) async fn close(
    State(admin): State<Admin>,
    Path((pipeline, id)): Path<(String, String)>,
) -> Result<Json<serde_json::Value>, ApiError> {
    ask(&admin, &pipeline, &id, Engine::close_group, CloseReason::ClosedByHand).await?;
    Ok(Json(serde_json::json!({ "closed": id })))
}

pub(crate) async fn drop(
    State(admin): State<Admin>,
    Path((pipeline, id)): Path<(String, String)>,
) -> Result<Json<serde_json::Value>, ApiError> {
    ask(&admin, &pipeline, &id, Engine::drop_group, CloseReason::Dropped).await?;
    Ok(Json(serde_json::json!({ "dropped": id })))
}

async fn ask(
    admin: &Admin,
    pipeline: &str,
    id: &str,
    act: impl Fn(&Engine, &str, &str) -> Result<bool, Fault>,
    reason: CloseReason,
) -> Result<(), ApiError> {
    running(admin, pipeline).await?;
    if act(admin.engine(), pipeline, id)?
        || admin.engine().close_feed_group(pipeline, id, reason).await?
    {
        return Ok(());
    }
    let what = format!("pipeline `{pipeline}` holds no open group `{id}`");
    Err(ApiError::new(StatusCode::NOT_FOUND, "P0527", what)
        .hint("`potok groups list` shows what is held"))
}
