//! What may happen to the store of held records.

use potok_core::{Owner, Partition, Position};

use super::Promise;
use crate::sim::pipeline::{GROUP, HELD_GROUP};
use crate::sim::store::Contents;
use crate::sim::world::State;

/// Looks at what one call has changed.
pub(in crate::sim) fn check_store(
    w: &mut State,
    owner: &Owner,
    before: &Contents,
    after: &Contents,
) {
    if before == after {
        return;
    }
    if before.owner != Some(owner.nonce) {
        let what = format!("share {} was changed by who had it before", owner.share);
        w.violated(Promise::OwnersWrite, what);
    }
    for (_, removed) in before.bodies.difference(&after.bodies) {
        if !is_noted(w, owner, removed) {
            w.violated(Promise::CleanedWhenEnded, format!("{removed} has not ended"));
        }
    }
}

/// True for a record that the log knows to have ended, or that is gone with its topic. Where the
/// log is shared, an owner that has lost its partition cleans up as long as nobody has come to the
/// store who has it now; that one will put everything there anew.
fn is_noted(w: &State, owner: &Owner, at: &Position) -> bool {
    let partition = Partition { topic: at.topic.clone(), index: at.partition };
    let source = w.expect.as_ref().map_or(GROUP, |expect| expect.scenario.group_of(&at.topic));
    let group = if w.shared { HELD_GROUP } else { source };
    let progress = w.disk.progress(group, &partition).unwrap_or_default();
    let has_ended = at.offset < progress.position || progress.ended.contains(at.offset);
    let ignored = w.observed.ignored.get(&owner.nonce);
    let ignored = w.shared && ignored.is_some_and(|ranges| ranges.contains(at.offset));
    let had_ended = w.observed.forgotten.contains(at);
    has_ended || had_ended || ignored || w.disk.record(at).is_none()
}
