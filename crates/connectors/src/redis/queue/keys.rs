//! Which chat an entry belongs to.

use std::time::Duration;

use bytes::Bytes;
use potok_core::Headers;
use potok_expr::{Scope, json::Parser};

use super::feed::QueueOptions;
use super::split;

/// A longer key is none: it would be the name of four keys in Redis.
const KEY_MAX: usize = 1_024;

/// What a record costs besides its bytes, as in the embedded log; `visit.lua` adds the same.
const RECORD_BYTES: u64 = 64;

/// The entries of one chat, as they are sorted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chat {
    pub key: Bytes,
    /// Of its last entry.
    pub quiet: Duration,
    /// Of entries large enough to reach the limit of bytes before that of the count.
    pub bytes: u64,
    /// Places among the entries that were seen, from 1.
    pub places: Vec<usize>,
}

/// What becomes of the entries that were seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SortedEntries {
    pub chats: Vec<Chat>,
    /// Places of entries that belong to no chat.
    pub bad: Vec<usize>,
    /// How many are no messages.
    pub skipped: u64,
}

/// Reads keys.
pub(super) struct KeyReader<'a> {
    options: &'a QueueOptions,
    /// Entries from so many bytes on count towards the limit of bytes.
    large: Option<u64>,
    parser: Parser,
}

impl<'a> KeyReader<'a> {
    pub fn new(options: &'a QueueOptions, large: Option<u64>) -> Self {
        KeyReader { options, large, parser: Parser::new() }
    }

    pub fn sort(&mut self, entries: &[Bytes]) -> SortedEntries {
        let mut sorted = SortedEntries::default();
        let mut chats: std::collections::HashMap<Bytes, usize> = std::collections::HashMap::new();
        for (place, entry) in (1..).zip(entries) {
            if split::is_none(entry) {
                sorted.skipped += 1;
                continue;
            }
            let Some((key, quiet)) = self.key(entry) else {
                sorted.bad.push(place);
                continue;
            };
            let index = *chats.entry(key.clone()).or_insert(sorted.chats.len());
            if index == sorted.chats.len() {
                let places = Vec::new();
                sorted.chats.push(Chat { key, quiet, bytes: 0, places });
            }
            if let Some(chat) = sorted.chats.get_mut(index) {
                let length = entry.len() as u64 + RECORD_BYTES;
                if self.large.is_some_and(|large| length >= large) {
                    chat.bytes += length;
                }
                chat.quiet = quiet;
                chat.places.push(place);
            }
        }
        sorted
    }

    /// The chat of an entry, and how quiet it has to be behind it.
    fn key(&mut self, entry: &[u8]) -> Option<(Bytes, Duration)> {
        let value = self.parser.parse(entry).ok()?;
        let headers = Headers::none();
        let scope = Scope {
            value: Some(value),
            key: None,
            headers: &headers,
            topic: &self.options.list,
            id: None,
            receiver: None,
        };
        let key = self.options.by.eval_bytes(&scope)?;
        let quiet = self.options.quiet_by.as_ref().and_then(|quiet_by| quiet_by.find(&scope));
        let quiet = quiet.map_or(self.options.quiet, |quiet| quiet.min(self.options.max_age));
        (!key.is_empty() && key.len() <= KEY_MAX).then_some((key, quiet))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn entries_go_to_their_chats_in_order() {
        let options = QueueOptions {
            pipeline: "chat".to_owned(),
            list: "in".to_owned(),
            by: potok_expr::Template::parse("{.c}:{.id}").unwrap(),
            quiet: Duration::from_secs(10),
            quiet_by: None,
            max_age: Duration::from_secs(300),
            max_count: None,
            max_bytes: None,
            lease: Duration::from_secs(30),
            waiting_max: 10,
            seen: None,
        };
        let mut keys = KeyReader::new(&options, Some(64));
        let long = "x".repeat(2_000);
        let texts = [
            r#"{"c":"t","id":"a:1"}"#.to_owned(),
            "null".to_owned(),
            "{oops".to_owned(),
            r#"{"c":"t","id":12345678901234567890}"#.to_owned(),
            r#"{"c":"t","id":null}"#.to_owned(),
            format!(r#"{{"c":"t","id":"{long}"}}"#),
            r#"{"c":"t","id":"a:1","text":"more"}"#.to_owned(),
            " ".to_owned(),
        ];
        let entries: Vec<Bytes> = texts.iter().map(|text| Bytes::from(text.clone())).collect();
        let sorted = keys.sort(&entries);
        let quiet = Duration::from_secs(10);
        let chat = |key: &'static str, bytes: usize, places: Vec<usize>| Chat {
            key: Bytes::from_static(key.as_bytes()),
            quiet,
            bytes: bytes as u64,
            places,
        };
        assert_eq!(
            sorted.chats,
            [
                chat("t:a:1", texts[0].len() + texts[6].len() + 128, vec![1, 7]),
                chat("t:12345678901234567890", texts[3].len() + 64, vec![4])
            ]
        );
        assert_eq!((sorted.bad, sorted.skipped), (vec![3, 5, 6], 2));
    }
}
