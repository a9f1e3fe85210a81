//! Stages that work per group: once for each sealed group, its members in order.
//!
//! Here the process may die of a whole group, not of a record, so the crash notes name its seal: a
//! group in which the process died three times becomes dead letters as a whole.

use potok_core::{CloseReason, GroupInfo, Position, SourceBatch};

use super::lead;
use crate::crash_notes::{Range, Suspicion};
use crate::lane::{Item, Lane, crashes};
use crate::work::Stop;

/// The records of a group that are sent together.
pub(crate) struct GroupItems {
    /// The facts in its seal.
    pub group: GroupInfo,
    /// Where its seal lies.
    pub seal: Position,
    /// How many of the items are its members.
    pub members: usize,
}

impl GroupItems {
    /// Of a batch that its feed has closed as a group.
    pub fn whole(batch: &SourceBatch, members: usize) -> Option<Self> {
        let whole = batch.whole()?;
        let group = GroupInfo {
            key: whole.key.clone(),
            reason: CloseReason::of(&whole.reason),
            opened: whole.opened,
            closed: whole.closed,
            name: format!("{:016x}.0", whole.generation),
        };
        let (log, topic) = (whole.generation, batch.partition.topic.clone());
        let seal = Position { log, topic, partition: batch.partition.index, offset: 0 };
        Some(GroupItems { group, seal, members })
    }
}

impl Lane {
    /// Takes the members of sealed groups, which lie in `items` one batch behind the other,
    /// through the first stage that works per group and all behind it. `first` is where they begin in
    /// their cycle.
    pub(crate) async fn process_batches(
        &mut self,
        mut items: &mut [Item],
        mut first: usize,
        batches: impl Iterator<Item = GroupItems>,
    ) -> Result<(), Stop> {
        let stages = self.plan.first_per_group()..self.plan.stages.len();
        if stages.is_empty() {
            return Ok(());
        }
        for batch in batches {
            let Some((members, rest)) = items.split_at_mut_checked(batch.members) else { break };
            items = rest;
            match self.notes.suspicion(&batch.seal) {
                Suspicion::Guilty(deaths) => {
                    let alive = members.iter_mut().filter(|item| item.event.is_some());
                    alive.for_each(|item| item.set_aside(crashes(deaths)));
                }
                Suspicion::None | Suspicion::Alone => {
                    let note = Range::of_record(&batch.seal);
                    self.run_stages(stages.clone(), members, Some(&batch.group), note).await?;
                }
            }
            lead(members, first);
            first += batch.members;
        }
        Ok(())
    }

    /// Takes replayed records through all stages. Their groups have been sent, so for a stage that
    /// works per group each is a batch of its own.
    pub(crate) async fn process_alone(
        &mut self,
        items: &mut [Item],
        note: Range,
    ) -> Result<(), Stop> {
        self.process(items, note).await?;
        let stages = self.plan.first_per_group()..self.plan.stages.len();
        for item in items {
            let name = item.origin.to_string();
            let group = GroupInfo::replayed(item.group.clone(), item.time(), name);
            self.run_stages(stages.clone(), std::slice::from_mut(item), Some(&group), note).await?;
        }
        Ok(())
    }
}
