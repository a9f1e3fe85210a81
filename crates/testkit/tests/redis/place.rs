//! A server of Redis, and records to hold in it.

use std::time::Duration;

use bytes::Bytes;
use potok_connectors::redis::{KeyStyle, RedisStore, RedisTimeouts};
use potok_core::{
    Fault, HeadersBuilder, Move, Owner, Position, Record, Store, StoreAddress, StoreEntry,
    Timestamp,
};
use potok_testkit::services::{Redis, RedisOptions};

/// More than any bound of the stores here: whatever takes longer hangs.
pub const HANGS: Duration = Duration::from_secs(60);
pub const BATCH: &str = "20250323151500";

pub async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANGS, work).await.expect("it hangs")
}

/// A server of its own, for tests that break it.
pub fn server(settings: &[(&str, &str)]) -> Redis {
    let settings = settings.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    Redis::start_with(&RedisOptions { settings: settings.collect(), ..RedisOptions::default() })
}

pub fn store(url: &str, style: KeyStyle) -> RedisStore {
    RedisStore::new(url, style).unwrap()
}

/// A store that does not wait long.
pub fn hasty(url: &str, style: KeyStyle) -> RedisStore {
    let half = Duration::from_millis(500);
    RedisStore::with_timeouts(url, style, RedisTimeouts { connect: half, call: half }).unwrap()
}

pub fn owner(nonce: u64) -> Owner {
    Owner { pipeline: "em".into(), share: 3, nonce }
}

pub fn held(
    group: &str,
    kind: Option<&str>,
    id: Option<&str>,
    offset: u64,
    value: &str,
) -> StoreEntry {
    let record = Record {
        offset,
        time: Timestamp(1_742_742_900_000 + offset as i64),
        key: Some(Bytes::from(format!("key {offset}"))),
        headers: HeadersBuilder::new().add("batchId", Some(group.as_bytes())).build(),
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
    };
    let position = Position { log: 7, topic: "in".into(), partition: 3, offset };
    let place = StoreAddress {
        group: Bytes::copy_from_slice(group.as_bytes()),
        kind: kind.map(Into::into),
        id: id.map(|id| Bytes::copy_from_slice(id.as_bytes())),
        position,
        with: offset,
    };
    StoreEntry { place, opened: Timestamp(1_742_742_900_123), record }
}

/// Events of one batch.
pub fn events(offsets: std::ops::Range<u64>) -> Vec<StoreEntry> {
    let one =
        |n: u64| held(BATCH, Some("event"), Some(&n.to_string()), n, &format!("{{\"n\":{n}}}"));
    offsets.map(one).collect()
}

pub fn places(held: &[StoreEntry]) -> Vec<StoreAddress> {
    held.iter().map(|held| held.place.clone()).collect()
}

pub fn batch() -> Vec<Bytes> {
    vec![Bytes::from_static(BATCH.as_bytes())]
}

/// The records come back as they were put.
pub async fn holds(store: &RedisStore, owner: &Owner, held: &[StoreEntry]) {
    let loaded = within(store.load(owner, &places(held))).await.unwrap();
    let expected: Vec<_> = held.iter().map(|held| Some(held.record.clone())).collect();
    assert!(loaded == expected, "{} of {} differ", differing(&loaded, &expected), held.len());
}

fn differing<T: PartialEq>(one: &[T], two: &[T]) -> usize {
    one.iter().zip(two).filter(|(one, two)| one != two).count() + one.len().abs_diff(two.len())
}

#[track_caller]
pub fn is(fault: &Fault, next: Move, code: &str) {
    assert_eq!((fault.next, fault.code), (next, code), "{fault}");
}

/// The names of all keys, sorted.
pub fn keys(redis: &Redis) -> Vec<String> {
    let all = redis.command(&["KEYS", "*"]);
    let mut keys: Vec<String> = all.lines().map(str::to_owned).collect();
    keys.sort();
    keys
}

/// The only key that may be there without records.
pub fn owner_key(style: KeyStyle) -> String {
    match style {
        KeyStyle::Readable => "potok:em:owner:3".to_owned(),
        KeyStyle::Packed => "potok:{em:3}:owner".to_owned(),
    }
}

/// Everything in the server, to compare.
pub fn contents(redis: &Redis) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    let mut contents: Vec<(Vec<u8>, Vec<u8>)> = keys
        .into_iter()
        .map(|key| {
            let dump = redis::cmd("DUMP").arg(&key).query(&mut connection).unwrap();
            (key, dump)
        })
        .collect();
    contents.sort();
    contents
}
