//! Which parts of a value become rows: `.` one row of the whole, `.delivery` one row of a part,
//! `.items[]` a row per element.

use crate::ExprError;
use crate::json::Node;
use crate::path::{self, Step};

/// A path to one row or to many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowsPath {
    source: String,
    steps: Vec<String>,
    each: bool,
}

impl RowsPath {
    /// Reads the text.
    pub fn parse(source: &str) -> Result<RowsPath, ExprError> {
        let mut found = path::whole(source, "`.`, `.delivery` or `.items[]`")?;
        let each = found.last() == Some(&Step::Each);
        if each {
            found.pop();
        }
        let steps = found.into_iter().map(|step| match step {
            Step::Field(name) => Ok(name),
            Step::Index(_) | Step::Each => Err(ExprError::new(
                0,
                source.len(),
                "rows go by names, with one `[]` at the end for a row per element: `.items[]`",
            )),
        });
        Ok(RowsPath { source: source.to_owned(), steps: steps.collect::<Result<_, _>>()?, each })
    }

    /// The text it was read from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// True where it ends in `[]`: a row per element.
    pub fn is_each(&self) -> bool {
        self.each
    }

    /// The names on the way down; empty for the whole value.
    pub fn steps(&self) -> &[String] {
        &self.steps
    }

    /// The values that become rows, in order. Nothing where the path ends in nothing or in null.
    /// A `[]` over something that is no array gives that something, so that whoever makes the row
    /// notices, and nothing is passed over in silence.
    pub fn nodes<'a>(&self, value: Node<'a>) -> Vec<Node<'a>> {
        let found = self.steps.iter().try_fold(value, |node, name| node.get(name));
        match found.filter(|node| !node.is_null()) {
            None => Vec::new(),
            Some(node) if self.each && node.kind() == crate::json::Kind::Array => {
                node.items().collect()
            }
            Some(node) => vec![node],
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::json::Parser;

    #[test]
    fn finds_rows() {
        let value =
            br#"{"d":{"x":1,"deep":[[1],[2]]},"items":[1,null,{"a":2}],"no":null,"s":"t","e":[]}"#;
        let mut parser = Parser::new();
        let root = parser.parse(value).unwrap();
        for (text, steps, each, want) in [
            (".", vec![], false, vec![std::str::from_utf8(value).unwrap()]),
            (".d.x", vec!["d", "x"], false, vec!["1"]),
            (".items", vec!["items"], false, vec![r#"[1,null,{"a":2}]"#]),
            (".items[]", vec!["items"], true, vec!["1", "null", r#"{"a":2}"#]),
            (".d.deep[]", vec!["d", "deep"], true, vec!["[1]", "[2]"]),
            (".\"s\"[]", vec!["s"], true, vec!["\"t\""]),
            (".e[]", vec!["e"], true, vec![]),
            (".no[]", vec!["no"], true, vec![]),
            (".no", vec!["no"], false, vec![]),
            (".gone", vec!["gone"], false, vec![]),
            (".gone.far[]", vec!["gone", "far"], true, vec![]),
        ] {
            let path = RowsPath::parse(text).unwrap();
            assert_eq!((path.source(), path.is_each()), (text, each));
            assert_eq!(path.steps(), steps);
            let found: Vec<_> = path.nodes(root).iter().map(|node| node.source()).collect();
            assert_eq!(found, want, "{text}");
        }
        let root = parser.parse(b"[1,2]").unwrap();
        assert_eq!(RowsPath::parse(".[]").unwrap().nodes(root).len(), 2);
    }

    #[test]
    fn refuses() {
        for (text, at, len, part) in [
            ("", 0, 0, "missing"),
            ("items[]", 0, 7, "`.items[]`"),
            (".items[0]", 0, 9, "one `[]` at the end"),
            (".a[].b", 0, 6, "one `[]` at the end"),
            (".a[][]", 0, 6, "one `[]` at the end"),
            (".a x", 2, 2, "quote odd names"),
            (".a.", 3, 0, "a name is missing"),
            ("{.a}", 0, 4, "a path starts with a dot"),
        ] {
            let error = RowsPath::parse(text).unwrap_err();
            assert_eq!((error.at, error.len), (at, len), "{text}: {}", error.message);
            assert!(error.message.contains(part), "{text}: {}", error.message);
        }
    }
}
