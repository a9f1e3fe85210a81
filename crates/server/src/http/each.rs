//! Several records of one object: messengers send what several people wrote in one body.
//!
//! For each element of the arrays that a path names there is a record: the object with only that element
//! in them. What lies around goes with each, byte for byte but for white space between values.

use std::collections::BTreeMap;

use axum::body::Bytes;
use serde_json::value::RawValue;

/// An object may grow so much: what lies around an element comes with each.
const GROWS_MAX: usize = 4 << 20;

/// A step on the way to the elements: a field, and whether its elements are meant.
pub type EachStep = (String, bool);

/// The records of an object. One without such arrays is one record, and so is one whose records together
/// were much larger than it is.
pub(super) fn parted(object: Bytes, path: &[EachStep]) -> Vec<Bytes> {
    let text = std::str::from_utf8(&object).ok();
    let value = text.and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
    let parts = value.and_then(|value| parts(value.get(), path)).filter(|parts| parts.len() > 1);
    let Some(parts) = parts else { return vec![object] };
    if parts.iter().map(String::len).sum::<usize>() > GROWS_MAX.max(2 * object.len()) {
        return vec![object];
    }
    parts.into_iter().map(Bytes::from).collect()
}

/// The parts of a value; none where the path leads nowhere.
fn parts(value: &str, path: &[EachStep]) -> Option<Vec<String>> {
    let Some(((name, is_array), rest)) = path.split_first() else {
        return Some(vec![value.to_owned()]);
    };
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(value).ok()?;
    let field = fields.get(name)?.get();
    let within = if *is_array {
        let elements: Vec<&RawValue> = serde_json::from_str(field).ok()?;
        let of = |element: &&RawValue| {
            let whole = || vec![element.get().to_owned()];
            parts(element.get(), rest).unwrap_or_else(whole)
        };
        elements.iter().flat_map(of).map(|part| format!("[{part}]")).collect()
    } else {
        parts(field, rest)?
    };
    (!within.is_empty()).then(|| within.iter().map(|part| with(&fields, name, part)).collect())
}

/// The object with another value in one of its fields.
fn with(fields: &BTreeMap<String, &RawValue>, name: &str, value: &str) -> String {
    let mut text = String::from("{");
    for (at, (known, raw)) in fields.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        text.push_str(&serde_json::Value::from(known.as_str()).to_string());
        text.push(':');
        text.push_str(if known == name { value } else { raw.get() });
    }
    text.push('}');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> Vec<EachStep> {
        [("a", true), ("b", false), ("c", true)].map(|(name, each)| (name.to_owned(), each)).into()
    }

    fn split(text: &str) -> Vec<String> {
        let parts = parted(Bytes::copy_from_slice(text.as_bytes()), &path());
        parts.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect()
    }

    #[test]
    fn each_element_goes_with_what_lies_around_it() {
        let text = r#"{"a":[{"b":{"c":[1,12345678901234567890.10],"d":"x"}},{"b":{"c":[{"e":"\u00e4"}]}},{"f":0}],"z":null}"#;
        assert_eq!(
            split(text),
            [
                r#"{"a":[{"b":{"c":[1],"d":"x"}}],"z":null}"#,
                r#"{"a":[{"b":{"c":[12345678901234567890.10],"d":"x"}}],"z":null}"#,
                r#"{"a":[{"b":{"c":[{"e":"\u00e4"}]}}],"z":null}"#,
                r#"{"a":[{"f":0}],"z":null}"#,
            ]
        );
    }

    #[test]
    fn what_has_no_such_arrays_is_one_record_as_it_is() {
        for text in [
            "{}",
            "{ \"a\" : 1 }",
            r#"{"a":[]}"#,
            r#"{"a":{"b":{"c":[1,2]}}}"#,
            r#"{"a":[{"b":{"c":[1]}}]}"#,
            r#"{"a":[{"b":{"c":[]}}]}"#,
        ] {
            assert_eq!(split(text), [text]);
        }
    }

    #[test]
    fn what_would_grow_too_much_stays_whole() {
        let elements = vec!["1"; 5_000].join(",");
        let text =
            format!(r#"{{"a":[{{"b":{{"c":[{elements}],"d":"{}"}}}}]}}"#, "x".repeat(10_000));
        assert_eq!(split(&text), [text]);
    }
}
