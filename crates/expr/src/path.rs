//! Paths into a JSON value: `.`, `.a.b`, `.items[0]`, `."odd name"`.
//!
//! One small hand-written reader serves templates, rows and [`ValuePath`]. It reads as far as a path goes and
//! leaves what follows to the caller.

use crate::ExprError;
use crate::json::Node;

/// One step down into a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Field(String),
    Index(usize),
    /// `[]`: every element. Only rows have it.
    Each,
}

/// What is said about `[]` where one value is wanted.
pub(crate) const EACH_REFUSED: &str = "`[]` makes several values of one; only `rows` can take them";

/// Reads an expression from left to right and knows where it is.
#[derive(Clone)]
pub(crate) struct Cursor<'t> {
    pub text: &'t str,
    pub at: usize,
}

impl<'t> Cursor<'t> {
    pub fn new(text: &'t str) -> Self {
        Cursor { text, at: 0 }
    }

    pub fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    pub fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub fn take(&mut self, prefix: &str) -> bool {
        let found = self.rest().starts_with(prefix);
        if found {
            self.at += prefix.len();
        }
        found
    }

    /// The longest run of characters that `belongs`.
    pub fn run(&mut self, belongs: impl Fn(char) -> bool) -> &'t str {
        let rest = self.rest();
        let len = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        self.at += len;
        rest.get(..len).unwrap_or_default()
    }

    /// An error at the next character.
    pub fn error_here(&self, message: impl Into<String>) -> ExprError {
        ExprError::new(self.at, self.peek().map_or(0, char::len_utf8), message)
    }

    /// A path; the cursor stands at its dot.
    pub fn path(&mut self) -> Result<Vec<Step>, ExprError> {
        let mut steps = Vec::new();
        self.take(".");
        // Behind the first dot there may be nothing: the whole value.
        match self.peek() {
            Some('"') => steps.push(Step::Field(self.quoted()?)),
            Some(c) if is_name(c) => steps.push(Step::Field(self.run(is_name).to_owned())),
            _ => {}
        }
        loop {
            if self.take("[") {
                steps.push(self.index()?);
            } else if self.rest().starts_with('.') && !steps.is_empty() {
                self.at += 1;
                steps.push(Step::Field(self.name()?));
            } else {
                return Ok(steps);
            }
        }
    }

    fn name(&mut self) -> Result<String, ExprError> {
        if self.peek() == Some('"') {
            return self.quoted();
        }
        match self.run(is_name) {
            "" => Err(self.error_here("a name is missing behind the dot")),
            name => Ok(name.to_owned()),
        }
    }

    /// What stands in quotes, `\"` and `\\` undone.
    pub fn quoted(&mut self) -> Result<String, ExprError> {
        let start = self.at;
        self.take("\"");
        let mut name = String::new();
        loop {
            name.push_str(self.run(|c| c != '"' && c != '\\'));
            if self.take("\"") {
                return Ok(name);
            } else if self.take("\\\"") {
                name.push('"');
            } else if self.take("\\\\") {
                name.push('\\');
            } else if self.peek().is_none() {
                let len = self.at - start;
                return Err(ExprError::new(start, len, "the closing quote is missing"));
            } else {
                let message = "in a quoted name only `\\\"` and `\\\\` are escapes";
                return Err(self.error_here(message));
            }
        }
    }

    /// What stands between brackets; the opening one is taken.
    fn index(&mut self) -> Result<Step, ExprError> {
        let start = self.at;
        let digits = self.run(|c| c.is_ascii_digit());
        if !self.take("]") {
            return Err(self.error_here("expected an index like `[0]`"));
        }
        if digits.is_empty() {
            return Ok(Step::Each);
        }
        digits
            .parse()
            .map(Step::Index)
            .map_err(|_| ExprError::new(start, digits.len(), "this index is too large"))
    }
}

/// Characters of a name that needs no quotes.
fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '@' | '$')
}

/// Says that the path has ended but the text has not.
pub(crate) fn left_over(cursor: &Cursor<'_>) -> ExprError {
    let rest = cursor.rest();
    let hint = match cursor.peek() {
        Some('.') => "a name is missing before this dot",
        _ => "this does not belong to a path; quote odd names: `.\"odd name\"`",
    };
    ExprError::new(cursor.at, rest.len(), hint)
}

/// Reads a text that is a path and nothing else; `examples` are for one who wrote nothing.
pub(crate) fn whole(source: &str, examples: &str) -> Result<Vec<Step>, ExprError> {
    if !source.starts_with('.') {
        let message = match source {
            "" => format!("a path is missing: {examples}"),
            _ => format!("a path starts with a dot: `.{source}`"),
        };
        return Err(ExprError::new(0, source.len(), message));
    }
    let mut cursor = Cursor::new(source);
    let steps = cursor.path()?;
    if cursor.rest().is_empty() { Ok(steps) } else { Err(left_over(&cursor)) }
}

/// A path to one value: `.a.b`, `.items[0]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValuePath {
    source: String,
    steps: Vec<Step>,
}

impl ValuePath {
    /// Reads the text.
    pub fn parse(source: &str) -> Result<ValuePath, ExprError> {
        let steps = whole(source, "`.a.b` or `.items[0]`")?;
        if steps.contains(&Step::Each) {
            return Err(ExprError::new(0, source.len(), EACH_REFUSED));
        }
        Ok(ValuePath { source: source.to_owned(), steps })
    }

    /// The text it was read from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The value at its end, if it is there.
    pub fn find<'a>(&self, from: Node<'a>) -> Option<Node<'a>> {
        find(&self.steps, from)
    }
}

/// The value at the end of `steps`, if it is there.
pub(crate) fn find<'a>(steps: &[Step], from: Node<'a>) -> Option<Node<'a>> {
    steps.iter().try_fold(from, |node, step| match step {
        Step::Field(name) => node.get(name),
        Step::Index(index) => node.items().nth(*index),
        Step::Each => None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::json::Parser;

    #[test]
    fn finds_one_value() {
        let mut parser = Parser::new();
        let root = parser.parse(br#"{"a":{"b":[1,{"c":null}]},"odd name":2}"#).unwrap();
        for (text, want) in [
            (".a.b[0]", Some("1")),
            (".a.b[1].c", Some("null")),
            (".\"odd name\"", Some("2")),
            (".a.b[2]", None),
            (".a[0]", None),
            (".gone.far", None),
        ] {
            let path = ValuePath::parse(text).unwrap();
            assert_eq!(path.source(), text);
            assert_eq!(path.find(root).map(|node| node.source()), want, "{text}");
        }
        assert!(ValuePath::parse(".").unwrap().find(root).is_some());
    }

    #[test]
    fn refuses_what_is_no_path_to_one_value() {
        for (text, at, len, part) in [
            ("", 0, 0, "a path is missing"),
            ("a", 0, 1, "`.a`"),
            ("{.a}", 0, 4, "a path starts with a dot"),
            (".a x", 2, 2, "quote odd names"),
            (".a[]", 0, 4, "only `rows`"),
        ] {
            let error = ValuePath::parse(text).unwrap_err();
            assert_eq!((error.at, error.len), (at, len), "{text}: {}", error.message);
            assert!(error.message.contains(part), "{text}: {}", error.message);
        }
    }
}
