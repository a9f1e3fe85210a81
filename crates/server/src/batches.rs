//! What pipelines hold, and what people ask of it.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use potok_core::Fault;
use potok_flow::{BatchView, Engine};
use serde::Deserialize;

use crate::pipelines::running;
use crate::request::Params;
use crate::{Admin, ApiError};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Which {
    pipeline: Option<String>,
    id: Option<String>,
}

pub(crate) async fn list(
    State(admin): State<Admin>,
    Params(which): Params<Which>,
) -> Result<Json<Vec<BatchView>>, ApiError> {
    if let Some(pipeline) = &which.pipeline {
        running(&admin, pipeline).await?;
    }
    let mut batches = admin.engine().batches();
    batches.retain(|batch| {
        which.pipeline.as_ref().is_none_or(|pipeline| batch.pipeline == *pipeline)
            && which.id.as_ref().is_none_or(|id| batch.id == *id)
    });
    Ok(Json(batches))
}

pub(crate) async fn release(
    State(admin): State<Admin>,
    Path((pipeline, id)): Path<(String, String)>,
) -> Result<Json<serde_json::Value>, ApiError> {
    ask(&admin, &pipeline, &id, Engine::release_batch).await?;
    Ok(Json(serde_json::json!({ "released": id })))
}

pub(crate) async fn drop(
    State(admin): State<Admin>,
    Path((pipeline, id)): Path<(String, String)>,
) -> Result<Json<serde_json::Value>, ApiError> {
    ask(&admin, &pipeline, &id, Engine::drop_batch).await?;
    Ok(Json(serde_json::json!({ "dropped": id })))
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
    let what = format!("pipeline `{pipeline}` holds no open batch `{id}`");
    Err(ApiError::new(StatusCode::NOT_FOUND, "P0527", what)
        .hint("`potok batches list` shows what is held"))
}
