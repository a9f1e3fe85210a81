//! The few requests of Kafka's protocol that starting and preparing a cluster takes, in the oldest
//! versions that Kafka 4 knows: those have fixed-size lengths.
//!
//! ```text
//! request   length i32 | api i16 | version i16 | correlation i32 | client string | body
//! answer    length i32 | correlation i32 | body
//! string    length i16 (-1: none) | bytes          array   length i32 (-1: none) | elements
//! ```

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// How long one answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// No answer to these requests comes near it.
const ANSWER_BYTES_MAX: usize = 64 << 20;

#[derive(Clone, Copy)]
struct Api {
    key: i16,
    version: i16,
}

const LIST_OFFSETS: Api = Api { key: 2, version: 1 };
const METADATA: Api = Api { key: 3, version: 1 };
const API_VERSIONS: Api = Api { key: 18, version: 0 };
const CREATE_TOPICS: Api = Api { key: 19, version: 2 };
const DELETE_TOPICS: Api = Api { key: 20, version: 1 };
const CREATE_PARTITIONS: Api = Api { key: 37, version: 0 };

/// What a broker knows of its cluster.
#[derive(Debug)]
pub struct Metadata {
    pub brokers: usize,
    pub topics: Vec<Topic>,
}

#[derive(Debug)]
pub struct Topic {
    pub name: String,
    /// The node that leads each partition, in their order.
    pub leaders: Vec<Option<i32>>,
}

/// Whether the broker at `port` takes requests.
pub fn answers(port: u16) -> Result<()> {
    let mut answer = call(port, API_VERSIONS, Vec::new())?;
    refused(answer.i16()?, "ApiVersions", "")
}

pub fn metadata(port: u16) -> Result<Metadata> {
    let mut body = Vec::new();
    body.extend((-1_i32).to_be_bytes());
    let mut answer = call(port, METADATA, body)?;
    let brokers = answer.array(|broker| {
        broker.i32()?;
        broker.string()?;
        broker.i32()?;
        broker.string()
    })?;
    answer.i32()?;
    let topics = answer.array(|topic| {
        topic.i16()?;
        let name = topic.string()?;
        topic.take(1)?;
        let mut leaders = topic.array(|partition| {
            let error = partition.i16()?;
            let index = partition.i32()?;
            let leader = partition.i32()?;
            partition.array(Answer::i32)?;
            partition.array(Answer::i32)?;
            Ok((index, (error == 0 && leader >= 0).then_some(leader)))
        })?;
        leaders.sort_unstable();
        let leaders = leaders.into_iter().map(|(_, leader)| leader).collect();
        Ok(Topic { name, leaders })
    })?;
    Ok(Metadata { brokers: brokers.len(), topics })
}

pub fn create_topic(
    port: u16,
    name: &str,
    partitions: u32,
    replicas: usize,
    config: &[(&str, &str)],
) -> Result<()> {
    let mut body = Vec::new();
    body.extend(1_i32.to_be_bytes());
    string(&mut body, name);
    body.extend(partitions.to_be_bytes());
    body.extend((replicas as i16).to_be_bytes());
    body.extend(0_i32.to_be_bytes());
    body.extend((config.len() as i32).to_be_bytes());
    for (name, value) in config {
        string(&mut body, name);
        string(&mut body, value);
    }
    timeout(&mut body);
    body.push(0);
    let mut answer = call(port, CREATE_TOPICS, body)?;
    answer.i32()?;
    results(&mut answer, "CreateTopics", true)
}

pub fn create_partitions(port: u16, name: &str, total: u32) -> Result<()> {
    let mut body = Vec::new();
    body.extend(1_i32.to_be_bytes());
    string(&mut body, name);
    body.extend(total.to_be_bytes());
    body.extend((-1_i32).to_be_bytes());
    timeout(&mut body);
    body.push(0);
    let mut answer = call(port, CREATE_PARTITIONS, body)?;
    answer.i32()?;
    results(&mut answer, "CreatePartitions", true)
}

pub fn delete_topic(port: u16, name: &str) -> Result<()> {
    let mut body = Vec::new();
    body.extend(1_i32.to_be_bytes());
    string(&mut body, name);
    timeout(&mut body);
    let mut answer = call(port, DELETE_TOPICS, body)?;
    answer.i32()?;
    results(&mut answer, "DeleteTopics", false)
}

/// Behind the last record of a partition, as a time that is asked for.
pub const END: i64 = -1;
/// At the first record that is there.
pub const START: i64 = -2;

/// Where a partition ends or starts; `port` is that of its leader.
pub fn offset(port: u16, topic: &str, partition: i32, edge: i64) -> Result<i64> {
    let mut body = Vec::new();
    // We are no replica.
    body.extend((-1_i32).to_be_bytes());
    body.extend(1_i32.to_be_bytes());
    string(&mut body, topic);
    body.extend(1_i32.to_be_bytes());
    body.extend(partition.to_be_bytes());
    body.extend(edge.to_be_bytes());
    let mut answer = call(port, LIST_OFFSETS, body)?;
    let mut topics = answer.array(|topic| {
        topic.string()?;
        topic.array(|partition| {
            partition.i32()?;
            let error = partition.i16()?;
            partition.take(8)?;
            let offset = i64::from_be_bytes(partition.take(8)?.try_into()?);
            Ok((error, offset))
        })
    })?;
    let (error, offset) = topics.pop().and_then(|mut topic| topic.pop()).context("no offset")?;
    refused(error, &format!("ListOffsets `{topic}`"), "")?;
    Ok(offset)
}

fn string(body: &mut Vec<u8>, text: &str) {
    body.extend((text.len() as i16).to_be_bytes());
    body.extend(text.as_bytes());
}

fn timeout(body: &mut Vec<u8>) {
    body.extend((ANSWER_MAX.as_millis() as i32).to_be_bytes());
}

/// One result per topic: name, error, and what is said about it in newer requests.
fn results(answer: &mut Answer, what: &str, explained: bool) -> Result<()> {
    let results = answer.array(|result| {
        let name = result.string()?;
        let error = result.i16()?;
        let said = if explained { result.string()? } else { String::new() };
        Ok((name, error, said))
    })?;
    ensure!(!results.is_empty(), "{what}: no result");
    results
        .iter()
        .try_for_each(|(name, error, said)| refused(*error, &format!("{what} `{name}`"), said))
}

fn refused(error: i16, what: &str, said: &str) -> Result<()> {
    ensure!(error == 0, "{what}: Kafka's error {error} {said}");
    Ok(())
}

fn call(port: u16, api: Api, body: Vec<u8>) -> Result<Answer> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_MAX)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    let mut request = Vec::new();
    request.extend(api.key.to_be_bytes());
    request.extend(api.version.to_be_bytes());
    request.extend(1_i32.to_be_bytes());
    string(&mut request, "potok-services");
    request.extend(body);
    stream.write_all(&(request.len() as u32).to_be_bytes())?;
    stream.write_all(&request)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length).context("Kafka hangs up")?;
    let length = u32::from_be_bytes(length) as usize;
    ensure!(length <= ANSWER_BYTES_MAX, "an answer of {length} bytes is none of Kafka's");
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    let mut answer = Answer { bytes, at: 0 };
    answer.i32()?;
    Ok(answer)
}

/// An answer, read from the front.
struct Answer {
    bytes: Vec<u8>,
    at: usize,
}

impl Answer {
    fn take(&mut self, count: usize) -> Result<&[u8]> {
        let taken = self.bytes.get(self.at..self.at + count).context("Kafka's answer ends early");
        self.at += count;
        taken
    }

    fn i16(&mut self) -> Result<i16> {
        Ok(i16::from_be_bytes(self.take(2)?.try_into()?))
    }

    fn i32(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.take(4)?.try_into()?))
    }

    fn string(&mut self) -> Result<String> {
        match usize::try_from(self.i16()?) {
            Ok(length) => Ok(String::from_utf8_lossy(self.take(length)?).into_owned()),
            Err(_) => Ok(String::new()),
        }
    }

    fn array<T>(&mut self, mut element: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let length = self.i32()?;
        if length > ANSWER_BYTES_MAX as i32 {
            bail!("an array of {length} elements is none of Kafka's");
        }
        (0..length.max(0)).map(|_| element(self)).collect()
    }
}
