//! All pipelines of a process, each under a supervisor that never lets one die in silence.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use potok_core::{
    Clock, ConsumerGroup, Fault, Feed, FeedGroups, GroupFiles, Log, PipelineInfo, Timestamp,
    TopicInfo, Tracker,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::crash_notes::CrashNotes;
use crate::dead_letter;
use crate::dead_letter::desk::{Desk, OpenCount};
use crate::deliver::{Decisions, Destination, UndecidedRecord};
use crate::feed::Backlogs;
use crate::group::{Command, GroupCursor, GroupPage, GroupTables, GroupView, OpenSlice};
use crate::lag::{GroupsCache, soon};
use crate::origin::OwnTopics;
use crate::outline::Outline;
use crate::pipeline::{self, Shared};
use crate::plan::{GroupPlan, Per, Plan};
use crate::signal::Signal;
use crate::status::{Counters, GateStatus, PartitionLag, State, Status};
use crate::waits::{Wait, Waits};
use crate::work::Stop;

/// The wait before a pipeline that died is started again; doubles up to the second.
const RESTART_WAIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// A run that has lasted so long ends for another cause than the runs before it.
const RUN_LASTED: Duration = Duration::from_secs(60);

/// Runs pipelines on one log. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    log: Arc<dyn Log>,
    clock: Arc<dyn Clock>,
    notes_dir: Option<PathBuf>,
    pub(crate) pipelines: Mutex<BTreeMap<String, Handle>>,
    /// Feeds of pipelines that do not run here, for people.
    known: Mutex<Vec<(String, Arc<dyn Feed>)>>,
    asked: GroupsCache,
}

/// A pipeline whose groups are tracked in a table.
#[derive(Clone)]
pub struct TrackedPipeline {
    /// Its name.
    pub pipeline: String,
    /// Keeps the table.
    pub tracker: Arc<dyn Tracker>,
    /// Writes the files, where there are any.
    pub files: Option<Arc<dyn GroupFiles>>,
    /// Slices that still take records.
    pub open: Vec<OpenSlice>,
    /// Shards that have a destination of their own.
    pub shards: Vec<u32>,
    /// Destinations of shards whose gates are not open.
    pub gates: Vec<(u32, String, GateStatus)>,
    /// Its other waits, with the shard where it is only one's.
    pub waits: Vec<(Option<u32>, Wait)>,
}

/// A pipeline as the engine holds it.
pub(crate) struct Handle {
    /// Its consumer groups; the first reads topics of it.
    groups: Vec<String>,
    /// The topics it reads.
    reads: Vec<Arc<str>>,
    /// The topics that a new consumer group would read from the start.
    topics: Vec<Arc<str>>,
    paused: Arc<Signal<bool>>,
    draining: Arc<Signal<bool>>,
    state: watch::Sender<(State, Option<String>)>,
    resume: Arc<tokio::sync::Notify>,
    counters: Arc<Counters>,
    destinations: Arc<Vec<Destination>>,
    waits: Arc<Waits>,
    decisions: Arc<Decisions>,
    /// The plan of its groups, and the groups.
    held: Option<(GroupPlan, Arc<GroupTables>)>,
    /// What it does with records, and that for people.
    pub(crate) plan: Arc<Plan>,
    outline: Arc<Outline>,
    /// Since when it counts.
    since: Timestamp,
    open_letters: Arc<OpenCount>,
    /// The backlogs of its feeds, which are asked for as long as this is here.
    backlogs: Arc<Backlogs>,
    /// Groups that wait in them.
    pub(crate) feed_groups: Vec<Arc<dyn FeedGroups>>,
    feeds: Vec<Arc<dyn Feed>>,
    asking: Option<AbortOnDropHandle<()>>,
    desk: Option<AbortOnDropHandle<()>>,
    supervisor: Option<JoinHandle<()>>,
}

impl Engine {
    /// An engine without pipelines. Crash notes are kept in `notes_dir`, or in memory.
    pub fn new(log: Arc<dyn Log>, clock: Arc<dyn Clock>, notes_dir: Option<PathBuf>) -> Engine {
        let pipelines = Mutex::new(BTreeMap::new());
        let asked = GroupsCache::default();
        let known = Mutex::default();
        Engine { inner: Arc::new(Inner { log, clock, notes_dir, pipelines, known, asked }) }
    }

    /// Starts a pipeline and returns at once. Destinations may be away: it waits for them.
    pub fn start(&self, plan: Plan) -> Result<(), Fault> {
        let mut pipelines = self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        if pipelines.contains_key(&plan.name) {
            return Err(Fault::fix(format!("two pipelines are called `{}`", plan.name))
                .code("P0404")
                .hint("give one of them another `name`"));
        }
        let groups = plan.groups(&*self.inner.log);
        let known = |group: &&String| {
            let mut others = pipelines.values().flat_map(|handle| &handle.groups);
            others.any(|known| known == *group)
        };
        if let Some(group) = groups.iter().find(known) {
            return Err(Fault::fix(format!("two pipelines read as consumer group `{group}`"))
                .code("P0405")
                .hint("give one of them another `consumer_group`"));
        }
        check_inputs(&plan)?;
        let per_group = plan.stages.iter().find(|stage| stage.per == Per::Group);
        if let (Some(stage), None, false) = (per_group, &plan.hold, plan.comes_whole()) {
            let what = format!("pipeline `{}` holds no groups", plan.name);
            let cause = format!("stage `{}` works per group", stage.name);
            let hint = "give the pipeline a `group`, or let the stage work per event";
            return Err(Fault::fix(what).because(cause).code("P0407").hint(hint));
        }
        let paused = Arc::new(Signal::new(false));
        let draining = Arc::new(Signal::new(false));
        let span = tracing::error_span!("run", pipeline = %plan.name);
        let shards = plan.hold.as_ref().and_then(|hold| Some(hold.shard.as_ref()?.of));
        let delivers = plan.delivers.iter();
        let destinations: Vec<Destination> =
            delivers.map(|deliver| Destination::new(deliver, shards, &span)).collect();
        let internal = plan.hold.as_ref().map(|hold| hold.internal.clone());
        let info = plan.info();
        let waits = Arc::new(Waits::new(self.inner.clock.clone()));
        let shared = Shared {
            own: OwnTopics {
                replay: info.replay.as_str().into(),
                internal,
                sources: plan.topics(),
            },
            info: Arc::new(info),
            log: self.inner.log.clone(),
            clock: self.inner.clock.clone(),
            notes: Arc::new(CrashNotes::open(self.inner.notes_dir.as_deref(), &plan.name)),
            counters: Arc::new(Counters::of(&plan)),
            destinations: Arc::new(destinations),
            paused: paused.clone(),
            draining: draining.clone(),
            decisions: Arc::new(Decisions::new(&plan.name, waits.clone())),
            waits,
            boards: Arc::default(),
            strays: Arc::default(),
            seal_room: Arc::default(),
            plan: Arc::new(plan),
        };
        let mut handle = Handle {
            groups,
            reads: shared.plan.topics(),
            topics: shared.plan.topics_from_start(),
            paused,
            draining,
            state: watch::Sender::new((State::Waiting, None)),
            resume: Arc::default(),
            counters: shared.counters.clone(),
            destinations: shared.destinations.clone(),
            waits: shared.waits.clone(),
            decisions: shared.decisions.clone(),
            held: shared.plan.hold.clone().map(|plan| (plan, shared.boards.clone())),
            plan: shared.plan.clone(),
            outline: Arc::new(Outline::of(&shared.plan)),
            since: self.inner.clock.now(),
            open_letters: Arc::default(),
            backlogs: Arc::new(Backlogs::of(&shared.plan)),
            feed_groups: shared.plan.feeds().filter_map(|(_, feed)| feed.groups()).collect(),
            feeds: shared.plan.feeds().map(|(_, feed)| feed.clone()).collect(),
            asking: None,
            desk: None,
            supervisor: None,
        };
        if !handle.backlogs.is_empty() {
            let asking = handle.backlogs.clone().ask().instrument(span.clone());
            handle.asking = Some(AbortOnDropHandle::new(tokio::spawn(asking)));
        }
        handle.desk = shared.plan.keep_resolved.map(|keep| {
            let desk = Desk {
                log: shared.log.clone(),
                clock: shared.clock.clone(),
                info: shared.info.clone(),
                keep,
                open: handle.open_letters.clone(),
            };
            AbortOnDropHandle::new(tokio::spawn(desk.run().instrument(span.clone())))
        });
        let name = shared.plan.name.clone();
        let (state, resume) = (handle.state.clone(), handle.resume.clone());
        handle.supervisor = Some(tokio::spawn(supervise(shared, state, resume).instrument(span)));
        pipelines.insert(name, handle);
        Ok(())
    }

    /// Every pipeline, by name.
    pub async fn status(&self) -> Vec<Status> {
        // Lag is the log's knowledge; without an answer the rest is still worth showing.
        let groups = self.consumer_groups().await.ok();
        let topics = match &groups {
            Some(groups) if self.is_any_new(groups) => soon(self.inner.log.topics()).await.ok(),
            _ => None,
        };
        let (damaged, away) = (self.inner.log.damage(), self.inner.log.trouble());
        let pipelines = self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        let status = |(name, handle): (&String, &Handle)| {
            let known = groups.iter().flat_map(|groups| groups.iter());
            let ours: Vec<&ConsumerGroup> =
                known.filter(|group| handle.groups.contains(&group.group)).collect();
            let open = |p: &potok_core::ConsumerGroupPartition| {
                p.end.saturating_sub(p.committed).saturating_sub(p.acknowledged_ahead)
            };
            let partitions: Vec<PartitionLag> = ours
                .iter()
                .flat_map(|group| &group.partitions)
                .map(|p| PartitionLag {
                    topic: p.topic.clone(),
                    partition: p.partition,
                    lag: open(p),
                })
                .collect();
            let registered = ours.iter().any(|group| handle.groups.first() == Some(&group.group));
            let lag = match registered {
                true => Some(partitions.iter().map(|partition| partition.lag).sum()),
                // Not registered yet: everything there is, is still to be done.
                false => topics.as_ref().map(|topics| {
                    let ours = |topic: &&TopicInfo| {
                        handle.topics.iter().any(|wanted| **wanted == *topic.topic)
                    };
                    topics.iter().filter(ours).flat_map(|topic| &topic.ends).sum()
                }),
            };
            let (mut state, why) = handle.state.borrow().clone();
            let waits = handle.waits.list();
            let ready = handle.destinations.iter().all(|d| d.is_ready());
            // A shared log in trouble cannot be read either; one of our own is at least read.
            let is_away = away.is_some() && self.inner.log.is_shared();
            if state == State::Running && (is_away || !ready || !waits.is_empty()) {
                state = State::Waiting;
            }
            let needs_somebody = waits.iter().find(|wait| wait.needs_somebody);
            let log_needs = is_away && self.inner.log.needs_somebody();
            if state == State::Waiting && (log_needs || needs_somebody.is_some()) {
                state = State::Blocked;
            }
            let waits_why = needs_somebody.or(waits.first()).map(|wait| wait.why.clone());
            let paused = state == State::Running && handle.paused.get();
            let draining = state != State::Stopped && handle.draining.get();
            let state = match (draining, paused) {
                (true, _) => State::Draining,
                (false, true) => State::Paused,
                (false, false) => state,
            };
            let mut status = Status {
                // A log that waits out its trouble says so itself.
                why: why.or(waits_why).or_else(|| away.clone()),
                waits,
                gate: handle.gate(),
                lag,
                partitions,
                damaged: damaged.clone(),
                since: Some(handle.since.to_string()),
                dead_letters_open: handle.backlogs.with_letters(handle.open_letters.get()),
                destinations: handle.destinations.iter().filter_map(Destination::status).collect(),
                ..Status::unknown(name, state)
            };
            handle.counters.fill(&mut status, &*self.inner.clock);
            status.wait_in(&handle.backlogs.list(), self.inner.clock.now());
            status.count_in(handle.backlogs.counts());
            if let Some((_, boards)) = &handle.held {
                let held = boards.contents();
                (status.open_groups, status.held_bytes) = (held.open_groups, held.bytes);
                (status.held_records, status.next_close_in) = (held.records, held.next_close);
                let now = self.inner.clock.now();
                status.next_close = held
                    .next_close
                    .map(|wait| Timestamp(now.0.saturating_add_unsigned(wait)).to_string());
                let held =
                    boards.oldest().map(|oldest| self.inner.clock.now().millis_since(oldest));
                status.oldest = status.oldest.max(held);
                status.catch_up(boards.catching_up_since(), self.inner.clock.now());
            }
            status
        };
        pipelines.iter().map(status).collect()
    }

    /// All groups of the log, as it said a moment ago at most.
    pub async fn consumer_groups(&self) -> Result<Arc<Vec<ConsumerGroup>>, Fault> {
        self.inner.asked.consumer_groups(&*self.inner.log).await
    }

    /// The purpose of a topic, if potok has it for itself: by its name, or because a
    /// pipeline, wherever it runs, has named it for its dead letters.
    pub async fn own_topic(&self, topic: &str) -> Option<String> {
        if let Some(purpose) = potok_core::own_topic(topic) {
            return Some(purpose.to_owned());
        }
        // A log that does not answer does not take records either.
        let groups = self.consumer_groups().await.ok()?;
        let of = |group: &&ConsumerGroup| {
            let PipelineInfo { dead_letters, resolved, replay, internal, .. } = &group.info;
            [dead_letters, resolved, replay].contains(&&topic.to_owned())
                || internal.as_deref() == Some(topic)
        };
        let owner = groups.iter().find(of)?;
        Some(format!("what pipeline `{}` sets aside", owner.info.pipeline))
    }

    /// Forgets a group that nobody reads.
    pub async fn delete_consumer_group(&self, group: &str) -> Result<(), Fault> {
        self.inner.log.delete_consumer_group(group).await?;
        self.inner.asked.forget().await;
        Ok(())
    }

    /// True when a pipeline has a group that the log does not know yet.
    fn is_any_new(&self, groups: &[ConsumerGroup]) -> bool {
        let pipelines = self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = |name: &String| groups.iter().any(|group| group.group == *name);
        pipelines.values().any(|handle| !handle.groups.first().is_some_and(is_known))
    }

    /// Stops taking records; what is in flight goes on.
    pub fn pause(&self, pipeline: &str) -> Result<(), Fault> {
        self.with(pipeline, |handle| {
            handle.paused.set(true);
        })
    }

    /// Takes records again, starts a pipeline that waits for a fix, and asks destinations behind
    /// closed gates now.
    pub fn resume(&self, pipeline: &str) -> Result<(), Fault> {
        self.with(pipeline, |handle| {
            handle.paused.set(false);
            handle.resume.notify_one();
            handle.destinations.iter().for_each(|destination| destination.gate.hurry());
        })
    }

    /// Asks destinations behind closed gates now, instead of at their next probe; says how many.
    pub fn probe(&self, pipeline: &str) -> Result<usize, Fault> {
        self.with(pipeline, |handle| {
            let away = handle.destinations.iter().filter(|d| d.gate.status().state != "open");
            away.map(|destination| destination.gate.hurry()).count()
        })
    }

    /// The steps of each pipeline of this process, by name.
    pub fn outlines(&self) -> BTreeMap<String, Arc<Outline>> {
        let pipelines = self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        pipelines.iter().map(|(name, handle)| (name.clone(), handle.outline.clone())).collect()
    }

    /// Records of a pipeline that wait for somebody to decide about them.
    pub fn undecided(&self, pipeline: &str) -> Result<Vec<UndecidedRecord>, Fault> {
        self.with(pipeline, |handle| handle.decisions.list())
    }

    /// Sets those of them aside that are wanted; returns them.
    pub fn set_aside(
        &self,
        pipeline: &str,
        wanted: impl Fn(&UndecidedRecord) -> bool,
    ) -> Result<Vec<UndecidedRecord>, Fault> {
        self.with(pipeline, |handle| handle.decisions.set_aside(wanted))
    }

    /// The key of the group that the record of a dead letter was of; `None` where its pipeline does
    /// not run here or holds no groups.
    pub fn group_of(&self, letter: &dead_letter::DeadLetter) -> Option<bytes::Bytes> {
        let pipelines = self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        let (plan, _) = pipelines.get(&letter.envelope.pipeline)?.held.as_ref()?;
        let Some(by) = &plan.by else { return Some(bytes::Bytes::new()) };
        let mut parser = potok_expr::json::Parser::new();
        let value = letter.record.value.as_deref().filter(|_| by.needs_value());
        by.eval_bytes(&potok_expr::Scope {
            value: value.and_then(|value| parser.parse(value).ok()),
            key: letter.record.key.as_deref(),
            headers: &letter.record.headers,
            topic: &letter.envelope.origin.topic,
            id: None,
            receiver: None,
        })
    }

    /// Lets go of the dropped dead letters of a pipeline that does not run here; a running one does
    /// that by itself.
    pub async fn tidy_letters(&self, info: &PipelineInfo) -> Result<(), Fault> {
        let runs = {
            let pipelines = self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
            pipelines.get(&info.pipeline).is_some_and(|handle| handle.desk.is_some())
        };
        if runs {
            return Ok(());
        }
        let desk = Desk {
            log: self.inner.log.clone(),
            clock: self.inner.clock.clone(),
            info: Arc::new(info.clone()),
            // How long it keeps what was replayed is not known here.
            keep: Duration::from_secs(u32::MAX.into()),
            open: Arc::default(),
        };
        desk.tidy().await
    }

    /// The groups of all pipelines or of one: up to so many behind `after`, those that close
    /// first in front.
    pub fn groups(
        &self,
        pipeline: Option<&str>,
        after: Option<&GroupCursor>,
        most: usize,
    ) -> GroupPage {
        let now = self.inner.clock.now();
        let pipelines = self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        let held: Vec<_> = pipelines
            .iter()
            .filter(|(name, _)| pipeline.is_none_or(|pipeline| pipeline == *name))
            .filter_map(|(name, handle)| Some((name, handle.held.as_ref()?)))
            .collect();
        let mut places = Vec::new();
        let mut total = 0;
        for held @ (name, (_, boards)) in &held {
            total += boards.groups();
            // One more, to know whether there is one.
            let of_pipeline = boards.places(name, after, most.saturating_add(1));
            places.extend(of_pipeline.into_iter().map(|place| (place, held)));
        }
        places.sort_by(|(one, _), (other, _)| one.cmp(other));
        let more = places.len() > most;
        places.truncate(most);
        let next = places.last().filter(|_| more).map(|((place, _), _)| place.clone());
        let view = |(place, (name, (plan, boards))): &(_, &(&String, &(_, Arc<GroupTables>)))| {
            boards.view_at(place, name, plan, now)
        };
        GroupPage { groups: places.iter().filter_map(view).collect(), total, next }
    }

    /// The groups of one key, of all pipelines or of one.
    pub fn groups_of(&self, pipeline: Option<&str>, key: &str) -> Vec<GroupView> {
        let now = self.inner.clock.now();
        let pipelines = self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        let held = pipelines
            .iter()
            .filter(|(name, _)| pipeline.is_none_or(|pipeline| pipeline == *name))
            .filter_map(|(name, handle)| Some((name, handle.held.as_ref()?)));
        held.flat_map(|(name, (plan, boards))| boards.views_of(key, name, plan, now)).collect()
    }

    /// The feeds of all pipelines, or of one of them, each with the name of its pipeline.
    pub fn feeds(&self, pipeline: Option<&str>) -> Vec<(String, Arc<dyn Feed>)> {
        let known = self.inner.known.lock().unwrap_or_else(PoisonError::into_inner);
        let pipelines = self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        let running = pipelines.iter().flat_map(|(name, handle)| {
            handle.feeds.iter().map(|feed| (name.clone(), feed.clone()))
        });
        let all = running.chain(known.iter().cloned());
        all.filter(|(name, _)| pipeline.is_none_or(|wanted| wanted == *name)).collect()
    }

    /// Lets people ask a feed of a pipeline that does not run here.
    pub fn know_feed(&self, pipeline: &str, feed: Arc<dyn Feed>) {
        let mut known = self.inner.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.push((pipeline.to_owned(), feed));
    }

    /// Pipelines whose groups are tracked in a table, or one of them.
    pub fn tracked(&self, pipeline: Option<&str>) -> Vec<TrackedPipeline> {
        let pipelines = self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted =
            pipelines.iter().filter(|(name, _)| pipeline.is_none_or(|pipeline| pipeline == *name));
        let tracked = wanted.filter_map(|(name, handle)| {
            let (plan, boards) = handle.held.as_ref()?;
            let track = plan.track.as_ref()?;
            let gate = |destination: &Destination| {
                Some((destination.shard?, destination.label.clone(), destination.gate.status()))
            };
            let gates: Vec<(u32, String, GateStatus)> =
                handle.destinations.iter().filter_map(gate).collect();
            Some(TrackedPipeline {
                pipeline: name.clone(),
                tracker: track.tracker.clone(),
                files: plan.files.clone(),
                open: boards.open_slices(),
                shards: gates.iter().map(|(shard, ..)| *shard).collect(),
                gates: gates.into_iter().filter(|(.., gate)| gate.state != "open").collect(),
                waits: handle.waits.by_shard(),
            })
        });
        tracked.collect()
    }

    /// Closes the open groups of that key now, or those of them that are of these generations
    /// ([`GroupView::generation`]); false where there is none.
    pub fn close_group(
        &self,
        pipeline: &str,
        key: &str,
        only: Option<&[String]>,
    ) -> Result<bool, Fault> {
        self.ask(pipeline, key, only, Command::Close)
    }

    /// The same, and sets their records aside.
    pub fn drop_group(
        &self,
        pipeline: &str,
        key: &str,
        only: Option<&[String]>,
    ) -> Result<bool, Fault> {
        self.ask(pipeline, key, only, Command::Drop)
    }

    fn ask(
        &self,
        pipeline: &str,
        key: &str,
        only: Option<&[String]>,
        wish: Command,
    ) -> Result<bool, Fault> {
        // What is no name of ours is that of a group in a feed.
        let number = |name: &String| u64::from_str_radix(name, 16).ok();
        let only: Option<Vec<u64>> = only.map(|only| only.iter().filter_map(number).collect());
        self.with(pipeline, |handle| {
            let boards = handle.held.as_ref().map(|(_, boards)| boards);
            boards.is_some_and(|boards| boards.ask(key, only.as_deref(), wish))
        })
    }

    /// Stops all intake, lets calls in flight finish and notes what ended. Returns when all is
    /// done, or after `max` with the rest cut off: it will be read again.
    pub async fn drain(&self, max: Duration) {
        let mut supervisors = Vec::new();
        {
            let mut pipelines = self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
            for handle in pipelines.values_mut() {
                handle.draining.set(true);
                handle.desk = None;
                handle.asking = None;
                supervisors.extend(handle.supervisor.take());
            }
        }
        let deadline = tokio::time::Instant::now() + max;
        for mut supervisor in supervisors {
            if tokio::time::timeout_at(deadline, &mut supervisor).await.is_err() {
                supervisor.abort();
            }
        }
    }

    /// The topics that pipelines of this process read.
    pub fn reads(&self) -> Vec<Arc<str>> {
        let pipelines = self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        pipelines.values().flat_map(|handle| handle.reads.iter().cloned()).collect()
    }

    /// How many records each pipeline holds in groups, where it holds any. Also what it held when
    /// it stopped: those go on at the next start.
    pub fn held(&self) -> Vec<(String, u64)> {
        let pipelines = self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        let held = pipelines.iter().filter_map(|(name, handle)| {
            let (_, boards) = handle.held.as_ref()?;
            Some((name.clone(), boards.contents().records))
        });
        held.filter(|(_, records)| *records > 0).collect()
    }

    /// The log all pipelines run on.
    pub fn log(&self) -> &Arc<dyn Log> {
        &self.inner.log
    }

    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    fn with<T>(&self, pipeline: &str, act: impl FnOnce(&Handle) -> T) -> Result<T, Fault> {
        let pipelines = self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        match pipelines.get(pipeline) {
            Some(handle) => Ok(act(handle)),
            None => {
                let known: Vec<&str> = pipelines.keys().map(String::as_str).collect();
                let what = format!("no pipeline is called `{pipeline}`");
                let hint = format!("running here: {}", known.join(", "));
                Err(Fault::fix(what).code("P0406").hint(hint))
            }
        }
    }
}

impl Handle {
    fn gate(&self) -> GateStatus {
        let gates = self.destinations.iter().map(|destination| destination.gate.status());
        let open = GateStatus { state: "open", since: None, why: None };
        gates.into_iter().find(|gate| gate.state != "open").unwrap_or(open)
    }
}

/// Says what cannot be read together.
fn check_inputs(plan: &Plan) -> Result<(), Fault> {
    if let Some(topic) = plan.read_twice() {
        let what = format!("pipeline `{}` reads topic `{topic}` in two consumer groups", plan.name);
        let hint = "read a topic in one consumer group; another pipeline may read it in another";
        return Err(Fault::fix(what).code("P0408").hint(hint));
    }
    if let (Some((feed, _)), Some(_)) = (plan.feeds().next(), &plan.hold) {
        let what = format!("pipeline `{}` groups what feed `{feed}` hands out", plan.name);
        let hint = "let one pipeline bring its records into a topic, and another one group them";
        return Err(Fault::fix(what).code("P0409").hint(hint));
    }
    Ok(())
}

/// Runs a pipeline again and again until it is drained.
async fn supervise(
    shared: Shared,
    state: watch::Sender<(State, Option<String>)>,
    resume: Arc<tokio::sync::Notify>,
) {
    let draining = shared.draining.clone();
    let mut wait = RESTART_WAIT.0;
    loop {
        let started = tokio::time::Instant::now();
        let end = pipeline::run(&shared, || {
            state.send_replace((State::Running, None));
        })
        .await;
        if started.elapsed() >= RUN_LASTED {
            wait = RESTART_WAIT.0;
        }
        match end {
            Stop::Asked if draining.get() => break,
            Stop::Asked | Stop::Shut => {
                // The tasks ended by themselves though nobody asked: treat it as a death.
                shared.counters.restarts.fetch_add(1, Ordering::Relaxed);
                state.send_replace((
                    State::Waiting,
                    Some("starting again: it ended without being asked".into()),
                ));
            }
            Stop::Fix(fault) => {
                tracing::error!(why = %fault, "stopped until somebody acts; then `potok resume`");
                state.send_replace((State::Blocked, Some(fault.to_string())));
                tokio::select! {
                    biased;
                    () = draining.wait_for(|draining| draining) => break,
                    () = resume.notified() => {}
                }
                state.send_replace((State::Waiting, None));
                wait = RESTART_WAIT.0;
                continue;
            }
            Stop::Reread(why) => {
                shared.counters.store_rebuilds.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(why, "reading again what is held");
                state.send_replace((State::Waiting, Some(format!("starting again: {why}"))));
            }
            Stop::Died(why) => {
                // Many records that kill their process would otherwise each wait three times as
                // long as a part that dies for ever.
                if shared.notes.count_deaths() {
                    wait = RESTART_WAIT.0;
                }
                shared.counters.restarts.fetch_add(1, Ordering::Relaxed);
                tracing::error!(why, "a part died; starting it again");
                state.send_replace((State::Waiting, Some(format!("starting again: {why}"))));
            }
        }
        tokio::select! {
            biased;
            () = draining.wait_for(|draining| draining) => break,
            () = tokio::time::sleep(wait) => {}
        }
        wait = (wait * 2).min(RESTART_WAIT.1);
    }
    for (_, feed) in shared.plan.feeds() {
        feed.closed().await;
    }
    state.send_replace((State::Stopped, None));
}
