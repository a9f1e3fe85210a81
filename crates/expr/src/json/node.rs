//! Reading the tape: places in a checked JSON text.

use std::borrow::Cow;
use std::fmt;

use super::{ESCAPED, TapeToken};
use crate::number;

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool,
    /// Any number.
    Number,
    /// Text in quotes.
    String,
    /// A list in brackets.
    Array,
    /// Members in braces.
    Object,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Null => "null",
            Kind::Bool => "a boolean",
            Kind::Number => "a number",
            Kind::String => "a string",
            Kind::Array => "an array",
            Kind::Object => "an object",
        })
    }
}

/// One value of a checked JSON text. Copying it copies no data.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    tape: &'a [TapeToken],
    text: &'a str,
    index: usize,
}

impl fmt::Debug for Node<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.source())
    }
}

impl<'a> Node<'a> {
    pub(super) fn new(tape: &'a [TapeToken], text: &'a str, index: usize) -> Self {
        Node { tape, text, index }
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        match first_byte(self.tape, self.text, self.index) {
            b'"' => Kind::String,
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b't' | b'f' => Kind::Bool,
            b'n' => Kind::Null,
            _ => Kind::Number,
        }
    }

    /// True for `null`.
    pub fn is_null(&self) -> bool {
        self.kind() == Kind::Null
    }

    /// The value under `key`; `None` where there is none or this is no object.
    pub fn get(&self, key: &str) -> Option<Node<'a>> {
        let (mut at, close) = self.inside(Kind::Object)?;
        while at < close {
            if is_key(self.tape, self.text, at, key) {
                return Some(Node { index: at + 1, ..*self });
            }
            at = behind(self.tape, self.text, at + 1);
        }
        None
    }

    /// The elements of an array; none where this is no array.
    pub fn items(&self) -> impl Iterator<Item = Node<'a>> + use<'a> {
        let node = *self;
        let (mut at, close) = self.inside(Kind::Array).unwrap_or_default();
        std::iter::from_fn(move || {
            let item = (at < close).then_some(Node { index: at, ..node })?;
            at = behind(node.tape, node.text, at);
            Some(item)
        })
    }

    /// Keys, unescaped, and values of an object in source order; none where this is no object.
    pub fn fields(&self) -> impl Iterator<Item = (Cow<'a, str>, Node<'a>)> + use<'a> {
        let node = *self;
        let (mut at, close) = self.inside(Kind::Object).unwrap_or_default();
        std::iter::from_fn(move || {
            let value = (at < close).then_some(Node { index: at + 1, ..node })?;
            let key = unquoted(node.tape, node.text, at);
            at = behind(node.tape, node.text, at + 1);
            Some((key, value))
        })
    }

    /// The content of a string, unescaped; borrowed where there was nothing to unescape.
    pub fn text(&self) -> Option<Cow<'a, str>> {
        (self.kind() == Kind::String).then(|| unquoted(self.tape, self.text, self.index))
    }

    /// The exact source bytes, quotes and brackets included.
    pub fn raw(&self) -> &'a [u8] {
        self.source().as_bytes()
    }

    /// A boolean's value.
    pub fn as_bool(&self) -> Option<bool> {
        match self.source() {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    /// A number's value where it is exactly an `i64`, however it is written: `1`, `1.0`, `1e2`.
    pub fn as_i64(&self) -> Option<i64> {
        (self.kind() == Kind::Number).then(|| number::exact_i64(self.source()))?
    }

    /// A number's value as the nearest `f64`; always finite.
    pub fn as_f64(&self) -> Option<f64> {
        (self.kind() == Kind::Number).then(|| self.source().parse().ok())?
    }

    /// The exact source text.
    pub fn source(&self) -> &'a str {
        let Some(token) = self.tape.get(self.index) else { return "" };
        let end = match self.kind() {
            Kind::Array | Kind::Object => {
                self.tape.get(token.link as usize).map_or(0, |close| close.start as usize + 1)
            }
            _ => (token.link & !ESCAPED) as usize,
        };
        self.text.get(token.start as usize..end).unwrap_or_default()
    }

    /// Index of the first token inside and of the closing one.
    fn inside(&self, kind: Kind) -> Option<(usize, usize)> {
        let token = self.tape.get(self.index).filter(|_| self.kind() == kind)?;
        Some((self.index + 1, token.link as usize))
    }
}

#[inline(always)]
fn first_byte(tape: &[TapeToken], text: &str, index: usize) -> u8 {
    let start = tape.get(index).map_or(usize::MAX, |token| token.start as usize);
    text.as_bytes().get(start).copied().unwrap_or(0)
}

/// Index of the token behind the value at `index`.
#[inline(always)]
pub(super) fn behind(tape: &[TapeToken], text: &str, index: usize) -> usize {
    match (first_byte(tape, text, index), tape.get(index)) {
        (b'{' | b'[', Some(token)) => token.link as usize + 1,
        _ => index + 1,
    }
}

/// Content of the string token at `index`, still escaped, and whether it has escapes.
#[inline(always)]
fn quoted<'a>(tape: &[TapeToken], text: &'a str, index: usize) -> (&'a str, bool) {
    let Some(token) = tape.get(index) else { return ("", false) };
    let inside = token.start as usize + 1..((token.link & !ESCAPED) as usize).saturating_sub(1);
    (text.get(inside).unwrap_or_default(), token.link & ESCAPED != 0)
}

fn is_key(tape: &[TapeToken], text: &str, index: usize, key: &str) -> bool {
    match quoted(tape, text, index) {
        (content, false) => content == key,
        (content, true) => unescape(content) == key,
    }
}

/// Content of the string token at `index`.
pub(super) fn unquoted<'a>(tape: &[TapeToken], text: &'a str, index: usize) -> Cow<'a, str> {
    match quoted(tape, text, index) {
        (content, false) => Cow::Borrowed(content),
        (content, true) => Cow::Owned(unescape(content)),
    }
}

/// Undoes the escapes of a string that the parser has checked.
fn unescape(content: &str) -> String {
    let mut out = String::with_capacity(content.len());
    let mut rest = content;
    while let Some((plain, escape)) = rest.split_once('\\') {
        out.push_str(plain);
        let mut chars = escape.chars();
        match chars.next() {
            Some('b') => out.push('\u{8}'),
            Some('f') => out.push('\u{c}'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('u') => {
                let (char, used) = unicode(escape);
                out.push(char);
                chars = escape.get(used..).unwrap_or_default().chars();
            }
            Some(itself) => out.push(itself),
            None => {}
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
    out
}

/// The character of `uXXXX` or `uXXXX\uXXXX`, and the bytes that took.
fn unicode(escape: &str) -> (char, usize) {
    let unit = |at: usize| {
        escape.get(at..at + 4).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0)
    };
    match unit(1) {
        high @ 0xD800..=0xDBFF => {
            let code = 0x10000 + ((high - 0xD800) << 10) + (unit(7).wrapping_sub(0xDC00) & 0x3FF);
            (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 11)
        }
        code => (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 5),
    }
}
