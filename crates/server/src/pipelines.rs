//! Pipelines, consumer groups and topics as they are now.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use potok_core::{ConsumerGroup, Fault, TopicInfo};
use potok_flow::{State as PipelineState, Status};
use serde::{Deserialize, Serialize};

use crate::access::{Actor, Role, Visitor};
use crate::audit::{self, AuditEntry};
use crate::letters;
use crate::request::Params;
use crate::{Admin, ApiError, Identity};

/// How long counting the dead letters of a pipeline that does not run may take.
const COUNT_MAX: Duration = Duration::from_secs(10);
/// What a process counts since its start.
const COUNTED: &[&str] = &[
    "received",
    "delivered",
    "filtered",
    "duplicates",
    "dead_lettered",
    "in_flight",
    "returned",
    "put_off",
    "restarts",
    "retries",
    "stage_retries",
    "passed",
    "store_rebuilds",
    "resumed_seals",
    "duplicate_ids",
    "dead_letters_by_reason",
];

#[derive(Serialize)]
pub(crate) struct Info {
    #[serde(flatten)]
    identity: Identity,
    /// Where HTTP sources listen.
    http: Option<SocketAddr>,
    pipelines: Vec<String>,
}

pub(crate) async fn info(State(admin): State<Admin>) -> Json<Info> {
    let pipelines =
        admin.engine().status().await.into_iter().map(|status| status.pipeline).collect();
    let http = admin.http().map(|(address, _)| *address);
    Json(Info { identity: admin.identity().clone(), http, pipelines })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatusFilter {
    pipeline: Option<String>,
}

pub(crate) async fn status(
    State(admin): State<Admin>,
    visitor: Visitor,
    Params(which): Params<StatusFilter>,
) -> Result<Json<Vec<serde_json::Value>>, ApiError> {
    potok_core::trouble::crash_point("admin");
    let mut all = all(&admin).await?;
    if let Some(pipeline) = which.pipeline {
        let known = names(&all);
        all.retain(|status| status.pipeline == pipeline);
        if all.is_empty() {
            return Err(ApiError::unknown_pipeline(&pipeline, &known));
        }
    }
    count_open(&admin, &mut all).await;
    if !visitor.may(Role::Operator) {
        all.iter_mut().for_each(without_values);
    }
    Ok(Json(all.iter().map(shown).collect()))
}

/// Leaves values out of what it says of errors: they may be those of records.
pub(crate) fn without_values(status: &mut Status) {
    let gates = status.destinations.iter_mut().map(|to| &mut to.gate);
    let gates = gates.chain([&mut status.gate]).filter_map(|gate| gate.why.as_mut());
    let waits = status.waits.iter_mut().map(|wait| &mut wait.why);
    for why in gates.chain(waits).chain(&mut status.why) {
        *why = letters::cause_of(why);
    }
}

/// Counts the open dead letters of pipelines that do not run, where no process does it. Only then:
/// it means to read them all.
async fn count_open(admin: &Admin, all: &mut [Status]) {
    let is_stopped = |status: &Status| status.since.is_none();
    if admin.identity().address.is_some() || !all.iter().any(is_stopped) {
        return;
    }
    let Ok(groups) = admin.engine().consumer_groups().await else { return };
    for status in all.iter_mut().filter(|status| is_stopped(status)) {
        let group = groups.iter().find(|group| group.info.pipeline == status.pipeline);
        let Some(group) = group else { continue };
        let counted = letters::count_open(admin, &group.info);
        let counted = tokio::time::timeout(COUNT_MAX, counted).await;
        status.dead_letters_open = counted.ok().and_then(Result::ok);
    }
}

/// A status as JSON. What was not counted here is null: zeros would be taken for facts.
fn shown(status: &Status) -> serde_json::Value {
    let mut shown = serde_json::to_value(status).unwrap_or_default();
    if status.since.is_none()
        && let Some(fields) = shown.as_object_mut()
    {
        for &field in COUNTED {
            fields.insert(field.to_owned(), serde_json::Value::Null);
        }
    }
    shown
}

/// What runs here, and what ran in this folder before and left a group behind.
pub(crate) async fn all(admin: &Admin) -> Result<Vec<Status>, Fault> {
    let mut all = admin.engine().status().await;
    let mut others: BTreeMap<String, (u64, bool)> = BTreeMap::new();
    let groups = match admin.engine().consumer_groups().await {
        Ok(groups) => groups,
        // What runs here is still worth showing.
        Err(_) if !all.is_empty() => Arc::default(),
        Err(fault) => return Err(fault),
    };
    for group in groups.iter() {
        if all.iter().all(|status| status.pipeline != group.info.pipeline) {
            let (lag_of, open) = others.entry(group.info.pipeline.clone()).or_default();
            *lag_of += lag(group);
            *open |= group.open;
        }
    }
    let damaged = admin.engine().log().damage();
    all.extend(others.into_iter().map(|(pipeline, (lag, open))| {
        let (state, why) = match open {
            true => (PipelineState::Running, Some("in another process".to_owned())),
            false => (PipelineState::Stopped, None),
        };
        Status {
            why,
            lag: Some(lag),
            damaged: damaged.clone(),
            ..Status::unknown(&pipeline, state)
        }
    }));
    all.sort_by(|a, b| a.pipeline.cmp(&b.pipeline));
    Ok(all)
}

fn lag(group: &ConsumerGroup) -> u64 {
    let open = |p: &potok_core::ConsumerGroupPartition| {
        p.end.saturating_sub(p.committed).saturating_sub(p.acknowledged_ahead)
    };
    group.partitions.iter().map(open).sum()
}

fn names(all: &[Status]) -> Vec<String> {
    all.iter().map(|status| status.pipeline.clone()).collect()
}

pub(crate) async fn pause(
    State(admin): State<Admin>,
    actor: Actor,
    Path(pipeline): Path<String>,
) -> Result<Json<Status>, ApiError> {
    set_paused(&admin, &actor, &pipeline, true).await.map(Json)
}

pub(crate) async fn resume(
    State(admin): State<Admin>,
    actor: Actor,
    Path(pipeline): Path<String>,
) -> Result<Json<Status>, ApiError> {
    set_paused(&admin, &actor, &pipeline, false).await.map(Json)
}

/// Pauses a pipeline, or has it go on.
pub(crate) async fn set_paused(
    admin: &Admin,
    actor: &Actor,
    pipeline: &str,
    paused: bool,
) -> Result<Status, ApiError> {
    running(admin, pipeline).await?;
    match paused {
        true => admin.engine().pause(pipeline)?,
        false => admin.engine().resume(pipeline)?,
    }
    let word = if paused { "pause" } else { "resume" };
    audit::note(admin, AuditEntry::new(actor, word).pipeline(pipeline)).await;
    running(admin, pipeline).await
}

pub(crate) async fn probe(
    State(admin): State<Admin>,
    actor: Actor,
    Path(pipeline): Path<String>,
) -> Result<Json<serde_json::Value>, ApiError> {
    let probed = ask_destinations(&admin, &actor, &pipeline).await?;
    Ok(Json(serde_json::json!({ "probed": probed })))
}

/// Asks destinations behind closed gates now; says how many.
pub(crate) async fn ask_destinations(
    admin: &Admin,
    actor: &Actor,
    pipeline: &str,
) -> Result<u64, ApiError> {
    running(admin, pipeline).await?;
    let probed = admin.engine().probe(pipeline)? as u64;
    audit::note(admin, AuditEntry::new(actor, "probe").pipeline(pipeline).count(probed)).await;
    Ok(probed)
}

/// The status of a pipeline of this process; another one can be neither paused nor resumed.
pub(crate) async fn running(admin: &Admin, pipeline: &str) -> Result<Status, ApiError> {
    let here = admin.engine().status().await.into_iter().find(|status| status.pipeline == pipeline);
    if let Some(status) = here {
        return Ok(status);
    }
    let all = all(admin).await?;
    if all.iter().any(|status| status.pipeline == pipeline) {
        let what = format!("pipeline `{pipeline}` is not running");
        return Err(ApiError::new(StatusCode::CONFLICT, "P0517", what)
            .hint("start it with `potok run FILE`"));
    }
    Err(ApiError::unknown_pipeline(pipeline, &names(&all)))
}

pub(crate) async fn consumer_groups(
    State(admin): State<Admin>,
) -> Result<Json<Vec<ConsumerGroup>>, ApiError> {
    Ok(Json(admin.engine().log().consumer_groups().await?))
}

pub(crate) async fn delete_consumer_group(
    State(admin): State<Admin>,
    actor: Actor,
    Path(group): Path<String>,
) -> Result<Json<serde_json::Value>, ApiError> {
    let log = admin.engine().log();
    let known = log.consumer_groups().await?;
    let Some(found) = known.iter().find(|known| known.group == group) else {
        let names: Vec<_> = known.iter().map(|known| known.group.as_str()).collect();
        let what = format!("there is no consumer group `{group}` here");
        return Err(ApiError::new(StatusCode::NOT_FOUND, "P0518", what)
            .hint(format!("known groups: {}", names.join(", "))));
    };
    if found.open {
        let what = format!("consumer group `{group}` is being read now");
        return Err(ApiError::new(StatusCode::CONFLICT, "P0519", what)
            .hint("stop its process first: `delete` is for pipelines that will not come back"));
    }
    let deleted = admin.engine().delete_consumer_group(&group).await.map_err(ApiError::from);
    let entry = AuditEntry::new(&actor, "delete_consumer_group").target(&group);
    audit::note(&admin, entry.result(&deleted)).await;
    deleted?;
    Ok(Json(serde_json::json!({ "deleted": group })))
}

pub(crate) async fn topics(State(admin): State<Admin>) -> Result<Json<Vec<TopicInfo>>, ApiError> {
    Ok(Json(admin.engine().log().topics().await?))
}
