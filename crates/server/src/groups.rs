//! What pipelines hold, and what people ask of it.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use potok_core::Fault;
use potok_flow::{Engine, GroupCursor, GroupPage};
use serde::Deserialize;

use crate::audit::{self, Entry, Via};
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

/// A page of what is held, or what is held of one key.
pub(crate) async fn list(
    State(admin): State<Admin>,
    Params(which): Params<GroupFilter>,
) -> Result<Json<GroupPage>, ApiError> {
    let pipeline = which.pipeline.as_deref();
    if let Some(pipeline) = pipeline {
        running(&admin, pipeline).await?;
    }
    if let Some(id) = &which.id {
        let groups = admin.engine().groups_of(pipeline, id);
        return Ok(Json(GroupPage { total: groups.len() as u64, groups, next: None }));
    }
    let after = which.after.map(|after| {
        let unknown = |()| ApiError::usage(format!("`after={after}` is not what a page said"));
        after.parse::<GroupCursor>().map_err(unknown)
    });
    let limit = which.limit.unwrap_or(PAGE).clamp(1, PAGE_MAX);
    Ok(Json(admin.engine().groups(pipeline, after.transpose()?.as_ref(), limit)))
}

pub(crate) async fn close(
    State(admin): State<Admin>,
    Path((pipeline, id)): Path<(String, String)>,
) -> Result<Json<serde_json::Value>, ApiError> {
    close_group(&admin, Via::Api, &pipeline, &id).await?;
    Ok(Json(serde_json::json!({ "closed": id })))
}

pub(crate) async fn drop(
    State(admin): State<Admin>,
    Path((pipeline, id)): Path<(String, String)>,
) -> Result<Json<serde_json::Value>, ApiError> {
    drop_group(&admin, Via::Api, &pipeline, &id).await?;
    Ok(Json(serde_json::json!({ "dropped": id })))
}

/// Closes the open group of a key now.
pub(crate) async fn close_group(
    admin: &Admin,
    via: Via,
    pipeline: &str,
    id: &str,
) -> Result<(), ApiError> {
    let asked = ask(admin, pipeline, id, Engine::close_group).await;
    let entry = Entry::new(via, "close_group").pipeline(pipeline).target(id);
    audit::note(admin, entry.result(&asked)).await;
    asked
}

/// Closes the open group of a key and sets its records aside; says how many it held.
pub(crate) async fn drop_group(
    admin: &Admin,
    via: Via,
    pipeline: &str,
    id: &str,
) -> Result<u64, ApiError> {
    let records = held(admin, pipeline, id);
    let asked = ask(admin, pipeline, id, Engine::drop_group).await;
    let entry = Entry::new(via, "drop_group").pipeline(pipeline).target(id).count(records);
    audit::note(admin, entry.result(&asked)).await;
    asked.map(|()| records)
}

/// Records that open groups of a key hold.
pub(crate) fn held(admin: &Admin, pipeline: &str, id: &str) -> u64 {
    let groups = admin.engine().groups_of(Some(pipeline), id).into_iter();
    let open = groups.filter(|group| group.state == "open");
    open.flat_map(|group| group.kinds.into_values()).map(|kind| kind.records).sum()
}

async fn ask(
    admin: &Admin,
    pipeline: &str,
    id: &str,
    act: impl Fn(&Engine, &str, &str) -> Result<bool, Fault>,
) -> Result<(), ApiError> {
    running(admin, pipeline).await?;
    if act(admin.engine(), pipeline, id)? {
        return Ok(());
    }
    let what = format!("pipeline `{pipeline}` holds no open group `{id}`");
    Err(ApiError::new(StatusCode::NOT_FOUND, "P0527", what)
        .hint("`potok groups list` shows what is held"))
}
