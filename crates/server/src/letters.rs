//! Dead letters: list, replay, drop.
//!
//! Replay and drop answer with one line for each dead letter, as they go, at the rate asked for.
//! One of them runs at a time: two that read the same list would send the same record twice.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use potok_core::{PipelineInfo, Reason, Timestamp};
use potok_expr::{Program, ProgramError, View};
use potok_flow::Engine;
use potok_flow::dead_letter::{self, DeadLetter, DeadLetterState};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use tokio::sync::OwnedMutexGuard;

use crate::line::{LINES_TYPE, push_line, write_body};
use crate::request::{self, Params};
use crate::{Admin, ApiError, parse_since};

/// The pseudo-pipeline whose dead letters are damaged parts of the log.
const LOG_ITSELF: &str = "potok";
/// Dead letters of one append, and their bytes.
const CHUNK_LETTERS_MAX: usize = 500;
const CHUNK_BYTES_MAX: usize = 8 << 20;
/// A rate is kept by a chunk this often.
const PACE: Duration = Duration::from_millis(100);

/// Which dead letters. Everything given must hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Filter {
    pipeline: Option<String>,
    /// Only these; separated by line breaks in a query.
    ids: Ids,
    /// Reasons, separated by commas.
    reason: Option<String>,
    /// Set aside at or after this moment, or this long ago.
    since: Option<String>,
    /// A VRL predicate on the record.
    r#where: Option<String>,
    /// Only records of this batch; where the pipeline holds groups.
    batch: Option<String>,
    /// Also those replayed and dropped.
    all: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged)]
enum Ids {
    #[default]
    All,
    Lines(String),
    List(Vec<String>),
}

impl Ids {
    fn given(self) -> Option<Vec<String>> {
        match self {
            Ids::All => None,
            Ids::Lines(lines) => Some(lines.lines().map(str::to_owned).collect()),
            Ids::List(list) => Some(list),
        }
    }
}

/// A filter read and checked.
struct Wanted {
    pipeline: Option<String>,
    ids: Option<Vec<String>>,
    reasons: Vec<Reason>,
    since: Option<Timestamp>,
    predicate: Option<Program>,
    /// With who knows which batch a record is of.
    batch: Option<(String, Engine)>,
    all: bool,
}

impl Wanted {
    fn read(filter: Filter, engine: &Engine) -> Result<Self, ApiError> {
        let now = engine.clock().now();
        let reasons = filter.reason.iter().flat_map(|list| list.split(',')).map(reason);
        let since = filter.since.map(|text| parse_since(&text, now)).transpose();
        let predicate = filter.r#where.map(|source| predicate(&source)).transpose()?;
        Ok(Wanted {
            pipeline: filter.pipeline,
            ids: filter.ids.given(),
            reasons: reasons.collect::<Result<_, _>>()?,
            since: since.map_err(ApiError::usage)?,
            predicate,
            batch: filter.batch.map(|batch| (batch, engine.clone())),
            all: filter.all,
        })
    }

    fn matches(&self, letter: &DeadLetter) -> Result<bool, ApiError> {
        let plain = (self.all || letter.state == DeadLetterState::Open)
            && self.ids.as_ref().is_none_or(|ids| ids.contains(&letter.id))
            && (self.reasons.is_empty() || self.reasons.contains(&letter.envelope.reason))
            && self.since.is_none_or(|since| letter.envelope.time >= since)
            && self.batch.as_ref().is_none_or(|(batch, engine)| {
                engine.batch_of(letter).is_some_and(|of| *of == *batch.as_bytes())
            });
        let Some(predicate) = self.predicate.as_ref().filter(|_| plain) else { return Ok(plain) };
        let view = View {
            value: letter.record.value.as_deref().unwrap_or_default(),
            key: letter.record.key.as_deref(),
            headers: &letter.record.headers,
            topic: &letter.envelope.origin.topic,
            time: letter.record.time,
        };
        match predicate.matches(&view) {
            Ok(matches) => Ok(matches),
            // A value that is not JSON has none of the fields asked for.
            Err(ProgramError::Failed(_)) => Ok(false),
            Err(ProgramError::Deadline) => {
                Err(ApiError::usage(format!("the predicate ran out of time on {}", letter.id)))
            }
        }
    }
}

fn reason(word: &str) -> Result<Reason, ApiError> {
    let word = word.trim();
    Reason::ALL.into_iter().find(|reason| reason.word() == word).ok_or_else(|| {
        let known: Vec<_> = Reason::ALL.into_iter().map(Reason::word).collect();
        ApiError::usage(format!("`{word}` is no reason of a dead letter"))
            .hint(format!("one of: {}", known.join(", ")))
    })
}

fn predicate(source: &str) -> Result<Program, ApiError> {
    Program::compile_predicate(source).map_err(|errors| {
        let errors: Vec<_> = errors
            .iter()
            .map(|error| {
                let text = source.get(error.at..error.at.saturating_add(error.len));
                let text = text.filter(|text| !text.is_empty()).unwrap_or(source);
                let hint = error.hint.as_ref().map(|hint| format!("; {hint}"));
                format!("at `{text}`: {}{}", error.message, hint.unwrap_or_default())
            })
            .collect();
        ApiError::new(
            StatusCode::BAD_REQUEST,
            "P0516",
            "the predicate is not VRL that says yes or no",
        )
        .because(errors.join("; "))
        .hint("for example: .payment.amount > 1000 && .customer_id == \"test\"")
    })
}

/// The pipelines that have, or had, dead letters here.
async fn infos(admin: &Admin, only: Option<&str>) -> Result<Vec<PipelineInfo>, ApiError> {
    let log = admin.engine().log();
    let mut infos: Vec<PipelineInfo> = Vec::new();
    for group in log.groups().await? {
        if infos.iter().all(|info| info.pipeline != group.info.pipeline) {
            infos.push(group.info);
        }
    }
    // A group may have been forgotten, and the log's own dead letters have none.
    for topic in log.topics().await? {
        let covered = infos.iter().any(|info| info.dead_letters == topic.topic);
        if let (Some(pipeline), false) = (topic.topic.strip_suffix("-dead"), covered) {
            infos.push(dead_letter::info(pipeline, &topic.topic, 0));
        }
    }
    infos.sort_by(|a, b| a.pipeline.cmp(&b.pipeline));
    let Some(only) = only else { return Ok(infos) };
    if infos.iter().all(|info| info.pipeline != only)
        && admin.engine().status().await.iter().all(|status| status.pipeline != only)
    {
        let known: Vec<_> = infos.into_iter().map(|info| info.pipeline).collect();
        return Err(ApiError::unknown_pipeline(only, &known));
    }
    infos.retain(|info| info.pipeline == only);
    Ok(infos)
}

/// The dead letters wanted, with the pipeline of each, oldest first within a pipeline.
async fn select(
    admin: &Admin,
    wanted: Wanted,
) -> Result<Vec<(Arc<PipelineInfo>, Vec<DeadLetter>)>, ApiError> {
    let mut selected = Vec::new();
    let wanted = Arc::new(wanted);
    for info in infos(admin, wanted.pipeline.as_deref()).await? {
        let letters = dead_letter::list(admin.engine().log().as_ref(), &info).await?;
        let wanted = wanted.clone();
        // Predicates are somebody's programs: they run where they hold up nothing else.
        let matching = tokio::task::spawn_blocking(move || {
            let keep = |letter: DeadLetter| match wanted.matches(&letter) {
                Ok(matches) => matches.then_some(Ok(letter)),
                Err(error) => Some(Err(error)),
            };
            letters.into_iter().filter_map(keep).collect::<Result<Vec<_>, _>>()
        });
        let letters =
            matching.await.map_err(|error| ApiError::usage("the filter died").because(error))??;
        if !letters.is_empty() {
            selected.push((Arc::new(info), letters));
        }
    }
    let found =
        |id: &String| selected.iter().any(|(_, letters)| letters.iter().any(|l| l.id == *id));
    if let Some(missing) = wanted.ids.iter().flatten().find(|id| !found(id)) {
        let what = format!("there is no open dead letter `{missing}`");
        return Err(ApiError::new(StatusCode::NOT_FOUND, "P0514", what)
            .hint("`potok dead-letters list --all` shows those replayed and dropped too"));
    }
    Ok(selected)
}

pub(crate) async fn list(
    State(admin): State<Admin>,
    Params(filter): Params<Filter>,
) -> Result<Response, ApiError> {
    let wanted = Wanted::read(filter, admin.engine())?;
    let letters = select(&admin, wanted).await?;
    let lines = letters.into_iter().flat_map(|(_, letters)| letters).map(|letter| {
        let mut line = Vec::new();
        push_line(&mut line, &LetterLine(&letter));
        Ok::<_, std::io::Error>(Bytes::from(line))
    });
    Ok(lines_response(futures::stream::iter(lines)))
}

fn lines_response(
    lines: impl futures::Stream<Item = std::io::Result<Bytes>> + Send + 'static,
) -> Response {
    ([(CONTENT_TYPE, LINES_TYPE)], Body::from_stream(lines)).into_response()
}

/// A dead letter as `potok dead-letters list` prints it.
struct LetterLine<'a>(&'a DeadLetter);

impl Serialize for LetterLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let DeadLetter { id, envelope, state, record, .. } = self.0;
        let origin = &envelope.origin;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", id)?;
        map.serialize_entry("pipeline", &envelope.pipeline)?;
        map.serialize_entry("state", state)?;
        map.serialize_entry("reason", &envelope.reason)?;
        map.serialize_entry("error", &envelope.error)?;
        map.serialize_entry("attempts", &envelope.attempts)?;
        map.serialize_entry("deliver", &envelope.deliver)?;
        map.serialize_entry(
            "origin",
            &serde_json::json!({
                "topic": &*origin.topic,
                "partition": origin.partition,
                "offset": origin.offset,
                "log": format!("{:016x}", origin.log),
                "position": origin.to_string(),
            }),
        )?;
        map.serialize_entry("time", &envelope.time.to_string())?;
        write_body(&mut map, record)?;
        map.end()
    }
}

/// A replay or drop.
#[derive(Deserialize)]
pub(crate) struct Wish {
    #[serde(flatten)]
    filter: serde_json::Map<String, serde_json::Value>,
    /// Only say what would be done.
    #[serde(default)]
    dry_run: bool,
    /// Dead letters a second; as fast as it goes where not given.
    #[serde(default)]
    rate: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Replay,
    Drop,
}

pub(crate) async fn replay(State(admin): State<Admin>, body: Body) -> Result<Response, ApiError> {
    act(admin, request::json(body).await?, Action::Replay).await
}

pub(crate) async fn drop(State(admin): State<Admin>, body: Body) -> Result<Response, ApiError> {
    act(admin, request::json(body).await?, Action::Drop).await
}

async fn act(admin: Admin, wish: Wish, action: Action) -> Result<Response, ApiError> {
    let filter: Filter = serde_json::from_value(wish.filter.into())
        .map_err(|error| ApiError::usage("the filter cannot be read").because(error))?;
    let wanted = Wanted::read(Filter { all: false, ..filter }, admin.engine())?;
    let Ok(alone) = admin.inner.letters.clone().try_lock_owned() else {
        let what = "another replay or drop of dead letters is under way";
        return Err(
            ApiError::new(StatusCode::CONFLICT, "P0520", what).hint("wait until it is done")
        );
    };
    let chunks = select(&admin, wanted).await?.into_iter();
    let chunks = chunks.flat_map(|(info, letters)| {
        chunked(letters, wish.rate).into_iter().map(move |letters| (info.clone(), letters))
    });
    let work = Work {
        admin,
        action,
        dry_run: wish.dry_run,
        rate: wish.rate,
        chunks: chunks.collect::<Vec<_>>().into_iter(),
        next_at: None,
        _alone: alone,
    };
    Ok(lines_response(futures::stream::unfold(Some(work), |work| async {
        let mut work = work?;
        match work.next().await {
            Ok(lines) => lines.map(|lines| (Ok(lines), Some(work))),
            Err(error) => Some((Ok(Bytes::from(error.line())), None)),
        }
    })))
}

fn chunked(letters: Vec<DeadLetter>, rate: Option<u32>) -> Vec<Vec<DeadLetter>> {
    let paces = (Duration::from_secs(1).as_millis() / PACE.as_millis()) as u32;
    let letters_max = rate.map_or(CHUNK_LETTERS_MAX, |rate| (rate / paces).max(1) as usize);
    let mut chunks: Vec<Vec<DeadLetter>> = Vec::new();
    let mut bytes = 0;
    for letter in letters {
        let more = letter.record.bytes();
        match chunks.last_mut() {
            Some(chunk) if chunk.len() < letters_max && bytes + more <= CHUNK_BYTES_MAX => {
                bytes += more;
                chunk.push(letter);
            }
            _ => {
                bytes = more;
                chunks.push(vec![letter]);
            }
        }
    }
    chunks
}

struct Work {
    admin: Admin,
    action: Action,
    dry_run: bool,
    rate: Option<u32>,
    chunks: std::vec::IntoIter<(Arc<PipelineInfo>, Vec<DeadLetter>)>,
    next_at: Option<tokio::time::Instant>,
    _alone: OwnedMutexGuard<()>,
}

/// What was done with one dead letter.
#[derive(Serialize)]
struct Done<'a> {
    id: &'a str,
    pipeline: &'a str,
    reason: Reason,
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl Work {
    /// Handles the next chunk and says so.
    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let Some((info, letters)) = self.chunks.next() else { return Ok(None) };
        self.keep_pace(letters.len()).await;
        let (skipped, letters): (Vec<_>, Vec<_>) =
            letters.into_iter().partition(|letter| self.obstacle(&info, letter).is_some());
        if !self.dry_run {
            let (log, clock) = (self.admin.engine().log(), self.admin.engine().clock());
            match self.action {
                Action::Replay => {
                    dead_letter::replay(log.as_ref(), &info, &letters, clock.as_ref()).await?
                }
                Action::Drop => {
                    dead_letter::drop_letters(log.as_ref(), &info, &letters, clock.as_ref()).await?
                }
            };
        }
        let word = match (self.action, self.dry_run) {
            (Action::Replay, false) => "replayed",
            (Action::Replay, true) => "would_replay",
            (Action::Drop, false) => "dropped",
            (Action::Drop, true) => "would_drop",
        };
        let mut lines = Vec::new();
        for letter in &letters {
            push_line(&mut lines, &self.done(letter, word, None));
        }
        for letter in &skipped {
            let why = self.obstacle(&info, letter);
            push_line(&mut lines, &self.done(letter, "skipped", why));
        }
        Ok(Some(lines.into()))
    }

    fn done<'a>(
        &self,
        letter: &'a DeadLetter,
        action: &'static str,
        why: Option<String>,
    ) -> Done<'a> {
        let DeadLetter { id, envelope, .. } = letter;
        Done { id, pipeline: &envelope.pipeline, reason: envelope.reason, action, why }
    }

    /// Why this one cannot be replayed.
    fn obstacle(&self, info: &PipelineInfo, letter: &DeadLetter) -> Option<String> {
        if self.action == Action::Drop {
            None
        } else if info.pipeline == LOG_ITSELF {
            Some("damaged bytes of the log itself belong to no pipeline".to_owned())
        } else if info.replays_max == 0 {
            Some("its consumer group was forgotten; run the pipeline once".to_owned())
        } else if letter.envelope.attempts > info.replays_max {
            Some(format!("it was replayed {} times already (replays_max)", info.replays_max))
        } else {
            None
        }
    }

    async fn keep_pace(&mut self, letters: usize) {
        let Some(rate) = self.rate.filter(|rate| *rate > 0) else { return };
        let now = tokio::time::Instant::now();
        let at = self.next_at.unwrap_or(now).max(now);
        tokio::time::sleep_until(at).await;
        self.next_at = Some(at + Duration::from_secs_f64(letters as f64 / f64::from(rate)));
    }
}
