//! Keys, ids and headers made from a record: `.order_uid`, `header.batchId`, `"{.a}_{.b}"`.
//!
//! | text | gives |
//! |---|---|
//! | `.`, `.a.b`, `."odd name"`, `.a[0]` | that part of the value |
//! | `header.NAME` | the last header of that name |
//! | `key`, `topic` | the record's |
//! | `id`, `receiver` | the group's id, the receiver of `each` |
//! | `"{.a}_{key}"` | all parts joined; `{{` and `}}` stand for braces |
//!
//! Strings give their content, numbers and booleans their source text, arrays and objects their
//! exact source bytes. What is missing or null gives nothing, and then the whole template gives
//! nothing: half a key is worse than none.

use bytes::Bytes;
use potok_core::Headers;

use crate::ExprError;
use crate::json::{Kind, Node};
use crate::path::{self, Cursor, Step};

/// What a template may speak about.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The record's value, where it is JSON.
    pub value: Option<Node<'a>>,
    /// The record's key.
    pub key: Option<&'a [u8]>,
    /// The record's headers.
    pub headers: &'a Headers,
    /// The topic it came from.
    pub topic: &'a str,
    /// The id of its group, in `deliver`.
    pub id: Option<&'a [u8]>,
    /// The receiver it is made for, in a `deliver` with `each`.
    pub receiver: Option<&'a [u8]>,
}

/// A path, one of the words, or a text with `{…}` in it. Parsed once, evaluated per record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    source: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Value(Vec<Step>),
    Header(String),
    Key,
    Topic,
    Id,
    Receiver,
}

impl Template {
    /// Reads the text. Whether a word makes sense at that place of the file (`receiver` without
    /// `each`) is for the caller to say.
    pub fn parse(source: &str) -> Result<Template, ExprError> {
        let mut cursor = Cursor::new(source);
        let parts = if source.contains(['{', '}']) {
            joined(&mut cursor)?
        } else {
            vec![whole(&mut cursor)?]
        };
        Ok(Template { source: source.to_owned(), parts })
    }

    /// The text it was read from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// True where some part reads the record's value, so that it must be JSON.
    pub fn needs_value(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Value(_)))
    }

    /// The fields of the value that it reads, each as names from the root, up to the first index.
    pub fn fields(&self) -> impl Iterator<Item = Vec<&str>> {
        self.parts.iter().filter_map(|part| {
            let Part::Value(steps) = part else { return None };
            let names = steps.iter().map_while(|step| match step {
                Step::Field(name) => Some(name.as_str()),
                Step::Index(_) | Step::Each => None,
            });
            Some(names.collect())
        })
    }

    /// Appends the result to `out`. False where a part is missing or null; what was appended by
    /// then is worthless.
    pub fn eval(&self, scope: &Scope<'_>, out: &mut Vec<u8>) -> bool {
        self.parts.iter().all(|part| part.eval(scope, out).is_some())
    }

    /// The result as bytes of its own; `None` where a part is missing or null.
    pub fn eval_bytes(&self, scope: &Scope<'_>) -> Option<Bytes> {
        let mut out = Vec::new();
        self.eval(scope, &mut out).then(|| Bytes::from(out))
    }

    /// The same, but where it is the key or one header, a part of those bytes, which stay with it:
    /// for what is looked at and not kept.
    pub fn eval_shared(&self, scope: &Scope<'_>, key: Option<&Bytes>) -> Option<Bytes> {
        match self.parts.as_slice() {
            [Part::Key] => key.cloned(),
            [Part::Header(name)] => {
                let value = scope.headers.get(name)?;
                Some(scope.headers.encoded().slice_ref(value))
            }
            _ => self.eval_bytes(scope),
        }
    }
}

impl Part {
    fn eval(&self, scope: &Scope<'_>, out: &mut Vec<u8>) -> Option<()> {
        match self {
            Part::Literal(text) => out.extend_from_slice(text.as_bytes()),
            Part::Value(steps) => render(path::find(steps, scope.value?)?, out)?,
            Part::Header(name) => out.extend_from_slice(scope.headers.get(name)?),
            Part::Key => out.extend_from_slice(scope.key?),
            Part::Topic => out.extend_from_slice(scope.topic.as_bytes()),
            Part::Id => out.extend_from_slice(scope.id?),
            Part::Receiver => out.extend_from_slice(scope.receiver?),
        }
        Some(())
    }
}

fn render(node: Node<'_>, out: &mut Vec<u8>) -> Option<()> {
    match node.kind() {
        Kind::Null => return None,
        Kind::String => out.extend_from_slice(node.text()?.as_bytes()),
        _ => out.extend_from_slice(node.raw()),
    }
    Some(())
}

/// A text without braces: one path or word and nothing else.
fn whole(cursor: &mut Cursor<'_>) -> Result<Part, ExprError> {
    let part = single(cursor)?;
    if cursor.rest().is_empty() { Ok(part) } else { Err(path::left_over(cursor)) }
}

/// A text with braces: literals, and paths or words between braces.
fn joined(cursor: &mut Cursor<'_>) -> Result<Vec<Part>, ExprError> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    while let Some(next) = cursor.peek() {
        if cursor.take("{{") {
            literal.push('{');
        } else if cursor.take("}}") {
            literal.push('}');
        } else if next == '}' {
            return Err(cursor.error_here("this brace closes nothing; write `}}` for a brace"));
        } else if cursor.take("{") {
            if !literal.is_empty() {
                parts.push(Part::Literal(std::mem::take(&mut literal)));
            }
            parts.push(braced(cursor)?);
        } else {
            literal.push_str(cursor.run(|c| c != '{' && c != '}'));
        }
    }
    if !literal.is_empty() {
        parts.push(Part::Literal(literal));
    }
    Ok(parts)
}

/// What stands between braces; the opening one is taken.
fn braced(cursor: &mut Cursor<'_>) -> Result<Part, ExprError> {
    let open = cursor.at - 1;
    cursor.run(|c| c == ' ');
    if cursor.peek() == Some('}') {
        let message = "nothing stands between these braces; write `{{` for a brace";
        return Err(ExprError::new(open, cursor.at + 1 - open, message));
    }
    let part = single(cursor)?;
    cursor.run(|c| c == ' ');
    if cursor.take("}") {
        return Ok(part);
    }
    if cursor.rest().contains('}') {
        return Err(cursor.error_here("expected `}` here; quote odd names: `{.\"odd name\"}`"));
    }
    Err(ExprError::new(open, cursor.text.len() - open, "the closing brace is missing"))
}

/// One path or word.
fn single(cursor: &mut Cursor<'_>) -> Result<Part, ExprError> {
    let start = cursor.at;
    if cursor.peek() == Some('.') {
        let steps = cursor.path()?;
        if steps.contains(&Step::Each) {
            return Err(ExprError::new(start, cursor.at - start, path::EACH_REFUSED));
        }
        return Ok(Part::Value(steps));
    }
    if cursor.take("header.") {
        return header(cursor);
    }
    let word = cursor.run(|c| !matches!(c, '{' | '}'));
    let len = word.len();
    match word.trim_end() {
        "key" => Ok(Part::Key),
        "topic" => Ok(Part::Topic),
        "id" => Ok(Part::Id),
        "receiver" => Ok(Part::Receiver),
        word => Err(ExprError::new(start, word.len().max(len.min(1)), unknown(word))),
    }
}

/// Header names are freer than field names: anything goes up to a brace or a blank.
fn header(cursor: &mut Cursor<'_>) -> Result<Part, ExprError> {
    let name = if cursor.peek() == Some('"') {
        cursor.quoted()?
    } else {
        cursor.run(|c| !c.is_whitespace() && !matches!(c, '{' | '}' | '"')).to_owned()
    };
    if name.is_empty() {
        return Err(cursor.error_here("the header's name is missing: `header.batchId`"));
    }
    Ok(Part::Header(name))
}

fn unknown(word: &str) -> String {
    match word {
        "" => "an expression is missing, like `.order_uid` or `key`".to_owned(),
        "header" | "headers" => "name the header: `header.batchId`".to_owned(),
        "value" => "the whole value is written `.`".to_owned(),
        // As in JSONPath.
        _ if word.starts_with("$.") => {
            format!("a path begins with a dot: write `{}`", word.trim_start_matches('$'))
        }
        _ if word.starts_with("headers.") => {
            format!("write `{}`", word.replacen("headers.", "header.", 1))
        }
        _ => {
            let path = word.split_whitespace().next().unwrap_or(word);
            format!(
                "a path starts with a dot: `.{path}`; the words without one are `key`, `topic`, `id`, `receiver` and `header.NAME`"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::json::Parser;
    use potok_core::HeadersBuilder;

    const VALUE: &str = r#"{"a":{"b":"x\ny"},"n":12.50,"t":true,"none":null,"list":[1,{"k":"v"}],
        "odd name":"o","q\"{}":"braced","":"empty","день":"д","esc\u0061ped":"e"}"#;

    fn eval(text: &str) -> Option<String> {
        let headers = HeadersBuilder::new()
            .add("batchId", Some(b"first"))
            .add("batchId", Some(b"b-1"))
            .add("x-request.id", Some(b"r"))
            .add("gone", None)
            .build();
        let mut parser = Parser::new();
        let scope = Scope {
            value: Some(parser.parse(VALUE.as_bytes()).unwrap()),
            key: Some(b"k"),
            headers: &headers,
            topic: "orders",
            id: None,
            receiver: Some(b"rec"),
        };
        let template = Template::parse(text).unwrap_or_else(|e| panic!("{text}: {e:?}"));
        assert_eq!(template.source(), text);
        template.eval_bytes(&scope).map(|bytes| String::from_utf8(bytes.into()).unwrap())
    }

    #[test]
    fn renders() {
        for (text, want) in [
            (".a.b", Some("x\ny")),
            ("{.a.b}", Some("x\ny")),
            (".a", Some(r#"{"b":"x\ny"}"#)),
            (".n", Some("12.50")),
            (".t", Some("true")),
            (".none", None),
            (".missing", None),
            (".a.b.c", None),
            (".list", Some(r#"[1,{"k":"v"}]"#)),
            (".list[0]", Some("1")),
            (".list[1].k", Some("v")),
            (".list[2]", None),
            (".list.k", None),
            (".a[0]", None),
            (".", Some(VALUE)),
            (".\"odd name\"", Some("o")),
            ("{.\"q\\\"{}\"}", Some("braced")),
            (".\"\"", Some("empty")),
            (".день", Some("д")),
            (".escaped", Some("e")),
            ("header.batchId", Some("b-1")),
            ("header.x-request.id", Some("r")),
            ("header.\"batchId\"", Some("b-1")),
            ("header.gone", None),
            ("header.missing", None),
            ("key", Some("k")),
            ("topic", Some("orders")),
            ("id", None),
            ("receiver", Some("rec")),
            ("{.n}_{ .list[0] }", Some("12.50_1")),
            ("{topic}:{header.batchId}!", Some("orders:b-1!")),
            ("{{{key}}}", Some("{k}")),
            ("{{}}", Some("{}")),
            ("a{.missing}b", None),
            ("{.t}{.t}", Some("truetrue")),
        ] {
            assert_eq!(eval(text).as_deref(), want, "{text}");
        }
    }

    #[test]
    fn says_what_it_needs() {
        for (text, needs) in
            [(".a", true), ("{key}-{.a}", true), ("key", false), ("{topic}/{header.x}", false)]
        {
            assert_eq!(Template::parse(text).unwrap().needs_value(), needs, "{text}");
        }
    }

    #[test]
    fn a_value_that_is_not_json_gives_nothing() {
        let scope = Scope {
            value: None,
            key: None,
            headers: &Headers::none(),
            topic: "t",
            id: None,
            receiver: None,
        };
        assert_eq!(Template::parse(".").unwrap().eval_bytes(&scope), None);
        assert_eq!(Template::parse("key").unwrap().eval_bytes(&scope), None);
        assert_eq!(Template::parse("{topic}").unwrap().eval_bytes(&scope).unwrap(), "t");
    }

    #[test]
    fn errors_point_at_the_place() {
        for (text, at, len, part) in [
            ("", 0, 0, "missing"),
            ("order_uid", 0, 9, "a path starts with a dot: `.order_uid`"),
            ("headers.x", 0, 9, "`header.x`"),
            ("header.", 7, 0, "header.batchId"),
            ("header", 0, 6, "header.batchId"),
            ("value", 0, 5, "`.`"),
            (".a.", 3, 0, "a name is missing"),
            (".a..b", 3, 1, "a name is missing"),
            ("..a", 1, 2, "before this dot"),
            (".a b", 2, 2, "quote odd names"),
            (".a[", 3, 0, "an index"),
            (".a[x]", 3, 1, "an index"),
            (".a[-1]", 3, 1, "an index"),
            (".a[99999999999999999999999]", 3, 23, "too large"),
            (".a[]", 0, 4, "only `rows`"),
            (".\"a", 1, 2, "closing quote"),
            (".\"a\\n\"", 3, 1, "escapes"),
            ("x{}", 1, 2, "nothing stands between"),
            ("x{.a", 1, 3, "the closing brace is missing"),
            ("x}y", 1, 1, "closes nothing"),
            ("{.a}_{order}", 6, 5, "`.order`"),
            ("{.a b}", 4, 1, "expected `}`"),
            ("{key} {день}", 7, 8, "`.день`"),
        ] {
            let error = Template::parse(text).unwrap_err();
            assert_eq!((error.at, error.len), (at, len), "{text}: {}", error.message);
            assert!(error.message.contains(part), "{text}: {}", error.message);
            assert!(text.is_char_boundary(error.at) && text.is_char_boundary(error.at + error.len));
        }
    }
}
