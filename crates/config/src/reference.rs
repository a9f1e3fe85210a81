//! Reference pages in Markdown, made from the same structs as the check.

use std::fmt::Write;

use serde_json::Value as Json;

use crate::check::example;
use crate::explain;
use crate::schema;

/// The pages: file name and text.
pub fn reference() -> Vec<(&'static str, String)> {
    vec![
        ("pipeline.md", page("Pipeline files", EXPRESSIONS, schema::pipeline())),
        ("connections.md", page("Connections: potok.yaml", "", schema::connections())),
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
| `by`, `id`, `key`, `once_by`, `order_by`, `each`, `method` | a path: `.a.b`, `header.batchId`, `key`, `topic`; or a template: `\"{.a}_{.b}\"`. In `deliver` also `id`, the id in the group, and `receiver`, the element of `each`. Where a part is missing or null, the record becomes a dead letter `no_key` |
| `rows` | a path: `.` the whole record, `.delivery` a part of it, `.items[]` a row per element |
| `count` | a path: `.a.b`, `.items[0].n` |
| `vrl`, `when`, `shard` | VRL, type-checked when the file is loaded: the event is `.`; key, headers, topic and time are `%key`, `%headers`, `%topic`, `%time`; there is no `%` for remainders, but `mod()`. In a stage with `per: group`, `.` is an array: see `process` |

This version reads topics, holds groups, runs VRL and webhook stages, and delivers into topics and
databases. What else is described here is understood and refused with [P0160](../errors/P0160.md).

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
        let properties = map.get("properties").and_then(Json::as_object);
        let required: Vec<&str> = map
            .get("required")
            .and_then(Json::as_array)
            .map(|keys| keys.iter().filter_map(Json::as_str).collect())
            .unwrap_or_default();
        let mut below = Vec::new();
        for (key, schema) in properties.into_iter().flatten() {
            self.key(key, schema, required.contains(&key.as_str()));
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            self.maps_below(&path, schema, &mut below);
        }
        self.line("");
        for (path, map) in below {
            self.section(&path, map);
        }
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
        for shape in self.shapes(schema) {
            if shape.get("properties").is_some() {
                if !below.iter().any(|(known, _)| known == path) {
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
        ("potok-db-name", "a name"),
        ("potok-address", "`host:port`"),
        ("potok-http-path", "a path"),
        ("potok-expression", "a path or template"),
        ("potok-rows", "a path of rows"),
        ("potok-count-path", "a path"),
        ("potok-vrl", "VRL"),
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
