//! A source record as it lies in the internal topic of a pipeline, between the seals of its group.
//!
//! ```text
//! key       the group's key; where the record has none, its own
//! headers   potok-origin   <log hex> <partition> <offset> <time in ms> <topic>, and where the
//!                          record has a key of its own, a zero byte and the key
//!           … the record's own headers, as they were
//! value     the record's value
//! ```
//! The time of the copy is the log's: it is the clock of windows.

use std::sync::Arc;

use bytes::Bytes;
use potok_core::{HeadersBuilder, Output, Partition, Position, Record, SourceBatch, Timestamp};

use crate::origin::Origin;

const ORIGIN_HEADER: &str = "potok-origin";
/// Behind the topic, in whose name it cannot be.
const KEY_FOLLOWS: u8 = 0;
/// Room for the header besides topic and key.
const ORIGIN_BYTES: usize = 96;

/// The copy of a record for its group.
pub(crate) fn copy(
    topic: &Arc<str>,
    group: Option<Bytes>,
    batch: &SourceBatch,
    record: &Record,
) -> Output {
    let Partition { topic: from, index } = &batch.partition;
    let key = record.key.as_deref();
    let room = ORIGIN_BYTES + from.len() + key.map_or(0, <[u8]>::len);
    let place = format_args!("{:x} {index} {} {} {from}", batch.log, record.offset, record.time.0);
    let headers = HeadersBuilder::with_capacity(room + record.headers.encoded().len());
    let headers = headers.add_written(ORIGIN_HEADER, |value| {
        value.show(place);
        if let Some(key) = key {
            value.bytes(&[KEY_FOLLOWS]);
            value.bytes(key);
        }
    });
    Output {
        topic: topic.clone(),
        partition: None,
        key: group.or_else(|| record.key.clone()),
        headers: headers.add_all(&record.headers).build(),
        value: record.value.clone(),
    }
}

/// True for a copy of a record; everything else in an internal topic is a note of our own.
pub(crate) fn is_copy(record: &Record) -> bool {
    record.headers.iter().next().is_some_and(|(name, _)| name == ORIGIN_HEADER)
}

/// Where the record lies that this is a copy of; `None` for what is no copy.
pub fn gathered_from(record: &Record) -> Option<Position> {
    origin(record, &[]).map(|origin| origin.position)
}

/// The original of a copy; its topic mostly is one of these.
pub(crate) fn origin(record: &Record, topics: &[Arc<str>]) -> Option<Origin> {
    let (_, origin) = record.headers.iter().next().filter(|(name, _)| *name == ORIGIN_HEADER)?;
    let mut parts = origin?.splitn(2, |byte| *byte == KEY_FOLLOWS);
    let (place, key) = (parts.next()?, parts.next());
    let mut parts = std::str::from_utf8(place).ok()?.splitn(5, ' ');
    let mut part = || parts.next();
    let log = u64::from_str_radix(part()?, 16).ok()?;
    let (partition, offset) = (part()?.parse().ok()?, part()?.parse().ok()?);
    let (time, topic) = (Timestamp(part()?.parse().ok()?), part()?);
    let known = topics.iter().find(|known| ***known == *topic).cloned();
    let topic = known.unwrap_or_else(|| topic.into());
    let all = record.headers.encoded();
    Some(Origin {
        position: Position { log, topic, partition, offset },
        failures: 0,
        time,
        key: key.map(|key| all.slice_ref(key)),
        headers: record.headers.without_first(),
        replay: Ok(None),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use potok_core::Headers;

    use super::*;

    #[test]
    fn a_copy_says_what_it_is_of() {
        let headers = HeadersBuilder::new()
            .add(ORIGIN_HEADER, Some(b"somebody's own"))
            .add("a", None)
            .add("a", Some(b"\xff"))
            .build();
        for key in [None, Some(Bytes::new()), Some(Bytes::from_static(b"\xff\0 k"))] {
            for headers in [Headers::none(), headers.clone()] {
                let record = Record {
                    offset: u64::MAX,
                    time: Timestamp(-5),
                    key: key.clone(),
                    headers: headers.clone(),
                    value: None,
                };
                let batch = SourceBatch {
                    partition: Partition { topic: "a b й".into(), index: 7 },
                    log: u64::MAX,
                    assignment: 1,
                    first: 0,
                    next: 1,
                    records: Vec::new(),
                    order: None,
                    feed: None,
                };
                let output = copy(&"potok-x".into(), Some("g".into()), &batch, &record);
                assert_eq!(output.key.as_deref(), Some(&b"g"[..]));
                let Output { key: group, headers: own, value, .. } = output;
                let copied =
                    Record { offset: 3, time: Timestamp(9), key: group, headers: own, value };
                assert!(is_copy(&copied));
                let origin = origin(&copied, &[]).unwrap();
                assert_eq!(origin.position, batch.position(&record));
                assert_eq!((origin.time, origin.key), (record.time, record.key));
                assert_eq!(origin.headers, record.headers);
            }
        }
    }

    #[test]
    fn what_is_no_copy_is_told_apart() {
        let record =
            |headers| Record { offset: 0, time: Timestamp(0), key: None, headers, value: None };
        assert!(!is_copy(&record(Headers::none())));
        let torn = HeadersBuilder::new().add(ORIGIN_HEADER, Some(b"1 2")).build();
        assert!(origin(&record(torn), &[]).is_none());
    }
}
