//! The log as a whole: what the CLI, the admin API and pipelines ask of it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Fault, Headers, Journal, OWN_HEADERS_BYTES_MAX, Position, RECORD_BYTES_MAX, RangeSet, Source,
    SourceBatch, Store, Timestamp,
};

/// A record to append. The log gives it time and position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The topic; created on first use where the log may create topics.
    pub topic: Arc<str>,
    /// The partition; `None` lets the key decide, and without a key spreads evenly.
    pub partition: Option<u32>,
    /// `None` for a record without a key, which is not the same as an empty one.
    pub key: Option<Bytes>,
    /// Empty where the record has none.
    pub headers: Headers,
    /// The value; `None` is a tombstone.
    pub value: Option<Bytes>,
}

impl Output {
    /// Key, headers and value together.
    pub fn bytes(&self) -> usize {
        self.key.as_ref().map_or(0, Bytes::len)
            + self.headers.encoded().len()
            + self.value.as_ref().map_or(0, Bytes::len)
    }

    /// True when no log takes it: it is larger than [`RECORD_BYTES_MAX`], not counting up to
    /// [`OWN_HEADERS_BYTES_MAX`] of potok's own headers.
    pub fn is_too_large(&self) -> bool {
        let over = self.bytes().saturating_sub(RECORD_BYTES_MAX);
        // Headers are walked only where it matters.
        over > 0 && over > self.headers.own_bytes().min(OWN_HEADERS_BYTES_MAX)
    }
}

/// Where a reader starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// At the oldest record kept.
    Start,
    /// Behind the newest record.
    End,
    /// At this offset of every partition.
    Offset(u64),
    /// At an offset of its own for each partition, in their order; partitions beyond start at the
    /// oldest record kept.
    Offsets(Arc<[u64]>),
    /// At an offset of one partition; the others are not read.
    Place {
        /// The only partition that is read, counted from 0.
        partition: u32,
        /// Where in it.
        offset: u64,
    },
}

impl ReadFrom {
    /// The offset to start at in a partition that ends at `end`.
    pub fn offset(&self, partition: u32, end: u64) -> u64 {
        match self {
            ReadFrom::Start => 0,
            ReadFrom::End => end,
            ReadFrom::Offset(offset) => *offset,
            ReadFrom::Offsets(offsets) => {
                offsets.get(partition as usize).copied().unwrap_or_default()
            }
            ReadFrom::Place { partition: only, offset } if *only == partition => *offset,
            ReadFrom::Place { .. } => u64::MAX,
        }
    }
}

/// Facts about a pipeline that it leaves in the log, so that tools understand the log without it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PipelineInfo {
    /// The pipeline's name.
    pub pipeline: String,
    /// Where its dead letters go.
    pub dead_letters: String,
    /// Where `replay` and `drop` are noted.
    pub resolved: String,
    /// Where replayed dead letters enter it again.
    pub replay: String,
    /// How often one record may be replayed.
    pub replays_max: u32,
    /// Where it notes what it holds in groups, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internal: Option<String>,
}

/// A consumer group to open.
#[derive(Clone, Debug)]
pub struct ConsumerGroupSpec {
    /// Its name: progress belongs to it.
    pub group: String,
    /// The topics it reads.
    pub topics: Vec<Arc<str>>,
    /// Start behind what is already there, the first time.
    pub from_end: bool,
    /// Outputs and progress are written together or not at all, also where that is slower; its
    /// transactions end batches whole and in order, one at a time.
    pub exact: bool,
    /// The pipeline whose group it is.
    pub info: PipelineInfo,
}

/// An opened group.
pub struct OpenGroup {
    /// Its records.
    pub source: Box<dyn Source>,
    /// Its progress.
    pub journal: Arc<dyn Journal>,
}

/// Consumer groups that one pipeline reads together.
pub struct OpenGroups {
    /// Their records: a source for each group, or one for all of them where the log has one order
    /// for all partitions, which would be lost between several readers.
    pub sources: Vec<Box<dyn Source>>,
    /// The progress of all of them, told apart by assignment, and the outputs: in one transaction.
    pub journal: Arc<dyn Journal>,
}

/// A consumer group as `potok consumer-groups list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerGroup {
    /// Its name.
    pub group: String,
    /// Its pipeline.
    pub info: PipelineInfo,
    /// Per topic and partition: first offset not ended, and the end of the partition.
    pub partitions: Vec<ConsumerGroupPartition>,
    /// A process reads it now.
    pub open: bool,
}

/// Progress of a group in one partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerGroupPartition {
    /// The topic that the group reads.
    pub topic: String,
    /// Counted from 0.
    pub partition: u32,
    /// Every record below has ended.
    pub committed: u64,
    /// Offsets above `committed` that have ended too.
    pub acknowledged_ahead: u64,
    /// The offset the next record will get, at least.
    pub end: u64,
}

/// A topic as tools show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicInfo {
    /// Its name.
    pub topic: String,
    /// For each partition, the offset the next record will get.
    pub ends: Vec<u64>,
}

/// Bytes of the log that could not be read. They are kept aside and are a dead letter too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// The file they were in.
    pub file: String,
    /// First bad byte.
    pub from: u64,
    /// Behind the last bad byte.
    pub to: u64,
    /// When it was noticed.
    pub noticed: Timestamp,
    /// A torn tail (a write cut short by a crash), or damage in the middle.
    pub tail: bool,
    /// Where the bytes were put aside.
    pub kept_in: String,
}

/// Reads a topic outside any group: `potok read`, dead letters, traces.
#[async_trait]
pub trait Reader: Send {
    /// The next records, only those whose append was acknowledged durable. At the end: `None`,
    /// or with `follow` waits for more. Cancelling loses nothing.
    async fn next(&mut self, follow: bool) -> Result<Option<SourceBatch>, Fault>;
}

/// A log of topics: the embedded one, or Kafka.
#[async_trait]
pub trait Log: Send + Sync {
    /// Appends, all or nothing where the log can; returns once durable, positions in order.
    /// After a fault nothing, or (answer lost) everything was written.
    async fn append(&self, outputs: &[Output]) -> Result<Vec<Position>, Fault>;

    /// Opens consumer groups: registers them, so that retention keeps what they have not finished,
    /// and starts reading where they stand. Opening one twice in one process is a `Fix`, and so are
    /// groups that share a topic; `exact` is for a group alone.
    async fn open(&self, specs: Vec<ConsumerGroupSpec>) -> Result<OpenGroups, Fault>;

    /// Opens a single consumer group.
    async fn open_group(&self, spec: ConsumerGroupSpec) -> Result<OpenGroup, Fault> {
        let OpenGroups { sources, journal } = self.open(vec![spec]).await?;
        let source = sources.into_iter().next();
        let source = source.ok_or_else(|| Fault::fix("the log has opened no group"))?;
        Ok(OpenGroup { source, journal })
    }

    /// Reads a topic from a place. An unknown topic is a `Fix`.
    async fn read(&self, topic: &str, from: ReadFrom) -> Result<Box<dyn Reader>, Fault>;

    /// All topics, by name.
    async fn topics(&self) -> Result<Vec<TopicInfo>, Fault>;

    /// All registered groups, by name.
    async fn consumer_groups(&self) -> Result<Vec<ConsumerGroup>, Fault>;

    /// Forgets a group that nobody reads: its progress, and its hold on retention.
    async fn delete_consumer_group(&self, group: &str) -> Result<(), Fault>;

    /// True where several processes may read one group, each some of its partitions. Records of
    /// one held group then have to lie in one partition.
    fn is_shared(&self) -> bool {
        false
    }

    /// True where a topic may be deleted and created anew, so that an offset can mean two records
    /// over time. Names of places that people see carry the topic's id there.
    fn reuses_offsets(&self) -> bool {
        false
    }

    /// Which incarnation of a topic is there now, where offsets are reused; else `None`.
    async fn topic_id(&self, _topic: &str) -> Result<Option<u64>, Fault> {
        Ok(None)
    }

    /// Lets records of a topic of potok's own go for good, per partition. `log` is the incarnation
    /// they were read under: where the topic is another one by now, nothing happens. Returns what is
    /// gone, at most what was asked: no reader opened from now on sees it. Asking again is fine.
    async fn release(
        &self,
        _topic: &str,
        _log: u64,
        _partition: u32,
        _offsets: &RangeSet,
    ) -> Result<RangeSet, Fault> {
        Ok(RangeSet::new())
    }

    /// Where the bodies of held records are for pipelines that name no store of their own.
    fn bodies(&self) -> Arc<dyn Store>;

    /// The damage found, oldest first.
    fn damage(&self) -> Vec<Damage>;

    /// Why appends fail now (a full disk), if they do; `None` while it works.
    fn trouble(&self) -> Option<String>;

    /// True where that trouble lasts until somebody acts: a right that is missing, for example.
    fn needs_somebody(&self) -> bool {
        false
    }

    /// Waits until the log can do nothing more in this process, which has to end so that another
    /// can go on; says why. Most logs never come to that.
    async fn died(&self) -> Fault {
        std::future::pending().await
    }

    /// The offsets acknowledged beyond the committed one, for tests and tools.
    async fn ended(&self, group: &str, topic: &str, partition: u32) -> Result<RangeSet, Fault>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeadersBuilder;

    #[test]
    fn potoks_own_headers_do_not_make_a_record_too_large() {
        let output = |value: usize, headers: Headers| Output {
            topic: "t".into(),
            partition: None,
            key: None,
            headers,
            value: Some(Bytes::from(vec![0; value])),
        };
        let header = |name: &str, bytes: usize| {
            HeadersBuilder::new().add(name, Some(&vec![0; bytes])).build()
        };
        assert!(!output(RECORD_BYTES_MAX, Headers::none()).is_too_large());
        assert!(output(RECORD_BYTES_MAX + 1, Headers::none()).is_too_large());
        assert!(!output(RECORD_BYTES_MAX, header("potok-replay", 2_000)).is_too_large());
        assert!(output(RECORD_BYTES_MAX + 1, header("potok-replay", 2_000)).is_too_large());
        assert!(output(RECORD_BYTES_MAX, header("mine", 1)).is_too_large());
        let much = header("potok-replay", OWN_HEADERS_BYTES_MAX);
        assert!(output(RECORD_BYTES_MAX, much).is_too_large());
    }
}
