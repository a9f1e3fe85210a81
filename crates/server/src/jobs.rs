//! Replays and drops of many dead letters as jobs: named, paced, stoppable, with progress and outcome.
//!
//! A job is a task of this process that does what the command does. It is not durable, and need not
//! be: each dead letter is sent and noted in one append, so whatever ends the task, the rest is open.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::Value;

use crate::access::{Actor, Role, Visitor};
use crate::audit::AuditEntry;
use crate::letters::{Action, DryRun, LetterRequest, Work, cause_of, without_predicate};
use crate::patience::silent;
use crate::{Admin, ApiError, audit};

/// Jobs that are remembered.
const JOBS_MAX: usize = 100;
/// Replays that are tried out for a page.
const DRY_RUN_LETTERS_MAX: u64 = 2_000;
/// Warnings and reasons that are remembered of one.
const TEXTS_MAX: usize = 10;

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    Running,
    Done,
    Stopped,
    Failed,
}

/// How far it is.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Progress {
    pub phase: Phase,
    /// Dead letters sent or dropped.
    pub done: u64,
    pub skipped: u64,
    /// Why some were skipped, and what else is worth knowing.
    pub notes: Vec<String>,
    /// What came of a replay.
    pub outcome: Option<Value>,
    /// What a replay would come to, of those that were tried out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast: Option<DryRun>,
    pub error: Option<String>,
    pub ended: Option<String>,
}

/// One job.
#[derive(Debug)]
pub(crate) struct Job {
    pub id: String,
    pub name: String,
    pub action: &'static str,
    pub target: String,
    pub rate: Option<u32>,
    /// How many somebody was shown and confirmed.
    pub confirmed: Option<u64>,
    pub started: String,
    progress: Mutex<Progress>,
    stop: AtomicBool,
}

#[derive(Serialize)]
pub(crate) struct JobView {
    id: String,
    name: String,
    action: &'static str,
    target: String,
    rate: Option<u32>,
    confirmed: Option<u64>,
    started: String,
    #[serde(flatten)]
    progress: Progress,
}

impl JobView {
    /// As somebody may read it: errors quote what they are about.
    fn told(mut self, visitor: &Visitor) -> Self {
        if visitor.may(Role::Operator) {
            return self;
        }
        self.name = without_predicate(&self.name);
        self.target = without_predicate(&self.target);
        let progress = &mut self.progress;
        progress.error = progress.error.as_deref().map(cause_of);
        progress.notes.iter_mut().for_each(|note| *note = cause_of(note));
        let outcome = progress.outcome.as_mut().and_then(|outcome| outcome.get_mut("dead_again"));
        for dead in outcome.and_then(Value::as_array_mut).into_iter().flatten() {
            let cause = cause_of(dead["error"].as_str().unwrap_or_default());
            dead["error"] = cause.into();
        }
        self
    }
}

impl Job {
    pub fn progress(&self) -> Progress {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Asks it to stop after what it has in hand.
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Says so where how it ended could not be noted.
    fn told(&self, is_noted: bool) {
        if !is_noted {
            self.change(|progress| progress.remember(Some(audit::LOST)));
        }
    }

    fn view(&self) -> JobView {
        JobView {
            id: self.id.clone(),
            name: self.name.clone(),
            action: self.action,
            target: self.target.clone(),
            rate: self.rate,
            confirmed: self.confirmed,
            started: self.started.clone(),
            progress: self.progress(),
        }
    }

    fn take_in(&self, lines: &[u8]) {
        let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        for line in lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok()) {
            self.change(|progress| progress.add(&line));
        }
    }
}

impl Progress {
    fn new() -> Self {
        Progress {
            phase: Phase::Running,
            done: 0,
            skipped: 0,
            notes: Vec::new(),
            outcome: None,
            forecast: None,
            error: None,
            ended: None,
        }
    }

    /// What a replay or drop says in a line.
    fn add(&mut self, line: &Value) {
        match line["action"].as_str() {
            Some("skipped") => {
                self.skipped += 1;
                self.remember(line["why"].as_str());
            }
            Some(_) => self.done += 1,
            None => {}
        }
        self.remember(line["warning"].as_str());
        if line["outcome"].is_object() {
            self.outcome = Some(line["outcome"].clone());
        }
        if line["forecast"].is_object() {
            self.forecast = serde_json::from_value(line["forecast"].clone()).ok();
        }
    }

    fn remember(&mut self, text: Option<&str>) {
        let Some(text) = text else { return };
        if self.notes.len() < TEXTS_MAX && !self.notes.iter().any(|known| known == text) {
            self.notes.push(text.to_owned());
        }
    }
}

/// The jobs of this process.
#[derive(Default)]
pub(crate) struct Jobs(Mutex<VecDeque<Arc<Job>>>);

impl Jobs {
    pub fn all(&self) -> Vec<Arc<Job>> {
        let jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.iter().rev().cloned().collect()
    }

    pub fn find(&self, id: &str) -> Option<Arc<Job>> {
        self.all().into_iter().find(|job| job.id == id)
    }

    fn add(&self, job: Arc<Job>) {
        let mut jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.len() >= JOBS_MAX {
            jobs.pop_front();
        }
        jobs.push_back(job);
    }
}

/// Starts one. What it will work on is settled now: what is set aside later is left to the next.
pub(crate) async fn start(
    admin: &Admin,
    actor: &Actor,
    name: String,
    wish: LetterRequest,
    action: Action,
) -> Result<Arc<Job>, ApiError> {
    let (target, rate, confirmed) = (wish.target(), wish.rate, wish.confirmed);
    let mut work = Work::begin(admin, actor, wish, action).await?;
    let job = Arc::new(Job {
        id: crate::random_name(),
        name,
        action: action.word(),
        target,
        rate,
        confirmed,
        started: admin.engine().clock().now().to_string(),
        progress: Mutex::new(Progress::new()),
        stop: AtomicBool::new(false),
    });
    admin.inner.jobs.add(job.clone());
    let (doing, admin) = (job.clone(), admin.clone());
    tokio::spawn(async move {
        let (phase, error) = loop {
            if doing.stop.load(Ordering::Relaxed) {
                doing.told(work.stopped("stopped").await);
                break (Phase::Stopped, None);
            }
            match work.next().await {
                Ok(Some((lines, more))) => {
                    doing.take_in(&lines);
                    if !more {
                        break (Phase::Done, None);
                    }
                }
                Ok(None) => break (Phase::Done, None),
                // It has noted that itself.
                Err(_) if admin.is_stopping() => break (Phase::Stopped, None),
                Err(error) => {
                    doing.told(work.failed(&error).await);
                    break (Phase::Failed, Some(error.body.what));
                }
            }
        };
        let now = admin.engine().clock().now().to_string();
        doing.change(|progress| {
            progress.phase = phase;
            progress.error = error;
            progress.ended = Some(now);
        });
    });
    Ok(job)
}

/// What would happen.
pub(crate) struct JobForecast {
    pub progress: Progress,
    /// False where that was not all.
    pub whole: bool,
    /// Where the list of them ends: what is done until there is what was counted.
    pub until: Option<String>,
}

impl JobForecast {
    /// So many are handled, until there.
    pub fn of_count(count: u64, until: &str) -> Self {
        let progress = Progress { done: count, ..Progress::new() };
        JobForecast { progress, whole: true, until: Some(until.to_owned()) }
    }
}

/// Only says what would happen, as far as that is known within a moment.
pub(crate) async fn dry_run(
    admin: &Admin,
    actor: &Actor,
    wish: LetterRequest,
    action: Action,
    max: std::time::Duration,
) -> Result<JobForecast, ApiError> {
    let wish = LetterRequest { dry_run: true, rate: None, wait: 0, job: None, ..wish };
    let until = tokio::time::Instant::now() + max;
    let begun = tokio::time::timeout_at(until, Work::begin(admin, actor, wish, action)).await;
    let mut work = begun.unwrap_or_else(|_| Err(silent()))?;
    let job = Job {
        id: String::new(),
        name: String::new(),
        action: action.word(),
        target: String::new(),
        rate: None,
        confirmed: None,
        started: String::new(),
        progress: Mutex::new(Progress::new()),
        stop: AtomicBool::new(false),
    };
    let whole = loop {
        if action == Action::Replay && job.progress().done >= DRY_RUN_LETTERS_MAX {
            break false;
        }
        let Ok(step) = tokio::time::timeout_at(until, work.next()).await else { break false };
        match step? {
            Some((lines, more)) => {
                job.take_in(&lines);
                if !more {
                    break true;
                }
            }
            None => break true,
        }
    };
    let mut progress = job.progress();
    if !whole && action == Action::Replay {
        progress.forecast = Some(work.tried().clone());
    }
    Ok(JobForecast { progress, whole, until: work.until() })
}

pub(crate) async fn list(State(admin): State<Admin>, visitor: Visitor) -> Json<Vec<JobView>> {
    Json(admin.inner.jobs.all().iter().map(|job| job.view().told(&visitor)).collect())
}

pub(crate) async fn show(
    State(admin): State<Admin>,
    visitor: Visitor,
    Path(id): Path<String>,
) -> Result<Json<JobView>, ApiError> {
    find(&admin, &id).map(|job| Json(job.view().told(&visitor)))
}

pub(crate) async fn stop(
    State(admin): State<Admin>,
    actor: Actor,
    Path(id): Path<String>,
) -> Result<Json<JobView>, ApiError> {
    stop_job(&admin, &actor, &id).await.map(|job| Json(job.view()))
}

/// Asks one to stop after what it has in hand.
pub(crate) async fn stop_job(admin: &Admin, actor: &Actor, id: &str) -> Result<Arc<Job>, ApiError> {
    let job = find(admin, id)?;
    job.stop();
    let target = format!("{} ({})", job.name, job.id);
    audit::note(admin, AuditEntry::new(actor, "stop_job").target(target)).await;
    Ok(job)
}

pub(crate) fn find(admin: &Admin, id: &str) -> Result<Arc<Job>, ApiError> {
    admin.inner.jobs.find(id).ok_or_else(|| {
        ApiError::new(StatusCode::NOT_FOUND, "P1501", format!("there is no job `{id}`"))
            .hint("jobs are remembered by the process that runs them, the last hundred")
    })
}
