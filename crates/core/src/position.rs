//! Where a record lies, and the names derived from it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One ordered part of a topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition {
    /// The topic's name.
    pub topic: Arc<str>,
    /// Which of its partitions, from 0.
    pub index: u32,
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.index)
    }
}

/// The place of one record, for ever: printed as `topic/partition/offset@log`.
///
/// `log` is the incarnation of the embedded log (or the id of a Kafka topic) under which the
/// record was written: a topic deleted and created anew, or a log that continues after a cut,
/// never gives two records the same position.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// Incarnation of the log, a nonce.
    pub log: u64,
    /// The topic's name.
    pub topic: Arc<str>,
    /// Partition within the topic.
    pub partition: u32,
    /// Offset within the partition; grows, may have gaps.
    pub offset: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}@{:016x}", self.topic, self.partition, self.offset, self.log)
    }
}

/// A text that is not `topic/partition/offset@log`.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a position; one looks like `orders/0/41@0123456789abcdef`")]
pub struct ParsePositionError(String);

impl FromStr for Position {
    type Err = ParsePositionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (place, log) = text.rsplit_once('@')?;
            let (place, offset) = place.rsplit_once('/')?;
            let (topic, partition) = place.rsplit_once('/')?;
            Some(Position {
                log: u64::from_str_radix(log, 16).ok()?,
                topic: topic.into(),
                partition: partition.parse().ok()?,
                offset: offset.parse().ok()?,
            })
        };
        parse().ok_or_else(|| ParsePositionError(text.to_owned()))
    }
}

impl Serialize for Position {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Position {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The name of one delivery: the same work done again has the same name, other work another.
/// Travels as a header or column, so that any receiver can drop repeats.
/// Printed as `position/deliver/element`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeliveryId {
    /// The record it comes from.
    pub position: Position,
    /// Which `deliver` entry of the pipeline.
    pub deliver: u32,
    /// Which element, where one record becomes several deliveries; else 0.
    pub element: u32,
}

impl fmt::Display for DeliveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.position, self.deliver, self.element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_survives_printing_even_with_slashes_in_the_topic() {
        let position = Position { log: 7, topic: "a/b@c".into(), partition: 3, offset: u64::MAX };
        assert_eq!(position.to_string().parse::<Position>().ok(), Some(position));
        assert!("orders/0/x@1".parse::<Position>().is_err());
    }
}
