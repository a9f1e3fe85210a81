//! Bodies of held records in Redis. Every write is fenced, bounded and repeatable.
//!
//! The records of a call are gathered by group and cut into parts, each one script. A call that
//! fails half-way has put or cleaned some of its records; made again, it does the rest. One store
//! is made per process: calls are numbered, so that one which was given up and arrives late is
//! refused.
//!
//! Parts of `put` and `close` go one after another: numbers are compared, and on a new connection
//! a part might overtake another. Those of `load` and `clean` go in any order, several at a time.

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::{Fault, Owner, Position, PutOutcome, Record, Store, StoreAddress, StoreEntry};
use redis::Value;

use super::address::RedisAddress;
use super::chunks::{BYTES_MAX, chunks, gathered};
use super::client::{RedisClient, RedisTimeouts, ScriptCall};
use super::fault::{Failure, RedisTrouble};
use super::pack::unpack;
use super::scripts::{Script, StoreScripts};
use super::{packed, readable};

/// A pipeline has no more lanes than this, and so no more shares where each lane has one.
const SHARES_MAX: u32 = 1_024;

/// The bound of one sweep: groups and ids.
const SWEEP_MAX: &str = "1000";

/// The warning about a Redis that evicts.
pub const EVICTS: &str = "Redis may throw away what is held when its memory is full; nothing is lost, \
     but all that is held is read again each time: set `maxmemory-policy noeviction`";

/// Under which names records lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStyle {
    /// The names other programs know: `active:batches`, `data:event:<group>:<id>` and so on.
    Readable,
    /// Few keys, packed.
    Packed,
}

/// Keeps bodies in Redis.
pub struct RedisStore {
    client: RedisClient,
    keys: KeyStyle,
    scripts: StoreScripts,
    calls: AtomicU64,
    /// Somebody was told that Redis may throw keys away.
    warned: AtomicBool,
}

/// Redis' answer for one record.
pub(super) struct StoredRecord {
    pub packed: Option<Bytes>,
    /// The value, where it lies elsewhere.
    pub value: Option<Bytes>,
}

/// A position as a name: sorts by offset within a partition, and is no other's.
pub(super) struct PositionKey<'a>(pub &'a Position);

impl PositionKey<'_> {
    /// Its length.
    pub fn len(&self) -> usize {
        OFFSET_DIGITS + LOG_DIGITS + PARTITION_DIGITS + self.0.topic.len()
    }
}

const OFFSET_DIGITS: usize = 20;
const LOG_DIGITS: usize = 16;
const PARTITION_DIGITS: usize = 10;

impl Display for PositionKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { log, topic, partition, offset } = self.0;
        // Written by hand: there are several for every record, and padding numbers is slow.
        let mut digits = [0; OFFSET_DIGITS + LOG_DIGITS + PARTITION_DIGITS];
        let (offset_digits, rest) = digits.split_at_mut(OFFSET_DIGITS);
        let (log_digits, partition_digits) = rest.split_at_mut(LOG_DIGITS);
        write_digits(offset_digits, *offset, 10);
        write_digits(log_digits, *log, 16);
        write_digits(partition_digits, u64::from(*partition), 10);
        f.write_str(str::from_utf8(&digits).map_err(|_| fmt::Error)?)?;
        f.write_str(topic)
    }
}

/// A number with as many digits as there is room for.
fn write_digits(room: &mut [u8], mut number: u64, base: u64) {
    for digit in room.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number % base) as usize];
        number /= base;
    }
}

/// The entry there, if there is one.
pub(super) fn text(answer: Value) -> Option<Bytes> {
    match answer {
        Value::BulkString(bytes) => Some(bytes.into()),
        _ => None,
    }
}

impl RedisStore {
    /// The store at this address. Connects to nothing yet.
    pub fn new(url: &str, keys: KeyStyle) -> Result<Self, Fault> {
        Self::with_timeouts(url, keys, RedisTimeouts::default())
    }

    /// The same with other bounds on how long Redis may take.
    pub fn with_timeouts(
        url: &str,
        keys: KeyStyle,
        timeouts: RedisTimeouts,
    ) -> Result<Self, Fault> {
        let client = RedisClient::new(RedisAddress::parse(url)?, timeouts)?;
        let scripts = match keys {
            KeyStyle::Readable if client.is_cluster() => {
                return Err(Fault::fix("the readable keys do not fit a Redis cluster")
                    .hint("use the packed keys, or a single server")
                    .code("P0910"));
            }
            KeyStyle::Readable => StoreScripts::readable(),
            KeyStyle::Packed => StoreScripts::packed(),
        };
        Ok(RedisStore { client, keys, scripts, calls: AtomicU64::new(1), warned: false.into() })
    }

    /// Whether Redis answers and lets us in.
    pub async fn ping(&self) -> Result<(), Fault> {
        self.client.ping().await
    }

    /// Which keys Redis throws away when its memory is full, if it may; `None` where it does not say.
    pub async fn evicts(&self) -> Option<String> {
        let info = self.client.info("memory").await?;
        let value = |name: &str| {
            info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        let policy = value("maxmemory_policy").filter(|policy| *policy != "noeviction")?;
        (value("maxmemory") != Some("0")).then(|| policy.to_owned())
    }

    /// Says so once. Nothing is lost, but whoever finds bodies gone reads everything again.
    async fn warn_of_eviction(&self) {
        let Some(policy) = self.evicts().await else { return };
        if !self.warned.swap(true, Ordering::Relaxed) {
            let store = self.client.label();
            tracing::warn!(store, policy, "{EVICTS}");
        }
    }

    fn owner_key(&self, owner: &Owner) -> String {
        match self.keys {
            KeyStyle::Readable => readable::owner_key(owner),
            KeyStyle::Packed => packed::owner_key(owner),
        }
    }

    /// A script with what every script is told first.
    fn begin<'a>(&self, owner: &Owner, script: &'a Script) -> ScriptCall<'a> {
        let mut call = ScriptCall::new(script, self.owner_key(owner));
        call.show(owner.nonce);
        call.show(self.number());
        match self.keys {
            KeyStyle::Readable => readable::begin(&mut call, owner),
            KeyStyle::Packed => packed::begin(&mut call, owner),
        }
        call
    }

    /// Numbers calls. One that was given up may still arrive, long after; behind a later one of
    /// the same owner it does nothing.
    fn number(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// Runs a script for the owner; what it answered, but never that somebody else owns the share.
    async fn run(&self, owner: &Owner, call: &ScriptCall<'_>) -> Result<Value, Fault> {
        let answer = self.client.run(call).await?;
        self.owned(owner, answer)
    }

    fn owned(&self, owner: &Owner, answer: Value) -> Result<Value, Fault> {
        let Owner { pipeline, share, .. } = owner;
        let lost = match answer {
            Value::Int(-1) => "has no owner any more: it was emptied or lost its last writes",
            Value::Int(0) => "has another owner now",
            answer => return Ok(answer),
        };
        let label = self.client.label();
        Err(Fault::retry(format!("share {share} of `{pipeline}` in {label} {lost}"))
            .hint("the owner writes it again from the log")
            .code("P0907"))
    }

    /// The bodies of one part of a call, asked for until all have come.
    async fn load_documented(
        &self,
        owner: &Owner,
        places: &[StoreAddress],
    ) -> Result<Vec<Option<Record>>, Fault> {
        let mut records = Vec::with_capacity(places.len());
        while let Some(rest @ [_, ..]) = places.get(records.len()..) {
            let mut call = self.begin(owner, &self.scripts.load);
            call.show(BYTES_MAX);
            readable::load(&mut call, rest);
            let found = readable::found(self.answers(owner, &call).await?);
            // Redis answers with as many as fit, and at least one.
            if found.is_empty() || found.len() > rest.len() {
                return Err(self.strange());
            }
            for (place, StoredRecord { packed, value }) in rest.iter().zip(found) {
                let offset = place.position.offset;
                records.push(packed.and_then(|packed| unpack(&packed, value, offset)));
            }
        }
        Ok(records)
    }

    /// The same of pieces.
    async fn load_compact(
        &self,
        owner: &Owner,
        pieces: &[&[StoreAddress]],
    ) -> Result<Vec<Option<Record>>, Fault> {
        let (mut records, mut loaded) = (Vec::new(), 0);
        while let Some(rest @ [_, ..]) = pieces.get(loaded..) {
            let mut call = self.begin(owner, &self.scripts.load);
            call.show(BYTES_MAX);
            packed::load(&mut call, rest);
            let mut answers = self.answers(owner, &call).await?;
            let before = loaded;
            for piece in rest {
                let (Some(list), Some(bodies)) = (answers.next(), answers.next()) else { break };
                records.extend(packed::found(piece, list, bodies));
                loaded += 1;
            }
            if loaded == before || answers.next().is_some() {
                return Err(self.strange());
            }
        }
        Ok(records)
    }

    /// The findings of a script.
    async fn answers(
        &self,
        owner: &Owner,
        call: &ScriptCall<'_>,
    ) -> Result<impl Iterator<Item = Value> + use<>, Fault> {
        match self.run(owner, call).await? {
            Value::Array(answers) => Ok(answers.into_iter().skip(1)),
            _ => Err(self.strange()),
        }
    }

    /// A script that is given what `tell` tells it.
    async fn tell(
        &self,
        owner: &Owner,
        script: &Script,
        tell: impl FnOnce(&mut ScriptCall<'_>),
    ) -> Result<(), Fault> {
        let mut call = self.begin(owner, script);
        tell(&mut call);
        self.done(owner, &call).await
    }

    /// Runs a script that has nothing to tell but that it is done.
    async fn done(&self, owner: &Owner, call: &ScriptCall<'_>) -> Result<(), Fault> {
        match self.run(owner, call).await? {
            Value::Int(1) => Ok(()),
            _ => Err(self.strange()),
        }
    }

    /// Removes all that the share has, at most so much at a time.
    async fn sweep(&self, owner: &Owner) -> Result<(), Fault> {
        let mut call = self.begin(owner, &self.scripts.sweep);
        call.push(SWEEP_MAX.as_bytes());
        loop {
            match self.run(owner, &call).await? {
                Value::Int(1) => break,
                Value::Int(2) => {}
                _ => return Err(self.strange()),
            }
        }
        Ok(())
    }

    /// Puts one part of a call.
    async fn put_part(
        &self,
        owner: &Owner,
        tell: impl FnOnce(&mut ScriptCall<'_>),
    ) -> Result<PutOutcome, Fault> {
        let mut call = self.begin(owner, &self.scripts.put);
        tell(&mut call);
        match self.client.run(&call).await {
            Err(Failure { trouble: RedisTrouble::NoMemory, fault }) => Ok(PutOutcome::Full(fault)),
            answer => match self.owned(owner, answer?)? {
                Value::Int(1) => Ok(PutOutcome::Kept),
                _ => Err(self.strange()),
            },
        }
    }

    fn strange(&self) -> Fault {
        Fault::retry(format!("{} gave an answer that no script gives", self.client.label()))
            .code("P0911")
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn own(&self, owner: &Owner) -> Result<(), Fault> {
        // First the fence: from here on who owned it before changes nothing.
        let mut call = ScriptCall::new(&self.scripts.own, self.owner_key(owner));
        call.show(format_args!("{} {}", owner.nonce, self.number()));
        if self.client.run(&call).await? != Value::Int(1) {
            return Err(self.strange());
        }
        self.sweep(owner).await?;
        self.warn_of_eviction().await;
        Ok(())
    }

    async fn own_no_more(&self, owner: &Owner, shares: u32) -> Result<(), Fault> {
        several_at_a_time(shares..SHARES_MAX, |share| {
            let owner = Owner { share, ..owner.clone() };
            async move {
                let key = self.owner_key(&owner);
                if self.client.has(&key).await? {
                    self.own(&owner).await?;
                    self.client.remove(&key).await?;
                }
                Ok(())
            }
        })
        .await?;
        Ok(())
    }

    async fn put(&self, owner: &Owner, held: &[StoreEntry]) -> Result<PutOutcome, Fault> {
        let bytes = |held: &&StoreEntry| held.record.bytes() + held.place.group.len();
        // Nothing to put is asked as well: whose share it is, and whether there is room.
        match self.keys {
            KeyStyle::Readable => {
                let held = gathered(held, |held| &held.place.group);
                for part in at_least_one(chunks(&held, bytes)) {
                    let put = self.put_part(owner, |call| readable::put(call, part));
                    if let full @ PutOutcome::Full(_) = put.await? {
                        return Ok(full);
                    }
                }
            }
            KeyStyle::Packed => {
                let held = packed::gathered(held, |held| &held.place);
                let pieces = packed::pieces(&held, |held| &held.place);
                for part in at_least_one(chunks(&pieces, |piece| piece.iter().map(bytes).sum())) {
                    let put = self.put_part(owner, |call| packed::put(call, part));
                    if let full @ PutOutcome::Full(_) = put.await? {
                        return Ok(full);
                    }
                }
            }
        }
        Ok(PutOutcome::Kept)
    }

    async fn close(&self, owner: &Owner, groups: &[Bytes]) -> Result<(), Fault> {
        for chunk in at_least_one(chunks(groups, Bytes::len)) {
            let mut call = self.begin(owner, &self.scripts.close);
            for group in chunk {
                call.push(group);
            }
            self.done(owner, &call).await?;
        }
        Ok(())
    }

    async fn load(
        &self,
        owner: &Owner,
        places: &[StoreAddress],
    ) -> Result<Vec<Option<Record>>, Fault> {
        let loaded = match self.keys {
            KeyStyle::Readable => {
                let parts = chunks(places, |place| place.group.len());
                several_at_a_time(parts, |part| self.load_documented(owner, part)).await?
            }
            KeyStyle::Packed => {
                let pieces = packed::pieces(places, |place| place);
                let parts = chunks(&pieces, |piece| piece.len());
                several_at_a_time(parts, |part| self.load_compact(owner, part)).await?
            }
        };
        Ok(loaded.into_iter().flatten().collect())
    }

    async fn clean(&self, owner: &Owner, places: &[StoreAddress]) -> Result<(), Fault> {
        let script = &self.scripts.clean;
        match self.keys {
            KeyStyle::Readable => {
                let places = gathered(places, |place| &place.group);
                let parts = at_least_one(chunks(&places, |place| place.group.len()));
                let clean =
                    |part| self.tell(owner, script, move |call| readable::clean(call, part));
                several_at_a_time(parts, clean).await?;
            }
            KeyStyle::Packed => {
                let places = packed::gathered(places, |place| place);
                let pieces = packed::pieces(&places, |place| place);
                let parts = at_least_one(chunks(&pieces, |piece| piece.len()));
                let clean = |part| self.tell(owner, script, move |call| packed::clean(call, part));
                several_at_a_time(parts, clean).await?;
            }
        }
        Ok(())
    }
}

/// The parts, or one empty part.
fn at_least_one<'a, T: 'a>(
    mut chunks: impl Iterator<Item = &'a [T]>,
) -> impl Iterator<Item = &'a [T]> {
    let first = chunks.next().unwrap_or_default();
    std::iter::once(first).chain(chunks)
}

/// Works on four parts at a time; what came of them, in order, or the first fault.
async fn several_at_a_time<P: Copy, T, W: Future<Output = Result<T, Fault>>>(
    parts: impl Iterator<Item = P>,
    work: impl Fn(P) -> W,
) -> Result<Vec<T>, Fault> {
    let parts: Vec<P> = parts.collect();
    let taken = AtomicUsize::new(0);
    let worker = async || -> Result<Vec<(usize, T)>, Fault> {
        let mut done = Vec::new();
        loop {
            let number = taken.fetch_add(1, Ordering::Relaxed);
            let Some(part) = parts.get(number) else { return Ok(done) };
            done.push((number, work(*part).await?));
        }
    };
    let (one, two, three, four) = tokio::try_join!(worker(), worker(), worker(), worker())?;
    let mut done: Vec<(usize, T)> = [one, two, three, four].into_iter().flatten().collect();
    done.sort_by_key(|(number, _)| *number);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}
