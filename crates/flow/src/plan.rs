//! A pipeline, built and ready to run: plain data and trait objects. Whoever knows configuration
//! and connectors makes one; the engine knows neither.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use potok_core::trouble::{Bug, planted};
use potok_core::{
    CloseReason, ConsumerGroupSpec, Decoder, Feed, GroupFiles, Log, PipelineInfo, Sink, Stage,
    Store, Tracker,
};
use potok_expr::{PeriodBy, Program, Template, ValuePath};

use crate::dead_letter;
use crate::group::ShardPlan;

/// Everything one pipeline needs.
#[derive(Clone)]
pub struct Plan {
    /// The pipeline's name.
    pub name: String,
    /// Lanes: records of one key stay in one of them, in order.
    pub workers: usize,
    /// Where its records come from.
    pub inputs: Vec<Input>,
    /// Reads values.
    pub decoder: Arc<dyn Decoder>,
    /// Holds records until what belongs together is there. Not with feeds: what they hand out lies
    /// nowhere else meanwhile. Those that close groups themselves
    /// ([`potok_core::FeedAbilities::comes_whole`]) need none.
    pub hold: Option<GroupPlan>,
    /// The stages that events go through, in order.
    pub stages: Vec<StagePlan>,
    /// Where they are delivered; a record has ended when each of these has.
    pub delivers: Vec<DeliverPlan>,
    /// The order key, where the pipeline names one.
    pub order_by: Option<Template>,
    /// How often and how fast a failed call is tried again.
    pub retry: Retry,
    /// How often a destination that is away is asked whether it is back.
    pub probe_every: Duration,
    /// Where records go that no destination will take.
    pub dead_letter_topic: Arc<str>,
    /// How often one dead letter may be replayed.
    pub replays_max: u32,
    /// How long a replayed dead letter stays to be looked at; what was dropped goes at once. `None`
    /// keeps everything, and does not count what is open.
    pub keep_resolved: Option<Duration>,
    /// Bytes of records between intake and ending; intake waits beyond it.
    pub in_flight_bytes: usize,
}

/// Where records of a pipeline come from.
#[derive(Clone)]
pub enum Input {
    /// Topics of the log.
    Topics {
        /// The consumer group whose progress this is.
        group: String,
        /// The topics it reads; no topic is read in two groups.
        topics: Vec<Arc<str>>,
        /// A group that is new starts behind what is already there.
        from_end: bool,
    },
    /// Records that do not come from the log.
    Feed {
        /// Its name in messages and in `status`.
        name: Arc<str>,
        /// Hands them out, and remembers what became of them.
        feed: Arc<dyn Feed>,
    },
}

impl Input {
    /// Topics that are read from their start.
    pub fn topics(group: impl Into<String>, topics: Vec<Arc<str>>) -> Self {
        Input::Topics { group: group.into(), topics, from_end: false }
    }

    fn group(&self) -> Option<&str> {
        match self {
            Input::Topics { group, .. } => Some(group),
            Input::Feed { .. } => None,
        }
    }

    /// It hands out groups that it has closed itself.
    fn comes_whole(&self) -> bool {
        match self {
            Input::Topics { .. } => false,
            Input::Feed { feed, .. } => feed.abilities().comes_whole,
        }
    }
}

impl Plan {
    /// The topics it reads, in all of its consumer groups.
    pub fn topics(&self) -> Vec<Arc<str>> {
        let topics = |input: &Input| match input {
            Input::Topics { topics, .. } => topics.clone(),
            Input::Feed { .. } => Vec::new(),
        };
        self.inputs.iter().flat_map(topics).collect()
    }

    /// The feeds it reads, each with its name.
    pub(crate) fn feeds(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<dyn Feed>)> {
        self.inputs.iter().filter_map(|input| match input {
            Input::Topics { .. } => None,
            Input::Feed { name, feed } => Some((name, feed)),
        })
    }

    /// True where everything it reads comes in groups that are closed.
    pub(crate) fn comes_whole(&self) -> bool {
        !self.inputs.is_empty() && self.inputs.iter().all(Input::comes_whole)
    }

    /// The topics among them that a new group reads from their start.
    pub(crate) fn topics_from_start(&self) -> Vec<Arc<str>> {
        let topics = |input: &Input| match input {
            Input::Topics { topics, from_end: false, .. } => topics.clone(),
            Input::Topics { .. } | Input::Feed { .. } => Vec::new(),
        };
        self.inputs.iter().flat_map(topics).collect()
    }

    /// Its consumer groups, those first that read its topics. One that reads none has a group for
    /// its own topics, named after it.
    pub(crate) fn groups(&self, log: &dyn Log) -> Vec<String> {
        let mut groups: Vec<String> =
            self.inputs.iter().filter_map(Input::group).map(str::to_owned).collect();
        if groups.is_empty() {
            groups.push(self.name.clone());
        }
        if self.is_gathered(log) {
            groups.push(self.held_group());
        }
        groups
    }

    /// The consumer groups to read topics in, each a group of its own.
    pub(crate) fn specs(&self, info: &PipelineInfo) -> Vec<ConsumerGroupSpec> {
        let spec = |input: &Input| match input {
            Input::Topics { group, topics, from_end } => Some(ConsumerGroupSpec {
                group: group.clone(),
                topics: topics.clone(),
                from_end: *from_end,
                exact: false,
                info: info.clone(),
            }),
            Input::Feed { .. } => None,
        };
        self.inputs.iter().filter_map(spec).collect()
    }

    /// A topic that two of its consumer groups read.
    pub(crate) fn read_twice(&self) -> Option<Arc<str>> {
        let mut topics = self.topics();
        topics.sort();
        topics.windows(2).find(|pair| pair.first() == pair.last())?.first().cloned()
    }

    /// The facts it leaves in the log.
    pub fn info(&self) -> PipelineInfo {
        PipelineInfo {
            internal: self.hold.as_ref().map(|hold| hold.internal.to_string()),
            ..dead_letter::info(&self.name, &self.dead_letter_topic, self.replays_max)
        }
    }

    /// True where records are first brought together by their groups, because the log is shared.
    pub(crate) fn is_gathered(&self, log: &dyn Log) -> bool {
        self.hold.is_some() && log.is_shared()
    }

    /// Where the first stage stands that works per group; behind the last where none does. The
    /// stages before it need no order across partitions.
    pub(crate) fn first_per_group(&self) -> usize {
        let per_group = self.stages.iter().position(|stage| stage.per == Per::Group);
        per_group.unwrap_or(self.stages.len())
    }

    /// The consumer group of what is gathered.
    pub(crate) fn held_group(&self) -> String {
        let first = self.inputs.iter().find_map(Input::group);
        format!("{}-held", first.unwrap_or(&self.name))
    }

    /// True where messages are kept in order by what they are themselves ordered by: a lane's key is
    /// a whole group's, and nobody has asked for another order.
    pub(crate) fn orders_by_message(&self) -> bool {
        self.hold.is_some() && self.order_by.is_none()
    }

    /// The key that decides a record's lane: where groups are held, what makes a group, because it has one
    /// owner; else `order_by`, else the first `once_by`, else the first deliver key, else the
    /// record's own key (an empty list).
    pub fn lane_key(&self) -> Vec<Template> {
        if let Some(hold) = &self.hold {
            return hold.by.iter().cloned().collect();
        }
        if let Some(order_by) = &self.order_by {
            return vec![order_by.clone()];
        }
        let once = self.delivers.iter().map(|d| &d.once_by).find(|once| !once.is_empty());
        let key = || self.delivers.iter().find_map(|d| d.key.clone()).into_iter().collect();
        once.cloned().unwrap_or_else(key)
    }
}

/// How records are held in groups.
#[derive(Clone)]
pub struct GroupPlan {
    /// Records with the same value belong together; without it all do.
    pub by: Option<Template>,
    /// Records of one shard belong together, instead of `by`. The lane is the shard.
    pub shard: Option<ShardPlan>,
    /// Kinds of records, told apart by their topic.
    pub kinds: Vec<KindPlan>,
    /// The id of a record within its group, where there are no kinds.
    pub id: Option<Template>,
    /// When a group closes.
    pub close: ClosePlan,
    /// The treatment of a record whose id is already in the group.
    pub on_repeat: OnRepeat,
    /// Where bodies are meanwhile, if not where the log keeps them.
    pub store: Option<Arc<dyn Store>>,
    /// Bytes of bodies that are also in memory.
    pub memory_max: usize,
    /// The pipeline's own topic, in which its seals lie.
    pub internal: Arc<str>,
    /// Writes each sealed group as a file. Needs `shard` and clock slices.
    pub files: Option<Arc<dyn GroupFiles>>,
    /// Where it is shown how far each of them has come. Needs the same.
    pub track: Option<TrackPlan>,
}

/// Which steps of a pipeline are tracked.
#[derive(Clone)]
pub struct TrackPlan {
    /// Keeps the table.
    pub tracker: Arc<dyn Tracker>,
    /// How many of its stages, from the first on, are done when a group is in its file.
    pub written: usize,
    /// How many behind them are stages of `process`.
    pub process: usize,
    /// How many behind those are deliveries.
    pub deliver: usize,
}

/// Bytes of bodies that a pipeline keeps in memory, unless told otherwise.
pub const HELD_MEMORY_DEFAULT: usize = 256 << 20;
/// The same beside a store that answers fast: there memory is for what is sent soon.
pub const HELD_MEMORY_BESIDE_A_STORE: usize = 64 << 20;

/// One kind of records in a group.
#[derive(Clone)]
pub struct KindPlan {
    pub name: Arc<str>,
    /// Where such records come from.
    pub topic: Arc<str>,
    /// The id of such a record.
    pub id: Template,
}

/// When a group closes: as soon as one of these holds.
#[derive(Clone, Debug, Default)]
pub struct ClosePlan {
    /// So long after its first record.
    pub after_first: Option<Duration>,
    /// When no record has come for so long.
    pub quiet: Option<Duration>,
    /// The same where the last record has a quiet time of its own.
    pub quiet_by: Option<PeriodBy>,
    /// At the end of each slice of the clock.
    pub every: Option<Duration>,
    /// So long after its first record, whatever else is set.
    pub max_age: Option<Duration>,
    /// With so many records.
    pub max_count: Option<usize>,
    /// With so many bytes.
    pub max_bytes: Option<u64>,
    /// With a record of which this is true.
    pub when: Option<Program>,
}

impl ClosePlan {
    /// When a group closes that has its first and its last record from then, in milliseconds.
    /// `quiet` is that of its last record, where it has one of its own.
    pub(crate) fn due(&self, first: i64, last: i64, quiet: Option<Duration>) -> i64 {
        self.dues(first, last, quiet).map(|(due, _)| due).min().unwrap_or(i64::MAX)
    }

    /// Why such a group closes when it is due; `until` is the end of its clock slice.
    pub(crate) fn due_reason(
        &self,
        first: i64,
        last: i64,
        quiet: Option<Duration>,
        until: i64,
    ) -> CloseReason {
        let dues = self.dues(first, last, quiet).chain([(until, CloseReason::SliceEnded)]);
        dues.min_by_key(|(due, _)| *due).map_or(CloseReason::Unknown, |(_, reason)| reason)
    }

    fn dues(
        &self,
        first: i64,
        last: i64,
        quiet: Option<Duration>,
    ) -> impl Iterator<Item = (i64, CloseReason)> {
        let rules = [
            (last, quiet.or(self.quiet), CloseReason::SilenceReached),
            (first, self.max_age, CloseReason::MaxWaitReached),
            (first, self.after_first, CloseReason::WindowEnded),
        ];
        let ignored = planted(Bug::SilenceIgnored).then_some(CloseReason::SilenceReached);
        let rules = rules.into_iter().filter(move |(.., reason)| Some(*reason) != ignored);
        rules.filter_map(|(from, wait, reason)| {
            let wait = i64::try_from(wait?.as_millis()).unwrap_or(i64::MAX);
            Some((from.saturating_add(wait), reason))
        })
    }

    /// True for more bytes than a group of several records may have.
    pub(crate) fn overflows(&self, bytes: u64) -> bool {
        self.max_bytes.is_some_and(|max| bytes > max)
    }

    /// Why a group of that size closes, where it does.
    pub(crate) fn full(&self, records: usize, bytes: u64) -> Option<CloseReason> {
        if self.max_count.is_some_and(|max| records >= max) && !planted(Bug::CountIgnored) {
            return Some(CloseReason::MaxCount);
        }
        self.max_bytes.is_some_and(|max| bytes >= max).then_some(CloseReason::MaxBytes)
    }
}

/// The treatment of a record whose id is already in the group. Repeats are counted in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRepeat {
    /// The later one takes the place of the earlier, which ends with it.
    Replace,
    /// Both are delivered.
    Keep,
    /// The first is delivered, with how often it came as header `potok-count`.
    Count,
}

/// One stage.
#[derive(Clone)]
pub struct StagePlan {
    /// Its name, for messages.
    pub name: String,
    /// The stage itself.
    pub stage: Arc<dyn Stage>,
    /// The unit it works on.
    pub per: Per,
    /// The treatment of an event it cannot handle.
    pub on_error: OnError,
    /// The counts to keep of the events it lets go on.
    pub counts: Vec<CountPlan>,
}

/// One counter of a stage.
#[derive(Clone, Debug)]
pub struct CountPlan {
    /// Its name, for status and metrics.
    pub name: String,
    /// Where an event has what is added: an array adds its length, a whole number from 0 on
    /// itself, `true` one, everything else nothing.
    pub path: ValuePath,
}

/// The unit that a stage works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// Events as they come, however many.
    Event,
    /// A closed group, whole and in order. Only where groups are held, or come whole from a feed.
    Group,
}

/// The treatment of an event that a stage could not handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// The event goes on as the stage received it.
    Pass,
    /// It becomes a dead letter.
    DeadLetter,
    /// The pipeline stops and waits for the operator.
    Stop,
}

/// One destination.
#[derive(Clone)]
pub struct DeliverPlan {
    /// Its name in messages, e.g. `db orders`.
    pub label: String,
    /// Its place in the pipeline file, by which its deliveries are named. Entries for the shards of one
    /// place share it.
    pub number: u32,
    /// Only records of this shard. Others are not held up by what happens to it.
    pub shard: Option<u32>,
    /// Only records of this kind, by its place in [`GroupPlan::kinds`].
    pub kind: Option<u16>,
    /// Where to.
    pub target: Target,
    /// The key to deliver under; the record's own where not given.
    pub key: Option<Template>,
    /// The business id, one part or several.
    pub once_by: Vec<Template>,
    /// Adds the delivery's name as header `potok-id`, so that receivers can drop repeats.
    pub headers_id: bool,
}

/// Where a deliver entry leads.
#[derive(Clone)]
pub enum Target {
    /// A system outside the log, called batch by batch.
    Sink(Arc<dyn Sink>),
    /// A topic of the log: written in the transaction that ends the record.
    Topic(TopicTarget),
}

/// Which topic.
#[derive(Clone)]
pub enum TopicTarget {
    /// Always this one.
    Fixed(Arc<str>),
    /// By a value of the record.
    Map {
        /// The value that is looked up.
        by: Template,
        /// The topic for each value; a record with another value is a dead letter.
        map: HashMap<String, Arc<str>>,
    },
}

/// How a failed call is repeated.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// Attempts in a row before the table of moves decides.
    pub attempts: u32,
    /// Wait after the first failure; doubles with each further one.
    pub first: Duration,
    /// The longest wait.
    pub max: Duration,
}

impl Retry {
    /// How long to wait after the given failed attempt (from 1), between half and the whole of
    /// the doubling, so that lanes do not come back in step.
    pub fn wait(&self, attempt: u32, spread: u64) -> Duration {
        let doubled = self.first.saturating_mul(1_u32 << attempt.saturating_sub(1).min(16));
        let whole = doubled.min(self.max);
        whole / 2 + whole.mul_f64((spread % 1_024) as f64 / 2_048.0)
    }
}
