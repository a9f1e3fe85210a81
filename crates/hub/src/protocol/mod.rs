//! The hub protocol of SignalR: what clients say, and what they are told, in JSON and MessagePack.
//!
//! Works on whole messages in memory; [`Inbound`](inbound::Inbound) cuts them out of byte streams.
//! Any bytes are survived. Not offered: streams.

pub mod handshake;
pub mod inbound;
pub mod json;
pub mod msgpack;

use axum::extract::ws::Utf8Bytes;
use bytes::Bytes;
use serde_json::Value;

/// Ends every message in JSON, and the handshake in both protocols.
pub const RECORD_SEPARATOR: char = '\u{1e}';
const SEPARATOR_BYTE: u8 = 0x1e;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Json,
    MessagePack,
}

impl Protocol {
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Json => "json",
            Protocol::MessagePack => "messagepack",
        }
    }
}

/// Bytes that are no message of the protocol, and why. The connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolError(pub &'static str);

/// What a client said.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientMessage {
    Invocation(Invocation),
    /// A call of a streaming method, of which the hub has none.
    StreamInvocation {
        id: String,
        target: String,
    },
    Completion {
        id: String,
        completed: ClientCompletion,
    },
    Ping,
    Close,
    /// Of no meaning for a hub without streams.
    StreamPart,
    /// The hub's messages up to that number have arrived.
    Ack(u64),
    /// The number of the client's next message.
    Sequence(u64),
    /// Of a type that a version to come may have.
    Unknown,
}

impl ClientMessage {
    /// Whether it has a number, where a connection may be resumed.
    pub fn is_numbered(&self) -> bool {
        match self {
            ClientMessage::Invocation(_)
            | ClientMessage::StreamInvocation { .. }
            | ClientMessage::Completion { .. }
            | ClientMessage::StreamPart => true,
            ClientMessage::Ping
            | ClientMessage::Close
            | ClientMessage::Ack(_)
            | ClientMessage::Sequence(_)
            | ClientMessage::Unknown => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Invocation {
    /// Without one, no answer is wanted.
    pub id: Option<String>,
    pub target: String,
    /// `None` where they are not what JSON can say.
    pub arguments: Option<Vec<Value>>,
    /// Whether some arguments are streams.
    pub streams: bool,
}

/// How a client completed a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCompletion {
    Result,
    Void,
    /// The stock client's words where handlers return nothing.
    NoResult,
    /// The same where more than one returns a value.
    MultipleResults,
    Threw,
}

/// What the stock clients say where no handler returned a value, or there is none.
const NO_RESULT: &str = "Client didn't provide a result.";
const MULTIPLE_RESULTS: &str = "Client provided multiple results.";

impl ClientCompletion {
    fn error(text: &str) -> Self {
        match text {
            NO_RESULT => ClientCompletion::NoResult,
            MULTIPLE_RESULTS => ClientCompletion::MultipleResults,
            _ => ClientCompletion::Threw,
        }
    }
}

/// A message for a client, ready to be written.
#[derive(Clone, Debug, PartialEq)]
pub enum Encoded {
    Text(Utf8Bytes),
    Binary(Bytes),
}

impl Encoded {
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Encoded::Text(text) => text.as_str().as_bytes(),
            Encoded::Binary(bytes) => bytes,
        }
    }
}

/// How messages are told apart in a stream of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Separated,
    Counted,
}

/// A message, and what is behind it.
pub type Cut<'a> = (&'a [u8], &'a [u8]);

/// The first whole message; `None` where more bytes are needed.
#[cfg(test)]
pub fn split(
    framing: Framing,
    bytes: &[u8],
    limit: usize,
) -> Result<Option<Cut<'_>>, ProtocolError> {
    split_behind(0, framing, bytes, limit)
}

/// The first whole message, where the first `seen` bytes are known to have no end of one among them;
/// `None` where more bytes are needed.
fn split_behind(
    seen: usize,
    framing: Framing,
    bytes: &[u8],
    limit: usize,
) -> Result<Option<Cut<'_>>, ProtocolError> {
    let too_large = ProtocolError("the message is too large");
    match framing {
        Framing::Separated => {
            let unseen = bytes.get(seen..).unwrap_or_default();
            let Some(end) = unseen.iter().position(|b| *b == SEPARATOR_BYTE) else {
                return if bytes.len() > limit { Err(too_large) } else { Ok(None) };
            };
            let end = bytes.len() - unseen.len() + end;
            let (message, rest) = bytes.split_at(end);
            let rest = rest.get(1..).unwrap_or_default();
            if message.len() > limit { Err(too_large) } else { Ok(Some((message, rest))) }
        }
        Framing::Counted => {
            let Some((length, rest)) = msgpack::length(bytes)? else { return Ok(None) };
            if length > limit {
                return Err(too_large);
            }
            Ok(rest.split_at_checked(length))
        }
    }
}

/// What is written in one of the protocols.
impl Protocol {
    pub fn framing(self) -> Framing {
        match self {
            Protocol::Json => Framing::Separated,
            Protocol::MessagePack => Framing::Counted,
        }
    }

    pub fn parse(self, message: &[u8]) -> Result<ClientMessage, ProtocolError> {
        match self {
            Protocol::Json => json::parse(message),
            Protocol::MessagePack => msgpack::parse(message),
        }
    }

    pub fn ping(self) -> Encoded {
        match self {
            Protocol::Json => Encoded::Text(Utf8Bytes::from_static("{\"type\":6}\u{1e}")),
            Protocol::MessagePack => Encoded::Binary(Bytes::from_static(&[2, 0x91, 6])),
        }
    }

    pub fn close(self, error: Option<&str>, allow_reconnect: bool) -> Encoded {
        match self {
            Protocol::Json => Encoded::Text(json::close(error, allow_reconnect).into()),
            Protocol::MessagePack => Encoded::Binary(msgpack::close(error, allow_reconnect)),
        }
    }

    /// The client's messages up to that number have arrived.
    pub fn ack(self, number: u64) -> Encoded {
        self.numbered(8, number)
    }

    /// The number of the message that comes next.
    pub fn sequence(self, number: u64) -> Encoded {
        self.numbered(9, number)
    }

    fn numbered(self, kind: u8, number: u64) -> Encoded {
        match self {
            Protocol::Json => Encoded::Text(json::numbered(kind, number).into()),
            Protocol::MessagePack => Encoded::Binary(msgpack::numbered(kind, number)),
        }
    }

    pub fn completion(self, id: &str, answer: &Result<Value, String>) -> Encoded {
        match self {
            Protocol::Json => Encoded::Text(json::completion(id, answer).into()),
            Protocol::MessagePack => Encoded::Binary(msgpack::completion(id, answer)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_at_their_ends() {
        let stream = b"{}\x1e{\"type\":6}\x1e{\"ty";
        let (first, rest) = split(Framing::Separated, stream, 100).unwrap().unwrap();
        assert_eq!(first, b"{}");
        let (second, rest) = split(Framing::Separated, rest, 100).unwrap().unwrap();
        assert_eq!(second, b"{\"type\":6}");
        assert_eq!(split(Framing::Separated, rest, 100).unwrap(), None);
        assert!(split(Framing::Separated, &[b'x'; 101], 100).is_err());

        let stream = [2, 0x91, 6, 2, 0x91];
        let (ping, rest) = split(Framing::Counted, &stream, 100).unwrap().unwrap();
        assert_eq!(ping, [0x91, 6]);
        assert_eq!(split(Framing::Counted, rest, 100).unwrap(), None);
        // Refused by its length, before its bytes are there.
        assert!(split(Framing::Counted, &[0xff, 0xff, 0xff, 0xff, 7], 100).is_err());
        assert!(split(Framing::Counted, &[0xff; 9], 100).is_err());
    }

    #[test]
    fn both_protocols_say_the_same() {
        for protocol in [Protocol::Json, Protocol::MessagePack] {
            let whole = |encoded: Encoded| {
                let bytes = encoded.as_bytes().to_vec();
                let (message, rest) = split(protocol.framing(), &bytes, 1 << 20).unwrap().unwrap();
                assert!(rest.is_empty());
                protocol.parse(message).unwrap()
            };
            assert_eq!(whole(protocol.ping()), ClientMessage::Ping);
            for number in [0, 1, 200, u64::MAX] {
                assert_eq!(whole(protocol.ack(number)), ClientMessage::Ack(number));
                assert_eq!(whole(protocol.sequence(number)), ClientMessage::Sequence(number));
            }
            assert_eq!(whole(protocol.close(None, true)), ClientMessage::Close);
            assert_eq!(whole(protocol.close(Some("why"), false)), ClientMessage::Close);
            for (answer, completed) in [
                (Ok(Value::from(7)), ClientCompletion::Result),
                (Ok(Value::Null), ClientCompletion::Void),
                (Err(NO_RESULT.to_owned()), ClientCompletion::NoResult),
                (Err(MULTIPLE_RESULTS.to_owned()), ClientCompletion::MultipleResults),
                (Err("Error: no".to_owned()), ClientCompletion::Threw),
            ] {
                let said = whole(protocol.completion("p1", &answer));
                assert_eq!(said, ClientMessage::Completion { id: "p1".to_owned(), completed });
            }
        }
    }

    /// Any bytes are read or refused; what is read again the same way says the same.
    #[test]
    fn any_bytes_are_survived() {
        let made = [
            Protocol::Json.ping(),
            Protocol::MessagePack.ping(),
            Protocol::Json.completion("p1", &Err(NO_RESULT.to_owned())),
            Protocol::MessagePack.completion("p1", &Ok(serde_json::json!({"a": [1, "b", null]}))),
            Protocol::Json.close(Some("x"), true),
            Protocol::MessagePack.close(Some("x"), true),
            Protocol::Json.ack(7),
            Protocol::MessagePack.sequence(300),
            Encoded::Binary(msgpack::invocation("1", "m", &serde_json::json!([{"a": 1.5}]))),
        ];
        let made = made.map(|encoded| encoded.as_bytes().to_vec());
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/messages");
        potok_fuzz::Corpus::read(folder).with(made).fuzz(40_000, |input| {
            let _ = handshake::parse(input, true);
            for protocol in [Protocol::Json, Protocol::MessagePack] {
                let mut rest = input;
                while let Ok(Some((message, behind))) = split(protocol.framing(), rest, 32 << 10) {
                    assert!(behind.len() < rest.len());
                    rest = behind;
                    let Ok(said) = protocol.parse(message) else { continue };
                    assert_eq!(protocol.parse(message), Ok(said.clone()));
                    let ClientMessage::Completion { id, completed } = said else { continue };
                    assert!(
                        matches!(completed, ClientCompletion::Threw)
                            || !id.is_empty()
                            || protocol == Protocol::MessagePack
                    );
                }
            }
        });
    }

    /// Whatever the payload, a frame is one message, and its payload the same in both protocols.
    #[test]
    fn any_payload_makes_one_message_or_none() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/payloads");
        potok_fuzz::Corpus::read(folder).fuzz(20_000, |payload| {
            let Ok(frame) = crate::Frame::new("notify", "id", payload, 64 << 10) else { return };
            let json = frame.json().as_str().as_bytes();
            let (message, rest) = split(Framing::Separated, json, 1 << 20).unwrap().unwrap();
            assert!(rest.is_empty());
            let ClientMessage::Invocation(in_json) = json::parse(message).unwrap() else {
                panic!()
            };
            let (message, rest) =
                split(Framing::Counted, frame.msgpack(), 1 << 20).unwrap().unwrap();
            assert!(rest.is_empty());
            let ClientMessage::Invocation(in_msgpack) = msgpack::parse(message).unwrap() else {
                panic!()
            };
            assert_eq!((in_json.id, in_json.target), (in_msgpack.id, in_msgpack.target));
            let (json, msgpack) = (in_json.arguments.unwrap(), in_msgpack.arguments.unwrap());
            assert_eq!(json.len(), msgpack.len());
        });
    }
}
