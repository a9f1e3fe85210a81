//! The feed: rows of the table as records, and what becomes of them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::trouble::Bug;
use potok_core::{
    Assignment, Attempts, Backlog, Fault, Feed, FeedAbilities, FeedFacts, FeedLetters, Log, Move,
    OpenFeed, OutboxControl, Partition, PartitionEnd, PipelineInfo, RangeSet, Record, Source,
    SourceBatch, SourceEvent,
};
use potok_expr::json::Parser;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};
use tracing::Instrument;

use super::batch_size::BatchSize;
use super::flight::{Flight, RowId, RowInFlight, Verdict};
use super::keys::{RowKeys, position};
use super::relay::{MARK_MAX, PURGE_MAX, PUT_OFF_MAX, Relay};
use super::statements::ReadLimits;
use super::table::{FailedRow, OutboxRow, OutboxTable, record};
use super::tenure::{Lease, LeaseKeeper, Tenure, need, word};
use super::{Outbox, RelayOptions, SessionPurpose};

/// Rows that one read brings at most.
const READ: ReadLimits = ReadLimits { rows: 2_000, bytes: 4 << 20 };
/// Rows of the first read: how large they are is not known then.
const READ_FIRST: usize = 100;
/// Rows that are out at most; a longer list of ids would make reads slow.
const OUT_MAX: usize = 8_000;
/// Rows among them that failed before: others have room, however many keys fail.
const HEADS_OUT_MAX: usize = 2_000;
/// The shortest and the longest pause between two reads of a table where nothing waits.
const POLL: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// The longest where a trigger tells of new rows.
const POLL_TOLD: Duration = Duration::from_secs(1);
/// How often heads are compared with the table.
const SWEEP_EVERY: Duration = Duration::from_secs(2);
/// How often locked rows are tried again.
const MARK_EVERY: Duration = Duration::from_millis(500);
/// How often it is looked whether an index leads to the rows that wait.
const INDEX_EVERY: Duration = Duration::from_secs(30);
/// Rows whose keys are found in one call.
const KEYS_MAX: usize = 500;
/// Rows named behind one that failed, in one call: others want the table too.
const BEHIND_MAX: usize = 250;

#[async_trait]
impl Feed for Outbox {
    fn abilities(&self) -> FeedAbilities {
        let attempts = Attempts {
            limit: self.settings.attempts,
            first: self.settings.first,
            max: self.settings.max,
        };
        FeedAbilities { puts_off: Some(attempts), comes_whole: false }
    }

    async fn open(&self, info: &PipelineInfo, _log: Arc<dyn Log>) -> Result<OpenFeed, Fault> {
        let shape = Arc::new(self.prepare().await?);
        let table = |purpose| OutboxTable { shape: shape.clone(), session: self.session(purpose) };
        let (told, tenure) = watch::channel(Tenure::default());
        let (need, needed) = need();
        let given_up = Arc::new(AtomicU64::new(0));
        let size = BatchSize::up_to;
        let keeper = LeaseKeeper {
            table: table(SessionPurpose::Lease),
            owner: self.owner.clone(),
            pipeline: info.pipeline.clone(),
            label: self.label.clone(),
            config: self.settings.config.clone(),
            lease: self.settings.lease,
            told,
            needed,
            given_up: given_up.clone(),
        };
        let keeper = tokio::spawn(keeper.run().in_current_span());
        *self.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(keeper);
        let relay = Arc::new(Relay {
            label: self.label.clone(),
            notes: table(SessionPurpose::Note),
            tenure,
            flight: Mutex::default(),
            refused: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            wake: Notify::new(),
            max_wait: self.settings.max,
            counters: self.counters.clone(),
            marks: size(MARK_MAX),
            put_offs: size(PUT_OFF_MAX),
            purges: size(PURGE_MAX),
            given_up: given_up.clone(),
            has_index: AtomicBool::new(shape.has_index),
            _need: need,
        });
        tokio::spawn(
            look_for_index(Arc::downgrade(&relay), table(SessionPurpose::Look)).in_current_span(),
        );
        self.counters.opened(Arc::downgrade(&relay));
        self.spawn_listener(&relay, &shape);
        if let Some(age) = self.settings.keep_processed {
            let (relay, table) = (Arc::downgrade(&relay), table(SessionPurpose::Purge));
            let purging = async move {
                while let Some(relay) = relay.upgrade() {
                    let pause = relay.purge(&table, age).await;
                    drop(relay);
                    tokio::time::sleep(pause).await;
                }
            };
            tokio::spawn(purging.in_current_span());
        }
        let source = OutboxSource::new(table(SessionPurpose::Read), &relay, &self.settings);
        Ok(OpenFeed { source: Box::new(source), progress: relay })
    }

    async fn closed(&self) {
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeper) = keeper {
            // One that panicked holds nothing.
            let _ = keeper.await;
        }
    }

    async fn backlog(&self) -> Result<Backlog, Fault> {
        let shape = Arc::new(self.look().await?);
        OutboxTable { shape, session: self.session(SessionPurpose::Look) }.backlog().await
    }

    async fn check(&self) -> Result<Vec<String>, Fault> {
        self.doubts().await
    }

    fn letters(&self) -> Option<&dyn FeedLetters> {
        Some(self)
    }

    fn outbox(&self) -> Option<&dyn OutboxControl> {
        Some(self)
    }
}

/// Looks from time to time, however busy the relay is, whether it must spare the server.
async fn look_for_index(relay: Weak<Relay>, table: OutboxTable) {
    loop {
        tokio::time::sleep(INDEX_EVERY).await;
        let Some(relay) = relay.upgrade() else { return };
        // Where that cannot be said, it is asked again.
        if relay.held().is_some()
            && let Ok(has_index) = table.has_index().await
        {
            relay.found_index(has_index);
        }
    }
}

/// A question that failed is asked again; the run goes on, and with it the lease.
fn waiting(fault: Fault) -> Fault {
    match fault.next {
        Move::Fix => fault,
        _ => Fault { next: Move::Wait, ..fault },
    }
}

/// Waits until the keeper says that this lease is lost.
async fn lease_is_gone(mut tenure: watch::Receiver<Tenure>, token: u64) {
    let is_gone = |tenure: &Tenure| tenure.held.is_none_or(|held| held.token != token);
    if tenure.wait_for(is_gone).await.is_err() {
        // Nobody is there to say it.
        std::future::pending().await
    }
}

struct OutboxSource {
    table: OutboxTable,
    tenure: watch::Receiver<Tenure>,
    relay: Arc<Relay>,
    key: RowKeys,
    partition: Partition,
    /// What the settings come down to.
    config: String,
    /// The tenure under which rows are handed out.
    held: Option<u64>,
    /// How many rows a read may look at. What it brings is bounded in bytes, but the server must
    /// look at all of them.
    reads: BatchSize,
    /// Rows that failed were handed out last: now others have their turn.
    is_turn_of_others: bool,
    /// The table is not read before, where no index leads to the rows that wait.
    read_at: Instant,
    is_paused: bool,
    is_stalled: bool,
    /// The longest pause between two reads, where somebody has set it.
    poll_max: Option<Duration>,
    pause: Duration,
    /// When the table is read again, if nothing happens before.
    poll_at: Instant,
    /// Something happened.
    is_woken: bool,
    sweep_at: Instant,
    mark_at: Instant,
}

impl OutboxSource {
    fn new(table: OutboxTable, relay: &Arc<Relay>, settings: &RelayOptions) -> Self {
        let reads = BatchSize::up_to(READ.rows);
        reads.set(READ_FIRST);
        let now = Instant::now();
        OutboxSource {
            table,
            tenure: relay.tenure.clone(),
            relay: relay.clone(),
            key: RowKeys { template: settings.key.clone(), parser: Parser::new() },
            partition: Partition { topic: settings.topic.clone(), index: 0 },
            config: settings.config.clone(),
            held: None,
            reads,
            is_turn_of_others: false,
            read_at: now,
            is_paused: false,
            is_stalled: false,
            poll_max: settings.poll,
            pause: POLL.0,
            poll_at: now,
            is_woken: false,
            sweep_at: now,
            mark_at: now,
        }
    }

    /// The tenure begins: keys of rows that wait are found anew from the rows.
    async fn begin(&mut self, held: Lease) -> Result<SourceEvent, Fault> {
        let heads = match self.table.shape.plant.is(Bug::PutOffAlone) {
            true => Vec::new(),
            false => self.heads(held).await?,
        };
        let mut flight = self.relay.flight().following();
        let start = flight.end();
        for (head, key) in heads {
            flight.add_head(head.id.as_str().into(), key, self.due(head.due_ms));
        }
        *self.relay.flight() = flight;
        self.held = Some(held.token);
        self.pause = POLL.0;
        self.poll_at = Instant::now();
        self.sweep_at = Instant::now();
        Ok(SourceEvent::Assigned(vec![Assignment {
            partition: self.partition.clone(),
            nonce: held.token,
            start,
            ended: RangeSet::default(),
        }]))
    }

    /// Rows that failed and wait, one of each key. Under settings that have changed, rows may have other
    /// keys: what is behind a head is read again, and of heads with one key the first in the
    /// table's order is the one that the others wait for.
    async fn heads(&mut self, held: Lease) -> Result<Vec<(FailedRow, Bytes)>, Fault> {
        let token = word(held.token);
        let relay = self.relay.clone();
        let _turn = relay.turn.lock().await;
        if held.changed && !relay.notes.settle(&token, &self.config).await? {
            return Err(self.lost(held));
        }
        let heads = self.table.heads().await?;
        let ids: Vec<String> = heads.iter().map(|head| head.id.clone()).collect();
        let mut keys = self.keys_of(&ids).await?;
        let mut of_key: HashMap<Bytes, Vec<String>> = HashMap::new();
        for (id, key) in &keys {
            of_key.entry(key.clone()).or_default().push(id.to_string());
        }
        let mut behind: HashSet<String> = HashSet::new();
        for ids in of_key.into_values().filter(|ids| ids.len() > 1) {
            let ordered = self.table.in_order(&ids).await?;
            let Some((first, others)) = ordered.split_first() else { continue };
            for others in others.chunks(BEHIND_MAX) {
                if !relay.notes.put_behind(&token, first, others).await? {
                    return Err(self.lost(held));
                }
            }
            behind.extend(others.iter().cloned());
        }
        let heads = heads.into_iter().filter(|head| !behind.contains(&head.id));
        let keyed = heads.map(|head| {
            // Where the row is gone, its entry is swept away, by its id.
            let own = || Bytes::copy_from_slice(head.id.as_bytes());
            let key = keys.remove(head.id.as_str()).unwrap_or_else(own);
            (head, key)
        });
        Ok(keyed.collect())
    }

    fn lost(&self, held: Lease) -> Fault {
        self.relay.give_up(held.token);
        Fault::retry("the lease of the table was lost")
    }

    /// These rows, as many as fit; where the database cannot bring so many, fewer are asked for.
    async fn rows_of(&self, ids: &[String]) -> Result<Vec<OutboxRow>, Fault> {
        let rows = self.table.rows_of(ids, READ.bytes).await;
        if rows.is_err() {
            self.reads.failed(ids.len());
        }
        rows
    }

    /// The keys of these rows, as today's settings have them. Never more than a few rows are in memory.
    async fn keys_of(&mut self, ids: &[String]) -> Result<HashMap<RowId, Bytes>, Fault> {
        let mut keys = HashMap::new();
        for ids in ids.chunks(self.reads.get().min(KEYS_MAX)) {
            let mut left = ids.to_vec();
            while !left.is_empty() {
                let rows = self.rows_of(&left).await?;
                let before = left.len();
                for (row, key) in self.keyed(rows) {
                    left.retain(|id| **id != *row.id);
                    keys.insert(row.id, key);
                }
                // The others are gone, or are called otherwise by now.
                if left.len() == before {
                    break;
                }
            }
        }
        Ok(keys)
    }

    fn due(&self, ms: i64) -> Instant {
        let wait = Duration::from_millis(u64::try_from(ms).unwrap_or(0));
        // Further away than any wait: the server's clock went back.
        let wait = if wait > self.relay.max_wait { Duration::ZERO } else { wait };
        Instant::now() + wait
    }

    fn record(&self, row: &OutboxRow, offset: u64) -> Record {
        record(&self.table.shape, row, offset)
    }

    /// Rows to hand out now; `None` where there are none.
    async fn step(&mut self, held: Lease) -> Result<Option<SourceEvent>, Fault> {
        let token = word(held.token);
        if Instant::now() >= self.mark_at {
            let unmarked = self.relay.flight().unmarked();
            let rows: Vec<_> = unmarked.into_iter().map(|id| (None, id)).collect();
            if !rows.is_empty() {
                let _turn = self.relay.turn.lock().await;
                if !self.relay.mark(&token, &rows).await? {
                    return Err(self.lost(held));
                }
            }
            self.mark_at = Instant::now() + MARK_EVERY;
        }
        self.relay.mark_refused(&token).await?;
        if Instant::now() >= self.sweep_at {
            let begun = Instant::now();
            self.sweep(&token).await?;
            self.sweep_at = Instant::now() + SWEEP_EVERY.max(begun.elapsed() * 9);
        }
        if self.relay.flight().len() >= OUT_MAX {
            return Ok(None);
        }
        // Rows that failed and others take turns: neither keeps the other waiting.
        let due = match self.is_turn_of_others && Instant::now() >= self.read_at {
            true => Vec::new(),
            false => self.relay.flight().due(HEADS_OUT_MAX),
        };
        if !due.is_empty() {
            let most = self.reads.get().min(KEYS_MAX);
            let due: Vec<String> = due.into_iter().take(most).collect();
            let rows = self.rows_of(&due).await?;
            if rows.is_empty() {
                // Somebody took care of them by hand.
                self.sweep_at = Instant::now();
            }
            let rows = self.keyed(rows);
            let rows = self.set_aside_too_large(&token, rows).await?;
            let mut flight = self.relay.flight();
            let rows = rows.into_iter().filter(|(row, _)| flight.is_due(&row.id));
            let rows: Vec<_> = rows.collect();
            if let Some(batch) = self.hand_out(&mut flight, held, rows) {
                drop(flight);
                self.is_turn_of_others = true;
                return Ok(Some(batch));
            }
        }
        if Instant::now() < self.read_at {
            return Ok(None);
        }
        let reading = self.relay.flight().begin_read();
        let rows = self.read(&token, &reading.except).await?;
        self.is_turn_of_others = false;
        let is_empty = rows.is_empty();
        let rows = self.keyed(rows);
        let mut behind: HashMap<RowId, Vec<String>> = HashMap::new();
        {
            let flight = self.relay.flight();
            for (row, key) in &rows {
                if let Verdict::Behind(head) = flight.judge(&reading, key)
                    && head != row.id
                {
                    behind.entry(head).or_default().push(row.id.to_string());
                }
            }
        }
        for (head, ids) in &behind {
            // In pieces, between which others have their turn.
            for ids in ids.chunks(BEHIND_MAX) {
                let plant = self.table.shape.plant;
                if plant.is(Bug::PutOffAlone) || plant.is(Bug::BehindUnnamed) {
                    break;
                }
                let _turn = self.relay.turn.lock().await;
                match self.relay.notes.enter_behind(&token, head, ids).await {
                    // The head ended meanwhile: the next read sees them.
                    Err(fault) if fault.next == Move::SetAside => break,
                    other => drop(other?),
                }
            }
        }
        let rows = self.set_aside_too_large(&token, rows).await?;
        let mut flight = self.relay.flight();
        // Verdicts are taken before any row is handed out: they are the same for all of a key.
        let rows: Vec<_> = rows
            .into_iter()
            .filter(|(_, key)| flight.judge(&reading, key) == Verdict::HandOut)
            .collect();
        let batch = self.hand_out(&mut flight, held, rows);
        if batch.is_none() && !is_empty && !behind.is_empty() {
            // There may be more behind those that were just named.
            self.pause = POLL.0;
        }
        Ok(batch)
    }

    /// Reads as many rows as the last reads went well with.
    async fn read(&mut self, token: &str, except: &[String]) -> Result<Vec<OutboxRow>, Fault> {
        let limits = ReadLimits { rows: self.reads.get(), ..READ };
        let begun = Instant::now();
        let rows = self.table.read(token, except, limits).await;
        if !self.relay.has_index.load(Ordering::Relaxed) {
            // Never more than a tenth of the server's time, however much waits.
            self.read_at = Instant::now() + begun.elapsed() * 9;
        }
        let rows = rows.inspect_err(|_| self.reads.failed(limits.rows))?;
        let bytes: usize = rows.iter().filter_map(|row| row.payload.as_ref()).map(Bytes::len).sum();
        if bytes >= limits.bytes / 2 {
            self.reads.set(rows.len().saturating_mul(2));
        } else {
            self.reads.passed(rows.len());
        }
        Ok(rows)
    }

    /// Rows that no log takes become dead letters at once; others of their keys wait for the next
    /// read.
    async fn set_aside_too_large(
        &self,
        token: &str,
        rows: Vec<(OutboxRow, Bytes)>,
    ) -> Result<Vec<(OutboxRow, Bytes)>, Fault> {
        let mut keys: Vec<Bytes> = Vec::new();
        for (row, key) in rows.iter().filter(|(row, _)| row.is_too_large) {
            self.relay.set_aside_too_large(token, row, key).await?;
            keys.push(key.clone());
        }
        Ok(rows.into_iter().filter(|(_, key)| !keys.contains(key)).collect())
    }

    fn keyed(&mut self, rows: Vec<OutboxRow>) -> Vec<(OutboxRow, Bytes)> {
        let mut keyed = Vec::with_capacity(rows.len());
        for row in rows {
            let record = self.record(&row, 0);
            let key = self.key.of(&row, &record, &self.partition.topic);
            keyed.push((row, key));
        }
        keyed
    }

    fn hand_out(
        &self,
        flight: &mut Flight,
        held: Lease,
        rows: Vec<(OutboxRow, Bytes)>,
    ) -> Option<SourceEvent> {
        if rows.is_empty() || held.is_over() {
            return None;
        }
        let first = flight.end();
        let mut records = Vec::with_capacity(rows.len());
        let mut origins = Vec::with_capacity(rows.len());
        for (row, key) in rows {
            let out = RowInFlight { id: row.id.clone(), key: key.clone(), seen: row.attempts };
            let offset = flight.hand_out(out);
            origins.push((position(&self.partition.topic, &row.id), row.attempts));
            // Lanes keep the order of this key, which is the one that the table keeps.
            records.push(Record { key: Some(key), ..self.record(&row, offset) });
        }
        Some(SourceEvent::Batch(SourceBatch {
            partition: self.partition.clone(),
            log: 0,
            assignment: held.token,
            first,
            next: flight.end(),
            records,
            order: None,
            feed: Some(Box::new(FeedFacts { origins: Some(origins), ..FeedFacts::default() })),
        }))
    }

    /// When something is to be done besides what others tell.
    fn look_at(&self) -> Instant {
        let flight = self.relay.flight();
        let mark_at = (flight.has_unmarked()).then_some(self.mark_at);
        let heads = flight.next_due().map(|due| due.min(self.sweep_at));
        let poll_at = self.poll_at.max(self.read_at);
        [mark_at, heads].into_iter().flatten().fold(poll_at, Instant::min)
    }

    /// How long to wait before the table is read again: twice as long each time, until it is plain
    /// that nothing comes.
    fn next_pause(&mut self) -> Duration {
        let told = if self.relay.counters.is_listening() { POLL_TOLD } else { POLL.1 };
        let longest = self.poll_max.unwrap_or(told);
        let pause = self.pause;
        self.pause = if pause < POLL.1.min(longest) { pause * 2 } else { pause.max(longest) };
        pause
    }

    /// Compares heads with the table: people skip rows, reset them, or want them tried now.
    async fn sweep(&mut self, token: &str) -> Result<(), Fault> {
        let heads = self.relay.flight().heads();
        if heads.is_empty() || self.table.shape.plant.is(Bug::SkipsUnseen) {
            return Ok(());
        }
        let ended = self.table.ended(&heads).await?;
        if !ended.is_empty() {
            let _turn = self.relay.turn.lock().await;
            self.relay.notes.free(token, &ended).await?;
        }
        let there = self.table.heads().await?;
        let there: HashMap<String, i64> =
            there.into_iter().map(|head| (head.id, head.due_ms)).collect();
        let dues: Vec<_> =
            heads.iter().map(|id| (id, there.get(id).map(|ms| self.due(*ms)))).collect();
        let mut flight = self.relay.flight();
        for (id, due) in dues {
            match due {
                Some(due) => flight.set_due(id, due),
                None => flight.open(id),
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Source for OutboxSource {
    async fn next(&mut self) -> Result<SourceEvent, Fault> {
        loop {
            let tenure = self.tenure.borrow_and_update().clone();
            let given_up = self.relay.given_up.load(Ordering::Relaxed);
            let held = tenure.held.filter(|held| !held.is_over() && held.token != given_up);
            match (self.held, held) {
                (Some(mine), held) if held.is_none_or(|held| held.token != mine) => {
                    self.held = None;
                    self.relay.given_up.store(mine, Ordering::Relaxed);
                    let mut flight = self.relay.flight();
                    *flight = flight.following();
                    return Ok(SourceEvent::Lost(vec![mine]));
                }
                (None, Some(held)) => return self.begin(held).await.map_err(waiting),
                (None, None) => {
                    if tenure.fault.is_some() != self.is_stalled {
                        self.is_stalled = tenure.fault.is_some();
                        return Ok(SourceEvent::Stalled(tenure.fault));
                    }
                    // A keeper that is gone cannot come back.
                    if self.tenure.changed().await.is_err() {
                        return Err(Fault::retry("nobody keeps the lease of the table"));
                    }
                }
                (_, Some(held)) => {
                    if self.is_stalled {
                        self.is_stalled = false;
                        return Ok(SourceEvent::Stalled(None));
                    }
                    let is_due = self.is_woken || Instant::now() >= self.look_at();
                    if is_due && !self.is_paused {
                        let gone = lease_is_gone(self.tenure.clone(), held.token);
                        // A question that takes long does not outlast the lease.
                        let batch = tokio::select! {
                            batch = self.step(held) => batch.map_err(waiting)?,
                            () = gone => continue,
                        };
                        self.is_woken = false;
                        if let Some(batch) = batch {
                            self.pause = POLL.0;
                            self.poll_at = Instant::now();
                            return Ok(batch);
                        }
                        self.poll_at = Instant::now() + self.next_pause();
                    }
                    let until = match self.is_paused {
                        true => Instant::now() + POLL.1,
                        false => self.look_at().max(Instant::now() + POLL.0),
                    };
                    tokio::select! {
                        _ = self.tenure.changed() => {}
                        () = self.relay.wake.notified() => self.is_woken = true,
                        () = sleep_until(until.min(held.believed)) => {}
                    }
                }
                (Some(_), None) => {}
            }
        }
    }

    fn set_paused(&mut self, paused: bool) {
        self.is_paused = paused;
    }

    fn ends(&self) -> Vec<PartitionEnd> {
        let end = self.relay.flight().end();
        vec![PartitionEnd { partition: self.partition.clone(), end }]
    }
}

#[cfg(test)]
mod tests;
