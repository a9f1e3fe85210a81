//! The protocol in JSON.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{ClientCompletion, ClientMessage, Invocation, ProtocolError, RECORD_SEPARATOR};

/// The fields of all kinds of messages; clients differ in their order.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    #[serde(rename = "type")]
    kind: u64,
    #[serde(borrow, default)]
    invocation_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    target: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(default)]
    stream_ids: Option<Vec<String>>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<Cow<'a, str>>,
    #[serde(default)]
    sequence_id: Option<u64>,
}

/// A result of `null` is a result.
fn present<'a, D: Deserializer<'a>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

pub fn parse(message: &[u8]) -> Result<ClientMessage, ProtocolError> {
    if let Some(id) = usual_completion(message) {
        return Ok(ClientMessage::Completion { id, completed: ClientCompletion::NoResult });
    }
    let broken = ProtocolError("the message is not JSON of the hub protocol");
    let envelope: Envelope = serde_json::from_slice(message).map_err(|_| broken)?;
    let id = envelope.invocation_id.filter(|id| !id.is_empty()).map(Cow::into_owned);
    let target = envelope.target.map(Cow::into_owned);
    Ok(match envelope.kind {
        1 => ClientMessage::Invocation(Invocation {
            id,
            target: target.ok_or(ProtocolError("an invocation without a target"))?,
            arguments: envelope
                .arguments
                .and_then(|arguments| serde_json::from_str(arguments.get()).ok()),
            streams: envelope.stream_ids.is_some_and(|ids| !ids.is_empty()),
        }),
        3 => {
            let id = id.ok_or(ProtocolError("a completion without an id"))?;
            let completed = match (envelope.error, envelope.result) {
                (Some(_), Some(_)) => {
                    return Err(ProtocolError("a completion with result and error"));
                }
                (Some(error), None) => ClientCompletion::error(&error),
                (None, Some(_)) => ClientCompletion::Result,
                (None, None) => ClientCompletion::Void,
            };
            ClientMessage::Completion { id, completed }
        }
        4 => ClientMessage::StreamInvocation {
            id: id.ok_or(ProtocolError("a stream without an id"))?,
            target: target.unwrap_or_default(),
        },
        6 => ClientMessage::Ping,
        7 => ClientMessage::Close,
        2 | 5 => ClientMessage::StreamPart,
        8 | 9 => {
            let number = envelope.sequence_id.ok_or(ProtocolError("a number is missing"))?;
            if envelope.kind == 8 {
                ClientMessage::Ack(number)
            } else {
                ClientMessage::Sequence(number)
            }
        }
        _ => ClientMessage::Unknown,
    })
}

/// What the stock client writes where a handler returns nothing, byte for byte. Whatever differs goes
/// through the parser: this may only accept.
fn usual_completion(message: &[u8]) -> Option<String> {
    const BEFORE: &[u8] = br#"{"error":"Client didn't provide a result.","invocationId":""#;
    const BEHIND: &[u8] = br#"","type":3}"#;
    let id = message.strip_prefix(BEFORE)?.strip_suffix(BEHIND)?;
    let plain = |b: &u8| b.is_ascii_alphanumeric() || *b == b'-';
    (!id.is_empty() && id.iter().all(plain)).then(|| String::from_utf8_lossy(id).into_owned())
}

pub fn close(error: Option<&str>, allow_reconnect: bool) -> String {
    let mut message = json!({"type": 7});
    if let Some(error) = error {
        message["error"] = error.into();
    }
    if allow_reconnect {
        message["allowReconnect"] = true.into();
    }
    ended(&message)
}

pub fn numbered(kind: u8, number: u64) -> String {
    ended(&json!({"type": kind, "sequenceId": number}))
}

pub fn completion(id: &str, answer: &Result<Value, String>) -> String {
    ended(&match answer {
        Ok(Value::Null) => json!({"type": 3, "invocationId": id}),
        Ok(result) => json!({"type": 3, "invocationId": id, "result": result}),
        Err(error) => json!({"type": 3, "invocationId": id, "error": error}),
    })
}

fn ended(message: &Value) -> String {
    let mut text = message.to_string();
    text.push(RECORD_SEPARATOR);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion_of(message: &str) -> (String, ClientCompletion) {
        match parse(message.as_bytes()).unwrap() {
            ClientMessage::Completion { id, completed } => (id, completed),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn completions_are_read_in_every_order_of_fields() {
        for (message, completed) in [
            (
                r#"{"error":"Client didn't provide a result.","invocationId":"p1-a","type":3}"#,
                ClientCompletion::NoResult,
            ),
            (
                r#"{"type":3,"invocationId":"p1-a","error":"Client didn't provide a result."}"#,
                ClientCompletion::NoResult,
            ),
            (
                r#"{"error":"Client didn\u0027t provide a result.","invocationId":"p1-a","type":3}"#,
                ClientCompletion::NoResult,
            ),
            (
                r#"{"error":"Client didn't provide a result!","invocationId":"p1-a","type":3}"#,
                ClientCompletion::Threw,
            ),
            (r#"{"invocationId":"p1-a","result":null,"type":3}"#, ClientCompletion::Result),
            (
                r#"{"invocationId":"p1-a","result":{"error":"x"},"type":3}"#,
                ClientCompletion::Result,
            ),
            (r#"{"invocationId":"p1-a","type":3}"#, ClientCompletion::Void),
            (r#"{"headers":{"a":"b"},"invocationId":"p1-a","type":3}"#, ClientCompletion::Void),
        ] {
            assert_eq!(completion_of(message), ("p1-a".to_owned(), completed), "{message}");
        }
        assert!(parse(br#"{"type":3,"invocationId":"1","error":"x","result":1}"#).is_err());
        assert!(parse(br#"{"type":3}"#).is_err());
    }

    #[test]
    fn the_quick_way_takes_nothing_that_is_not_a_completion() {
        let tricky =
            br#"{"error":"Client didn't provide a result.","invocationId":"a","x":"","type":3}"#;
        assert_eq!(usual_completion(tricky), None);
    }

    #[test]
    fn types_to_come_are_passed_over() {
        for message in [r#"{"type":99}"#, r#"{"type":300,"x":{}}"#] {
            assert_eq!(parse(message.as_bytes()), Ok(ClientMessage::Unknown));
        }
        for message in [r#"{"type":"6"}"#, r#"{"type":-1}"#, "{}", r#"{"type":8}"#] {
            assert!(parse(message.as_bytes()).is_err(), "{message}");
        }
    }

    #[test]
    fn invocations_carry_their_arguments() {
        let said = parse(br#"{"target":"Add","arguments":[1,"b"],"invocationId":"0","type":1}"#);
        let ClientMessage::Invocation(call) = said.unwrap() else { panic!() };
        assert_eq!((call.id.as_deref(), call.target.as_str()), (Some("0"), "Add"));
        assert_eq!(call.arguments, Some(vec![Value::from(1), Value::from("b")]));
        let said = parse(br#"{"target":"Fire","arguments":{},"type":1}"#);
        let ClientMessage::Invocation(call) = said.unwrap() else { panic!() };
        assert_eq!((call.id, call.arguments), (None, None));
    }
}
