//! What came back, element by element.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use potok_core::{Event, Fault, Reason, StageResult};
use potok_expr::json::Parser;
use serde_json::value::RawValue;

/// What is to become of one event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EventAnswer {
    Unchanged,
    Value(Bytes),
    Filtered,
}

impl EventAnswer {
    pub fn applied_to(self, mut event: Event) -> StageResult {
        match self {
            EventAnswer::Unchanged => StageResult::On(event),
            EventAnswer::Value(value) => {
                event.value = value;
                event.tombstone = false;
                StageResult::On(event)
            }
            EventAnswer::Filtered => StageResult::Filtered,
        }
    }
}

/// The answers for so many events. A body that does not fit has failed for all of them: nobody
/// knows which part of it belongs to which.
pub(super) fn read(body: &[u8], events: usize) -> Vec<Result<EventAnswer, Fault>> {
    let all = |fault: Fault| (0..events).map(|_| Err(fault.clone())).collect();
    let elements: Vec<&RawValue> = match serde_json::from_slice(body) {
        Ok(elements) => elements,
        Err(error) => {
            return all(unfitting("the answer of the webhook is not a JSON array").because(error));
        }
    };
    if elements.len() != events {
        let got = elements.len();
        return all(unfitting(format!("the webhook answered {got} elements for {events} events")));
    }
    let mut parser = Parser::new();
    elements.into_iter().map(|element| read_one(element, &mut parser)).collect()
}

fn read_one(element: &RawValue, parser: &mut Parser) -> Result<EventAnswer, Fault> {
    if element.get() == "null" {
        return Ok(EventAnswer::Unchanged);
    }
    let wrong = || {
        let what = "the webhook's element for this event has not exactly one of `value`, \
            `filtered: true` and `error`, and is not null";
        unfitting(what)
    };
    let fields: BTreeMap<Cow<'_, str>, &RawValue> =
        serde_json::from_str(element.get()).map_err(|_| wrong())?;
    match (fields.get("value"), fields.get("filtered"), fields.get("error")) {
        (Some(value), None, None) => {
            let value = Bytes::copy_from_slice(value.get().as_bytes());
            // What goes on is read by paths and programs, which rely on this check.
            parser.parse(&value).map_err(|error| {
                unfitting("the webhook's value for this event cannot be used").because(error)
            })?;
            Ok(EventAnswer::Value(value))
        }
        (None, Some(filtered), None) if filtered.get() == "true" => Ok(EventAnswer::Filtered),
        (None, None, Some(error)) => {
            let said = serde_json::from_str::<String>(error.get());
            let said = said.unwrap_or_else(|_| error.get().to_owned());
            let said: String = said.chars().take(SHOWN_CHARS_MAX).collect();
            let what = format!("the webhook says: {said}");
            Err(Fault::set_aside(Reason::Stage, what).code("P1003"))
        }
        _ => Err(wrong()),
    }
}

/// More of what somebody else wrote does not belong into a message.
pub(super) const SHOWN_CHARS_MAX: usize = 300;

pub(super) fn missing() -> Fault {
    unfitting("the webhook did not answer for this event")
}

pub(super) fn unfitting(what: impl Into<String>) -> Fault {
    Fault::set_aside(Reason::Stage, what).code("P1004")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    fn texts(body: &str, events: usize) -> Vec<String> {
        let read = read(body.as_bytes(), events);
        let text = |answer: Result<EventAnswer, Fault>| match answer {
            Ok(answer) => format!("{answer:?}"),
            Err(fault) => format!("{} {}", fault.code, fault.what),
        };
        read.into_iter().map(text).collect()
    }

    #[test]
    fn each_element_counts_for_itself() {
        let body = r#"[null, {"value": {"n": 1.50}}, {"filtered": true}, {"error": "no \"x\""},
            {"value": null}, {"value": 1, "error": "e"}, {"filtered": false}, {}, 5,
            {"value": {"a": 1, "a": 2}}, {"error": {"code": 7}}, {"value": 2, "note": "n"}]"#;
        let texts = texts(body, 12);
        let starts = [
            "Unchanged",
            r#"Value(b"{\"n\": 1.50}")"#,
            "Filtered",
            r#"P1003 the webhook says: no "x""#,
            r#"Value(b"null")"#,
            "P1004",
            "P1004",
            "P1004",
            "P1004",
            "P1004 the webhook's value",
            r#"P1003 the webhook says: {"code": 7}"#,
            r#"Value(b"2")"#,
        ];
        for (text, start) in texts.iter().zip(starts) {
            assert!(text.starts_with(start), "{text} begins with {start}");
        }
        assert_eq!(texts.len(), 12);
    }

    #[test]
    fn a_body_that_does_not_fit_fails_for_all() {
        for body in ["", "{}", "[null", "[null]", "[null,null,null]", "<html>", "\u{feff}[]"] {
            let texts = texts(body, 2);
            assert_eq!(texts.len(), 2, "{body}");
            assert!(texts.iter().all(|text| text.starts_with("P1004")), "{body}: {texts:?}");
        }
    }
}
