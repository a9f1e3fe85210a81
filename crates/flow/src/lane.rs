//! A lane: one worker that takes its records through decode, process and deliver, in order.
//!
//! A lane works at its head. It takes as many records as have queued up while the last ones were
//! in flight, so batches grow under load and a lone record leaves at once. It holds no durable
//! state: the number of lanes may change between starts.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use potok_core::trouble::{Bug, planted};
use potok_core::{
    Attempts, Clock, DecodeResult, Event, Fault, Headers, Output, PipelineInfo, Position, Reason,
    Record, ShardPlace, SourceBatch, Timestamp,
};
use potok_expr::json::Parser;
use tokio::sync::mpsc;

use crate::counts::Ending;
use crate::crash_notes::{CrashNotes, Range, Suspicion};
use crate::dead_letter::{Outcome, Replay, Resolution};
use crate::deliver::{Decisions, Destination, may_call};
use crate::feed::{Failure, ShutKeys, trials};
use crate::group::{Holding, strays, with_shard};
use crate::ledger::Note;
use crate::live::Assignments;
use crate::origin::{Origin, OwnTopics, Provenance};
use crate::outgoing::{DeadLetterWriter, Outgoing, Purpose, Sender, of_leader};
use crate::plan::{DeliverPlan, Plan};
use crate::process::GroupItems;
use crate::signal::Signal;
use crate::status::Counters;
use crate::waits::Waits;
use crate::work::{Chunk, CompletedWork, Completion, Follower, Stop, ToLane};

/// How many records a lane takes through its steps together, and how many bytes of them: with more the
/// next chunk waits.
const CYCLE_RECORDS_MAX: usize = 2_000;
const CYCLE_BYTES_MAX: usize = 8 << 20;

/// Outputs that end together where that is possible: what has been made of records may be much more
/// than they were. Records of one key stay together up to a larger bound.
const OUTPUTS_BYTES_MAX: usize = 8 << 20;
const OUTPUTS_OF_KEY_BYTES_MAX: usize = 64 << 20;

/// Outputs of a single record, which always end together. No log has to take more at once.
const OUTPUTS_OF_RECORD_BYTES_MAX: usize = 256 << 20;

/// One record in a lane.
pub(crate) struct Item {
    chunk: usize,
    pub index: u32,
    /// Hash of its lane key.
    pub lane_key: u64,
    pub origin: Position,
    time: Timestamp,
    pub key: Option<Bytes>,
    headers: Headers,
    pub replay: Option<Box<Replay>>,
    /// Its group's key, where groups are held.
    pub group: Bytes,
    /// Its shard, where groups are sharded, and the file of its group.
    pub shard: Option<u32>,
    pub file: Option<Arc<str>>,
    /// Its kind and its id there.
    pub kind: Option<u16>,
    /// Its own quiet time in milliseconds; 0 where it has none.
    pub quiet: u32,
    pub id: Option<Bytes>,
    /// Another record of the cycle stands for it.
    pub superseded_by: Option<usize>,
    /// It went into the message of the record that stands for it.
    pub merged: bool,
    /// The others of its group went into its message.
    pub leads: bool,
    /// Set once decoded; taken by the last delivery.
    pub event: Option<Event>,
    /// Deliver entries that have not ended yet.
    pub open: u32,
    pub delivered: bool,
    /// An attempt before this one had delivered it under the same name.
    pub again: bool,
    pub filtered: bool,
    pub letters: Vec<Rejection>,
    /// It failed and goes back to its feed.
    pub failure: Option<Failure>,
    /// Where its feed takes failed records back: how often it is tried, and how often it failed.
    pub puts_off: Option<Attempts>,
    pub failures: u32,
    /// Under which it was handed out, where its feed puts off.
    pub assignment: u64,
    /// Its feed has named it: a header that it brings along says how.
    pub named: bool,
    /// Its group came whole.
    pub whole: bool,
    /// Deliveries to topics, each with its deliver entry.
    pub outputs: Vec<(u32, Output)>,
}

/// Why a record is set aside.
pub(crate) struct Rejection {
    pub deliver: Option<u32>,
    pub fault: Fault,
}

impl Item {
    /// A record that has not been looked at yet.
    pub fn new(chunk: usize, index: u32, lane_key: u64, origin: Origin) -> Self {
        Item {
            chunk,
            index,
            lane_key,
            origin: origin.position,
            time: origin.time,
            key: origin.key,
            headers: origin.headers,
            replay: None,
            group: Bytes::new(),
            shard: None,
            file: None,
            kind: None,
            quiet: 0,
            id: None,
            superseded_by: None,
            merged: false,
            leads: false,
            event: None,
            open: 0,
            delivered: false,
            again: false,
            filtered: false,
            letters: Vec::new(),
            failure: None,
            puts_off: None,
            failures: origin.failures,
            assignment: 0,
            named: false,
            whole: false,
            outputs: Vec::new(),
        }
    }

    /// When it came; of a copy, its record.
    pub fn time(&self) -> Timestamp {
        self.time
    }

    /// Its headers; of a replay, those of the original.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// True when a deliver entry has to run for this record.
    pub fn wants(&self, deliver: &DeliverPlan) -> bool {
        let only = self.replay.as_ref().and_then(|replay| replay.deliver);
        self.event.is_some()
            && only.is_none_or(|only| only == deliver.number)
            && deliver.shard.is_none_or(|shard| Some(shard) == self.shard)
            && deliver.kind.is_none_or(|kind| Some(kind) == self.kind)
    }

    /// The letters of a record that is set aside together with this one.
    pub fn letters_again(&self) -> Vec<Rejection> {
        let again = |letter: &Rejection| Rejection {
            deliver: letter.deliver,
            fault: of_leader(&letter.fault),
        };
        self.letters.iter().map(again).collect()
    }

    /// Where its group was, for a dead letter.
    fn place(&self) -> Option<ShardPlace> {
        let file = self.file.as_deref().map(str::to_owned);
        self.shard.map(|number| ShardPlace { number, file })
    }

    /// The chunk of the cycle that it is in.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Bytes of all that the log is given for it; a dead letter is as large as the record.
    fn output_bytes(&self, record: usize) -> usize {
        let outputs: usize = self.outputs.iter().map(|(_, output)| output.bytes()).sum();
        outputs + self.letters.len() * record
    }

    /// Sets it aside where that is more than any log takes at once.
    pub(crate) fn bound_outputs(&mut self, record: usize) {
        let bytes = self.output_bytes(record);
        if bytes > OUTPUTS_OF_RECORD_BYTES_MAX && self.ending() != Ending::HandedBack {
            let what = format!("{bytes} bytes for topics are more than one record may come to");
            self.outputs.clear();
            self.letters.clear();
            self.set_aside(Fault::set_aside(Reason::TooLarge, what));
        }
    }

    /// Sets it aside before it reached any destination.
    pub(crate) fn set_aside(&mut self, fault: Fault) {
        self.letters.push(Rejection { deliver: None, fault });
        self.event = None;
        self.open = 0;
    }

    pub fn ending(&self) -> Ending {
        match self {
            Item { open: 1.., .. } => Ending::HandedBack,
            Item { failure: Some(Failure { again: Some(_), .. }), .. } => Ending::PutOff,
            Item { failure: Some(_), .. } => Ending::DeadLettered,
            Item { letters, .. } if !letters.is_empty() => Ending::DeadLettered,
            Item { filtered: true, .. } => Ending::Filtered,
            Item { delivered: true, .. } => Ending::Delivered,
            _ => Ending::Duplicate,
        }
    }
}

pub(crate) struct Lane {
    /// Which of the lanes it is, or works for: where groups are sharded, its shard.
    pub number: usize,
    /// Its slot in the crash notes; 0 is the intake's.
    pub slot: usize,
    pub plan: Arc<Plan>,
    pub info: Arc<PipelineInfo>,
    pub own: OwnTopics,
    pub inputs: mpsc::UnboundedReceiver<ToLane>,
    pub ledger: mpsc::UnboundedSender<Note>,
    pub destinations: Arc<Vec<Destination>>,
    pub letters: Arc<DeadLetterWriter>,
    pub notes: Arc<CrashNotes>,
    pub live: Arc<Assignments>,
    pub counters: Arc<Counters>,
    pub waits: Arc<Waits>,
    pub decisions: Arc<Decisions>,
    pub clock: Arc<dyn Clock>,
    pub stopping: Arc<Signal<bool>>,
    /// How often the work at hand was tried, for people to see.
    pub attempts: Arc<AtomicU64>,
    /// Where groups are held: records that belong where a seal says, not where `by` does.
    pub strays: strays::SealKeys,
    /// A group that it sends may wait until a gate opens: meanwhile it takes in new records.
    pub gives_way: bool,
    /// Keys whose first record failed and went back to its feed.
    pub shut: ShutKeys,
}

/// The chunks of one cycle and the records made of them.
#[derive(Default)]
pub(crate) struct Cycle {
    pub chunks: Vec<Chunk>,
    pub items: Vec<Item>,
    /// Records that are given back because of one of these, which the ledger is told of first.
    pub back: Vec<Completion>,
}

impl Plan {
    /// Makes the event of a record that was decoded.
    pub(crate) fn admit(&self, item: &mut Item, record: &Record) {
        let mut position = item.origin.clone();
        if planted(Bug::NamesFromCounter) {
            position.offset = crate::deliver::counted_name();
        }
        if planted(Bug::NamesByNumber) {
            (position.log, position.topic) = (0, "".into());
        }
        let value = record.value.clone().unwrap_or_default();
        item.event = Some(Event {
            position,
            time: item.time,
            key: item.key.clone(),
            headers: with_shard(&item.headers, item.shard),
            source: value.clone(),
            value,
            tombstone: record.value.is_none(),
        });
        let wanted = self.delivers.iter().filter(|deliver| item.wants(deliver)).count();
        item.open = wanted as u32;
        // A kind that no entry asks for.
        item.filtered = wanted == 0;
    }
}

impl Lane {
    /// Works until the intake has gone and the queue is empty, or until something stops it.
    pub async fn run(mut self, holding: Option<Holding>) -> Result<(), Stop> {
        if let Some(holding) = holding {
            return self.run_holding(holding).await;
        }
        while let Some(first) = self.inputs.recv().await {
            let mut taken = Vec::new();
            let (mut records, mut bytes) = (0, 0);
            let mut next = Some(first);
            while let Some(ToLane::Chunk(chunk)) = next {
                records += chunk.records.len();
                bytes += chunk.bytes();
                taken.push(chunk);
                let has_room = records < CYCLE_RECORDS_MAX && bytes < CYCLE_BYTES_MAX;
                next = if has_room { self.inputs.try_recv().ok() } else { None };
            }
            let mut cycle = Cycle::default();
            let mut worked = self.begin(&mut cycle, taken).await;
            if planted(Bug::MarkBeforeDeliver) {
                self.mark_early(&cycle);
            }
            if worked.is_ok() {
                worked = self.deliver(&mut cycle).await;
            }
            self.settle_feeds(&mut cycle);
            self.finish(cycle);
            match worked {
                // What has queued up is handed back as well: its feed would wait for it.
                Err(Stop::Asked) if self.stopping.get() => {}
                worked => worked?,
            }
        }
        Ok(())
    }

    /// Takes chunks into the cycle: decodes them and runs the stages.
    pub(crate) async fn begin(
        &mut self,
        cycle: &mut Cycle,
        chunks: Vec<Chunk>,
    ) -> Result<(), Stop> {
        for mut chunk in chunks {
            let batch = &chunk.taken.batch;
            let is_live = self.live.contains(batch.assignment) && may_call(batch);
            if self.stopping.get() || !is_live {
                self.hand_back(&chunk);
                continue;
            }
            cycle.back.extend(self.keep_back(&mut chunk));
            let at = cycle.chunks.len();
            let first = cycle.items.len();
            let tried = trials::of_batch(&chunk.taken.batch).cloned();
            let _turn = self.turn(tried.as_ref()).await;
            for run in self.runs(&chunk) {
                let note = run.note;
                if let Some(trials) = &tried {
                    trials.notes.trying(run.offset(&chunk)).await;
                }
                let mut items = self.decode(&chunk, at, run);
                let processed = match self.own.way(&chunk.taken.batch.partition.topic) {
                    // A stage per group gets it as a group of its own.
                    Provenance::Replayed => self.process_alone(&mut items, note).await,
                    _ => self.process(&mut items, note).await,
                };
                cycle.items.extend(items);
                if let Err(stop) = processed {
                    cycle.chunks.push(chunk);
                    return Err(stop);
                }
            }
            let items = cycle.items.get_mut(first..).unwrap_or_default();
            let group = GroupItems::whole(&chunk.taken.batch, items.len());
            let processed = match &tried {
                Some(tried) => self.process_tried(items, first, group, tried).await,
                None => self.process_batches(items, first, group.into_iter()).await,
            };
            self.shut_failed(items);
            cycle.chunks.push(chunk);
            processed?;
        }
        Ok(())
    }

    /// Another chunk that has already queued up, if any.
    pub(crate) fn more(&mut self) -> Option<Chunk> {
        // Records that come while groups are sent are held, not sent with them.
        if self.plan.hold.is_some() {
            return None;
        }
        match self.inputs.try_recv() {
            Ok(ToLane::Chunk(chunk)) => Some(chunk),
            _ => None,
        }
    }

    /// Usually the whole chunk; records near which the process died run alone.
    pub(crate) fn runs(&self, chunk: &Chunk) -> Vec<RecordRun> {
        let batch = &chunk.taken.batch;
        let origin = |index: u32| batch.origin(index as usize).map(|(position, _)| position);
        let whole = |records: Vec<(u32, u64)>, fate| {
            let first = records.first().map_or(0, |(index, _)| *index);
            let last = records.last().map_or(0, |(index, _)| *index);
            RecordRun { note: Range::of_run(batch, first..last + 1, records.len()), records, fate }
        };
        let tried = trials::of_batch(batch);
        if !self.notes.any_suspects() && tried.is_none() {
            return vec![whole(chunk.records.clone(), Suspicion::None)];
        }
        let mut runs = Vec::new();
        let mut together = Vec::new();
        for &(index, lane_key) in &chunk.records {
            let suspicion = |at: Position| self.notes.suspicion_in(batch, &at);
            let fate = origin(index).map_or(Suspicion::None, suspicion);
            let fate = match tried {
                Some(trials) if !matches!(fate, Suspicion::Guilty(_)) => {
                    trials::verdict(trials, batch, index)
                }
                _ => fate,
            };
            if fate == Suspicion::None {
                together.push((index, lane_key));
                continue;
            }
            if !together.is_empty() {
                runs.push(whole(std::mem::take(&mut together), Suspicion::None));
            }
            runs.push(whole(vec![(index, lane_key)], fate));
        }
        if !together.is_empty() {
            runs.push(whole(together, Suspicion::None));
        }
        runs
    }

    pub(crate) fn decode(&self, chunk: &Chunk, at: usize, run: RecordRun) -> Vec<Item> {
        let batch = &chunk.taken.batch;
        let way = self.own.way(&batch.partition.topic);
        let find = |(index, _): &(u32, u64)| batch.records.get(*index as usize);
        let records: Vec<&Record> = run.records.iter().filter_map(find).collect();
        let guilty = match run.fate {
            Suspicion::Guilty(deaths) => Some(deaths),
            Suspicion::None | Suspicion::Alone => None,
        };
        let decoded = if guilty.is_some() {
            records.iter().map(|_| DecodeResult::AsIs).collect()
        } else {
            self.notes.enter(self.slot, run.note);
            let decoded = self.plan.decoder.decode(&records);
            self.notes.leave(self.slot);
            decoded
        };
        let hold = self.plan.hold.as_ref().filter(|hold| hold.close.when.is_none());
        let is_held = hold.is_some() && way != Provenance::Replayed;
        let mut parser = Parser::new();
        let mut items = Vec::with_capacity(records.len());
        for (((index, lane_key), record), decoded) in run.records.iter().zip(&records).zip(decoded)
        {
            let mut origin = self.own.origin(batch, *index as usize, record, way);
            let replay = std::mem::replace(&mut origin.replay, Ok(None));
            let mut item = Item::new(at, *index, *lane_key, origin);
            item.know_feed(chunk);
            let decoded = match (replay, guilty, decoded) {
                (Err(fault), ..) => Err(fault),
                (Ok(replay), guilty, decoded) => {
                    item.replay = replay;
                    match (guilty, decoded) {
                        (Some(deaths), _) => Err(crashes(deaths)),
                        (None, DecodeResult::Bad(fault)) => Err(fault),
                        (None, DecodeResult::AsIs) => Ok(()),
                    }
                }
            };
            let decoded = decoded.and_then(|()| {
                let value = record.value.as_deref().unwrap_or_default();
                self.find_group(&mut item, value, &mut parser, (batch, record, way))?;
                self.refuse_groupless(batch)
            });
            match decoded {
                // Nobody looks at it before its group is sent.
                Ok(()) if is_held => {}
                Ok(()) => self.admit(&mut item, record),
                Err(fault) => item.set_aside(fault),
            }
            item.heed_drop(chunk);
            items.push(item);
        }
        items
    }

    /// The group that a record has whatever `by` says by now: a seal names it there, or a copy
    /// was gathered for it.
    fn known_group(&self, batch: &SourceBatch, record: &Record, way: Provenance) -> Option<Bytes> {
        if planted(Bug::GroupsByKeyNow) {
            return None;
        }
        match way {
            Provenance::Straight => strays::key_of(&self.strays, batch, record).cloned(),
            Provenance::Gathered => record.key.clone(),
            Provenance::Replayed => None,
        }
    }

    fn find_group(
        &self,
        item: &mut Item,
        value: &[u8],
        parser: &mut Parser,
        (batch, record, way): (&SourceBatch, &Record, Provenance),
    ) -> Result<(), Fault> {
        if let Some(hold) = &self.plan.hold {
            let known = self.known_group(batch, record, way);
            // A gathered copy without a group keeps the record's own key.
            let is_sure = way != Provenance::Gathered || known != item.key;
            let belongs = hold.belongs(parser, item, value, known.clone().filter(|_| is_sure))?;
            let group = known.unwrap_or(belongs.group);
            item.shard = hold.shard_of(&group);
            // It goes where it was sealed for, however many shards there are by now.
            let place = item.replay.as_ref().and_then(|replay| replay.shard.as_ref());
            if let Some(place) = place.filter(|_| hold.shard.is_some()) {
                item.shard = Some(place.number);
                item.file = place.file.as_deref().map(Into::into);
            }
            (item.group, item.kind, item.id) = (group, belongs.kind, belongs.id);
            item.quiet = belongs.quiet;
        }
        Ok(())
    }

    pub(crate) fn admit(&self, item: &mut Item, record: &Record) {
        self.plan.admit(item, record);
    }

    /// Tells the ledger what became of the cycle's records: of all at once, or where much was made of
    /// them, of some after the others.
    pub(crate) fn finish(&self, cycle: Cycle) {
        let Cycle { chunks, mut items, back } = cycle;
        let record_of = |item: &Item| {
            let chunk = chunks.get(item.chunk)?;
            chunk.taken.batch.records.get(item.index as usize)
        };
        let bytes = items.iter_mut().map(|item| {
            let record = record_of(item).map_or(0, Record::bytes);
            item.bound_outputs(record);
            item.output_bytes(record)
        });
        let bytes: Vec<usize> = bytes.collect();
        for part in parts(&items, &bytes) {
            let mut completions: Vec<Completion> =
                chunks.iter().map(|chunk| Completion::of(chunk.taken.clone())).collect();
            let mut outputs = Vec::new();
            let followers = part.iter().filter_map(|at| follower(&items, *at)).collect();
            for at in part {
                let Some(item) = items.get_mut(at) else { continue };
                let ending = item.ending();
                let Some(completion) = completions.get_mut(item.chunk) else {
                    continue;
                };
                completion.endings.push((item.index, ending));
                completion.failures.extend(item.failure.take());
                if ending != Ending::HandedBack {
                    self.settle_outputs(item, completion, &mut outputs);
                }
            }
            self.complete_together(CompletedWork { completions, outputs, followers });
        }
        back.into_iter().for_each(|completion| self.complete(completion));
    }

    /// Tells the ledger of records that end together, and of what they leave, in its order.
    fn complete_together(&self, completed: CompletedWork) {
        let CompletedWork { mut completions, mut outputs, mut followers } = completed;
        // One without endings would stand for its whole batch.
        let mut kept = 0;
        let numbers = completions.iter().map(|completion| {
            kept += usize::from(!completion.endings.is_empty());
            kept.saturating_sub(1)
        });
        let numbers: Vec<usize> = numbers.collect();
        let outputs_of = outputs.iter_mut().map(|(of, _)| of);
        let followers_of = followers.iter_mut().flat_map(|follower| {
            let Follower { leader: (leader, _), own: (own, _) } = follower;
            [leader, own]
        });
        for of in outputs_of.chain(followers_of) {
            *of = numbers.get(*of).copied().unwrap_or(*of);
        }
        completions.retain(|completion| !completion.endings.is_empty());
        if planted(Bug::EndsApart) {
            for (at, completion) in completions.into_iter().enumerate() {
                let outputs = outputs.extract_if(.., |(of, _)| *of == at);
                let outputs = outputs.map(|(_, outgoing)| (0, outgoing)).collect();
                self.complete_all(CompletedWork { outputs, ..CompletedWork::from(completion) });
            }
        } else if !completions.is_empty() {
            self.complete_all(CompletedWork { completions, outputs, followers });
        }
    }

    fn settle_outputs(
        &self,
        item: &mut Item,
        completion: &mut Completion,
        outputs: &mut Vec<(usize, Outgoing)>,
    ) {
        let (chunk, index) = (item.chunk, item.index);
        let mut put = |purpose, output| {
            outputs.push((chunk, Outgoing { index, purpose, output }));
        };
        for Rejection { deliver, fault } in &item.letters {
            let sender = Sender {
                origin: item.origin.clone(),
                key: item.key.clone(),
                headers: &item.headers,
                attempts: item.replay.as_ref().map_or(1, |replay| replay.attempt),
                replay_of: item.replay.as_ref().map(|replay| replay.entry.clone()),
                shard: item.place(),
                record: completion.taken.batch.records.get(index as usize),
            };
            completion.reasons.push(fault.reason);
            put(Purpose::DeadLetter, self.letters.letter(&sender, *deliver, fault));
        }
        for (deliver, output) in item.outputs.drain(..) {
            put(Purpose::Delivery(deliver), output);
        }
        if let Some(replay) = item.replay.take() {
            let outcome = match item.ending() {
                Ending::DeadLettered => Outcome::DeadLettered,
                Ending::Filtered => Outcome::Filtered,
                Ending::Delivered => Outcome::Delivered,
                _ => Outcome::Duplicate,
            };
            let (pipeline, now) = (&self.info.pipeline, self.clock.now());
            let resolution = Resolution::of_replay(pipeline, &replay, outcome, now);
            put(Purpose::Resolution, resolution.output(&self.info));
        }
    }

    pub(crate) fn hand_back(&self, chunk: &Chunk) {
        let endings =
            chunk.records.iter().map(|(index, _)| (*index, self.handed_back(chunk, *index)));
        let endings = endings.collect();
        self.complete(Completion { endings, ..Completion::of(chunk.taken.clone()) });
    }

    /// How a record of the chunk is handed back: notes of our own were never counted.
    fn handed_back(&self, chunk: &Chunk, index: u32) -> Ending {
        let batch = &chunk.taken.batch;
        match batch.records.get(index as usize) {
            Some(record) if self.own.is_note(batch, record) => Ending::NoteHandedBack,
            _ => Ending::HandedBack,
        }
    }

    /// Tells the ledger.
    pub(crate) fn complete(&self, completion: Completion) {
        self.complete_all(completion.into());
    }

    /// The same of records that end together: one that another stands for must not be left over
    /// when the process dies.
    fn complete_all(&self, completed: CompletedWork) {
        // A ledger that is gone ended the run; these records will be read again.
        let _ = self.ledger.send(Note::Completed(completed));
    }

    /// The naive version: everything counts as ended before any destination was called.
    fn mark_early(&self, cycle: &Cycle) {
        for chunk in &cycle.chunks {
            let ended = chunk.records.iter().map(|(index, _)| (*index, Ending::Delivered));
            let endings = ended.collect();
            self.complete(Completion { endings, ..Completion::of(chunk.taken.clone()) });
        }
    }
}

/// What the ledger must know of a record that another one stands for: the log may refuse what is
/// delivered of that one.
fn follower(items: &[Item], at: usize) -> Option<Follower> {
    let item = items.get(at)?;
    let leader = items.get(item.superseded_by?)?;
    let name = |item: &Item| (item.chunk, item.index);
    let matters = !leader.outputs.is_empty() && !planted(Bug::SupersededEndsAtOnce);
    matters.then(|| Follower { leader: name(leader), own: name(item) })
}

/// Cuts the items of a cycle into parts that end after each other, in order. Records of one key, and so
/// those of a group, stay together if they can; one that another stands for is always with that one.
fn parts(items: &[Item], bytes: &[usize]) -> Vec<Vec<usize>> {
    let mut part_of = Vec::with_capacity(items.len());
    let (mut part, mut size) = (0, 0);
    let mut last_key = None;
    for (item, bytes) in items.iter().zip(bytes) {
        let is_same_key = last_key.replace(item.lane_key) == Some(item.lane_key);
        let max = match is_same_key {
            true if item.whole => usize::MAX,
            true => OUTPUTS_OF_KEY_BYTES_MAX,
            false => OUTPUTS_BYTES_MAX,
        };
        if size > 0 && size + bytes > max {
            (part, size) = (part + 1, 0);
        }
        size += bytes;
        part_of.push(part);
    }
    let mut parts = vec![Vec::new(); part + 1];
    for (at, item) in items.iter().enumerate() {
        let with = item.superseded_by.unwrap_or(at);
        let part = part_of.get(with).or(part_of.get(at)).copied().unwrap_or_default();
        if let Some(part) = parts.get_mut(part) {
            part.push(at);
        }
    }
    parts
}

/// Records of a chunk that run together.
pub(crate) struct RecordRun {
    pub note: Range,
    records: Vec<(u32, u64)>,
    fate: Suspicion,
}

impl RecordRun {
    /// Of its first record.
    fn offset(&self, chunk: &Chunk) -> Option<u64> {
        let (index, _) = self.records.first()?;
        chunk.taken.batch.records.get(*index as usize).map(|record| record.offset)
    }
}

pub(crate) fn crashes(deaths: u32) -> Fault {
    let what = format!("the process died {deaths} times while working on this record");
    Fault::set_aside(Reason::Crashes, what)
}
