//! One run of a pipeline: joins the five steps and takes them apart again.
//!
//! ```text
//!            ┌─────────┐  chunks   ┌────────┐  completions  ┌────────┐  transactions
//!  Source ──►│ intake  │──────────►│ lane 1 │──────────────►│ ledger │───────────────► Journal
//!            │ (room,  │──────────►│ lane 2 │──────────────►│        │
//!            │ routing)│    …      │   …    │──► Sink       └────────┘
//!            └─────────┘           └────────┘     behind a gate
//! ```
//!
//! Each box is a task. Stopping goes from left to right: the intake ends and closes the lanes'
//! queues, lanes finish the call they are in and hand back the rest, the ledger notes what ended.
//! A part that dies ends the run; the supervisor in `engine.rs` starts the next one, which reads
//! again whatever had not ended. All tasks run in the span of their pipeline, so that every line of
//! the log names it.

use std::sync::atomic::{AtomicU16, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use potok_core::{
    Clock, ConsumerGroupSpec, Fault, Feed, Log, Move, OpenGroups, Owner, PipelineInfo,
};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tracing::Instrument;

use crate::crash_notes::CrashNotes;
use crate::deliver::{Decisions, Destination};
use crate::feed::{FeedInput, FeedWriter, OfferBook, ShutKeys};
use crate::group::strays::{MisroutedMembers, RegroupScan};
use crate::group::{Bodies, Gather, GroupTables, Holding, SealRoom};
use crate::lane::Lane;
use crate::ledger::{JournalWriter, Ledger};
use crate::live::Assignments;
use crate::notices::Notices;
use crate::origin::OwnTopics;
use crate::outgoing::DeadLetterWriter;
use crate::plan::Plan;
use crate::signal::Signal;
use crate::source::{CatchUp, Intake, IntakeShared, Routing};
use crate::status::Counters;
use crate::waits::{Waits, WaitsFor};
use crate::work::Stop;

/// How long the parts of a run that failed may take to stop before they are cut off.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Bytes that wait for the lanes where records are held: those of a batch leave the room when they
/// are in their groups, and seals lie behind what waits.
const QUEUED_MAX: usize = 8 << 20;

/// The state that a run shares with the supervisor.
pub(crate) struct Shared {
    pub plan: Arc<Plan>,
    pub info: Arc<PipelineInfo>,
    pub own: OwnTopics,
    pub log: Arc<dyn Log>,
    pub clock: Arc<dyn Clock>,
    pub notes: Arc<CrashNotes>,
    pub counters: Arc<Counters>,
    pub destinations: Arc<Vec<Destination>>,
    pub paused: Arc<Signal<bool>>,
    /// Set from outside to drain.
    pub draining: Arc<Signal<bool>>,
    /// The waits of this pipeline, for `status`.
    pub waits: Arc<Waits>,
    /// Records that somebody may decide about.
    pub decisions: Arc<Decisions>,
    /// The groups of the lanes of this run.
    pub boards: Arc<GroupTables>,
    /// Members that earlier runs found parted from their seal.
    pub strays: Arc<MisroutedMembers>,
    /// How large seals may be, as far as earlier runs know.
    pub seal_room: Arc<SealRoom>,
}

impl Shared {
    /// Names an ownership of groups that begins now: by when it began and by what it may write.
    fn nonce(&self) -> u64 {
        use std::hash::{BuildHasher, Hasher};
        let mut hasher = std::hash::RandomState::new().build_hasher();
        hasher.write_i64(self.clock.now().0);
        hasher.finish()
    }
}

type Tasks = JoinSet<Result<(), Stop>>;

/// Runs the pipeline until it is drained or something ends it. `started` is called once the
/// first record can flow.
pub(crate) async fn run(shared: &Shared, started: impl FnOnce()) -> Stop {
    let draining = &shared.draining;
    let opened = tokio::select! {
        biased;
        () = draining.wait_for(|draining| draining) => return Stop::Asked,
        opened = open_groups(shared) => opened,
    };
    let groups = match opened {
        Ok(groups) => groups,
        Err(fault) => return Stop::Fix(fault),
    };
    if let Err(fault) = check_partitions(shared).await {
        return Stop::Fix(fault);
    }
    shared.destinations.iter().for_each(|destination| destination.gate.begin());
    started();
    let stopping = Arc::new(Signal::new(false));
    let mut tasks = spawn(shared, groups, &stopping);
    let mut watchers = Tasks::new();
    for at in 0..shared.destinations.len() {
        let (destinations, clock) = (shared.destinations.clone(), shared.clock.clone());
        let probe_every = shared.plan.probe_every;
        watchers.spawn(async move {
            let Some(destination) = destinations.get(at) else {
                return Ok(());
            };
            let watching = destination.watch(probe_every, &*clock);
            watching.instrument(destination.span.clone()).await.map_err(Stop::Fix)
        });
    }
    let end = loop {
        tokio::select! {
            biased;
            ended = tasks.join_next() => match ended {
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(stop))) => break stop,
                Some(Err(error)) => break Stop::died(error),
                None => break Stop::Asked,
            },
            Some(ended) = watchers.join_next() => match ended {
                Ok(Ok(())) => {}
                Ok(Err(stop)) => break stop,
                Err(error) => break Stop::died(error),
            },
            () = draining.wait_for(|draining| draining) => break Stop::Asked,
        }
    };
    stopping.set(true);
    let end = wind_down(tasks, end).await;
    shared.counters.run_is_over();
    shared.waits.clear();
    shared.decisions.clear();
    end
}

/// Opens the groups, waiting for as long as the log is away. This comes before any destination is
/// asked: from now on the log keeps what the groups have not finished.
async fn open_groups(shared: &Shared) -> Result<OpenGroups, Fault> {
    let specs = specs(shared);
    loop {
        match shared.log.open(specs.clone()).await {
            Err(fault) if matches!(fault.next, Move::Wait | Move::Retry) => {
                shared.waits.begin_with(WaitsFor::Log, 0, &fault);
                tokio::time::sleep(shared.plan.probe_every).await;
            }
            opened => {
                shared.waits.end(WaitsFor::Log, 0);
                return opened;
            }
        }
    }
}

/// On a shared log a shard is a partition of the internal topic: there must be enough of them.
async fn check_partitions(shared: &Shared) -> Result<(), Fault> {
    let hold = shared.plan.hold.as_ref().filter(|_| shared.plan.is_gathered(&*shared.log));
    let Some((hold, shard)) = hold.and_then(|hold| Some((hold, hold.shard.as_ref()?))) else {
        return Ok(());
    };
    // A log that does not answer says so elsewhere; nothing is written to a partition that is not
    // there.
    let Ok(topics) = shared.log.topics().await else { return Ok(()) };
    let Some(topic) = topics.iter().find(|topic| *topic.topic == *hold.internal) else {
        return Ok(());
    };
    let there = topic.ends.len();
    if there >= shard.of as usize {
        return Ok(());
    }
    let what = format!("`{}` has {there} partitions for {} shards", hold.internal, shard.of);
    let hint = format!(
        "each shard is a partition: `kafka-topics.sh --alter --topic {} --partitions {}`, then \
         `potok resume`",
        hold.internal, shard.of
    );
    Err(Fault::fix(what).code("P1402").hint(hint))
}

/// The groups to open. The pipeline's own topics are read in the first of them.
fn specs(shared: &Shared) -> Vec<ConsumerGroupSpec> {
    let plan = &shared.plan;
    let own = |group: String| ConsumerGroupSpec {
        group,
        topics: Vec::new(),
        from_end: false,
        exact: false,
        info: (*shared.info).clone(),
    };
    // Gathered records are read from the internal topic, in a consumer group of their own.
    let mut specs = match plan.is_gathered(&*shared.log) {
        true => vec![own(plan.held_group())],
        false => plan.specs(&shared.info),
    };
    if specs.is_empty() {
        specs.push(own(plan.name.clone()));
    }
    if let Some(first) = specs.first_mut() {
        first.topics.push(shared.own.replay.clone());
        first.topics.extend(shared.own.internal.clone());
    }
    specs
}

fn spawn(shared: &Shared, groups: OpenGroups, stopping: &Arc<Signal<bool>>) -> Tasks {
    let plan = &shared.plan;
    let letters = Arc::new(DeadLetterWriter {
        pipeline: plan.name.clone(),
        topic: plan.dead_letter_topic.clone(),
        own: shared.own.clone(),
        clock: shared.clock.clone(),
        notices: Notices::new(shared.log.reuses_offsets()),
    });
    let (ledger, ledger_notes) = mpsc::unbounded_channel();
    let live = Arc::new(Assignments::default());
    let mut tasks = Tasks::new();
    let mut lanes = Vec::new();
    let mut boards = Vec::new();
    let gathered = plan.is_gathered(&*shared.log);
    let strays = shared.strays.known();
    // Where the log is shared, members lie before their seal in its own partition.
    let lanes_looking = if gathered { 0 } else { plan.workers.max(1) };
    let search = RegroupScan::new(shared.strays.clone(), shared.boards.clone(), lanes_looking);
    let seals_max = shared.own.internal.as_ref();
    let seals_max = seals_max.and_then(|topic| groups.journal.output_bytes_max(topic));
    seals_max.into_iter().for_each(|bytes| shared.seal_room.limit(bytes));
    let bodies = plan
        .hold
        .as_ref()
        .map(|hold| Bodies::of(hold.store.clone(), shared.log.bodies(), hold.memory_max));
    for lane in 0..plan.workers.max(1) {
        let (inputs, queue) = mpsc::unbounded_channel();
        lanes.push(inputs);
        let attempts = Arc::new(AtomicU64::new(0));
        let holding = plan.hold.as_ref().zip(bodies.clone()).map(|(hold, bodies)| {
            let owner = Owner {
                pipeline: plan.name.as_str().into(),
                share: lane as u32,
                nonce: shared.nonce(),
            };
            let (attempts, search) = (attempts.clone(), search.clone());
            Holding::new(hold, bodies, owner, &*shared.clock, gathered, attempts, search)
        });
        boards.extend(holding.as_ref().map(|holding| {
            holding.board.index().seal_room = shared.seal_room.clone();
            holding.board.clone()
        }));
        let lane = Lane {
            number: lane,
            slot: lane + 1,
            plan: plan.clone(),
            info: shared.info.clone(),
            own: shared.own.clone(),
            inputs: queue,
            ledger: ledger.clone(),
            destinations: shared.destinations.clone(),
            letters: letters.clone(),
            notes: shared.notes.clone(),
            live: live.clone(),
            counters: shared.counters.clone(),
            waits: shared.waits.clone(),
            decisions: shared.decisions.clone(),
            clock: shared.clock.clone(),
            stopping: stopping.clone(),
            attempts,
            strays: strays.clone(),
            gives_way: false,
            shut: ShutKeys::default(),
        };
        if let Some(holding) = holding.as_ref().filter(|holding| holding.sends_apart()) {
            let (sender, keeper) = (lane.sender(), lane.keeper());
            tasks.spawn(sender.run_sending(holding.beside()).in_current_span());
            tasks.spawn(keeper.run_files(holding.beside()).in_current_span());
        }
        tasks.spawn(lane.run(holding).in_current_span());
    }
    shared.boards.set(boards);
    let unread = Arc::new(Signal::new(0));
    let mut room_bytes = plan.in_flight_bytes;
    if plan.hold.is_some() {
        room_bytes = room_bytes.min(QUEUED_MAX);
    }
    let intakes = IntakeShared {
        own: shared.own.clone(),
        behind: CatchUp::new(groups.sources.len()),
        lanes,
        ledger,
        room: Arc::new(Semaphore::new(room_bytes)),
        room_bytes,
        counters: shared.counters.clone(),
        live: live.clone(),
        waits: shared.waits.clone(),
        // By hand it is the intake of new records that is paused: what is held goes on.
        paused: if gathered { Arc::new(Signal::new(false)) } else { shared.paused.clone() },
        stopping: stopping.clone(),
        unread: gathered.then(|| unread.clone()),
    };
    let topics = groups.sources.len();
    for (number, source) in groups.sources.into_iter().enumerate() {
        let (own, notes) = (shared.own.clone(), shared.notes.clone());
        let routing = Routing::new(plan, number, notes, own, gathered, strays.clone());
        let intake = Intake::new(number, source, routing, intakes.clone());
        tasks.spawn(intake.run().in_current_span());
    }
    let mut feeds = Vec::new();
    for (at, feed) in feed_inputs(shared).into_iter().enumerate() {
        let (number, feed) = (topics + at, Arc::new(feed));
        feeds.push(FeedWriter {
            name: feed.name.clone(),
            progress: feed.progress.clone(),
            live: live.clone(),
            waits: shared.waits.clone(),
            part: 2 * number + 1,
            retry: plan.retry,
        });
        let (own, notes) = (shared.own.clone(), shared.notes.clone());
        let routing = Routing::new(plan, number, notes, own, gathered, strays.clone());
        let routing = routing.of_feed(feed.abilities);
        tasks.spawn(Intake::run_feed(number, feed, routing, intakes.clone()).in_current_span());
    }
    // Lanes end when nobody can send to them any more.
    drop(intakes);
    for gather in Gather::of(shared, stopping, &unread, &letters) {
        tasks.spawn(gather.run(shared.log.clone()).in_current_span());
    }
    let counters = shared.counters.clone();
    let waits = shared.waits.clone();
    let (journal, retry) = (groups.journal, plan.retry);
    let scribe = JournalWriter {
        journal,
        letters,
        counters,
        retry,
        waits,
        slow: AtomicU16::default(),
        feeds,
        offers: OfferBook::default(),
        seal_room: shared.seal_room.clone(),
    };
    tasks.spawn(Ledger::new(ledger_notes, live, scribe).run().in_current_span());
    tasks
}

/// The feeds of a run, not open yet.
fn feed_inputs(shared: &Shared) -> Vec<FeedInput> {
    let input = |(number, (name, feed)): (usize, (&Arc<str>, &Arc<dyn Feed>))| FeedInput {
        number,
        name: name.clone(),
        feed: feed.clone(),
        abilities: feed.abilities(),
        info: shared.info.clone(),
        log: shared.log.clone(),
        probe_every: shared.plan.probe_every,
        progress: Arc::new(OnceLock::new()),
    };
    shared.plan.feeds().enumerate().map(input).collect()
}

/// Lets the tasks stop by themselves, bounded; a drain is bounded by whoever asked for it.
async fn wind_down(mut tasks: Tasks, mut end: Stop) -> Stop {
    let asked = matches!(end, Stop::Asked);
    let all_ended = async {
        while let Some(ended) = tasks.join_next().await {
            if let (Stop::Asked, Ok(Err(stop))) = (&end, ended) {
                end = stop;
            }
        }
    };
    if asked {
        all_ended.await;
    } else if tokio::time::timeout(STOP_MAX, all_ended).await.is_err() {
        tasks.shutdown().await;
    }
    end
}
