//! The simulated destination: a table that survives crashes, and the ways it can fail.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::{Batch, DeliveryId, Fault, Message, Outcome, Reason, Receipt, Sink, SinkLimits};
use tokio::sync::oneshot;

use super::promises;
use super::trouble::{Recovery, Trouble};
use super::workload::RecordKind;
use super::world::{State, World};

/// How often in a row chance fails one message: where nobody else has trouble, a third time could
/// make it a dead letter.
const CHANCE_MAX: u32 = 2;

/// How calls of a destination succeed and fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A call is a transaction: a failing message fails all of them.
    Whole,
    /// Messages are written one after another: a failing one leaves those before it there.
    Prefix,
    /// Each message has an answer of its own.
    PerMessage,
}

/// What kind of destination this is.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// How calls succeed and fail.
    pub style: Style,
    /// Repeats of a name are dropped.
    pub deduplicates: bool,
    /// A refused record fails its whole call instead of being named in the receipt.
    pub blunt: bool,
    /// Messages per call.
    pub batch_records_max: usize,
}

impl Default for Manner {
    fn default() -> Self {
        Manner { style: Style::Whole, deduplicates: true, blunt: false, batch_records_max: 1_000 }
    }
}

/// A stretch of simulated time in which a destination, or the log, is not itself.
#[derive(Clone, Copy, Debug)]
pub struct Spell {
    /// First millisecond.
    pub from: u64,
    /// Behind the last millisecond.
    pub to: u64,
    /// What is wrong: one of the troubles that last.
    pub trouble: Trouble,
}

impl Spell {
    /// True at that millisecond.
    pub fn is_at(&self, now: u64) -> bool {
        (self.from..self.to).contains(&now)
    }
}

/// What a destination holds.
#[derive(Debug, Default)]
pub struct Table {
    /// Everything that was written, in order of arrival.
    pub rows: Vec<Message>,
    /// The first row of each name.
    pub by_name: BTreeMap<DeliveryId, usize>,
    /// The row of each business id.
    pub by_once: BTreeMap<Bytes, usize>,
    /// When it is not itself.
    pub spells: Vec<Spell>,
    /// Somebody mended what refused [`RecordKind::Late`] records.
    pub mended: bool,
    /// Calls that made an ending unsure: the answer was lost or only a part was written.
    pub unsure: u64,
    /// How often chance has failed a healthy message.
    failed: BTreeMap<DeliveryId, u32>,
    prepared: bool,
}

impl Table {
    /// Writes one message unless its name or its business id is there already.
    fn write(&mut self, message: &Message, deduplicates: bool) -> Outcome {
        if deduplicates && self.by_name.contains_key(&message.id) {
            return Outcome::Duplicate;
        }
        if let Some(once) = message.once.as_ref().filter(|_| deduplicates) {
            if let Some(row) = self.by_once.get(once).and_then(|&at| self.rows.get(at)) {
                if row.source == message.source {
                    return Outcome::Duplicate;
                }
                let what = format!("{} and {} have one id", row.id, message.id);
                return Outcome::Failed(Fault::set_aside(Reason::Conflict, what));
            }
            self.by_once.insert(once.clone(), self.rows.len());
        }
        self.by_name.entry(message.id.clone()).or_insert(self.rows.len());
        self.rows.push(message.clone());
        Outcome::Delivered
    }

    /// Fails these healthy messages if chance has not done so too often.
    fn may_fail(&mut self, names: &[DeliveryId]) -> bool {
        let failed = |name| self.failed.get(name).copied().unwrap_or_default();
        if names.iter().any(|name| failed(name) >= CHANCE_MAX) {
            return false;
        }
        for name in names {
            *self.failed.entry(name.clone()).or_default() += 1;
        }
        true
    }
}

/// One life's handle on a destination.
#[derive(Clone)]
pub struct SimSink {
    world: Arc<World>,
    table: usize,
    manner: Manner,
    /// Whose handle this is.
    process: usize,
}

impl SimSink {
    /// The destination with that number; its table is made on first use.
    pub fn open(world: Arc<World>, table: usize, manner: Manner) -> Arc<SimSink> {
        Self::of_process(world, table, manner, 0)
    }

    /// The same for one of the processes that share a log.
    pub fn of_process(
        world: Arc<World>,
        table: usize,
        manner: Manner,
        process: usize,
    ) -> Arc<SimSink> {
        world.with(|w| {
            while w.tables.len() <= table {
                w.tables.push(Table::default());
            }
        });
        Arc::new(SimSink { world, table, manner, process })
    }

    /// Looks at or changes the table together with the world around it.
    fn with<T>(&self, work: impl FnOnce(&mut State, &mut Table) -> T) -> Option<T> {
        self.world.with(|w| {
            let mut table = std::mem::take(w.tables.get_mut(self.table)?);
            let result = work(w, &mut table);
            *w.tables.get_mut(self.table)? = table;
            Some(result)
        })
    }

    /// The spell the destination is under now.
    fn spell(&self) -> Option<Trouble> {
        let spell = self.with(|w, table| {
            let now = w.millis();
            let spell = table.spells.iter().find(|spell| spell.is_at(now));
            let trouble = spell.filter(|_| !w.calm).map(|spell| spell.trouble)?;
            w.tally.hit(trouble);
            Some(trouble)
        });
        spell.flatten()
    }

    /// How long the next call has no answer, in milliseconds: before it is carried out and after that.
    fn hangs(&self) -> (u64, u64) {
        self.world.with(|w| match w.strikes(Trouble::SinkHangs, 40) {
            false => (0, 0),
            true => {
                w.note("the destination hangs");
                let millis = w.chance.between(5_000, 100_000);
                if w.chance.one_in(2) { (millis, 0) } else { (0, millis) }
            }
        })
    }

    async fn hang(&self, millis: u64) {
        if millis > 0 {
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
    }

    /// Carries a call out, or fails it.
    fn attempt(&self, batch: &Batch) -> Result<Receipt, Fault> {
        match self.spell() {
            Some(Trouble::SinkAway) => return Err(Fault::wait("simulated outage")),
            Some(Trouble::SinkReadOnly) => return Err(Fault::wait("simulated outage: read-only")),
            Some(Trouble::SinkRetriesAll) => return Err(Fault::retry("simulated 500")),
            Some(Trouble::SinkNeedsFix) => return Err(Fault::fix("simulated: the table is gone")),
            _ => {}
        }
        let names: Vec<DeliveryId> = batch.messages.iter().map(|m| m.id.clone()).collect();
        let storm = |w: &mut State, table: &mut Table| {
            w.strikes(Trouble::SinkStorm, 8) && table.may_fail(&names)
        };
        if self.with(storm).unwrap_or_default() {
            return Err(Fault::retry("simulated: this attempt failed"));
        }
        let result = self.with(|w, table| write(w, table, batch, self.manner));
        result.unwrap_or_else(|| Err(Fault::fix("there is no such table")))
    }
}

fn is_refused(kind: RecordKind, mended: bool) -> bool {
    kind == RecordKind::Refused || (kind == RecordKind::Late && !mended)
}

fn write(
    w: &mut State,
    table: &mut Table,
    batch: &Batch,
    manner: Manner,
) -> Result<Receipt, Fault> {
    let kinds: Vec<RecordKind> =
        batch.messages.iter().map(|m| RecordKind::of(Some(&m.source))).collect();
    let poisoned = kinds.iter().position(|kind| *kind == RecordKind::Poison);
    let refused = kinds.iter().position(|kind| is_refused(*kind, table.mended));
    let refusal = || Fault::set_aside(Reason::Refused, "simulated refusal");
    if poisoned.is_some() {
        w.tally.hit(Trouble::Poison);
        // The lane tries it again and again, or waits for somebody to decide.
        let now = w.millis();
        w.hindrances.strikes(Trouble::Poison, now);
    }
    if refused.is_some() {
        w.tally.hit(Trouble::Refused);
    }
    let fails_whole = match manner.style {
        Style::PerMessage => None,
        _ if poisoned.is_some() => poisoned.map(|at| (at, Fault::retry("simulated poison"))),
        _ if manner.blunt => refused.map(|at| (at, refusal())),
        _ => None,
    };
    if let Some((at, fault)) = fails_whole {
        if manner.style == Style::Prefix {
            table.unsure += 1;
            for (message, kind) in batch.messages.iter().zip(&kinds).take(at) {
                if !is_refused(*kind, table.mended) {
                    table.write(message, manner.deduplicates);
                }
            }
        }
        return Err(fault);
    }
    let mut receipt = Receipt::delivered();
    for (at, (message, kind)) in batch.messages.iter().zip(kinds).enumerate() {
        let per_message = manner.style == Style::PerMessage;
        let outcome = if is_refused(kind, table.mended) {
            Outcome::Failed(refusal())
        } else if per_message && kind == RecordKind::Poison {
            Outcome::Failed(Fault::retry("simulated poison"))
        } else if per_message
            && w.strikes(Trouble::SinkPartial, 10)
            && table.may_fail(std::slice::from_ref(&message.id))
        {
            Outcome::Failed(Fault::retry("simulated: this message failed"))
        } else {
            table.write(message, manner.deduplicates)
        };
        if matches!(outcome, Outcome::Duplicate) {
            w.tally.recovered(Recovery::Duplicate);
        }
        if !matches!(outcome, Outcome::Delivered) {
            receipt.set(at, outcome);
        }
    }
    Ok(receipt)
}

/// The first and last names of a call, for the notes.
fn summary(batch: &Batch) -> String {
    let names: Vec<String> = batch
        .messages
        .iter()
        .map(|m| format!("{}/{}", m.id.position.partition, m.id.position.offset))
        .collect();
    names.join(" ")
}

#[async_trait]
impl Sink for SimSink {
    fn limits(&self) -> SinkLimits {
        SinkLimits {
            batch_records_max: self.manner.batch_records_max,
            per_message: self.manner.style == Style::PerMessage,
            ..SinkLimits::default()
        }
    }

    async fn prepare(&self) -> Result<(), Fault> {
        self.world.awake(self.process).await;
        self.world.latency(Trouble::SinkSlow).await;
        self.world.step("the destination, preparing").await;
        if matches!(self.spell(), Some(Trouble::SinkAway)) {
            return Err(Fault::wait("simulated outage"));
        }
        let fails = self.with(|w, table| !table.prepared && w.strikes(Trouble::PrepareFails, 2));
        if fails.unwrap_or_default() {
            return Err(Fault::wait("simulated outage while preparing"));
        }
        self.with(|_, table| table.prepared = true);
        Ok(())
    }

    async fn probe(&self) -> Result<(), Fault> {
        self.world.awake(self.process).await;
        self.world.latency(Trouble::SinkSlow).await;
        let spell = self.spell();
        self.world.with(|w| w.note(format_args!("probe of {}: {spell:?}", self.table)));
        match spell {
            Some(Trouble::SinkAway) => Err(Fault::wait("simulated outage")),
            Some(Trouble::SinkReadOnly) => Err(Fault::wait("simulated outage: read-only")),
            _ => Ok(()),
        }
    }

    /// The call runs to its end even when its caller goes away; only the death of the process
    /// stops it.
    #[allow(clippy::panic, reason = "a destination's code may panic; that is what is simulated")]
    async fn deliver(&self, batch: &Batch) -> Result<Receipt, Fault> {
        self.world.awake(self.process).await;
        if self.world.with(|w| w.strikes(Trouble::SinkPanics, 40)) {
            self.world.with(|w| w.note("the destination's code panics"));
            panic!("{}", super::PANIC);
        }
        let (before, after) = self.hangs();
        let (answer, answered) = oneshot::channel();
        let (called, sink, batch) = (batch, self.clone(), batch.clone());
        tokio::spawn(async move {
            sink.world.latency(Trouble::SinkSlow).await;
            sink.hang(before).await;
            sink.world.step("the destination, before it writes").await;
            let mut result = sink.attempt(&batch);
            sink.world.with(|w| {
                let said = match &result {
                    Ok(receipt) => {
                        let outcomes = receipt.clone().outcomes(batch.messages.len());
                        let others = outcomes.filter(|o| !matches!(o, Outcome::Delivered)).count();
                        format!("ok, {others} others")
                    }
                    Err(fault) => fault.to_string(),
                };
                w.note(format_args!("destination {} [{}]: {said}", sink.table, summary(&batch)));
            });
            sink.world.step("the destination, after it wrote").await;
            sink.hang(after).await;
            sink.world.latency(Trouble::SinkSlow).await;
            if result.is_ok() {
                let names: Vec<DeliveryId> = batch.messages.iter().map(|m| m.id.clone()).collect();
                let lost = sink.with(|w, table| {
                    let lost = w.strikes(Trouble::SinkReplyLost, 12) && table.may_fail(&names);
                    table.unsure += u64::from(lost);
                    lost
                });
                if lost.unwrap_or_default() {
                    sink.world.with(|w| w.note("the answer of the destination is lost"));
                    result = Err(Fault::retry("simulated: the answer was lost"));
                }
            }
            let _ = answer.send(result);
        });
        let answered = answered.await;
        self.world.awake(self.process).await;
        match answered {
            Ok(result) => {
                if let Ok(receipt) = &result {
                    let outcomes = receipt.clone().outcomes(called.messages.len());
                    let outcomes = called.messages.iter().zip(outcomes);
                    self.world.with(|w| promises::observe_receipt(w, self.process, outcomes));
                }
                result
            }
            // The task went down with the process.
            Err(_) => std::future::pending().await,
        }
    }
}
