//! A stage per group may make one message of a whole group.
//!
//! One member leads: the message goes on as its event. The others have gone into it and end as it
//! ends (`lane.rs`), each with a dead letter of its own where that is how. The delivery id is made
//! of the positions of all members, so the same group has the same id whenever it is sent, and no
//! member has it for itself: a dead letter that is replayed alone keeps the id of its own record.

use potok_core::{CloseReason, GroupInfo, StageResult};
use sha2::{Digest, Sha256};

use crate::lane::Item;
use crate::plan::Per;

/// False where events went into one that is not there, or that is none of a group's.
pub(super) fn is_whole(per: Per, staged: &[StageResult]) -> bool {
    let count = |is: fn(&StageResult) -> bool| staged.iter().filter(|staged| is(staged)).count();
    let leaders = count(|staged| matches!(staged, StageResult::Merged(_)));
    let merged = count(|staged| matches!(staged, StageResult::Into));
    match per {
        Per::Event => leaders + merged == 0,
        Per::Group => leaders == 1 || leaders + merged == 0,
    }
}

/// Gives a merged event the key of its group and a position of its own.
pub(super) fn name(group: &GroupInfo, items: &[Item], staged: &mut [StageResult]) {
    let mut hash = Sha256::new_with_prefix(b"merged");
    for event in items.iter().filter_map(|item| item.event.as_ref()) {
        hash.update(event.position.to_string());
        hash.update([0]);
    }
    let [a, b, c, d, e, f, g, h, ..] = <[u8; 32]>::from(hash.finalize());
    for event in staged {
        let StageResult::Merged(event) = event else { continue };
        event.key = Some(group.key.clone());
        event.source = event.value.clone();
        event.tombstone = false;
        if group.reason != CloseReason::Replayed {
            event.position.log = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        }
    }
}

/// Says who leads each member of a group that was merged; `first` is where `items` begin in their
/// cycle. Whoever was replaced by a member ends with the leader too.
pub(crate) fn lead(items: &mut [Item], first: usize) {
    if !items.iter().any(|item| item.merged) {
        return;
    }
    let leads = |item: &Item| item.leads;
    let Some(leader) = items.iter().position(leads) else { return };
    let merged: Vec<bool> = items.iter().map(|item| item.merged).collect();
    for item in items {
        let by = item.superseded_by.and_then(|by| merged.get(by.checked_sub(first)?));
        if item.merged || by == Some(&true) {
            item.superseded_by = Some(first + leader);
        }
    }
}
