//! Reference pages in Markdown, made from the same structs and the same registry as the check.

use std::fmt::Write;

use serde_json::Value as Json;

use crate::check::example;
use crate::explain;
use crate::registry::Registry;
use crate::variants::{key_of, kinds_of, properties_of};

/// The pages: file name and text.
pub fn reference(registry: &Registry) -> Vec<(&'static str, String)> {
    let (pipeline, connections) = (registry.pipeline_schema(), registry.connections_schema());
    vec![
        ("pipeline.md", page("Pipeline files", EXPRESSIONS, pipeline)),
        ("connections.md", page("Connections: potok.yaml", "", connections)),
        ("errors.md", errors()),
    ]
}

const MADE: &str = "<!-- Made by `potok reference`; do not edit. -->\n\n";

const VALUES: &str = "\
Values may contain `${NAME}` and `${NAME:-default}`, replaced by environment variables when the
file is loaded; `$${` stands for a literal `${`. Durations are written `50ms`, `30s`, `1h30m`,
`7d`, sizes `64KB`, `16MiB`. Unknown keys are refused. Maps have their own sections below.

";

const EXPRESSIONS: &str = "\
| where | what one writes |
|---|---|
| `by`, `id`, `key`, `once_by`, `order_by` | a path: `.a.b`, `header.batchId`, `key`, `topic`; or a template: `\"{.a}_{.b}\"`. In `deliver` also `id`, the id in the group. Where a part is missing or null, the record becomes a dead letter `no_key` |
| `rows` | a path: `.` the whole record, `.delivery` a part of it, `.items[]` a row per element |
| `count`, `shard.by` | a path: `.a.b`, `.items[0].n` |
| `vrl`, `when` | VRL, type-checked when the file is loaded: the event is `.`; key, headers, topic and time are `%key`, `%headers`, `%topic`, `%time`; there is no `%` for remainders, but `mod()`. In a stage with `per: group`, `.` is an array: see `process` |

";

fn page(title: &str, intro: &str, root: &Json) -> String {
    let mut page = Page { root, text: format!("{MADE}# {title}\n\n{VALUES}{intro}") };
    page.section("", root);
    page.text.truncate(page.text.trim_end().len());
    page.text.push('\n');
    page.text
}

struct Page<'a> {
    root: &'a Json,
    text: String,
}

impl<'a> Page<'a> {
    /// A map: what it is, its keys, and then the maps below it.
    fn section(&mut self, path: &str, map: &'a Json) {
        if !path.is_empty() {
            self.line(&format!("## `{path}`"));
            self.line("");
        }
        self.line(&description(map));
        self.line("");
        let mut below = Vec::new();
        match kinds_of(map) {
            None => self.keys(path, map, |_| true, &mut below),
            Some(kinds) => self.kinds(path, &kinds, &mut below),
        }
        for (path, map) in below {
            self.section(&path, map);
        }
    }

    /// Entries of several kinds: the keys that all have, and then each kind.
    fn kinds(&mut self, path: &str, kinds: &[&'a Json], below: &mut Vec<(String, &'a Json)>) {
        let has = |kind: &Json, key: &str| {
            properties_of(kind).is_some_and(|properties| properties.contains_key(key))
        };
        let in_all = |key: &str| kinds.iter().all(|kind| has(kind, key));
        let Some(first) = kinds.first().filter(|_| kinds.len() > 1) else { return };
        if properties_of(first).is_some_and(|properties| properties.keys().any(|key| in_all(key))) {
            self.line("Every entry may have:");
            self.keys(path, first, in_all, below);
        }
        for kind in kinds {
            self.line(&format!("### `{path}` with `{}`", key_of(kind).unwrap_or_default()));
            self.line("");
            self.line(&description(kind));
            self.line("");
            self.keys(path, kind, |key| !in_all(key), below);
        }
    }

    /// The keys of a map that are wanted.
    fn keys(
        &mut self,
        path: &str,
        map: &'a Json,
        wanted: impl Fn(&str) -> bool,
        below: &mut Vec<(String, &'a Json)>,
    ) {
        let required = map.get("required").and_then(Json::as_array).into_iter().flatten();
        let required: Vec<&str> = required.filter_map(Json::as_str).collect();
        for (key, schema) in properties_of(map).into_iter().flatten().filter(|(key, _)| wanted(key))
        {
            self.key(key, schema, required.contains(&key.as_str()));
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            self.maps_below(&path, schema, below);
        }
        self.line("");
    }

    fn key(&mut self, key: &str, schema: &'a Json, required: bool) {
        let mut head = format!("- **`{key}`**: {}", self.value(schema));
        let default = schema.get("default").filter(|d| !is_empty(d)).map(plain);
        match (required, default) {
            (true, _) => head.push_str(", required"),
            (false, Some(default)) => {
                let _ = write!(head, ", default `{default}`");
            }
            (false, None) => {}
        }
        let _ = write!(head, ". {}", description(schema));
        if let Some(example) = example(schema) {
            let _ = write!(head, " E.g. `{example}`");
        }
        self.line(&head);
        for shape in self.shapes(schema) {
            if let Some(word) = shape.get("const").and_then(Json::as_str) {
                self.line(&format!("  - `{word}`: {}", description(shape)));
            }
        }
    }

    /// What one writes, in a few words.
    fn value(&self, schema: &'a Json) -> String {
        let mut words: Vec<String> = Vec::new();
        for shape in self.shapes(schema) {
            let word = match (kind(shape), shape.get("format").and_then(Json::as_str)) {
                _ if shape.get("const").is_some() => "one of these words".into(),
                _ if kinds_of(shape).is_some() => "a map".into(),
                ("array", _) => match shape.get("items") {
                    Some(items) => format!("a list, each {}", self.value(items)),
                    None => "a list".into(),
                },
                ("object", _) => match shape.get("additionalProperties") {
                    Some(values @ Json::Object(_)) => {
                        format!("a map from names to {}", self.value(values))
                    }
                    _ => "a map".into(),
                },
                _ if shape.get("writeOnly").is_some() => "text that is never shown".into(),
                (_, Some(format)) if name_of(format).is_some() => {
                    name_of(format).unwrap_or_default().into()
                }
                ("integer", _) => match (shape.get("minimum"), shape.get("maximum")) {
                    (Some(min), Some(max)) => format!("a number from {min} to {max}"),
                    _ => "a number".into(),
                },
                ("boolean", _) => "`true` or `false`".into(),
                ("null", _) => continue,
                _ => "text".into(),
            };
            if !words.contains(&word) {
                words.push(word);
            }
        }
        words.join(", or ")
    }

    /// The maps one level below a value, with the path under which they are written.
    fn maps_below(&self, path: &str, schema: &'a Json, below: &mut Vec<(String, &'a Json)>) {
        let is_new = !below.iter().any(|(known, _)| known == path);
        for shape in self.shapes(schema) {
            if shape.get("properties").is_some() || kinds_of(shape).is_some() {
                if is_new {
                    below.push((path.to_owned(), shape));
                }
            } else if let Some(items) = shape.get("items") {
                self.maps_below(path, items, below);
            } else if let Some(values @ Json::Object(_)) = shape.get("additionalProperties") {
                self.maps_below(&format!("{path}.<name>"), values, below);
            }
        }
    }

    fn shapes(&self, schema: &'a Json) -> Vec<&'a Json> {
        if let Some(path) = schema.get("$ref").and_then(Json::as_str) {
            let found = self.root.pointer(path.trim_start_matches('#'));
            return found.map(|found| self.shapes(found)).unwrap_or_default();
        }
        match schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Json::as_array) {
            // A section of several kinds is one shape here: it has a page of its own.
            _ if kinds_of(schema).is_some() => vec![schema],
            Some(several) => several.iter().flat_map(|shape| self.shapes(shape)).collect(),
            None => vec![schema],
        }
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }
}

/// The type of a shape that has one besides `null`.
fn kind(shape: &Json) -> &str {
    match shape.get("type") {
        Some(Json::String(one)) => one,
        Some(Json::Array(several)) => {
            several.iter().filter_map(Json::as_str).find(|kind| *kind != "null").unwrap_or("null")
        }
        _ => "",
    }
}

fn name_of(format: &str) -> Option<&'static str> {
    let names = [
        ("potok-duration", "a duration"),
        ("potok-size", "a size"),
        ("potok-pipeline-name", "a name"),
        ("potok-topic", "a name"),
        ("potok-sql-name", "a name"),
        ("potok-connection-name", "a name"),
        ("potok-sharded-name", "a name"),
        ("potok-address", "`host:port`"),
        ("potok-web-address", "`https://host/…`, or `http` on this machine"),
        ("potok-origin", "`https://host[:port]`"),
        ("potok-network", "an address, or a network `address/bits`"),
        ("potok-each-path", "a path"),
        ("potok-http-path", "a path"),
        ("potok-expression", "a path or template"),
        ("potok-rows", "a path of rows"),
        ("potok-count-path", "a path"),
        ("potok-field-path", "a path"),
        ("potok-vrl-stage", "VRL"),
        ("potok-vrl-predicate", "VRL"),
        ("password", "text that is never shown"),
    ];
    names.iter().find(|(name, _)| *name == format).map(|(_, words)| *words)
}

/// The description without its example, on one line.
fn description(schema: &Json) -> String {
    let text = schema.get("description").and_then(Json::as_str).unwrap_or_default();
    let text = text.split("Example: `").next().unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_empty(default: &Json) -> bool {
    match default {
        Json::Null => true,
        Json::Array(items) => items.is_empty(),
        Json::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// A default as one would write it in the file.
fn plain(default: &Json) -> String {
    match default {
        Json::String(text) => text.clone(),
        Json::Object(fields) => {
            let fields: Vec<_> = fields.iter().map(|(k, v)| format!("{k}: {}", plain(v))).collect();
            format!("{{ {} }}", fields.join(", "))
        }
        other => other.to_string(),
    }
}

fn errors() -> String {
    let mut text = format!("{MADE}# Errors\n\n`potok explain CODE` prints the page of a code.\n\n");
    for code in explain::explain_codes() {
        let title = explain::explain(code).and_then(|page| page.lines().next()).unwrap_or_default();
        let title = title.trim_start_matches('#').trim();
        let _ = writeln!(text, "- [{title}](../errors/{code}.md)");
    }
    text
}
