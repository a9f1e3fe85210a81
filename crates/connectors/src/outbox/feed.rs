//! The feed: rows of the table as records, and what becomes of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::trouble::crash_point;
use potok_core::{
    Assignment, Attempts, Backlog, EndedOffsets, Fault, Feed, FeedAbilities, FeedCommit, FeedFacts,
    FeedLetters, Log, Move, OpenFeed, OutboxControl, Partition, PartitionEnd, PipelineInfo,
    Position, PostponedRecord, Progress, RECORD_BYTES_MAX, RangeSet, Reason, Record, SetAside,
    Source, SourceBatch, SourceEvent,
};
use potok_expr::json::Parser;
use potok_expr::{Scope, Template};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};
use tracing::{error, warn};

use super::counters::RelayCounters;
use super::flight::{Flight, RowId, RowInFlight, Verdict};
use super::statements::{Burial, Delay, ReadLimits};
use super::table::{OutboxRow, OutboxTable, record};
use super::tenure::{Lease, LeaseKeeper, LeaseNeed, Tenure, need, word};
use super::{Outbox, SessionPurpose};

/// Rows that one read brings at most.
const READ: ReadLimits = ReadLimits { rows: 2_000, bytes: 4 << 20 };
/// Rows that are out at most; a longer list of ids would make reads slow.
const OUT_MAX: usize = 8_000;
/// The shortest and the longest pause between two reads of a table where nothing waits.
const POLL: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// The longest where a trigger tells of new rows.
const POLL_TOLD: Duration = Duration::from_secs(1);
/// How often heads are compared with the table.
const SWEEP_EVERY: Duration = Duration::from_secs(2);
/// How often locked rows are tried again.
const MARK_EVERY: Duration = Duration::from_millis(500);
/// Rows marked in one call.
const MARK_MAX: usize = 2_000;
/// Old rows deleted in one call.
const PURGE_MAX: usize = 1_000;
/// How often old rows are looked for.
const PURGE_EVERY: Duration = Duration::from_secs(10);

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
        let keeper = LeaseKeeper {
            table: table(SessionPurpose::Lease),
            owner: self.owner.clone(),
            pipeline: info.pipeline.clone(),
            label: self.label.clone(),
            config: self.settings.config.clone(),
            lease: self.settings.lease,
            told,
            needed,
        };
        tokio::spawn(keeper.run());
        let relay = Arc::new(Relay {
            label: self.label.clone(),
            notes: table(SessionPurpose::Note),
            tenure,
            flight: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            wake: Notify::new(),
            max_wait: self.settings.max,
            counters: self.counters.clone(),
            _need: need,
        });
        self.counters.opened(Arc::downgrade(&relay));
        self.spawn_listener(&relay, &shape);
        if let Some(age) = self.settings.keep_processed {
            let (relay, table) = (Arc::downgrade(&relay), table(SessionPurpose::Purge));
            tokio::spawn(async move {
                while let Some(relay) = relay.upgrade() {
                    let pause = relay.purge(&table, age).await;
                    drop(relay);
                    tokio::time::sleep(pause).await;
                }
            });
        }
        let source = OutboxSource {
            table: table(SessionPurpose::Read),
            tenure: relay.tenure.clone(),
            relay: relay.clone(),
            key: RowKeys { template: self.settings.key.clone(), parser: Parser::new() },
            partition: Partition { topic: self.settings.topic.clone(), index: 0 },
            held: None,
            is_paused: false,
            is_stalled: false,
            poll_max: self.settings.poll,
            pause: POLL.0,
            poll_at: Instant::now(),
            is_woken: false,
            sweep_at: Instant::now(),
            mark_at: Instant::now(),
        };
        Ok(OpenFeed { source: Box::new(source), progress: relay })
    }

    async fn backlog(&self) -> Result<Backlog, Fault> {
        let shape = Arc::new(self.look().await?);
        OutboxTable { shape, session: self.session(SessionPurpose::Look) }.backlog().await
    }

    fn letters(&self) -> Option<&dyn FeedLetters> {
        Some(self)
    }

    fn outbox(&self) -> Option<&dyn OutboxControl> {
        Some(self)
    }
}

/// What source and progress share.
pub(super) struct Relay {
    pub label: String,
    notes: OutboxTable,
    pub tenure: watch::Receiver<Tenure>,
    flight: Mutex<Flight>,
    /// Notes go one at a time.
    turn: tokio::sync::Mutex<()>,
    /// The table should be read now, whatever the pause.
    pub wake: Notify,
    max_wait: Duration,
    pub counters: Arc<RelayCounters>,
    /// Dropped with the last of those who note: then the lease is let go.
    _need: LeaseNeed,
}

impl Relay {
    fn flight(&self) -> MutexGuard<'_, Flight> {
        self.flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease, while it may be relied on.
    pub fn held(&self) -> Option<Lease> {
        self.tenure.borrow().held.filter(|held| !held.is_over())
    }

    /// Keys that wait behind a row that failed; `None` while another process has the lease.
    pub fn failing_keys(&self) -> Option<u64> {
        self.held().map(|_| self.flight().shut_keys() as u64)
    }

    /// Marks rows; what the table refuses is halved down to the row.
    async fn mark(&self, token: &str, rows: &[(Option<u64>, RowId)]) -> Result<bool, Fault> {
        let mut parts: Vec<&[(Option<u64>, RowId)]> = rows.chunks(MARK_MAX).rev().collect();
        while let Some(part) = parts.pop() {
            let ids: Vec<String> = part.iter().map(|(_, id)| id.to_string()).collect();
            let heads: Vec<String> = {
                let flight = self.flight();
                ids.iter().filter(|id| flight.is_head(id)).cloned().collect()
            };
            crash_point("sink.commit.before");
            let noted = match self.notes.mark(token, &ids, &heads).await {
                Ok(noted) => noted,
                Err(fault) if fault.next == Move::SetAside => {
                    match part.split_at(part.len() / 2) {
                        ([], _) => self.cannot_mark(part, &fault),
                        (one, other) => parts.extend([other, one]),
                    }
                    continue;
                }
                Err(fault) => return Err(fault),
            };
            crash_point("sink.commit.after");
            if !noted.mine {
                return Ok(false);
            }
            let mut flight = self.flight();
            let is_left = |id: &RowId| noted.left.iter().any(|left| **left == **id);
            self.counters.published(part.iter().filter(|(_, id)| !is_left(id)).count());
            for (offset, id) in part {
                let is_left = is_left(id);
                match (is_left, offset) {
                    (true, Some(offset)) => flight.published(*offset),
                    (true, None) => {}
                    (false, Some(offset)) => flight.ended(*offset),
                    (false, None) => flight.marked(id),
                }
            }
        }
        Ok(true)
    }

    fn cannot_mark(&self, part: &[(Option<u64>, RowId)], fault: &Fault) {
        let mut flight = self.flight();
        for (offset, id) in part {
            error!("{}: row {id} was published and cannot be marked: {fault}", self.label);
            if let Some(offset) = offset {
                flight.published(*offset);
            }
            flight.cannot_mark(id);
        }
    }

    async fn put_off(&self, token: &str, failed: &PostponedRecord) -> Result<bool, Fault> {
        let outs = self.flight().outs(std::iter::once(failed.offset));
        let Some((offset, out)) = outs.into_iter().next() else { return Ok(true) };
        let wait = failed.wait.min(self.max_wait);
        let delay = Delay {
            id: &out.id,
            seen: out.seen,
            attempt: failed.attempt,
            wait,
            error: &clip(&failed.error),
            key: &clip(&String::from_utf8_lossy(&out.key)),
        };
        warn!(row = %out.id, attempt = failed.attempt, "{}: {}", self.label, failed.error);
        let noted = self.notes.put_off(token, &delay).await?;
        if noted.mine {
            self.flight().put_off(offset, wait);
            self.counters.failed();
        }
        Ok(noted.mine)
    }

    async fn set_aside(&self, token: &str, failed: &SetAside) -> Result<bool, Fault> {
        let outs = self.flight().outs(std::iter::once(failed.offset));
        let Some((offset, out)) = outs.into_iter().next() else { return Ok(true) };
        let burial = Burial {
            id: &out.id,
            attempt: failed.attempt,
            reason: failed.reason.word(),
            error: &clip(&failed.error),
        };
        crash_point("dead_letter.before");
        let buried = self.notes.bury(token, &burial).await;
        crash_point("dead_letter.after");
        let wait = match buried {
            Ok(noted) if !noted.mine => return Ok(false),
            Ok(noted) if noted.left.is_empty() => {
                error!(row = %out.id, reason = %failed.reason, "{}: {}", self.label, failed.error);
                self.flight().ended(offset);
                self.counters.failed();
                return Ok(true);
            }
            // Somebody has it locked.
            Ok(_) => Duration::from_secs(1).min(self.max_wait),
            // Dead letters cannot be written: only this key waits.
            Err(fault) if matches!(fault.next, Move::SetAside | Move::Fix) => {
                error!(row = %out.id, "{}: it cannot be set aside: {fault}", self.label);
                self.max_wait
            }
            Err(fault) => return Err(fault),
        };
        // Tried as often as before, it is set aside at the next failure.
        let again = PostponedRecord {
            partition: failed.partition.clone(),
            assignment: failed.assignment,
            offset,
            attempt: out.seen.max(failed.attempt.saturating_sub(1)),
            wait,
            error: failed.error.clone(),
        };
        self.put_off(token, &again).await
    }

    /// Deletes old rows; how long to wait before the next time.
    async fn purge(&self, table: &OutboxTable, age: Duration) -> Duration {
        let Some(held) = self.held() else { return PURGE_EVERY / 10 };
        let begun = Instant::now();
        match table.purge(&word(held.token), age, PURGE_MAX).await {
            Ok(PURGE_MAX) => begun.elapsed() * 9,
            Ok(_) => PURGE_EVERY,
            Err(fault) => {
                warn!("{}: old rows stay: {fault}", self.label);
                PURGE_EVERY
            }
        }
    }
}

/// As much of a text as a person reads.
fn clip(text: &str) -> String {
    text.chars().take(2_000).collect()
}

#[async_trait]
impl Progress for Relay {
    async fn commit(&self, commit: &FeedCommit) -> Result<(), Fault> {
        let _turn = self.turn.lock().await;
        let Some(held) = self.held() else { return Ok(()) };
        let (nonce, token) = (held.token, word(held.token));
        let offsets = |all: &[EndedOffsets]| {
            let ours = all.iter().filter(|ended| ended.assignment == nonce);
            ours.flat_map(|ended| ended.ranges.iter().cloned()).flatten().collect::<Vec<u64>>()
        };
        let ended = self.flight().outs(offsets(&commit.ended).into_iter());
        let ended: Vec<_> = ended.into_iter().map(|(at, out)| (Some(at), out.id)).collect();
        let mut mine = ended.is_empty() || self.mark(&token, &ended).await?;
        for failed in commit.put_off.iter().filter(|failed| failed.assignment == nonce) {
            mine = mine && self.put_off(&token, failed).await?;
        }
        for failed in commit.set_aside.iter().filter(|failed| failed.assignment == nonce) {
            mine = mine && self.set_aside(&token, failed).await?;
        }
        if mine {
            let mut flight = self.flight();
            offsets(&commit.given_back).into_iter().for_each(|offset| flight.given_back(offset));
        }
        self.wake.notify_one();
        Ok(())
    }
}

/// Finds the key of a row, as the pipeline does.
pub(super) struct RowKeys {
    pub template: Option<Template>,
    pub parser: Parser,
}

impl RowKeys {
    /// Without a key that can be read, a row has a key of its own: its id.
    pub fn of(&mut self, row: &OutboxRow, record: &Record, topic: &str) -> Bytes {
        let own = || Bytes::copy_from_slice(row.id.as_bytes());
        let Some(template) = &self.template else { return own() };
        let value = record.value.as_deref().filter(|_| template.needs_value());
        let scope = Scope {
            value: value.and_then(|value| self.parser.parse(value).ok()),
            key: record.key.as_deref(),
            headers: &record.headers,
            topic,
            id: None,
            receiver: None,
        };
        template.eval_bytes(&scope).unwrap_or_else(own)
    }
}

struct OutboxSource {
    table: OutboxTable,
    tenure: watch::Receiver<Tenure>,
    relay: Arc<Relay>,
    key: RowKeys,
    partition: Partition,
    /// The tenure under which rows are handed out.
    held: Option<u64>,
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
    /// The tenure begins: keys of rows that wait are found anew from the rows.
    async fn begin(&mut self, held: Lease) -> Result<SourceEvent, Fault> {
        let heads = self.table.heads().await?;
        let ids: Vec<String> = heads.iter().map(|head| head.id.clone()).collect();
        let rows = self.table.rows_of(&ids).await?;
        let rows: HashMap<RowId, OutboxRow> =
            rows.into_iter().map(|row| (row.id.clone(), row)).collect();
        let mut flight = Flight::default();
        for head in &heads {
            // Where the row is gone, its entry is swept away, by its id.
            let key = match rows.get(head.id.as_str()) {
                Some(row) => {
                    let record = self.record(row, 0);
                    self.key.of(row, &record, &self.partition.topic)
                }
                None => Bytes::copy_from_slice(head.id.as_bytes()),
            };
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
            start: 0,
            ended: RangeSet::default(),
        }]))
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
                self.relay.mark(&token, &rows).await?;
            }
            self.mark_at = Instant::now() + MARK_EVERY;
        }
        if Instant::now() >= self.sweep_at {
            self.sweep(&token).await?;
            self.sweep_at = Instant::now() + SWEEP_EVERY;
        }
        if self.relay.flight().len() >= OUT_MAX {
            return Ok(None);
        }
        let due = self.relay.flight().due();
        if !due.is_empty() {
            let due: Vec<String> = due.into_iter().take(READ.rows).collect();
            let rows = self.table.rows_of(&due).await?;
            if rows.len() < due.len() {
                // Somebody took care of the others by hand.
                self.sweep_at = Instant::now();
            }
            let rows: Vec<(OutboxRow, Bytes)> = self.keyed(rows);
            let mut flight = self.relay.flight();
            let still = flight.due();
            let rows = rows.into_iter().filter(|(row, _)| still.iter().any(|id| **id == *row.id));
            let rows: Vec<_> = rows.collect();
            if let Some(batch) = self.hand_out(&mut flight, held, rows) {
                return Ok(Some(batch));
            }
        }
        let reading = self.relay.flight().begin_read();
        let begun = Instant::now();
        let rows = self.table.read(&token, &reading.except, READ).await?;
        if !self.table.shape.has_index {
            // Never more than a tenth of the server's time.
            self.pause = self.pause.max(begun.elapsed() * 9);
        }
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
            match self.table.enter_behind(&token, head, ids).await {
                // The head ended meanwhile: the next read sees them.
                Err(fault) if fault.next == Move::SetAside => {}
                other => drop(other?),
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

    /// Rows that no log takes become dead letters at once; others of their keys wait for the next
    /// read.
    async fn set_aside_too_large(
        &self,
        token: &str,
        rows: Vec<(OutboxRow, Bytes)>,
    ) -> Result<Vec<(OutboxRow, Bytes)>, Fault> {
        let mut keys: Vec<Bytes> = Vec::new();
        for (row, key) in rows.iter().filter(|(row, _)| row.is_too_large) {
            let what = format!("the payload is larger than {RECORD_BYTES_MAX} bytes");
            let burial = Burial {
                id: &row.id,
                attempt: row.attempts + 1,
                reason: Reason::TooLarge.word(),
                error: &what,
            };
            let _turn = self.relay.turn.lock().await;
            self.relay.notes.bury(token, &burial).await?;
            error!(row = %row.id, "{}: {what}", self.relay.label);
            self.relay.counters.failed();
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
            feed: Some(Box::new(FeedFacts { origins: Some(origins), whole: None })),
        }))
    }

    /// When something is to be done besides what others tell.
    fn look_at(&self) -> Instant {
        let flight = self.relay.flight();
        let mark_at = (flight.has_unmarked()).then_some(self.mark_at);
        let heads = flight.next_due().map(|due| due.min(self.sweep_at));
        [mark_at, heads].into_iter().flatten().fold(self.poll_at, Instant::min)
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
        if heads.is_empty() {
            return Ok(());
        }
        self.table.sweep(token, &heads).await?;
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

/// What deliveries of a row are named after: nothing but its id.
pub(super) fn position(topic: &Arc<str>, id: &str) -> Position {
    let hash = Sha256::digest(id.as_bytes());
    let part = |at: usize| {
        let bytes = hash.get(at..at + 8).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
        u64::from_be_bytes(bytes.unwrap_or_default())
    };
    Position { log: part(0), topic: topic.clone(), partition: 0, offset: part(8) }
}

#[async_trait]
impl Source for OutboxSource {
    async fn next(&mut self) -> Result<SourceEvent, Fault> {
        loop {
            let tenure = self.tenure.borrow_and_update().clone();
            let held = tenure.held.filter(|held| !held.is_over());
            match (self.held, held) {
                (Some(mine), held) if held.is_none_or(|held| held.token != mine) => {
                    self.held = None;
                    *self.relay.flight() = Flight::default();
                    return Ok(SourceEvent::Lost(vec![mine]));
                }
                (None, Some(held)) => return self.begin(held).await,
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
                        let batch = self.step(held).await?;
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
