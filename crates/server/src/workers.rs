//! Files by stage, for programs that work beside potok: what waits for a stage, how far a file is, and
//! how many rows are where, under `/api/v1/pipeline`.
//!
//! Stages that potok runs are its own: whoever asks to move one of their rows gets 409. A `done` from
//! elsewhere would carry no output, so nothing could go on with it.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use potok_core::{FilesAsk, ShardTotals, StageTotals};
use potok_flow::TrackedPipeline;
use serde::{Deserialize, Serialize};

use crate::access::Visitor;
use crate::request::Params;
use crate::tracked::{File, StuckFiles, files_of, shown, stuck_of, tracked};
use crate::{Admin, ApiError};

/// Rows on a page, where nobody says how many, and at most.
const QUEUE: u32 = 10;
const QUEUE_MAX: u32 = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueueFilter {
    pipeline: Option<String>,
    limit: Option<u32>,
    offset: Option<u32>,
}

/// The rows that a stage may begin with, oldest first.
#[derive(Serialize)]
pub(crate) struct StageQueue {
    stage: String,
    limit: u32,
    offset: u32,
    files: Vec<File>,
}

/// What waits for a stage: the one before is done, and it has not begun.
pub(crate) async fn queue(
    State(admin): State<Admin>,
    visitor: Visitor,
    Path(stage): Path<String>,
    Params(which): Params<QueueFilter>,
) -> Result<Json<StageQueue>, ApiError> {
    let limit = which.limit.unwrap_or(QUEUE).clamp(1, QUEUE_MAX);
    let offset = which.offset.unwrap_or(0);
    let (tracked, at) = find(&admin, which.pipeline.as_deref(), &stage).await?;
    let ask = FilesAsk::Queue { stage: at, limit, offset };
    let rows = tracked.tracker.list(&ask).await?;
    let files = rows.into_iter().map(|row| shown(&tracked, row, &visitor)).collect();
    Ok(Json(StageQueue { stage: name_of(&tracked, at), limit, offset, files }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PipelineFilter {
    pipeline: Option<String>,
}

/// All rows of one name.
#[derive(Serialize)]
pub(crate) struct FileRows {
    filename: String,
    shards: Vec<File>,
}

pub(crate) async fn file(
    State(admin): State<Admin>,
    visitor: Visitor,
    Path(filename): Path<String>,
    Params(which): Params<PipelineFilter>,
) -> Result<Json<FileRows>, ApiError> {
    let ask = FilesAsk::Named(filename.clone());
    let pipelines = files_of(&admin, &visitor, which.pipeline.as_deref(), &ask).await?;
    let shards: Vec<File> = pipelines.into_iter().flat_map(|pipeline| pipeline.files).collect();
    if shards.is_empty() {
        return Err(ApiError::new(
            StatusCode::NOT_FOUND,
            "P1409",
            format!("there is no file `{filename}`"),
        )
        .hint("`potok files` shows their names"));
    }
    Ok(Json(FileRows { filename, shards }))
}

/// How many rows are where.
#[derive(Serialize)]
pub(crate) struct Summary {
    pipelines: Vec<PipelineSummary>,
}

#[derive(Serialize)]
pub(crate) struct PipelineSummary {
    pipeline: String,
    /// In the order of the stages, each with all shards.
    stages: Vec<StageTotals>,
    shards: Vec<ShardTotals>,
}

pub(crate) async fn summary(
    State(admin): State<Admin>,
    Params(which): Params<PipelineFilter>,
) -> Result<Json<Summary>, ApiError> {
    let mut pipelines = Vec::new();
    for of in tracked(&admin, which.pipeline.as_deref()).await? {
        let (stages, shards) = (of.tracker.stage_totals().await?, of.tracker.totals().await?);
        pipelines.push(PipelineSummary { pipeline: of.pipeline, stages, shards });
    }
    Ok(Json(Summary { pipelines }))
}

pub(crate) async fn stuck(
    State(admin): State<Admin>,
    visitor: Visitor,
    Params(which): Params<PipelineFilter>,
) -> Result<Json<StuckFiles>, ApiError> {
    stuck_of(&admin, &visitor, which.pipeline.as_deref()).await.map(Json)
}

/// A move of a stage that potok runs.
pub(crate) async fn refuse(
    State(admin): State<Admin>,
    Path((stage, _)): Path<(String, String)>,
    Params(which): Params<PipelineFilter>,
) -> Result<Json<()>, ApiError> {
    let (tracked, at) = find(&admin, which.pipeline.as_deref(), &stage).await?;
    Err(run_by_potok(&tracked, at))
}

fn run_by_potok(tracked: &TrackedPipeline, stage: usize) -> ApiError {
    let what = format!("`{}` is run by potok", name_of(tracked, stage));
    ApiError::new(StatusCode::CONFLICT, "P1410", what)
        .hint("a worker in another language is a webhook stage; `potok files retry NAME` tries again what has failed")
}

fn name_of(tracked: &TrackedPipeline, stage: usize) -> String {
    tracked.tracker.stages().get(stage).map(ToString::to_string).unwrap_or_default()
}

/// The pipeline that has this stage, and its place. In paths a stage may be written with hyphens.
async fn find(
    admin: &Admin,
    pipeline: Option<&str>,
    stage: &str,
) -> Result<(TrackedPipeline, usize), ApiError> {
    let is_it = |known: &str| {
        let same = |(a, b): (u8, u8)| a == b || (a == b'_' && b == b'-');
        known.len() == stage.len() && known.bytes().zip(stage.bytes()).all(same)
    };
    let mut known = Vec::new();
    let mut found = Vec::new();
    for of in tracked(admin, pipeline).await? {
        let stages = of.tracker.stages();
        known.extend(stages.iter().map(ToString::to_string));
        if let Some(at) = stages.iter().position(|stage| is_it(stage)) {
            found.push((of.clone(), at));
        }
    }
    match (found.pop(), found.is_empty()) {
        (Some(one), true) => Ok(one),
        (Some(_), false) => {
            let what = format!("several pipelines have a stage `{stage}`");
            Err(ApiError::usage(what).hint("add ?pipeline=NAME"))
        }
        (None, _) => {
            let what = format!("there is no stage `{stage}`");
            Err(ApiError::new(StatusCode::NOT_FOUND, "P1409", what)
                .hint(format!("known stages: {}", known.join(", "))))
        }
    }
}
