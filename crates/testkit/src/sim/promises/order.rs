//! Records of a group leave as they came, whatever partitions they came from.

use std::collections::BTreeMap;

use potok_core::{Position, Record};

use super::{Expectation, ever, ordered_with};
use crate::sim::world::State;

/// When a record came.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    at: Position,
    /// The order of the whole log; where records have none, their time.
    came: i64,
}

impl Arrival {
    /// Of the record that lies there, or did.
    pub fn of(w: &State, at: &Position) -> Option<Self> {
        let came = match w.has_one_order() {
            true => w.disk.place(at)? as i64,
            false => ever(w, at)?.time.0,
        };
        Some(Arrival { at: at.clone(), came })
    }

    /// Records of different partitions that came at the same time have no order between them.
    pub fn came_before(&self, other: &Arrival) -> bool {
        let lies = |arrived: &Arrival| {
            let Position { log, topic, partition, .. } = arrived.at.clone();
            (log, topic, partition)
        };
        match lies(self) == lies(other) {
            true => self.at.offset < other.at.offset,
            false => self.came < other.came,
        }
    }
}

/// Follows what leaves, group by group.
pub(super) struct ByGroup {
    /// The seal that was the first to name a record.
    sealed: BTreeMap<Position, usize>,
    /// The last arrival among what has left of a seal.
    last: BTreeMap<(usize, u32), Arrival>,
    /// A log whose clock jumps says nothing of different partitions.
    blind: bool,
}

impl ByGroup {
    pub fn new(w: &State, expect: &Expectation) -> Self {
        let mut sealed = BTreeMap::new();
        for (number, members) in w.observed.seals.iter().enumerate() {
            for member in members {
                sealed.entry(member.clone()).or_insert(number);
            }
        }
        let blind = (w.shared && expect.scenario.has_jumps_of_log())
            || (w.read_apart && expect.scenario.has_jumps());
        ByGroup { sealed, last: BTreeMap::new(), blind }
    }

    /// Takes what left next; says behind which later arrival of its group. `lane` tells apart what
    /// has no order.
    pub fn leaves(
        &mut self,
        w: &State,
        expect: &Expectation,
        at: &Position,
        record: &Record,
        lane: u32,
    ) -> Option<Position> {
        if self.blind || ordered_with(expect, at, record).is_none() {
            return None;
        }
        let seal = *self.sealed.get(at)?;
        let now = Arrival::of(w, at)?;
        let last = self.last.entry((seal, lane)).or_insert_with(|| now.clone());
        if now.came_before(last) {
            return Some(last.at.clone());
        }
        *last = now;
        None
    }
}
