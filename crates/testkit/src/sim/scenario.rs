//! What one run is made of: the pipeline, its destinations, and what happens when.
//!
//! A seed gives a whole scenario; named tests write theirs by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use potok_core::Output;

use super::chance::Chance;
use super::pipeline::{DEAD, GROUP, SECOND_GROUP};
use super::sink::{Manner, Spell, Style};
use super::trouble::Trouble;
use super::workload::Workload;

/// Something that is done to the process or the world.
#[derive(Clone, Debug)]
pub enum Act {
    /// Records are sent.
    Send(Vec<Output>),
    /// Somebody pauses the pipeline.
    Pause,
    /// Somebody resumes it.
    Resume,
    /// Somebody replays up to this many open dead letters.
    Replay(usize),
    /// Somebody drops up to this many open dead letters.
    Drop(usize),
    /// The wall clock jumps by this many milliseconds.
    Jump(i64),
    /// The clock of a shared log jumps by this many milliseconds.
    JumpOfLog(i64),
    /// The process dies now.
    Crash,
    /// The process dies at the n-th call from now.
    CrashInCalls(u64),
    /// The process is stopped in good order and started again.
    Drain,
    /// The destinations take [`super::workload::RecordKind::Late`] records from now on.
    Mend,
    /// The store of held records loses everything.
    Flush,
    /// It loses the bodies it has.
    Evict,
    /// Only so many bodies fit into it from now on.
    Room(Option<usize>),
    /// A replica of it gets to know all that is there now.
    Replicate,
    /// The replica takes over: the store is what it was then.
    Promote,
    /// That process stands still for so many milliseconds.
    Freeze(usize, u64),
    /// That process dies for good; the others live on.
    Kill(usize),
    /// Somebody closes the open groups of that key now.
    Release(&'static str),
    /// The disk is full, until everything that is there has ended.
    FillDisk,
    /// By now everything that was sent has ended, without anything more being sent.
    AllEnded,
    /// The process dies, and before it starts again this topic is deleted and made anew, with these
    /// records.
    MakeAnew(Arc<str>, Vec<Output>),
}

/// What somebody changes in the pipeline while its process is down.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// What groups are made by.
    By(Option<&'static str>),
    /// The stage filters [`super::workload::RecordKind::Unwanted`] records.
    Filter,
    /// The decoder refuses [`super::workload::RecordKind::Outdated`] records.
    Schema,
}

/// From this seed on pipelines hold records in groups.
pub const HELD_SEEDS: u64 = 1 << 32;

/// From this seed on they read in two consumer groups; every other one holds records.
pub const TWO_GROUPS_SEEDS: u64 = 2 << 32;

/// Bytes in a large record. A dead letter of it goes in pieces where outputs may be half as large.
pub const LARGE: usize = 4_000;

/// How records are held.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// The field that groups are made by; without, all records are one group.
    pub by: Option<&'static str>,
    /// A group closes so many milliseconds after its first record,
    pub after_first: u64,
    /// or when nothing has come for so long,
    pub quiet: Option<u64>,
    /// or with so many records.
    pub max_count: Option<usize>,
    /// Bodies are in a store that outlives the process; else they are lost with it.
    pub stored: bool,
    /// A later record of the same `.id` takes the place of the earlier in its group.
    pub replace: bool,
}

/// How large seals may be.
#[derive(Clone, Copy, Debug)]
pub struct SealMax {
    pub bytes: usize,
    /// The log says so before it refuses one.
    pub is_told: bool,
}

/// One deliver entry.
#[derive(Clone, Debug)]
pub struct Deliver {
    /// Where to.
    pub to: SimTarget,
    /// The key is `.k` instead of the record's own.
    pub key_by_k: bool,
    /// Once per `.id`.
    pub once: bool,
}

/// Where a deliver entry leads.
#[derive(Clone, Debug)]
pub enum SimTarget {
    /// A simulated destination of that manner; its table has the number of the entry.
    Sink(Manner),
    Topic(Arc<str>),
}

/// The stage, where the pipeline has one.
#[derive(Clone, Copy, Debug)]
pub struct StageManner {
    /// Adds a blank to every value.
    pub rewrites: bool,
    /// What it cannot handle becomes a dead letter, else it goes on as it was.
    pub dead_letters: bool,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where its chance comes from.
    pub seed: u64,
    /// The kinds of trouble it may make.
    pub enabled: BTreeSet<Trouble>,
    /// Partitions of every topic.
    pub partitions: u32,
    /// What the pipeline reads.
    pub topics: Vec<Arc<str>>,
    /// It reads its first topic in one consumer group and the others in another.
    pub two_groups: bool,
    /// The largest seal that the internal topic takes, where the log is shared.
    pub seal_max: Option<SealMax>,
    /// Groups are read apart from each other though the log is one process's own, so that records
    /// of the two have no order between them but their times.
    pub read_apart: bool,
    /// Workers of each life in turn; the last number stays.
    pub workers: Vec<usize>,
    /// Where records are delivered.
    pub delivers: Vec<Deliver>,
    pub stage: Option<StageManner>,
    /// How records are held in groups, if they are.
    pub hold: Option<Hold>,
    /// Lanes go by `.k`.
    pub order_by_k: bool,
    /// Attempts of a call, first and longest wait between them.
    pub retry: (u32, Duration, Duration),
    /// How often a closed gate asks.
    pub probe_every: Duration,
    /// After so many milliseconds somebody has a poisonous record set aside that waits for a
    /// decision.
    pub decides_after: Option<u64>,
    /// Room for records in flight.
    pub in_flight_bytes: usize,
    /// Transactions that may be on their way at a time.
    pub overlap: usize,
    /// Processes that share the log; with more than none, records are gathered in groups by it.
    pub sharing: usize,
    /// While the end is awaited, something healthy comes now and then.
    pub helped: bool,
    /// How long nobody lives after a death, in milliseconds.
    pub down: u64,
    /// While the run goes on, no record is open for longer than so many milliseconds.
    pub open_max: Option<u64>,
    /// When which destination is not itself.
    pub spells: BTreeMap<usize, Vec<Spell>>,
    /// What is changed before which life, counted from 0.
    pub changes: Vec<(usize, Change)>,
    /// What happens when, in milliseconds; ascending.
    pub acts: Vec<(u64, Act)>,
}

impl Scenario {
    /// One topic of one partition, one worker, one transactional destination, no trouble.
    pub fn plain(seed: u64) -> Self {
        Scenario {
            seed,
            enabled: BTreeSet::new(),
            partitions: 1,
            topics: vec!["in".into()],
            two_groups: false,
            seal_max: None,
            read_apart: false,
            workers: vec![1],
            delivers: vec![Deliver {
                to: SimTarget::Sink(Manner::default()),
                key_by_k: false,
                once: false,
            }],
            stage: None,
            hold: None,
            order_by_k: false,
            retry: (3, Duration::from_millis(20), Duration::from_millis(500)),
            probe_every: Duration::from_millis(500),
            decides_after: Some(5_000),
            in_flight_bytes: 1 << 20,
            overlap: 1,
            sharing: 0,
            helped: true,
            down: 0,
            open_max: None,
            spells: BTreeMap::new(),
            changes: Vec::new(),
            acts: Vec::new(),
        }
    }

    /// The scenario of a seed.
    pub fn of_seed(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let mut scenario = Scenario::plain(seed);
        // A third of all kinds at once, so that each seed has its own mixture.
        let (together, alone) = Trouble::ALL.split_at(Trouble::TOGETHER);
        let enabled = together.iter().copied().filter(|_| chance.one_in(3));
        scenario.enabled = enabled.collect();
        for (trouble, at) in alone.iter().zip(1..) {
            if Chance::new(seed ^ (at << 40)).one_in(3) {
                scenario.enabled.insert(*trouble);
            }
        }
        let is_held = seed >= HELD_SEEDS && (seed < TWO_GROUPS_SEEDS || seed % 2 == 1);
        if is_held {
            // Members and seal of a group never change hands apart: where the log is not shared
            // it keeps all its partitions.
            if !is_like_kafka(seed) {
                scenario.enabled.remove(&Trouble::Revoked);
                scenario.enabled.remove(&Trouble::Lost);
            }
        }
        scenario.partitions = chance.between(1, 4) as u32;
        scenario.two_groups = seed >= TWO_GROUPS_SEEDS;
        if chance.one_in(3) || scenario.two_groups {
            scenario.topics.push("in-two".into());
        }
        scenario.workers = (0..6).map(|_| chance.between(1, 5) as usize).collect();
        if !scenario.enabled.contains(&Trouble::WorkersChanged) {
            scenario.workers.truncate(1);
        }
        scenario.delivers = delivers(&mut chance);
        scenario.stage = chance
            .one_in(2)
            .then(|| StageManner { rewrites: chance.one_in(2), dead_letters: chance.one_in(2) });
        scenario.order_by_k = chance.one_in(3);
        scenario.retry = (
            chance.between(2, 4) as u32,
            Duration::from_millis(chance.between(5, 100)),
            Duration::from_millis(chance.between(100, 2_000)),
        );
        scenario.probe_every = Duration::from_millis(chance.between(100, 2_000));
        // Where room is scarce, the followers of a poisonous record may keep all others out; see
        // `add_flaps`.
        if chance.one_in(4) && !scenario.enabled.contains(&Trouble::Poison) {
            scenario.in_flight_bytes = chance.between(300, 3_000) as usize;
        }
        scenario.overlap = if is_like_kafka(seed) { 4 } else { 1 };
        scenario.helped = Chance::new(seed ^ 0x4e1b).one_in(2);
        scenario.keep_possible();
        let span = chance.between(3_000, 60_000);
        scenario.spells = scenario.make_spells(&mut chance, span);
        scenario.acts = scenario.make_acts(&mut chance, span);
        if is_held {
            scenario.add_hold(span);
        }
        let apart = Chance::new(seed ^ 0xa9a47).one_in(2);
        scenario.read_apart = scenario.two_groups && scenario.sharing == 0 && apart;
        scenario.add_flaps(span);
        scenario
    }

    /// Lets destinations come and go fast, and room be scarce where records are poisonous; from a
    /// chance of its own, so that the rest is as it would be without.
    fn add_flaps(&mut self, span: u64) {
        let mut chance = Chance::new(self.seed ^ 0xf1a95);
        let trouble = Trouble::SinkRetriesAll;
        if self.enabled.contains(&trouble) && chance.one_in(2) {
            for spells in self.spells.values_mut() {
                let longest = chance.between(10, 2_000);
                for _ in 0..chance.between(5, 60) {
                    let from = chance.below(span);
                    let to = from + chance.between(1, longest);
                    spells.push(Spell { from, to, trouble });
                }
            }
        }
        if self.enabled.contains(&Trouble::Poison) && chance.one_in(4) {
            self.in_flight_bytes = chance.between(300, 3_000) as usize;
        }
    }

    /// Takes away trouble that a log of its kind cannot make: one of whole transactions refuses none
    /// of their outputs and loses nothing beside its positions, and a shared one has many disks.
    fn keep_possible(&mut self) {
        let impossible: &[Trouble] = match is_like_kafka(self.seed) {
            true => &[Trouble::DiskFull],
            false => &[Trouble::TooLarge, Trouble::MetadataLost],
        };
        self.enabled.retain(|trouble| !impossible.contains(trouble));
        // Only what is large is refused.
        if !self.enabled.contains(&Trouble::TooLarge) {
            self.enabled.remove(&Trouble::CopyRefused);
        }
        // A poisonous record keeps the disk full until somebody decides.
        if self.enabled.contains(&Trouble::Poison) {
            self.enabled.remove(&Trouble::DiskFull);
        }
    }

    /// Lets the internal topic take only small seals in some scenarios, and say so.
    fn add_seal_max(&mut self) {
        let mut chance = Chance::new(self.seed ^ 0x5ea1);
        if self.sharing > 0 && chance.one_in(3) {
            let bytes = chance.between(1_050, 3_000) as usize;
            self.seal_max = Some(SealMax { bytes, is_told: true });
        }
    }

    /// The largest output that topics take which are not read by the pipeline.
    pub fn output_max(&self) -> Option<usize> {
        self.enabled.contains(&Trouble::TooLarge).then_some(LARGE / 2)
    }

    /// The topics that take no larger one: those which the pipeline does not read itself.
    pub fn limited(&self) -> Vec<Arc<str>> {
        let topic = |deliver: &Deliver| match &deliver.to {
            SimTarget::Topic(topic) => Some(topic.clone()),
            SimTarget::Sink(_) => None,
        };
        self.delivers.iter().filter_map(topic).chain([DEAD.into()]).collect()
    }

    /// Makes groups of a scenario without; from a chance of its own, so that the rest is as it
    /// would be without them.
    fn add_hold(&mut self, span: u64) {
        let mut chance = Chance::new(self.seed ^ 0x6801d);
        self.hold = Some(Hold {
            by: (!chance.one_in(5)).then_some(".k"),
            after_first: chance.between(1, 3_000),
            quiet: chance.one_in(3).then(|| chance.between(1, 1_000)),
            max_count: chance.one_in(3).then(|| chance.between(1, 12) as usize),
            stored: chance.one_in(2),
            replace: false,
        });
        // Long windows, so that silence and fullness are seen to close groups; not where something
        // comes now and then until all windows are over.
        let helped = self.helped;
        let is_closed_early = |hold: &&mut Hold| hold.quiet.is_some() || hold.max_count.is_some();
        if let Some(hold) = self.hold.as_mut().filter(is_closed_early).filter(|_| !helped)
            && Chance::new(self.seed ^ 0x1a7e).one_in(2)
        {
            hold.after_first *= 10;
        }
        if is_like_kafka(self.seed) {
            self.sharing = chance.between(1, 3) as usize;
        }
        for _ in 0..chance.below(4) {
            let act = if chance.one_in(2) { Act::Flush } else { Act::Evict };
            self.acts.push((chance.below(span), act));
        }
        // Once per business id is another rule about the same id.
        if chance.one_in(4) && !self.delivers.iter().any(|deliver| deliver.once) {
            self.add_versions(&mut chance, span);
        }
        self.add_silence(span);
        self.add_seal_max();
        self.acts.sort_by_key(|(at, _)| *at);
        self.add_changes();
    }

    /// Lets processes stand still or die alone where others live on, and stores go back, in some
    /// scenarios.
    fn add_silence(&mut self, span: u64) {
        let mut chance = Chance::new(self.seed ^ 0x511e);
        let stored = self.hold.is_some_and(|hold| hold.stored);
        if stored && chance.one_in(3) {
            for _ in 0..chance.between(1, 2) {
                let at = chance.below(span);
                self.acts.push((at, Act::Replicate));
                self.acts.push((at + chance.between(1, 5_000), Act::Promote));
            }
        }
        if stored {
            self.add_scarcity(span);
        }
        if self.sharing < 2 || chance.one_in(2) {
            return;
        }
        let others = self.sharing as u64;
        for _ in 0..chance.between(1, 3) {
            let process = chance.below(others) as usize;
            let length = chance.between(200, 20_000);
            self.acts.push((chance.below(span), Act::Freeze(process, length)));
        }
        if chance.one_in(3) {
            self.acts.push((chance.below(span), Act::Kill(chance.below(others) as usize)));
        }
    }

    /// Lets the store have little room, or none, for a while in some scenarios.
    fn add_scarcity(&mut self, span: u64) {
        let mut chance = Chance::new(self.seed ^ 0xf011);
        if chance.one_in(2) {
            return;
        }
        let at = chance.below(span);
        self.acts.push((at, Act::Room(Some(chance.below(12) as usize))));
        self.acts.push((at + chance.between(1, 20_000), Act::Room(None)));
    }

    /// Changes what groups are made by between lives, in some scenarios without versions and
    /// without records that have no `.k`.
    fn add_changes(&mut self) {
        let mut chance = Chance::new(self.seed ^ 0xc4a6);
        let replaces = self.hold.is_some_and(|hold| hold.replace);
        if replaces || self.delivers.iter().any(|deliver| deliver.key_by_k) || chance.one_in(2) {
            return;
        }
        for life in 1..6 {
            let by = chance.pick(&[Some(".k"), Some(".id"), None]).copied().flatten();
            if chance.one_in(2) {
                self.changes.push((life, Change::By(by)));
            }
        }
    }

    /// Makes later records take the place of earlier ones, and sends some.
    fn add_versions(&mut self, chance: &mut Chance, span: u64) {
        self.hold.iter_mut().for_each(|hold| hold.replace = true);
        let mut workload = Workload::new(chance.fork(), self, "v");
        for _ in 0..chance.between(1, 8) {
            let versions = workload.versions();
            self.acts.push((chance.below(span), Act::Send(versions)));
        }
    }

    /// True when this was changed before that life or an earlier one.
    pub fn is_changed(&self, life: usize, what: impl Fn(&Change) -> bool) -> bool {
        self.changes.iter().any(|(from, change)| *from <= life && what(change))
    }

    /// True when the wall clock does not go evenly.
    pub fn has_jumps(&self) -> bool {
        self.acts.iter().any(|(_, act)| matches!(act, Act::Jump(_)))
    }

    /// The same of the clock of a shared log.
    pub fn has_jumps_of_log(&self) -> bool {
        self.acts.iter().any(|(_, act)| matches!(act, Act::JumpOfLog(_)))
    }

    /// Bytes of held bodies that fit into memory: none, some, all.
    pub fn memory_max(&self) -> usize {
        match self.seed / 3 % 3 {
            0 => 0,
            1 => 1_000,
            _ => 1 << 20,
        }
    }

    /// How records are held in a life.
    pub fn hold_in(&self, life: usize) -> Option<Hold> {
        let by = self.changes.iter().rev().find_map(|(from, change)| match change {
            Change::By(by) if *from <= life => Some(*by),
            _ => None,
        });
        self.hold.map(|hold| Hold { by: by.unwrap_or(hold.by), ..hold })
    }

    /// The consumer group that reads a topic.
    pub fn group_of(&self, topic: &str) -> &'static str {
        let is_first = self.topics.first().is_some_and(|first| **first == *topic);
        let is_own = !self.topics.iter().any(|of| **of == *topic);
        if !self.two_groups || is_first || is_own { GROUP } else { SECOND_GROUP }
    }

    /// What it is made of, without what happens in it.
    pub fn summary(&self) -> String {
        let Scenario { seed, enabled, partitions, topics, delivers, stage, .. } = self;
        let Scenario { hold, seal_max, order_by_k, sharing, changes, .. } = self;
        let Scenario { retry, probe_every, in_flight_bytes, overlap, spells, helped, .. } = self;
        let groups = match (self.two_groups, self.read_apart) {
            (false, _) => "",
            (true, false) => ", in two groups",
            (true, true) => ", in two groups apart",
        };
        format!(
            "seed {seed}: {topics:?} of {partitions} partitions, deliver {delivers:?}, {stage:?}, {hold:?}, \
             {seal_max:?}, order_by_k {order_by_k}, retry {retry:?}, probe every {probe_every:?}, room \
             {in_flight_bytes}, overlap {overlap}, sharing {sharing}, helped {helped}, spells {spells:?}, {changes:?}, {enabled:?}{groups}"
        )
    }

    fn make_spells(&self, chance: &mut Chance, span: u64) -> BTreeMap<usize, Vec<Spell>> {
        let lasting = [
            Trouble::SinkAway,
            Trouble::SinkReadOnly,
            Trouble::SinkRetriesAll,
            Trouble::SinkNeedsFix,
        ];
        let mut spells: BTreeMap<usize, Vec<Spell>> = BTreeMap::new();
        for (table, deliver) in self.delivers.iter().enumerate() {
            if matches!(deliver.to, SimTarget::Topic(_)) {
                continue;
            }
            for trouble in lasting.into_iter().filter(|t| self.enabled.contains(t)) {
                for _ in 0..chance.between(1, 3) {
                    let from = chance.below(span);
                    let to = from + chance.between(50, 20_000);
                    spells.entry(table).or_default().push(Spell { from, to, trouble });
                }
            }
        }
        spells
    }

    fn make_acts(&self, chance: &mut Chance, span: u64) -> Vec<(u64, Act)> {
        let mut workload = Workload::new(chance.fork(), self, "");
        let mut acts = Vec::new();
        // Together, in a few bursts, or one by one.
        let burst_max = chance.pick(&[1, 5, 60]).copied().unwrap_or(1);
        let mut left = chance.between(15, 110);
        let mut send_times: Vec<u64> = Vec::new();
        let mut sends = Vec::new();
        while left > 0 {
            let burst = chance.between(1, burst_max).min(left);
            left -= burst;
            send_times.push(chance.below(span));
            sends.push((0..burst).map(|_| workload.next()).collect::<Vec<_>>());
        }
        send_times.sort_unstable();
        acts.extend(send_times.into_iter().zip(sends.into_iter().map(Act::Send)));
        let mut add =
            |trouble: Trouble, times: u64, chance: &mut Chance, make: &dyn Fn(u64) -> Act| {
                if self.enabled.contains(&trouble) {
                    for _ in 0..chance.between(1, times) {
                        acts.push((chance.below(span), make(chance.next())));
                    }
                }
            };
        add(Trouble::CrashAtInstant, 4, chance, &|_| Act::Crash);
        add(Trouble::CrashAtCall, 5, chance, &|n| Act::CrashInCalls(1 + n % 60));
        add(Trouble::Drained, 2, chance, &|_| Act::Drain);
        add(Trouble::Paused, 2, chance, &|_| Act::Pause);
        add(Trouble::Paused, 4, chance, &|_| Act::Resume);
        add(Trouble::Replayed, 3, chance, &|n| Act::Replay(1 + n as usize % 5));
        add(Trouble::Dropped, 2, chance, &|_| Act::Drop(1));
        add(Trouble::ClockJumps, 3, chance, &|n| Act::Jump(n as i64 % 10_000_000));
        add(Trouble::Replayed, 1, chance, &|_| Act::Mend);
        let mut chance = Chance::new(self.seed ^ 0xd15c);
        add(Trouble::DiskFull, 2, &mut chance, &|_| Act::FillDisk);
        acts.sort_by_key(|(at, _)| *at);
        acts
    }
}

/// Every third log is like Kafka.
fn is_like_kafka(seed: u64) -> bool {
    seed % 3 == 2
}

fn delivers(chance: &mut Chance) -> Vec<Deliver> {
    let sink = |chance: &mut Chance| {
        let style = chance.pick(&[Style::Whole, Style::Whole, Style::Prefix, Style::PerMessage]);
        SimTarget::Sink(Manner {
            style: style.copied().unwrap_or(Style::Whole),
            deduplicates: !chance.one_in(4),
            blunt: chance.one_in(4),
            batch_records_max: chance.pick(&[1, 3, 10, 100, 1_000]).copied().unwrap_or(10),
        })
    };
    let targets = match chance.below(6) {
        0 => vec![SimTarget::Topic("out".into())],
        1 => vec![sink(chance), SimTarget::Topic("out".into())],
        2 => vec![SimTarget::Topic("out".into()), sink(chance)],
        3 => vec![sink(chance), sink(chance)],
        _ => vec![sink(chance)],
    };
    let entry = |to: SimTarget, chance: &mut Chance| {
        let deduplicates = matches!(&to, SimTarget::Sink(manner) if manner.deduplicates);
        Deliver { to, key_by_k: chance.one_in(4), once: deduplicates && chance.one_in(4) }
    };
    targets.into_iter().map(|to| entry(to, chance)).collect()
}
