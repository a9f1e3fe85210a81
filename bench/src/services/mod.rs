//! Services for benchmarks: Kafka with its topics, bare clients of it, and potok on it.

mod ours;
mod topic;

use anyhow::Result;
use potok_services::{Kafka, KafkaOptions};

pub use self::ours::PotokProgram;
pub use self::topic::{ANSWER_MAX, DeliveryCheck, Topic, next, send};

/// Partitions of every topic, lanes of potok, connections of the bare loops.
pub const LANES: usize = 4;

/// Settings as services take them.
pub fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// One node.
pub fn kafka() -> Result<Kafka> {
    // The last `-Xmx` counts. Segments of ordinary size: the small ones are for tests.
    let java = vec!["-Xmx1g".to_owned()];
    let properties = pairs(&[("log.segment.bytes", "1073741824")]);
    Kafka::open(&KafkaOptions { java, properties, ..KafkaOptions::default() })
}
