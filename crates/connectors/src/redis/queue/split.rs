//! From entries of a list to messages. Other programs push several as one, joined by a separator.

use bytes::Bytes;
use serde::de::IgnoredAny;

/// What stands between messages.
const SEPARATOR: &[u8] = b"|||SEPARATOR|||";

/// True for what is no message: nothing, or `null`.
pub(super) fn is_none(entry: &[u8]) -> bool {
    let entry = entry.trim_ascii();
    entry.is_empty() || entry == b"null"
}

/// The messages of an entry, in order, those that are none among them.
///
/// An entry that is one JSON value is one message, whatever is written in it: a person may have typed
/// the separator. Several values with separators between them are several messages. Only where that
/// is not so either, the bytes are cut at each separator.
pub(super) fn messages(entry: &Bytes) -> Vec<Bytes> {
    if find(entry).is_none() || is_one_value(entry) {
        return vec![entry.clone()];
    }
    by_values(entry).unwrap_or_else(|| plainly(entry))
}

fn is_one_value(entry: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(entry).is_ok()
}

/// Value, separator, value and so on; a value may be missing.
fn by_values(entry: &Bytes) -> Option<Vec<Bytes>> {
    let mut messages = Vec::new();
    let mut from = 0;
    loop {
        let rest = entry.get(from..)?;
        let blank = rest.len() - rest.trim_ascii_start().len();
        let start = rest.get(blank..)?;
        let length = if start.is_empty() || start.starts_with(SEPARATOR) {
            0
        } else if !matches!(start.first(), Some(b'{' | b'[' | b'"')) {
            // A number or a word ends where something else begins, which the separator is not to a parser.
            let value = start.get(..find(start).unwrap_or(start.len()))?.trim_ascii_end();
            is_one_value(value).then_some(value.len())?
        } else {
            let mut values = serde_json::Deserializer::from_slice(start).into_iter::<IgnoredAny>();
            values.next()?.ok()?;
            values.byte_offset()
        };
        messages.push(entry.slice(from + blank..from + blank + length));
        let behind = start.get(length..)?;
        let blank_behind = behind.len() - behind.trim_ascii_start().len();
        let behind = behind.get(blank_behind..)?;
        if behind.is_empty() {
            return Some(messages);
        }
        if !behind.starts_with(SEPARATOR) {
            return None;
        }
        from += blank + length + blank_behind + SEPARATOR.len();
    }
}

fn plainly(entry: &Bytes) -> Vec<Bytes> {
    let mut messages = Vec::new();
    let mut rest = entry.clone();
    while let Some(at) = find(&rest) {
        messages.push(rest.split_to(at));
        let _separator = rest.split_to(SEPARATOR.len());
    }
    messages.push(rest);
    messages
}

fn find(bytes: &[u8]) -> Option<usize> {
    bytes.windows(SEPARATOR.len()).position(|window| window == SEPARATOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(entry: &str) -> Vec<String> {
        let messages = messages(&Bytes::copy_from_slice(entry.as_bytes()));
        messages.iter().map(|message| String::from_utf8_lossy(message).into_owned()).collect()
    }

    #[test]
    fn values_are_parted_and_texts_are_not() {
        for (entry, messages) in [
            ("", vec![""]),
            (r#"{"a":1}"#, vec![r#"{"a":1}"#]),
            (r#"{"t":"x|||SEPARATOR|||y"}"#, vec![r#"{"t":"x|||SEPARATOR|||y"}"#]),
            (
                r#"{"t":"x|||SEPARATOR|||y"}|||SEPARATOR|||{"b":2}"#,
                vec![r#"{"t":"x|||SEPARATOR|||y"}"#, r#"{"b":2}"#],
            ),
            (" 1 |||SEPARATOR||| 2 ", vec!["1", "2"]),
            ("1|||SEPARATOR||||||SEPARATOR|||null|||SEPARATOR|||", vec!["1", "", "null", ""]),
            (
                r#"{"t":"x|||SEPARATOR|||y"}|||SEPARATOR|||null|||SEPARATOR||| 7 |||SEPARATOR|||{"b":2}"#,
                vec![r#"{"t":"x|||SEPARATOR|||y"}"#, "null", "7", r#"{"b":2}"#],
            ),
            ("|||SEPARATOR|||", vec!["", ""]),
            // Not JSON: cut plainly, and each piece is judged for itself.
            (r#"{"a":1}|||SEPARATOR|||{oops"#, vec![r#"{"a":1}"#, "{oops"]),
            ("a b|||SEPARATOR|||c", vec!["a b", "c"]),
        ] {
            assert_eq!(split(entry), messages, "{entry}");
        }
    }

    #[test]
    fn what_is_no_message() {
        for none in ["", " \n", "null", " null\n"] {
            assert!(is_none(none.as_bytes()), "{none:?}");
        }
        for some in ["0", "\"\"", "nul", "{}"] {
            assert!(!is_none(some.as_bytes()), "{some:?}");
        }
    }
}
