//! The log as a whole: opening and closing it, appending, opening groups, and what tools ask.

use std::any::Any;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use async_trait::async_trait;
use potok_core::{
    Clock, ConsumerGroup, ConsumerGroupSpec, Damage, Fault, Log, OpenGroups, Output, Partition,
    Position, RangeSet, ReadFrom, Reader, Store, TopicInfo,
};
use tokio::sync::oneshot;

use super::disk::{Disk, LockAttempt, RealDisk};
use super::draft::{Draft, Urgency};
use super::format::{Entry, FrameKind};
use super::reader::EmbeddedReader;
use super::retention::RetentionWaker;
use super::scan::ScanCursor;
use super::shared::{Bugs, Command, OpenLog, Paths, WriteRefusal};
use super::writer::LogWriter;
use super::{EmbeddedStore, Options, catalog, damage, fault, groups, recovery, source};

/// An open log. Dropping it closes it: what is queued is still written, then the folder is free.
pub struct EmbeddedLog {
    shared: Arc<OpenLog>,
    keeper: RetentionWaker,
    threads: Mutex<Threads>,
}

#[derive(Default)]
struct Threads {
    keeper: Option<JoinHandle<()>>,
    writer: Option<JoinHandle<()>>,
}

impl EmbeddedLog {
    /// Opens the log in `dir`, or makes one. Reads what is there; damage does not make it fail.
    /// Blocks, for at most the time it takes to read two segments where all is well.
    pub fn open(dir: &Path, options: Options, clock: Arc<dyn Clock>) -> Result<Arc<Self>, Fault> {
        Self::open_on(Arc::new(RealDisk), dir, options, clock)
    }

    /// Opens a log on another disk than the machine's.
    pub fn open_on(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: Options,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, Fault> {
        let paths = Paths::new(dir);
        let lock = lock(disk.as_ref(), &paths)?;
        let bugs = Bugs::planted();
        let recovered = recovery::recover(disk.as_ref(), &paths, bugs)?;
        let (sender, commands) = mpsc::channel();
        let shared = Arc::new(OpenLog::new(
            disk,
            paths,
            options,
            clock,
            recovered.nonce,
            bugs,
            recovered.state,
            sender,
        ));
        let (keeper, waking) = RetentionWaker::new();
        let writer = LogWriter::new(shared.clone(), keeper.clone(), recovered.resume);
        let unusable = |error| fault::unusable(dir, &error);
        let threads = Threads {
            keeper: Some(waking.start(shared.clone()).map_err(unusable)?),
            writer: Some(start_writer(writer, commands, lock).map_err(unusable)?),
        };
        Ok(Arc::new(EmbeddedLog { shared, keeper, threads: Mutex::new(threads) }))
    }

    /// Lets retention look now; returns when it is done.
    pub async fn retain_now(&self) {
        // An error means that the log is being closed.
        let _ = self.keeper.now().await;
    }

    /// Bodies of held records, read back from this log.
    pub fn store(&self) -> EmbeddedStore {
        EmbeddedStore::new(self.shared.clone())
    }

    /// Writes what is queued and frees the folder. Everything asked of the log from now on is
    /// answered with a fault. Blocks until the writer has ended.
    pub fn close(&self) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // Retention asks the writer, so it ends first.
        self.keeper.stop();
        if let Some(keeper) = threads.keeper.take() {
            let _ = keeper.join();
        }
        let _ = self.shared.command(Command::Stop);
        if let Some(writer) = threads.writer.take() {
            let _ = writer.join();
        }
        self.shared.close();
    }
}

impl Drop for EmbeddedLog {
    fn drop(&mut self) {
        self.close();
    }
}

/// One process per folder, by a lock that dies with the process.
fn lock(disk: &dyn Disk, paths: &Paths) -> Result<Box<dyn Any + Send>, Fault> {
    let lock = disk
        .create_dir(&paths.dir)
        .and_then(|()| disk.lock(&paths.dir.join("LOCK"), &std::process::id().to_string()));
    match lock.map_err(|error| fault::unusable(&paths.dir, &error))? {
        LockAttempt::Ours(guard) => Ok(guard),
        LockAttempt::Theirs(owner) => Err(fault::in_use(&paths.dir, &owner)),
    }
}

/// The writer's thread holds the lock: the folder is free when nothing can write any more.
fn start_writer(
    writer: LogWriter,
    commands: mpsc::Receiver<Command>,
    lock: Box<dyn Any + Send>,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("potok-log-writer".to_owned()).spawn(move || {
        let _alarm = writer.alarm();
        writer.run(&commands);
        drop(commands);
        drop(lock);
    })
}

/// The fault for a caller whose write was refused.
pub(super) fn spread(refused: WriteRefusal) -> Fault {
    match refused {
        WriteRefusal::Fault(fault) => fault,
        // Only jobs with a fence are refused so, and their callers ask again without.
        WriteRefusal::Stale(_) => Fault::retry("the group was opened anew"),
    }
}

#[async_trait]
impl Log for EmbeddedLog {
    async fn append(&self, outputs: &[Output]) -> Result<Vec<Position>, Fault> {
        if outputs.is_empty() {
            return Ok(Vec::new());
        }
        let (mut draft, places) = Draft::new(outputs, |topic| self.shared.route(topic), &[])?;
        draft.urgency = Urgency::Plain;
        let written = self.shared.submit(draft, Vec::new()).await.map_err(spread)?;
        Ok(places.positions(outputs, written.log, &written.firsts))
    }

    async fn open(&self, specs: Vec<ConsumerGroupSpec>) -> Result<OpenGroups, Fault> {
        let mut opened = Vec::new();
        for spec in specs {
            fault::check_name("group", &spec.group)?;
            let info = [&spec.info.dead_letters, &spec.info.resolved, &spec.info.replay];
            let topics = spec.topics.iter().map(|topic| &**topic);
            for topic in topics.chain(info.into_iter().map(String::as_str)) {
                fault::check_name("topic", topic)?;
            }
            let (reply, answer) = oneshot::channel();
            self.shared.command(Command::Open(spec, reply))?;
            opened.push(answer.await.map_err(|_| fault::closed())??);
        }
        let (source, journal) = source::start(&self.shared, opened)?;
        Ok(OpenGroups { sources: vec![Box::new(source)], journal: Arc::new(journal) })
    }

    async fn read(&self, topic: &str, from: ReadFrom) -> Result<Box<dyn Reader>, Fault> {
        let state = self.shared.state();
        let (topic, heads) =
            state.catalog.topics.get_key_value(topic).ok_or_else(|| fault::no_topic(topic))?;
        let lane = |(index, head): (usize, &catalog::PartitionHead)| ScanCursor {
            partition: Partition { topic: topic.clone(), index: index as u32 },
            assignment: 0,
            next: from.offset(index as u32, head.end),
        };
        let lanes = heads.iter().enumerate().map(lane).collect();
        Ok(Box::new(EmbeddedReader::new(&self.shared, lanes)))
    }

    async fn release(
        &self,
        topic: &str,
        _log: u64,
        partition: u32,
        offsets: &RangeSet,
    ) -> Result<RangeSet, Fault> {
        // Offsets of this log are never handed out twice, whatever its incarnation.
        let fresh = {
            let state = self.shared.state();
            let none = RangeSet::new();
            let known = state.catalog.released(topic, partition).unwrap_or(&none);
            catalog::without(offsets, known)
        };
        if !fresh.is_empty() {
            let entry = Entry::Released { topic, partition, ranges: fresh.iter().collect() };
            let draft = Draft::of_entries(FrameKind::Transaction, &[entry]);
            self.shared.submit(draft, Vec::new()).await.map_err(spread)?;
            self.keeper.wake();
        }
        Ok(offsets.clone())
    }

    async fn topics(&self) -> Result<Vec<TopicInfo>, Fault> {
        let state = self.shared.state();
        let info = |(topic, heads): (&Arc<str>, &Vec<catalog::PartitionHead>)| TopicInfo {
            topic: topic.to_string(),
            ends: heads.iter().map(|head| head.end).collect(),
        };
        Ok(state.catalog.topics.iter().map(info).collect())
    }

    async fn consumer_groups(&self) -> Result<Vec<ConsumerGroup>, Fault> {
        let open: Vec<Arc<str>> = self.shared.open_groups().keys().cloned().collect();
        let state = self.shared.state();
        Ok(groups::list(&state, |group| open.iter().any(|open| &**open == group)))
    }

    async fn delete_consumer_group(&self, group: &str) -> Result<(), Fault> {
        let (reply, answer) = oneshot::channel();
        self.shared.command(Command::Forget(group.into(), reply))?;
        answer.await.map_err(|_| fault::closed())?
    }

    fn bodies(&self) -> Arc<dyn Store> {
        Arc::new(self.store())
    }

    fn damage(&self) -> Vec<Damage> {
        self.shared.state().catalog.damage.iter().map(damage::damage).collect()
    }

    fn trouble(&self) -> Option<String> {
        self.shared.trouble()
    }

    async fn died(&self) -> Fault {
        fault::died(self.shared.died().await)
    }

    async fn ended(&self, group: &str, topic: &str, partition: u32) -> Result<RangeSet, Fault> {
        let state = self.shared.state();
        if !state.catalog.groups.contains_key(group) {
            return Err(fault::no_group(group));
        }
        Ok(state.ended(group, topic, partition))
    }
}
