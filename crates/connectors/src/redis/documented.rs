//! The documented layout: names that other programs read.
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
//! potok:<pipeline>:held:<share>:<group>   hash: position → `D` packed, or `C` packed value
//! potok:<pipeline>:ids:<share>:<group>    hash: length of kind, `:`, kind, id → position shown
//! ```
//!
//! A record without a kind is a `record`; one without an id has its position as id. Packed is what
//! `pack.rs` draws, a position is `offset (20 digits) log (16 hex digits) partition (10 digits)
//! topic`. No key has a time to live.
//!
//! Only keys under `potok:` decide anything. The value of a `D` lies in its documented key and is
//! believed only where the digest fits; a `C` has its value with it: it was superseded, or its name
//! is not its alone. That is so where group or id hold a `:` (`a:b` + `c` and `a` + `b:c` are the
//! same key), and where somebody else had written the key before. What does not fit is `None`, and
//! putting it again makes it a `C`.
//!
//! Recovery: a share is emptied when it is taken. What the owner before had not cleaned is read
//! again from the log and put again, or has ended and would stay for ever.
//!
//! Limits: not for a cluster, as the documented keys lie in different slots. One generation of a
//! group at a time is shown; bodies of two are kept apart by position.

use potok_core::{Held, Owner, Place};

use super::chunks::runs;
use super::client::Args;
use super::pack::pack;
use super::store::{Found, position_key};

/// The key that names the owner of a share.
pub(super) fn owner_key(owner: &Owner) -> Vec<u8> {
    format!("potok:{}:owner:{}", owner.pipeline, owner.share).into_bytes()
}

/// What the scripts are told besides the owner.
pub(super) fn begin(args: &mut Args, owner: &Owner) {
    args.push(format!("potok:{}:", owner.pipeline));
    args.push(owner.share.to_string());
}

pub(super) fn put(args: &mut Args, held: &[Held]) {
    for run in runs(held, |held| &held.place.group) {
        let Some(first) = run.first() else { continue };
        args.push(&first.place.group[..]);
        args.push(first.opened.0.to_string());
        args.push(run.len().to_string());
        for Held { place, record, .. } in run {
            let (kind, id) = name(place);
            let is_ambiguous = place.group.contains(&b':') || id.contains(&b':');
            args.push(position_key(&place.position));
            args.push(kind);
            args.push(id);
            args.push(if is_ambiguous { "1" } else { "0" });
            args.push(pack(record));
            args.push(record.value.as_deref().unwrap_or_default());
        }
    }
}

pub(super) fn load(args: &mut Args, places: &[Place]) {
    for place in places {
        let (kind, id) = name(place);
        args.push(&place.group[..]);
        args.push(position_key(&place.position));
        args.push(kind);
        args.push(id);
    }
}

pub(super) fn clean(args: &mut Args, places: &[Place]) {
    for run in runs(places, |place| &place.group) {
        let Some(first) = run.first() else { continue };
        args.push(&first.group[..]);
        args.push(run.len().to_string());
        for place in run {
            let (kind, id) = name(place);
            args.push(position_key(&place.position));
            args.push(kind);
            args.push(id);
        }
    }
}

/// Entries come in pairs: what is held, and the value of the documented key.
pub(super) fn found(answers: Vec<Option<Vec<u8>>>) -> Vec<Found> {
    let mut answers = answers.into_iter();
    let mut found = Vec::new();
    while let (Some(entry), Some(value)) = (answers.next(), answers.next()) {
        let entry = entry.map(bytes::Bytes::from);
        found.push(match entry.as_ref().and_then(|entry| entry.first()) {
            Some(b'D') => {
                Found { packed: entry.map(|e| e.slice(1..)), value: value.map(Into::into) }
            }
            Some(b'C') => Found { packed: entry.map(|e| e.slice(1..)), value: None },
            _ => Found { packed: None, value: None },
        });
    }
    found
}

/// Kind and id as they are shown.
fn name(place: &Place) -> (&str, Vec<u8>) {
    let id = match &place.id {
        Some(id) => id.to_vec(),
        None => place.position.to_string().into_bytes(),
    };
    (place.kind.as_deref().unwrap_or("record"), id)
}
