//! A message as it goes over the wire: checked once, encoded once per protocol, shared by all
//! receivers.
//!
//! The only way to a frame is [`Frame::new`], because text frames are cut at the byte 0x1E: a payload
//! that is passed on unchecked could carry messages of its own to every receiver.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use axum::extract::ws::Utf8Bytes;
use bytes::Bytes;
use serde_json::Value;

use crate::protocol::{RECORD_SEPARATOR, msgpack};
use crate::random;

/// Deeper payloads are refused: clients parse recursively.
const DEPTH_MAX: usize = 64;
const METHOD_BYTES_MAX: usize = 128;

/// Names that a stock client finds on every object: looking one up as a handler makes it throw
/// without completing the message.
const OBJECT_NAMES: [&str; 12] = [
    "constructor",
    "__definegetter__",
    "__definesetter__",
    "hasownproperty",
    "__lookupgetter__",
    "__lookupsetter__",
    "isprototypeof",
    "propertyisenumerable",
    "tostring",
    "valueof",
    "__proto__",
    "tolocalestring",
];

/// Why a message can never be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("the method's name is not one a client can handle")]
    BadMethod,
    #[error("the payload is not JSON")]
    NotJson,
    #[error("the payload is nested more than {DEPTH_MAX} levels deep")]
    TooDeep,
    #[error("the message has {bytes} bytes, more than a client is sent")]
    TooLarge { bytes: usize },
}

/// An invocation of a client's method: `method(payload, {"id": id})`.
#[derive(Debug)]
pub struct Frame {
    /// Of the invocation id; never reused within a process.
    number: u64,
    json: Utf8Bytes,
    arguments: Range<usize>,
    method: Range<usize>,
    payload: Range<usize>,
    msgpack: OnceLock<Bytes>,
}

/// Part of every invocation id, so that ids of an earlier process are unknown to this one.
static NONCE: LazyLock<String> = LazyLock::new(|| format!("p{:016x}-", random::u64()));
static NUMBERS: AtomicU64 = AtomicU64::new(1);

impl Frame {
    /// Checks and encodes a message of at most `limit` bytes. `id` is the message's own id, which
    /// clients use to drop repeats.
    pub fn new(
        method: &str,
        id: &str,
        payload: &[u8],
        limit: usize,
    ) -> Result<Arc<Self>, FrameError> {
        if !is_method(method) {
            return Err(FrameError::BadMethod);
        }
        if payload.len() > limit {
            return Err(FrameError::TooLarge { bytes: payload.len() });
        }
        let frame = Frame::encode(method, id, &checked(payload)?);
        match frame.bytes() {
            bytes if bytes > limit => Err(FrameError::TooLarge { bytes }),
            _ => Ok(Arc::new(frame)),
        }
    }

    /// What a naive hub sends, which believes that names and payloads are what they should be. For
    /// tests that show what the checks are for.
    #[cfg(debug_assertions)]
    #[doc(hidden)]
    pub fn unchecked(method: &str, id: &str, payload: &str) -> Arc<Self> {
        Arc::new(Frame::encode(method, id, payload))
    }

    fn encode(method: &str, id: &str, payload: &str) -> Self {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let mut json = String::with_capacity(payload.len() + id.len() + method.len() + 96);
        json.push_str(r#"{"type":1,"invocationId":""#);
        json.push_str(&invocation_id(number));
        json.push_str(r#"","target":""#);
        let method = append(&mut json, method);
        json.push_str(r#"","arguments":"#);
        let id = serde_json::Value::from(id);
        let arguments = append(&mut json, &format!(r#"[{payload},{{"id":{id}}}]"#));
        let payload = arguments.start + 1..arguments.start + 1 + payload.len();
        json.push('}');
        json.push(RECORD_SEPARATOR);
        let json = json.into();
        Frame { number, json, arguments, method, payload, msgpack: OnceLock::new() }
    }

    /// What it counts for in queues, whatever the protocol.
    pub fn bytes(&self) -> usize {
        self.json.as_str().len()
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn json(&self) -> &Utf8Bytes {
        &self.json
    }

    pub(crate) fn method(&self) -> &str {
        self.json.as_str().get(self.method.clone()).unwrap_or_default()
    }

    /// As JSON.
    pub(crate) fn payload(&self) -> &str {
        self.json.as_str().get(self.payload.clone()).unwrap_or_default()
    }

    /// The message's own.
    pub(crate) fn id(&self) -> String {
        let arguments: Value = serde_json::from_str(self.arguments()).unwrap_or_default();
        arguments.get(1).and_then(|more| more.get("id")?.as_str()).unwrap_or_default().to_owned()
    }

    /// As JSON: the payload and the id.
    pub(crate) fn arguments(&self) -> &str {
        self.json.as_str().get(self.arguments.clone()).unwrap_or_default()
    }

    pub(crate) fn msgpack(&self) -> &Bytes {
        self.msgpack.get_or_init(|| {
            // Checked when the frame was made.
            let arguments = serde_json::from_str(self.arguments()).unwrap_or_default();
            msgpack::invocation(&invocation_id(self.number), self.method(), &arguments)
        })
    }
}

fn append(text: &mut String, part: &str) -> Range<usize> {
    let from = text.len();
    text.push_str(part);
    from..text.len()
}

fn invocation_id(number: u64) -> String {
    format!("{}{number:x}", *NONCE)
}

/// The number of an invocation id of this process.
pub(crate) fn number_of(invocation_id: &str) -> Option<u64> {
    let digits = invocation_id.strip_prefix(NONCE.as_str())?;
    let is_plain = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    is_plain.then(|| u64::from_str_radix(digits, 16).ok())?
}

fn is_method(name: &str) -> bool {
    let rest = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    name.len() <= METHOD_BYTES_MAX
        && name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
        && name.bytes().all(rest)
        && !OBJECT_NAMES.contains(&name.to_ascii_lowercase().as_str())
}

/// The payload as JSON without any byte below 0x20. Read whole, not only skimmed: numbers and
/// characters that cannot be said in MessagePack are found here, not when somebody asks for it.
fn checked(payload: &[u8]) -> Result<String, FrameError> {
    let text = std::str::from_utf8(payload).map_err(|_| FrameError::NotJson)?;
    let value: Value = serde_json::from_str(text).map_err(|_| FrameError::NotJson)?;
    if depth(text) > DEPTH_MAX {
        return Err(FrameError::TooDeep);
    }
    if text.bytes().all(|b| b >= 0x20) {
        return Ok(text.to_owned());
    }
    // Laid out over lines. Strings have no such bytes in them: that would not be JSON.
    serde_json::to_string(&value).map_err(|_| FrameError::NotJson)
}

/// Of valid JSON.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 64 << 10;

    fn frame(payload: &str) -> Result<Arc<Frame>, FrameError> {
        Frame::new("notify", "m-1", payload.as_bytes(), LIMIT)
    }

    #[test]
    fn a_frame_is_one_message_with_the_payload_and_the_id() {
        let frame = frame(r#"{"text":"hi"}"#).unwrap();
        let text = frame.json().as_str().strip_suffix('\u{1e}').unwrap();
        let parsed: Value = serde_json::from_str(text).unwrap();
        assert_eq!(parsed["type"], 1);
        assert_eq!(parsed["target"], "notify");
        assert_eq!(parsed["arguments"][0]["text"], "hi");
        assert_eq!(parsed["arguments"][1]["id"], "m-1");
        let id = parsed["invocationId"].as_str().unwrap();
        assert_eq!(number_of(id), Some(frame.number()));
        assert!(!id.starts_with(|c: char| c.is_ascii_digit()), "stream ids of clients are decimal");
    }

    #[test]
    fn a_payload_cannot_forge_messages() {
        let forged = "{\"a\":\"\u{1e}{\\\"type\\\":7}\u{1e}\"}";
        assert_eq!(frame(forged).unwrap_err(), FrameError::NotJson);
        assert_eq!(frame("{}\u{1e}{\"type\":7}").unwrap_err(), FrameError::NotJson);
        for laid_out in ["{\r\n  \"a\": [1,\t2]\r\n}", "\n{\"a\":[1,2]}\n"] {
            let frame = frame(laid_out).unwrap();
            let (_, end) = frame.json().as_str().split_at(frame.bytes() - 1);
            assert_eq!(end, "\u{1e}");
            assert_eq!(frame.json().as_str().bytes().filter(|b| *b < 0x20).count(), 1);
        }
        // An id is text of its own, whatever is in it.
        let frame = Frame::new("notify", "\u{1e}\"", b"1", LIMIT).unwrap();
        assert_eq!(frame.json().as_str().bytes().filter(|b| *b < 0x20).count(), 1);
    }

    #[test]
    fn names_that_clients_stumble_over_are_refused() {
        for name in ["constructor", "__proto__", "toString", "", "1a", "a b", "a\u{1e}", "ü"] {
            assert_eq!(Frame::new(name, "1", b"1", LIMIT).unwrap_err(), FrameError::BadMethod);
        }
        assert!(Frame::new(&"a".repeat(200), "1", b"1", LIMIT).is_err());
        assert!(Frame::new("order.Created-v2_x", "1", b"1", LIMIT).is_ok());
    }

    #[test]
    fn what_is_too_large_or_too_deep_is_refused() {
        let large = format!("\"{}\"", "x".repeat(200 << 10));
        assert_eq!(frame(&large).unwrap_err(), FrameError::TooLarge { bytes: large.len() });
        let edge = format!("\"{}\"", "x".repeat(LIMIT - 2));
        assert!(matches!(frame(&edge), Err(FrameError::TooLarge { bytes }) if bytes > LIMIT));
        let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
        assert_eq!(frame(&deep).unwrap_err(), FrameError::TooDeep);
        assert!(frame(r#""[[[\"{{""#).is_ok());
    }

    #[test]
    fn ids_of_other_processes_are_unknown() {
        assert_eq!(number_of("p0000000000000000-1"), None);
        assert_eq!(number_of("0"), None);
        assert_eq!(number_of(&format!("{}+1", *NONCE)), None);
    }
}
