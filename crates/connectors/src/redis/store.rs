//! Bodies of held records in Redis. Every write is fenced, bounded and repeatable.
//!
//! The records of a call are cut into pieces, each one script. A call that fails half-way has put
//! or cleaned a beginning of its records; made again, it does the rest. One store is made per
//! process: calls are numbered, so that one which was given up and arrives late is refused.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::{Fault, Held, Owner, Place, Position, Record, Store};
use redis::Value;

use super::address::Address;
use super::chunks::{BYTES_MAX, chunks};
use super::client::{Args, Client, Timeouts};
use super::pack::unpack;
use super::scripts::{Script, Scripts};
use super::{compact, documented};

/// What one sweep does at most: groups and ids.
const SWEEP_MAX: &str = "1000";

/// Under which names records lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The names other programs know: `active:batches`, `data:event:<group>:<id>` and so on.
    Documented,
    /// Few keys, packed.
    Compact,
}

/// Keeps bodies in Redis.
pub struct RedisStore {
    client: Client,
    layout: Layout,
    scripts: Scripts,
    calls: AtomicU64,
}

/// What Redis had of one record.
pub(super) struct Found {
    pub packed: Option<Bytes>,
    /// The value, where it lies elsewhere.
    pub value: Option<Bytes>,
}

/// A position as a name: sorts by offset within a partition, and is no other's.
pub(super) fn position_key(position: &Position) -> Vec<u8> {
    let Position { log, topic, partition, offset } = position;
    format!("{offset:020}{log:016x}{partition:010}{topic}").into_bytes()
}

impl RedisStore {
    /// The store at this address. Connects to nothing yet.
    pub fn new(url: &str, layout: Layout) -> Result<Self, Fault> {
        Self::with_timeouts(url, layout, Timeouts::default())
    }

    /// The same with other bounds on how long Redis may take.
    pub fn with_timeouts(url: &str, layout: Layout, timeouts: Timeouts) -> Result<Self, Fault> {
        let client = Client::new(Address::parse(url)?, timeouts)?;
        let scripts = match layout {
            Layout::Documented if client.is_cluster() => {
                return Err(Fault::fix("the documented keys do not fit a Redis cluster")
                    .hint("use the compact layout, or a single server")
                    .code("P0910"));
            }
            Layout::Documented => Scripts::documented(),
            Layout::Compact => Scripts::compact(),
        };
        Ok(RedisStore { client, layout, scripts, calls: AtomicU64::new(1) })
    }

    /// Whether Redis answers and lets us in.
    pub async fn ping(&self) -> Result<(), Fault> {
        self.client.ping().await
    }

    fn owner_key(&self, owner: &Owner) -> Vec<u8> {
        match self.layout {
            Layout::Documented => documented::owner_key(owner),
            Layout::Compact => compact::owner_key(owner),
        }
    }

    /// What every script is told first.
    fn begin(&self, owner: &Owner) -> Args {
        let mut args = Args::default();
        args.push(owner.nonce.to_string());
        args.push(self.number().to_string());
        match self.layout {
            Layout::Documented => documented::begin(&mut args, owner),
            Layout::Compact => compact::begin(&mut args, owner),
        }
        args
    }

    /// Numbers calls. One that was given up may still arrive, long after; behind a later one of
    /// the same owner it does nothing.
    fn number(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// Runs a script for the owner; what it answered, but never that somebody else owns the share.
    async fn run(&self, owner: &Owner, script: &Script, args: &Args) -> Result<Value, Fault> {
        let answer = self.client.run(script, &self.owner_key(owner), args).await?;
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

    fn strange(&self) -> Fault {
        Fault::retry(format!("{} gave an answer that no script gives", self.client.label()))
            .code("P0911")
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn own(&self, owner: &Owner) -> Result<(), Fault> {
        // First the fence: from here on who owned it before changes nothing.
        let value = format!("{} {}", owner.nonce, self.number());
        self.client.set(&self.owner_key(owner), value.as_bytes()).await?;
        let mut args = self.begin(owner);
        args.push(SWEEP_MAX);
        loop {
            match self.run(owner, &self.scripts.sweep, &args).await? {
                Value::Int(1) => return Ok(()),
                Value::Int(2) => {}
                _ => return Err(self.strange()),
            }
        }
    }

    async fn put(&self, owner: &Owner, held: &[Held]) -> Result<(), Fault> {
        let bytes = |held: &Held| held.record.bytes() + held.place.group.len();
        // Nothing to put is asked as well: whose share it is.
        for chunk in at_least_one(chunks(held, bytes)) {
            let mut args = self.begin(owner);
            match self.layout {
                Layout::Documented => documented::put(&mut args, chunk),
                Layout::Compact => compact::put(&mut args, chunk),
            }
            self.run(owner, &self.scripts.put, &args).await?;
        }
        Ok(())
    }

    async fn close(&self, owner: &Owner, groups: &[Bytes]) -> Result<(), Fault> {
        for chunk in at_least_one(chunks(groups, Bytes::len)) {
            let mut args = self.begin(owner);
            for group in chunk {
                args.push(&group[..]);
            }
            self.run(owner, &self.scripts.close, &args).await?;
        }
        Ok(())
    }

    async fn load(&self, owner: &Owner, places: &[Place]) -> Result<Vec<Option<Record>>, Fault> {
        let mut records = Vec::with_capacity(places.len());
        while records.len() < places.len() {
            let rest = places.get(records.len()..).unwrap_or_default();
            let Some(chunk) = chunks(rest, |place| place.group.len()).next() else { break };
            let mut args = self.begin(owner);
            args.push(BYTES_MAX.to_string());
            match self.layout {
                Layout::Documented => documented::load(&mut args, chunk),
                Layout::Compact => compact::load(&mut args, chunk),
            }
            let Value::Array(answers) = self.run(owner, &self.scripts.load, &args).await? else {
                return Err(self.strange());
            };
            let texts = answers.into_iter().skip(1).map(|value| match value {
                Value::BulkString(bytes) => Some(bytes),
                _ => None,
            });
            let found = match self.layout {
                Layout::Documented => documented::found(texts.collect()),
                Layout::Compact => compact::found(texts.collect()),
            };
            // Redis answers with as many as fit, and at least one.
            if found.is_empty() || found.len() > chunk.len() {
                return Err(self.strange());
            }
            for (place, Found { packed, value }) in chunk.iter().zip(found) {
                let offset = place.position.offset;
                records.push(packed.and_then(|packed| unpack(packed, value, offset)));
            }
        }
        Ok(records)
    }

    async fn clean(&self, owner: &Owner, places: &[Place]) -> Result<(), Fault> {
        for chunk in at_least_one(chunks(places, |place| place.group.len())) {
            let mut args = self.begin(owner);
            match self.layout {
                Layout::Documented => documented::clean(&mut args, chunk),
                Layout::Compact => compact::clean(&mut args, chunk),
            }
            self.run(owner, &self.scripts.clean, &args).await?;
        }
        Ok(())
    }
}

/// The pieces, or one empty piece.
fn at_least_one<'a, T: 'a>(
    mut chunks: impl Iterator<Item = &'a [T]>,
) -> impl Iterator<Item = &'a [T]> {
    let first = chunks.next().unwrap_or_default();
    std::iter::once(first).chain(chunks)
}
