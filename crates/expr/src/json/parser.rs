//! One pass over the bytes that checks everything and writes the tape.
//!
//! No recursion and no allocation per value: open brackets lie on a stack that, like the tape,
//! is kept from call to call.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};

use super::node::{self, Node};
use super::{BYTES_MAX, DEPTH_MAX, ESCAPED, JsonError, TapeToken};

/// Objects up to this many fields are compared key by key, larger ones by sorted hashes.
const FIELDS_WALK_MAX: u32 = 16;
/// Tokens kept between calls; one giant record must not hold its memory for ever.
const TOKENS_KEPT_MAX: usize = 1 << 17;
/// A number without exponent and no longer than this is below 1e300, hence finite.
const NUMBER_FINITE_MAX: usize = 300;

/// Checks JSON and makes it readable. Keep one per thread of work: its buffers are reused.
#[derive(Default)]
pub struct Parser {
    tape: Vec<TapeToken>,
    frames: Vec<Frame>,
    hashes: Vec<(u64, u32)>,
    hasher: RandomState,
}

impl std::fmt::Debug for Parser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parser").field("tokens", &self.tape.len()).finish()
    }
}

/// An open bracket.
#[derive(Clone, Copy, Debug)]
struct Frame {
    open: u32,
    object: bool,
    /// Number of keys so far.
    fields: u32,
    /// One bit per key seen. A clear bit proves that a key is new; all set once a key had escapes.
    seen: u64,
}

impl Parser {
    /// A parser with empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks all of `bytes` and returns its value. The node borrows the parser, so one record is
    /// read at a time.
    ///
    /// Never panics, whatever the bytes, and takes time linear in their number (times the
    /// logarithm of the number of keys for very large objects).
    pub fn parse<'a>(&'a mut self, bytes: &'a [u8]) -> Result<Node<'a>, JsonError> {
        self.tape.clear();
        self.frames.clear();
        if self.tape.capacity() > TOKENS_KEPT_MAX {
            self.tape.shrink_to(TOKENS_KEPT_MAX);
            self.hashes = Vec::new();
        }
        if bytes.len() >= BYTES_MAX {
            return Err(error(BYTES_MAX, "the input is longer than 2 GiB"));
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|e| error(e.valid_up_to(), "the input is not UTF-8"))?;
        let mut pass = Pass {
            text,
            bytes,
            at: 0,
            tape: &mut self.tape,
            frames: &mut self.frames,
            hashes: &mut self.hashes,
            hasher: &self.hasher,
        };
        pass.run()?;
        Ok(Node::new(&self.tape, text, 0))
    }
}

struct Pass<'p> {
    text: &'p str,
    bytes: &'p [u8],
    at: usize,
    tape: &'p mut Vec<TapeToken>,
    frames: &'p mut Vec<Frame>,
    hashes: &'p mut Vec<(u64, u32)>,
    hasher: &'p RandomState,
}

impl Pass<'_> {
    fn run(&mut self) -> Result<(), JsonError> {
        self.skip_space();
        loop {
            // One value, or the opening of one.
            match self.peek() {
                b'"' => self.string()?,
                b'-' | b'0'..=b'9' => self.number()?,
                b'{' => {
                    self.open(true)?;
                    if self.peek() != b'}' {
                        self.key()?;
                        continue;
                    }
                    self.close()?;
                }
                b'[' => {
                    self.open(false)?;
                    if self.peek() != b']' {
                        continue;
                    }
                    self.close()?;
                }
                b't' => self.literal("true")?,
                b'f' => self.literal("false")?,
                b'n' => self.literal("null")?,
                _ => return Err(self.unexpected("a value")),
            }
            // Behind a value: a comma goes on, a bracket closes what may itself be the last value
            // of its parent.
            loop {
                self.skip_space();
                let Some(frame) = self.frames.last() else {
                    return self.end();
                };
                match (frame.object, self.peek()) {
                    (true, b',') => {
                        self.at += 1;
                        self.skip_space();
                        self.key()?;
                        break;
                    }
                    (false, b',') => {
                        self.at += 1;
                        self.skip_space();
                        break;
                    }
                    (true, b'}') | (false, b']') => self.close()?,
                    (true, _) => return Err(self.unexpected("`,` or `}`")),
                    (false, _) => return Err(self.unexpected("`,` or `]`")),
                }
            }
        }
    }

    /// The byte at hand; 0 behind the end, which is no more welcome than a NUL in the input.
    #[inline(always)]
    fn peek(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    #[inline(always)]
    fn skip_space(&mut self) {
        while matches!(self.peek(), b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
    }

    fn open(&mut self, object: bool) -> Result<(), JsonError> {
        if self.frames.len() == DEPTH_MAX {
            return Err(error(self.at, format!("nested deeper than {DEPTH_MAX}")));
        }
        self.frames.push(Frame { open: self.tape.len() as u32, object, fields: 0, seen: 0 });
        self.tape.push(TapeToken { start: self.at as u32, link: 0 });
        self.at += 1;
        self.skip_space();
        Ok(())
    }

    fn close(&mut self) -> Result<(), JsonError> {
        let Some(frame) = self.frames.pop() else { return Ok(()) };
        let close = self.tape.len() as u32;
        if let Some(open) = self.tape.get_mut(frame.open as usize) {
            open.link = close;
        }
        self.tape.push(TapeToken { start: self.at as u32, link: frame.open });
        self.at += 1;
        if frame.fields > FIELDS_WALK_MAX {
            self.refuse_repeats_among_many(frame.open)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn key(&mut self) -> Result<(), JsonError> {
        if self.peek() != b'"' {
            return Err(self.unexpected("a key in quotes"));
        }
        self.string()?;
        self.refuse_repeat()?;
        self.skip_space();
        if self.peek() != b':' {
            return Err(self.unexpected("`:`"));
        }
        self.at += 1;
        self.skip_space();
        Ok(())
    }

    /// Scans a string from its opening to behind its closing quote.
    #[inline(always)]
    fn string(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        let mut escaped = 0;
        let mut at = start + 1;
        loop {
            at = plain_end(self.bytes, at);
            match self.bytes.get(at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = ESCAPED;
                    at = self.escape(at)?;
                }
                Some(_) => return Err(error(at, "a control character inside a string")),
                None => return Err(error(at, "the input ends inside a string")),
            }
        }
        self.at = at + 1;
        self.tape.push(TapeToken { start: start as u32, link: self.at as u32 | escaped });
        Ok(())
    }

    /// Checks the escape at `at` and returns where the string goes on.
    fn escape(&self, at: usize) -> Result<usize, JsonError> {
        match self.bytes.get(at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
            Some(b'u') => {
                let unit = self.hex(at)?;
                match unit {
                    0xD800..=0xDBFF => {
                        let low = at + 6;
                        let paired = self.bytes.get(low..low + 2) == Some(b"\\u")
                            && matches!(self.hex(low)?, 0xDC00..=0xDFFF);
                        if paired { Ok(at + 12) } else { Err(error(at, "a lone surrogate")) }
                    }
                    0xDC00..=0xDFFF => Err(error(at, "a lone surrogate")),
                    _ => Ok(at + 6),
                }
            }
            Some(_) => Err(error(at, "an unknown escape inside a string")),
            None => Err(error(at + 1, "the input ends inside a string")),
        }
    }

    /// The four hex digits of the `\u` escape at `at`.
    fn hex(&self, at: usize) -> Result<u32, JsonError> {
        let digits = self.text.get(at + 2..at + 6).filter(|d| {
            // `from_str_radix` would take a sign.
            d.bytes().all(|b| b.is_ascii_hexdigit())
        });
        digits
            .and_then(|d| u32::from_str_radix(d, 16).ok())
            .ok_or_else(|| error(at, "`\\u` needs four hex digits"))
    }

    #[inline(always)]
    fn number(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        if self.peek() == b'-' {
            self.at += 1;
        }
        // No leading zeros: behind a zero the number ends, or its fraction begins.
        if self.peek() == b'0' {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == b'.' {
            self.at += 1;
            self.digits()?;
        }
        let exponent = matches!(self.peek(), b'e' | b'E');
        if exponent {
            self.at += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        if exponent || self.at - start > NUMBER_FINITE_MAX {
            self.refuse_infinite(start)?;
        }
        self.tape.push(TapeToken { start: start as u32, link: self.at as u32 });
        Ok(())
    }

    #[inline(always)]
    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        if self.at == start { Err(self.unexpected("a digit")) } else { Ok(()) }
    }

    #[cold]
    fn refuse_infinite(&self, start: usize) -> Result<(), JsonError> {
        let number = self.text.get(start..self.at).and_then(|t| t.parse::<f64>().ok());
        match number {
            Some(number) if number.is_finite() => Ok(()),
            _ => Err(error(start, "a number too large for a 64-bit float")),
        }
    }

    fn literal(&mut self, word: &str) -> Result<(), JsonError> {
        let start = self.at;
        if self.bytes.get(start..start + word.len()) != Some(word.as_bytes()) {
            return Err(self.unexpected("a value"));
        }
        self.at += word.len();
        self.tape.push(TapeToken { start: start as u32, link: self.at as u32 });
        Ok(())
    }

    fn end(&self) -> Result<(), JsonError> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(self.unexpected("the end")) }
    }

    /// Refuses the key just written where its object has it already. A large object is left to
    /// [`Pass::refuse_repeats_among_many`].
    #[inline(always)]
    fn refuse_repeat(&mut self) -> Result<(), JsonError> {
        let index = self.tape.len() - 1;
        let (Some(token), Some(frame)) = (self.tape.get(index), self.frames.last_mut()) else {
            return Ok(());
        };
        let mark = key_mark(self.bytes, token);
        let maybe = frame.seen & mark != 0;
        // An escaped key may equal a plain one with another mark: from then on all are compared.
        frame.seen |= mark;
        frame.fields += 1;
        if maybe && frame.fields <= FIELDS_WALK_MAX {
            let open = frame.open as usize;
            return self.refuse_repeat_walking(open, index);
        }
        Ok(())
    }

    fn refuse_repeat_walking(&self, open: usize, index: usize) -> Result<(), JsonError> {
        let key = node::unquoted(self.tape, self.text, index);
        let mut earlier = open + 1;
        while earlier < index {
            if node::unquoted(self.tape, self.text, earlier) == key {
                return Err(self.repeated(index, &key));
            }
            earlier = node::behind(self.tape, self.text, earlier + 1);
        }
        Ok(())
    }

    /// The same for an object of any size, once it is closed. The hashes are keyed at random, so
    /// no input can make them collide on purpose.
    #[cold]
    fn refuse_repeats_among_many(&mut self, open: u32) -> Result<(), JsonError> {
        let close = self.tape.len() - 1;
        self.hashes.clear();
        let mut at = open as usize + 1;
        while at < close {
            let key = node::unquoted(self.tape, self.text, at);
            self.hashes.push((self.hasher.hash_one(key.as_bytes()), at as u32));
            at = node::behind(self.tape, self.text, at + 1);
        }
        self.hashes.sort_unstable();
        for pair in self.hashes.windows(2) {
            let [(hash, first), (other, second)] = *pair else { continue };
            if hash == other {
                let key = node::unquoted(self.tape, self.text, second as usize);
                if node::unquoted(self.tape, self.text, first as usize) == key {
                    return Err(self.repeated(second as usize, &key));
                }
            }
        }
        Ok(())
    }

    #[cold]
    fn repeated(&self, index: usize, key: &str) -> JsonError {
        let at = self.tape.get(index).map_or(self.at, |token| token.start as usize);
        error(at, format!("the key {:?} appears twice in one object", shortened(key)))
    }

    #[cold]
    fn unexpected(&self, wanted: &str) -> JsonError {
        match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            None if self.bytes.is_empty() => error(0, "the input is empty"),
            None => error(self.at, format!("expected {wanted}, found the end of the input")),
            Some(found) => error(self.at, format!("expected {wanted}, found {found:?}")),
        }
    }
}

#[cold]
fn error(at: usize, message: impl Into<String>) -> JsonError {
    JsonError { at, message: message.into() }
}

/// Enough of a text for a message.
fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(40) {
        Some((cut, _)) => Cow::Owned(format!("{}…", text.get(..cut).unwrap_or_default())),
        None => Cow::Borrowed(text),
    }
}

/// A bit that equal keys share, drawn from what is at hand without reading the whole key.
#[inline(always)]
fn key_mark(bytes: &[u8], token: &TapeToken) -> u64 {
    if token.link & ESCAPED != 0 {
        return u64::MAX;
    }
    let (start, end) = (token.start as usize, token.link as usize);
    // Both lie inside the quotes; for an empty key they are the quotes themselves.
    let first = bytes.get(start + 1).copied().unwrap_or(0);
    let last = bytes.get(end.wrapping_sub(2)).copied().unwrap_or(0);
    let middle = bytes.get((start + end) / 2).copied().unwrap_or(0);
    let sum = u64::from(first) * 7 + u64::from(last) * 31 + u64::from(middle) * 13;
    1 << ((sum + (end - start) as u64 * 5) & 63)
}

/// The first byte from `at` on that does not simply belong to a string: a quote, a backslash, a
/// control character, or the end. Eight bytes at a time: a byte `b` shows up in the high bits of
/// `(x - b…b) & !x` when it is there, and the lowest such bit is never a false one.
#[inline(always)]
fn plain_end(bytes: &[u8], mut at: usize) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    while let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let x = u64::from_le_bytes(*chunk);
        let quote = x ^ (ONES * b'"' as u64);
        let slash = x ^ (ONES * b'\\' as u64);
        let special = (quote.wrapping_sub(ONES) & !quote)
            | (slash.wrapping_sub(ONES) & !slash)
            | (x.wrapping_sub(ONES * 0x20) & !x);
        let special = special & HIGH;
        if special != 0 {
            return at + (special.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while bytes.get(at).is_some_and(|&b| b >= 0x20 && b != b'"' && b != b'\\') {
        at += 1;
    }
    at
}
