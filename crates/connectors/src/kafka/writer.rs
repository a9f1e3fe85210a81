//! Writing records for those who append and for those who note endings.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use potok_core::{Fault, Move, NotWritten, Output, Position, RECORD_BYTES_MAX};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::fault::Subject;
use super::producer::{Producer, Receipt};
use super::topics::Topics;
use super::turns::{Turn, Turns};
use super::{fault, lock};

/// The wait before records that Kafka does not take just now are offered again.
const OFFER_AGAIN: Duration = Duration::from_secs(1);

/// Writes records and says where they lie.
pub struct RecordWriter {
    producer: Producer,
    topics: Arc<Topics>,
    /// The reason why records are not written though the cluster answers.
    stuck: Mutex<Option<Fault>>,
}

impl RecordWriter {
    pub fn new(producer: Producer, topics: Arc<Topics>) -> RecordWriter {
        RecordWriter { producer, topics, stuck: Mutex::default() }
    }

    /// Why records cannot be written though the cluster answers.
    pub fn stuck(&self) -> Option<String> {
        lock(&self.stuck).as_ref().map(Fault::to_string)
    }

    /// True where that lasts until somebody acts.
    pub fn needs_somebody(&self) -> bool {
        lock(&self.stuck).as_ref().is_some_and(|fault| fault.needs_somebody)
    }

    /// The faults that show before anything is written.
    async fn prepare(&self, outputs: &[Output]) -> Result<(), Fault> {
        // Neighbours mostly go to the same topic.
        let runs = outputs.chunk_by(|a, b| a.topic == b.topic).filter_map(<[Output]>::first);
        let mut topics: Vec<Arc<str>> = runs.map(|output| output.topic.clone()).collect();
        topics.sort();
        topics.dedup();
        self.topics.ensure(&topics).await?;
        let beyond = |output: &&Output| {
            let Some(partition) = output.partition else { return false };
            let facts = self.topics.known(&output.topic);
            facts.is_none_or(|facts| partition >= facts.partitions)
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

    /// Where outputs lie, by their receipts. Topics are looked up once for a run of them.
    fn positions(&self) -> impl FnMut(&Output, (u32, u64)) -> Position {
        let mut last: Option<(Arc<str>, u64)> = None;
        move |output, (partition, offset)| {
            let log = match &last {
                Some((topic, log)) if *topic == output.topic => *log,
                _ => self.topics.known(&output.topic).map_or(0, |facts| facts.id),
            };
            last = Some((output.topic.clone(), log));
            Position { log, topic: output.topic.clone(), partition, offset }
        }
    }

    /// Writes all or says why not; refusals of any kind are the caller's.
    pub async fn append(&self, outputs: &[Output]) -> Result<Vec<Position>, Fault> {
        if let Some(large) = outputs.iter().find(|output| output.bytes() > RECORD_BYTES_MAX) {
            return Err(fault::too_large(&large.topic, large.bytes()));
        }
        // Whoever appends may have mistaken the number; a pipeline has read from that partition.
        self.prepare(outputs).await.map_err(|fault| match fault.code {
            "P0612" => Fault { next: Move::Fix, ..fault },
            _ => fault,
        })?;
        let receipts = self.producer.write(&outputs.iter().collect::<Vec<_>>()).await?;
        let mut position = self.positions();
        let mut positions = Vec::with_capacity(outputs.len());
        for (output, receipt) in outputs.iter().zip(receipts) {
            match receipt {
                Ok(place) => positions.push(position(output, place)),
                Err(code) => {
                    self.topics.forget(&output.topic);
                    return Err(match fault::next_move(code) {
                        Move::SetAside => fault::refused(&output.topic, output.bytes(), code),
                        _ => cannot_write(&output.topic, code),
                    });
                }
            }
        }
        Ok(positions)
    }

    /// Writes all but what is refused for good, in the order of the calls, waiting for as long as
    /// it takes.
    pub async fn transact(
        &self,
        turns: &Turns,
        outputs: &[Output],
    ) -> Result<Vec<Position>, NotWritten> {
        if outputs.is_empty() {
            return Ok(Vec::new());
        }
        let turn = turns.enter();
        let written = self.write_in(&turn, outputs).await;
        if matches!(&written, Err(NotWritten::Fault(fault)) if fault.next == Move::Fix) {
            turn.stay();
        }
        written
    }

    async fn write_in(
        &self,
        turn: &Turn<'_>,
        outputs: &[Output],
    ) -> Result<Vec<Position>, NotWritten> {
        turn.ready().await;
        self.prepare_at_last(outputs).await?;
        let mut places: Vec<Option<Receipt>> = outputs.iter().map(refused_by_size).collect();
        let mut tried = false;
        loop {
            let open: Vec<usize> =
                (0..).zip(&places).filter(|(_, p)| p.is_none()).map(|(i, _)| i).collect();
            if open.is_empty() {
                lock(&self.stuck).take();
                break;
            }
            let wanted: Vec<&Output> = open.iter().filter_map(|&i| outputs.get(i)).collect();
            let receipts = match tried {
                false => self.producer.write_in(turn, &wanted).await?,
                true => self.producer.write(&wanted).await?,
            };
            tried = true;
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
                turn.alone().await;
                self.wait_out(code, &topic, outputs).await?;
            }
        }
        let mut position = self.positions();
        let mut positions = Vec::with_capacity(outputs.len());
        let mut refused = Vec::new();
        for (index, (output, place)) in outputs.iter().zip(places).enumerate() {
            match place {
                Some(Err(code)) => {
                    refused.push((index, fault::refused(&output.topic, output.bytes(), code)));
                }
                Some(Ok(place)) => positions.push(position(output, place)),
                None => {}
            }
        }
        if refused.is_empty() { Ok(positions) } else { Err(NotWritten::Refused(refused)) }
    }

    /// Some records could not be written. Those that were stay written, so the call stays open and
    /// offers the others again, for as long as nobody has to change the set-up.
    async fn wait_out(&self, code: Code, topic: &str, outputs: &[Output]) -> Result<(), Fault> {
        let fault = cannot_write(topic, code);
        if fault.next == Move::Fix {
            return Err(fault);
        }
        self.say_stuck(&fault);
        tokio::time::sleep(OFFER_AGAIN).await;
        self.prepare_at_last(outputs).await
    }

    /// Prepares, for as long as nobody has to change the set-up.
    async fn prepare_at_last(&self, outputs: &[Output]) -> Result<(), Fault> {
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
        if lock(&self.stuck).replace(fault.clone()).is_none() {
            tracing::warn!(why = %fault, "records cannot be written; holding on to them");
        }
    }
}

fn cannot_write(topic: &str, code: Code) -> Fault {
    let about = [Arc::from(topic)];
    fault::sorted_about(Subject::topics(&about), &format!("write to `{topic}`"), code, code)
}

/// Larger than any part of potok takes.
fn refused_by_size(output: &Output) -> Option<Receipt> {
    (output.bytes() > RECORD_BYTES_MAX).then_some(Err(Code::MessageSizeTooLarge))
}
