//! The compact layout: few keys, packed values, for a single server or a cluster.
//!
//! ```text
//! potok:{<pipeline>:<share>}:owner          nonce of the owner, number of its last write
//! potok:{<pipeline>:<share>}:groups         hash: group → `open` or `closed`
//! potok:{<pipeline>:<share>}:held:<group>   hash: position → packed, value
//! ```
//!
//! Packed is what `pack.rs` draws, a position is `offset (20 digits) log (16 hex digits) partition
//! (10 digits) topic`. Records are never changed, only added and removed. The braces keep a share
//! in one slot of a cluster; shares spread over it. No key has a time to live.
//!
//! Recovery: a share is emptied when it is taken, and put again from the log.

use potok_core::{Held, Owner, Place};

use super::chunks::runs;
use super::client::Args;
use super::pack::pack;
use super::store::{Found, position_key};

/// The key that names the owner of a share.
pub(super) fn owner_key(owner: &Owner) -> Vec<u8> {
    format!("{}owner", prefix(owner)).into_bytes()
}

fn prefix(owner: &Owner) -> String {
    format!("potok:{{{}:{}}}:", owner.pipeline, owner.share)
}

/// What the scripts are told besides the owner.
pub(super) fn begin(args: &mut Args, owner: &Owner) {
    args.push(prefix(owner));
}

pub(super) fn put(args: &mut Args, held: &[Held]) {
    for run in runs(held, |held| &held.place.group) {
        let Some(first) = run.first() else { continue };
        args.push(&first.place.group[..]);
        args.push(run.len().to_string());
        for Held { place, record, .. } in run {
            let mut packed = pack(record);
            packed.extend(record.value.as_deref().unwrap_or_default());
            args.push(position_key(&place.position));
            args.push(packed);
        }
    }
}

pub(super) fn load(args: &mut Args, places: &[Place]) {
    for place in places {
        args.push(&place.group[..]);
        args.push(position_key(&place.position));
    }
}

pub(super) fn clean(args: &mut Args, places: &[Place]) {
    for run in runs(places, |place| &place.group) {
        let Some(first) = run.first() else { continue };
        args.push(&first.group[..]);
        args.push(run.len().to_string());
        for place in run {
            args.push(position_key(&place.position));
        }
    }
}

pub(super) fn found(answers: Vec<Option<Vec<u8>>>) -> Vec<Found> {
    let one = |packed: Option<Vec<u8>>| Found { packed: packed.map(Into::into), value: None };
    answers.into_iter().map(one).collect()
}
