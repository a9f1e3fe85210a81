//! A simulated feed, in two manners: rows of a table, which are put off and keep their order per key,
//! and chats, which come as groups that the feed has closed.
//!
//! What it holds survives the process. Each opening has a token; what is committed under another
//! token than the last changes nothing, and says so by success.

mod check;
mod run;
mod trouble;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::{
    Assignment, Attempts, Backlog, EndedOffsets, Fault, Feed, FeedAbilities, FeedCommit, FeedFacts,
    Headers, HeadersBuilder, Log, OpenFeed, Partition, PartitionEnd, PipelineInfo, Position,
    PostponedRecord, Progress, RangeSet, Record, SetAside, Source, SourceBatch, SourceEvent,
    Timestamp, WholeGroup,
};

use super::chance::Chance;
use super::trouble::Trouble;
use super::world::{State, World};
pub use run::{FeedOutcome, run_feed_seed};
pub use trouble::FEED_TROUBLE_SEEDS;

/// How often the feed looks for something to hand out.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The topic in the names of rows.
const ROW: &str = "row";

/// How a feed hands out records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedManner {
    /// One by one, in order; those that fail come again later.
    Rows,
    /// As closed groups of one key.
    Chats,
}

/// One record of the feed.
#[derive(Clone, Debug)]
pub struct Row {
    pub key: Bytes,
    pub value: Bytes,
    /// When it came, in simulated milliseconds.
    pub came: u64,
    /// It has ended.
    pub ended: bool,
    /// It failed for the last time.
    pub aside: bool,
    /// How often it failed.
    pub failures: u32,
    /// How often somebody had it of whom nobody will hear what became of it.
    pub unsure: u64,
    /// It is kept back until then.
    until: u64,
}

/// A group that is closed and has not ended.
#[derive(Clone, Debug)]
struct Claim {
    key: Bytes,
    generation: u64,
    members: Vec<u64>,
    closed: u64,
    /// Under which it is handed out now.
    nonce: Option<u64>,
    /// Its records were handed out under it; until then nobody else knows of them.
    handed: bool,
}

/// What the feed holds.
#[derive(Default)]
pub struct Rows {
    /// All records, by id, in order.
    pub rows: BTreeMap<u64, Row>,
    /// Which opening has it.
    owner: u64,
    /// Under which rows are handed out now.
    token: u64,
    /// What was handed out under it, by offset.
    out: BTreeMap<u64, u64>,
    next_offset: u64,
    /// Records that failed and come before all others of their key.
    heads: BTreeMap<Bytes, u64>,
    claims: Vec<Claim>,
    /// Assignments that are over, and those that somebody took away.
    finished: VecDeque<u64>,
    lost: VecDeque<u64>,
    /// What somebody saw that must not be.
    pub wrong: Vec<String>,
}

/// The feed; cheap to clone.
#[derive(Clone)]
pub struct SimFeed {
    world: Arc<World>,
    manner: FeedManner,
    rows: Arc<Mutex<Rows>>,
    chance: Arc<Mutex<Chance>>,
    /// Records bring their names along.
    named: bool,
    /// Checked when a record ends: true where what it became is durable.
    durable: Option<DurableCheck>,
}

type DurableCheck = Arc<dyn Fn(&World, &Row) -> bool + Send + Sync>;

impl SimFeed {
    /// An empty one.
    pub fn new(world: Arc<World>, manner: FeedManner, seed: u64, named: bool) -> Self {
        let chance = Arc::new(Mutex::new(Chance::new(seed)));
        SimFeed { world, manner, rows: Arc::default(), chance, named, durable: None }
    }

    /// Adds records behind those that are there.
    pub fn fill(&self, records: impl IntoIterator<Item = (Bytes, Bytes)>) {
        let came = self.world.with(|w| w.millis());
        let mut rows = self.lock();
        for (key, value) in records {
            let id = rows.rows.len() as u64 + 1;
            let (ended, aside) = (false, false);
            let (failures, unsure, until) = (0, 0, 0);
            rows.rows.insert(id, Row { key, value, came, ended, aside, failures, unsure, until });
        }
    }

    /// How many records are handed out and have come to nothing yet.
    pub fn handed_out(&self) -> usize {
        let rows = self.lock();
        rows.out.len()
            + rows.claims.iter().filter(|claim| claim.nonce.is_some() && claim.handed).count()
    }

    /// How often it was opened.
    pub fn openings(&self) -> u64 {
        self.lock().owner
    }

    /// What is handed out, for people.
    pub fn shown(&self) -> String {
        let rows = self.lock();
        format!("token {:x}, out {:?}, claims {:?}", rows.token, rows.out, rows.claims)
    }

    /// What it holds.
    pub fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn strikes(&self, n: u64) -> bool {
        let is_calm = self.world.with(|w| w.calm);
        !is_calm && self.chance.lock().unwrap_or_else(PoisonError::into_inner).one_in(n)
    }

    fn between(&self, from: u64, to: u64) -> u64 {
        self.chance.lock().unwrap_or_else(PoisonError::into_inner).between(from, to)
    }
}

#[async_trait]
impl Feed for SimFeed {
    fn abilities(&self) -> FeedAbilities {
        let (first, max) = (Duration::from_millis(100), Duration::from_secs(2));
        let attempts = Attempts { limit: 5, first, max };
        match self.manner {
            FeedManner::Rows => FeedAbilities { puts_off: Some(attempts), comes_whole: false },
            FeedManner::Chats => FeedAbilities { puts_off: None, comes_whole: true },
        }
    }

    async fn open(&self, _: &PipelineInfo, _: Arc<dyn Log>) -> Result<OpenFeed, Fault> {
        self.world.step("opening the feed").await;
        if self.strikes(4) {
            return Err(Fault::wait("simulated: the feed is away"));
        }
        let (owner, token) = {
            let mut rows = self.lock();
            rows.owner += 1;
            (rows.owner, rows.open())
        };
        self.world.with(|w| w.note(format_args!("feed opened by {owner}")));
        let source = SimFeedSource {
            feed: self.clone(),
            owner,
            token,
            assigned: false,
            paused: false,
            handed: None,
        };
        let progress = Arc::new(SimFeedProgress { feed: self.clone(), owner });
        Ok(OpenFeed { source: Box::new(source), progress })
    }

    async fn backlog(&self) -> Result<Backlog, Fault> {
        let rows = self.lock();
        let open = || rows.rows.values().filter(|row| !row.ended);
        let oldest = open().map(|row| Timestamp(row.came as i64)).min();
        Ok(Backlog { records: open().count() as u64, oldest, groups: None })
    }
}

impl Rows {
    fn open(&mut self) -> u64 {
        self.token += 1;
        let mut claimed = Vec::new();
        for claim in &mut self.claims {
            if claim.nonce.take().is_some() {
                claimed.extend(&claim.members);
            }
        }
        for id in std::mem::take(&mut self.out).into_values().chain(claimed) {
            self.rows.entry(id).and_modify(|row| row.unsure += 1);
        }
        self.finished.clear();
        self.lost.clear();
        self.token
    }

    /// The rows to hand out next: in order per key, a head alone and when it is due.
    fn next_rows(&mut self, most: usize, now: u64) -> Vec<u64> {
        let under_way: BTreeSet<u64> = self.out.values().copied().collect();
        let mut last_out: BTreeMap<&Bytes, u64> = BTreeMap::new();
        for id in &under_way {
            if let Some(row) = self.rows.get(id) {
                last_out.insert(&row.key, *id);
            }
        }
        let mut shut: BTreeSet<&Bytes> = BTreeSet::new();
        let mut chosen = Vec::new();
        for (id, row) in self.rows.iter().filter(|(_, row)| !row.ended) {
            if under_way.contains(id) || shut.contains(&row.key) || chosen.len() >= most {
                continue;
            }
            let is_last = last_out.get(&row.key).is_none_or(|last| last < id);
            let is_free = match self.heads.get(&row.key) {
                Some(head) => head == id && row.until <= now && !last_out.contains_key(&row.key),
                None => is_last,
            };
            if is_free {
                chosen.push(*id);
            }
            if !is_free || self.heads.contains_key(&row.key) {
                shut.insert(&row.key);
            }
        }
        chosen
    }

    fn batch(&mut self, ids: &[u64], named: bool) -> SourceBatch {
        let first = self.next_offset;
        let (mut records, mut origins) = (Vec::new(), Vec::new());
        for id in ids {
            let Some(row) = self.rows.get(id) else { continue };
            let offset = self.next_offset;
            self.next_offset += 1;
            self.out.insert(offset, *id);
            origins.push((name_of(*id), row.failures));
            records.push(row.record(*id, offset, named));
        }
        SourceBatch {
            partition: partition(),
            log: 0,
            assignment: self.token,
            first,
            next: self.next_offset,
            records,
            order: None,
            feed: Some(Box::new(FeedFacts { origins: Some(origins), ..FeedFacts::default() })),
        }
    }

    /// A group to hand out: one that was given back, or one of a key that has none under way.
    fn next_claim(&mut self, most: usize, now: u64) -> Option<usize> {
        if let Some(free) = self.claims.iter().position(|claim| claim.nonce.is_none()) {
            return Some(free);
        }
        let claimed: BTreeSet<&Bytes> = self.claims.iter().map(|claim| &claim.key).collect();
        let is_free = |row: &&Row| !row.ended && !claimed.contains(&row.key);
        let key = self.rows.values().find(is_free)?.key.clone();
        let of_key = self.rows.iter().filter(|(_, row)| !row.ended && row.key == key);
        let members: Vec<u64> = of_key.map(|(id, _)| *id).take(most).collect();
        let generation = members.iter().fold(7_u64, |all, id| all.wrapping_mul(1_000_003) ^ id);
        self.claims.push(Claim {
            key,
            generation,
            members,
            closed: now,
            nonce: None,
            handed: false,
        });
        Some(self.claims.len() - 1)
    }

    fn claim(&mut self, at: usize, nonce: u64, named: bool) -> Option<(Assignment, SourceBatch)> {
        let claim = self.claims.get_mut(at)?;
        (claim.nonce, claim.handed) = (Some(nonce), false);
        let claim = claim.clone();
        let all = (0..).zip(&claim.members);
        let record =
            |(offset, id): (u64, &u64)| Some(self.rows.get(id)?.record(*id, offset, named));
        let records: Vec<Record> = all.filter_map(record).collect();
        let origins = claim.members.iter().map(|id| (name_of(*id), 0)).collect();
        let opened = claim.members.first().and_then(|id| self.rows.get(id));
        let whole = WholeGroup {
            key: claim.key,
            generation: claim.generation,
            opened: Timestamp(opened.map_or(0, |row| row.came as i64)),
            closed: Timestamp(claim.closed as i64),
            reason: "silence_reached".to_owned(),
        };
        let assignment =
            Assignment { partition: partition(), nonce, start: 0, ended: RangeSet::default() };
        let batch = SourceBatch {
            partition: partition(),
            log: 0,
            assignment: nonce,
            first: 0,
            next: records.len() as u64,
            records,
            order: None,
            feed: Some(Box::new(FeedFacts {
                origins: Some(origins),
                whole: Some(whole),
                ..FeedFacts::default()
            })),
        };
        Some((assignment, batch))
    }

    fn end(&mut self, id: u64, aside: bool) {
        let Some(row) = self.rows.get_mut(&id) else { return };
        row.ended = true;
        row.aside |= aside;
        if self.heads.get(&row.key) == Some(&id) {
            self.heads.remove(&row.key);
        }
    }

    /// Where topics are forbidden for a while, being put off for that is no failure.
    fn put_off(&mut self, id: u64, put_off: &PostponedRecord, now: u64, forbidden: bool) {
        let Some(row) = self.rows.get_mut(&id) else { return };
        let said = put_off.attempt;
        if said != row.failures + 1 && !(forbidden && said == row.failures) {
            self.wrong.push(format!("row {id} failed {} times, not {said}", row.failures + 1));
        }
        row.failures = put_off.attempt;
        row.until = now + put_off.wait.as_millis() as u64;
        if let Some(other) = self.heads.insert(row.key.clone(), id).filter(|other| *other != id) {
            self.wrong.push(format!("rows {other} and {id} of one key have both failed"));
        }
    }

    /// The rows at these offsets that were handed out under the token.
    fn rows_at(&mut self, token: u64, ended: &[EndedOffsets]) -> Vec<u64> {
        let offsets = |ended: &EndedOffsets| ended.ranges.clone().into_iter().flatten();
        let ours = ended.iter().filter(|ended| ended.assignment == token);
        ours.flat_map(offsets).filter_map(|offset| self.out.remove(&offset)).collect()
    }

    fn commit_rows(&mut self, commit: &FeedCommit, now: u64, forbidden: bool) -> Vec<u64> {
        let token = self.token;
        let FeedCommit { ended, put_off, set_aside, given_back } = commit;
        let ids = self.rows_at(token, ended);
        ids.iter().for_each(|id| self.end(*id, false));
        for of in put_off.iter().filter(|of| of.assignment == token) {
            if let Some(id) = self.out.remove(&of.offset) {
                self.put_off(id, of, now, forbidden);
            }
        }
        for SetAside { assignment, offset, attempt, .. } in set_aside {
            if *assignment == token
                && let Some(id) = self.out.remove(offset)
            {
                if let Some(row) = self.rows.get_mut(&id) {
                    row.failures = *attempt;
                }
                self.end(id, true);
            }
        }
        self.rows_at(token, given_back);
        self.check_heads();
        ids
    }

    /// Nothing is tried before what lies before it in its key has ended.
    fn check_heads(&mut self) {
        for (key, head) in &self.heads {
            let before = |(_, row): &(&u64, &Row)| !row.ended && row.key == *key;
            if let Some((id, _)) = self.rows.range(..*head).find(before) {
                self.wrong.push(format!("row {head} failed before row {id} of its key had ended"));
            }
        }
    }

    fn commit_chats(&mut self, commit: &FeedCommit) -> Vec<u64> {
        let mut all = Vec::new();
        for EndedOffsets { assignment, ranges, .. } in &commit.ended {
            let of = |claim: &Claim| claim.nonce == Some(*assignment);
            let Some(at) = self.claims.iter().position(of) else { continue };
            let claim = self.claims.remove(at);
            let len = |range: &Range<u64>| range.end - range.start;
            if ranges.iter().map(len).sum::<u64>() != claim.members.len() as u64 {
                self.wrong.push(format!("{ranges:?} of a group of {:?} ended", claim.members));
            }
            claim.members.iter().for_each(|id| self.end(*id, false));
            all.extend(claim.members);
            self.finished.push_back(*assignment);
        }
        for EndedOffsets { assignment, .. } in &commit.given_back {
            for claim in self.claims.iter_mut().filter(|c| c.nonce == Some(*assignment)) {
                claim.nonce = None;
                self.finished.push_back(*assignment);
            }
        }
        all
    }
}

impl Row {
    fn record(&self, id: u64, offset: u64, named: bool) -> Record {
        let own = || HeadersBuilder::new().add("potok-id", Some(id.to_string().as_bytes())).build();
        Record {
            offset,
            time: Timestamp(self.came as i64),
            key: Some(self.key.clone()),
            headers: if named { own() } else { Headers::none() },
            value: Some(self.value.clone()),
        }
    }
}

/// What the deliveries of a row are named after.
fn name_of(id: u64) -> Position {
    Position { log: 0, topic: ROW.into(), partition: 0, offset: id }
}

fn partition() -> Partition {
    Partition { topic: "rows".into(), index: 0 }
}

struct SimFeedSource {
    feed: SimFeed,
    owner: u64,
    token: u64,
    assigned: bool,
    paused: bool,
    /// A group that was assigned and comes next.
    handed: Option<SourceBatch>,
}

impl SimFeedSource {
    /// What there is to say now.
    fn look(&mut self) -> Option<SourceEvent> {
        let now = self.feed.world.with(|w| w.millis());
        // A group is cut at random only where that is the trouble.
        let is_calm = self.feed.world.with(|w| w.calm);
        let most = if is_calm { 8 } else { self.feed.between(1, 8) as usize };
        let named = self.feed.named;
        if self.feed.manner == FeedManner::Rows {
            return self.look_for_rows(most, now, named);
        }
        let mut rows = self.feed.lock();
        if let Some(nonce) = rows.lost.pop_front() {
            return Some(SourceEvent::Lost(vec![nonce]));
        }
        if let Some(nonce) = rows.finished.pop_front() {
            return Some(SourceEvent::Finished(vec![nonce]));
        }
        if self.paused || rows.owner != self.owner {
            return None;
        }
        if let Some(batch) = self.handed.take() {
            let of = |claim: &&mut Claim| claim.nonce == Some(batch.assignment);
            rows.claims.iter_mut().filter(of).for_each(|claim| claim.handed = true);
            return Some(SourceEvent::Batch(batch));
        }
        let at = rows.next_claim(most.min(4), now)?;
        rows.next_offset += 1;
        let nonce = rows.next_offset + (rows.token << 32);
        let (assignment, batch) = rows.claim(at, nonce, named)?;
        self.handed = Some(batch);
        Some(SourceEvent::Assigned(vec![assignment]))
    }

    fn look_for_rows(&mut self, most: usize, now: u64, named: bool) -> Option<SourceEvent> {
        let mut rows = self.feed.lock();
        if rows.token != self.token {
            // Somebody else had it for a while; it is ours again.
            if self.assigned {
                self.assigned = false;
                return Some(SourceEvent::Lost(vec![self.token]));
            }
            if rows.owner != self.owner {
                return None;
            }
            self.token = rows.open();
        }
        if !self.assigned {
            self.assigned = true;
            let (start, ended) = (rows.next_offset, RangeSet::default());
            let nonce = self.token;
            let assignment = Assignment { partition: partition(), nonce, start, ended };
            return Some(SourceEvent::Assigned(vec![assignment]));
        }
        if self.paused {
            return None;
        }
        let ids = rows.next_rows(most, now);
        (!ids.is_empty()).then(|| SourceEvent::Batch(rows.batch(&ids, named)))
    }
}

#[async_trait]
impl Source for SimFeedSource {
    async fn next(&mut self) -> Result<SourceEvent, Fault> {
        loop {
            if self.feed.strikes(60) {
                return Err(Fault::wait("simulated: the feed cannot be read"));
            }
            if self.feed.strikes(40) {
                self.feed.take_away();
            }
            if let Some(said) = self.look() {
                self.feed.world.with(|w| w.note(format_args!("feed says {}", shown(&said))));
                return Ok(said);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    fn ends(&self) -> Vec<PartitionEnd> {
        vec![PartitionEnd { partition: partition(), end: self.feed.lock().next_offset }]
    }
}

impl SimFeed {
    /// Somebody else has it: what was handed out is not ours any more.
    pub fn take_away(&self) {
        let mut rows = self.lock();
        match self.manner {
            FeedManner::Rows => {
                rows.open();
            }
            FeedManner::Chats => {
                let is_out = |claim: &&mut Claim| claim.nonce.is_some();
                let Some(claim) = rows.claims.iter_mut().find(is_out) else { return };
                let Some(nonce) = claim.nonce.take() else { return };
                for id in claim.members.clone() {
                    rows.rows.entry(id).and_modify(|row| row.unsure += 1);
                }
                rows.lost.push_back(nonce);
            }
        }
    }
}

fn shown(said: &SourceEvent) -> String {
    match said {
        SourceEvent::Batch(batch) => {
            let ids = (0..batch.records.len()).filter_map(|at| Some(batch.origin(at)?.0.offset));
            format!("rows {:?}", ids.collect::<Vec<_>>())
        }
        SourceEvent::Assigned(all) => {
            format!("assigned {:x?}", all.iter().map(|of| of.nonce).collect::<Vec<_>>())
        }
        other => format!("{other:x?}"),
    }
}

struct SimFeedProgress {
    feed: SimFeed,
    owner: u64,
}

#[async_trait]
impl Progress for SimFeedProgress {
    async fn commit(&self, commit: &FeedCommit) -> Result<(), Fault> {
        let (feed, world) = (&self.feed, &self.feed.world);
        let slow = if feed.strikes(8) { feed.between(50, 3_000) } else { feed.between(0, 4) };
        tokio::time::sleep(Duration::from_millis(slow)).await;
        world.step("before a commit of the feed").await;
        if feed.strikes(10) {
            return Err(Fault::wait("simulated: the feed does not take it"));
        }
        let is_forbidden = |w: &mut State| w.enabled.contains(&Trouble::TopicForbidden);
        let (now, forbidden) = world.with(|w| (w.millis(), is_forbidden(w)));
        let ended = {
            let mut rows = feed.lock();
            match feed.manner {
                // An opening may have had several tokens; what is said under an old one is ignored.
                _ if rows.owner != self.owner => Vec::new(),
                FeedManner::Rows => rows.commit_rows(commit, now, forbidden),
                FeedManner::Chats => rows.commit_chats(commit),
            }
        };
        world.with(|w| w.note(format_args!("feed commit {commit:?}: ended {ended:?}")));
        if let Some(durable) = &feed.durable {
            for id in ended {
                let row = feed.lock().rows.get(&id).cloned();
                if row.is_some_and(|row| !durable(world, &row)) {
                    feed.lock().wrong.push(format!("row {id} has ended, and nothing came of it"));
                }
            }
        }
        world.step("after a commit of the feed").await;
        if feed.strikes(10) {
            return Err(Fault::wait("simulated: the answer of the feed was lost"));
        }
        Ok(())
    }
}
