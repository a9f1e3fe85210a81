//! Which dead letters somebody wants.

use std::fmt;

use axum::http::StatusCode;
use potok_core::{Reason, Timestamp};
use potok_expr::{Program, ProgramError, View};
use potok_flow::Engine;
use potok_flow::dead_letter::{DeadLetter, DeadLetterState, LetterId};
use serde::Deserialize;

use super::mark::LetterMark;
use crate::{ApiError, parse_since};

/// Which dead letters. Everything given must hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Filter {
    pub pipeline: Option<String>,
    /// Only these; separated by line breaks in a query.
    ids: Ids,
    /// Reasons, separated by commas.
    reason: Option<String>,
    /// Set aside at or after this moment, or this long ago.
    since: Option<String>,
    /// A VRL predicate on the record.
    r#where: Option<String>,
    /// Only records of this group; where the pipeline holds groups.
    group: Option<String>,
    /// Only those whose error, without its values, is this.
    cause: Option<String>,
    /// Only what was there at a mark: `until` of a dry run.
    until: Option<String>,
    /// Also those replayed and dropped.
    pub all: bool,
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

impl Filter {
    /// The filter of a request.
    pub fn of(fields: serde_json::Map<String, serde_json::Value>) -> Result<Self, ApiError> {
        serde_json::from_value(fields.into())
            .map_err(|error| ApiError::usage("the filter cannot be read").because(error))
    }
}

/// A dead letter, as somebody names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LetterName {
    /// One in a topic.
    Log(LetterId),
    /// One that a feed keeps: where, unless it was left out, and its id there.
    Feed(Option<String>, String),
}

impl LetterName {
    fn read(text: &str, engine: &Engine) -> Result<Self, String> {
        let feeds = engine.feeds(None);
        let places = feeds.iter().filter_map(|(_, feed)| Some(feed.letters()?.place()));
        for place in places.clone() {
            if let Some(id) = text.strip_prefix(place).and_then(|rest| rest.strip_prefix('/')) {
                return Ok(LetterName::Feed(Some(place.to_owned()), id.to_owned()));
            }
        }
        match text.parse() {
            Ok(id) => Ok(LetterName::Log(id)),
            Err(_) if !text.contains('/') && places.count() > 0 => {
                Ok(LetterName::Feed(None, text.to_owned()))
            }
            Err(why) => Err(why),
        }
    }

    /// The id of one that a feed keeps there.
    pub fn kept_in(&self, place: &str) -> Option<&str> {
        match self {
            LetterName::Feed(named, id) if named.as_ref().is_none_or(|named| named == place) => {
                Some(id)
            }
            _ => None,
        }
    }

    /// The id of one in that topic.
    pub fn in_topic(&self, topic: &str) -> Option<&LetterId> {
        match self {
            LetterName::Log(id) if *id.topic == *topic => Some(id),
            _ => None,
        }
    }
}

impl fmt::Display for LetterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LetterName::Log(id) => write!(f, "{id}"),
            LetterName::Feed(Some(place), id) => write!(f, "{place}/{id}"),
            LetterName::Feed(None, id) => write!(f, "{id}"),
        }
    }
}

/// A filter read and checked.
pub(super) struct LetterFilter {
    pub pipeline: Option<String>,
    pub ids: Option<Vec<LetterName>>,
    reasons: Vec<Reason>,
    since: Option<Timestamp>,
    predicate: Option<Program>,
    /// With who knows which group a record is of.
    group: Option<(String, Engine)>,
    cause: Option<String>,
    /// Where the list of them ends.
    pub until: Option<LetterMark>,
    all: bool,
}

impl LetterFilter {
    pub fn read(filter: Filter, engine: &Engine) -> Result<Self, ApiError> {
        let now = engine.clock().now();
        let name = |id: &String| LetterName::read(id, engine);
        let ids = filter.ids.given().map(|ids| ids.iter().map(name).collect());
        let ids = ids.transpose();
        let reasons = filter.reason.iter().flat_map(|list| list.split(',')).map(reason);
        let since = filter.since.map(|text| parse_since(&text, now)).transpose();
        let predicate = filter.r#where.map(|source| predicate(&source)).transpose()?;
        Ok(LetterFilter {
            pipeline: filter.pipeline,
            ids: ids.map_err(ApiError::usage)?,
            reasons: reasons.collect::<Result<_, _>>()?,
            since: since.map_err(ApiError::usage)?,
            predicate,
            group: filter.group.map(|group| (group, engine.clone())),
            cause: filter.cause,
            until: filter.until.map(|text| text.parse()).transpose()?,
            all: filter.all,
        })
    }

    pub fn matches(&self, letter: &DeadLetter) -> Result<bool, ApiError> {
        let plain = (self.all || letter.state == DeadLetterState::Open)
            && self.pipeline.as_ref().is_none_or(|only| *only == letter.envelope.pipeline)
            && (self.reasons.is_empty() || self.reasons.contains(&letter.envelope.reason))
            && self.since.is_none_or(|since| letter.envelope.time >= since)
            && self
                .cause
                .as_ref()
                .is_none_or(|cause| super::book::is_of(&letter.envelope.error, cause))
            && self.group.as_ref().is_none_or(|(group, engine)| {
                engine.group_of(letter).is_some_and(|of| *of == *group.as_bytes())
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
