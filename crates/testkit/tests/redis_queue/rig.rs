//! A server, an opened queue, and somebody who takes what it hands out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use potok_connectors::redis::{QueueOptions, RedisQueue, RedisTimeouts};
use potok_core::{
    EndedOffsets, Fault, Feed, FeedCommit, OpenFeed, PipelineInfo, Progress, SourceBatch,
    SourceEvent, SystemClock,
};
use potok_expr::Template;
use potok_testkit::memory::MemoryLog;
use potok_testkit::services::{Redis, RedisOptions};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::sleep;

pub use crate::wait::until;

pub const LIST: &str = "queue:incoming";

/// Chats close fast, so that tests do.
pub fn options() -> QueueOptions {
    QueueOptions {
        pipeline: "chat".to_owned(),
        list: LIST.to_owned(),
        by: Template::parse("{.channel}:{.chat}").unwrap(),
        quiet: Duration::from_millis(200),
        quiet_by: None,
        max_age: Duration::from_secs(60),
        max_count: Some(100),
        max_bytes: None,
        lease: Duration::from_secs(2),
        waiting_max: 1_000_000,
        seen: None,
    }
}

pub fn patient() -> QueueOptions {
    QueueOptions { quiet: Duration::from_secs(60), ..options() }
}

pub fn info() -> PipelineInfo {
    PipelineInfo {
        pipeline: "chat".to_owned(),
        dead_letters: "chat-dead".to_owned(),
        resolved: "chat-dead-resolved".to_owned(),
        replay: "chat-replay".to_owned(),
        replays_max: 3,
        internal: None,
    }
}

/// A message of a chat.
pub fn message(chat: &str, number: u64) -> String {
    json!({ "channel": "t", "chat": chat, "n": number }).to_string()
}

/// One that a server with these settings runs.
pub fn server(settings: &[(&str, &str)]) -> Redis {
    let settings = settings.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    Redis::start_with(&RedisOptions { settings: settings.collect(), ..RedisOptions::default() })
}

/// A connection of its own, to do what other programs do.
pub struct Other(redis::Connection);

impl Other {
    pub fn new(redis: &Redis) -> Self {
        Other(redis::Client::open(redis.url()).unwrap().get_connection().unwrap())
    }

    pub fn ask<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        let (command, args) = words.split_first().unwrap();
        redis::cmd(command).arg(args).query(&mut self.0).unwrap()
    }

    /// For questions that may be refused.
    pub fn try_ask<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> redis::RedisResult<T> {
        let (command, args) = words.split_first().unwrap();
        redis::cmd(command).arg(args).query(&mut self.0)
    }

    pub fn push(&mut self, messages: impl IntoIterator<Item = String>) {
        let messages: Vec<String> = messages.into_iter().collect();
        for part in messages.chunks(1_000) {
            let _: i64 = redis::cmd("RPUSH").arg(LIST).arg(part).query(&mut self.0).unwrap();
        }
    }

    pub fn push_bytes(&mut self, list: &[u8], entry: &[u8]) {
        let _: i64 = redis::cmd("RPUSH").arg(list).arg(entry).query(&mut self.0).unwrap();
    }

    pub fn keys(&mut self) -> Vec<String> {
        let mut keys: Vec<Vec<u8>> = self.ask(&["KEYS", "*"]);
        keys.sort();
        keys.into_iter().map(|key| String::from_utf8_lossy(&key).into_owned()).collect()
    }

    /// Keys that say that messages are somewhere.
    pub fn left(&mut self) -> Vec<String> {
        let own = ["lock", "epoch"].map(|name| format!("potok:list:{LIST}:{name}"));
        let usual = |key: &String| {
            own.contains(key)
                || ["potok:list:pipeline", "queue:processor:lock"].contains(&key.as_str())
        };
        self.keys().into_iter().filter(|key| !usual(key)).collect()
    }
}

/// A group as it was handed out.
#[derive(Clone, Debug)]
pub struct Group {
    pub key: Option<Bytes>,
    pub generation: u64,
    pub reason: String,
    pub values: Vec<Bytes>,
    pub batch: SourceBatch,
}

impl Group {
    fn of(batch: SourceBatch) -> Self {
        let whole = batch.feed.as_ref().and_then(|feed| feed.whole.clone());
        Group {
            key: whole.as_ref().map(|whole| whole.key.clone()),
            generation: batch.log,
            reason: whole.map_or_else(String::new, |whole| whole.reason),
            values: batch.records.iter().map(|record| record.value.clone().unwrap()).collect(),
            batch,
        }
    }

    pub fn key(&self) -> String {
        String::from_utf8_lossy(self.key.as_deref().unwrap_or_default()).into_owned()
    }

    pub fn numbers(&self) -> Vec<u64> {
        let number = |value: &Bytes| -> u64 {
            serde_json::from_slice::<Value>(value).unwrap()["n"].as_u64().unwrap()
        };
        self.values.iter().map(number).collect()
    }

    fn commit(&self) -> FeedCommit {
        let SourceBatch { partition, assignment, first, next, .. } = &self.batch;
        let (partition, assignment) = (partition.clone(), *assignment);
        let ended = EndedOffsets { partition, assignment, ranges: vec![*first..*next] };
        FeedCommit { ended: vec![ended], ..FeedCommit::default() }
    }
}

/// What a process of its own would be: a runtime with an opened queue.
pub struct Copy {
    runtime: Option<Runtime>,
    shared: Arc<Shared>,
    progress: Arc<dyn Progress>,
    pub feed: Arc<RedisQueue>,
}

#[derive(Default)]
struct Shared {
    groups: Mutex<Vec<Group>>,
    finished: Mutex<Vec<u64>>,
    lost: Mutex<Vec<u64>>,
    stalled: Mutex<Option<Fault>>,
}

impl Copy {
    /// Takes everything; acknowledges it where `acks`.
    pub fn start(url: &str, options: QueueOptions, acks: bool) -> Self {
        Self::try_start(url, options, acks).unwrap()
    }

    pub fn try_start(url: &str, options: QueueOptions, acks: bool) -> Result<Self, Fault> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let call = Duration::from_millis(500);
        let timeouts = RedisTimeouts {
            connect: Duration::from_secs(2),
            call: call.max(Duration::from_secs(2)),
        };
        let feed = Arc::new(RedisQueue::with_timeouts(url, options, timeouts)?);
        let log = Arc::new(MemoryLog::new(Arc::new(SystemClock)));
        let open = runtime.block_on(feed.open(&info(), log))?;
        let OpenFeed { mut source, progress } = open;
        let shared = Arc::new(Shared::default());
        let (state, acking) = (shared.clone(), progress.clone());
        runtime.spawn(async move {
            loop {
                match source.next().await {
                    Ok(SourceEvent::Batch(batch)) => {
                        let group = Group::of(batch);
                        state.groups.lock().unwrap().push(group.clone());
                        if acks {
                            while acking.commit(&group.commit()).await.is_err() {
                                sleep(Duration::from_millis(20)).await;
                            }
                        }
                    }
                    Ok(SourceEvent::Finished(all)) => state.finished.lock().unwrap().extend(all),
                    Ok(SourceEvent::Lost(all)) => state.lost.lock().unwrap().extend(all),
                    Ok(SourceEvent::Stalled(fault)) => *state.stalled.lock().unwrap() = fault,
                    Ok(_) => {}
                    Err(fault) => {
                        *state.stalled.lock().unwrap() = Some(fault);
                        return;
                    }
                }
            }
        });
        Ok(Copy { runtime: Some(runtime), shared, progress, feed })
    }

    pub fn groups(&self) -> Vec<Group> {
        self.shared.groups.lock().unwrap().clone()
    }

    pub fn finished(&self) -> usize {
        self.shared.finished.lock().unwrap().len()
    }

    pub fn lost(&self) -> Vec<u64> {
        self.shared.lost.lock().unwrap().clone()
    }

    pub fn stalled(&self) -> Option<Fault> {
        self.shared.stalled.lock().unwrap().clone()
    }

    /// Waits until so many messages were handed out, and shows all groups.
    #[track_caller]
    pub fn messages(&self, count: usize) -> Vec<Group> {
        until("messages are handed out", || {
            let groups = self.groups();
            let handed_out: usize = groups.iter().map(|group| group.values.len()).sum();
            (handed_out >= count).then_some(groups)
        })
    }

    pub fn commit(&self, group: &Group) -> Result<(), Fault> {
        let runtime = self.runtime.as_ref().unwrap();
        runtime.block_on(self.progress.commit(&group.commit()))
    }

    pub fn give_back(&self, group: &Group) {
        let given_back = group.commit().ended;
        let commit = FeedCommit { given_back, ..FeedCommit::default() };
        self.runtime.as_ref().unwrap().block_on(self.progress.commit(&commit)).unwrap();
    }

    pub fn on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.as_ref().unwrap().block_on(future)
    }

    /// Dies: nothing it has is given back.
    pub fn kill(mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The numbers of each chat, in the order of their groups; a group that came again counts once.
pub fn by_chat(groups: &[Group]) -> BTreeMap<String, Vec<u64>> {
    let mut seen: BTreeMap<u64, Vec<Bytes>> = BTreeMap::new();
    let mut chats: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for group in groups {
        match seen.get(&group.generation) {
            Some(before) => assert_eq!(*before, group.values, "a repeat is the same"),
            None => {
                seen.insert(group.generation, group.values.clone());
                chats.entry(group.key()).or_default().extend(group.numbers());
            }
        }
    }
    chats
}

/// Each message is in the chat that its body names.
pub fn assert_own_chats(groups: &[Group]) {
    for group in groups.iter().filter(|group| group.key.is_some()) {
        for value in &group.values {
            let value: Value = serde_json::from_slice(value).unwrap();
            assert_eq!(format!("t:{}", value["chat"].as_str().unwrap()), group.key());
        }
    }
}
