//! Writing records for those who append and for those who note endings.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use potok_core::{Fault, Move, NotWritten, Output, Position, RECORD_BYTES_MAX};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::producer::{Producer, Receipt};
use super::topics::Topics;
use super::{fault, lock};

/// The wait before records that Kafka does not take just now are offered again.
const OFFER_AGAIN: Duration = Duration::from_secs(1);

/// Writes records and says where they lie.
pub struct Writer {
    producer: Producer,
    topics: Arc<Topics>,
    /// What keeps records from being written though the cluster answers.
    stuck: Mutex<Option<String>>,
}

impl Writer {
    pub fn new(producer: Producer, topics: Arc<Topics>) -> Writer {
        Writer { producer, topics, stuck: Mutex::default() }
    }

    /// Why records cannot be written though the cluster answers.
    pub fn stuck(&self) -> Option<String> {
        lock(&self.stuck).clone()
    }

    /// What can be said before anything is written.
    async fn prepare(&self, outputs: &[Output]) -> Result<(), Fault> {
        let mut topics: Vec<Arc<str>> = outputs.iter().map(|o| o.topic.clone()).collect();
        topics.sort();
        topics.dedup();
        self.topics.ensure(&topics).await?;
        let beyond = |output: &&Output| {
            let facts = self.topics.known(&output.topic);
            output.partition >= facts.map(|facts| facts.partitions) && output.partition.is_some()
        };
        if let Some(bad) = outputs.iter().find(beyond) {
            // Partitions may have been added since.
            self.topics.look_up(std::slice::from_ref(&bad.topic)).await?;
        }
        if let Some(bad) = outputs.iter().find(beyond) {
            let partitions = self.topics.known(&bad.topic).map_or(0, |facts| facts.partitions);
            let wanted = bad.partition.unwrap_or_default();
            return Err(fault::no_partition(&bad.topic, wanted, partitions));
        }
        Ok(())
    }

    fn position(&self, output: &Output, (partition, offset): (u32, u64)) -> Position {
        let log = self.topics.known(&output.topic).map_or(0, |facts| facts.id);
        Position { log, topic: output.topic.clone(), partition, offset }
    }

    /// Writes all or says why not; refusals of any kind are the caller's.
    pub async fn append(&self, outputs: &[Output]) -> Result<Vec<Position>, Fault> {
        if let Some(large) = outputs.iter().find(|output| output.bytes() > RECORD_BYTES_MAX) {
            return Err(fault::too_large(&large.topic, large.bytes()));
        }
        self.prepare(outputs).await?;
        let receipts = self.producer.write(&outputs.iter().collect::<Vec<_>>()).await?;
        let mut positions = Vec::with_capacity(outputs.len());
        for (output, receipt) in outputs.iter().zip(receipts) {
            match receipt {
                Ok(place) => positions.push(self.position(output, place)),
                Err(code) => {
                    self.topics.forget(&output.topic);
                    return Err(match fault::next_move(code) {
                        Move::SetAside => fault::refused(&output.topic, output.bytes(), code),
                        _ => fault::sorted(&format!("write to `{}`", output.topic), code, code),
                    });
                }
            }
        }
        Ok(positions)
    }

    /// Writes all but what is refused for good, waiting for as long as it takes.
    pub async fn transact(&self, outputs: &[Output]) -> Result<Vec<Position>, NotWritten> {
        if outputs.is_empty() {
            return Ok(Vec::new());
        }
        self.prepare(outputs).await?;
        let mut places: Vec<Option<Receipt>> = outputs.iter().map(refused_by_size).collect();
        loop {
            let open: Vec<usize> =
                (0..).zip(&places).filter(|(_, p)| p.is_none()).map(|(i, _)| i).collect();
            if open.is_empty() {
                lock(&self.stuck).take();
                break;
            }
            let wanted: Vec<&Output> = open.iter().filter_map(|&i| outputs.get(i)).collect();
            let receipts = self.producer.write(&wanted).await?;
            let mut trouble = None;
            for (index, receipt) in open.into_iter().zip(receipts) {
                if let (Err(code), Some(output)) = (receipt, outputs.get(index))
                    && fault::next_move(code) != Move::SetAside
                {
                    self.topics.forget(&output.topic);
                    trouble.get_or_insert((code, output.topic.clone()));
                } else if let Some(place) = places.get_mut(index) {
                    *place = Some(receipt);
                }
            }
            if let Some((code, topic)) = trouble {
                self.wait_out(code, &topic, outputs).await?;
            }
        }
        let mut positions = Vec::with_capacity(outputs.len());
        let mut refused = Vec::new();
        for (index, (output, place)) in outputs.iter().zip(places).enumerate() {
            match place {
                Some(Err(code)) => {
                    refused.push((index, fault::refused(&output.topic, output.bytes(), code)));
                }
                Some(Ok(place)) => positions.push(self.position(output, place)),
                None => {}
            }
        }
        if refused.is_empty() { Ok(positions) } else { Err(NotWritten::Refused(refused)) }
    }

    /// Some records could not be written. Those that were stay written, so the call stays open and
    /// offers the others again, for as long as nobody has to change the set-up.
    async fn wait_out(&self, code: Code, topic: &str, outputs: &[Output]) -> Result<(), Fault> {
        let fault = fault::sorted(&format!("write to `{topic}`"), code, code);
        if fault.next == Move::Fix {
            return Err(fault);
        }
        self.say_stuck(&fault);
        tokio::time::sleep(OFFER_AGAIN).await;
        while let Err(fault) = self.prepare(outputs).await {
            if fault.next == Move::Fix {
                return Err(fault);
            }
            self.say_stuck(&fault);
            tokio::time::sleep(OFFER_AGAIN).await;
        }
        Ok(())
    }

    fn say_stuck(&self, fault: &Fault) {
        if lock(&self.stuck).replace(fault.to_string()).is_none() {
            tracing::warn!(why = %fault, "records cannot be written; holding on to them");
        }
    }
}

/// Larger than any part of potok takes.
fn refused_by_size(output: &Output) -> Option<Receipt> {
    (output.bytes() > RECORD_BYTES_MAX).then_some(Err(Code::MessageSizeTooLarge))
}
