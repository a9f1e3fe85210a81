//! The protocol in MessagePack: arrays, each behind its length.
//!
//! Lengths inside a message are checked against what is left of it before anything is reserved.

use bytes::Bytes;
use rmp::Marker;
use rmp::encode;
use serde_json::{Map, Number, Value};

use super::{ClientCompletion, ClientMessage, Invocation, ProtocolError};

/// Deeper values are not read.
const DEPTH_MAX: usize = 64;
/// Bytes of the length in front of a message.
const LENGTH_BYTES_MAX: usize = 5;

/// The length in front of a message and what is behind it; `None` where bytes are missing.
pub fn length(bytes: &[u8]) -> Result<Option<(usize, &[u8])>, ProtocolError> {
    let mut length = 0usize;
    for (place, byte) in bytes.iter().enumerate().take(LENGTH_BYTES_MAX) {
        length |= usize::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Ok(Some((length, bytes.get(place + 1..).unwrap_or_default())));
        }
    }
    if bytes.len() < LENGTH_BYTES_MAX {
        Ok(None)
    } else {
        Err(ProtocolError("a length without end"))
    }
}

pub fn parse(message: &[u8]) -> Result<ClientMessage, ProtocolError> {
    let mut from = Reader { rest: message };
    let items = from.array()?;
    let kind = from.value(DEPTH_MAX)?.as_u64().ok_or(ProtocolError("a message without a type"))?;
    // Pings, closes and what belongs to stateful reconnects have no headers.
    if (1..=5).contains(&kind) {
        from.skip(DEPTH_MAX)?;
    }
    Ok(match kind {
        1 => {
            let id = from.text_or_nil()?.filter(|id| !id.is_empty()).map(str::to_owned);
            let target = from.text()?.to_owned();
            let arguments = from.arguments()?;
            let streams = if items > 5 { from.array()? > 0 } else { false };
            ClientMessage::Invocation(Invocation { id, target, arguments, streams })
        }
        3 => {
            let id = from.text()?.to_owned();
            let completed = match from.value(DEPTH_MAX)?.as_u64() {
                Some(1) => ClientCompletion::error(from.text()?),
                Some(2) => ClientCompletion::Void,
                Some(3) => from.skip(DEPTH_MAX).map(|()| ClientCompletion::Result)?,
                _ => return Err(ProtocolError("a completion of an unknown kind")),
            };
            ClientMessage::Completion { id, completed }
        }
        4 => {
            let (id, target) = (from.text()?.to_owned(), from.text()?.to_owned());
            ClientMessage::StreamInvocation { id, target }
        }
        6 => ClientMessage::Ping,
        7 => ClientMessage::Close,
        2 | 5 => ClientMessage::StreamPart,
        8 | 9 => {
            let number = from.value(DEPTH_MAX)?.as_u64();
            let number = number.ok_or(ProtocolError("a number is missing"))?;
            if kind == 8 { ClientMessage::Ack(number) } else { ClientMessage::Sequence(number) }
        }
        _ => ClientMessage::Unknown,
    })
}

struct Reader<'a> {
    rest: &'a [u8],
}

const CUT: ProtocolError = ProtocolError("a MessagePack value is cut off");

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], ProtocolError> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(CUT)?;
        self.rest = rest;
        Ok(taken)
    }

    /// A number of `bytes` bytes, the largest first.
    fn number(&mut self, bytes: usize) -> Result<u64, ProtocolError> {
        Ok(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn count(&mut self, bytes: usize) -> Result<usize, ProtocolError> {
        usize::try_from(self.number(bytes)?).map_err(|_| CUT)
    }

    fn marker(&mut self) -> Result<Marker, ProtocolError> {
        let byte = self.take(1)?.first().copied().ok_or(CUT)?;
        Ok(Marker::from_u8(byte))
    }

    fn array(&mut self) -> Result<usize, ProtocolError> {
        match self.marker()? {
            Marker::FixArray(count) => Ok(usize::from(count)),
            Marker::Array16 => self.count(2),
            Marker::Array32 => self.count(4),
            _ => Err(ProtocolError("not the array that belongs here")),
        }
    }

    fn text_or_nil(&mut self) -> Result<Option<&'a str>, ProtocolError> {
        let bytes = match self.marker()? {
            Marker::Null => return Ok(None),
            Marker::FixStr(count) => usize::from(count),
            Marker::Str8 => self.count(1)?,
            Marker::Str16 => self.count(2)?,
            Marker::Str32 => self.count(4)?,
            _ => return Err(ProtocolError("not the text that belongs here")),
        };
        let text = std::str::from_utf8(self.take(bytes)?);
        text.map(Some).map_err(|_| ProtocolError("text that is not UTF-8"))
    }

    fn text(&mut self) -> Result<&'a str, ProtocolError> {
        self.text_or_nil()?.ok_or(ProtocolError("nil where text belongs"))
    }

    /// `None` where they are well-formed, but not what JSON can say.
    fn arguments(&mut self) -> Result<Option<Vec<Value>>, ProtocolError> {
        let count = self.array()?;
        let mut arguments = Vec::with_capacity(count.min(self.rest.len()));
        let mut known = true;
        for _ in 0..count {
            let before = self.rest;
            match self.value(DEPTH_MAX) {
                Ok(value) => arguments.push(value),
                Err(_) => {
                    self.rest = before;
                    self.skip(DEPTH_MAX)?;
                    known = false;
                }
            }
        }
        Ok(known.then_some(arguments))
    }

    fn skip(&mut self, depth: usize) -> Result<(), ProtocolError> {
        let depth = depth.checked_sub(1).ok_or(ProtocolError("nested too deeply"))?;
        let bytes = match self.marker()? {
            Marker::FixArray(count) => return self.skip_all(usize::from(count), depth),
            Marker::Array16 => return self.count(2).and_then(|n| self.skip_all(n, depth)),
            Marker::Array32 => return self.count(4).and_then(|n| self.skip_all(n, depth)),
            Marker::FixMap(count) => return self.skip_all(2 * usize::from(count), depth),
            Marker::Map16 => return self.count(2).and_then(|n| self.skip_all(2 * n, depth)),
            Marker::Map32 => return self.count(4).and_then(|n| self.skip_all(2 * n, depth)),
            Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null => 0,
            Marker::True | Marker::False => 0,
            Marker::FixStr(count) => usize::from(count),
            Marker::Str8 | Marker::Bin8 => self.count(1)?,
            Marker::Str16 | Marker::Bin16 => self.count(2)?,
            Marker::Str32 | Marker::Bin32 => self.count(4)?,
            Marker::U8 | Marker::I8 => 1,
            Marker::U16 | Marker::I16 | Marker::FixExt1 => 2,
            Marker::FixExt2 => 3,
            Marker::U32 | Marker::I32 | Marker::F32 => 4,
            Marker::FixExt4 => 5,
            Marker::U64 | Marker::I64 | Marker::F64 => 8,
            Marker::FixExt8 => 9,
            Marker::FixExt16 => 17,
            Marker::Ext8 => self.count(1)? + 1,
            Marker::Ext16 => self.count(2)? + 1,
            Marker::Ext32 => self.count(4)?.saturating_add(1),
            Marker::Reserved => return Err(ProtocolError("a marker that does not exist")),
        };
        self.take(bytes).map(drop)
    }

    fn skip_all(&mut self, count: usize, depth: usize) -> Result<(), ProtocolError> {
        (0..count).try_for_each(|_| self.skip(depth))
    }

    fn value(&mut self, depth: usize) -> Result<Value, ProtocolError> {
        let inner = depth.checked_sub(1).ok_or(ProtocolError("nested too deeply"))?;
        let at = self.rest;
        Ok(match self.marker()? {
            Marker::FixPos(number) => number.into(),
            Marker::FixNeg(number) => number.into(),
            Marker::Null => Value::Null,
            Marker::True => true.into(),
            Marker::False => false.into(),
            Marker::U8 => self.number(1)?.into(),
            Marker::U16 => self.number(2)?.into(),
            Marker::U32 => self.number(4)?.into(),
            Marker::U64 => self.number(8)?.into(),
            Marker::I8 => (self.number(1)? as i8).into(),
            Marker::I16 => (self.number(2)? as i16).into(),
            Marker::I32 => (self.number(4)? as i32).into(),
            Marker::I64 => (self.number(8)? as i64).into(),
            Marker::F32 => float(f64::from(f32::from_bits(self.number(4)? as u32)))?,
            Marker::F64 => float(f64::from_bits(self.number(8)?))?,
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                self.rest = at;
                self.text()?.into()
            }
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
                self.rest = at;
                let count = self.array()?;
                let mut items = Vec::with_capacity(count.min(self.rest.len()));
                for _ in 0..count {
                    items.push(self.value(inner)?);
                }
                items.into()
            }
            Marker::FixMap(count) => self.map(usize::from(count), inner)?,
            Marker::Map16 => self.count(2).and_then(|count| self.map(count, inner))?,
            Marker::Map32 => self.count(4).and_then(|count| self.map(count, inner))?,
            _ => return Err(ProtocolError("a value that JSON does not know")),
        })
    }

    fn map(&mut self, count: usize, depth: usize) -> Result<Value, ProtocolError> {
        let mut map = Map::new();
        for _ in 0..count {
            let key = self.text()?.to_owned();
            map.insert(key, self.value(depth)?);
        }
        Ok(map.into())
    }
}

fn float(number: f64) -> Result<Value, ProtocolError> {
    Number::from_f64(number)
        .map(Value::Number)
        .ok_or(ProtocolError("a number that JSON does not know"))
}

/// `method(arguments…)` as an invocation with an id.
pub fn invocation(id: &str, method: &str, arguments: &Value) -> Bytes {
    message(|to| {
        array(to, 6);
        integer(to, 1);
        map(to, 0);
        text(to, id);
        text(to, method);
        write(to, arguments);
        array(to, 0);
    })
}

pub fn completion(id: &str, answer: &Result<Value, String>) -> Bytes {
    message(|to| {
        array(to, if matches!(answer, Ok(Value::Null)) { 4 } else { 5 });
        integer(to, 3);
        map(to, 0);
        text(to, id);
        match answer {
            Err(error) => {
                integer(to, 1);
                text(to, error);
            }
            Ok(Value::Null) => integer(to, 2),
            Ok(result) => {
                integer(to, 3);
                write(to, result);
            }
        }
    })
}

pub fn close(error: Option<&str>, allow_reconnect: bool) -> Bytes {
    message(|to| {
        array(to, 3);
        integer(to, 7);
        write(to, &error.map_or(Value::Null, Value::from));
        write(to, &Value::Bool(allow_reconnect));
    })
}

pub fn numbered(kind: u8, number: u64) -> Bytes {
    message(|to| {
        array(to, 2);
        integer(to, kind.into());
        write(to, &number.into());
    })
}

/// What `body` writes, behind its length.
fn message(body: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut written = Vec::new();
    body(&mut written);
    let mut whole = Vec::with_capacity(written.len() + LENGTH_BYTES_MAX);
    let mut length = written.len();
    while length > 0x7f {
        whole.push(length as u8 | 0x80);
        length >>= 7;
    }
    whole.push(length as u8);
    whole.extend(written);
    whole.into()
}

// Writing into memory does not fail.

fn array(to: &mut Vec<u8>, count: usize) {
    let _ = encode::write_array_len(to, count as u32);
}

fn map(to: &mut Vec<u8>, count: usize) {
    let _ = encode::write_map_len(to, count as u32);
}

fn text(to: &mut Vec<u8>, text: &str) {
    let _ = encode::write_str(to, text);
}

fn integer(to: &mut Vec<u8>, number: i64) {
    let _ = encode::write_sint(to, number);
}

fn write(to: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => drop(encode::write_nil(to)),
        Value::Bool(is) => drop(encode::write_bool(to, *is)),
        Value::Number(number) => {
            // As `JSON.parse` would read them.
            if let Some(number) = number.as_i64() {
                integer(to, number);
            } else if let Some(number) = number.as_u64() {
                let _ = encode::write_uint(to, number);
            } else {
                let _ = encode::write_f64(to, number.as_f64().unwrap_or_default());
            }
        }
        Value::String(string) => text(to, string),
        Value::Array(items) => {
            array(to, items.len());
            items.iter().for_each(|item| write(to, item));
        }
        Value::Object(fields) => {
            map(to, fields.len());
            for (name, value) in fields {
                text(to, name);
                write(to, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_survive_the_way_there_and_back() {
        let value = json!([null, true, -1, 300, 5_000_000_000u64, -70_000, 1.5, "ü", {"a": [{}]}]);
        let mut bytes = Vec::new();
        write(&mut bytes, &value);
        let mut from = Reader { rest: &bytes };
        assert_eq!(from.value(DEPTH_MAX).unwrap(), value);
        assert!(from.rest.is_empty());
        let mut from = Reader { rest: &bytes };
        from.skip(DEPTH_MAX).unwrap();
        assert!(from.rest.is_empty());
    }

    #[test]
    fn invocations_of_five_and_six_items_are_read() {
        // [1, {}, nil, "A", [1]] and [1, {}, "7", "A", [1], []]
        let five = [0x95, 1, 0x80, 0xc0, 0xa1, b'A', 0x91, 1];
        let six = [0x96, 1, 0x80, 0xa1, b'7', 0xa1, b'A', 0x91, 1, 0x90];
        for (bytes, id) in [(&five[..], None), (&six[..], Some("7".to_owned()))] {
            let expected = Invocation {
                id,
                target: "A".to_owned(),
                arguments: Some(vec![json!(1)]),
                streams: false,
            };
            assert_eq!(parse(bytes).unwrap(), ClientMessage::Invocation(expected));
        }
    }

    #[test]
    fn arguments_that_json_does_not_know_are_no_arguments() {
        // [1, {}, nil, "A", [{1: 2}, ext]]
        let bytes = [0x95, 1, 0x80, 0xc0, 0xa1, b'A', 0x92, 0x81, 1, 2, 0xd4, 1, 1];
        let ClientMessage::Invocation(call) = parse(&bytes).unwrap() else { panic!() };
        assert_eq!(call.arguments, None);
    }

    #[test]
    fn promised_lengths_reserve_nothing() {
        // An array of four billion items, in nine bytes.
        let bytes = [0x95, 1, 0x80, 0xc0, 0xa1, b'A', 0xdd, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(parse(&bytes), Err(CUT));
        let mut deep = vec![0x95, 1, 0x80, 0xc0, 0xa1, b'A', 0x91];
        deep.extend([0x91; 10_000]);
        assert!(parse(&deep).is_err());
    }
}
