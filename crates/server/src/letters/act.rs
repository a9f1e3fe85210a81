//! Replay and drop.
//!
//! They answer with one line for each dead letter, as they go, at the rate asked for, and a replay
//! at the end with what came of it. One of them runs at a time: two that read the same list would
//! send the same record twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use potok_core::{PipelineInfo, Reason};
use potok_flow::dead_letter::{self, DeadLetter, Outcomes};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::dry::{DryRun, foreseen};
use super::filter::{Filter, LetterFilter};
use super::lines_response;
use super::select::{LetterTopic, PAGE_LETTERS_MAX, Selection, shelves};
use crate::access::Actor;
use crate::audit::{self, AuditEntry};
use crate::line::push_line;
use crate::patience::soon;
use crate::{Admin, ApiError, request};

/// The pseudo-pipeline whose dead letters are damaged parts of the log.
const LOG_ITSELF: &str = "potok";
/// How long the log, and databases that keep dead letters, may take until it begins.
const BEGIN_MAX: Duration = Duration::from_secs(15);
/// A rate is kept by a chunk this often.
const PACE: Duration = Duration::from_millis(100);
/// How often to look whether replays have ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A replay or drop.
#[derive(Clone, Deserialize)]
pub(crate) struct LetterRequest {
    #[serde(flatten)]
    pub filter: serde_json::Map<String, serde_json::Value>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// Dead letters a second; as fast as it goes where not given.
    #[serde(default)]
    pub rate: Option<u32>,
    /// Milliseconds to wait for what comes of a replay.
    #[serde(default)]
    pub wait: u64,
    /// Do it as a job of this name, and answer at once with its id.
    #[serde(default)]
    pub job: Option<String>,
    /// How many somebody was shown and confirmed.
    #[serde(default)]
    pub confirmed: Option<u64>,
}

impl LetterRequest {
    /// The filter, for people.
    pub fn target(&self) -> String {
        let said = |(name, value): (&String, &serde_json::Value)| match value {
            serde_json::Value::String(text) => format!("{name}={text}"),
            value => format!("{name}={value}"),
        };
        let named = self.filter.iter().filter(|(name, _)| *name != "until");
        let all: Vec<String> = named.map(said).collect();
        if all.is_empty() { "all".to_owned() } else { all.join(" ") }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Replay,
    Drop,
}

impl Action {
    /// As the audit topic spells it.
    pub fn word(self) -> &'static str {
        match self {
            Action::Replay => "replay",
            Action::Drop => "drop_dead_letters",
        }
    }
}

pub(crate) async fn replay(
    State(admin): State<Admin>,
    actor: Actor,
    body: Body,
) -> Result<Response, ApiError> {
    act(admin, actor, request::json(body).await?, Action::Replay).await
}

pub(crate) async fn drop(
    State(admin): State<Admin>,
    actor: Actor,
    body: Body,
) -> Result<Response, ApiError> {
    act(admin, actor, request::json(body).await?, Action::Drop).await
}

async fn act(
    admin: Admin,
    actor: Actor,
    wish: LetterRequest,
    action: Action,
) -> Result<Response, ApiError> {
    if let Some(name) = &wish.job {
        let job = crate::jobs::start(&admin, &actor, name.clone(), wish.clone(), action).await?;
        let answer = (StatusCode::ACCEPTED, axum::Json(json!({ "job": job.id })));
        return Ok(answer.into_response());
    }
    let work = Work::begin(&admin, &actor, wish, action).await?;
    Ok(lines_response(futures::stream::unfold(Some(work), |work| async {
        let mut work = work?;
        match work.next().await {
            Ok(Some((lines, more))) => Some((Ok(lines), more.then_some(work))),
            Ok(None) => None,
            Err(error) => {
                let mut lines = Vec::new();
                if !work.failed(&error).await {
                    push_line(&mut lines, &json!({ "warning": audit::LOST }));
                }
                lines.extend(error.line());
                Some((Ok(Bytes::from(lines)), None))
            }
        }
    })))
}

/// Whoever asked has gone in the middle of it: that is noted, too.
impl Drop for Work {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if std::mem::replace(&mut self.is_noted, true) {
            return;
        }
        let entry = AuditEntry { result: "cut off".to_owned(), ..self.entry.clone() };
        let (admin, entry) = (self.admin.clone(), entry.count(self.handled));
        runtime.spawn(async move { audit::note(&admin, entry).await });
    }
}

/// A replay or drop under way, a chunk at a time. Dropped in between, the rest stays open.
pub(crate) struct Work {
    selection: Selection,
    admin: Admin,
    action: Action,
    dry_run: bool,
    rate: Option<u32>,
    /// Dead letters at a time.
    most: usize,
    next_at: Option<Instant>,
    /// What becomes of replays, by dead-letter topic.
    watches: Vec<(String, Outcomes)>,
    /// What was put back into feeds, where somebody waits for what becomes of it.
    put_back: Vec<(Arc<LetterTopic>, Vec<String>)>,
    wait: Duration,
    /// Pipelines whose files were looked at.
    warned: BTreeSet<String>,
    /// What is left alone because nobody can say what it is.
    unknown: Vec<String>,
    /// Where something was dropped.
    dropped: Vec<Arc<LetterTopic>>,
    /// Given back when all are sent.
    alone: Option<OwnedMutexGuard<()>>,
    /// How many were handled.
    handled: u64,
    /// How it ended is noted, or nothing is.
    is_noted: bool,
    /// The end of a dry run is told.
    is_told: bool,
    /// What a replay would come to, as far as it was tried out.
    dry: DryRun,
    entry: AuditEntry,
}

/// What was done with one dead letter.
#[derive(Serialize)]
struct LetterOutcome<'a> {
    id: &'a str,
    pipeline: &'a str,
    reason: Reason,
    action: &'static str,
    /// What it would come to.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl Work {
    /// Begins, where no other is under way.
    pub async fn begin(
        admin: &Admin,
        actor: &Actor,
        wish: LetterRequest,
        action: Action,
    ) -> Result<Self, ApiError> {
        if !wish.dry_run && admin.is_stopping() {
            return Err(stopping());
        }
        let entry = AuditEntry::new(actor, action.word()).target(wish.target());
        let mut filter = Filter::of(wish.filter)?;
        filter.all = false;
        let wanted = LetterFilter::read(filter, admin.engine())?;
        // Who only looks is in nobody's way.
        let alone = match wish.dry_run {
            true => None,
            false => Some(admin.inner.letters.clone().try_lock_owned().map_err(|_| {
                let what = "another replay or drop of dead letters is under way";
                ApiError::new(StatusCode::CONFLICT, "P0520", what).hint("wait until it is done")
            })?),
        };
        let paces = (Duration::from_secs(1).as_millis() / PACE.as_millis()) as u32;
        let entry = AuditEntry { pipeline: wanted.pipeline.clone(), ..entry };
        let is_watched = action == Action::Replay && wish.wait > 0 && !wish.dry_run;
        let chosen = chosen(admin, wanted, is_watched);
        let (watches, selection, unknown) = soon(BEGIN_MAX, chosen).await?;
        if !wish.dry_run {
            audit::note(admin, AuditEntry { result: "started".to_owned(), ..entry.clone() }).await;
        }
        Ok(Work {
            selection,
            admin: admin.clone(),
            action,
            dry_run: wish.dry_run,
            rate: wish.rate,
            most: wish.rate.map_or(PAGE_LETTERS_MAX, |rate| (rate / paces).max(1) as usize),
            next_at: None,
            watches,
            put_back: Vec::new(),
            wait: Duration::from_millis(wish.wait),
            warned: BTreeSet::new(),
            unknown,
            dropped: Vec::new(),
            alone,
            handled: 0,
            is_noted: wish.dry_run,
            is_told: false,
            dry: DryRun::default(),
            entry,
        })
    }

    /// What a replay would come to, of those that were tried out so far.
    pub fn tried(&self) -> &DryRun {
        &self.dry
    }

    /// Where the list of them ends; none where they are named.
    pub fn until(&self) -> Option<String> {
        self.selection.until().map(ToString::to_string)
    }

    /// Notes how many were handled, where it ends before its time; false where the log did not take it.
    pub async fn stopped(&mut self, why: &str) -> bool {
        if std::mem::replace(&mut self.is_noted, true) {
            return true;
        }
        let entry = AuditEntry { result: why.to_owned(), ..self.entry.clone() };
        audit::note(&self.admin, entry.count(self.handled)).await
    }

    /// Notes that it could not go on; false where the log did not take it.
    pub async fn failed(&mut self, error: &ApiError) -> bool {
        self.stopped(&format!("{}: {}", error.body.code, error.body.what)).await
    }

    /// Handles the next of them and says so; at the end says what came of replays. The second is
    /// false where that was all.
    pub async fn next(&mut self) -> Result<Option<(Bytes, bool)>, ApiError> {
        if !self.unknown.is_empty() {
            let mut lines = Vec::new();
            for why in std::mem::take(&mut self.unknown) {
                push_line(&mut lines, &json!({ "warning": format!("{why}; they are left alone") }));
            }
            return Ok(Some((lines.into(), true)));
        }
        if self.is_cut_short().await {
            return Err(stopping());
        }
        let Some((shelf, letters)) = self.selection.next(self.most).await? else {
            if self.dry_run {
                return Ok(self.ending().map(|line| (line, false)));
            }
            let mut lines = Vec::new();
            if !self.stopped("done").await {
                push_line(&mut lines, &json!({ "warning": audit::LOST }));
            }
            self.alone = None;
            for shelf in std::mem::take(&mut self.dropped) {
                self.admin.engine().tidy_letters(shelf.info()).await?;
            }
            lines.extend(self.outcome().await?.into_iter().flatten());
            return Ok((!lines.is_empty()).then(|| (lines.into(), false)));
        };
        let mut lines = self.warnings(&letters);
        self.keep_pace(letters.len()).await;
        if self.is_cut_short().await {
            return Err(stopping());
        }
        let (skipped, letters): (Vec<_>, Vec<_>) =
            letters.into_iter().partition(|letter| self.obstacle(&shelf, letter).is_some());
        if !self.dry_run {
            self.settle(&shelf, &letters).await?;
            self.handled += letters.len() as u64;
        }
        let word = match (self.action, self.dry_run) {
            (Action::Replay, false) => "replayed",
            (Action::Replay, true) => "would_replay",
            (Action::Drop, false) => "dropped",
            (Action::Drop, true) => "would_drop",
        };
        let is_tried = self.dry_run && self.action == Action::Replay;
        match is_tried {
            true => {
                for (letter, forecast) in foreseen(self.admin.engine(), &letters).await {
                    let (outcome, why) = self.dry.add(forecast);
                    let done = LetterOutcome { outcome: Some(outcome), ..done(letter, word, why) };
                    push_line(&mut lines, &done);
                }
            }
            false => letters.iter().for_each(|one| push_line(&mut lines, &done(one, word, None))),
        }
        for letter in &skipped {
            let why = self.obstacle(&shelf, letter);
            push_line(&mut lines, &done(letter, "skipped", why));
        }
        Ok(Some((lines.into(), true)))
    }

    /// True where the process ends: how many were handled is noted, the others stay open.
    async fn is_cut_short(&mut self) -> bool {
        let is_cut_short = !self.dry_run && self.admin.is_stopping();
        if is_cut_short {
            self.stopped("stopped").await;
        }
        is_cut_short
    }

    /// The last lines of a dry run, once: what it comes to, and what the list ends with.
    fn ending(&mut self) -> Option<Bytes> {
        let mut lines = self.dry.take_line(self.action);
        if let Some(until) = self.until().filter(|_| !std::mem::replace(&mut self.is_told, true)) {
            push_line(&mut lines, &json!({ "until": until }));
        }
        (!lines.is_empty()).then(|| lines.into())
    }

    /// Once for each pipeline: that its file has changed since it was started.
    fn warnings(&mut self, letters: &[DeadLetter]) -> Vec<u8> {
        let mut lines = Vec::new();
        for DeadLetter { envelope, .. } in letters {
            let pipeline = &envelope.pipeline;
            if self.action != Action::Replay || !self.warned.insert(pipeline.clone()) {
                continue;
            }
            if let Some(file) = self.admin.inner.files.changed(pipeline) {
                let warning = format!(
                    "{} has changed since the process was started: `{pipeline}` still runs as the \
                     file was then; restart it first where the change is the cure",
                    file.display()
                );
                push_line(&mut lines, &json!({ "warning": warning }));
            }
        }
        lines
    }

    async fn settle(
        &mut self,
        shelf: &Arc<LetterTopic>,
        letters: &[DeadLetter],
    ) -> Result<(), ApiError> {
        if let Some(kept) = shelf.kept() {
            let ids = shelf.ids_in_feed(letters);
            match self.action {
                Action::Drop => std::mem::drop(kept.discard(&ids).await?),
                Action::Replay => {
                    let ids = kept.replay(&ids).await?;
                    if !self.wait.is_zero() {
                        self.put_back.push((shelf.clone(), ids));
                    }
                }
            }
            return Ok(());
        }
        let engine = self.admin.engine();
        let (log, clock) = (engine.log().as_ref(), engine.clock().as_ref());
        if self.action == Action::Drop {
            dead_letter::drop_letters(log, shelf.info(), letters, clock).await?;
            if !self.dropped.iter().any(|dropped| Arc::ptr_eq(dropped, shelf)) {
                self.dropped.push(shelf.clone());
            }
            return Ok(());
        }
        // Each goes into its own pipeline, whoever else shares the topic.
        let mut rest: Vec<&DeadLetter> = letters.iter().collect();
        while let Some(info) = rest.first().and_then(|letter| shelf.pipeline_of(letter)) {
            let is_ours = |letter: &&DeadLetter| letter.envelope.pipeline == info.pipeline;
            let (ours, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(is_ours);
            dead_letter::replay(log, info, &ours, clock).await?;
            rest = others;
        }
        let watch = self.watches.iter_mut().find(|(topic, _)| *topic == shelf.info().dead_letters);
        if let Some((_, outcomes)) = watch {
            letters.iter().for_each(|letter| outcomes.sent(letter));
            outcomes.look(log).await?;
        }
        Ok(())
    }

    /// Waits, bounded, until the replays have ended.
    async fn outcome(&mut self) -> Result<Option<Bytes>, ApiError> {
        if self.watches.is_empty() && self.put_back.is_empty() {
            return Ok(None);
        }
        let log = self.admin.engine().log().clone();
        // Where nobody else can read the log, nobody waits for a pipeline that does not run.
        let runs = log.is_shared() || !self.admin.engine().status().await.is_empty();
        let until = Instant::now() + if runs { self.wait } else { Duration::ZERO };
        loop {
            for (_, outcomes) in &mut self.watches {
                outcomes.look(log.as_ref()).await?;
            }
            let under_way: u64 = self.watches.iter().map(|(_, outcomes)| outcomes.under_way).sum();
            let under_way = under_way + rows_under_way(&self.put_back).await?;
            if under_way == 0 || Instant::now() >= until || self.admin.is_stopping() {
                break;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let (mut put_back, mut dead_rows) = (0, 0);
        let mut rows_dead_again = Vec::new();
        for (shelf, ids) in &self.put_back {
            put_back += ids.len() as u64;
            let Some(kept) = shelf.kept() else { continue };
            for dead in kept.find(ids).await? {
                dead_rows += 1;
                let id = format!("{}/{}", kept.place(), dead.id);
                let (reason, error) = (dead.reason, dead.error);
                rows_dead_again.push(json!({ "id": id, "reason": reason, "error": error }));
            }
        }
        let rows_under_way = rows_under_way(&self.put_back).await?;
        let published = put_back.saturating_sub(dead_rows + rows_under_way);
        let sum = |of: fn(&Outcomes) -> u64| -> u64 {
            self.watches.iter().map(|(_, outcomes)| of(outcomes)).sum()
        };
        let dead_again = self.watches.iter().flat_map(|(_, outcomes)| &outcomes.dead_again);
        let dead_again: Vec<_> = dead_again
            .map(|dead| json!({ "id": dead.id, "reason": dead.reason, "error": dead.error }))
            .chain(rows_dead_again)
            .collect();
        let mut lines = Vec::new();
        push_line(
            &mut lines,
            &json!({ "outcome": {
                "delivered": sum(|outcomes| outcomes.delivered) + published,
                "filtered": sum(|outcomes| outcomes.filtered),
                "duplicates": sum(|outcomes| outcomes.duplicates),
                "dead_lettered": sum(|outcomes| outcomes.dead_lettered) + dead_rows,
                "under_way": sum(|outcomes| outcomes.under_way) + rows_under_way,
                "dead_again": dead_again,
            }}),
        );
        Ok(Some(lines.into()))
    }

    /// Why this one cannot be replayed.
    fn obstacle(&self, shelf: &LetterTopic, letter: &DeadLetter) -> Option<String> {
        // A table has nowhere to keep how often.
        if self.action == Action::Drop || shelf.kept().is_some() {
            return None;
        }
        if letter.envelope.pipeline == LOG_ITSELF {
            return Some("damaged bytes of the log itself belong to no pipeline".to_owned());
        }
        let Some(PipelineInfo { replays_max, .. }) = shelf.pipeline_of(letter) else {
            return Some("its consumer group was forgotten; run the pipeline once".to_owned());
        };
        (letter.envelope.attempts > *replays_max)
            .then(|| format!("it was replayed {replays_max} times already (replays_max)"))
    }

    async fn keep_pace(&mut self, letters: usize) {
        let Some(rate) = self.rate.filter(|rate| *rate > 0) else { return };
        let now = Instant::now();
        let at = self.next_at.unwrap_or(now).max(now);
        tokio::select! {
            () = tokio::time::sleep_until(at) => {}
            () = self.admin.stopping() => {}
        }
        self.next_at = Some(at + Duration::from_secs_f64(letters as f64 / f64::from(rate)));
    }
}

/// What it will work on, as the log has it now, and what becomes of replays where somebody waits for
/// that; which feeds do not say what they have.
async fn chosen(
    admin: &Admin,
    wanted: LetterFilter,
    is_watched: bool,
) -> Result<(Vec<(String, Outcomes)>, Selection, Vec<String>), ApiError> {
    let mut watches = Vec::new();
    if is_watched {
        let shelves = shelves(admin, wanted.pipeline.as_deref()).await?;
        for shelf in shelves.iter().filter(|shelf| shelf.kept().is_none()) {
            let info = shelf.info();
            let outcomes = Outcomes::begin(admin.engine().log().as_ref(), info).await?;
            watches.push((info.dead_letters.clone(), outcomes));
        }
    }
    let mut selection = Selection::begin(admin, wanted, None).await?;
    let unknown = selection.settle_end().await?;
    Ok((watches, selection, unknown))
}

/// The process ends before the work does.
fn stopping() -> ApiError {
    let what = "the process is stopping: what was not handled is open as before";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "P0501", what)
        .hint("ask again when it runs; the audit says how many were handled")
}

/// How many that were put back into feeds have not ended.
async fn rows_under_way(put_back: &[(Arc<LetterTopic>, Vec<String>)]) -> Result<u64, ApiError> {
    let mut all = 0;
    for (shelf, ids) in put_back {
        if let Some(kept) = shelf.kept() {
            all += kept.under_way(ids).await?.len() as u64;
        }
    }
    Ok(all)
}

fn done<'a>(
    letter: &'a DeadLetter,
    action: &'static str,
    why: Option<String>,
) -> LetterOutcome<'a> {
    let DeadLetter { id, envelope, .. } = letter;
    LetterOutcome {
        id,
        pipeline: &envelope.pipeline,
        reason: envelope.reason,
        action,
        outcome: None,
        why,
    }
}
