//! Stages that work per group: once for each sealed group, its members in order.
//!
//! What the process may die of here is a batch, not a record, so the crash notes name its seal: a
//! batch in which the process died three times becomes dead letters as a whole.

use potok_core::Position;

use crate::crash_notes::{Range, Suspicion};
use crate::lane::{Item, Lane, crashes};
use crate::work::Stop;

/// What is sent together.
pub(crate) struct GroupItems<'a> {
    /// The key of its group.
    pub group: &'a [u8],
    /// Where its seal lies.
    pub seal: Position,
    /// How many of the items are its members.
    pub members: usize,
}

impl Lane {
    /// Takes the members of sealed groups, which lie in `items` one batch behind the other,
    /// through the first stage that works per group and all behind it.
    pub(crate) async fn process_batches<'a>(
        &mut self,
        mut items: &mut [Item],
        batches: impl Iterator<Item = GroupItems<'a>>,
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
                    self.run_stages(stages.clone(), members, batch.group, note).await?;
                }
            }
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
            let group = item.group.clone();
            self.run_stages(stages.clone(), std::slice::from_mut(item), &group, note).await?;
        }
        Ok(())
    }
}
