//! What pipelines hold, and what people ask of it.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use potok_core::CloseReason;
use potok_flow::{GroupCursor, GroupPage, GroupView};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::access::Actor;
use crate::audit::{self, AuditEntry};
use crate::pipelines::running;
use crate::request::Params;
use crate::{Admin, ApiError};

/// Groups of a page: as many as one gets who does not say, and as one may ask for.
const PAGE: usize = 1_000;
const PAGE_MAX: usize = 10_000;
/// Groups that are looked at for those that are wanted, how long that may take, and how many of them
/// are looked at together.
const LOOKED_MAX: usize = 10_000;
const LOOK_MAX: Duration = Duration::from_millis(20);
const LOOK: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GroupFilter {
    pipeline: Option<String>,
    id: Option<String>,
    /// Only those whose keys begin so.
    prefix: Option<String>,
    /// Only those in this state: `open`, `sealed` or `delivering`.
    state: Option<String>,
    /// How many, at most.
    limit: Option<usize>,
    /// What the page before said.
    after: Option<String>,
}

/// Some of the groups that wait, here or in feeds.
#[derive(Serialize)]
pub(crate) struct GroupsPage {
    pub groups: Vec<GroupView>,
    /// All that are held, wanted or not.
    pub total: u64,
    /// How many were looked at for those that are wanted; where not all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<u64>,
    pub next: Option<String>,
}

/// Where the groups of feeds go on: behind so many of them.
const FEEDS: &str = "feeds.";

/// A page of what is held, or what is held of one key. What waits in feeds comes last.
pub(crate) async fn list(
    State(admin): State<Admin>,
    Params(which): Params<GroupFilter>,
) -> Result<Json<GroupsPage>, ApiError> {
    let pipeline = which.pipeline.as_deref();
    if let Some(pipeline) = pipeline {
        running(&admin, pipeline).await?;
    }
    if let Some(id) = &which.id {
        let groups = of_key(&admin, pipeline, id).await?;
        return Ok(Json(GroupsPage {
            total: groups.len() as u64,
            groups,
            looked_at: None,
            next: None,
        }));
    }
    let limit = which.limit.unwrap_or(PAGE).clamp(1, PAGE_MAX);
    let text = |text: Option<String>| text.filter(|text| !text.is_empty());
    let wanted = WantedGroups { prefix: text(which.prefix), state: text(which.state) };
    if let Some(other) = wanted.state.as_deref().filter(|state| !STATES.contains(state)) {
        let what = format!("`state={other}` is none of {}", STATES.join(", "));
        return Err(ApiError::usage(what));
    }
    if wanted.is_some() {
        return matching(&admin, pipeline, &wanted, which.after.as_deref(), limit).await.map(Json);
    }
    page(&admin, pipeline, which.after.as_deref(), limit).await.map(Json)
}

/// What is held under one key, by pipelines and by feeds.
pub(crate) async fn of_key(
    admin: &Admin,
    pipeline: Option<&str>,
    id: &str,
) -> Result<Vec<GroupView>, ApiError> {
    let mut groups = admin.engine().groups_of(pipeline, id);
    groups.extend(admin.engine().feed_groups_of(pipeline, id).await?);
    Ok(groups)
}

/// The states that somebody may ask for.
pub(crate) const STATES: [&str; 3] = ["open", "sealed", "delivering"];

/// Which groups somebody wants.
pub(crate) struct WantedGroups {
    pub prefix: Option<String>,
    pub state: Option<String>,
}

impl WantedGroups {
    /// Not all of them.
    pub fn is_some(&self) -> bool {
        self.prefix.is_some() || self.state.is_some()
    }

    fn has(&self, group: &GroupView) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| group.id.starts_with(prefix.as_str()))
            && self.state.as_ref().is_none_or(|state| group.state == *state)
    }
}

/// About so many of those that are wanted. There is no index for them: it looks at what closes first
/// until it has them, or has looked long enough; then `next` goes on.
pub(crate) async fn matching(
    admin: &Admin,
    pipeline: Option<&str>,
    wanted: &WantedGroups,
    after: Option<&str>,
    limit: usize,
) -> Result<GroupsPage, ApiError> {
    let began = Instant::now();
    let mut found = GroupsPage {
        groups: Vec::new(),
        total: 0,
        looked_at: Some(0),
        next: after.map(str::to_owned),
    };
    loop {
        let GroupsPage { mut groups, total, next, .. } =
            page(admin, pipeline, found.next.as_deref(), LOOK).await?;
        let looked_at = found.looked_at.unwrap_or_default() + groups.len() as u64;
        groups.retain(|group| wanted.has(group));
        found.groups.append(&mut groups);
        (found.looked_at, found.total, found.next) = (Some(looked_at), total, next);
        let is_enough = found.groups.len() >= limit || looked_at >= LOOKED_MAX as u64;
        if found.next.is_none() || is_enough || began.elapsed() >= LOOK_MAX {
            return Ok(found);
        }
    }
}

/// Up to so many groups behind `after`, which is what the page before said.
pub(crate) async fn page(
    admin: &Admin,
    pipeline: Option<&str>,
    after: Option<&str>,
    limit: usize,
) -> Result<GroupsPage, ApiError> {
    let unknown = |after: &str| ApiError::usage(format!("`after={after}` is not what a page said"));
    let (after, skip) = match after {
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
    Ok(GroupsPage { groups, total, looked_at: None, next })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GroupChoice {
    /// Only this one of the groups of the key, as a list named it.
    generation: Option<String>,
}

pub(crate) async fn close(
    State(admin): State<Admin>,
    actor: Actor,
    Path((pipeline, id)): Path<(String, String)>,
    Params(which): Params<GroupChoice>,
) -> Result<Json<serde_json::Value>, ApiError> {
    close_group(&admin, &actor, &pipeline, &id, which.generation.as_deref()).await?;
    Ok(Json(serde_json::json!({ "closed": id })))
}

pub(crate) async fn drop(
    State(admin): State<Admin>,
    actor: Actor,
    Path((pipeline, id)): Path<(String, String)>,
) -> Result<Json<serde_json::Value>, ApiError> {
    drop_group(&admin, &actor, &pipeline, &id, None).await?;
    Ok(Json(serde_json::json!({ "dropped": id })))
}

/// Closes the open groups of a key now; where somebody was shown one of them, that one, with what has
/// come to it since, and no other.
pub(crate) async fn close_group(
    admin: &Admin,
    actor: &Actor,
    pipeline: &str,
    id: &str,
    shown: Option<&str>,
) -> Result<(), ApiError> {
    let asked = ask(admin, pipeline, id, shown, CloseReason::ClosedByHand).await;
    let entry = AuditEntry::new(actor, "close_group").pipeline(pipeline).target(id);
    audit::note(admin, entry.result(&asked)).await;
    asked
}

/// Closes the open groups of a key and sets their records aside; says how many they held. Whoever was
/// shown what they hold before confirming drops that, and not what has come since.
pub(crate) async fn drop_group(
    admin: &Admin,
    actor: &Actor,
    pipeline: &str,
    id: &str,
    confirmed: Option<&str>,
) -> Result<u64, ApiError> {
    let Held { records, mark } = held(admin, pipeline, id).await?;
    let asked = match confirmed {
        Some(confirmed) if records > 0 && confirmed != mark => {
            let what = format!(
                "nothing was dropped: the group is not the one that was shown, it holds {records} now"
            );
            Err(ApiError::new(StatusCode::CONFLICT, "P1505", what)
                .hint("look at the group again, and confirm what it holds"))
        }
        shown => ask(admin, pipeline, id, shown, CloseReason::Dropped).await,
    };
    let entry = AuditEntry::new(actor, "drop_group").pipeline(pipeline).target(id).count(records);
    audit::note(admin, entry.result(&asked)).await;
    asked.map(|()| records)
}

/// What the open groups of a key hold.
pub(crate) struct Held {
    pub records: u64,
    /// Another one as soon as a record comes, or another group opens: the generations, each with how
    /// many records it has.
    pub mark: String,
}

pub(crate) async fn held(admin: &Admin, pipeline: &str, id: &str) -> Result<Held, ApiError> {
    let mut held = Held { records: 0, mark: String::new() };
    let groups = of_key(admin, Some(pipeline), id).await?.into_iter();
    for group in groups.filter(|group| group.state == "open") {
        let records: u64 = group.kinds.values().map(|kind| kind.records).sum();
        held.records += records;
        held.mark.push_str(&format!("{}+{records} ", group.generation));
    }
    held.mark.truncate(held.mark.trim_end().len());
    Ok(held)
}

/// Closes the open groups of a key for that reason; those that somebody was shown, where they are named.
async fn ask(
    admin: &Admin,
    pipeline: &str,
    id: &str,
    shown: Option<&str>,
    reason: CloseReason,
) -> Result<(), ApiError> {
    running(admin, pipeline).await?;
    let generation = |one: &str| one.split_once('+').map_or(one, |(name, _)| name).to_owned();
    let shown: Option<Vec<String>> = shown.map(|shown| shown.split(' ').map(generation).collect());
    let engine = admin.engine();
    let is_here = match reason {
        CloseReason::Dropped => engine.drop_group(pipeline, id, shown.as_deref())?,
        _ => engine.close_group(pipeline, id, shown.as_deref())?,
    };
    if is_here {
        return Ok(());
    }
    let open = of_key(admin, Some(pipeline), id).await?.into_iter();
    let open: Vec<GroupView> = open.filter(|group| group.state == "open").collect();
    let is_meant =
        |group: &GroupView| shown.as_ref().is_none_or(|shown| shown.contains(&group.generation));
    // A feed closes by the key alone.
    if (open.is_empty() || open.iter().any(is_meant))
        && engine.close_feed_group(pipeline, id, reason).await?
    {
        return Ok(());
    }
    if open.is_empty() {
        let what = format!("pipeline `{pipeline}` holds no open group `{id}`");
        return Err(ApiError::new(StatusCode::NOT_FOUND, "P0527", what)
            .hint("`potok groups list` shows what is held"));
    }
    let what = "nothing was closed: the group that was shown is open no more, and another one has \
                opened under its key";
    Err(ApiError::new(StatusCode::CONFLICT, "P1505", what)
        .hint("look at the groups of the key again"))
}
