//! Bodies of held records in memory, as far as there is room.
//!
//! Every body lies in the store, or in the log where that is the store or where the store was full, and
//! can be read back. Most need not be: what came first stays in memory, because mostly it is sent
//! first, up to a bound for the whole pipeline. So memory is bounded, however much is held, and nothing
//! waits for room.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use potok_core::{Headers, Record, Store, Timestamp};

/// The cost of keeping a body, beside its bytes.
const BESIDES: usize = 96;

/// Bodies that come together lie together up to so many bytes, and take room until the last of them
/// goes, which may be much later. So it is not more.
const PACK_BYTES_MAX: usize = 16 << 10;

/// Where bodies are: in a store, and in memory.
#[derive(Clone)]
pub(crate) struct Bodies {
    pub store: Arc<dyn Store>,
    /// Where they lie in the log: for those that the store has no room for.
    pub log: Arc<dyn Store>,
    pub room: Arc<Room>,
}

impl Bodies {
    /// With room for so many bytes in memory.
    pub fn of(store: Option<Arc<dyn Store>>, log: Arc<dyn Store>, memory_max: usize) -> Self {
        let store = store.unwrap_or_else(|| log.clone());
        Bodies { store, log, room: Arc::new(Room::of(memory_max)) }
    }
}

/// How much memory there is, and how much of it is taken.
#[derive(Debug)]
pub(crate) struct Room {
    taken: AtomicUsize,
    max: usize,
}

impl Room {
    pub fn of(max: usize) -> Self {
        Room { taken: AtomicUsize::new(0), max }
    }

    /// Takes room for something that is not a body, until it is dropped; `None` where there is none.
    pub fn charge(self: &Arc<Self>, size: usize) -> Option<Charge> {
        if self.taken.fetch_add(size, Ordering::Relaxed) + size > self.max {
            self.taken.fetch_sub(size, Ordering::Relaxed);
            return None;
        }
        Some(Charge { size, room: self.clone() })
    }

    /// The bodies of records, in order, as far as there is room for them. In memory of their own: not
    /// in the blocks they were read with, which may be much larger.
    pub fn keep(self: &Arc<Self>, records: &[&Record]) -> Vec<Option<Body>> {
        let mut bodies = Vec::with_capacity(records.len());
        let mut rest = records;
        while !rest.is_empty() {
            let (pack, behind) = rest.split_at(together(rest));
            match self.pack(pack) {
                Some(packed) => bodies.extend(packed.map(Some)),
                None => bodies.extend(pack.iter().map(|_| None)),
            }
            rest = behind;
        }
        bodies
    }

    fn pack(self: &Arc<Self>, records: &[&Record]) -> Option<impl Iterator<Item = Body>> {
        let bytes = records.iter().map(|record| body_bytes(record)).sum();
        let size = bytes + records.len() * BESIDES;
        if self.taken.fetch_add(size, Ordering::Relaxed) + size > self.max {
            self.taken.fetch_sub(size, Ordering::Relaxed);
            return None;
        }
        let mut packed = Vec::with_capacity(bytes);
        let mut parts = Vec::with_capacity(records.len());
        for record in records {
            let (key, value) = (record.key.as_deref(), record.value.as_deref());
            let headers = record.headers.encoded();
            parts.push((packed.len() as u32, plus_one(key), headers.len() as u32, plus_one(value)));
            for part in [key.unwrap_or_default(), headers, value.unwrap_or_default()] {
                packed.extend_from_slice(part);
            }
        }
        let pack = Arc::new(Pack { bytes: packed.into(), size, room: self.clone() });
        let body = move |(start, key, headers, value)| {
            let pack = pack.clone();
            Body { pack, start, key, headers, value }
        };
        Some(parts.into_iter().map(body))
    }
}

/// How many of these lie together: one at least.
fn together(records: &[&Record]) -> usize {
    let mut bytes = 0;
    let fits = |record: &&&Record| {
        bytes += body_bytes(record);
        bytes <= PACK_BYTES_MAX
    };
    records.iter().take_while(fits).count().max(1)
}

fn body_bytes(record: &Record) -> usize {
    let length = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
    length(&record.key) + record.headers.encoded().len() + length(&record.value)
}

/// A length of which 0 says that there is nothing, not even of no length.
fn plus_one(bytes: Option<&[u8]>) -> u32 {
    bytes.map_or(0, |bytes| bytes.len() as u32 + 1)
}

/// Bodies that lie together. They give their room back when the last of them goes.
#[derive(Debug)]
struct Pack {
    bytes: Bytes,
    size: usize,
    room: Arc<Room>,
}

impl Drop for Pack {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.size, Ordering::Relaxed);
    }
}

/// Room that something takes.
#[derive(Debug)]
pub(crate) struct Charge {
    size: usize,
    room: Arc<Room>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.size, Ordering::Relaxed);
    }
}

/// A body in memory: key, headers and value, one behind the other in its pack.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    pack: Arc<Pack>,
    start: u32,
    /// Lengths; of what may be missing, see [`plus_one`].
    key: u32,
    headers: u32,
    value: u32,
}

impl Body {
    /// The record as it was.
    pub fn record(&self, offset: u64, time: Timestamp) -> Record {
        let Body { pack, start, key, headers, value } = self;
        let mut at = *start as usize;
        let mut next = |length: u32| {
            let from = at;
            at += length as usize;
            pack.bytes.slice(from..at)
        };
        let key = key.checked_sub(1).map(&mut next);
        let headers = Headers::from_encoded(next(*headers));
        Record { offset, time, key, headers, value: value.checked_sub(1).map(next) }
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
    fn bodies_come_back_as_they_were() {
        let room = Arc::new(Room::of(10_000));
        let mut records = Vec::new();
        for key in [None, Some(&b""[..]), Some(b"k\0")] {
            for value in [None, Some(&b""[..]), Some(b"v\xff")] {
                for headers in [Headers::none(), record(None, None).headers] {
                    records.push(Record { headers, ..record(key, value) });
                }
            }
        }
        let bodies = room.keep(&records.iter().collect::<Vec<_>>());
        assert_eq!(bodies.len(), records.len());
        for (body, record) in bodies.iter().zip(&records) {
            assert_eq!(body.as_ref().unwrap().record(7, Timestamp(-3)), *record);
        }
        drop(bodies);
        assert_eq!(room.taken.load(Ordering::Relaxed), 0, "all of it was given back");
    }

    #[test]
    fn what_lies_together_is_bounded_and_takes_room_to_the_last() {
        let room = Arc::new(Room::of(1 << 20));
        let of = |bytes: usize| Record { value: Some(vec![0; bytes].into()), ..record(None, None) };
        let third = of(PACK_BYTES_MAX / 3);
        let large = of(2 * PACK_BYTES_MAX);
        let mut bodies = room.keep(&[&third, &third, &third, &large]);
        assert!(bodies.iter().all(Option::is_some));
        let taken = |count: usize, bytes: usize| {
            assert_eq!(room.taken.load(Ordering::Relaxed), count * BESIDES + bytes);
        };
        taken(4, 3 * body_bytes(&third) + body_bytes(&large));
        bodies.pop();
        taken(3, 3 * body_bytes(&third));
        bodies.remove(0);
        taken(3, 3 * body_bytes(&third));
        bodies.remove(0);
        taken(1, body_bytes(&third));
    }

    #[test]
    fn what_does_not_fit_is_not_kept() {
        let room = Arc::new(Room::of(50_000));
        let large = Record { value: Some(vec![0; 30_000].into()), ..record(None, None) };
        let small = record(None, Some(b"small"));
        let bodies = room.keep(&[&large, &large, &small]);
        let kept: Vec<bool> = bodies.iter().map(Option::is_some).collect();
        assert_eq!(kept, [true, false, true], "smaller ones still fit");
        drop(bodies);
        assert!(room.keep(&[&large])[0].is_some());
    }
}
