//! Bodies of held records in memory, as far as there is room.
//!
//! Every body lies in the store, or in the log where that is the store, and can be read back. Most
//! need not be: what came first stays in memory, because mostly it is sent first, up to a bound for
//! the whole pipeline. So memory is bounded, however much is held, and nothing waits for room.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use potok_core::{Headers, Record, Store, Timestamp};

/// What keeping one costs besides its bytes.
const BESIDES: usize = 96;

/// Where bodies are: in a store, and in memory.
#[derive(Clone)]
pub(crate) struct Bodies {
    pub store: Arc<dyn Store>,
    pub room: Arc<Room>,
}

impl Bodies {
    /// With room for so many bytes in memory.
    pub fn of(store: Arc<dyn Store>, memory_max: usize) -> Self {
        Bodies { store, room: Arc::new(Room::of(memory_max)) }
    }
}

/// How much memory there is, and how much of it is taken.
#[derive(Debug)]
pub(crate) struct Room {
    taken: AtomicUsize,
    max: usize,
}

impl Room {
    fn of(max: usize) -> Self {
        Room { taken: AtomicUsize::new(0), max }
    }

    /// The body of a record, if there is room for it. In memory of its own: not in the block it
    /// was read with, which may be much larger.
    pub fn keep(self: &Arc<Self>, record: &Record) -> Option<Body> {
        let size = BESIDES + record.bytes();
        if self.taken.fetch_add(size, Ordering::Relaxed) + size > self.max {
            self.taken.fetch_sub(size, Ordering::Relaxed);
            return None;
        }
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        let headers = record.headers.encoded();
        let length = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
        let mut bytes = Vec::with_capacity(length(key) + headers.len() + length(value));
        bytes.extend_from_slice(key.unwrap_or_default());
        bytes.extend_from_slice(headers);
        let value_at = bytes.len();
        bytes.extend_from_slice(value.unwrap_or_default());
        Some(Body(Box::new(Kept {
            bytes: bytes.into(),
            headers_at: key.map(<[u8]>::len),
            value_at,
            has_value: value.is_some(),
            size,
            room: self.clone(),
        })))
    }
}

/// A body in memory; it gives its room back when it goes.
#[derive(Debug)]
pub(crate) struct Body(Box<Kept>);

#[derive(Debug)]
struct Kept {
    /// Key, headers and value, one behind the other.
    bytes: Bytes,
    /// Where headers begin; `None` where there is no key.
    headers_at: Option<usize>,
    value_at: usize,
    has_value: bool,
    size: usize,
    room: Arc<Room>,
}

impl Body {
    /// The record as it was.
    pub fn record(&self, offset: u64, time: Timestamp) -> Record {
        let Kept { bytes, headers_at, value_at, has_value, .. } = &*self.0;
        Record {
            offset,
            time,
            key: headers_at.map(|end| bytes.slice(..end)),
            headers: Headers::from_encoded(bytes.slice(headers_at.unwrap_or(0)..*value_at)),
            value: has_value.then(|| bytes.slice(*value_at..)),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.size, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use potok_core::HeadersBuilder;

    use super::*;

    fn record(key: Option<&'static [u8]>, value: Option<&'static [u8]>) -> Record {
        let headers = HeadersBuilder::new().add("a", Some(b"\xff")).add("", None).build();
        let bytes = |bytes: Option<&'static [u8]>| bytes.map(Bytes::from_static);
        Record { offset: 7, time: Timestamp(-3), key: bytes(key), headers, value: bytes(value) }
    }

    #[test]
    fn a_body_comes_back_as_it_was() {
        let room = Arc::new(Room::of(10_000));
        for key in [None, Some(&b""[..]), Some(b"k\0")] {
            for value in [None, Some(&b""[..]), Some(b"v\xff")] {
                for headers in [Headers::none(), record(None, None).headers] {
                    let record = Record { headers, ..record(key, value) };
                    let body = room.keep(&record).unwrap();
                    assert_eq!(body.record(7, Timestamp(-3)), record);
                }
            }
        }
        assert_eq!(room.taken.load(Ordering::Relaxed), 0, "all of it was given back");
    }

    #[test]
    fn what_does_not_fit_is_not_kept() {
        let room = Arc::new(Room::of(10_000));
        let large = vec![0; 6_000];
        let large = Record { value: Some(large.into()), ..record(None, None) };
        let first = room.keep(&large);
        assert!(first.is_some() && room.keep(&large).is_none());
        let small = room.keep(&record(None, Some(b"small")));
        assert!(small.is_some(), "smaller ones still fit");
        drop(first);
        assert!(room.keep(&large).is_some());
    }
}
