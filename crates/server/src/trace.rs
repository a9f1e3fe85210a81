//! Where something was seen: every record of the log that names it, oldest first.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use potok_core::{
    ConsumerGroup, ConsumerGroupPartition, Envelope, Log, PipelineInfo, Position, Record,
    SourceBatch,
};
use potok_flow::dead_letter::{self, DeadLetter, LetterId, Replay, Resolution, Settled};
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
    /// `record`, `ended` or `open` (how a pipeline stands with it), `gathered`, `sealed`,
    /// `delivered`, `dead letter`, `replay`, `resolved` or `held`.
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
    let groups = log.consumer_groups().await?;
    let infos: Vec<PipelineInfo> = groups.iter().map(|group| group.info.clone()).collect();
    let ids = with_origin(&*log, &infos, wish.id.clone()).await?;
    let mut seen = Vec::new();
    for topic in log.topics().await? {
        let mut reader = log.read(&topic.topic, potok_core::ReadFrom::Start).await?;
        while let Some(batch) = reader.next(false).await? {
            for record in &batch.records {
                if seen.len() < SEEN_MAX && ids.iter().any(|id| names(&batch, record, id)) {
                    let told = describe(&batch, record, &infos);
                    if told.what == "record" {
                        let endings = endings(&*log, &groups, &batch.position(record)).await;
                        seen.extend(endings.into_iter().map(|ending| (record.time, ending)));
                    }
                    seen.push((record.time, told));
                }
            }
        }
    }
    // A record comes before what became of it.
    seen.sort_by_key(|(time, seen)| (*time, seen.what == "ended"));
    let mut seen: Vec<Seen> = seen.into_iter().map(|(_, seen)| seen).collect();
    let held = admin.engine().groups_of(None, &wish.id);
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

/// What to look for: the id, and where it is a dead letter's also the record that was set aside, whose
/// story it is a part of.
async fn with_origin(
    log: &dyn Log,
    infos: &[PipelineInfo],
    id: String,
) -> Result<Vec<String>, ApiError> {
    let mut ids = vec![id];
    let letter = ids.first().and_then(|id| id.parse::<LetterId>().ok());
    let info = letter
        .as_ref()
        .and_then(|letter| infos.iter().find(|info| *info.dead_letters == *letter.topic));
    if let (Some(letter), Some(info)) = (letter, info) {
        let settled = Arc::new(Settled::new(log));
        let found = dead_letter::find(log, info, &settled, &[letter]).await?;
        for DeadLetter { position, envelope, .. } in found {
            ids.extend([position.to_string(), envelope.origin.to_string()]);
        }
    }
    Ok(ids)
}

/// How pipelines are done with a record, as far as the log knows: that it has ended, not when, and of
/// a row in a database only that it carries the record's position.
async fn endings(log: &dyn Log, groups: &[ConsumerGroup], position: &Position) -> Vec<Seen> {
    let mut endings = Vec::new();
    for group in groups {
        let is_it = |at: &&ConsumerGroupPartition| {
            (&*at.topic, at.partition) == (&*position.topic, position.partition)
        };
        let Some(at) = group.partitions.iter().find(is_it) else { continue };
        let above = || log.ended(&group.group, &position.topic, position.partition);
        let ended = position.offset < at.committed
            || above().await.is_ok_and(|ended| ended.contains(position.offset));
        let more = match ended {
            true => format!(
                "delivered, left out by a rule or there already, unless a dead letter says \
                 otherwise; a row in a database has `{position}` in its column `potok_id`"
            ),
            false => "not yet: waiting, held in a group or on its way".to_owned(),
        };
        endings.push(Seen {
            time: "-".to_owned(),
            at: place(position),
            what: if ended { "ended" } else { "open" },
            pipeline: Some(group.info.pipeline.clone()),
            key: None,
            more: Some(more),
        });
    }
    endings
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
        || Replay::read(record)
            .is_some_and(|replay| comes_from(&replay.origin) || is_entry(&replay.entry, id))
        || Resolution::read(record).is_some_and(|note| {
            is_entry(&note.entry, id) || note.key.is_some_and(|key| comes_from(&key.origin))
        })
        || record.value.as_deref().is_some_and(|value| has_word(value, id.as_bytes()))
}

fn short_entry(entry: &str) -> &str {
    entry.split_once('@').map_or(entry, |(place, _)| place)
}

/// True when a note is about the dead letter of this id.
fn is_entry(entry: &str, id: &str) -> bool {
    let about = entry.parse::<Position>().ok();
    entry == id || id.parse::<LetterId>().is_ok_and(|id| about.is_some_and(|about| id.is(&about)))
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
        ("resolved", Some(info), Resolution::read(record).map(|note| note.to_string()))
    } else if let Some(info) = of(|info| &info.replay) {
        let of = Replay::read(record);
        ("replay", Some(info), of.map(|replay| format!("of {}", short_entry(&replay.entry))))
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
