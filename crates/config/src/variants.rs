//! Sections whose entries are of several kinds, told apart by one key: `topic`, `db`, …
//!
//! In the schema such a section is a `oneOf`; each kind has all keys of its entries, those that all
//! kinds have in common included, and carries its own key as `x-potok-key`.

use serde_json::{Map, Value as Json, json};

use crate::tree::Node;

/// Where a kind says which key tells it.
const KEY: &str = "x-potok-key";

/// The schema of one kind: the keys that all have, those of the common ones it takes, its own.
pub(crate) fn variant(key: &str, own: &Json, section: &Json, takes: impl Fn(&str) -> bool) -> Json {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for schema in [section, own] {
        let is_own = std::ptr::eq(schema, own);
        let needed = schema.get("required").and_then(Json::as_array);
        required.extend(needed.into_iter().flatten().cloned());
        for (name, property) in properties_of(schema).into_iter().flatten() {
            if is_own || takes(name) {
                properties.insert(name.clone(), property.clone());
            }
        }
    }
    let description = own.get("description").cloned().unwrap_or_default();
    json!({
        "title": key, KEY: key, "description": description, "type": "object",
        "properties": properties, "required": required, "additionalProperties": false,
    })
}

/// The key that tells a kind; `None` for a schema that is no kind of a section.
pub(crate) fn key_of(schema: &Json) -> Option<&str> {
    schema.get(KEY)?.as_str()
}

/// The kinds of a section, from its schema.
pub(crate) fn kinds_of(schema: &Json) -> Option<Vec<&Json>> {
    let several = schema.get("oneOf")?.as_array()?;
    several.first().and_then(key_of)?;
    Some(several.iter().collect())
}

pub(crate) fn properties_of(schema: &Json) -> Option<&Map<String, Json>> {
    schema.get("properties")?.as_object()
}

/// The kinds that an entry names, in the order of the file. A key that tells one kind may also be
/// a key of another: where both are there, it is the other's.
pub(crate) fn named<'s>(entry: &Node, kinds: &[&'s Json]) -> Vec<&'s Json> {
    let entries = entry.entries().iter();
    let named: Vec<&Json> = entries
        .filter_map(|entry| kinds.iter().find(|kind| key_of(kind) == Some(&entry.key)).copied())
        .collect();
    let is_of_another = |kind: &Json| {
        let key = key_of(kind).unwrap_or_default();
        let others = named.iter().filter(|other| key_of(other) != Some(key));
        others.filter_map(|other| properties_of(other)).any(|keys| keys.contains_key(key))
    };
    let own: Vec<&Json> = named.iter().filter(|kind| !is_of_another(kind)).copied().collect();
    if own.is_empty() { named } else { own }
}

/// A section of a pipeline file whose entries are of several kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Source,
    Process,
    Deliver,
}

/// Where a section says which keys its kinds have in common.
const COMMON: &str = "x-potok-common";

impl Section {
    /// As it is written in the file.
    pub fn key(self) -> &'static str {
        match self {
            Section::Source => "source",
            Section::Process => "process",
            Section::Deliver => "deliver",
        }
    }

    /// Where its schema is.
    fn pointer(self) -> &'static str {
        match self {
            Section::Source => "/$defs/Source",
            Section::Process => "/$defs/Stage",
            Section::Deliver => "/$defs/Deliver",
        }
    }

    /// Puts these kinds in the place of the schema that has only their common keys.
    pub fn put_kinds(self, root: &mut Json, kinds: impl FnOnce(&Json) -> Vec<Json>) {
        let Some(schema) = root.pointer_mut(self.pointer()) else { return };
        let common = schema.take();
        let keys: Vec<&String> = properties_of(&common).into_iter().flat_map(Map::keys).collect();
        let description = common.get("description").cloned().unwrap_or_default();
        *schema = json!({ "description": description, COMMON: keys, "oneOf": kinds(&common) });
    }

    /// The kinds of its entries.
    pub fn kinds(self, root: &Json) -> Vec<&Json> {
        root.pointer(self.pointer()).and_then(kinds_of).unwrap_or_default()
    }

    /// The keys that tell them.
    pub fn keys(self, root: &Json) -> Vec<&str> {
        self.kinds(root).into_iter().filter_map(key_of).collect()
    }

    /// True for a key that its kinds have in common.
    pub fn is_common(self, root: &Json, key: &str) -> bool {
        let common = root.pointer(self.pointer()).and_then(|schema| schema.get(COMMON)?.as_array());
        common.is_some_and(|keys| keys.iter().any(|common| common == key))
    }
}
