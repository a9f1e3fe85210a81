//! What makes sense together in a pipeline file, and what cannot keep the promise.
//!
//! The rules walk the tree, not the structs, so that they speak even where the file has other
//! mistakes, and each points at its place. They stay silent about what the schema already said.

mod track;

use std::collections::HashSet;
use std::ops::Range;

use potok_expr::Template;
use serde_json::Value as Json;

use crate::check::{list, nearest};
use crate::expression::StageVrl;
use crate::problem::{Findings, code};
use crate::process::Per;
use crate::scalar::ScalarValue;
use crate::schema::missing_field;
use crate::text::SourceText;
use crate::tree::{Entry, Node, Value};
use crate::values::{Period, Size, TextValue};
use crate::variants::{self, Section};

/// Applies every rule to the root of a pipeline file.
pub(crate) fn check(root: &Node, source: &SourceText, schema: &Json, findings: &mut Findings) {
    let mut rules = Rules { root, source, schema, findings };
    rules.sources();
    rules.group();
    rules.track();
    rules.stages();
    for deliver in entries_of(root, "deliver") {
        rules.deliver(deliver);
    }
    rules.words();
    rules.raw();
    rules.loops();
    rules.dead_letters();
    rules.limits();
}

/// Fields that are asked for before any stage could make them, and that the schema of records does
/// not name. They may be there all the same, where the schema is open: a warning.
pub(crate) fn fields(root: &Node, schema: &Json, findings: &mut Findings) {
    let group = root.get("group");
    let mut asked: Vec<&Node> =
        group.into_iter().flat_map(|g| [shard_by(g), g.get("by"), g.get("id")]).flatten().collect();
    let kinds = group.and_then(|group| group.get("kinds")).map(Node::entries).unwrap_or_default();
    asked.extend(kinds.iter().filter_map(|kind| kind.value.get("id")));
    asked.extend(root.get("order_by"));
    if entries_of(root, "process").is_empty() {
        for deliver in entries_of(root, "deliver") {
            asked.extend(deliver.get("key"));
            asked.extend(deliver.get("once_by").map(Node::one_or_many).unwrap_or_default());
        }
    }
    for node in asked {
        let Some(template) = node.text().and_then(|text| Template::parse(text).ok()) else {
            continue;
        };
        for path in template.fields() {
            let Some((name, known)) = missing_field(schema, &path) else { continue };
            let what = format!("the schema names no field `{name}` here");
            let hint = match nearest(name, known.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => {
                    let known: Vec<&str> = known.iter().map(String::as_str).take(8).collect();
                    format!("it names {}", list(&known))
                }
            };
            findings.add_hint(code::NOT_IN_SCHEMA, node.at.clone(), what, hint);
        }
    }
}

/// The items of a key that holds one or many.
fn entries_of<'a>(root: &'a Node, key: &str) -> &'a [Node] {
    root.get(key).map(Node::one_or_many).unwrap_or_default()
}

/// What tells the shard of a record.
fn shard_by(group: &Node) -> Option<&Node> {
    group.get("shard")?.get("by")
}

/// The keys of `among` that a map has.
fn present<'a>(node: &'a Node, among: &[&str]) -> Vec<&'a Entry> {
    node.entries().iter().filter(|entry| among.contains(&entry.key.as_str())).collect()
}

/// True where an expression speaks of a word such as `id`, alone or in braces.
fn mentions(expression: &str, word: &str) -> bool {
    expression == word || expression.contains(&format!("{{{word}}}"))
}

struct Rules<'a> {
    root: &'a Node,
    source: &'a SourceText,
    /// The schema of pipeline files.
    schema: &'a Json,
    findings: &'a mut Findings,
}

impl<'a> Rules<'a> {
    fn add(&mut self, code: &'static str, at: &Range<usize>, what: impl Into<String>, hint: &str) {
        self.findings.add_hint(code, at.clone(), what, hint);
    }

    /// An entry of a section is of exactly one kind.
    fn exactly_one(&mut self, section: Section, node: &Node, code: &'static str, noun: &str) {
        let named = variants::named(node, &section.kinds(self.schema));
        let keys: Vec<&str> = named.into_iter().filter_map(variants::key_of).collect();
        match keys.as_slice() {
            // A misspelt key is probably the one that is missing.
            [] if self.findings.has(code::UNKNOWN_KEY, &node.at) => {}
            [] => {
                let at = node.at.start..node.at.start + 1;
                let what = match section {
                    Section::Process => format!("this {noun} does nothing"),
                    Section::Source | Section::Deliver => format!("this {noun} names no place"),
                };
                let hint = format!("give one of {}", list(&section.keys(self.schema)));
                self.add(code, &at, what, &hint);
            }
            [_] => {}
            [first, others @ ..] => {
                for other in others.iter().filter_map(|other| node.entry(other)) {
                    let what = format!(
                        "this {noun} has both `{first}` and `{}`: exactly one is possible, not both",
                        other.key
                    );
                    let hint = "make it two entries, or remove one of the two keys";
                    self.add(code, &other.key_at, what, hint);
                }
            }
        }
    }

    fn sources(&mut self) {
        let mut seen: HashSet<&str> = HashSet::new();
        for source in entries_of(self.root, "source") {
            if !source.is_map() {
                continue;
            }
            self.exactly_one(Section::Source, source, code::SOURCE, "source");
            for node in topics_of(source) {
                let Some(topic) = node.text() else { continue };
                if !seen.insert(topic) {
                    let what = format!("the topic `{topic}` is read twice");
                    self.add(code::SAME_NAME, &node.at, what, "name it once");
                }
            }
        }
    }

    fn group(&mut self) {
        let Some(group) = self.root.get("group") else { return };
        if let (Some(_), Some(id)) = (group.entry("kinds"), group.entry("id")) {
            let what = "`group` has both `id` and `kinds`";
            self.add(code::COMPANION, &id.key_at, what, "give each kind its own `id` instead");
        }
        if let (Some(_), Some(by)) = (group.entry("shard"), group.entry("by")) {
            let what = "`group` has both `by` and `shard`: a shard is a group";
            self.add(code::COMPANION, &by.key_at, what, "remove one of the two");
        }
        let read: Vec<&str> = entries_of(self.root, "source")
            .iter()
            .flat_map(topics_of)
            .filter_map(Node::text)
            .collect();
        for kind in group.get("kinds").map(Node::entries).unwrap_or_default() {
            let Some(topic) = kind.value.get("topic") else { continue };
            let Some(name) = topic.text() else { continue };
            if !read.is_empty() && !read.contains(&name) {
                let what =
                    format!("the kind `{}` comes from `{name}`, which is not read", kind.key);
                let hint = match nearest(name, read.iter().copied()) {
                    Some(nearest) => format!("did you mean `{nearest}`?"),
                    None => format!("`source` reads {}", list(&read)),
                };
                self.add(code::NO_SUCH_WORD, &topic.at, what, &hint);
            }
        }
        self.close(group);
    }

    /// Every group must be bound to close some day.
    fn close(&mut self, group: &Node) {
        let Some(close) = group.entry("close") else { return };
        let bounded = !present(&close.value, &["after_first", "every", "max_age"]).is_empty();
        if bounded || self.findings.has(code::UNKNOWN_KEY, &close.value.at) {
            return;
        }
        let open_ended =
            present(&close.value, &["quiet", "quiet_by", "when", "max_count", "max_bytes"]);
        let hint = "add `max_age: 5m`, so that every group closes some day";
        match open_ended.as_slice() {
            [] => self.add(
                code::NEVER_CLOSES,
                &close.key_at,
                "`close` says nothing, so a group never closes",
                "e.g. `close: { after_first: 60s }`",
            ),
            [first, ..] => {
                let keys: Vec<_> = open_ended.iter().map(|e| format!("`{}`", e.key)).collect();
                let keys = keys.join(" and ");
                let what = format!("{keys} without `max_age`: a group may never close");
                self.add(code::NEVER_CLOSES, &first.key_at, what, hint);
            }
        }
    }

    fn stages(&mut self) {
        let mut seen: HashSet<&str> = HashSet::new();
        let stages = entries_of(self.root, "process");
        let group = self.root.get("group");
        let tracked = group.into_iter().chain(group.and_then(|group| group.get("shard")));
        for node in tracked.chain(stages).chain(entries_of(self.root, "deliver")) {
            let Some(name) = node.get("stage") else { continue };
            if name.text().is_some_and(|text| !seen.insert(text)) {
                let what = format!("two stages are called `{}`", name.text().unwrap_or_default());
                self.add(code::SAME_NAME, &name.at, what, "give each a name of its own");
            }
        }
        for stage in stages {
            if stage.is_map() {
                self.exactly_one(Section::Process, stage, code::COMPANION, "stage");
            }
            self.program(stage);
        }
    }

    /// What `.` is in a program depends on what else the stage says.
    fn program(&mut self, stage: &Node) {
        let per = stage.entry("per");
        let is_group = per.is_some_and(|per| per.value.text() == Some("group"));
        if let (Some(per), true, None) = (per, is_group, self.root.get("group")) {
            let what = "`per: group` without `group`: there are no groups";
            let hint = "add `group: …`, or remove `per` and write the program for one event";
            self.add(code::COMPANION, &per.key_at, what, hint);
        }
        let Some(Node { value: Value::Scalar(scalar), at }) = stage.get("vrl") else { return };
        if scalar.unresolved || scalar.typed() != ScalarValue::Text {
            return;
        }
        let per = if is_group { Per::Group } else { Per::Event };
        for wrong in StageVrl::check(&scalar.text, per) {
            let at = scalar.in_source(at, self.source.text(), wrong.at);
            match wrong.hint {
                Some(hint) => self.findings.add_hint(wrong.code, at, wrong.what, hint),
                None => self.findings.add(wrong.code, at, wrong.what),
            }
        }
    }

    fn deliver(&mut self, deliver: &Node) {
        if !deliver.is_map() {
            return;
        }
        self.exactly_one(Section::Deliver, deliver, code::TARGET, "delivery");
    }

    /// `id` and `kind` need something that makes them; `receiver` has nothing.
    fn words(&mut self) {
        let group = self.root.get("group");
        let kinds: Vec<&str> = group
            .and_then(|group| group.get("kinds"))
            .map(|kinds| kinds.entries().iter().map(|kind| kind.key.as_str()).collect())
            .unwrap_or_default();
        let has_id = !kinds.is_empty() || group.is_some_and(|group| group.get("id").is_some());
        for deliver in entries_of(self.root, "deliver") {
            for node in expressions_of(deliver) {
                let Some(text) = node.text() else { continue };
                if mentions(text, "id") && !has_id {
                    let what = "`id` without `group`: there is no such id";
                    let hint = "a field is written with a dot: `.id`; or give `group` an `id`";
                    self.add(code::NO_SUCH_WORD, &node.at, what, hint);
                }
                if mentions(text, "receiver") {
                    let what = "`receiver` is nothing that a record has";
                    let hint = "a field is written with a dot: `.receiver`";
                    self.add(code::NO_SUCH_WORD, &node.at, what, hint);
                }
            }
            if let Some(kind) = deliver.get("kind") {
                self.kind(kind, &kinds);
            }
        }
        // `by` and the pipeline's `order_by` come before there is an id.
        let early = group.into_iter().flat_map(|group| [group.get("by"), group.get("id")]);
        let early = early.chain([self.root.get("order_by")]).flatten();
        for node in early {
            let text = node.text().unwrap_or_default();
            if let Some(word) = ["id", "receiver"].iter().find(|word| mentions(text, word)) {
                let what = format!("`{word}` is known in `deliver` only");
                let hint = format!("a field is written with a dot: `.{word}`");
                self.add(code::NO_SUCH_WORD, &node.at, what, &hint);
            }
        }
    }

    fn kind(&mut self, kind: &Node, kinds: &[&str]) {
        let Some(text) = kind.text() else { return };
        if kinds.contains(&text) {
            return;
        }
        let what = format!("there is no kind `{text}`");
        let hint = match (nearest(text, kinds.iter().copied()), kinds.is_empty()) {
            (Some(nearest), _) => format!("did you mean `{nearest}`?"),
            (None, true) => "kinds are named in `group.kinds`".to_owned(),
            (None, false) => format!("`group.kinds` has {}", list(kinds)),
        };
        self.add(code::NO_SUCH_WORD, &kind.at, what, &hint);
    }

    /// Raw bytes have no fields.
    fn raw(&mut self) {
        let Some(decode) = self.root.get("decode") else { return };
        if decode.get("format").and_then(Node::text) != Some("raw") {
            return;
        }
        if let Some(schema) = decode.entry("schema") {
            let what = "`schema` with `format: raw`: raw bytes are not checked";
            self.add(code::RAW, &schema.key_at, what, "use `format: json`, or remove `schema`");
        }
        let hint =
            "use `format: json`; of raw records only `key`, `topic` and `header.…` are known";
        let mut nodes: Vec<&Node> = self.root.get("order_by").into_iter().collect();
        let group = self.root.get("group");
        nodes.extend(
            group.into_iter().flat_map(|g| [shard_by(g), g.get("by"), g.get("id")]).flatten(),
        );
        for deliver in entries_of(self.root, "deliver") {
            nodes.extend(expressions_of(deliver));
        }
        for node in nodes {
            let template = node.text().and_then(|text| Template::parse(text).ok());
            if template.is_some_and(|template| template.needs_value()) {
                let what = "a field of raw bytes: they have none";
                self.add(code::RAW, &node.at, what, hint);
            }
        }
        for entry in entries_of(self.root, "process").iter().filter_map(|s| s.entry("vrl")) {
            let what = "`vrl` on raw bytes: they have no fields";
            self.add(code::RAW, &entry.key_at, what, "use `format: json`");
        }
    }

    /// A pipeline must not read what it writes.
    fn loops(&mut self) {
        let read: Vec<&str> = entries_of(self.root, "source")
            .iter()
            .flat_map(topics_of)
            .filter_map(Node::text)
            .collect();
        let dead = self.root.get("dead_letter").and_then(|dead| dead.get("topic"));
        let name = self.root.get("name").and_then(Node::text).unwrap_or_default();
        let dead_name = match dead.and_then(Node::text) {
            Some(topic) => topic.to_owned(),
            None => format!("{name}-dead"),
        };
        let hint = "use another topic";
        for node in entries_of(self.root, "deliver").iter().flat_map(written_topics) {
            let Some(topic) = node.text() else { continue };
            if read.contains(&topic) {
                let what =
                    format!("`{topic}` is read by this pipeline: its records would go round");
                self.add(code::LOOP, &node.at, what, hint);
            }
            if topic == dead_name {
                let what = format!("`{topic}` holds the dead letters of this pipeline");
                self.add(code::LOOP, &node.at, what, hint);
            } else if let Some(purpose) = potok_core::own_topic(topic) {
                let what = format!("`{topic}` is a topic of potok's own: it holds {purpose}");
                self.add(code::OWN_TOPIC, &node.at, what, hint);
            }
        }
        // Dead letters may have any topic of their own, but none that is for something else.
        let is_other = dead_name.starts_with("potok-")
            || ["-dead-resolved", "-replay"].iter().any(|end| dead_name.ends_with(end));
        if let Some(node) = dead.filter(|_| is_other) {
            let what = format!("`{dead_name}` is a topic of potok's own, and not for dead letters");
            self.add(code::OWN_TOPIC, &node.at, what, hint);
        }
        let own =
            [format!("{dead_name}-resolved"), format!("{name}-replay"), format!("potok-{name}")];
        for node in entries_of(self.root, "source").iter().flat_map(topics_of) {
            let Some(topic) = node.text().filter(|topic| own.iter().any(|own| own == topic)) else {
                continue;
            };
            let what = format!("`{topic}` is a topic of this pipeline's own");
            self.add(code::OWN_TOPIC, &node.at, what, hint);
        }
        if read.contains(&dead_name.as_str()) {
            let what =
                format!("`{dead_name}` is read by this pipeline: dead letters would go round");
            let sources = self.root.entry("source").map(|source| source.key_at.clone());
            let at = dead.map(|dead| dead.at.clone()).or(sources).unwrap_or(0..0);
            self.add(code::LOOP, &at, what, hint);
        }
    }

    /// Dead letters lie in one place.
    fn dead_letters(&mut self) {
        let Some(dead) = self.root.get("dead_letter") else { return };
        if let (Some(_), Some(table)) = (dead.entry("topic"), dead.entry("table")) {
            let what = "`dead_letter` has both `topic` and `table`";
            self.add(code::COMPANION, &table.key_at, what, "remove one of the two");
        }
    }

    fn limits(&mut self) {
        fn read<T: TextValue>(map: Option<&Node>, key: &str) -> Option<T> {
            T::read(map?.get(key)?.text()?).ok()
        }
        let retry = self.root.get("retry");
        // One that cannot be read has been spoken of.
        let period = |key: &str, usual: Period| match retry.and_then(|retry| retry.get(key)) {
            Some(_) => read::<Period>(retry, key),
            None => Some(usual),
        };
        let (Some(first), Some(max)) =
            (period("first", Period::ms(50)), period("max", Period::secs(5)))
        else {
            return self.in_flight();
        };
        let entry = retry.and_then(|retry| retry.entry("first").or_else(|| retry.entry("max")));
        if let (Some(entry), true) = (entry, first > max) {
            let what = format!("`first` ({first}) is longer than `max` ({max})");
            self.add(code::CONTRADICTION, &entry.value.at, what, "`max` is the longest wait");
        }
        self.in_flight();
    }

    fn in_flight(&mut self) {
        fn read<T: TextValue>(map: Option<&Node>, key: &str) -> Option<T> {
            T::read(map?.get(key)?.text()?).ok()
        }
        let limits = self.root.get("limits");
        let size = read::<Size>(limits, "in_flight_bytes");
        let entry = limits.and_then(|limits| limits.entry("in_flight_bytes"));
        if let (Some(size), Some(entry)) = (size, entry)
            && size < IN_FLIGHT_MIN
        {
            let what = format!("`in_flight_bytes` must be at least {IN_FLIGHT_MIN}");
            self.add(code::OUT_OF_RANGE, &entry.value.at, what, "e.g. `64MiB`");
        }
    }
}

/// Less would not hold the few records that keep the workers busy.
const IN_FLIGHT_MIN: Size = Size(64 * 1024);

/// The topics a source reads.
pub(crate) fn topics_of(source: &Node) -> impl Iterator<Item = &Node> {
    let many = source.get("topics").map(Node::one_or_many).unwrap_or_default();
    source.get("topic").into_iter().chain(source.get("list")).chain(many)
}

/// The topics a delivery writes.
fn written_topics(deliver: &Node) -> Vec<&Node> {
    let Some(topic) = deliver.get("topic") else { return Vec::new() };
    match topic.get("map") {
        Some(map) => map.entries().iter().map(|entry| &entry.value).collect(),
        None => vec![topic],
    }
}

/// Every expression of a delivery that may speak of `id`.
fn expressions_of(deliver: &Node) -> Vec<&Node> {
    let mut nodes: Vec<&Node> = deliver.get("key").into_iter().collect();
    nodes.extend(deliver.get("once_by").map(Node::one_or_many).unwrap_or_default());
    nodes.extend(deliver.get("topic").and_then(|topic| topic.get("by")));
    nodes
}
