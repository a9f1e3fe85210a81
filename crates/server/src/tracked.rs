//! Files and how far they have come: what the tracking tables say, with what only this process knows.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use potok_core::{FilesAsk, ShardTotals, TrackedFile};
use potok_flow::{OpenSlice, TrackedPipeline, Wait, WaitsFor};
use serde::{Deserialize, Serialize};

use crate::access::{Actor, Role, Visitor};
use crate::audit::{self, AuditEntry};
use crate::letters::cause_of;
use crate::pipelines::running;
use crate::request::Params;
use crate::{Admin, ApiError};

/// Names on a page, where nobody says how many, and at most.
const NAMES: u32 = 20;
const NAMES_MAX: u32 = 10_000;
/// Rows of what is stuck, of each pipeline.
const STUCK_MAX: u32 = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FilesFilter {
    pipeline: Option<String>,
    /// Only this name.
    name: Option<String>,
    /// The newest so many names.
    limit: Option<u32>,
    /// Only names older than this one: `next` of an earlier answer.
    before: Option<String>,
    /// Only what is not done.
    in_progress: Option<bool>,
}

/// The files of one pipeline.
#[derive(Serialize)]
pub(crate) struct TrackedFiles {
    pub pipeline: String,
    /// The tracked stages, in order.
    pub stages: Vec<String>,
    pub files: Vec<File>,
    /// Where older ones go on, if there may be more.
    pub next: Option<String>,
    /// Slices that still take records.
    pub open: Vec<OpenSlice>,
    pub shards: Vec<ShardTotals>,
}

/// One row.
#[derive(Serialize)]
pub(crate) struct File {
    #[serde(flatten)]
    pub row: TrackedFile,
    /// Where the file is, of a row that has records.
    pub path: Option<String>,
    /// Why it does not go on, where that is known.
    pub reason: Option<String>,
}

#[derive(Serialize)]
pub(crate) struct AllFiles {
    pipelines: Vec<TrackedFiles>,
}

pub(crate) async fn files(
    State(admin): State<Admin>,
    visitor: Visitor,
    Params(which): Params<FilesFilter>,
) -> Result<Json<AllFiles>, ApiError> {
    let ask = match which.name {
        Some(name) => FilesAsk::Named(name),
        None => FilesAsk::Newest {
            names: which.limit.unwrap_or(NAMES).clamp(1, NAMES_MAX),
            before: which.before,
            is_unfinished: which.in_progress.unwrap_or_default(),
        },
    };
    let pipelines = files_of(&admin, &visitor, which.pipeline.as_deref(), &ask).await?;
    Ok(Json(AllFiles { pipelines }))
}

/// The files that are asked for, pipeline by pipeline.
pub(crate) async fn files_of(
    admin: &Admin,
    visitor: &Visitor,
    pipeline: Option<&str>,
    ask: &FilesAsk,
) -> Result<Vec<TrackedFiles>, ApiError> {
    let is_named = matches!(ask, FilesAsk::Named(_));
    let mut pipelines = Vec::new();
    for tracked in tracked(admin, pipeline).await? {
        let rows = tracked.tracker.list(ask).await?;
        let next = match ask {
            FilesAsk::Newest { names, .. } => older(&rows, *names),
            _ => None,
        };
        let shards = if is_named { Vec::new() } else { tracked.tracker.totals().await? };
        pipelines.push(TrackedFiles {
            pipeline: tracked.pipeline.clone(),
            stages: tracked.tracker.stages().iter().map(ToString::to_string).collect(),
            files: rows.into_iter().map(|row| shown(&tracked, row, visitor)).collect(),
            next,
            open: if is_named { Vec::new() } else { tracked.open.clone() },
            shards,
        });
    }
    Ok(pipelines)
}

/// The last name, where as many came as were asked for.
fn older(rows: &[TrackedFile], names: u32) -> Option<String> {
    let mut found: Vec<&str> = rows.iter().map(|row| row.filename.as_str()).collect();
    found.dedup();
    let is_full = u32::try_from(found.len()).is_ok_and(|found| found >= names);
    found.last().filter(|_| is_full).map(|last| (*last).to_owned())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StuckFilter {
    pipeline: Option<String>,
}

#[derive(Serialize)]
pub(crate) struct AllStuck {
    stuck: Vec<File>,
    /// There are more, which are stuck for less long.
    more: bool,
}

/// What is stuck, longest first.
#[derive(Default, Serialize)]
pub(crate) struct StuckFiles {
    pub files: Vec<File>,
    /// There are more, which are stuck for less long.
    pub more: bool,
}

/// What the description's query finds, computed in the database, with the reason.
pub(crate) async fn stuck(
    State(admin): State<Admin>,
    visitor: Visitor,
    Params(which): Params<StuckFilter>,
) -> Result<Json<AllStuck>, ApiError> {
    let StuckFiles { files, more } = stuck_of(&admin, &visitor, which.pipeline.as_deref()).await?;
    Ok(Json(AllStuck { stuck: files, more }))
}

/// Files that have been in one state for longer than they should, of each pipeline so many at most.
pub(crate) async fn stuck_of(
    admin: &Admin,
    visitor: &Visitor,
    pipeline: Option<&str>,
) -> Result<StuckFiles, ApiError> {
    let mut stuck = StuckFiles::default();
    for tracked in tracked(admin, pipeline).await? {
        let mut rows = tracked.tracker.list(&FilesAsk::Stuck(STUCK_MAX + 1)).await?;
        stuck.more |= rows.len() > STUCK_MAX as usize;
        rows.truncate(STUCK_MAX as usize);
        stuck.files.extend(rows.into_iter().map(|row| shown(&tracked, row, visitor)));
    }
    Ok(stuck)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryFilter {
    pipeline: Option<String>,
    shard: Option<u32>,
}

/// What came of a retry.
#[derive(Serialize)]
pub(crate) struct Retried {
    /// Stages that were `failed` and are `new`.
    stages: u64,
}

/// Puts what has failed of a file back to `new`, and asks its destination at once.
pub(crate) async fn retry(
    State(admin): State<Admin>,
    actor: Actor,
    Path(name): Path<String>,
    Params(which): Params<RetryFilter>,
) -> Result<Json<Retried>, ApiError> {
    let retried = put_back(&admin, &name, &which).await;
    let count = retried.as_ref().map_or(0, |retried| retried.stages);
    let entry = AuditEntry::new(&actor, "retry_file").target(name).count(count).result(&retried);
    let entry = match &which.pipeline {
        Some(pipeline) => entry.pipeline(pipeline),
        None => entry,
    };
    audit::note(&admin, entry).await;
    retried.map(Json)
}

async fn put_back(admin: &Admin, name: &str, which: &RetryFilter) -> Result<Retried, ApiError> {
    let mut stages = 0;
    for tracked in tracked(admin, which.pipeline.as_deref()).await? {
        stages += tracked.tracker.retry(name, which.shard).await?;
        admin.engine().probe(&tracked.pipeline)?;
    }
    if stages == 0 {
        let what = format!("nothing of `{name}` has failed");
        return Err(ApiError::new(StatusCode::NOT_FOUND, "P1409", what)
            .hint("`potok files show NAME` shows its stages"));
    }
    Ok(Retried { stages })
}

pub(crate) async fn tracked(
    admin: &Admin,
    pipeline: Option<&str>,
) -> Result<Vec<TrackedPipeline>, ApiError> {
    if let Some(pipeline) = pipeline {
        running(admin, pipeline).await?;
    }
    let tracked = admin.engine().tracked(pipeline);
    if tracked.is_empty() {
        let what = match pipeline {
            Some(pipeline) => format!("pipeline `{pipeline}` tracks no files"),
            None => "no pipeline that runs here tracks files".to_owned(),
        };
        return Err(ApiError::new(StatusCode::NOT_FOUND, "P1409", what)
            .hint("run one with `track`, such as pipelines/shop-events.yaml"));
    }
    Ok(tracked)
}

/// A row as this visitor may read it: errors quote what they are about.
pub(crate) fn shown(tracked: &TrackedPipeline, mut row: TrackedFile, visitor: &Visitor) -> File {
    let shard = u32::try_from(row.shard).ok();
    let files = tracked.files.as_ref().filter(|_| row.seal.is_some());
    let path = files.zip(shard).map(|(files, shard)| files.place(shard, &row.filename));
    let mut reason = reason(tracked, &row);
    if !visitor.may(Role::Operator) {
        for error in [&mut row.error, &mut reason].into_iter().flatten() {
            *error = cause_of(error);
        }
    }
    File { row, path, reason }
}

/// True for a process of this machine that does not run any more.
fn is_gone(owner: &str) -> bool {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match owner.rsplit_once(':') {
        Some((of, process)) if of == host.trim() => {
            let process = process.parse::<u32>();
            process.is_ok_and(|process| !std::path::Path::new(&format!("/proc/{process}")).exists())
        }
        _ => false,
    }
}

/// Why a row is not done.
fn reason(tracked: &TrackedPipeline, row: &TrackedFile) -> Option<String> {
    if row.stages.iter().all(|stage| stage.state == "done") {
        return None;
    }
    if row.pipeline.as_deref() != Some(&tracked.pipeline) {
        return Some("another program has it: potok did not make this row".to_owned());
    }
    if row.finished_at.is_some() {
        return Some("changed by hand after it was done".to_owned());
    }
    let gate = tracked.gates.iter().find(|(shard, ..)| i64::from(*shard) == row.shard);
    if let Some((_, destination, gate)) = gate {
        let since = gate.since.as_deref().unwrap_or("the start");
        let why = gate.why.as_deref().unwrap_or("it has not answered yet");
        return Some(format!("{destination}: the gate is closed since {since}: {why}"));
    }
    let has_destination = tracked.shards.iter().any(|shard| i64::from(*shard) == row.shard);
    if row.seal.is_some() && !tracked.shards.is_empty() && !has_destination {
        return Some(format!("shard {} has no destination (P1401)", row.shard));
    }
    if let Some(owner) = row.owner.as_deref().filter(|owner| is_gone(owner)) {
        return Some(format!("its owner {owner} is gone; whoever has the shard next goes on"));
    }
    if let Some(wait) = wait_of(&tracked.waits, row.shard) {
        return Some(format!("waits for {} since {}: {}", wait.what.word(), wait.since, wait.why));
    }
    row.error.clone()
}

/// What holds up a shard that has a destination: nothing that only others wait for.
fn wait_of(waits: &[(Option<u32>, Wait)], shard: i64) -> Option<&Wait> {
    let concerns = |(of, wait): &&(Option<u32>, Wait)| match of {
        Some(of) => i64::from(*of) == shard,
        None => wait.what != WaitsFor::Destination,
    };
    waits.iter().find(concerns).map(|(_, wait)| wait)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The naive version gives the first wait of the pipeline, whoever's it is.
    #[test]
    fn a_row_waits_for_nothing_that_only_others_wait_for() {
        let wait = |what, why: &str| Wait {
            what,
            since: String::new(),
            why: why.to_owned(),
            needs_somebody: false,
        };
        let mut waits = vec![
            (Some(3), wait(WaitsFor::Tracking, "a file of shard 3")),
            (None, wait(WaitsFor::Destination, "shard 2 has none")),
        ];
        let why =
            |waits: &[(Option<u32>, Wait)], shard| wait_of(waits, shard).map(|w| w.why.clone());
        assert_eq!(why(&waits, 0), None);
        assert_eq!(why(&waits, 3).unwrap(), "a file of shard 3");
        waits.push((None, wait(WaitsFor::Log, "the log")));
        assert_eq!(why(&waits, 0).unwrap(), "the log");
        assert_eq!(why(&waits, 3).unwrap(), "a file of shard 3");
    }
}
