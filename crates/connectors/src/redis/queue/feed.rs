//! The queue as the engine knows it: a feed that hands out groups which Redis has closed.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use potok_core::trouble::crash_point;
use potok_core::{
    Backlog, Fault, Feed, FeedAbilities, FeedCommit, FeedGroups, Log, OpenFeed, PartitionEnd,
    PipelineInfo, Progress, Source, SourceEvent,
};
use potok_expr::{PeriodBy, Template};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::super::address::RedisAddress;
use super::super::client::{RedisClient, RedisTimeouts};
use super::calls::{ClaimToken, QueueCalls};
use super::claims::Claims;
use super::groups::Chats;
use super::server;
use super::sorter::Sorter;
use super::visitor::{self, Visitor};

/// What a pipeline says of its queue.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// The name of the pipeline.
    pub pipeline: String,
    /// The list that messages are pushed into.
    pub list: String,
    /// What makes a chat.
    pub by: Template,
    /// A chat closes when nothing has come for so long.
    pub quiet: Duration,
    /// The same where its last message has a quiet time of its own.
    pub quiet_by: Option<PeriodBy>,
    /// A chat closes so long after its first message.
    pub max_age: Duration,
    /// A chat closes with so many messages.
    pub max_count: Option<u32>,
    /// A chat closes with so many bytes.
    pub max_bytes: Option<u64>,
    /// How long a claim is kept from others after its owner was heard last.
    pub lease: Duration,
    /// As many chats may wait; beyond it messages stay in the list.
    pub waiting_max: u64,
    /// A file that says which data was there when this process, or one before it in the same folder, looked
    /// last: so it is known when everything is gone. `None` where nobody wants to know.
    pub seen: Option<PathBuf>,
}

impl QueueOptions {
    /// The longest quiet time there is: none outlasts the age at which a chat closes.
    pub(super) fn quiet_longest(&self) -> Duration {
        self.quiet.max(self.max_age)
    }
}

/// What happened besides.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Entries taken from the list.
    pub sorted: AtomicU64,
    /// Entries that are no messages.
    pub skipped: AtomicU64,
    /// Chats that another program took.
    pub handed_over: AtomicU64,
    /// Chats that nobody had.
    pub adopted: AtomicU64,
    /// Chats without a time to look at them.
    pub found: AtomicU64,
    /// Claims whose owner was silent for too long.
    pub taken_over: AtomicU64,
    /// How often everything in Redis was gone.
    pub emptied: AtomicU64,
}

impl Counters {
    pub fn add(&self, counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }
}

/// A list in Redis, whose messages are collected by chat.
pub struct RedisQueue {
    pub(super) calls: Arc<QueueCalls>,
    waiting: Box<dyn Fn() -> Result<RedisClient, Fault> + Send + Sync>,
    options: Arc<QueueOptions>,
    counters: Arc<Counters>,
    /// Which server, database and list.
    place: Arc<str>,
}

impl RedisQueue {
    /// The queue at this address. Connects to nothing yet.
    pub fn new(url: &str, options: QueueOptions) -> Result<Self, Fault> {
        Self::with_timeouts(url, options, RedisTimeouts::default())
    }

    /// The same with other bounds on how long Redis may take.
    pub fn with_timeouts(
        url: &str,
        options: QueueOptions,
        timeouts: RedisTimeouts,
    ) -> Result<Self, Fault> {
        let address = RedisAddress::parse(url)?;
        let place = format!("{} {}", address.place(), options.list);
        let client = RedisClient::new(address, timeouts)?;
        if client.is_cluster() {
            return server::cluster(client.label());
        }
        let url = url.to_owned();
        let waiting = move || RedisClient::new(RedisAddress::parse(&url)?, timeouts);
        Ok(RedisQueue {
            calls: Arc::new(QueueCalls::new(client, &options)),
            waiting: Box::new(waiting),
            options: Arc::new(options),
            counters: Arc::default(),
            place: place.into(),
        })
    }
}

fn nonce() -> u64 {
    RandomState::new().hash_one(0_u8)
}

#[async_trait]
impl Feed for RedisQueue {
    fn abilities(&self) -> FeedAbilities {
        FeedAbilities { comes_whole: true, ..FeedAbilities::default() }
    }

    async fn open(&self, info: &PipelineInfo, _log: Arc<dyn Log>) -> Result<OpenFeed, Fault> {
        let _ = info;
        for warning in self.check().await? {
            tracing::warn!(list = self.options.list, "{warning}");
        }
        let (pipeline, list) = (&self.options.pipeline, &self.options.list);
        server::register(&self.calls, pipeline, list).await?;
        let (calls, options) = (self.calls.clone(), self.options.clone());
        let counters = self.counters.clone();
        let claims = Claims::new(calls.clone(), list, options.lease, nonce(), counters);
        let claims = Arc::new(claims);
        let (send_look, next_look) = mpsc::unbounded_channel();
        let sorter = Sorter {
            calls: calls.clone(),
            waiting: (self.waiting)()?,
            claims: claims.clone(),
            options: options.clone(),
            counters: self.counters.clone(),
            next_look: send_look,
        };
        let visitor = Visitor {
            calls: calls.clone(),
            claims: claims.clone(),
            options: options.clone(),
            counters: self.counters.clone(),
            next_look,
            is_registered: true,
            place: self.place.clone(),
        };
        let scan =
            visitor::scan(calls.clone(), claims.clone(), self.counters.clone(), list.clone());
        let keep = visitor::keep(calls.clone(), claims.clone(), options.lease);
        // Leases are kept for as long as anything may be acknowledged, within bounds.
        let keeper = Arc::new(Task::spawn(keep));
        let source = QueueSource {
            calls: calls.clone(),
            claims: claims.clone(),
            _tasks: [Task::spawn(sorter.run()), Task::spawn(visitor.run()), Task::spawn(scan)],
            _keeper: keeper.clone(),
        };
        let progress = Arc::new(QueueProgress { calls, claims, _keeper: keeper });
        Ok(OpenFeed { source: Box::new(source), progress })
    }

    async fn backlog(&self) -> Result<Backlog, Fault> {
        let (records, groups) = self.calls.backlog().await?;
        Ok(Backlog { records, oldest: None, groups: Some(groups) })
    }

    async fn check(&self) -> Result<Vec<String>, Fault> {
        let facts = server::facts(&self.calls.client).await?;
        facts.refuse(self.calls.client.label())?;
        Ok(facts.warnings())
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let Counters { sorted, skipped, handed_over, adopted, found, taken_over, emptied } =
            &*self.counters;
        let all = [
            ("sorted", sorted),
            ("skipped", skipped),
            ("handed_over", handed_over),
            ("adopted", adopted),
            ("found", found),
            ("taken_over", taken_over),
            ("emptied", emptied),
        ];
        all.map(|(name, count)| (name, count.load(Ordering::Relaxed))).to_vec()
    }

    fn groups(&self) -> Option<Arc<dyn FeedGroups>> {
        Some(Arc::new(Chats(self.calls.clone())))
    }
}

/// Ends with whoever has it.
struct Task(JoinHandle<()>);

impl Task {
    /// What it logs names the pipeline that opened the feed.
    fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Task(tokio::spawn(work.in_current_span()))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct QueueSource {
    calls: Arc<QueueCalls>,
    claims: Arc<Claims>,
    _tasks: [Task; 3],
    _keeper: Arc<Task>,
}

#[async_trait]
impl Source for QueueSource {
    async fn next(&mut self) -> Result<SourceEvent, Fault> {
        self.claims.next().await
    }

    fn set_paused(&mut self, paused: bool) {
        self.claims.set_paused(paused);
    }

    fn ends(&self) -> Vec<PartitionEnd> {
        // A claim is handed out whole; what waits is told by `backlog`.
        Vec::new()
    }
}

impl Drop for QueueSource {
    /// What was claimed and not handed out may be had by others at once.
    fn drop(&mut self) {
        self.claims.leave();
        let held = self.claims.take_ready();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let calls = self.calls.clone();
            let give_back = async move { visitor::give_back(&calls, held).await };
            runtime.spawn(give_back.in_current_span());
        }
    }
}

struct QueueProgress {
    calls: Arc<QueueCalls>,
    claims: Arc<Claims>,
    _keeper: Arc<Task>,
}

#[async_trait]
impl Progress for QueueProgress {
    async fn commit(&self, commit: &FeedCommit) -> Result<(), Fault> {
        let whole = self.claims.ended(&commit.ended);
        if !whole.is_empty() {
            let held: Vec<ClaimToken> = whole.iter().map(|(_, held)| held.clone()).collect();
            crash_point("queue.ack.before");
            let (ours, mut again) = self.calls.acknowledge(&held).await?;
            crash_point("queue.ack.after");
            // Not that token's any more: acknowledged before, taken over, gone with everything, or looked at
            // meanwhile by ourselves. Then it has another token, or will get it with the answer of that look.
            let replaced = self.claims.end(whole.into_iter().zip(ours));
            if !replaced.is_empty() {
                again |= self.calls.acknowledge(&replaced).await?.1;
            }
            if again {
                self.claims.look.notify_one();
            }
        }
        let back = self.claims.given_back(&commit.given_back);
        if !back.is_empty() {
            let held: Vec<ClaimToken> = back.iter().map(|(_, held)| held.clone()).collect();
            self.calls.give_back(&held).await?;
            self.claims.lose(back.into_iter().map(|(assignment, _)| assignment));
            self.claims.rest();
        }
        Ok(())
    }
}
