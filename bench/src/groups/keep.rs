//! Where a bare loop keeps bodies until their group has all its records.
//!
//! In Redis as one would write it by hand: commands go in pipelines of some hundred records; the
//! documented keys of em-processor with a hash of headers beside them, or one hash for each group.
//! Nothing is fenced, and nothing is known of what is there already.

use std::collections::HashMap;
use std::mem::take;

use anyhow::{Context, Result};
use rdkafka::message::{Header, Headers, OwnedHeaders};
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
    place: Storage,
}

enum Storage {
    Memory(HashMap<Vec<u8>, Vec<Body>>),
    Redis { connection: Connection, documented: bool, waiting: Pipeline, records: usize },
}

impl Keep {
    pub fn in_memory() -> Self {
        Keep { counts: HashMap::new(), place: Storage::Memory(HashMap::new()) }
    }

    pub fn readable(url: &str) -> Result<Self> {
        Self::redis(url, true)
    }

    pub fn packed(url: &str) -> Result<Self> {
        Self::redis(url, false)
    }

    fn redis(url: &str, documented: bool) -> Result<Self> {
        let connection = empty(url)?;
        let (waiting, records) = (Pipeline::new(), 0);
        let place = Storage::Redis { connection, documented, waiting, records };
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
            Storage::Memory(groups) => match groups.get_mut(group) {
                Some(bodies) => bodies.push((value.into(), headers())),
                None => {
                    groups.insert(group.to_vec(), vec![(value.into(), headers())]);
                }
            },
            Storage::Redis { documented: true, waiting, records, .. } => {
                if is_new {
                    waiting.cmd("SADD").arg("active:batches").arg(group).ignore();
                    waiting.cmd("SET").arg(key("batch:start:", group)).arg("0").ignore();
                }
                waiting.cmd("SADD").arg(key("batch:records:", group)).arg(id).ignore();
                waiting.cmd("SET").arg(data(group, id.as_bytes())).arg(value).ignore();
                let headers = packed(headers());
                waiting.cmd("HSET").arg(key("headers:", group)).arg(id).arg(headers).ignore();
                *records += 1;
            }
            Storage::Redis { waiting, records, .. } => {
                let mut body = packed(headers());
                body.extend_from_slice(value);
                waiting.cmd("HSET").arg(key("held:", group)).arg(id).arg(body).ignore();
                *records += 1;
            }
        }
        Ok(())
    }

    /// Sends what is complete, from time to time.
    pub fn deliver_complete(&mut self, per_group: u64, deliver: impl Deliver) -> Result<()> {
        match &self.place {
            Storage::Redis { records, .. } if *records < PER_CALL => Ok(()),
            _ => self.finish(per_group, deliver),
        }
    }

    /// Sends what is complete.
    pub fn finish(&mut self, per_group: u64, deliver: impl Deliver) -> Result<()> {
        if let Storage::Redis { connection, waiting, records: records @ 1.., .. } = &mut self.place
        {
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
                Storage::Memory(groups) => {
                    for (value, headers) in groups.remove(&group).unwrap_or_default() {
                        deliver(&group, &value, headers)?;
                    }
                }
                Storage::Redis { connection, documented: true, .. } => {
                    documented(connection, &group, &deliver)?;
                }
                Storage::Redis { connection, .. } => {
                    let held = key("held:", &group);
                    let bodies: Vec<Vec<u8>> = redis::cmd("HVALS").arg(&held).query(connection)?;
                    for body in bodies {
                        let (headers, value) = unpacked(&body)?;
                        deliver(&group, value, headers)?;
                    }
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
    let hash = key("headers:", group);
    let headers: Vec<Vec<u8>> = redis::cmd("HMGET").arg(&hash).arg(&ids).query(connection)?;
    for (value, headers) in values.iter().zip(&headers) {
        deliver(group, value, unpacked(headers)?.0)?;
    }
    let mut clean = Pipeline::new();
    clean.cmd("DEL").arg(&keys).arg(set).arg(hash).arg(key("batch:start:", group)).ignore();
    clean.cmd("SREM").arg("ready:batches").arg(group).ignore();
    Ok(clean.exec(connection)?)
}

fn key(prefix: &str, group: &[u8]) -> Vec<u8> {
    [prefix.as_bytes(), group].concat()
}

fn data(group: &[u8], id: &[u8]) -> Vec<u8> {
    [b"data:record:", group, b":", id].concat()
}

/// How many headers there are, and of each name and value behind their lengths.
fn packed(headers: Option<OwnedHeaders>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let headers = headers.unwrap_or_default();
    bytes.extend_from_slice(&(headers.count() as u32).to_le_bytes());
    for header in headers.iter() {
        for part in [header.key.as_bytes(), header.value.unwrap_or_default()] {
            bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
            bytes.extend_from_slice(part);
        }
    }
    bytes
}

/// The headers, and what lies behind them.
fn unpacked(mut bytes: &[u8]) -> Result<(Option<OwnedHeaders>, &[u8])> {
    fn number(bytes: &mut &[u8]) -> Result<usize> {
        let (head, rest) = bytes.split_first_chunk().context("a length")?;
        *bytes = rest;
        Ok(u32::from_le_bytes(*head) as usize)
    }
    fn part<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8]> {
        let length = number(bytes)?;
        let (part, rest) = bytes.split_at_checked(length).context("a part")?;
        *bytes = rest;
        Ok(part)
    }
    let mut headers = OwnedHeaders::new();
    for _ in 0..number(&mut bytes)? {
        let (key, value) = (std::str::from_utf8(part(&mut bytes)?)?, part(&mut bytes)?);
        headers = headers.insert(Header { key, value: Some(value) });
    }
    Ok((Some(headers), bytes))
}
