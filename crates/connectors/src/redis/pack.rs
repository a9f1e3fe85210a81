//! A record as bytes: everything but its position, which is the name it lies under.
//!
//! ```text
//! version u8 = 1 · flags u8 (1 has a key, 2 has a value) · time i64
//! key length u32 · key · headers length u32 · headers
//! digest, 16 bytes, over all of the above, the value and the offset
//! ```
//!
//! Numbers are little endian. The value lies behind this, or elsewhere. The digest notices a value
//! that is another's, or torn: a body comes back byte-exact or not at all. Only the process that
//! has put a record loads it, so digests are seeded by the process; nobody else can make one.

use std::hash::BuildHasher;
use std::sync::LazyLock;

use bytes::Bytes;
use foldhash::quality::RandomState;
use potok_core::{Headers, Record, Timestamp};

const VERSION: u8 = 1;
const HAS_KEY: u8 = 1;
const HAS_VALUE: u8 = 2;
const DIGEST: usize = 16;

/// Appends everything of the record but the value.
pub(super) fn pack(packed: &mut Vec<u8>, record: &Record) {
    let key = record.key.as_deref().unwrap_or_default();
    let headers = record.headers.encoded();
    let start = packed.len();
    let flag = |there: bool, bit: u8| if there { bit } else { 0 };
    packed.push(VERSION);
    packed.push(flag(record.key.is_some(), HAS_KEY) | flag(record.value.is_some(), HAS_VALUE));
    packed.extend(record.time.0.to_le_bytes());
    for part in [key, headers] {
        packed.extend((part.len() as u32).to_le_bytes());
        packed.extend(part);
    }
    let value = record.value.as_deref().unwrap_or_default();
    let digest = digest(record.offset, &packed[start..], value);
    packed.extend(digest);
}

/// The record that was packed; `None` where the bytes are not what was packed.
/// The value is in `elsewhere`, or behind the packed part.
pub(super) fn unpack(packed: &Bytes, elsewhere: Option<Bytes>, offset: u64) -> Option<Record> {
    let mut at = 0_usize;
    let mut take = |count: usize| {
        let taken = packed.get(at..at.checked_add(count)?)?;
        at += count;
        Some(taken)
    };
    let &[version, flags] = take(2)? else { return None };
    if version != VERSION {
        return None;
    }
    let time = i64::from_le_bytes(take(8)?.try_into().ok()?);
    let mut part = || {
        let length = u32::from_le_bytes(take(4)?.try_into().ok()?);
        take(length as usize)
    };
    let (key, headers) = (part()?, part()?);
    let (digested, behind) = packed.split_at_checked(at)?;
    let (told, behind) = behind.split_at_checked(DIGEST)?;
    let value = match elsewhere {
        Some(value) if behind.is_empty() => value,
        Some(_) => return None,
        None => packed.slice_ref(behind),
    };
    if told != digest(offset, digested, &value) {
        return None;
    }
    Some(Record {
        offset,
        time: Timestamp(time),
        key: (flags & HAS_KEY != 0).then(|| packed.slice_ref(key)),
        headers: Headers::from_encoded(packed.slice_ref(headers)),
        value: (flags & HAS_VALUE != 0).then_some(value),
    })
}

fn digest(offset: u64, packed: &[u8], value: &[u8]) -> [u8; DIGEST] {
    static SEEDS: LazyLock<[RandomState; 2]> = LazyLock::new(Default::default);
    let [one, two] =
        SEEDS.each_ref().map(|seed| u128::from(seed.hash_one((offset, packed, value))));
    (one << 64 | two).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use potok_core::HeadersBuilder;

    use super::*;

    fn record() -> Record {
        Record {
            offset: 7,
            time: Timestamp(-5),
            key: Some(Bytes::from_static(b"\0key")),
            headers: HeadersBuilder::new().add("a", None).build(),
            value: Some(Bytes::from_static(b"value")),
        }
    }

    fn packed(record: &Record) -> Bytes {
        let mut packed = b"before".to_vec();
        pack(&mut packed, record);
        Bytes::from(packed).slice(6..)
    }

    #[test]
    fn records_come_back_exact() {
        let bare = Record { key: None, value: None, headers: Headers::none(), ..record() };
        let empty = Record { key: Some(Bytes::new()), value: Some(Bytes::new()), ..record() };
        for record in [record(), bare, empty] {
            let value = record.value.clone().unwrap_or_default();
            let packed = packed(&record);
            let whole = Bytes::from([&packed[..], &value[..]].concat());
            assert_eq!(unpack(&packed, Some(value), 7).as_ref(), Some(&record));
            assert_eq!(unpack(&whole, None, 8), None, "another's");
            assert_eq!(unpack(&whole, None, 7), Some(record));
        }
    }

    #[test]
    fn what_was_changed_is_no_record() {
        let record = record();
        let whole = [&packed(&record)[..], b"value"].concat();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert_eq!(unpack(&changed.into(), None, 7), None, "byte {at}");
            let cut = Bytes::copy_from_slice(&whole[..at]);
            assert_eq!(unpack(&cut, None, 7), None, "cut at {at}");
            assert_eq!(unpack(&cut, Some(Bytes::from_static(b"other")), 7), None);
        }
    }
}
