//! Messages of conversations, as a messenger keeps them: a row of its own and one in its outbox.
//!
//! Now and then a transaction is rolled back, and a message is reported: nobody has said to which topic
//! such a report goes, so its row fails, and what follows in that conversation waits for it.

use crate::Random;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessengerMessage {
    /// A uuid: of the message and of its row in the outbox.
    pub id: String,
    /// What keeps its order.
    pub conversation: String,
    /// What somebody wrote.
    pub text: String,
    /// `MessageSent`, `ChannelInfoUpdated`, or `MessageReported`, which no topic is for.
    pub event_type: &'static str,
    /// The payload of the row in the outbox: JSON in one line.
    pub payload: String,
    /// The application changes its mind: neither row may be seen.
    pub is_rolled_back: bool,
}

/// Makes messages, one after another.
#[derive(Clone, Debug)]
pub struct MessengerGenerator {
    random: Random,
    /// Part of the names of reported conversations, so that other seeds have others.
    seed: u64,
    number: u64,
}

/// The first report comes early, the others are rare.
const FIRST_REPORT: u64 = 25;
const REPORT_EVERY: u64 = 2_000;
/// Messages that follow a report in its conversation.
const BEHIND_REPORT: u64 = 3;
const CONVERSATIONS: u64 = 1_000;
const USERS: u64 = 10_000;
const WORDS: [&str; 12] = [
    "hi", "see", "you", "tomorrow", "at", "the", "station", "thanks", "great", "photo", "call",
    "later",
];

impl MessengerGenerator {
    /// The same seed makes the same messages.
    pub fn new(seed: u64) -> Self {
        MessengerGenerator { random: Random::new(seed), seed, number: 0 }
    }

    /// The next one.
    pub fn next_message(&mut self) -> MessengerMessage {
        self.number += 1;
        let id = self.uuid();
        let since = self.number.checked_sub(FIRST_REPORT).map(|since| since % REPORT_EVERY);
        let conversation = match since {
            Some(since) if since <= BEHIND_REPORT => {
                format!("r{:x}-{}", self.seed, (self.number - since) / REPORT_EVERY)
            }
            _ => format!("c{}", self.random.below(CONVERSATIONS)),
        };
        let words = self.random.between(2, 8);
        let text: Vec<&str> = (0..words).map(|_| self.random.word(&WORDS)).collect();
        let text = text.join(" ");
        let (sender, receiver) = (self.random.below(USERS), self.random.below(USERS));
        let event_type = match since {
            Some(0) => "MessageReported",
            _ if self.random.per_mille(50) => "ChannelInfoUpdated",
            _ => "MessageSent",
        };
        let is_rolled_back =
            since.is_none_or(|since| since > BEHIND_REPORT) && self.random.per_mille(10);
        let kind = match event_type {
            "ChannelInfoUpdated" => "channel_info_updated",
            "MessageReported" => "message_reported",
            _ => "message_sent",
        };
        let payload = format!(
            "{{\"event_type\":\"{kind}\",\"payload\":{{\"conversation_id\":\"{conversation}\",\
             \"message_id\":\"{id}\",\"sender_id\":\"u{sender}\",\"receiver_ids\":[\"u{receiver}\"],\
             \"message_text\":\"{text}\",\"pictures\":[]}}}}"
        );
        MessengerMessage { id, conversation, text, event_type, payload, is_rolled_back }
    }

    fn uuid(&mut self) -> String {
        let (one, two) = (self.random.bits(), self.random.bits());
        format!(
            "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
            one >> 32,
            one >> 16 & 0xffff,
            one & 0xfff,
            two >> 48 & 0xfff,
            two & 0xffff_ffff_ffff
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn every_message_is_what_it_says() {
        let mut generator = MessengerGenerator::new(5);
        let all: Vec<MessengerMessage> = (0..5_000).map(|_| generator.next_message()).collect();
        let ids: HashSet<&str> = all.iter().map(|message| message.id.as_str()).collect();
        assert_eq!(ids.len(), all.len());
        for message in &all {
            let value: Value = serde_json::from_str(&message.payload).unwrap();
            assert_eq!(value["payload"]["conversation_id"], message.conversation.as_str());
            assert_eq!(message.id.len(), 36);
        }
        assert!(all.iter().any(|message| message.is_rolled_back));
        let reported: Vec<usize> =
            (0..all.len()).filter(|at| all[*at].event_type == "MessageReported").collect();
        assert_eq!(reported, [24, 2_024, 4_024]);
        for at in reported {
            let conversation = &all[at].conversation;
            assert!(all[at + 1..at + 4].iter().all(|next| next.conversation == *conversation));
        }
    }
}
