//! The records a run sends, and what each of them is meant to become.
//!
//! What a record is meant to become is written in its value, so that the destination, the stage
//! and the checks all read it from the bytes alone.

use std::borrow::Cow;

use bytes::Bytes;
use potok_core::{Headers, HeadersBuilder, Output};
use serde_json::Value;

use super::chance::Chance;
use super::scenario::{LARGE, Scenario};
use super::trouble::Trouble;

/// What a record is meant to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Delivered.
    Good,
    /// Filtered by the stage.
    Filtered,
    /// Refused by the stage.
    StageFails,
    /// Refused by the destination.
    Refused,
    /// Refused by the destination until somebody mends it.
    Late,
    /// Answered with `Retry` by the destination for ever.
    Poison,
    /// Makes the decoder panic.
    Killer,
    /// Has no `.k`.
    NoKey,
    /// Cannot be decoded.
    Undecodable,
    /// Delivered until the filter changes.
    Unwanted,
    /// Delivered until the schema changes.
    Outdated,
}

/// The fields of a value, read without the rest: everybody asks for them again and again.
#[derive(serde::Deserialize)]
#[allow(dead_code, reason = "an id must be text, or it cannot be read")]
struct ValueFields<'a> {
    #[serde(borrow, rename = "do")]
    what: Option<Cow<'a, str>>,
    #[serde(borrow)]
    k: Option<Cow<'a, str>>,
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
}

impl RecordKind {
    /// What the record with this value is meant to become.
    pub fn of(value: Option<&[u8]>) -> RecordKind {
        let said = value.and_then(|value| serde_json::from_slice::<ValueFields<'_>>(value).ok());
        let Some(said) = said else { return RecordKind::Undecodable };
        match said.what.as_deref() {
            Some("drop") => RecordKind::Filtered,
            Some("fail") => RecordKind::StageFails,
            Some("refuse") => RecordKind::Refused,
            Some("late") => RecordKind::Late,
            Some("poison") => RecordKind::Poison,
            Some("kill") => RecordKind::Killer,
            Some("bad") => RecordKind::Undecodable,
            Some("unwant") => RecordKind::Unwanted,
            Some("outdate") => RecordKind::Outdated,
            _ if said.k.is_none() => RecordKind::NoKey,
            _ => RecordKind::Good,
        }
    }

    fn word(self) -> &'static str {
        match self {
            RecordKind::Filtered => "drop",
            RecordKind::StageFails => "fail",
            RecordKind::Refused => "refuse",
            RecordKind::Late => "late",
            RecordKind::Poison => "poison",
            RecordKind::Killer => "kill",
            RecordKind::Undecodable => "bad",
            RecordKind::Unwanted => "unwant",
            RecordKind::Outdated => "outdate",
            RecordKind::Good | RecordKind::NoKey => "deliver",
        }
    }
}

/// A text field of a value.
pub fn field(value: Option<&[u8]>, name: &str) -> Option<String> {
    let parsed: Value = serde_json::from_slice(value?).ok()?;
    parsed.get(name)?.as_str().map(str::to_owned)
}

/// A record of that kind for the topic `in`, with an id and a key of its own.
pub fn record(kind: RecordKind, id: &str, key: &str) -> Output {
    let value = serde_json::json!({"id": id, "k": key, "do": kind.word()});
    Output {
        topic: "in".into(),
        partition: None,
        key: Some(Bytes::copy_from_slice(key.as_bytes())),
        headers: Headers::none(),
        value: Some(value.to_string().into()),
    }
}

/// Keys that go wrong where bytes are not taken as they are.
const KEYS: [&[u8]; 8] = [
    b"a",
    b"",
    b"\0",
    b"\xff\xfe\xfd",
    "ключ \"'\\`;--".as_bytes(),
    "🦀\u{202e}\r\n".as_bytes(),
    b"{}$%_?*",
    b"key-with-a-name-that-is-longer-than-any-small-buffer-anybody-would-think-of-using-for-it",
];

/// Values that are not JSON, each in its own way.
const BAD: [&[u8]; 8] = [
    b"{\"id\":",
    b"\xc3\x28",
    b"",
    br#"{"do":"bad","do":"bad"}"#,
    br#"{"id":"\ud800"}"#,
    b"1e400000",
    b"nul\0l",
    b"{} trailing",
];

/// Makes records, each with an id of its own unless it repeats another on purpose.
pub struct Workload {
    chance: Chance,
    keys: u64,
    prefix: &'static str,
    next_id: u64,
    /// Kinds to choose from; the more often one is listed, the more often it comes.
    kinds: Vec<RecordKind>,
    /// Poison and killers hold things up, so there are few.
    costly_left: u64,
    once: bool,
    topics: Vec<std::sync::Arc<str>>,
    sent: Vec<Output>,
    /// Where outputs may be too large: some records are. From a chance of its own.
    large: Option<Chance>,
}

impl Workload {
    /// The records of a scenario; all ids start with `prefix`.
    pub fn new(mut chance: Chance, scenario: &Scenario, prefix: &'static str) -> Self {
        let mut kinds = vec![RecordKind::Good; 12];
        if scenario.stage.is_some() {
            kinds.extend([RecordKind::Filtered, RecordKind::StageFails]);
        }
        if scenario.delivers.iter().any(|deliver| deliver.key_by_k) {
            kinds.push(RecordKind::NoKey);
        }
        for (trouble, of) in [
            (Trouble::Refused, &[RecordKind::Refused, RecordKind::Late][..]),
            (Trouble::Poison, &[RecordKind::Poison][..]),
            (Trouble::Undecodable, &[RecordKind::Undecodable][..]),
            (Trouble::Killer, &[RecordKind::Killer][..]),
        ] {
            if scenario.enabled.contains(&trouble) {
                kinds.extend(of);
            }
        }
        Workload {
            large: scenario.output_max().map(|_| Chance::new(scenario.seed ^ 0x1a46e)),
            keys: chance.between(1, KEYS.len() as u64),
            chance,
            prefix,
            next_id: 0,
            kinds,
            costly_left: 3,
            once: scenario.delivers.iter().any(|deliver| deliver.once),
            topics: scenario.topics.clone(),
            sent: Vec::new(),
        }
    }

    /// The next record of the load.
    pub fn next(&mut self) -> Output {
        if self.once && !self.sent.is_empty() && self.chance.one_in(6) {
            return self.repeat();
        }
        let mut kind = self.chance.pick(&self.kinds).copied().unwrap_or(RecordKind::Good);
        if matches!(kind, RecordKind::Poison | RecordKind::Killer) {
            match self.costly_left {
                0 => kind = RecordKind::Good,
                _ => self.costly_left -= 1,
            }
        }
        let output = self.make(kind);
        if kind == RecordKind::Good {
            self.sent.push(output.clone());
        }
        output
    }

    /// A few records of one id and group; the last one may be refused, or be too large for a topic.
    pub fn versions(&mut self) -> Vec<Output> {
        let first = self.make(RecordKind::Good);
        let mut versions = vec![first.clone()];
        for version in 1..=self.chance.between(1, 3) {
            let mut value: Value =
                serde_json::from_slice(first.value.as_deref().unwrap_or_default())
                    .unwrap_or_default();
            value["text"] = version.into();
            if self.large.as_mut().is_some_and(|chance| chance.one_in(3)) {
                value["text"] = format!("{version}{}", "x".repeat(LARGE)).into();
            }
            if self.kinds.contains(&RecordKind::Refused) && self.chance.one_in(2) {
                value["do"] = RecordKind::Refused.word().into();
            }
            let value = Some(Bytes::from(value.to_string()));
            versions.push(Output { value, ..first.clone() });
        }
        versions
    }

    /// A record that is meant to be delivered, with a key that no other has.
    pub fn good(&mut self) -> Output {
        self.next_id += 1;
        let id = format!("{}{}", self.prefix, self.next_id);
        let topic = self.chance.pick(&self.topics).cloned();
        Output { topic: topic.unwrap_or_else(|| "in".into()), ..record(RecordKind::Good, &id, &id) }
    }

    /// The same id again: the same bytes, or others, which is a conflict.
    fn repeat(&mut self) -> Output {
        let Some(mut output) = self.chance.pick(&self.sent).cloned() else {
            return self.make(RecordKind::Good);
        };
        if self.chance.one_in(3) {
            let mut value = output.value.take().unwrap_or_default().to_vec();
            value.extend_from_slice(b"\n");
            output.value = Some(value.into());
        }
        output
    }

    fn make(&mut self, kind: RecordKind) -> Output {
        self.next_id += 1;
        let key_index = self.chance.below(self.keys);
        let key = KEYS.get(key_index as usize).copied().unwrap_or_default();
        let mut value = serde_json::json!({
            "id": format!("{}{}", self.prefix, self.next_id),
            "k": format!("k\"{key_index}"),
            "do": kind.word(),
            "text": "ü\u{1}".repeat(self.chance.below(20) as usize),
        });
        if self.large.as_mut().is_some_and(|chance| chance.one_in(6)) {
            value["text"] = "x".repeat(LARGE).into();
        }
        if let (RecordKind::NoKey, Some(fields)) = (kind, value.as_object_mut()) {
            fields.shift_remove("k");
        }
        let mut bytes = value.to_string().into_bytes();
        if kind == RecordKind::Undecodable {
            let bad = self.chance.pick(&BAD).copied().unwrap_or_default();
            bytes = bad.to_vec();
        }
        let tombstone = kind == RecordKind::Undecodable && self.chance.one_in(8);
        let unkeyed = self.chance.one_in(8);
        Output {
            topic: self.chance.pick(&self.topics).cloned().unwrap_or_else(|| "in".into()),
            partition: None,
            key: (!unkeyed).then(|| Bytes::copy_from_slice(key)),
            headers: self.headers(),
            value: (!tombstone).then(|| bytes.into()),
        }
    }

    fn headers(&mut self) -> Headers {
        let mut headers = HeadersBuilder::new();
        for _ in 0..self.chance.below(3) {
            headers = match self.chance.below(4) {
                0 => headers.add("a", Some(b"1")),
                1 => headers.add("a", None),
                2 => headers.add("", Some(b"\xff\0")),
                _ => headers.add("заголовок", Some(b"")),
            };
        }
        headers.build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bad_value_reads_as_undecodable() {
        for bad in BAD {
            assert_eq!(RecordKind::of(Some(bad)), RecordKind::Undecodable, "{bad:?}");
        }
        assert_eq!(RecordKind::of(None), RecordKind::Undecodable);
    }
}
