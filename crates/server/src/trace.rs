//! Where something was seen: every record of the log that names it, oldest first.
//!
//! The log is read backwards, a window of every partition at a time, so that what is new is found
//! first, and no longer and no further than asked for. The answer says whether that was everything.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use potok_core::{
    ConsumerGroup, ConsumerGroupPartition, Envelope, Log, PipelineInfo, Position, ReadFrom, Record,
    SourceBatch, Timestamp,
};
use potok_flow::dead_letter::{self, DeadLetter, LetterId, LetterOutcomes, Replay, Resolution};
use potok_flow::gathered_from;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::patience::{ANSWER_MAX, soon};
use crate::request::Params;
use crate::{Admin, ApiError, parse_since};

/// More than a person reads.
const SEEN_MAX: usize = 10_000;
/// No key is longer that somebody looks for.
const ID_BYTES_MAX: usize = 4 << 10;
/// Nobody waits longer.
const SECONDS_MAX: u64 = 3_600;
/// How long it may take, and how much may be read, where nobody says.
const SECONDS: u64 = 5;
const MEGABYTES: u64 = 1_024;
/// Offsets of the newest window of a partition; each older one is four times as large.
pub(crate) const WINDOW: u64 = 20_000;
/// Searches at once; others wait for their turn.
const AT_ONCE_MAX: usize = 4;
/// Header with the name of a delivery, which begins with the position of its record.
const ID_HEADER: &str = "potok-id";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TraceQuery {
    pub id: String,
    /// Nothing older than this moment, or than so long ago; all that is kept where not given.
    pub since: Option<String>,
    /// How long it may take.
    pub seconds: Option<u64>,
    /// How much of the log may be read.
    pub megabytes: Option<u64>,
    /// So many places at most.
    pub limit: Option<usize>,
}

/// What was found, and how much was looked at.
#[derive(Serialize)]
pub(crate) struct TraceResult {
    pub seen: Vec<Sighting>,
    /// Records and bytes that were looked at.
    pub records: u64,
    pub bytes: u64,
    /// Everything since then was looked at; else time, bytes or places ran out.
    pub complete: bool,
    /// Nothing older was asked for.
    pub since: Option<String>,
}

/// One place where it was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Sighting {
    pub time: String,
    /// `topic/partition/offset`.
    pub at: String,
    /// `record`, `ended` or `open` (how a pipeline stands with it), `gathered`, `sealed`,
    /// `delivered`, `dead letter`, `replay`, `resolved` or `held`.
    pub what: &'static str,
    /// The pipeline that wrote or holds it.
    pub pipeline: Option<String>,
    pub key: Option<String>,
    /// More about it: why it is a dead letter, which delivery it is.
    pub more: Option<String>,
}

static AT_ONCE: Semaphore = Semaphore::const_new(AT_ONCE_MAX);

pub(crate) async fn trace(
    State(admin): State<Admin>,
    Params(wish): Params<TraceQuery>,
) -> Result<Json<TraceResult>, ApiError> {
    search(&admin, wish, true).await.map(Json)
}

/// Looks for it; in values and headers of records only where whoever asks may see them.
pub(crate) async fn search(
    admin: &Admin,
    wish: TraceQuery,
    in_payloads: bool,
) -> Result<TraceResult, ApiError> {
    if wish.id.is_empty() {
        return Err(ApiError::usage("say what to look for")
            .hint("a key, an id in a record, a header's value, or topic/partition/offset"));
    }
    if wish.id.len() > ID_BYTES_MAX {
        return Err(ApiError::usage(format!("what to look for has over {ID_BYTES_MAX} bytes")));
    }
    let now = admin.engine().clock().now();
    let since = wish.since.as_deref().filter(|since| !since.is_empty());
    let since = since.map(|since| parse_since(since, now)).transpose().map_err(ApiError::usage)?;
    let seconds = wish.seconds.unwrap_or(SECONDS).min(SECONDS_MAX);
    let until = Instant::now() + Duration::from_secs(seconds);
    // Never closed. Whoever does not get their turn in time is told so like one who ran out of it.
    let Ok(_turn) = tokio::time::timeout_at(until, AT_ONCE.acquire()).await else {
        let since = since.map(|since| since.to_string());
        return Ok(TraceResult { seen: Vec::new(), records: 0, bytes: 0, complete: false, since });
    };
    let log = admin.engine().log().clone();
    // Whoever says how long waits so long; a page says soon that the log is away.
    let first = wish.seconds.map_or(ANSWER_MAX, |_| Duration::from_secs(seconds.max(1)));
    let groups = soon(first, async { Ok(log.consumer_groups().await?) }).await?;
    let infos: Vec<PipelineInfo> = groups.iter().map(|group| group.info.clone()).collect();
    let mut search = Search {
        ids: Vec::new(),
        until,
        in_payloads,
        is_cut: false,
        seen_max: wish.limit.unwrap_or(SEEN_MAX).clamp(1, SEEN_MAX),
        bytes_max: wish.megabytes.unwrap_or(MEGABYTES).saturating_mul(1 << 20),
        since,
        seen: Vec::new(),
        records: 0,
        bytes: 0,
        log,
        groups,
        infos,
    };
    let looked = tokio::time::timeout_at(until, search.look(&wish.id)).await;
    // What was found until then is told.
    let complete = looked.unwrap_or(Ok(false))? && !search.is_cut;
    let mut seen = search.seen;
    // A record comes before what became of it.
    seen.sort_by(|(time, one), (other_time, other)| {
        (time, one.what == "ended", &one.at).cmp(&(other_time, other.what == "ended", &other.at))
    });
    seen.dedup();
    let mut seen: Vec<Sighting> = seen.into_iter().map(|(_, seen)| seen).collect();
    let held = admin.engine().groups_of(None, &wish.id);
    seen.extend(held.into_iter().map(|group| Sighting {
        time: group.opened,
        at: group.owner,
        what: "held",
        pipeline: Some(group.pipeline),
        key: Some(group.id),
        more: Some(format!("{}, due {}", group.state, group.due.unwrap_or_default())),
    }));
    let since = since.map(|since| since.to_string());
    Ok(TraceResult { seen, records: search.records, bytes: search.bytes, complete, since })
}

/// A search under way.
struct Search {
    log: Arc<dyn Log>,
    groups: Vec<ConsumerGroup>,
    infos: Vec<PipelineInfo>,
    ids: Vec<String>,
    since: Option<Timestamp>,
    until: Instant,
    bytes_max: u64,
    in_payloads: bool,
    seen_max: usize,
    /// There were more places than that.
    is_cut: bool,
    seen: Vec<(Timestamp, Sighting)>,
    records: u64,
    bytes: u64,
}

/// What of a partition has not been looked at: everything below `end`.
struct UnreadRange {
    topic: String,
    partition: u32,
    end: u64,
    window: u64,
}

impl Search {
    fn is_over(&self) -> bool {
        self.seen.len() >= self.seen_max
            || self.bytes >= self.bytes_max
            || Instant::now() >= self.until
    }

    /// Looks everywhere; false where that was not everything.
    async fn look(&mut self, id: &str) -> Result<bool, ApiError> {
        self.ids = with_origin(&*self.log, &self.infos, id.to_owned()).await?;
        self.look_at_place(id).await?;
        self.look_back().await
    }

    /// Where the id is a place: what lies there, however old.
    async fn look_at_place(&mut self, id: &str) -> Result<(), ApiError> {
        let mut parts = id.rsplitn(3, '/');
        let offset = parts.next().and_then(|part| part.split('@').next()?.parse::<u64>().ok());
        let partition = parts.next().and_then(|part| part.parse::<u32>().ok());
        let (Some(offset), Some(partition), Some(topic)) = (offset, partition, parts.next()) else {
            return Ok(());
        };
        if self.log.topics().await?.iter().all(|known| known.topic != topic) {
            return Ok(());
        }
        let from = ReadFrom::Place { partition, offset };
        let batch = self.log.read(topic, from).await?.next(false).await?;
        if let Some(mut batch) = batch {
            batch.records.retain(|record| record.offset == offset);
            self.look_at(&batch, None).await;
        }
        Ok(())
    }

    /// Windows of all partitions, newest first. False where that was not everything.
    async fn look_back(&mut self) -> Result<bool, ApiError> {
        let mut unread: Vec<UnreadRange> = Vec::new();
        for topic in self.log.topics().await? {
            // Rather many and small: what people have done.
            if topic.topic == crate::audit::TOPIC {
                continue;
            }
            let of = |(partition, end): (u32, &u64)| UnreadRange {
                topic: topic.topic.clone(),
                partition,
                end: *end,
                window: WINDOW,
            };
            unread.extend((0..).zip(&topic.ends).map(of).filter(|unread| unread.end > 0));
        }
        while !unread.is_empty() {
            let mut left = Vec::new();
            for mut part in unread {
                if self.is_over() {
                    return Ok(false);
                }
                if self.look_at_window(&mut part).await? {
                    left.push(part);
                }
            }
            unread = left;
        }
        Ok(true)
    }

    /// The newest part of what is unread; false where nothing is left that is new enough.
    async fn look_at_window(&mut self, part: &mut UnreadRange) -> Result<bool, ApiError> {
        let from = part.end.saturating_sub(part.window);
        let at = ReadFrom::Place { partition: part.partition, offset: from };
        let mut reader = self.log.read(&part.topic, at).await?;
        let (mut oldest, mut newest) = (None, None);
        while let Some(mut batch) = reader.next(false).await? {
            let next = batch.next;
            batch.records.retain(|record| record.offset < part.end);
            oldest = oldest.or(batch.records.first().map(|record| record.time));
            newest = newest.max(batch.records.iter().map(|record| record.time).max());
            self.look_at(&batch, self.since).await;
            if next >= part.end {
                break;
            }
            if self.is_over() {
                // The window counts as unread.
                return Ok(true);
            }
        }
        // On a log that others write to, times may be theirs, in any order: there everything that lies
        // in it has to be older.
        let last = if self.log.is_shared() { newest } else { oldest };
        let is_old = self.since.zip(last).is_some_and(|(since, last)| last < since);
        part.end = from;
        part.window = part.window.saturating_mul(4);
        Ok(part.end > 0 && !is_old)
    }

    fn is_it(&self, batch: &SourceBatch, record: &Record, id: &str) -> bool {
        names(batch, record, id) || (self.in_payloads && holds(record, id))
    }

    async fn look_at(&mut self, batch: &SourceBatch, since: Option<Timestamp>) {
        for record in &batch.records {
            self.records += 1;
            self.bytes += record.bytes() as u64;
            let is_old = since.is_some_and(|since| record.time < since);
            if is_old || self.is_cut || !self.ids.iter().any(|id| self.is_it(batch, record, id)) {
                continue;
            }
            if self.seen.len() >= self.seen_max {
                self.is_cut = true;
                continue;
            }
            let told = describe(batch, record, &self.infos);
            if told.what == "record" {
                let endings = endings(&*self.log, &self.groups, &batch.position(record)).await;
                self.seen.extend(endings.into_iter().map(|ending| (record.time, ending)));
            }
            self.seen.push((record.time, told));
        }
        // A long window must not keep others from being answered.
        tokio::task::yield_now().await;
    }
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
        let settled = Arc::new(LetterOutcomes::new(log));
        let found = dead_letter::find(log, info, &settled, &[letter]).await?;
        for DeadLetter { position, envelope, .. } in found {
            ids.extend([position.to_string(), envelope.origin.to_string()]);
        }
    }
    Ok(ids)
}

/// How pipelines are done with a record, as far as the log knows: that it has ended, not when, and of
/// a row in a database only that it carries the record's position.
async fn endings(log: &dyn Log, groups: &[ConsumerGroup], position: &Position) -> Vec<Sighting> {
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
        endings.push(Sighting {
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

/// True when the record has the text as a header's value or as a whole word of its value.
fn holds(record: &Record, id: &str) -> bool {
    record.headers.iter().any(|(_, value)| value.is_some_and(|value| value == id.as_bytes()))
        || record.value.as_deref().is_some_and(|value| has_word(value, id.as_bytes()))
}

/// True when the record is the one looked for, comes from it, or has the text as its key.
fn names(batch: &SourceBatch, record: &Record, id: &str) -> bool {
    let is_id = |bytes: &[u8]| bytes == id.as_bytes();
    let comes_from = |origin: &Position| place(origin) == id || origin.to_string() == id;
    comes_from(&batch.position(record))
        || record.key.as_deref().is_some_and(is_id)
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

fn describe(batch: &SourceBatch, record: &Record, infos: &[PipelineInfo]) -> Sighting {
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
    Sighting {
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
