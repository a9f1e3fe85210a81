//! Dead letters: list, replay, drop.
//!
//! All of them stream: however many there are, a page of them is in memory.

mod act;
pub(crate) mod book;
mod compare;
mod dry;
mod filter;
mod mark;
pub(crate) mod notes;
mod select;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use potok_core::{Fault, Log, PipelineInfo, Reason, ShardPlace};
use potok_flow::dead_letter::{DeadLetter, DeadLetterState, Pages};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

pub(crate) use act::{Action, LetterRequest, Work, drop, replay};
pub(crate) use book::cause_of;
pub(crate) use dry::DryRun;
use filter::{Filter, LetterFilter};
use select::Selection;

use crate::line::{LINES_TYPE, push_line, write_body, write_key};
use crate::request::Params;
use crate::{Admin, ApiError};

/// The text of a filter, or of what is named by one, without its predicate: that may quote values.
pub(crate) fn without_predicate(text: &str) -> String {
    // Everything behind it goes, too: nobody can tell where it ends.
    let at = text.match_indices("where=").map(|(at, _)| at);
    let mut begins = at.filter(|at| {
        text.get(..*at).is_some_and(|before| before.is_empty() || before.ends_with(' '))
    });
    match begins.next().and_then(|at| text.get(..at)) {
        Some(before) => format!("{before}where=…"),
        None => text.to_owned(),
    }
}

/// Which dead letters, and how to list them.
#[derive(Default, Deserialize)]
pub(crate) struct Listing {
    /// The filter; flattened by hand, since a query holds text only.
    #[serde(flatten)]
    filter: BTreeMap<String, String>,
    /// So many at most; then a line with the `cursor` to go on with.
    limit: Option<String>,
    /// Where an earlier listing stopped.
    cursor: Option<String>,
    /// Without headers and values.
    brief: Option<String>,
    /// How many there are for each pipeline and reason, instead of the dead letters themselves.
    summary: Option<String>,
}

pub(crate) async fn list(
    State(admin): State<Admin>,
    Params(listing): Params<Listing>,
) -> Result<Response, ApiError> {
    let filter = listing.filter.into_iter().map(|(name, text)| match name.as_str() {
        "all" => Ok((name, serde_json::Value::from(flag("all", &text)?))),
        _ => Ok((name, text.into())),
    });
    let filter = filter.collect::<Result<serde_json::Map<_, _>, ApiError>>()?;
    let wanted = LetterFilter::read(Filter::of(filter)?, admin.engine())?;
    let flag_of = |name, text: &Option<String>| text.as_ref().map_or(Ok(false), |t| flag(name, t));
    let (brief, summary) =
        (flag_of("brief", &listing.brief)?, flag_of("summary", &listing.summary)?);
    let limit = listing.limit.map(|text| {
        let limit = text.parse::<usize>().ok().filter(|limit| *limit > 0);
        limit.ok_or_else(|| ApiError::usage(format!("`limit={text}` is not a number from 1")))
    });
    // Whoever names some of them wants to know all about them.
    let compare = wanted.ids.is_some();
    let selection = Selection::begin(&admin, wanted, listing.cursor.as_deref()).await?;
    let lister = Lister {
        selection,
        log: admin.engine().log().clone(),
        brief,
        compare,
        left: limit.transpose()?,
    };
    if summary {
        return Ok(lines_response(futures::stream::once(lister.summary())));
    }
    Ok(lines_response(futures::stream::unfold(Some(lister), |lister| async {
        let mut lister = lister?;
        match lister.next().await {
            Ok(Some((lines, more))) => Some((Ok(lines), more.then_some(lister))),
            Ok(None) => None,
            Err(error) => Some((Ok(Bytes::from(error.line())), None)),
        }
    })))
}

fn flag(name: &str, text: &str) -> Result<bool, ApiError> {
    text.parse().map_err(|_| ApiError::usage(format!("`{name}={text}` is neither true nor false")))
}

struct Lister {
    selection: Selection,
    log: Arc<dyn Log>,
    brief: bool,
    /// Say in what those differ whose ids were there already.
    compare: bool,
    left: Option<usize>,
}

/// How many dead letters a pipeline has for a reason.
#[derive(Serialize)]
struct Count {
    pipeline: String,
    reason: Reason,
    count: u64,
    /// When the first and the last were set aside.
    first: String,
    last: String,
    /// One of them.
    example: String,
}

impl Lister {
    /// The lines of the next page, and whether there may be more.
    async fn next(&mut self) -> Result<Option<(Bytes, bool)>, ApiError> {
        let mut lines = Vec::new();
        if self.left == Some(0) {
            if let Some(cursor) = self.selection.cursor() {
                push_line(&mut lines, &serde_json::json!({ "cursor": cursor }));
            }
            return Ok(Some((lines.into(), false)));
        }
        let most = self.left.unwrap_or(usize::MAX);
        let Some((_, letters)) = self.selection.next(most).await? else { return Ok(None) };
        for letter in &letters {
            let differs = match self.compare {
                true => compare::differences(self.log.as_ref(), letter).await,
                false => None,
            };
            push_line(&mut lines, &LetterLine { letter, brief: self.brief, differs });
        }
        self.left = self.left.map(|left| left.saturating_sub(letters.len()));
        Ok(Some((lines.into(), true)))
    }

    async fn summary(mut self) -> std::io::Result<Bytes> {
        let mut counts: BTreeMap<(String, &str), Count> = BTreeMap::new();
        let mut lines = Vec::new();
        loop {
            let letters = match self.selection.next(usize::MAX).await {
                Ok(Some((_, letters))) => letters,
                Ok(None) => break,
                Err(error) => return Ok(error.line().into()),
            };
            for DeadLetter { id, envelope, .. } in letters {
                let time = envelope.time.to_string();
                let of = (envelope.pipeline.clone(), envelope.reason.word());
                let count = counts.entry(of).or_insert_with(|| Count {
                    pipeline: envelope.pipeline,
                    reason: envelope.reason,
                    count: 0,
                    first: time.clone(),
                    last: time.clone(),
                    example: id,
                });
                count.count += 1;
                count.last = time.max(std::mem::take(&mut count.last));
            }
        }
        counts.values().for_each(|count| push_line(&mut lines, count));
        Ok(lines.into())
    }
}

/// Where the list of dead letters ends now, as a dry run says it.
pub(crate) async fn end_now(admin: &Admin, pipeline: &str) -> Result<String, ApiError> {
    let mut filter = Filter::of(serde_json::Map::new())?;
    filter.pipeline = Some(pipeline.to_owned()).filter(|pipeline| !pipeline.is_empty());
    let wanted = LetterFilter::read(filter, admin.engine())?;
    let mut selection = Selection::begin(admin, wanted, None).await?;
    selection.settle_end().await?;
    Ok(selection.until().map(ToString::to_string).unwrap_or_default())
}

/// How many dead letters of a pipeline are open, read from the log.
pub(crate) async fn count_open(admin: &Admin, info: &PipelineInfo) -> Result<u64, Fault> {
    let mut pages = Pages::open(admin.engine().log().as_ref(), info, None).await?;
    let mut open = 0;
    while let Some(letter) = pages.next().await? {
        let is_ours = letter.envelope.pipeline == info.pipeline;
        open += u64::from(is_ours && letter.state == DeadLetterState::Open);
    }
    Ok(open)
}

fn lines_response(
    lines: impl futures::Stream<Item = std::io::Result<Bytes>> + Send + 'static,
) -> Response {
    ([(CONTENT_TYPE, LINES_TYPE)], Body::from_stream(lines)).into_response()
}

/// A dead letter as `potok dead-letters list` prints it.
struct LetterLine<'a> {
    letter: &'a DeadLetter,
    /// Without headers and value.
    brief: bool,
    /// Where its id was there already: the fields that differ.
    differs: Option<Vec<String>>,
}

impl Serialize for LetterLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let DeadLetter { id, envelope, state, record, .. } = self.letter;
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
        map.serialize_entry("replay_of", &envelope.replay_of)?;
        if let Some(ShardPlace { number, file }) = &envelope.shard {
            map.serialize_entry("shard", number)?;
            map.serialize_entry("file", file)?;
        }
        if let Some(fields) = &self.differs {
            map.serialize_entry("differs", fields)?;
        }
        match self.brief {
            true => write_key(&mut map, record)?,
            false => write_body(&mut map, record)?,
        }
        map.end()
    }
}

/// One dead letter by its id, whatever became of it, and the fields in which it differs from what was
/// there first.
pub(crate) async fn one(
    admin: &Admin,
    id: &str,
) -> Result<(DeadLetter, Option<Vec<String>>), ApiError> {
    let filter = serde_json::json!({ "ids": [id], "all": true });
    let filter = Filter::of(filter.as_object().cloned().unwrap_or_default())?;
    let wanted = LetterFilter::read(filter, admin.engine())?;
    let mut selection = Selection::begin(admin, wanted, None).await?;
    let found = selection.next(1).await?.and_then(|(_, letters)| letters.into_iter().next());
    let letter = found.ok_or_else(|| ApiError::usage(format!("there is no dead letter `{id}`")))?;
    let differs = compare::differences(admin.engine().log().as_ref(), &letter).await;
    Ok((letter, differs))
}
