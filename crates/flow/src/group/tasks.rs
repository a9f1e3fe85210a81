//! The tasks beside a lane whose groups are sharded: one sends, one keeps the files.
//!
//! ```text
//!   lane    takes in ─► closes ─► seals ─► reads seals back ─┐
//!   keeper                     name, file, row ◄─────────────┤   sweeps rows without records
//!   sender                                   stages, destination, `done`, the end in the log
//! ```
//! They share the index of the lane and nothing else. Whatever the sender waits for, a destination
//! that hangs or a table that is away, the lane goes on taking in and sealing, and the keeper
//! writes files: all lanes share the room of the intake, so a lane that waited would hold up the
//! other shards. A group is sent when its file is there, in the order of the seals. Replays of dead
//! letters are sent between groups (`replays.rs`).

use std::sync::Arc;

use tokio::sync::mpsc;

use super::clean::PendingCleanups;
use super::files::FileDesk;
use super::{Holding, sleep_until};
use crate::crash_notes::{keeper_slot, sender_slot};
use crate::deliver::Gate;
use crate::feed::ShutKeys;
use crate::lane::Lane;
use crate::work::Stop;

impl Holding {
    /// Groups are sent by a task of their own.
    pub(crate) fn sends_apart(&self) -> bool {
        self.plan.shard.is_some()
    }

    /// The same groups, for a task beside the lane.
    pub(crate) fn beside(&self) -> Holding {
        Holding {
            plan: self.plan.clone(),
            store: self.store.clone(),
            log: self.log.clone(),
            board: self.board.clone(),
            owner: self.owner.clone(),
            owned: Vec::new(),
            search: self.search.clone(),
            room: self.room.clone(),
            sent: PendingCleanups::default(),
            full: None,
            desk: FileDesk::new(),
        }
    }

    /// Everything was read that was there at the start, by all lanes.
    pub(super) fn may_work(&self) -> bool {
        self.board.index().caught_up && self.search.is_over()
    }
}

impl Lane {
    /// The task that sends for this lane.
    pub(crate) fn sender(&self) -> Lane {
        self.beside(sender_slot(self.number))
    }

    /// The task that keeps its files.
    pub(crate) fn keeper(&self) -> Lane {
        self.beside(keeper_slot(self.number))
    }

    fn beside(&self, slot: usize) -> Lane {
        // Nothing is sent to it: it looks at the index.
        let (_, inputs) = mpsc::unbounded_channel();
        Lane {
            number: self.number,
            slot,
            plan: self.plan.clone(),
            info: self.info.clone(),
            own: self.own.clone(),
            inputs,
            ledger: self.ledger.clone(),
            destinations: self.destinations.clone(),
            letters: self.letters.clone(),
            notes: self.notes.clone(),
            live: self.live.clone(),
            counters: self.counters.clone(),
            waits: self.waits.clone(),
            decisions: self.decisions.clone(),
            clock: self.clock.clone(),
            stopping: self.stopping.clone(),
            attempts: self.attempts.clone(),
            strays: self.strays.clone(),
            gives_way: false,
            shut: ShutKeys::default(),
        }
    }

    /// Sends what is sealed and written, until the lane takes nothing in any more.
    pub(crate) async fn run_sending(mut self, mut holding: Holding) -> Result<(), Stop> {
        loop {
            if self.is_over(&holding) {
                self.clean_last(&mut holding).await;
                return Ok(());
            }
            let shut = self.shut_gate();
            let is_held = holding.desk.is_held();
            let sent = !is_held && holding.may_work() && self.send_sealed(&mut holding).await?;
            if !is_held {
                // What could be sent now may have to be tried again yet.
                let is_idle = !sent && !self.has_to_send(&holding);
                self.files_go_on(&mut holding.desk, |shard| is_idle || shard.is_none());
            }
            let replayed = self.send_replays(&holding).await?;
            if sent || replayed {
                self.clean_some(&mut holding).await?;
                // There may be much more: others are let in between.
                tokio::task::yield_now().await;
                continue;
            }
            let retry = holding.desk.retry_at();
            let must_be_mended = shut.as_ref().is_some_and(|gate| gate.to_be_fixed().is_some());
            let tracked = must_be_mended && holding.plan.track.is_some();
            let look = holding.desk.look_at(tracked, self.plan.probe_every);
            let board = holding.board.clone();
            // Gates of shards that had a lane of their own once are looked at now and then.
            let others_wait = board.index().waits_beside(self.number);
            tokio::select! {
                biased;
                () = self.stopping.wait_for(|stopping| stopping) => {}
                () = board.closed.wait_for(|closed| closed) => {}
                () = board.to_send.notified() => {}
                () = ajar(shut.as_deref()), if shut.is_some() => {}
                () = tokio::time::sleep(self.plan.probe_every), if others_wait => {}
                () = sleep_until(retry), if retry.is_some() => {}
                () = sleep_until(look), if look.is_some() => self.look_for_retry(&mut holding).await,
                Some(lot) = holding.sent.next() => self.clean(&mut holding, lot).await?,
            }
        }
    }

    /// Keeps the files of this lane, until it takes nothing in any more.
    pub(crate) async fn run_files(mut self, mut holding: Holding) -> Result<(), Stop> {
        loop {
            if self.is_over(&holding) {
                return Ok(());
            }
            self.keep_files(&mut holding).await?;
            let makes_files = holding.plan.makes_files();
            let is_shut = self.shut_gate().is_some();
            holding.board.index().park(&holding.room, makes_files, is_shut);
            holding.board.to_send.notify_one();
            let wake = holding.files_wake();
            let board = holding.board.clone();
            tokio::select! {
                biased;
                () = self.stopping.wait_for(|stopping| stopping) => {}
                () = board.closed.wait_for(|closed| closed) => {}
                () = board.to_write.notified() => {}
                () = sleep_until(wake), if wake.is_some() => {}
            }
        }
    }

    fn has_to_send(&self, holding: &Holding) -> bool {
        let (index, makes_files) = (holding.board.index(), holding.plan.makes_files());
        self.next_group(&holding.desk, makes_files, &index).is_some()
    }

    fn is_over(&self, holding: &Holding) -> bool {
        self.stopping.get() || holding.board.closed.get()
    }

    /// The closed gate of the shard that is this lane's, if one is.
    pub(super) fn shut_gate(&self) -> Option<Arc<Gate>> {
        self.shut_gate_of(u32::try_from(self.number).ok()?)
    }

    /// The closed gate of a shard, if one is.
    pub(super) fn shut_gate_of(&self, shard: u32) -> Option<Arc<Gate>> {
        let delivers = self.plan.delivers.iter().zip(&*self.destinations);
        let mut of_shard = delivers.filter(|(deliver, _)| deliver.shard == Some(shard));
        of_shard.find_map(|(_, to)| to.gate.is_closed().then(|| to.gate.clone()))
    }
}

/// Waits until something may be sent through the gate again.
async fn ajar(gate: Option<&Gate>) {
    match gate {
        Some(gate) => gate.ajar().await,
        None => std::future::pending().await,
    }
}
