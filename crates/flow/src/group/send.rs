//! Takes sealed groups through the stages to their destinations.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use foldhash::HashMap;
use potok_core::trouble::{Bug, crash_point, planted};
use potok_core::{
    CloseReason, Fault, GroupInfo, HeadersBuilder, Owner, Reason, Record, SourceBatch, Store,
    StoreAddress, Timestamp,
};

use tokio::sync::{Notify, oneshot};

use super::Holding;
use super::arrival;
use super::clean::PendingCleanup;
use super::files::{self, FileDesk};
use super::index::{Feed, HeldRecord, Index, PART_RECORDS_MAX, SealedGroup};
use super::seal::{Generation, Seal};
use super::shard_in;
use crate::counts::Ending;
use crate::crash_notes::{Range, Suspicion};
use crate::lane::{Cycle, Item, Lane};
use crate::ledger::Note;
use crate::plan::OnRepeat;
use crate::process::GroupItems;
use crate::waits::WaitsFor;
use crate::work::{Chunk, Completion, InFlightBatch, Stop};

/// Batches are sent together up to so many records: while that lasts nothing is closed. Where bodies
/// have to be read from the log itself it is more, as records of different batches lie beside each
/// other there.
const LOT_MAX: usize = 2_000;
const READ_LOT_MAX: usize = PART_RECORDS_MAX;

/// Says how often a record came that stands for its repeats.
const COUNT_HEADER: &str = "potok-count";

/// The turn of a group that waits with little in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Write,
    Send,
}

/// A member of a batch on its way.
struct Member<'a> {
    entry: &'a HeldRecord,
    batch: usize,
    record: Option<Record>,
    /// Which member of the list ends this one; itself where nothing has replaced it.
    successor: usize,
    /// How often it came.
    count: u32,
}

impl Member<'_> {
    /// Its body has to be loaded from the store, or from the log, which has what the store lacks.
    fn is_absent(&self, from_log: bool) -> bool {
        let is_there = from_log || self.entry.in_store;
        self.record.is_none() && is_there && self.successor != usize::MAX
    }
}

impl SealedGroup {
    /// What stages are told: all of it from the seal.
    fn info(&self) -> GroupInfo {
        let (mut reason, mut closed) = (self.reason, self.closed);
        if planted(Bug::ReasonFromClock) {
            reason = if self.due.is_some() { reason } else { CloseReason::Unknown };
            closed = Timestamp(closed.0 + i64::from(self.due.is_none()));
        }
        let Generation { name, part, .. } = self.generation;
        let name = format!("{name:016x}.{part}");
        GroupInfo { key: self.key.clone(), reason, opened: self.opened, closed, name }
    }
}

impl Lane {
    /// Sends the batches whose seals were read, one bounded lot of them; false where there is none.
    pub(super) async fn send_sealed(&mut self, holding: &mut Holding) -> Result<bool, Stop> {
        self.unpark_next(holding, Next::Send).await?;
        let batches = {
            let mut index = holding.board.index();
            if !index.caught_up || self.stopping.get() {
                return Ok(false);
            }
            match holding.sends_apart() {
                true => {
                    let makes_files = holding.plan.makes_files();
                    let to_send = &holding.board.to_send;
                    self.take_shard(&mut holding.desk, makes_files, to_send, &mut index)
                }
                false => {
                    let must_read = holding.store.reads_from_log() && !index.next_is_in_memory();
                    let records_max = if must_read { READ_LOT_MAX } else { LOT_MAX };
                    index.take_sealed(records_max, |feed| holding.share(&feed.partition))
                }
            }
        };
        if batches.is_empty() {
            return Ok(false);
        }
        crash_point("seal.after");
        self.attempts.store(1, Ordering::Relaxed);
        let sent = self.send(holding, &batches).await;
        let shard = batches.first().and_then(|sealed| shard_in(&sealed.key));
        drop(batches);
        if matches!(sent, Err(Stop::Shut)) {
            let left = holding.board.index().not_sent(|assignment| self.live.contains(assignment));
            for (assignment, records, notes) in left {
                let _ = self.ledger.send(Note::HandedBack { assignment, records, notes });
            }
            // The gate may be open again before anybody waits for it: whoever sends looks once more.
            holding.board.to_send.notify_one();
            return Ok(false);
        }
        holding.board.index().sent();
        self.files_go_on(&mut holding.desk, |of| of == shard);
        sent.map(|()| true)
    }

    /// Takes out the next group of a lane whose groups are sharded, one by one.
    fn take_shard(
        &self,
        desk: &mut FileDesk,
        makes_files: bool,
        to_send: &Notify,
        index: &mut Index,
    ) -> Arc<Vec<SealedGroup>> {
        self.say_strays(index);
        let Some(next) = self.next_group(desk, makes_files, index) else { return Arc::default() };
        if next.parked().is_some() {
            // Another is next than a moment ago, and its members are to be read first.
            to_send.notify_one();
            return Arc::default();
        }
        let (key, seal) = (next.key.clone(), next.seal.offset);
        shard_in(&key).into_iter().for_each(|shard| desk.tries(shard, seal));
        index.take_one(&key, seal)
    }

    /// The next group to send: in the order of the seals, past those whose shard cannot be called. A
    /// former shard has its groups in the lane of another, and must not hold that one up. Where groups
    /// become files, one whose file is not there keeps back what lies behind it in its shard.
    pub(super) fn next_group<'a>(
        &self,
        desk: &FileDesk,
        makes_files: bool,
        index: &'a Index,
    ) -> Option<&'a SealedGroup> {
        let mut seen = HashSet::new();
        let firsts = index.next_to_send().filter(|sealed| seen.insert(shard_in(&sealed.key)));
        let looked_at = if planted(Bug::ShardsShareLane) { 1 } else { usize::MAX };
        let has_file = |sealed: &SealedGroup| {
            !makes_files || sealed.records() == 0 || sealed.file.get().is_some()
        };
        firsts.take(looked_at).find(|sealed| {
            has_file(sealed) && !desk.holds(&sealed.key) && self.may_send(desk, sealed)
        })
    }

    /// False where there is no destination, and for a group that waits behind a closed gate and was tried
    /// already: there, or by the attempt that closed it.
    fn may_send(&self, desk: &FileDesk, sealed: &SealedGroup) -> bool {
        let shard = shard_in(&sealed.key);
        match shard.and_then(|shard| Some((shard, self.shut_gate_of(shard)?))) {
            Some((shard, gate)) => {
                gate.want();
                gate.has_refused() && !desk.has_tried(shard, sealed.seal.offset)
            }
            None => self.has_destination(&sealed.key),
        }
    }

    /// Reads the members of the next group from its seal again, where memory does not have them.
    pub(super) async fn unpark_next(&mut self, holding: &Holding, to: Next) -> Result<(), Stop> {
        if !holding.sends_apart() {
            // Nobody has parked anything.
            return Ok(());
        }
        let (key, seal, parked, feeds) = {
            let index = holding.board.index();
            let next = match to {
                Next::Write => index.next_unwritten(|sealed| !holding.desk.holds(&sealed.key)),
                Next::Send => self.next_group(&holding.desk, holding.plan.makes_files(), &index),
            };
            match next.and_then(|sealed| Some((sealed, sealed.parked()?))) {
                Some((sealed, parked)) => {
                    (sealed.key.clone(), sealed.seal.clone(), parked.clone(), index.feeds.clone())
                }
                None => return Ok(()),
            }
        };
        let Some(feed) = feeds.get(seal.feed as usize) else { return Ok(()) };
        let owner = holding.owner(&feed.partition, feed.assignment);
        let place = |feed: &Feed, offset: u64| StoreAddress {
            group: key.clone(),
            kind: None,
            id: None,
            position: feed.position(offset),
            with: offset,
        };
        let log = holding.log.clone();
        let lost =
            || Stop::Reread(format!("the log has no seal at {}", feed.position(seal.offset)));
        let places = [place(feed, seal.offset)];
        let read = self.insist(&*log, || log.load(&owner, &places)).await?.pop().flatten();
        let read = read.and_then(|record| Seal::read(record.value.as_deref().unwrap_or_default()));
        let members = read.ok_or_else(lost)?.members;
        let entries = parked.entries(&members, &feeds).ok_or_else(lost)?;
        holding.board.index().unpark(&key, &seal, entries);
        Ok(())
    }

    /// False for a shard that there is no destination for any more.
    fn has_destination(&self, group: &[u8]) -> bool {
        !self.has_shards() || shard_in(group).is_some_and(|shard| self.leads_to(shard))
    }

    /// The same by the number of the shard.
    pub(super) fn leads_to(&self, shard: u32) -> bool {
        !self.has_shards() || self.plan.delivers.iter().any(|deliver| deliver.shard == Some(shard))
    }

    /// True where shards have destinations of their own.
    fn has_shards(&self) -> bool {
        self.plan.delivers.iter().any(|deliver| deliver.shard.is_some())
    }

    /// Says what has no destination since there are fewer shards: it stays where it was sealed for, and
    /// waits for that. The others go on.
    fn say_strays(&self, index: &Index) {
        let is_stray = |sealed: &&SealedGroup| !self.has_destination(&sealed.key);
        let mut strays: Vec<String> = index
            .sealed()
            .filter(is_stray)
            .map(|sealed| String::from_utf8_lossy(&sealed.key).into_owned())
            .collect();
        let files = strays.len();
        let replays = index.replays.shards().filter(|(shard, _)| !self.leads_to(*shard));
        let replays: Vec<(u32, usize)> = replays.collect();
        strays.extend(replays.iter().map(|(shard, _)| shard.to_string()));
        let Some(group) = strays.iter().min() else {
            return self.waits.end(WaitsFor::Destination, self.slot);
        };
        let replays: usize = replays.iter().map(|(_, count)| count).sum();
        let what = format!(
            "{files} sealed groups and {replays} replays wait for shards that have no destination: \
             `{group}`"
        );
        let hint = "give the shard its connection in potok.yaml, or set `shard.of` back, until what \
                    was sealed for it is delivered; the other shards go on";
        let fault = Fault::wait(what).code("P1401").hint(hint).needs_somebody();
        self.waits.begin_with(WaitsFor::Destination, self.slot, &fault);
    }

    async fn send(&mut self, holding: &mut Holding, batches: &[SealedGroup]) -> Result<(), Stop> {
        let feeds = holding.board.index().feeds.clone();
        // They are all of one share; without a batch there was nothing to send.
        let seal = batches.first().and_then(|sealed| feeds.get(sealed.seal.feed as usize));
        let Some(Feed { partition, assignment, .. }) = seal else { return Ok(()) };
        let owner = holding.owner(partition, *assignment);
        let store = holding.store.clone();
        if !store.reads_from_log() {
            let groups: Vec<_> = batches.iter().map(|sealed| sealed.key.clone()).collect();
            self.insist(&*store, || store.close(&owner, &groups)).await?;
        }
        let members = self.members(holding, batches, &feeds, &owner).await?;
        let repeats = members.iter().enumerate().filter(|(at, member)| member.successor != *at);
        self.counters.duplicate_ids.fetch_add(repeats.count() as u64, Ordering::Relaxed);
        // Where groups become files they are sent one by one. One without records left has ended.
        let file = batches.first().filter(|sealed| !sealed.entries.is_empty());
        let file = file.filter(|_| holding.plan.makes_files());
        if let Some(sealed) = file {
            self.file_enters_stages(holding, sealed, &feeds).await?;
        }
        let stored = match store.reads_from_log() {
            true => Vec::new(),
            false => places(holding, batches, members.iter(), &feeds),
        };
        let bytes = members.iter().map(|member| u64::from(member.entry.bytes)).sum();
        let mut cycle = match self.revive(members, &feeds, batches).await {
            Ok(cycle) => cycle,
            Err(stop) => {
                if let (Stop::Fix(fault), Some(sealed)) = (&stop, file) {
                    self.file_failed_in_stages(holding, sealed, &feeds, fault).await;
                }
                return Err(stop);
            }
        };
        if let Some(sealed) = file {
            self.file_leaves_stages(holding, sealed, &feeds).await?;
        }
        if planted(Bug::SealEndsFirst) {
            self.end_seals(batches, &feeds);
        }
        crash_point("batch.before");
        // Where shards have destinations of their own, a closed gate must not keep this lane from
        // taking in: room is shared with the others.
        self.gives_way = self.has_shards();
        let delivered = self.deliver(&mut cycle).await;
        self.gives_way = false;
        if matches!(delivered, Err(Stop::Shut)) {
            // Nothing of it has ended. What was taken is recognised when it comes again.
            if let Some(sealed) = file {
                self.file_waits(holding, sealed, &feeds).await;
            }
            return Err(Stop::Shut);
        }
        crash_point("batch.after");
        match (file, &delivered) {
            (Some(sealed), Ok(())) => {
                hold_back(&mut cycle.items);
                inherit(&mut cycle.items);
                self.file_is_done(holding, sealed, &feeds, &mut cycle).await?;
            }
            // Its row is not done, so nothing of it has ended.
            (Some(_), Err(_)) => files::hand_all_back(&mut cycle),
            (None, _) => {}
        }
        let ended = self.end(cycle, batches, &feeds);
        delivered?;
        if ended {
            let lot = PendingCleanup { owner, assignment: *assignment, bytes, places: stored };
            holding.sent.push(self.durable(), lot);
        }
        Ok(())
    }

    /// The members of groups, in their order, with their bodies.
    async fn members<'a>(
        &mut self,
        holding: &Holding,
        batches: &'a [SealedGroup],
        feeds: &[Feed],
        owner: &Owner,
    ) -> Result<Vec<Member<'a>>, Stop> {
        let mut members = Vec::new();
        for (batch, sealed) in batches.iter().enumerate() {
            let first = members.len();
            let entries = arrival::sort(sealed.entries.iter().collect(), |entry| entry.arrival);
            members.extend(entries.into_iter().enumerate().map(|(at, entry)| Member {
                entry,
                batch,
                record: entry.body.as_ref().map(|body| body.record(entry.offset, entry.time)),
                successor: first + at,
                count: 1,
            }));
            if let Some(of_batch) = members.get_mut(first..) {
                supersede(of_batch, first, holding.plan.on_repeat);
            }
        }
        for (from, from_log) in [(&holding.store, false), (&holding.log, true)] {
            let absent = |member: &&Member<'_>| member.is_absent(from_log);
            let places = places(holding, batches, members.iter().filter(absent), feeds);
            let absent = members.iter_mut().filter(|member| member.is_absent(from_log));
            self.load(&**from, owner, &places, absent).await?;
        }
        let is_lost = |member: &&Member<'_>| member.is_absent(true);
        if let Some(lost) = places(holding, batches, members.iter().filter(is_lost), feeds).first()
        {
            return Err(Stop::Reread(format!("not even the log has {}", lost.position)));
        }
        Ok(members)
    }

    /// Writes the file of a group that cannot be sent now.
    pub(super) async fn write_from_log(
        &mut self,
        holding: &mut Holding,
        batches: &[SealedGroup],
        feeds: &[Feed],
    ) -> Result<(), Stop> {
        let Some(sealed) = batches.first() else { return Ok(()) };
        let Some(seal) = feeds.get(sealed.seal.feed as usize) else { return Ok(()) };
        let owner = holding.owner(&seal.partition, seal.assignment);
        let members = self.members(holding, batches, feeds, &owner).await?;
        let content = content(&members);
        self.write_file(holding, sealed, feeds, content).await
    }

    /// Loads bodies that are not in memory, as far as they are there.
    async fn load<'a, 'b: 'a>(
        &mut self,
        store: &dyn Store,
        owner: &Owner,
        places: &[StoreAddress],
        members: impl Iterator<Item = &'a mut Member<'b>>,
    ) -> Result<(), Stop> {
        if places.is_empty() {
            return Ok(());
        }
        let bodies = self.insist(store, || store.load(owner, places)).await?;
        for (member, body) in members.zip(bodies) {
            if body.is_none() && planted(Bug::StoreLossIgnored) {
                member.successor = usize::MAX;
            }
            member.record = body;
        }
        Ok(())
    }

    /// Makes events of held records again and takes them through the stages, partition by
    /// partition; then puts them back into the order of their batches, for the stages that want
    /// those whole.
    async fn revive(
        &mut self,
        members: Vec<Member<'_>>,
        feeds: &[Feed],
        batches: &[SealedGroup],
    ) -> Result<Cycle, Stop> {
        let mut cycle = Cycle::default();
        let mut sizes = vec![0; batches.len()];
        for member in &members {
            if let Some(size) = sizes.get_mut(member.batch) {
                *size += 1;
            }
        }
        let mut items: Vec<Option<Item>> = members.iter().map(|_| None).collect();
        let mut by_feed: Vec<Vec<(usize, Member<'_>)>> = feeds.iter().map(|_| Vec::new()).collect();
        for (at, member) in members.into_iter().enumerate() {
            if let Some(list) = by_feed.get_mut(member.entry.feed as usize) {
                list.push((at, member));
            }
        }
        for (feed, mut members) in feeds.iter().zip(by_feed) {
            if members.is_empty() {
                continue;
            }
            members.sort_by_key(|(_, member)| member.entry.offset);
            let chunk = chunk_of(
                feed,
                members.iter_mut().map(|(_, member)| (member.entry, member.record.take())),
            );
            let chunk = self.again(chunk);
            let mut revived = self.items_of(&chunk, cycle.chunks.len(), &members, batches);
            self.process_noted(&chunk, &mut revived).await?;
            for ((at, _), item) in members.iter().zip(revived) {
                if let Some(place) = items.get_mut(*at) {
                    *place = Some(item);
                }
            }
            cycle.chunks.push(chunk);
        }
        cycle.items = items.into_iter().flatten().collect();
        let together = batches.iter().zip(sizes).filter_map(|(sealed, members)| {
            let feed = feeds.get(sealed.seal.feed as usize)?;
            let seal = feed.position(sealed.seal.offset);
            Some(GroupItems { group: sealed.info(), seal, members, is_tried: false })
        });
        self.process_batches(&mut cycle.items, 0, together).await?;
        Ok(cycle)
    }

    /// A chunk of records that are in flight already, and in room that they gave back long ago.
    pub(super) fn again(&self, (batch, covers): (SourceBatch, Vec<std::ops::Range<u64>>)) -> Chunk {
        let records = (0..).zip(&batch.records).map(|(index, _)| (index, 0)).collect();
        Chunk {
            taken: Arc::new(InFlightBatch::again(batch, covers, self.counters.clone())),
            records,
        }
    }

    fn items_of(
        &self,
        chunk: &Chunk,
        at: usize,
        members: &[(usize, Member<'_>)],
        batches: &[SealedGroup],
    ) -> Vec<Item> {
        let records = &chunk.taken.batch.records;
        let way = self.own.way(&chunk.taken.batch.partition.topic);
        let mut items = Vec::with_capacity(records.len());
        for ((index, record), (own, member)) in (0..).zip(records).zip(members) {
            let origin = self.own.origin(&chunk.taken.batch, index as usize, record, way);
            let mut item = Item::new(at, index, 0, origin);
            if let Some(sealed) = batches.get(member.batch) {
                item.lane_key = crate::source::hash_of(&sealed.key);
                let hold = self.plan.hold.as_ref();
                item.shard = hold.and_then(|hold| hold.shard_of(&sealed.key));
                item.file = sealed.file.get().cloned();
                if planted(Bug::ShardByNow) {
                    let plan = hold.and_then(|hold| hold.shard.as_ref());
                    item.shard = plan.and_then(|plan| plan.of_value(record.value.as_deref()));
                }
            }
            (item.kind, item.id) = (member.entry.kind, member.entry.id.clone());
            if batches.get(member.batch).is_some_and(|sealed| sealed.dropped) {
                let what = "its batch was dropped by hand";
                item.set_aside(Fault::set_aside(Reason::Dropped, what));
                items.push(item);
                continue;
            }
            if member.successor != *own {
                item.superseded_by = Some(member.successor);
                items.push(item);
                continue;
            }
            self.admit(&mut item, record);
            if let (2.., Some(event)) = (member.count, &mut item.event) {
                let count = member.count.to_string();
                let headers = HeadersBuilder::new().add_all(&event.headers);
                event.headers = headers.add(COUNT_HEADER, Some(count.as_bytes())).build();
            }
            items.push(item);
        }
        items
    }

    /// Runs the stages with crash notes: records near which the process died run alone.
    async fn process_noted(&mut self, chunk: &Chunk, items: &mut [Item]) -> Result<(), Stop> {
        let batch = &chunk.taken.batch;
        if !self.notes.any_suspects() {
            return self.process(items, Range::of_batch(batch, batch.first, batch.next)).await;
        }
        for item in items {
            let Some(record) = batch.records.get(item.index as usize) else { continue };
            let position = batch.position(record);
            match self.notes.suspicion(&position) {
                Suspicion::Guilty(deaths) => item.set_aside(crate::lane::crashes(deaths)),
                Suspicion::None | Suspicion::Alone => {
                    let note = Range::of_record(&position);
                    self.process(std::slice::from_mut(item), note).await?;
                }
            }
        }
        Ok(())
    }

    /// Tells the ledger what became of the batches, and if all of them have ended, of their
    /// seals.
    fn end(&self, mut cycle: Cycle, batches: &[SealedGroup], feeds: &[Feed]) -> bool {
        hold_back(&mut cycle.items);
        if !planted(Bug::SupersededEndsAtOnce) {
            inherit(&mut cycle.items);
        }
        let all_ended = cycle.items.iter().all(|item| item.ending() != Ending::HandedBack);
        self.finish(cycle);
        if all_ended {
            self.end_seals(batches, feeds);
        }
        all_ended
    }

    fn end_seals(&self, batches: &[SealedGroup], feeds: &[Feed]) {
        for (at, feed) in (0..).zip(feeds) {
            let mut seals: Vec<&HeldRecord> = batches.iter().map(|sealed| &sealed.seal).collect();
            seals.retain(|seal| seal.feed == at);
            if seals.is_empty() {
                continue;
            }
            seals.sort_by_key(|seal| seal.offset);
            let chunk = self.again(chunk_of(feed, seals.into_iter().map(|seal| (seal, None))));
            let endings = chunk.records.iter().map(|(index, _)| (*index, Ending::Sealed));
            let endings = endings.collect();
            self.complete(Completion { endings, ..Completion::of(chunk.taken) });
        }
    }

    /// Answers when everything told to the ledger so far is durable; an error where it is gone.
    fn durable(&self) -> oneshot::Receiver<()> {
        let (done, durable) = oneshot::channel();
        let _ = self.ledger.send(Note::Durable(done));
        durable
    }
}

/// What the file of a group has: a line for each record as it came.
fn content(members: &[Member<'_>]) -> Bytes {
    let mut content = Vec::new();
    for record in members.iter().filter_map(|member| member.record.as_ref()) {
        files::push_line(&mut content, record.value.as_deref());
    }
    content.into()
}

/// Where members lie in the store.
fn places<'a>(
    holding: &Holding,
    batches: &[SealedGroup],
    members: impl Iterator<Item = &'a Member<'a>>,
    feeds: &[Feed],
) -> Vec<StoreAddress> {
    let kinds = &holding.plan.kinds;
    let place = |member: &Member<'_>| {
        let feed = feeds.get(member.entry.feed as usize)?;
        let kind = member.entry.kind.and_then(|kind| kinds.get(usize::from(kind)));
        Some(StoreAddress {
            group: batches.get(member.batch)?.key.clone(),
            kind: kind.map(|kind| kind.name.clone()),
            id: member.entry.id.clone(),
            position: feed.position(member.entry.offset),
            with: member.entry.with,
        })
    };
    members.filter_map(place).collect()
}

/// Records of one partition as a batch of their own, each standing for its offsets alone.
pub(super) fn chunk_of<'a>(
    feed: &Feed,
    records: impl Iterator<Item = (&'a HeldRecord, Option<Record>)>,
) -> (SourceBatch, Vec<std::ops::Range<u64>>) {
    let mut batch = SourceBatch {
        partition: feed.partition.clone(),
        log: feed.log,
        assignment: feed.assignment,
        first: u64::MAX,
        next: 0,
        records: Vec::new(),
        order: None,
        feed: None,
    };
    let mut covers = Vec::new();
    for (entry, record) in records {
        let range = entry.covers();
        batch.first = batch.first.min(range.start);
        batch.next = batch.next.max(range.end);
        covers.push(range);
        batch.records.push(record.unwrap_or_else(|| Record {
            offset: entry.offset,
            time: entry.time,
            key: None,
            headers: potok_core::Headers::none(),
            value: None,
        }));
    }
    (batch, covers)
}

/// Finds who stands for whom among the members of one batch; `first` is where they begin in the
/// list of all.
fn supersede(members: &mut [Member<'_>], first: usize, on_repeat: OnRepeat) {
    if on_repeat == OnRepeat::Keep {
        return;
    }
    let mut standing: HashMap<(Option<u16>, &[u8]), usize> = HashMap::default();
    let mut successors: Vec<usize> = (0..members.len()).collect();
    let mut counts = vec![1_u32; members.len()];
    for (at, member) in members.iter().enumerate() {
        let Some(id) = &member.entry.id else { continue };
        let stands = standing.entry((member.entry.kind, id)).or_insert(at);
        if *stands == at {
            continue;
        }
        let (stays, goes) = match on_repeat {
            OnRepeat::Replace => (at, *stands),
            OnRepeat::Count | OnRepeat::Keep => (*stands, at),
        };
        if let Some(successor) = successors.get_mut(goes) {
            *successor = stays;
        }
        if let Some(count) = counts.get_mut(stays) {
            *count += 1;
        }
        *stands = stays;
    }
    for (at, member) in members.iter_mut().enumerate() {
        // Who was replaced may have been replaced again: follow to the last.
        let mut successor = at;
        while let Some(next) = successors.get(successor).copied().filter(|next| *next != successor)
        {
            successor = next;
        }
        member.successor = first + successor;
        if on_repeat == OnRepeat::Count {
            member.count = counts.get(at).copied().unwrap_or(1);
        }
    }
}

/// What lies behind a record of its group that has not ended, has not ended either: its outputs
/// would overtake it.
fn hold_back(items: &mut [Item]) {
    let mut stopped: HashSet<u64> = HashSet::new();
    for item in items {
        if item.ending() == Ending::HandedBack {
            stopped.insert(item.lane_key);
        } else if stopped.contains(&item.lane_key) {
            item.open = item.open.max(1);
        }
    }
}

/// A record that another one stands for ends when and as that one ends.
pub(crate) fn inherit(items: &mut [Item]) {
    for at in 0..items.len() {
        let Some(successor) = items.get(at).and_then(|item| item.superseded_by) else { continue };
        let (ending, letters) = match items.get(successor) {
            Some(successor) => (successor.ending(), successor.letters_again()),
            None if planted(Bug::StoreLossIgnored) => continue,
            None => (Ending::HandedBack, Vec::new()),
        };
        let Some(item) = items.get_mut(at) else { continue };
        match ending {
            Ending::HandedBack => item.open = 1,
            Ending::DeadLettered => item.letters = letters,
            Ending::Delivered if item.merged => item.delivered = true,
            Ending::Filtered if item.merged => item.filtered = true,
            _ => {}
        }
    }
}
