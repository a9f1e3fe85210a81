//! Between our JSON and VRL's values, both ways, with nothing changed on the way.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use potok_core::{GroupInfo, Timestamp};
use vrl::value::{ObjectMap, Value};

use super::View;
use crate::json::{DEPTH_MAX, Kind, Node};
use crate::number;

/// VRL's calendar ends some 262,000 years from now; times beyond this are no times.
const MILLIS_MAX: u64 = 8_000_000_000_000_000;

/// The value as VRL holds it. Recursion is bounded by the parser's [`DEPTH_MAX`].
pub(super) fn read(node: Node<'_>) -> Result<Value, String> {
    Ok(match node.kind() {
        Kind::Null => Value::Null,
        Kind::Bool => Value::Boolean(node.as_bool() == Some(true)),
        Kind::Number => read_number(node.source())?,
        Kind::String => Value::from(node.text().unwrap_or_default().as_ref()),
        Kind::Array => Value::Array(node.items().map(read).collect::<Result<_, _>>()?),
        Kind::Object => {
            let fields = node.fields().map(|(key, value)| Ok((key.as_ref().into(), read(value)?)));
            Value::Object(fields.collect::<Result<ObjectMap, String>>()?)
        }
    })
}

/// An object with these fields of it only.
pub(super) fn read_fields(node: Node<'_>, fields: &[String]) -> Result<Value, String> {
    let mut object = ObjectMap::new();
    for field in fields {
        if let Some(value) = node.get(field) {
            object.insert(field.as_str().into(), read(value)?);
        }
    }
    Ok(Value::Object(object))
}

/// Whole numbers stay whole, the others are floats, as VRL's own JSON reader has it.
fn read_number(text: &str) -> Result<Value, String> {
    if let Ok(whole) = text.parse::<i64>() {
        return Ok(Value::Integer(whole));
    }
    number::exact_f64(text).map(Value::from_f64_or_zero).ok_or_else(|| {
        let shown = text.get(..40).unwrap_or(text);
        format!("the number {shown} has more digits than a program can keep; send it as a string")
    })
}

/// What stands behind `%`.
pub(super) fn metadata(view: &View<'_>) -> Value {
    let lossy = |bytes: &[u8]| Value::from(String::from_utf8_lossy(bytes).as_ref());
    let mut headers = ObjectMap::new();
    for (name, value) in view.headers.iter() {
        match value {
            Some(value) => headers.insert(name.into(), lossy(value)),
            // The last of a name counts, and a null one is as good as none.
            None => headers.remove(name),
        };
    }
    let key = view.key.map_or(Value::Null, |key| Value::Bytes(Bytes::copy_from_slice(key)));
    Value::Object(ObjectMap::from([
        ("key".into(), key),
        ("headers".into(), Value::Object(headers)),
        ("topic".into(), Value::from(view.topic)),
        ("time".into(), timestamp(view.time)),
    ]))
}

fn timestamp(Timestamp(millis): Timestamp) -> Value {
    let since_epoch = Duration::from_millis(millis.unsigned_abs().min(MILLIS_MAX));
    let time = match millis {
        0.. => UNIX_EPOCH.checked_add(since_epoch),
        _ => UNIX_EPOCH.checked_sub(since_epoch),
    };
    Value::Timestamp(time.unwrap_or(UNIX_EPOCH).into())
}

/// What stands behind `%` in a program per batch.
pub(super) fn batch_metadata(group: &GroupInfo, events: &[View<'_>]) -> Value {
    let key = Value::Bytes(group.key.clone());
    let known = ObjectMap::from([
        ("key".into(), key.clone()),
        ("reason".into(), Value::from(group.reason.as_str())),
        ("opened".into(), timestamp(group.opened)),
        ("closed".into(), timestamp(group.closed)),
        ("name".into(), Value::from(group.name.as_str())),
    ]);
    Value::Object(ObjectMap::from([
        ("key".into(), key),
        ("group".into(), Value::Object(known)),
        ("events".into(), Value::Array(events.iter().map(metadata).collect())),
    ]))
}

/// Writes compact JSON that [`crate::json::Parser`] accepts.
pub(super) fn write(value: &Value, out: &mut Vec<u8>) -> Result<(), String> {
    write_at(value, out, 0)
}

fn write_at(value: &Value, out: &mut Vec<u8>, depth: usize) -> Result<(), String> {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Boolean(value) => write_plain(value, out)?,
        Value::Integer(value) => write_plain(value, out)?,
        Value::Float(value) if value.is_finite() => write_plain(&value.into_inner(), out)?,
        Value::Float(_) => return Err("the program made a number too large for JSON".to_owned()),
        Value::Bytes(bytes) => write_text(bytes, out)?,
        Value::String(text) => write_plain(&**text, out)?,
        Value::Regex(regex) => write_text(regex.as_bytes_slice(), out)?,
        Value::Timestamp(_) => write_plain(&*value.to_string_lossy(), out)?,
        Value::Array(_) | Value::Object(_) if depth == DEPTH_MAX => {
            return Err(format!("the program made a value nested deeper than {DEPTH_MAX}"));
        }
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_at(item, out, depth + 1)?;
            }
            out.push(b']');
        }
        Value::Object(fields) => {
            out.push(b'{');
            for (index, (key, field)) in fields.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_plain(key.as_str(), out)?;
                out.push(b':');
                write_at(field, out, depth + 1)?;
            }
            out.push(b'}');
        }
    }
    Ok(())
}

/// Floats come out in the shortest form that reads back the same.
fn write_plain<T: serde::Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), String> {
    serde_json::to_writer(out, value).map_err(|error| error.to_string())
}

fn write_text(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let text = std::str::from_utf8(bytes).map_err(|_| {
        "the program put bytes into the event that are not UTF-8; encode them, as with \
         `encode_base64`"
            .to_owned()
    })?;
    write_plain(text, out)
}
