//! The readable keys: names that other programs read.
//!
//! ```text
//! active:batches                set of open groups
//! ready:batches                 set of closed groups that wait to be sent
//! batch:start:<group>           when its first record arrived: milliseconds since 1970, as text
//! batch:<kind>s:<group>         set of ids; `batch:events:…`, `batch:mentions:…`
//! data:<kind>:<group>:<id>      the value of the latest record of that id, as it was
//!
//! potok:<pipeline>:owner:<share>          nonce of the owner, number of its last write
//! potok:<pipeline>:groups:<share>         set of the share's groups
//! potok:<pipeline>:held:<share>:<group>   hash: name → entry of the record shown under it,
//!                                               `P` place → entry of one that is not shown
//! ```
//!
//! A record without a kind is a `record`; one without an id has its position as id. A name is
//! `length of kind : kind id`, a place `length of position : position`, a position `offset (20
//! digits) log (16 hex digits) partition (10 digits) topic`. An entry is `D place packed` or
//! `C place packed value`; packed is what `pack.rs` draws. No key has a time to live.
//!
//! Only keys under `potok:` decide anything. The value of a `D` lies in its readable key and is
//! believed only where the digest fits; a `C` has its value with it: it is not shown, or its name
//! is not its alone. That is so where group or id hold a `:` (`a:b` + `c` and `a` + `b:c` are the
//! same key), and where somebody else had written the key before. What does not fit is `None`, and
//! putting it again makes it a `C`.
//!
//! Recovery: a share is emptied when it is taken. What the owner before had not cleaned is read
//! again from the log and put again, or has ended and would stay for ever.
//!
//! Limits: not for a cluster, as the readable keys lie in different slots. One generation of a
//! group at a time is shown; bodies of two are kept apart by position.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::io::Write;

use bytes::Bytes;
use potok_core::{Owner, Position, StoreAddress, StoreEntry};
use redis::Value;

use super::chunks::runs;
use super::client::ScriptCall;
use super::pack::pack;
use super::store::{PositionKey, StoredRecord, text};

/// The key that names the owner of a share.
pub(super) fn owner_key(owner: &Owner) -> String {
    format!("potok:{}:owner:{}", owner.pipeline, owner.share)
}

/// The arguments of the scripts besides the owner.
pub(super) fn begin(call: &mut ScriptCall<'_>, owner: &Owner) {
    call.show(format_args!("potok:{}:", owner.pipeline));
    call.show(owner.share);
}

pub(super) fn put(call: &mut ScriptCall<'_>, held: &[&StoreEntry]) {
    let mut entry = Vec::new();
    for run in runs(held, |held| &held.place.group) {
        let Some(first) = run.first() else { continue };
        call.push(&first.place.group);
        call.show(first.opened.0);
        call.show(run.len());
        for StoreEntry { place, record, .. } in run {
            let id = id(place);
            let is_ambiguous = place.group.contains(&b':') || id.contains(&b':');
            entry.clear();
            entry.push(if is_ambiguous { b'C' } else { b'D' });
            // Memory takes everything.
            let _ = write!(entry, "{}", PlaceKey(&place.position));
            pack(&mut entry, record);
            call.push(kind(place).as_bytes());
            call.push(&id);
            call.push(&entry);
            call.push(record.value.as_deref().unwrap_or_default());
        }
    }
}

pub(super) fn load(call: &mut ScriptCall<'_>, places: &[StoreAddress]) {
    names(call, runs(places, |place| &place.group), |place| place);
}

pub(super) fn clean(call: &mut ScriptCall<'_>, places: &[&StoreAddress]) {
    names(call, runs(places, |place| &place.group), |place| place);
}

/// Of each group its name, the number of records, and each one's place, kind and id.
fn names<'a, T: 'a>(
    call: &mut ScriptCall<'_>,
    runs: impl Iterator<Item = &'a [T]>,
    place: impl Fn(&T) -> &StoreAddress,
) {
    for run in runs {
        let Some(first) = run.first() else { continue };
        call.push(&place(first).group);
        call.show(run.len());
        for place in run.iter().map(&place) {
            call.show(PlaceKey(&place.position));
            call.push(kind(place).as_bytes());
            call.push(&id(place));
        }
    }
}

/// Answers come in pairs: what is held, and the value of the readable key.
pub(super) fn found(answers: impl Iterator<Item = Value>) -> Vec<StoredRecord> {
    let mut answers = answers.map(text);
    let mut found = Vec::new();
    while let (Some(entry), Some(value)) = (answers.next(), answers.next()) {
        let packed = entry.as_ref().and_then(packed_of);
        found.push(match entry.as_ref().and_then(|entry| entry.first()) {
            Some(b'D') => StoredRecord { packed, value },
            Some(b'C') => StoredRecord { packed, value: None },
            _ => StoredRecord { packed: None, value: None },
        });
    }
    found
}

/// The part of an entry behind its place.
fn packed_of(entry: &Bytes) -> Option<Bytes> {
    let colon = entry.iter().position(|byte| *byte == b':')?;
    let length: usize = std::str::from_utf8(entry.get(1..colon)?).ok()?.parse().ok()?;
    let behind = (colon + 1).checked_add(length)?;
    (behind <= entry.len()).then(|| entry.slice(behind..))
}

/// A position behind its length.
struct PlaceKey<'a>(&'a Position);

impl Display for PlaceKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = PositionKey(self.0);
        write!(f, "{}:{key}", key.len())
    }
}

/// The kind as it is shown.
fn kind(place: &StoreAddress) -> &str {
    place.kind.as_deref().unwrap_or("record")
}

/// The id as it is shown.
fn id(place: &StoreAddress) -> Cow<'_, [u8]> {
    match &place.id {
        Some(id) => Cow::Borrowed(id),
        None => Cow::Owned(place.position.to_string().into_bytes()),
    }
}
