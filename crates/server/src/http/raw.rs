//! Arrays and objects of a JSON text, looked at one value after the other.
//!
//! Nothing that is passed is kept, so that a text with millions of values costs no more memory than it has
//! bytes.

use std::borrow::Cow;
use std::fmt;
use std::ops::ControlFlow;

use serde::Deserializer as _;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Shows each element of an array with exactly its bytes, until `visit` has seen enough.
pub(super) fn each_element<'a>(
    array: &'a str,
    visit: impl FnMut(&'a str) -> ControlFlow<()>,
) -> serde_json::Result<()> {
    let mut has_enough = false;
    let mut text = serde_json::Deserializer::from_str(array);
    let read = text.deserialize_seq(Elements { visit, has_enough: &mut has_enough });
    if has_enough {
        return Ok(());
    }
    read?;
    text.end()
}

struct Elements<'s, F> {
    visit: F,
    has_enough: &'s mut bool,
}

impl<'de, F: FnMut(&'de str) -> ControlFlow<()>> Visitor<'de> for Elements<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut array: A) -> Result<(), A::Error> {
        while let Some(element) = array.next_element::<&'de RawValue>()? {
            if (self.visit)(element.get()).is_break() {
                *self.has_enough = true;
                // The only way out of the middle of an array.
                return Err(A::Error::custom("that is enough"));
            }
        }
        Ok(())
    }
}

/// The value of a field that an object has, and has once.
pub(super) fn field<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    let mut text = serde_json::Deserializer::from_str(object);
    let found = text.deserialize_map(Field(name)).ok()?;
    text.end().ok()?;
    found
}

struct Field<'n>(&'n str);

impl<'de> Visitor<'de> for Field<'_> {
    type Value = Option<&'de str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let (mut found, mut is_there_twice) = (None, false);
        while let Some((name, value)) = object.next_entry::<Cow<'de, str>, &'de RawValue>()? {
            if name == self.0 {
                is_there_twice |= found.is_some();
                found = Some(value.get());
            }
        }
        Ok(found.filter(|_| !is_there_twice))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn elements_are_shown_as_they_are_until_there_are_enough() {
        let mut seen = Vec::new();
        let all = each_element(" [ 1e2 ,{\"a\" : [ ]},\"\\u00e4\" ] ", |element| {
            seen.push(element);
            ControlFlow::Continue(())
        });
        assert!(all.is_ok());
        assert_eq!(seen, ["1e2", "{\"a\" : [ ]}", "\"\\u00e4\""]);
        let mut count = 0;
        // What stands behind is not looked at.
        let some = each_element("[1,2,3", |_| {
            count += 1;
            if count < 2 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        assert!(some.is_ok());
        assert_eq!(count, 2);
        for wrong in ["", "{}", "[1", "[1] 2", "7"] {
            assert!(each_element(wrong, |_| ControlFlow::Continue(())).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_field_is_there_once_or_not_at_all() {
        let object = r#"{ "a" : [1, 2] , "\u0062" : {"a":3}, "c":1, "c":2 }"#;
        assert_eq!(field(object, "a"), Some("[1, 2]"));
        assert_eq!(field(object, "b"), Some(r#"{"a":3}"#));
        for (object, name) in [(object, "c"), (object, "d"), ("[]", "a"), ("{\"a\":1", "a")] {
            assert_eq!(field(object, name), None, "{object} {name}");
        }
    }
}
