//! Where something was seen: every record of the log that names it, oldest first.

use axum::Json;
use axum::extract::State;
use potok_core::{Envelope, PipelineInfo, Position, Record, SourceBatch};
use potok_flow::gathered_from;
use serde::{Deserialize, Serialize};

use crate::request::Params;
use crate::{Admin, ApiError};

/// More than a person reads.
const SEEN_MAX: usize = 10_000;
/// Header with the name of a delivery, which begins with the position of its record.
const ID_HEADER: &str = "potok-id";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wish {
    id: String,
}

/// One place where it was seen.
#[derive(Serialize)]
pub(crate) struct Seen {
    time: String,
    /// `topic/partition/offset`.
    at: String,
    /// `record`, `gathered`, `sealed`, `delivered`, `dead letter`, `replay`, `resolved` or `held`.
    what: &'static str,
    /// The pipeline that wrote or holds it.
    pipeline: Option<String>,
    key: Option<String>,
    /// More about it: why it is a dead letter, which delivery it is.
    more: Option<String>,
}

pub(crate) async fn trace(
    State(admin): State<Admin>,
    Params(wish): Params<Wish>,
) -> Result<Json<Vec<Seen>>, ApiError> {
    if wish.id.is_empty() {
        return Err(ApiError::usage("say what to look for")
            .hint("a key, an id in a record, a header's value, or topic/partition/offset"));
    }
    let log = admin.engine().log().clone();
    let infos: Vec<PipelineInfo> =
        log.groups().await?.into_iter().map(|group| group.info).collect();
    let mut seen = Vec::new();
    for topic in log.topics().await? {
        let mut reader = log.read(&topic.topic, potok_core::ReadFrom::Start).await?;
        while let Some(batch) = reader.next(false).await? {
            for record in &batch.records {
                if seen.len() < SEEN_MAX && names(&batch, record, &wish.id) {
                    seen.push((record.time, describe(&batch, record, &infos)));
                }
            }
        }
    }
    seen.sort_by_key(|(time, _)| *time);
    let mut seen: Vec<Seen> = seen.into_iter().map(|(_, seen)| seen).collect();
    let held = admin.engine().batches_of(None, &wish.id);
    seen.extend(held.into_iter().map(|batch| Seen {
        time: batch.opened,
        at: batch.owner,
        what: "held",
        pipeline: Some(batch.pipeline),
        key: Some(batch.id),
        more: Some(format!("{}, due {}", batch.state, batch.due.unwrap_or_default())),
    }));
    Ok(Json(seen))
}

/// True when the record is the one looked for, comes from it, or has the text as its key, as a
/// header's value or as a whole word of its value.
fn names(batch: &SourceBatch, record: &Record, id: &str) -> bool {
    let is_id = |bytes: &[u8]| bytes == id.as_bytes();
    let comes_from = |origin: &Position| place(origin) == id || origin.to_string() == id;
    comes_from(&batch.position(record))
        || record.key.as_deref().is_some_and(is_id)
        || record.headers.iter().any(|(_, value)| value.is_some_and(is_id))
        || Envelope::split(&record.headers)
            .is_some_and(|(envelope, _)| comes_from(&envelope.origin))
        || delivery(record).is_some_and(|name| {
            name.strip_prefix(id).is_some_and(|rest| rest.starts_with(['@', '#', '/', ':']))
        })
        || gathered_from(record).is_some_and(|origin| comes_from(&origin))
        || record.value.as_deref().is_some_and(|value| has_word(value, id.as_bytes()))
}

fn place(position: &Position) -> String {
    format!("{}/{}/{}", position.topic, position.partition, position.offset)
}

fn delivery(record: &Record) -> Option<&str> {
    std::str::from_utf8(record.headers.get(ID_HEADER)?).ok()
}

fn has_word(value: &[u8], word: &[u8]) -> bool {
    let is_edge = |byte: Option<&u8>| byte.is_none_or(|byte| !byte.is_ascii_alphanumeric());
    value.windows(word.len()).enumerate().any(|(at, found)| {
        let before = at.checked_sub(1).and_then(|before| value.get(before));
        found == word && is_edge(before) && is_edge(value.get(at + word.len()))
    })
}

fn describe(batch: &SourceBatch, record: &Record, infos: &[PipelineInfo]) -> Seen {
    let topic = &*batch.partition.topic;
    let of = |name: fn(&PipelineInfo) -> &str| infos.iter().find(|info| name(info) == topic);
    let internal = |info: &&PipelineInfo| info.internal.as_deref() == Some(topic);
    let envelope = Envelope::split(&record.headers).map(|(envelope, _)| envelope);
    let (what, info, more) = if let Some(info) = of(|info| &info.dead_letters) {
        let why = envelope.map(|e| format!("{}: {} (of {})", e.reason, e.error, place(&e.origin)));
        ("dead letter", Some(info), why)
    } else if let Some(info) = of(|info| &info.resolved) {
        ("resolved", Some(info), None)
    } else if let Some(info) = of(|info| &info.replay) {
        ("replay", Some(info), None)
    } else if let Some(info) = infos.iter().find(internal) {
        match gathered_from(record) {
            Some(origin) => ("gathered", Some(info), Some(format!("from {}", place(&origin)))),
            None => ("sealed", Some(info), None),
        }
    } else {
        match delivery(record) {
            Some(name) => ("delivered", None, Some(format!("as {name}"))),
            None => ("record", None, None),
        }
    };
    Seen {
        time: record.time.to_string(),
        at: place(&batch.position(record)),
        what,
        pipeline: info.map(|info| info.pipeline.clone()),
        key: record.key.as_deref().map(|key| String::from_utf8_lossy(key).into_owned()),
        more,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_whole_words() {
        assert!(has_word(br#"{"id":"b563","n":12}"#, b"b563"));
        assert!(has_word(br#"{"id":"b563","n":12}"#, b"12"));
        assert!(!has_word(br#"{"id":"b563","n":123}"#, b"12"));
        assert!(!has_word(br#"{"id":"ab563"}"#, b"b563"));
        assert!(!has_word(b"", b"x"));
    }
}
