//! Which fields of a dead letter `conflict` differ from the record that was there first.
//!
//! The row keeps a hash of the earlier record and its position, so the record is read again from
//! the log. Where retention has taken it, nothing can be said.

use potok_core::{Log, Position, ReadFrom, Reason, Record};
use potok_flow::dead_letter::DeadLetter;
use serde_json::Value;

/// So many fields are named.
const FIELDS_MAX: usize = 20;

/// The fields that differ, as JSON pointers; `None` where that cannot be known.
pub(super) async fn differences(log: &dyn Log, letter: &DeadLetter) -> Option<Vec<String>> {
    if letter.envelope.reason != Reason::Conflict {
        return None;
    }
    let (_, other) = letter.envelope.error.rsplit_once(", from ")?;
    let earlier = record_at(log, &position_in(other)?).await?;
    let parse = |record: &Record| serde_json::from_slice(record.value.as_deref()?).ok();
    let (earlier, later): (Value, Value) = (parse(&earlier)?, parse(&letter.record)?);
    let mut fields = Vec::new();
    compare("", &earlier, &later, &mut fields);
    fields.truncate(FIELDS_MAX);
    Some(fields)
}

/// The position at the beginning of a delivery's name.
fn position_in(name: &str) -> Option<Position> {
    let (place, rest) = name.split_once('@')?;
    let log = rest.get(..16)?;
    format!("{place}@{log}").parse().ok()
}

async fn record_at(log: &dyn Log, position: &Position) -> Option<Record> {
    let from = ReadFrom::Place { partition: position.partition, offset: position.offset };
    let batch = log.read(&position.topic, from).await.ok()?.next(false).await.ok()??;
    batch.records.iter().find(|record| batch.position(record) == *position).cloned()
}

fn compare(at: &str, one: &Value, other: &Value, fields: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(ones), Value::Object(others)) => {
            let missing = others.keys().filter(|name| !ones.contains_key(*name));
            for name in ones.keys().chain(missing) {
                let value = |of: &serde_json::Map<String, Value>| of.get(name).cloned();
                let (one, other) = (value(ones), value(others));
                let at = format!("{at}/{name}");
                match (one, other) {
                    (Some(one), Some(other)) => compare(&at, &one, &other, fields),
                    _ => fields.push(at),
                }
            }
        }
        (Value::Array(ones), Value::Array(others)) if ones.len() == others.len() => {
            for (index, (one, other)) in ones.iter().zip(others).enumerate() {
                compare(&format!("{at}/{index}"), one, other, fields);
            }
        }
        (one, other) if one == other => {}
        _ => fields.push(if at.is_empty() { "/".to_owned() } else { at.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_differ_are_named_by_their_place() {
        let mut fields = Vec::new();
        let one = serde_json::json!({ "a": 1, "b": { "c": [1, 2], "d": 1 }, "e": 1 });
        let other = serde_json::json!({ "a": 1, "b": { "c": [1, 3], "d": 1 }, "f": 1 });
        compare("", &one, &other, &mut fields);
        assert_eq!(fields, ["/b/c/1", "/e", "/f"]);
    }

    #[test]
    fn a_delivery_name_begins_with_a_position() {
        let position = position_in("orders/0/1@00000000000000ff/0/0").map(|p| p.to_string());
        assert_eq!(position.as_deref(), Some("orders/0/1@00000000000000ff"));
    }
}
