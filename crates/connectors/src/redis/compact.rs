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

use std::fmt::{self, Display};

use potok_core::{Held, Owner, Place};
use redis::Value;

use super::chunks::runs;
use super::client::Call;
use super::pack::pack;
use super::store::{Found, PositionKey, text};

/// The key that names the owner of a share.
pub(super) fn owner_key(owner: &Owner) -> String {
    format!("{}owner", Prefix(owner))
}

/// What the keys of a share begin with.
struct Prefix<'a>(&'a Owner);

impl Display for Prefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "potok:{{{}:{}}}:", self.0.pipeline, self.0.share)
    }
}

/// What the scripts are told besides the owner.
pub(super) fn begin(call: &mut Call<'_>, owner: &Owner) {
    call.show(Prefix(owner));
}

/// The groups come first: all of them are known before anything is held.
pub(super) fn put(call: &mut Call<'_>, held: &[&Held]) {
    let runs = || runs(held, |held| &held.place.group);
    call.show(runs().count());
    for run in runs() {
        let Some(first) = run.first() else { continue };
        call.push(&first.place.group);
        call.show(run.len());
    }
    let mut packed = Vec::new();
    for Held { place, record, .. } in held {
        packed.clear();
        pack(&mut packed, record);
        call.show(PositionKey(&place.position));
        call.join(&packed, record.value.as_deref().unwrap_or_default());
    }
}

pub(super) fn load(call: &mut Call<'_>, places: &[Place]) {
    positions(call, runs(places, |place| &place.group), |place| place);
}

pub(super) fn clean(call: &mut Call<'_>, places: &[&Place]) {
    positions(call, runs(places, |place| &place.group), |place| place);
}

/// Of each group its name, the number of records and their positions.
fn positions<'a, T: 'a>(
    call: &mut Call<'_>,
    runs: impl Iterator<Item = &'a [T]>,
    place: impl Fn(&T) -> &Place,
) {
    for run in runs {
        let Some(first) = run.first() else { continue };
        call.push(&place(first).group);
        call.show(run.len());
        for one in run {
            call.show(PositionKey(&place(one).position));
        }
    }
}

pub(super) fn found(answers: impl Iterator<Item = Value>) -> Vec<Found> {
    answers.map(|packed| Found { packed: text(packed), value: None }).collect()
}
