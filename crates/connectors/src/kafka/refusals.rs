//! Records that Kafka may refuse, each for itself: their topic is missing or forbidden, or they are not
//! what it takes. Whoever offers them hears of it at once; nothing waits for them, and nobody else
//! notices. One that Kafka says nothing about is given up after a while (`patience.rs`).
//!
//! Two producers serve them, besides the one of the process: one whose records stay in order whatever
//! is refused, which a refusal stops, and one whose refusals stop nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use potok_core::{Fault, Move, OfferMode, OfferOutcome, Output};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::patience::{Patience, SilentPartitions};
use super::producer::{GIVEN_UP, Producer, Receipt};
use super::settings::Role;
use super::topics::Topics;
use super::writer::{RecordWriter, cannot_write};
use super::{fault, lock};

/// Started when they are needed.
#[derive(Default)]
pub struct OfferProducers {
    runs: Mutex<Option<Arc<Producer>>>,
    singles: Mutex<Option<Arc<Producer>>>,
    silent: SilentPartitions,
}

impl OfferProducers {
    fn of(&self, mode: OfferMode, topics: &Topics) -> Result<Arc<Producer>, Fault> {
        let (place, role) = match mode {
            OfferMode::Run => (&self.runs, Role::Producer),
            OfferMode::Single => (&self.singles, Role::SingleProducer),
        };
        let mut place = lock(place);
        match &*place {
            Some(producer) => Ok(producer.clone()),
            None => Ok(place.insert(Arc::new(topics.producer(role)?)).clone()),
        }
    }
}

impl RecordWriter {
    /// Offers records; what became of each.
    pub async fn offer(&self, outputs: &[Output], mode: OfferMode) -> Vec<OfferOutcome> {
        let mut found: HashMap<&Arc<str>, Result<(), Fault>> = HashMap::new();
        for output in outputs {
            if !found.contains_key(&output.topic) {
                found.insert(&output.topic, self.topics.find(&output.topic).await);
            }
        }
        let mut outcomes: Vec<Option<OfferOutcome>> = Vec::with_capacity(outputs.len());
        for output in outputs {
            outcomes.push(match found.get(&output.topic) {
                Some(Err(fault)) => Some(of_topic(fault.clone())),
                _ if output.is_too_large() => {
                    Some(OfferOutcome::Refused(fault::too_large(&output.topic, output.bytes())))
                }
                _ => None,
            });
        }
        let open = outputs.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_none());
        let open: Vec<&Output> = open.map(|(output, _)| output).collect();
        let patience = self.offers.silent.patience(&self.topics, &open);
        let mut sent = self.send_offers(&open, mode, &patience).await.into_iter();
        for (output, outcome) in outputs.iter().zip(&mut outcomes) {
            if outcome.is_none() {
                *outcome = sent.next().map(|receipt| match receipt {
                    Ok(Some(Err(GIVEN_UP))) => OfferOutcome::Silent(patience.fault(output)),
                    receipt => self.outcome(output, receipt),
                });
            }
        }
        let unknown = || OfferOutcome::Unsent(Fault::retry("Kafka said nothing about a record"));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unknown)).collect()
    }

    async fn send_offers(
        &self,
        outputs: &[&Output],
        mode: OfferMode,
        patience: &Patience<'_>,
    ) -> Vec<Result<Option<Receipt>, Fault>> {
        if outputs.is_empty() {
            return Vec::new();
        }
        let sent = match (self.offers.of(mode, &self.topics), mode) {
            (Ok(producer), OfferMode::Run) => producer.write_once(outputs, patience).await,
            (Ok(producer), OfferMode::Single) => {
                let receipts = producer.write_patiently(outputs, patience).await;
                receipts.map(|receipts| receipts.into_iter().map(Some).collect())
            }
            (Err(fault), _) => Err(fault),
        };
        match sent {
            Ok(receipts) => {
                self.offers.silent.learn(outputs, &receipts, patience);
                receipts.into_iter().map(Ok).collect()
            }
            Err(fault) => outputs.iter().map(|_| Err(fault.clone())).collect(),
        }
    }

    fn outcome(&self, output: &Output, receipt: Result<Option<Receipt>, Fault>) -> OfferOutcome {
        let topic = &output.topic;
        match receipt {
            Ok(Some(Ok(_))) => OfferOutcome::Written,
            Ok(Some(Err(code))) if fault::next_move(code) == Move::SetAside => {
                OfferOutcome::Refused(fault::refused(topic, output.bytes(), code))
            }
            Ok(Some(Err(code))) => {
                self.topics.forget(topic);
                match is_of_the_topic(code) {
                    true => OfferOutcome::Refused(cannot_write(topic, code)),
                    false => OfferOutcome::Unsent(cannot_write(topic, code)),
                }
            }
            Ok(None) => OfferOutcome::Unsent(Fault::retry("one before it was refused")),
            Err(fault) => OfferOutcome::Unsent(fault),
        }
    }
}

/// Why records for a topic are not offered at all.
fn of_topic(fault: Fault) -> OfferOutcome {
    // The cluster is away, or could not say.
    match matches!(fault.code, "P0601" | "P0614" | "P0615") {
        true => OfferOutcome::Unsent(fault),
        false => OfferOutcome::Refused(fault),
    }
}

/// Errors about one topic; others are about the cluster.
fn is_of_the_topic(code: Code) -> bool {
    matches!(
        code,
        Code::TopicAuthorizationFailed
            | Code::UnknownTopicOrPartition
            | Code::UnknownTopic
            | Code::UnknownPartition
            | Code::InvalidTopic
            | Code::PolicyViolation
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_topic_refuses_is_told_apart_from_an_outage() {
        let of = |code| matches!(of_topic(cannot_write("t", code)), OfferOutcome::Refused(_));
        for code in [Code::TopicAuthorizationFailed, Code::InvalidTopic, Code::PolicyViolation] {
            assert!(of(code) && is_of_the_topic(code), "{code:?}");
        }
        for code in [Code::AllBrokersDown, Code::OperationTimedOut, Code::NotLeaderForPartition] {
            assert!(!of(code) && !is_of_the_topic(code), "{code:?}");
        }
        assert!(matches!(of_topic(fault::topic_missing(&["t"])), OfferOutcome::Refused(_)));
    }
}
