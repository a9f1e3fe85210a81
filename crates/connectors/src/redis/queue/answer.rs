//! Reading what a script answered. What does not look as it should is a failed attempt.

use bytes::Bytes;
use potok_core::Fault;
use redis::Value;

/// The parts of an answer, from the front.
pub(super) struct AnswerParts(std::vec::IntoIter<Value>);

impl AnswerParts {
    pub fn of(value: Value) -> Result<Self, Fault> {
        match value {
            Value::Array(values) => Ok(AnswerParts(values.into_iter())),
            _ => Err(odd()),
        }
    }

    pub fn value(&mut self) -> Result<Value, Fault> {
        self.0.next().ok_or_else(odd)
    }

    pub fn parts(&mut self) -> Result<AnswerParts, Fault> {
        AnswerParts::of(self.value()?)
    }

    pub fn bytes(&mut self) -> Result<Bytes, Fault> {
        bytes(self.value()?)
    }

    pub fn text(&mut self) -> Result<String, Fault> {
        String::from_utf8(self.bytes()?.into()).map_err(|_| odd())
    }

    pub fn number(&mut self) -> Result<u64, Fault> {
        self.number_or_none()?.ok_or_else(odd)
    }

    /// A number; none where the text is empty.
    pub fn number_or_none(&mut self) -> Result<Option<u64>, Fault> {
        match self.value()? {
            Value::Int(number) => u64::try_from(number).map(Some).map_err(|_| odd()),
            other => {
                let text = bytes(other)?;
                let text = std::str::from_utf8(&text).map_err(|_| odd())?;
                if text.is_empty() {
                    return Ok(None);
                }
                // Scores may come with an exponent.
                let exact = text.parse::<u64>().ok();
                let rounded = || text.parse::<f64>().ok().map(|number| number.max(0.0) as u64);
                exact.or_else(rounded).map(Some).ok_or_else(odd)
            }
        }
    }

    /// The rest, each as bytes.
    pub fn all_bytes(self) -> Result<Vec<Bytes>, Fault> {
        self.0.map(bytes).collect()
    }

    /// The rest, each whether it is a 1.
    pub fn all_flags(self) -> Vec<bool> {
        self.0.map(|value| value == Value::Int(1)).collect()
    }

    /// The rest, each as parts of its own.
    pub fn all_parts(self) -> Result<Vec<AnswerParts>, Fault> {
        self.0.map(AnswerParts::of).collect()
    }
}

pub(super) fn bytes(value: Value) -> Result<Bytes, Fault> {
    match value {
        Value::BulkString(bytes) => Ok(bytes.into()),
        Value::SimpleString(text) => Ok(text.into()),
        Value::Okay => Ok(Bytes::from_static(b"OK")),
        _ => Err(odd()),
    }
}

fn odd() -> Fault {
    Fault::retry("Redis gave an answer that its script does not give").code("P0911")
}
