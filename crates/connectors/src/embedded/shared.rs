//! The state that the writer, the readers and retention share: the state behind one lock, and the
//! way to the writer.
//!
//! The lock is held for lookups and for folding in what was just synced, never across a wait for
//! the disk, with one exception that keeps it simple: opening a segment by name, so that the file
//! and what is known of it always belong together.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc,
};

use potok_core::trouble::{Bug, planted};
use potok_core::{Clock, ConsumerGroupSpec, Fault, RangeSet};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::block::Blocks;
use super::catalog::Catalog;
use super::damage::DamageReport;
use super::disk::{Disk, DiskFile};
use super::draft::{Draft, Route};
use super::index::Index;
use super::{Options, fault};

/// Bytes that may wait for the writer.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Permits are counted in these, so that they fit 32 bits.
const PERMIT_BYTES: usize = 1 << 10;

/// The end of what is synced: readers stop here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// The newest segment.
    pub segment: u64,
    /// Where its synced frames end.
    pub at: u64,
}

/// A segment as readers need to know it.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    /// Where its frames end.
    pub end: u64,
    /// Where records lie in it.
    pub index: Index,
    /// Counts how often it was rewritten in this process: the file is another one then.
    pub generation: u32,
    /// How many records retention could let go of when it last read the segment.
    pub loose: Option<u64>,
}

/// Everything known, always as of the last sync.
#[derive(Debug, Default)]
pub struct LogState {
    /// Topics, groups, damage.
    pub catalog: Catalog,
    /// By number.
    pub segments: BTreeMap<u64, Segment>,
    /// The synced end.
    pub tail: Tail,
    /// Segments whose pinned records lie in another one now; their files are to go. Nobody reads
    /// them any more.
    pub left_over: BTreeSet<u64>,
}

impl LogState {
    /// The lowest offset of the partition that is still there; its end when nothing is.
    pub fn earliest(&self, topic: &str, partition: u32) -> u64 {
        let first = |segment: &Segment| segment.index.extent(topic, partition).map(|e| e.first);
        let end = || self.catalog.head(topic, partition).end;
        self.segments.values().find_map(first).unwrap_or_else(end)
    }

    /// The ended offsets of a group, counting records that are not there any more.
    pub fn ended(&self, group: &str, topic: &str, partition: u32) -> RangeSet {
        let known = self.catalog.groups.get(group).and_then(|group| group.ended(topic, partition));
        let mut ended = known.cloned().unwrap_or_default();
        ended.insert(0..self.earliest(topic, partition));
        ended
    }
}

/// The files of a log.
#[derive(Clone, Debug)]
pub struct Paths {
    /// The data folder.
    pub dir: PathBuf,
    /// Segments.
    pub log: PathBuf,
    /// Bytes kept aside.
    pub damaged: PathBuf,
}

impl Paths {
    /// The files under a data folder.
    pub fn new(dir: &Path) -> Self {
        Paths { dir: dir.to_owned(), log: dir.join("log"), damaged: dir.join("damaged") }
    }

    /// The file name of a segment.
    pub fn segment_name(number: u64) -> String {
        format!("{number:020}.seg")
    }

    /// The number in the file name of a segment.
    pub fn segment_number(name: &str) -> Option<u64> {
        let digits = name.strip_suffix(".seg").filter(|digits| digits.len() == 20)?;
        digits.parse().ok().filter(|number| *number > 0)
    }

    /// The file of a segment.
    pub fn segment(&self, number: u64) -> PathBuf {
        self.log.join(Self::segment_name(number))
    }

    /// The file of a segment in the making.
    pub fn new_segment(&self, number: u64) -> PathBuf {
        self.log.join(format!("{}.new", Self::segment_name(number)))
    }
}

/// Naive versions switched on by a test. Read once, at opening: the writer is another thread.
#[derive(Clone, Copy, Debug)]
pub struct Bugs {
    pub ack_before_fsync: bool,
    pub reader_ahead: bool,
    pub tail_erased: bool,
    pub offsets_reused: bool,
    pub stop_at_damage: bool,
}

impl Bugs {
    /// The bugs planted for this thread.
    pub fn planted() -> Self {
        Bugs {
            ack_before_fsync: planted(Bug::AckBeforeFsync),
            reader_ahead: planted(Bug::ReaderAheadOfFsync),
            tail_erased: planted(Bug::TailErased),
            offsets_reused: planted(Bug::OffsetsReused),
            stop_at_damage: planted(Bug::StopAtDamage),
        }
    }
}

/// The writer's answer.
#[derive(Clone, Debug, Default)]
pub struct WrittenFrame {
    /// The incarnation it was written under.
    pub log: u64,
    /// The first offset of each slot of the draft.
    pub firsts: Vec<u64>,
}

/// Why the writer did not write.
#[derive(Debug)]
pub enum WriteRefusal {
    /// These groups were opened anew since; nothing was written.
    Stale(Vec<Arc<str>>),
    /// See the fault.
    Fault(Fault),
}

/// A draft on its way to the writer.
pub struct AppendJob {
    /// The frame to write.
    pub draft: Draft,
    /// Write it only while these sessions of their groups are the latest.
    pub fence: Vec<(Arc<str>, u64)>,
    /// Where the answer goes.
    pub reply: Option<oneshot::Sender<Result<WrittenFrame, WriteRefusal>>>,
    /// Gives the queue's room back when the job is done.
    pub permit: Option<OwnedSemaphorePermit>,
}

/// One opening of a group: while it lives, nobody else opens the group. Dropped wherever it is
/// when its owner is cancelled, so a group cannot stay open for ever.
pub struct GroupLock {
    shared: Arc<OpenLog>,
    pub group: Arc<str>,
    /// Names this opening.
    pub nonce: u64,
}

impl GroupLock {
    /// Opens the group; `None` when it is open already.
    pub fn start(shared: &Arc<OpenLog>, group: &Arc<str>, nonce: u64) -> Option<GroupLock> {
        match shared.open_groups().entry(group.clone()) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(free) => free.insert(nonce),
        };
        Some(GroupLock { shared: shared.clone(), group: group.clone(), nonce })
    }
}

impl Drop for GroupLock {
    fn drop(&mut self) {
        self.shared.open_groups().remove(&self.group);
    }
}

/// A group that was just opened.
pub struct GroupOpening {
    /// This opening.
    pub session: GroupLock,
    /// Topic, partition, and what has ended of it.
    pub partitions: Vec<(Arc<str>, u32, RangeSet)>,
}

/// A command to the writer.
pub enum Command {
    /// Append a frame.
    Write(AppendJob),
    /// Register a group and say where it stands.
    Open(ConsumerGroupSpec, oneshot::Sender<Result<GroupOpening, Fault>>),
    /// Forget a group.
    Forget(Arc<str>, oneshot::Sender<Result<(), Fault>>),
    /// Keep damage that a reader came upon.
    Damage(DamageReport),
    /// Note that segments are about to be unlinked.
    Drop(Vec<u64>, mpsc::Sender<bool>),
    /// End.
    Stop,
}

/// Shared by all parts of one open log.
pub struct OpenLog {
    pub disk: Arc<dyn Disk>,
    pub paths: Paths,
    pub options: Options,
    pub clock: Arc<dyn Clock>,
    /// Names the folder.
    pub nonce: u64,
    pub bugs: Bugs,
    /// Tells readers that more is synced.
    pub tail: watch::Sender<Tail>,
    /// The buffers that readers read into.
    pub blocks: Arc<Blocks>,
    state: RwLock<LogState>,
    trouble: Mutex<Option<String>>,
    routes: RwLock<HashMap<Arc<str>, Arc<Route>>>,
    open_groups: Mutex<HashMap<Arc<str>, u64>>,
    commands: mpsc::Sender<Command>,
    queue: Arc<Semaphore>,
    closed: AtomicBool,
    /// The thread that died, if one has.
    died: watch::Sender<Option<&'static str>>,
}

impl OpenLog {
    #[allow(clippy::too_many_arguments, reason = "called once, by `open`")]
    pub fn new(
        disk: Arc<dyn Disk>,
        paths: Paths,
        options: Options,
        clock: Arc<dyn Clock>,
        nonce: u64,
        bugs: Bugs,
        state: LogState,
        commands: mpsc::Sender<Command>,
    ) -> Self {
        let tail = watch::Sender::new(state.tail);
        OpenLog {
            disk,
            paths,
            options,
            clock,
            nonce,
            bugs,
            tail,
            blocks: Arc::default(),
            state: RwLock::new(state),
            trouble: Mutex::default(),
            routes: RwLock::default(),
            open_groups: Mutex::default(),
            commands,
            queue: Arc::new(Semaphore::new(QUEUE_BYTES_MAX / PERMIT_BYTES)),
            closed: AtomicBool::new(false),
            died: watch::Sender::new(None),
        }
    }

    /// The state, for looking.
    pub fn state(&self) -> RwLockReadGuard<'_, LogState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, for the writer and retention.
    pub fn state_mut(&self) -> RwLockWriteGuard<'_, LogState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the file of a segment. The caller holds the state, so that the file is the one the
    /// state speaks of.
    pub fn open_segment(&self, _state: &LogState, number: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(&self.paths.segment(number))
    }

    /// Nothing will be written any more: readers that wait for more are told.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.tail.send_modify(|_| {});
    }

    /// True when the log is closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Waits until a thread of the log dies; says which.
    pub async fn died(&self) -> &'static str {
        let mut died = self.died.subscribe();
        // The sender lives as long as `self`.
        let thread = died.wait_for(Option::is_some).await.ok().and_then(|thread| *thread);
        thread.unwrap_or("a thread of the log")
    }

    /// Why appends fail now.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.trouble).clone()
    }

    /// Says why appends fail, or that they work.
    pub fn set_trouble(&self, trouble: Option<String>) {
        *lock(&self.trouble) = trouble;
    }

    /// How records of a topic find their partition.
    pub fn route(&self, topic: &Arc<str>) -> Result<Arc<Route>, Fault> {
        let known = self.routes.read().unwrap_or_else(PoisonError::into_inner).get(topic).cloned();
        if let Some(route) = known {
            return Ok(route);
        }
        fault::check_name("topic", topic)?;
        let partitions = self.state().catalog.topics.get(topic).map(Vec::len);
        let partitions = partitions.map_or(self.options.partitions, |len| len as u32);
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        Ok(routes.entry(topic.clone()).or_insert_with(|| Arc::new(Route::new(partitions))).clone())
    }

    /// Sends a draft to the writer and waits until it is durable. When the queue is full, waits
    /// for room first. Cancelling leaves the outcome unknown.
    pub async fn submit(
        &self,
        draft: Draft,
        fence: Vec<(Arc<str>, u64)>,
    ) -> Result<WrittenFrame, WriteRefusal> {
        let permits = (draft.len() / PERMIT_BYTES + 1).min(QUEUE_BYTES_MAX / PERMIT_BYTES) as u32;
        let permit = self.queue.clone().acquire_many_owned(permits).await.ok();
        let (reply, answer) = oneshot::channel();
        self.command(Command::Write(AppendJob { draft, fence, reply: Some(reply), permit }))
            .map_err(WriteRefusal::Fault)?;
        answer.await.unwrap_or_else(|_| Err(WriteRefusal::Fault(fault::closed())))
    }

    /// Hands the writer something to do.
    pub fn command(&self, command: Command) -> Result<(), Fault> {
        self.commands.send(command).map_err(|_| fault::closed())
    }

    /// Groups that are being read, with their sessions.
    pub fn open_groups(&self) -> MutexGuard<'_, HashMap<Arc<str>, u64>> {
        lock(&self.open_groups)
    }

    /// Tells the writer of damage, unless it is known. The writer notes each once.
    pub fn report(&self, state: &LogState, found: DamageReport) {
        if !state.catalog.knows_damage(found.segment, found.from, found.to) {
            // A closed log has nobody to note it; the next opening finds it again.
            let _ = self.command(Command::Damage(found));
        }
    }
}

/// A thread of the log that panics must not leave it silently dead. What it knew is not to be
/// trusted any more, so the process ends, and the next one begins with what is on disk.
pub struct Alarm(pub Arc<OpenLog>, pub &'static str);

impl Drop for Alarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set_trouble(Some(fault::died(self.1).to_string()));
            self.0.close();
            self.0.died.send_replace(Some(self.1));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
