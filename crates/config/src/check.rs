//! Walks a file beside the JSON Schema of its structs: every unknown key, wrong type, missing
//! field and wrong value, each with its place, and the file as JSON for the deserializer.
//!
//! It knows the part of JSON Schema that the structs of this crate make, not more. The file is
//! read by the schema: text from the environment is a number where the schema wants a number.

use std::ops::Range;

use serde_json::{Map, Value as Json};

use crate::problem::{Findings, code};
use crate::registry::Registry;
use crate::scalar::{Scalar, ScalarValue};
use crate::schema::CONNECTION_FORMAT;
use crate::text::{SourceText, names_secret};
use crate::tree::{Entry, Node, Value};
use crate::values::{
    Period, Size, TextError, TextValue, check_connection, check_format, duration_hint, size_hint,
};
use crate::variants::{key_of, named, properties_of};

/// Checks a whole file and turns it into JSON, which is complete only when nothing was found.
pub(crate) fn conform(
    root: &Node,
    source: &SourceText,
    schema: &Json,
    registry: &Registry,
    findings: &mut Findings,
) -> Json {
    let mut conform = Conform { root: schema, source, registry, findings };
    // What the whole file lacks is shown at its beginning.
    let owner = root.at.start..root.at.start;
    conform.value(root, schema, &ValueLocation::new("the file", owner))
}

struct Conform<'a> {
    root: &'a Json,
    source: &'a SourceText,
    registry: &'a Registry,
    findings: &'a mut Findings,
}

/// The keys that a map may have.
struct Keys<'a> {
    known: Vec<(&'a str, &'a Json)>,
    required: Vec<&'a str>,
    /// What any other key leads to, in a map of names.
    others: Option<&'a Json>,
    /// In a section of several kinds, the keys of the other kinds.
    of_others: Vec<ForeignKey<'a>>,
}

/// A key that only other kinds of entries have.
struct ForeignKey<'a> {
    key: &'a str,
    schema: &'a Json,
    kinds: Vec<&'a str>,
}

impl<'a> Keys<'a> {
    /// Of a map that is of one kind only.
    fn of(shape: &'a Json) -> Self {
        let known = properties_of(shape).into_iter().flatten();
        let required = shape.get("required").and_then(Json::as_array).into_iter().flatten();
        Keys {
            known: known.map(|(key, schema)| (key.as_str(), schema)).collect(),
            required: required.filter_map(Json::as_str).collect(),
            others: shape.get("additionalProperties").filter(|others| others.is_object()),
            of_others: Vec::new(),
        }
    }

    /// Of an entry that names one of several kinds; where it names none, the keys of all.
    fn of_variant(entry: &Node, kinds: &[&'a Json]) -> Self {
        let chosen = named(entry, kinds).first().copied();
        let mut keys = match chosen {
            Some(kind) => Keys::of(kind),
            None => Keys {
                known: Vec::new(),
                required: Vec::new(),
                others: None,
                of_others: Vec::new(),
            },
        };
        for kind in kinds {
            for (key, schema) in properties_of(kind).into_iter().flatten() {
                match chosen {
                    None if keys.get(key).is_none() => keys.known.push((key, schema)),
                    Some(_) if keys.get(key).is_none() => keys.note(key, schema, kind),
                    _ => {}
                }
            }
        }
        keys
    }

    fn note(&mut self, key: &'a str, schema: &'a Json, kind: &'a Json) {
        let Some(kind) = key_of(kind) else { return };
        match self.of_others.iter_mut().find(|known| known.key == key) {
            Some(known) => known.kinds.push(kind),
            None => self.of_others.push(ForeignKey { key, schema, kinds: vec![kind] }),
        }
    }

    fn get(&self, key: &str) -> Option<&'a Json> {
        self.known.iter().find(|(known, _)| *known == key).map(|(_, schema)| *schema)
    }

    /// A key that this kind does not have and others do.
    fn of_others(&self, key: &str) -> Option<&ForeignKey<'a>> {
        self.of_others.iter().find(|known| known.key == key)
    }
}

/// What a value is called and where its key stands.
struct ValueLocation {
    name: String,
    at: Range<usize>,
    /// How such a value looks, or what to write instead of a list.
    example: Option<String>,
    plural: Option<String>,
}

impl ValueLocation {
    fn new(name: impl Into<String>, at: Range<usize>) -> Self {
        ValueLocation { name: name.into(), at, example: None, plural: None }
    }
}

impl<'a> Conform<'a> {
    /// Follows references; what stands beside a reference only describes.
    fn resolve(&self, schema: &'a Json) -> &'a Json {
        let mut schema = schema;
        while let Some(path) = schema.get("$ref").and_then(Json::as_str) {
            match self.root.pointer(path.trim_start_matches('#')) {
                Some(found) => schema = found,
                None => break,
            }
        }
        schema
    }

    /// The shapes a value may have: a schema is one, `anyOf` and `oneOf` are several.
    fn shapes(&self, schema: &'a Json) -> Vec<&'a Json> {
        let schema = self.resolve(schema);
        let several = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Json::as_array);
        match several {
            Some(several) => several.iter().flat_map(|shape| self.shapes(shape)).collect(),
            None => vec![schema],
        }
    }

    fn value(&mut self, node: &Node, schema: &'a Json, place: &ValueLocation) -> Json {
        let shapes = self.shapes(schema);
        let of =
            |kind: &str| shapes.iter().copied().filter(|s| has_type(s, kind)).collect::<Vec<_>>();
        let found = match &node.value {
            Value::Map(entries) => {
                let maps = of("object");
                maps.first().map(|shape| {
                    let keys = match key_of(shape) {
                        Some(_) => Keys::of_variant(node, &maps),
                        None => Keys::of(shape),
                    };
                    self.map(node, entries, shape, &keys, place)
                })
            }
            Value::List(items) => {
                of("array").first().map(|shape| self.list(node, items, shape, place))
            }
            Value::Scalar(scalar) => {
                let is_secret = |shape: &&&Json| shape.get("writeOnly").is_some();
                if shapes.iter().any(|shape| is_secret(&shape)) {
                    self.findings.hide(node.at.clone());
                }
                if scalar.unresolved {
                    return Json::Null;
                }
                self.scalar(node, scalar, &shapes, place)
            }
        };
        found.unwrap_or_else(|| {
            // A secret in the wrong shape is still a secret.
            if shapes.iter().any(|shape| shape.get("writeOnly").is_some()) {
                self.findings.hide(node.at.clone());
            }
            self.wrong_type(node, &shapes, place);
            Json::Null
        })
    }

    fn map(
        &mut self,
        node: &Node,
        entries: &[Entry],
        shape: &'a Json,
        keys: &Keys<'a>,
        place: &ValueLocation,
    ) -> Json {
        let (mut object, mut misspelt) = (Map::new(), Vec::new());
        if entries.is_empty() && shape.get("minProperties").is_some() {
            let what = format!("{} is empty", place.name);
            self.findings.add_hint(code::OUT_OF_RANGE, node.at.clone(), what, "give at least one");
        }
        for entry in entries {
            let schema = match (keys.get(&entry.key), keys.others, keys.of_others(&entry.key)) {
                (Some(schema), ..) => schema,
                (None, Some(schema), _) => {
                    self.key(entry, shape);
                    schema
                }
                (None, None, Some(known)) => {
                    self.key_of_others(node, entry, known);
                    continue;
                }
                (None, None, None) => {
                    misspelt.extend(self.unknown_key(entry, keys, place));
                    continue;
                }
            };
            let several = format!("{}s", entry.key);
            let is_known = keys.get(&several).is_some() || keys.of_others(&several).is_some();
            let place = ValueLocation {
                name: format!("`{}`", entry.key),
                at: entry.key_at.clone(),
                example: example(schema),
                plural: is_known.then_some(several),
            };
            let value = self.value(&entry.value, schema, &place);
            object.insert(entry.key.clone(), value);
        }
        for key in &keys.required {
            if node.entry(key).is_none() && !misspelt.contains(key) {
                self.missing(key, keys.get(key), place);
            }
        }
        Json::Object(object)
    }

    /// A key that entries of another kind have. That an entry is of two kinds is said by the rules.
    fn key_of_others(&mut self, node: &Node, entry: &Entry, known: &ForeignKey<'a>) {
        let ForeignKey { key, schema, kinds } = known;
        if is_address(&entry.value) || self.holds_secret(schema) {
            self.findings.hide(entry.value.at.clone());
        }
        if kinds.iter().any(|kind| node.entry(kind).is_some()) {
            return;
        }
        let what = format!("`{key}` means nothing without {}", kinds.join(" or "));
        let hint = format!("add {}, or remove `{key}`", list(kinds));
        self.findings.add_hint(code::COMPANION, entry.key_at.clone(), what, hint);
    }

    /// Checks a key that the writer of the file chose.
    fn key(&mut self, entry: &Entry, shape: &Json) {
        let format = shape.pointer("/propertyNames/format").and_then(Json::as_str);
        for wrong in format.map(|format| self.check(format, &entry.key)).unwrap_or_default() {
            let at = entry.key_at.clone();
            self.findings.add_hint(wrong.code, at, wrong.what, wrong.hint.unwrap_or_default());
        }
    }

    fn list(
        &mut self,
        node: &Node,
        items: &[Node],
        shape: &'a Json,
        place: &ValueLocation,
    ) -> Json {
        if items.is_empty() && shape.get("minItems").and_then(Json::as_u64) > Some(0) {
            let what = format!("{} is empty", place.name);
            self.findings.add_hint(code::OUT_OF_RANGE, node.at.clone(), what, "give at least one");
        }
        let Some(schema) = shape.get("items") else { return Json::Array(Vec::new()) };
        let item = |item: &Node| {
            let name = format!("an entry of {}", place.name);
            self.value(item, schema, &ValueLocation::new(name, item.at.start..item.at.start + 1))
        };
        Json::Array(items.iter().map(item).collect())
    }

    /// A scalar, or `None` where no shape takes one of its type.
    fn scalar(
        &mut self,
        node: &Node,
        scalar: &Scalar,
        shapes: &[&'a Json],
        place: &ValueLocation,
    ) -> Option<Json> {
        let takes = |kind: &str| shapes.iter().find(|shape| has_type(shape, kind)).copied();
        let typed = match scalar.typed() {
            ScalarValue::Null | ScalarValue::Text => None,
            ScalarValue::Bool(bool) => takes("boolean").map(|_| Json::from(bool)),
            ScalarValue::Int(int) => {
                let shape = takes("integer").or_else(|| takes("number"));
                shape.map(|shape| self.number(node, int, shape, place))
            }
            ScalarValue::Float(float) => takes("number").map(|_| Json::from(float)),
        };
        if typed.is_some() {
            return typed;
        }
        if scalar.typed() != ScalarValue::Text && !scalar.is_substituted() {
            return None;
        }
        takes("string")?;
        self.words(node, scalar, shapes, place);
        let format = shapes.iter().find_map(|shape| shape.get("format").and_then(Json::as_str));
        for wrong in format.map(|format| self.check(format, &scalar.text)).unwrap_or_default() {
            if is_address(node) {
                self.findings.hide(node.at.clone());
            }
            let at = scalar.in_source(&node.at, self.source.text(), wrong.at);
            match wrong.hint {
                Some(hint) => self.findings.add_hint(wrong.code, at, wrong.what, hint),
                None => self.findings.add(wrong.code, at, wrong.what),
            }
        }
        Some(Json::from(scalar.text.as_str()))
    }

    /// What is wrong with a text that must have a format.
    fn check(&self, format: &str, text: &str) -> Vec<TextError> {
        let kind = format.strip_prefix(CONNECTION_FORMAT);
        match kind.and_then(|key| self.registry.connections.iter().find(|kind| kind.key == key)) {
            Some(kind) => check_connection(kind, text),
            None => check_format(format, text),
        }
    }

    fn number(&mut self, node: &Node, int: i64, shape: &Json, place: &ValueLocation) -> Json {
        let min = shape.get("minimum").and_then(Json::as_i64);
        let max = shape.get("maximum").and_then(Json::as_i64).unwrap_or(i64::from(u32::MAX));
        if min.is_some_and(|min| int < min) || int > max {
            let what = format!("{} is out of range: {int}", place.name);
            let hint = format!("from {} to {max}", min.unwrap_or(i64::MIN));
            self.findings.add_hint(code::OUT_OF_RANGE, node.at.clone(), what, hint);
        }
        Json::from(int)
    }

    /// Where only certain words are allowed: one of them.
    fn words(&mut self, node: &Node, scalar: &Scalar, shapes: &[&'a Json], place: &ValueLocation) {
        let words = words_of(shapes);
        let text = scalar.text.as_str();
        if words.is_empty() || words.contains(&text) {
            return;
        }
        let nearest = nearest(text, words.iter().copied());
        let hint = match nearest {
            Some(nearest) => format!("did you mean `{nearest}`? It is one of {}", list(&words)),
            None => format!("one of {}", list(&words)),
        };
        let what = format!("{} cannot be `{text}`", place.name);
        self.findings.add_hint(code::OUT_OF_RANGE, node.at.clone(), what, hint);
    }

    /// Returns the key that was probably meant.
    fn unknown_key(
        &mut self,
        entry: &Entry,
        known: &Keys<'a>,
        place: &ValueLocation,
    ) -> Option<&'a str> {
        let keys: Vec<&'a str> = known.known.iter().map(|(key, _)| *key).collect();
        let nearest = nearest(&entry.key, keys.iter().copied());
        // Whatever stands behind a misspelt key may be a secret, unless the right one has none.
        let meant = nearest.and_then(|nearest| known.get(nearest));
        let may_be_secret = meant.is_none_or(|schema| self.holds_secret(schema));
        if may_be_secret || names_secret(&entry.key) || is_address(&entry.value) {
            self.findings.hide(entry.value.at.clone());
        }
        let mut homes = Vec::new();
        self.homes(&entry.key, self.root, "", &mut homes);
        let slip = nearest.filter(|near| strsim::damerau_levenshtein(&entry.key, near) <= 1);
        let hint = match (homes.first().map(String::as_str), slip.or(nearest)) {
            (Some(_), Some(slip)) if slip_is(slip, &entry.key) => format!("did you mean `{slip}`?"),
            (Some(""), _) => format!("`{}` belongs to the top of the file", entry.key),
            (Some(home), _) => format!("`{}` belongs into `{home}`", entry.key),
            (None, Some(nearest)) => format!("did you mean `{nearest}`?"),
            (None, None) => format!("known here: {}", list(&keys)),
        };
        let what = match place.name.as_str() {
            "the file" => format!("unknown key `{}`", entry.key),
            name => format!("unknown key `{}` in {name}", entry.key),
        };
        self.findings.add_hint(code::UNKNOWN_KEY, entry.key_at.clone(), what, hint);
        slip.or(nearest.filter(|_| homes.is_empty()))
    }

    /// True where a value, or something below it, is secret.
    fn holds_secret(&self, schema: &'a Json) -> bool {
        self.shapes(schema).into_iter().any(|shape| {
            let named = shape.get("properties").and_then(Json::as_object);
            let below = named.into_iter().flat_map(|properties| properties.values());
            let mut below =
                below.chain(shape.get("items")).chain(shape.get("additionalProperties"));
            shape.get("writeOnly").is_some() || below.any(|below| self.holds_secret(below))
        })
    }

    /// Where in the schema a key of that name is known, as dotted paths.
    fn homes(&self, key: &str, schema: &'a Json, path: &str, homes: &mut Vec<String>) {
        for shape in self.shapes(schema) {
            let shape = match shape.get("items") {
                Some(items) => self.resolve(items),
                None => shape,
            };
            let properties = shape.get("properties").and_then(Json::as_object);
            for (name, below) in properties.into_iter().flatten() {
                if name == key {
                    homes.push(path.to_owned());
                }
                let dot = if path.is_empty() { "" } else { "." };
                self.homes(key, below, &format!("{path}{dot}{name}"), homes);
            }
        }
    }

    fn missing(&mut self, key: &str, schema: Option<&Json>, place: &ValueLocation) {
        let example = schema.and_then(example);
        let hint = match &example {
            Some(example) => format!("add it, e.g. `{example}`"),
            None => format!("add `{key}: …`"),
        };
        let what = format!("{} has no `{key}`", place.name);
        self.findings.add_hint(code::MISSING, place.at.clone(), what, hint);
    }

    fn wrong_type(&mut self, node: &Node, shapes: &[&Json], place: &ValueLocation) {
        let mut wanted: Vec<&str> = shapes.iter().filter_map(|shape| in_words(shape)).collect();
        wanted.dedup();
        let takes = |kind: &str| shapes.iter().any(|shape| has_type(shape, kind));
        let wanted = wanted.join(" or ");
        let example = place.example.as_ref().map(|example| format!("e.g. `{example}`"));
        let (found, hint) = match &node.value {
            Value::Map(_) if takes("array") => {
                let line = "a list: put `- ` in front of the first key and indent the others";
                let example = example.map(|example| format!(", {example}")).unwrap_or_default();
                ("a map", Some(format!("{line}{example}")))
            }
            Value::Map(_) => ("a map", example),
            Value::List(_) => match &place.plural {
                Some(several) => ("a list", Some(format!("several go into `{several}: [ … ]`"))),
                None => ("a list", example),
            },
            Value::Scalar(scalar) => {
                let format = |format: &str| {
                    shapes.iter().any(|shape| shape.get("format") == Some(&Json::from(format)))
                };
                match scalar.typed() {
                    ScalarValue::Null => {
                        ("empty", Some("give it a value, or remove the key".to_owned()))
                    }
                    ScalarValue::Int(_) | ScalarValue::Float(_) if format(Period::FORMAT) => {
                        ("a number", Some(duration_hint(&scalar.text)))
                    }
                    ScalarValue::Int(_) | ScalarValue::Float(_) if format(Size::FORMAT) => {
                        ("a number", Some(size_hint(&scalar.text)))
                    }
                    ScalarValue::Bool(_) if format(Period::FORMAT) || format(Size::FORMAT) => {
                        ("a yes/no", example)
                    }
                    ScalarValue::Bool(_) | ScalarValue::Int(_) | ScalarValue::Float(_)
                        if takes("string") =>
                    {
                        ("a number or a yes/no", Some("put it into quotes".to_owned()))
                    }
                    ScalarValue::Bool(_) => ("a yes/no", example),
                    ScalarValue::Int(_) | ScalarValue::Float(_) => ("a number", example),
                    ScalarValue::Text if takes_topic(shapes) => {
                        let topic = format!("{{ topic: {} }}", scalar.text);
                        let key = place.name.trim_matches('`');
                        ("text", Some(format!("write `{key}: {topic}`")))
                    }
                    ScalarValue::Text => ("text", example),
                }
            }
        };
        let what = format!("{} must be {wanted}, not {found}", place.name);
        // An empty value has no bytes to point at; its key has.
        let at = if node.at.is_empty() { place.at.clone() } else { node.at.clone() };
        match hint {
            Some(hint) => self.findings.add_hint(code::WRONG_TYPE, at, what, hint),
            None => self.findings.add(code::WRONG_TYPE, at, what),
        }
    }
}

/// True for text that looks like an address: wherever it stands, it may hold a password.
fn is_address(node: &Node) -> bool {
    node.text().is_some_and(|text| text.contains("://"))
}

/// True where one key differs from another by a slip of the keyboard.
fn slip_is(near: &str, key: &str) -> bool {
    strsim::damerau_levenshtein(key, near) <= 1
}

/// True for a map that may name a topic.
fn takes_topic(shapes: &[&Json]) -> bool {
    shapes.iter().any(|shape| shape.pointer("/properties/topic").is_some())
}

/// True where a schema takes values of a JSON type.
fn has_type(schema: &Json, kind: &str) -> bool {
    match schema.get("type") {
        Some(Json::String(one)) => one == kind,
        Some(Json::Array(several)) => several.iter().any(|one| one == kind),
        _ => false,
    }
}

/// A type in words of the person who wrote the file; `None` for what one cannot write.
fn in_words(schema: &Json) -> Option<&'static str> {
    match schema.get("format").and_then(Json::as_str) {
        Some(Period::FORMAT) => return Some("a duration"),
        Some(Size::FORMAT) => return Some("a size"),
        _ => {}
    }
    let words = [
        ("object", "a map"),
        ("array", "a list"),
        ("string", "text"),
        ("integer", "a whole number"),
        ("number", "a number"),
        ("boolean", "true or false"),
    ];
    words.iter().find(|(kind, _)| has_type(schema, kind)).map(|(_, words)| *words)
}

/// The words among which one must be chosen; none where any text is good.
fn words_of<'a>(shapes: &[&'a Json]) -> Vec<&'a str> {
    let consts = shapes.iter().filter_map(|shape| shape.get("const"));
    let enums = shapes.iter().filter_map(|shape| shape.get("enum")?.as_array()).flatten();
    consts.chain(enums).filter_map(Json::as_str).collect()
}

/// The example in the description of a field.
pub(crate) fn example(schema: &Json) -> Option<String> {
    let description = schema.get("description")?.as_str()?;
    let example = description.split_once("Example: `")?.1;
    Some(example.strip_suffix('`').unwrap_or(example).to_owned())
}

/// `a`, `b`, `c`.
pub(crate) fn list(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// The word one probably meant.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Long nonsense is compared in part: the measure is quadratic.
    let word: String = word.chars().take(64).collect::<String>().to_lowercase();
    let scored = known.map(|known| (strsim::damerau_levenshtein(&word, known), known));
    let (distance, nearest) = scored.min_by_key(|(distance, _)| *distance)?;
    let close = distance <= 1 + word.chars().count() / 4;
    let within = nearest.len() >= 4 && (word.contains(nearest) || nearest.contains(word.as_str()));
    (close || (within && word.len() >= 3)).then_some(nearest)
}
