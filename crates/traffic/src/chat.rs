//! Messages of chats: people write a few lines, then wait for an answer.
//!
//! Now and then a message is a photo without a text, and one says no chat, which has to be set aside.

use crate::Random;

/// One generated message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessage {
    /// Channel and chat as chats are named; `None` for one without a chat, which must not be delivered.
    pub chat: Option<String>,
    /// Counted up.
    pub number: u64,
    /// Its JSON, in one line.
    pub bytes: Vec<u8>,
}

/// Makes messages, one after another.
#[derive(Clone, Debug)]
pub struct ChatGenerator {
    random: Random,
    number: u64,
    /// Part of every chat, so that other seeds have other chats.
    seed: u64,
    /// Chats that are being written in, each with how many messages are to come.
    writing: Vec<(u64, u64)>,
    next_chat: u64,
}

const CHANNELS: [(&str, &str); 3] = [("telegram", "tg_"), ("whatsapp", "7999"), ("avito", "u2i-")];
const TEXTS: [&str; 6] = [
    "hello",
    "is it still there?",
    "I would take two",
    "can it be delivered today?",
    "how much with delivery?",
    "thanks",
];
/// People who write at a time.
const WRITING: usize = 8;

impl ChatGenerator {
    /// Messages as they are in life.
    pub fn new(seed: u64) -> Self {
        let random = Random::new(seed);
        ChatGenerator {
            random,
            number: 0,
            seed: seed % 1_000_000,
            writing: Vec::new(),
            next_chat: 0,
        }
    }

    /// The next one.
    pub fn next_message(&mut self) -> ChatMessage {
        self.number += 1;
        while self.writing.len() < WRITING {
            self.next_chat += 1;
            self.writing.push((self.next_chat, self.random.between(1, 6)));
        }
        let at = self.random.below(WRITING as u64) as usize;
        let mut chat = 0;
        if let Some((writing, left)) = self.writing.get_mut(at) {
            (chat, *left) = (*writing, left.saturating_sub(1));
        }
        self.writing.retain(|(_, left)| *left > 0);
        let (channel, prefix) =
            CHANNELS.get((chat % 3) as usize).copied().unwrap_or(("telegram", "tg_"));
        let id = format!("{prefix}{}{chat:04}", self.seed);
        let lost = self.random.per_mille(5);
        let chat_field =
            if lost { String::new() } else { format!("\"external_chat_id\":\"{id}\",") };
        let text = TEXTS.get(self.random.below(TEXTS.len() as u64) as usize).copied();
        let body = if self.random.per_mille(100) {
            format!(
                "\"text\":\"\",\"media\":[{{\"type\":\"photo\",\"file_id\":\"f{}\"}}]",
                self.number
            )
        } else {
            format!("\"text\":\"{}\",\"media\":[]", text.unwrap_or_default())
        };
        let json = format!(
            "{{\"channel\":\"{channel}\",{chat_field}\"external_user_id\":\"{id}\",\"message_id\":\"{:x}-{}\",\
             \"name\":\"Customer {chat}\",{body}}}",
            self.seed, self.number
        );
        let chat = (!lost).then(|| format!("{channel}:{id}"));
        ChatMessage { chat, number: self.number, bytes: json.into_bytes() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;

    #[test]
    fn every_message_is_what_it_says_and_chats_end() {
        let mut generator = ChatGenerator::new(3);
        let mut last_of: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let mut lost = 0;
        for _ in 0..20_000 {
            let message = generator.next_message();
            let value: Value = serde_json::from_slice(&message.bytes).unwrap();
            let Some(chat) = message.chat else {
                lost += 1;
                assert!(value.get("external_chat_id").is_none());
                continue;
            };
            let text = |name: &str| value[name].as_str().unwrap().to_owned();
            assert_eq!(format!("{}:{}", text("channel"), text("external_chat_id")), chat);
            let (count, last) = last_of.entry(chat).or_default();
            (*count, *last) = (*count + 1, message.number);
        }
        assert!(lost > 0 && last_of.len() > 3_000, "{lost} lost, {} chats", last_of.len());
        assert!(last_of.values().all(|(count, _)| *count <= 6), "people stop");
    }
}
