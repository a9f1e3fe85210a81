//! A record as one line of JSON, the form `potok read` prints and the API takes back.
//!
//! `{"topic","partition","offset","time","key","headers":[["name","value"|null],…],"value"}`.
//! Key and value are strings, or null where there is none. What is not UTF-8 stands under
//! `key_base64` or `value_base64` instead, a header's value as `{"base64": "…"}` in its place.

use std::sync::Arc;

use axum::body::Bytes;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use potok_core::{Headers, HeadersBuilder, Output, Record};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

/// Content type of lines of JSON.
pub const LINES_TYPE: &str = "application/x-ndjson";

/// Writes the key into a JSON object.
pub(crate) fn write_key<M: SerializeMap>(map: &mut M, record: &Record) -> Result<(), M::Error> {
    write_bytes(map, "key", "key_base64", record.key.as_deref())
}

/// Writes key, headers and value into a JSON object.
pub(crate) fn write_body<M: SerializeMap>(map: &mut M, record: &Record) -> Result<(), M::Error> {
    write_key(map, record)?;
    map.serialize_entry("headers", &HeaderLines(&record.headers))?;
    write_bytes(map, "value", "value_base64", record.value.as_deref())
}

fn write_bytes<M: SerializeMap>(
    map: &mut M,
    name: &'static str,
    base64_name: &'static str,
    bytes: Option<&[u8]>,
) -> Result<(), M::Error> {
    match bytes.map(|bytes| std::str::from_utf8(bytes).map_err(|_| bytes)) {
        None => map.serialize_entry(name, &None::<&str>),
        Some(Ok(text)) => map.serialize_entry(name, text),
        Some(Err(bytes)) => map.serialize_entry(base64_name, &STANDARD.encode(bytes)),
    }
}

struct HeaderLines<'a>(&'a Headers);

impl Serialize for HeaderLines<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|(name, value)| (name, value.map(HeaderText))))
    }
}

struct HeaderText<'a>(&'a [u8]);

impl Serialize for HeaderText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("base64", &STANDARD.encode(self.0))?;
                map.end()
            }
        }
    }
}

/// A record of a topic.
pub(crate) struct RecordLine<'a> {
    pub topic: &'a str,
    pub partition: u32,
    pub record: &'a Record,
}

impl Serialize for RecordLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("topic", self.topic)?;
        map.serialize_entry("partition", &self.partition)?;
        map.serialize_entry("offset", &self.record.offset)?;
        map.serialize_entry("time", &self.record.time.to_string())?;
        write_body(&mut map, self.record)?;
        map.end()
    }
}

/// Adds one line to a stream.
pub(crate) fn push_line(lines: &mut Vec<u8>, object: &impl Serialize) {
    // Writing into memory does not fail, and every map here has strings for keys.
    if serde_json::to_writer(&mut *lines, object).is_ok() {
        lines.push(b'\n');
    }
}

/// What a client sends as a line: as `potok read` prints it, though only the body counts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SentLine {
    #[serde(default, rename = "topic")]
    _topic: Option<serde::de::IgnoredAny>,
    #[serde(default, rename = "partition")]
    _partition: Option<serde::de::IgnoredAny>,
    #[serde(default, rename = "offset")]
    _offset: Option<serde::de::IgnoredAny>,
    #[serde(default, rename = "time")]
    _time: Option<serde::de::IgnoredAny>,
    key: Option<String>,
    key_base64: Option<String>,
    #[serde(default)]
    headers: Vec<(String, Option<SentHeader>)>,
    value: Option<String>,
    value_base64: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum SentHeader {
    Text(String),
    Bytes { base64: String },
}

/// Reads lines; the error names the first bad one.
pub(crate) fn read_lines(body: &[u8], topic: &Arc<str>) -> Result<Vec<Output>, String> {
    let mut outputs = Vec::new();
    for (index, line) in body.split(|&byte| byte == b'\n').enumerate() {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let output =
            read_line(line, topic).map_err(|error| format!("line {}: {error}", index + 1))?;
        outputs.push(output);
    }
    Ok(outputs)
}

fn read_line(line: &[u8], topic: &Arc<str>) -> Result<Output, String> {
    let sent: SentLine = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let mut headers = HeadersBuilder::new();
    for (name, value) in sent.headers {
        let value = match value {
            None => None,
            Some(SentHeader::Text(text)) => Some(text.into_bytes()),
            Some(SentHeader::Bytes { base64 }) => Some(decode(&base64)?),
        };
        headers = headers.add(&name, value.as_deref());
    }
    Ok(Output {
        topic: topic.clone(),
        partition: None,
        key: read_bytes("key", sent.key, sent.key_base64)?,
        headers: headers.build(),
        value: read_bytes("value", sent.value, sent.value_base64)?,
    })
}

fn read_bytes(
    name: &str,
    text: Option<String>,
    base64: Option<String>,
) -> Result<Option<Bytes>, String> {
    match (text, base64) {
        (Some(_), Some(_)) => Err(format!("`{name}` and `{name}_base64` exclude each other")),
        (Some(text), None) => Ok(Some(text.into())),
        (None, Some(base64)) => Ok(Some(decode(&base64)?.into())),
        (None, None) => Ok(None),
    }
}

fn decode(base64: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(base64).map_err(|error| format!("not base64: {error}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use potok_core::Timestamp;

    use super::*;

    #[test]
    fn a_line_holds_every_byte_and_reads_back() {
        let headers = HeadersBuilder::new()
            .add("plain", Some(b"text"))
            .add("null", None)
            .add("raw", Some(b"\xff"))
            .build();
        let record = Record {
            offset: 7,
            time: Timestamp(0),
            key: Some(Bytes::from_static(b"\xfe\x00")),
            headers: headers.clone(),
            value: Some(Bytes::from_static("{\"ä\":\"\u{0}\"}".as_bytes())),
        };
        let mut line = Vec::new();
        push_line(&mut line, &RecordLine { topic: "orders", partition: 2, record: &record });
        assert_eq!(
            String::from_utf8_lossy(&line),
            "{\"topic\":\"orders\",\"partition\":2,\"offset\":7,\"time\":\"1970-01-01T00:00:00.000Z\",\
             \"key_base64\":\"/gA=\",\"headers\":[[\"plain\",\"text\"],[\"null\",null],\
             [\"raw\",{\"base64\":\"/w==\"}]],\"value\":\"{\\\"ä\\\":\\\"\\u0000\\\"}\"}\n"
        );
        let topic: Arc<str> = "other".into();
        let read = read_lines(&line, &topic).unwrap();
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].key, record.key);
        assert_eq!(read[0].headers, headers);
        assert_eq!(read[0].value, record.value);
    }

    #[test]
    fn a_bad_line_is_named_and_nothing_is_taken() {
        let topic: Arc<str> = "t".into();
        let error = read_lines(b"{\"value\":\"1\"}\n\n{\"valeu\":\"2\"}\n", &topic).unwrap_err();
        assert!(error.starts_with("line 3: unknown field `valeu`"), "{error}");
        assert!(read_lines(b"{\"key\":\"a\",\"key_base64\":\"YQ==\"}", &topic).is_err());
        assert!(read_lines(b"{\"value_base64\":\"!\"}", &topic).is_err());
    }
}
