//! JSON, checked once before anything reads it lazily, and against a schema where there is one.
//!
//! The syntax check is stricter than most parsers, so that every reader of the bytes agrees:
//! no duplicate keys, no lone surrogates, no number outside of what a double can hold, and a
//! bounded depth.

use potok_core::{DecodeResult, Decoder, Fault, Reason, Record};
use potok_expr::json::Parser;

use super::quick::FastValidator;

/// How many broken rules of a schema one dead letter names.
const RULES_NAMED_MAX: usize = 5;

/// Decodes JSON values.
pub struct JsonDecoder {
    /// Asked first where there is one; it knows only good values.
    quick: Option<FastValidator>,
    schema: Option<jsonschema::Validator>,
}

impl JsonDecoder {
    /// With a JSON Schema that values must satisfy and what checks it, or without. Who builds the
    /// validator decides what it checks, and that no pattern takes longer than linear time.
    pub fn new(schema: Option<(&serde_json::Value, jsonschema::Validator)>) -> Self {
        let quick = schema.as_ref().and_then(|(schema, _)| FastValidator::of(schema));
        JsonDecoder { quick, schema: schema.map(|(_, validator)| validator) }
    }

    fn check(&self, parser: &mut Parser, record: &Record) -> Result<(), Fault> {
        let undecodable = |what: String| Fault::set_aside(Reason::Undecodable, what);
        let Some(value) = &record.value else {
            return Err(undecodable("the record has no value".to_owned()));
        };
        let node =
            parser.parse(value).map_err(|error| undecodable(format!("not JSON: {error}")))?;
        let Some(schema) = &self.schema else {
            return Ok(());
        };
        if self.quick.as_ref().is_some_and(|quick| quick.accepts(node)) {
            return Ok(());
        }
        let value: serde_json::Value = serde_json::from_slice(value)
            .map_err(|error| undecodable(format!("not JSON: {error}")))?;
        if schema.is_valid(&value) {
            return Ok(());
        }
        Err(Fault::set_aside(Reason::Invalid, broken_rules(schema, &value)))
    }
}

/// The first broken rules, each with the place in the value.
fn broken_rules(schema: &jsonschema::Validator, value: &serde_json::Value) -> String {
    let mut rules = Vec::new();
    let mut more = 0;
    for error in schema.iter_errors(value) {
        if rules.len() == RULES_NAMED_MAX {
            more += 1;
            continue;
        }
        let place = error.instance_path().to_string();
        let place = if place.is_empty() { "the value".to_owned() } else { place };
        // A broken value may be megabytes long; the dead letter has its bytes anyway.
        let what: String = error.to_string().chars().take(200).collect();
        rules.push(format!("{place}: {what}"));
    }
    if more > 0 {
        rules.push(format!("and {more} more"));
    }
    rules.join("; ")
}

impl Decoder for JsonDecoder {
    fn decode(&self, records: &[&Record]) -> Vec<DecodeResult> {
        let mut parser = Parser::new();
        let decode = |record: &&Record| match self.check(&mut parser, record) {
            Ok(()) => DecodeResult::AsIs,
            Err(fault) => DecodeResult::Bad(fault),
        };
        records.iter().map(decode).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bytes::Bytes;
    use potok_core::{Headers, Timestamp};
    use serde_json::json;

    use super::*;

    fn reason(decoder: &JsonDecoder, value: &[u8]) -> Option<(Reason, String)> {
        let value = Some(Bytes::copy_from_slice(value));
        let record =
            Record { offset: 0, time: Timestamp(0), key: None, headers: Headers::none(), value };
        match decoder.decode(&[&record]).pop().unwrap() {
            DecodeResult::AsIs => None,
            DecodeResult::Bad(fault) => Some((fault.reason, fault.what)),
        }
    }

    #[test]
    fn tells_not_json_from_against_the_schema() {
        let schema = json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "minimum": 0}}});
        let decoder =
            JsonDecoder::new(Some((&schema, jsonschema::validator_for(&schema).unwrap())));
        assert_eq!(reason(&decoder, br#"{"a":0}"#), None);
        assert_eq!(reason(&decoder, br#"{"a":0"#).unwrap().0, Reason::Undecodable);
        assert_eq!(reason(&decoder, br#"{"a":0,"a":1}"#).unwrap().0, Reason::Undecodable);
        let (why, what) = reason(&decoder, br#"{"a":-1}"#).unwrap();
        assert_eq!(why, Reason::Invalid);
        assert!(what.contains("/a"), "{what}");
    }
}
