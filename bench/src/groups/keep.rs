//! Where a bare loop keeps bodies until their group has all its records.
//!
//! In Redis as one would write it by hand: commands go in pipelines of some hundred records; the
//! documented keys of em-processor, or one hash for each group. Nothing is fenced, and nothing is
//! known of what is there already.

use std::collections::HashMap;
use std::mem::take;

use anyhow::Result;
use rdkafka::message::OwnedHeaders;
use redis::{Connection, Pipeline};

/// Records put into Redis at once.
const PER_CALL: usize = 500;

/// Hands a record of a group on.
pub trait Deliver: Fn(&[u8], &[u8], Option<OwnedHeaders>) -> Result<()> {}

impl<F: Fn(&[u8], &[u8], Option<OwnedHeaders>) -> Result<()>> Deliver for F {}

/// A value and its headers.
type Body = (Box<[u8]>, Option<OwnedHeaders>);

pub struct Keep {
    /// Records of each group so far.
    counts: HashMap<Vec<u8>, u64>,
    place: Place,
}

enum Place {
    Memory(HashMap<Vec<u8>, Vec<Body>>),
    Redis { connection: Connection, documented: bool, waiting: Pipeline, records: usize },
}

impl Keep {
    pub fn in_memory() -> Self {
        Keep { counts: HashMap::new(), place: Place::Memory(HashMap::new()) }
    }

    pub fn documented(url: &str) -> Result<Self> {
        Self::redis(url, true)
    }

    pub fn compact(url: &str) -> Result<Self> {
        Self::redis(url, false)
    }

    fn redis(url: &str, documented: bool) -> Result<Self> {
        let connection = empty(url)?;
        let (waiting, records) = (Pipeline::new(), 0);
        let place = Place::Redis { connection, documented, waiting, records };
        Ok(Keep { counts: HashMap::new(), place })
    }

    pub fn put(
        &mut self,
        group: &[u8],
        id: &str,
        value: &[u8],
        headers: impl Fn() -> Option<OwnedHeaders>,
    ) -> Result<()> {
        let is_new = match self.counts.get_mut(group) {
            Some(count) => {
                *count += 1;
                false
            }
            None => self.counts.insert(group.to_vec(), 1).is_none(),
        };
        match &mut self.place {
            Place::Memory(groups) => match groups.get_mut(group) {
                Some(bodies) => bodies.push((value.into(), headers())),
                None => {
                    groups.insert(group.to_vec(), vec![(value.into(), headers())]);
                }
            },
            Place::Redis { documented: true, waiting, records, .. } => {
                if is_new {
                    waiting.cmd("SADD").arg("active:batches").arg(group).ignore();
                    waiting.cmd("SET").arg(key("batch:start:", group)).arg("0").ignore();
                }
                waiting.cmd("SADD").arg(key("batch:records:", group)).arg(id).ignore();
                waiting.cmd("SET").arg(data(group, id.as_bytes())).arg(value).ignore();
                *records += 1;
            }
            Place::Redis { waiting, records, .. } => {
                waiting.cmd("HSET").arg(key("held:", group)).arg(id).arg(value).ignore();
                *records += 1;
            }
        }
        Ok(())
    }

    /// Sends what is complete, from time to time.
    pub fn deliver_complete(&mut self, per_group: u64, deliver: impl Deliver) -> Result<()> {
        match &self.place {
            Place::Redis { records, .. } if *records < PER_CALL => Ok(()),
            _ => self.finish(per_group, deliver),
        }
    }

    /// Sends what is complete.
    pub fn finish(&mut self, per_group: u64, deliver: impl Deliver) -> Result<()> {
        if let Place::Redis { connection, waiting, records: records @ 1.., .. } = &mut self.place {
            take(waiting).exec(connection)?;
            *records = 0;
        }
        let complete: Vec<Vec<u8>> = self
            .counts
            .extract_if(|_, count| *count == per_group)
            .map(|(group, _)| group)
            .collect();
        for group in complete {
            match &mut self.place {
                Place::Memory(groups) => {
                    for (value, headers) in groups.remove(&group).unwrap_or_default() {
                        deliver(&group, &value, headers)?;
                    }
                }
                Place::Redis { connection, documented: true, .. } => {
                    documented(connection, &group, &deliver)?;
                }
                Place::Redis { connection, .. } => {
                    let held = key("held:", &group);
                    let values: Vec<Vec<u8>> = redis::cmd("HVALS").arg(&held).query(connection)?;
                    values.iter().try_for_each(|value| deliver(&group, value, None))?;
                    redis::cmd("DEL").arg(&held).exec(connection)?;
                }
            }
        }
        Ok(())
    }
}

/// A connection to a Redis that has nothing of whoever used it before.
pub fn empty(url: &str) -> Result<Connection> {
    let mut connection = redis::Client::open(url)?.get_connection()?;
    redis::cmd("FLUSHALL").exec(&mut connection)?;
    Ok(connection)
}

/// Moves a group through its documented states and delivers it.
fn documented(connection: &mut Connection, group: &[u8], deliver: impl Deliver) -> Result<()> {
    let set = key("batch:records:", group);
    redis::cmd("SMOVE").arg("active:batches").arg("ready:batches").arg(group).exec(connection)?;
    let ids: Vec<Vec<u8>> = redis::cmd("SMEMBERS").arg(&set).query(connection)?;
    let keys: Vec<Vec<u8>> = ids.iter().map(|id| data(group, id)).collect();
    let values: Vec<Vec<u8>> = redis::cmd("MGET").arg(&keys).query(connection)?;
    values.iter().try_for_each(|value| deliver(group, value, None))?;
    let mut clean = Pipeline::new();
    clean.cmd("DEL").arg(&keys).arg(set).arg(key("batch:start:", group)).ignore();
    clean.cmd("SREM").arg("ready:batches").arg(group).ignore();
    Ok(clean.exec(connection)?)
}

fn key(prefix: &str, group: &[u8]) -> Vec<u8> {
    [prefix.as_bytes(), group].concat()
}

fn data(group: &[u8], id: &[u8]) -> Vec<u8> {
    [b"data:record:", group, b":", id].concat()
}
