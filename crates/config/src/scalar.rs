//! A piece of text in the file: its type by YAML's rules, and the way from a byte of the text
//! back to the byte in the file, through quotes, escapes, block indentation and `${…}`.

use std::borrow::Cow;
use std::ops::Range;

use crate::env::{Env, Replacement, UnsetVariable, substitute};

/// How a scalar is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Single,
    Double,
    /// `|` or `>`.
    Block,
}

/// A scalar, with `${…}` replaced once [`Scalar::substitute`] has run.
#[derive(Clone)]
pub(crate) struct Scalar {
    pub text: String,
    pub style: Style,
    /// Some `${…}` could not be replaced: the text means nothing, the problem is known.
    pub unresolved: bool,
    replaced: Vec<Replacement>,
    /// The text before anything was replaced, where something was.
    written: Option<String>,
}

/// Text may be secret, so it is not printed.
impl std::fmt::Debug for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scalar({} bytes)", self.text.len())
    }
}

/// What a scalar is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ScalarValue {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text,
}

impl Scalar {
    pub fn new(text: Cow<'_, str>, style: Style) -> Self {
        Scalar {
            text: text.into_owned(),
            style,
            unresolved: false,
            replaced: Vec::new(),
            written: None,
        }
    }

    /// Puts the environment into the text, and takes what that needs from `room`.
    pub fn substitute(&mut self, env: &Env, room: &mut usize) -> Result<(), Vec<UnsetVariable>> {
        match substitute(&self.text, env, room) {
            Ok((text, replaced)) => {
                if !replaced.is_empty() {
                    self.written = Some(std::mem::replace(&mut self.text, text));
                    self.replaced = replaced;
                }
                Ok(())
            }
            Err(unset) => {
                self.unresolved = true;
                Err(unset)
            }
        }
    }

    /// True when the whole text came from the environment: then it is a number where a number is
    /// wanted and text where text is wanted.
    pub fn is_substituted(&self) -> bool {
        self.style == Style::Plain
            && matches!(self.replaced.as_slice(), [only] if only.now == (0..self.text.len()))
    }

    /// The type by the core schema of YAML 1.2. Quoted text is text.
    pub fn typed(&self) -> ScalarValue {
        if self.style != Style::Plain {
            return ScalarValue::Text;
        }
        match self.text.as_str() {
            "" | "~" | "null" | "Null" | "NULL" => ScalarValue::Null,
            "true" | "True" | "TRUE" => ScalarValue::Bool(true),
            "false" | "False" | "FALSE" => ScalarValue::Bool(false),
            text => number(text),
        }
    }

    /// The bytes in the file of a stretch of the text. `at` are the bytes of the scalar in
    /// `source`.
    pub fn in_source(&self, at: &Range<usize>, source: &str, part: Range<usize>) -> Range<usize> {
        let part = self.before_substitution(part.start)..self.before_substitution(part.end);
        let from = self.locate(at, source, part.start);
        // The end is found through the last character, so that it does not slip behind the
        // white space that follows.
        let to = match part.end > part.start {
            true => self.locate(at, source, part.end - 1) + 1,
            false => from + 1,
        };
        let end = source.len().min(at.end.max(from + 1));
        from..to.clamp(from, end.max(from))
    }

    fn written(&self) -> &str {
        self.written.as_deref().unwrap_or(&self.text)
    }

    /// The byte of the text as written that became this byte of the text as substituted.
    fn before_substitution(&self, now: usize) -> usize {
        let mut before = now;
        for replaced in &self.replaced {
            if now < replaced.now.start {
                break;
            }
            before = match now < replaced.now.end {
                true => replaced.before.start,
                false => replaced.before.end + (now - replaced.now.end),
            };
        }
        before
    }

    /// Walks text and source side by side. Folding, indentation and line ends change only white
    /// space, so every other character of the text is the next one of the source, or its escape.
    fn locate(&self, at: &Range<usize>, source: &str, target: usize) -> usize {
        let body = source.get(at.clone()).unwrap_or_default();
        let mut source_at = match self.style {
            Style::Single | Style::Double => 1,
            _ => 0,
        };
        for (text_at, c) in self.written().char_indices() {
            let next = skip_blank(body, source_at, self.style);
            if text_at >= target {
                return at.start + if c.is_whitespace() { source_at } else { next };
            }
            let rest = body.get(next..).unwrap_or_default();
            if !c.is_whitespace() || (self.style == Style::Double && rest.starts_with('\\')) {
                source_at = next + unit(rest, self.style);
            } else if body.get(source_at..).unwrap_or_default().starts_with(c) {
                source_at += c.len_utf8();
            }
        }
        at.start + source_at
    }
}

/// Bytes of white space at `from`, and in double quotes the escaped line ends.
fn skip_blank(body: &str, from: usize, style: Style) -> usize {
    let mut at = from;
    loop {
        let rest = body.get(at..).unwrap_or_default();
        let blank = rest.len() - rest.trim_start().len();
        at += blank;
        let rest = body.get(at..).unwrap_or_default();
        if style == Style::Double && (rest.starts_with("\\\n") || rest.starts_with("\\\r")) {
            at += 2;
        } else {
            return at;
        }
    }
}

/// How many bytes of source make the next character.
fn unit(rest: &str, style: Style) -> usize {
    let mut chars = rest.chars();
    match (style, chars.next()) {
        (Style::Single, Some('\'')) if chars.next() == Some('\'') => 2,
        (Style::Double, Some('\\')) => match chars.next() {
            Some('x') => 4,
            Some('u') => 6,
            Some('U') => 10,
            Some(c) => 1 + c.len_utf8(),
            None => 1,
        },
        (_, Some(c)) => c.len_utf8(),
        (_, None) => 0,
    }
}

/// A number by the core schema, or text.
fn number(text: &str) -> ScalarValue {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let all = |s: &str, ok: fn(&char) -> bool| !s.is_empty() && s.chars().all(|c| ok(&c));
    if all(digits, char::is_ascii_digit) {
        return match text.strip_prefix('+').unwrap_or(text).parse() {
            Ok(int) => ScalarValue::Int(int),
            Err(_) => text.parse().map_or(ScalarValue::Text, ScalarValue::Float),
        };
    }
    for (prefix, radix) in [("0x", 16), ("0o", 8)] {
        if let Some(digits) = text.strip_prefix(prefix) {
            return i64::from_str_radix(digits, radix).map_or(ScalarValue::Text, ScalarValue::Int);
        }
    }
    // Rust also reads `inf` and `nan`, which YAML writes with a dot and nobody needs here.
    let floats = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '-' | '+');
    match digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') && digits.chars().all(floats)
    {
        true => text.parse().map_or(ScalarValue::Text, ScalarValue::Float),
        false => ScalarValue::Text,
    }
}
