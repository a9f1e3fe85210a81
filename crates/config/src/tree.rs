//! YAML read into a tree in which every value and every key knows its bytes in the file.
//!
//! What a configuration never needs is refused before anything else looks at it: a file that is
//! too deep or has too many values, aliases that multiply, keys that are there twice, several
//! documents, tags. After that, everything that walks the tree may be recursive, the derived
//! deserializers too: it is [`DEPTH_MAX`] deep at most.

use std::collections::HashMap;
use std::ops::Range;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};

use crate::problem::{Findings, code};
use crate::scalar::{Scalar, Style};
use crate::text::SourceText;

/// How deep lists and maps may be nested.
pub(crate) const DEPTH_MAX: usize = 64;
/// How many values a file may have, those behind aliases included.
pub(crate) const NODES_MAX: usize = 10_000;
/// How many values aliases may add.
pub(crate) const ALIAS_NODES_MAX: usize = 1_000;
/// How many bytes of text aliases may add.
const ALIAS_BYTES_MAX: usize = 256 * 1024;

/// Nobody reads more duplicate keys than these.
const DUPLICATES_MAX: usize = 100;

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub at: Range<usize>,
    pub value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key with its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub key: String,
    pub key_at: Range<usize>,
    pub value: Node,
}

impl Node {
    /// The entry of a key, in a map that has it.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// The value of a key, in a map that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// The entries of a map; none where it is something else.
    pub fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// True for a map, also an empty one.
    pub fn is_map(&self) -> bool {
        matches!(self.value, Value::Map(_))
    }

    /// The items of a list, or the value itself: what "one or a list of them" means.
    pub fn one_or_many(&self) -> &[Node] {
        match &self.value {
            Value::List(items) => items,
            _ => std::slice::from_ref(self),
        }
    }

    /// The text of a scalar whose text is known.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(scalar) if !scalar.unresolved => Some(&scalar.text),
            _ => None,
        }
    }

    /// Calls `visit` for every scalar below, in order.
    pub fn scalars_mut(&mut self, visit: &mut impl FnMut(&Range<usize>, &mut Scalar)) {
        match &mut self.value {
            Value::Scalar(scalar) => visit(&self.at, scalar),
            Value::List(items) => items.iter_mut().for_each(|item| item.scalars_mut(visit)),
            Value::Map(entries) => {
                entries.iter_mut().for_each(|entry| entry.value.scalars_mut(visit));
            }
        }
    }

    /// Values, bytes of text and depth of this value and all below.
    fn weight(&self) -> (usize, usize, usize) {
        let below = |nodes: &mut dyn Iterator<Item = &Node>| {
            nodes
                .map(Node::weight)
                .fold((1, 0, 1), |all, one| (all.0 + one.0, all.1 + one.1, all.2.max(one.2 + 1)))
        };
        match &self.value {
            Value::Scalar(scalar) => (1, scalar.text.len(), 0),
            Value::List(items) => below(&mut items.iter()),
            Value::Map(entries) => below(&mut entries.iter().map(|entry| &entry.value)),
        }
    }
}

/// Reads the one document of a file. `None` where it is refused; `findings` say why. An empty
/// file is an empty map.
pub(crate) fn parse(source: &SourceText, findings: &mut Findings) -> Option<Node> {
    let bad = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r');
    if let Some((at, c)) = source.text().char_indices().find(|(_, c)| bad(*c)) {
        let what = format!("control character U+{:04X}", u32::from(c));
        findings.guess_secrets();
        findings.add_hint(code::SYNTAX, at..at + c.len_utf8(), what, "remove it");
        return None;
    }
    let mut builder = Builder::new(source);
    let mut parser = Parser::new_from_str(source.text());
    let mut documents = 0;
    while let Some(event) = parser.next_event() {
        let refused = match event {
            Ok((Event::DocumentStart(_), span)) => {
                documents += 1;
                (documents > 1).then(|| {
                    let hint = "put each pipeline into a file of its own";
                    ReadError::new(code::DOCUMENTS, builder.range(span), "a second document", hint)
                })
            }
            Ok((Event::Nothing | Event::StreamStart | Event::DocumentEnd, _)) => None,
            Ok((Event::StreamEnd, _)) => break,
            Ok((event, span)) => builder.take(event, span).err(),
            Err(error) => Some(syntax(source, &error)),
        };
        if let Some(refusal) = refused {
            findings.guess_secrets();
            findings.add_hint(refusal.code, refusal.at, refusal.what, refusal.hint);
            return None;
        }
    }
    if !builder.duplicates.is_empty() {
        findings.guess_secrets();
        for duplicate in builder.duplicates {
            let (line, column) = source.place(duplicate.first.start);
            if !PLAIN_KEYS.contains(&duplicate.key.as_str()) {
                findings.hide(duplicate.value_at);
            }
            findings.add_hint(
                code::DUPLICATE_KEY,
                duplicate.again,
                format!("the key `{}` is already there, at {line}:{column}", duplicate.key),
                "keep one of the two",
            );
        }
        return None;
    }
    Some(builder.root.unwrap_or(Node { at: 0..0, value: Value::Map(Vec::new()) }))
}

/// A reason to stop reading.
struct ReadError {
    code: &'static str,
    at: Range<usize>,
    what: String,
    hint: String,
}

impl ReadError {
    fn new(
        code: &'static str,
        at: Range<usize>,
        what: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        ReadError { code, at, what: what.into(), hint: hint.into() }
    }

    fn too_deep(at: Range<usize>) -> Self {
        let what = format!("nested more than {DEPTH_MAX} levels deep");
        ReadError::new(
            code::TOO_DEEP,
            at,
            what,
            "no configuration needs that: is this the right file?",
        )
    }
}

/// What the parser said, in words of the person who wrote the file.
fn syntax(source: &SourceText, error: &ScanError) -> ReadError {
    let at = source.byte_of_char(error.marker().index());
    let at = at..at + 1;
    // The scanner has a limit of its own, reached before the event that ours would see.
    if error.info().contains("recursion limit") {
        return ReadError::too_deep(at);
    }
    let (line, _) = source.place(at.start);
    let text = source.text().lines().nth(line - 1).unwrap_or_default();
    let indent = text.len() - text.trim_start().len();
    let before = source.text().lines().nth(line.saturating_sub(2)).unwrap_or_default();
    let variable = unquoted_variable(text).or_else(|| unquoted_variable(before));
    let with_variable;
    let hint = if text.get(..indent).unwrap_or_default().contains('\t') {
        "YAML is indented with spaces, not with tabs"
    } else if let Some(variable) = variable {
        with_variable = format!("within `{{ }}`, quote a variable: `\"{variable}\"`");
        &with_variable
    } else if text.contains('{') && text.contains("[]") {
        "within `{ }`, quote a value that contains `[ ] { }` or a comma"
    } else {
        "check indentation, quotes and brackets on this line and the one before"
    };
    ReadError::new(code::SYNTAX, at, format!("not valid YAML: {}", error.info()), hint)
}

/// A `${…}` inside `{ }` without quotes around it: YAML takes its brace for one of its own.
fn unquoted_variable(line: &str) -> Option<&str> {
    let open = line.find(['{', '['])?;
    let at = open + line.get(open..)?.find("${").filter(|at| *at > 0)?;
    let quotes = line.get(..at)?.matches('"').count();
    let end = line.get(at..)?.find('}')? + 1;
    line.get(at..at + end).filter(|_| quotes % 2 == 0)
}

/// Keys whose values are never secret: they are shown where the rest of a file is not understood.
const PLAIN_KEYS: [&str; 14] = [
    "name",
    "topic",
    "topics",
    "workers",
    "format",
    "schema",
    "by",
    "id",
    "quiet",
    "max_age",
    "stage",
    "table",
    "from",
    "consumer_group",
];

/// A key that was there before.
struct Duplicate {
    key: String,
    first: Range<usize>,
    again: Range<usize>,
    value_at: Range<usize>,
}

/// Builds the tree from the parser's events, with a stack of its own.
struct Builder<'a> {
    source: &'a SourceText,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    root: Option<Node>,
    nodes: usize,
    alias_nodes: usize,
    alias_bytes: usize,
    duplicates: Vec<Duplicate>,
}

/// A list or map whose end has not been seen.
struct Open {
    start: usize,
    anchor: usize,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    Map {
        entries: Vec<Entry>,
        seen: HashMap<String, Range<usize>>,
        key: Option<(String, Range<usize>)>,
    },
}

impl Content {
    /// Where the last thing in it ends.
    fn end(&self) -> usize {
        match self {
            Content::List(items) => items.last().map_or(0, |item| item.at.end),
            Content::Map { entries, .. } => {
                entries.last().map_or(0, |entry| entry.value.at.end.max(entry.key_at.end))
            }
        }
    }
}

impl<'a> Builder<'a> {
    fn new(source: &'a SourceText) -> Self {
        Builder {
            source,
            open: Vec::new(),
            anchors: HashMap::new(),
            root: None,
            nodes: 0,
            alias_nodes: 0,
            alias_bytes: 0,
            duplicates: Vec::new(),
        }
    }

    fn range(&self, span: Span) -> Range<usize> {
        let from = self.source.byte_of_char(span.start.index());
        let to = self.source.byte_of_char(span.end.index()).max(from);
        let text = self.source.text().get(from..to).unwrap_or_default();
        from..from + text.trim_end().len()
    }

    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), ReadError> {
        let at = self.range(span);
        let tag = match &event {
            Event::Scalar(_, _, _, tag)
            | Event::SequenceStart(_, tag)
            | Event::MappingStart(_, tag) => tag.as_deref(),
            _ => None,
        };
        if let Some(tag) = tag {
            let what = format!("the tag `{tag}`");
            return Err(ReadError::new(code::UNUSED_YAML, at, what, "tags are not used here"));
        }
        match event {
            Event::Scalar(text, style, anchor, _) => {
                let style = match style {
                    ScalarStyle::Plain => Style::Plain,
                    ScalarStyle::SingleQuoted => Style::Single,
                    ScalarStyle::DoubleQuoted => Style::Double,
                    ScalarStyle::Literal | ScalarStyle::Folded => Style::Block,
                };
                // The parser writes `~` for a value that is not there.
                let text = if at.is_empty() && style == Style::Plain { "".into() } else { text };
                let node = Node { at, value: Value::Scalar(Scalar::new(text, style)) };
                self.count(1, &node.at)?;
                self.put(node, anchor)
            }
            Event::Alias(anchor) => {
                let node = self.alias(anchor, at)?;
                self.put(node, 0)
            }
            Event::SequenceStart(anchor, _) => self.open(at, anchor, Content::List(Vec::new())),
            Event::MappingStart(anchor, _) => self.open(
                at,
                anchor,
                Content::Map { entries: Vec::new(), seen: HashMap::new(), key: None },
            ),
            Event::SequenceEnd | Event::MappingEnd => self.close(at.start),
            _ => Ok(()),
        }
    }

    fn count(&mut self, nodes: usize, at: &Range<usize>) -> Result<(), ReadError> {
        self.nodes += nodes;
        if self.nodes <= NODES_MAX {
            return Ok(());
        }
        let what = format!("more than {NODES_MAX} values");
        let hint = "no configuration needs that: is this the right file?";
        Err(ReadError::new(code::TOO_MANY, at.clone(), what, hint))
    }

    fn open(&mut self, at: Range<usize>, anchor: usize, content: Content) -> Result<(), ReadError> {
        self.count(1, &at)?;
        if self.open.len() >= DEPTH_MAX {
            return Err(ReadError::too_deep(at));
        }
        self.open.push(Open { start: at.start, anchor, content });
        Ok(())
    }

    /// Ends the innermost list or map; `at` is where the parser noticed.
    fn close(&mut self, at: usize) -> Result<(), ReadError> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        // A bracket is its end; without brackets it ends with what is last in it.
        let bracket = self.source.text().get(at..).is_some_and(|rest| rest.starts_with([']', '}']));
        let end = if bracket { at + 1 } else { open.content.end() };
        let value = match open.content {
            Content::List(items) => Value::List(items),
            Content::Map { entries, .. } => Value::Map(entries),
        };
        self.put(Node { at: open.start..end.max(open.start), value }, open.anchor)
    }

    /// A copy of what an anchor named, within the budget.
    fn alias(&mut self, anchor: usize, at: Range<usize>) -> Result<Node, ReadError> {
        let refuse = |what: String| {
            Err(ReadError::new(code::ALIASES, at.clone(), what, "write the value out instead"))
        };
        let Some(node) = self.anchors.get(&anchor).cloned() else {
            return refuse("an alias to a value that contains it".into());
        };
        let (nodes, bytes, depth) = node.weight();
        self.alias_nodes += nodes;
        self.alias_bytes += bytes;
        if self.alias_nodes > ALIAS_NODES_MAX || self.alias_bytes > ALIAS_BYTES_MAX {
            return refuse(format!("aliases expand to more than {ALIAS_NODES_MAX} values"));
        }
        if self.open.len() + depth > DEPTH_MAX {
            return Err(ReadError::too_deep(at));
        }
        self.count(nodes, &at)?;
        Ok(node)
    }

    /// Puts a finished value where it belongs: key, value, item or root.
    fn put(&mut self, node: Node, anchor: usize) -> Result<(), ReadError> {
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.root = Some(node),
            Some(Content::List(items)) => items.push(node),
            Some(Content::Map { entries, seen, key }) => match key.take() {
                None => match node.value {
                    Value::Scalar(scalar) => *key = Some((scalar.text, node.at)),
                    _ => {
                        return Err(ReadError::new(
                            code::UNUSED_YAML,
                            node.at,
                            "a key that is not text",
                            "keys are words",
                        ));
                    }
                },
                Some((key, key_at)) => {
                    match seen.get(&key) {
                        Some(_) if self.duplicates.len() >= DUPLICATES_MAX => {}
                        Some(first) => self.duplicates.push(Duplicate {
                            key: key.clone(),
                            first: first.clone(),
                            again: key_at.clone(),
                            value_at: node.at.clone(),
                        }),
                        None => drop(seen.insert(key.clone(), key_at.clone())),
                    }
                    entries.push(Entry { key, key_at, value: node });
                }
            },
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
