//! The tape against serde_json on hostile bytes: both take a text or neither does, and they read the
//! same in it, except where the tape is stricter and says so.
#![allow(clippy::unwrap_used, clippy::panic)]

use potok_expr::json::{DEPTH_MAX, Kind, Node, Parser};
use potok_fuzz::Corpus;
use serde_json::Value;

#[test]
fn the_tape_and_serde_json_read_the_same() {
    let deep = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth)).into_bytes();
    let corpus = Corpus::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/json"));
    let corpus = corpus.with([DEPTH_MAX - 2, DEPTH_MAX, DEPTH_MAX + 1].map(deep));
    let mut parser = Parser::new();
    corpus.fuzz(20_000, |input| {
        let theirs = serde_json::from_slice::<Value>(input);
        match (parser.parse(input), theirs) {
            (Ok(node), Ok(value)) => same(node, &value),
            (Err(error), Err(_)) => assert!(error.at <= input.len(), "{error}"),
            (Err(error), Ok(_)) => {
                assert!(error.at <= input.len() && error.message.contains("twice"), "{error}");
            }
            // Theirs gives up a level earlier, and rounds what is just below the largest number up.
            (Ok(node), Err(error)) => {
                let known = ["recursion limit", "number out of range"];
                assert!(known.iter().any(|what| error.to_string().contains(what)), "{error}");
                walk(node);
            }
        }
    });
}

/// Touches everything.
fn walk(node: Node<'_>) {
    let _ = (node.raw(), node.text(), node.as_bool(), node.as_i64());
    assert!(node.as_f64().is_none_or(f64::is_finite), "{node:?}");
    node.items().for_each(walk);
    node.fields().for_each(|(_, value)| walk(value));
}

fn same(node: Node<'_>, value: &Value) {
    match value {
        Value::Null => assert!(node.is_null()),
        Value::Bool(value) => assert_eq!(node.as_bool(), Some(*value)),
        Value::Number(number) => {
            if let Some(whole) = number.as_i64() {
                assert_eq!(node.as_i64(), Some(whole));
            }
            // Their reader of fractions may be off by the last bit.
            let (ours, theirs) = (node.as_f64().unwrap(), number.as_f64().unwrap());
            assert!(ours.is_finite() && (ours - theirs).abs() <= theirs.abs() * 1e-15, "{ours}");
        }
        Value::String(text) => assert_eq!(node.text().unwrap(), *text),
        Value::Array(items) => {
            assert_eq!((node.kind(), node.items().count()), (Kind::Array, items.len()));
            node.items().zip(items).for_each(|(node, item)| same(node, item));
        }
        Value::Object(fields) => {
            assert_eq!((node.kind(), node.fields().count()), (Kind::Object, fields.len()));
            for (key, field) in node.fields() {
                assert_eq!(node.get(&key).unwrap().source(), field.source());
                same(field, &fields[&*key]);
            }
        }
    }
}
