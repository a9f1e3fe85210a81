//! Reads from a JSON Schema what a table must know: the fields of an object, their types, and
//! which are always there.
//!
//! It follows local `$ref`s, `allOf`, `anyOf` and `oneOf`. It does not validate: that is the
//! decoder's duty, and whatever this reading does not understand becomes a column of JSON text.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use percent_encoding::percent_decode_str;
use serde_json::Value;

use super::ColumnKind;

/// A set of JSON types, as bits.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Types(u8);

impl Types {
    const NONE: Types = Types(0);
    const NULL: Types = Types(1);
    const BOOLEAN: Types = Types(1 << 1);
    const INTEGER: Types = Types(1 << 2);
    const FRACTION: Types = Types(1 << 3);
    const STRING: Types = Types(1 << 4);
    const ARRAY: Types = Types(1 << 5);
    const OBJECT: Types = Types(1 << 6);
    const ALL: Types = Types(0x7f);

    fn or(self, other: Types) -> Types {
        Types(self.0 | other.0)
    }

    fn and(self, other: Types) -> Types {
        Types(self.0 & other.0)
    }

    fn without(self, other: Types) -> Types {
        Types(self.0 & !other.0)
    }

    fn has(self, other: Types) -> bool {
        self.0 & other.0 != 0
    }

    fn named(name: &str) -> Types {
        match name {
            "null" => Types::NULL,
            "boolean" => Types::BOOLEAN,
            "integer" => Types::INTEGER,
            "number" => Types::INTEGER.or(Types::FRACTION),
            "string" => Types::STRING,
            "array" => Types::ARRAY,
            "object" => Types::OBJECT,
            _ => Types::ALL,
        }
    }

    fn of(value: &Value) -> Types {
        match value {
            Value::Null => Types::NULL,
            Value::Bool(_) => Types::BOOLEAN,
            Value::Number(n) if n.is_f64() => Types::FRACTION,
            Value::Number(_) => Types::INTEGER,
            Value::String(_) => Types::STRING,
            Value::Array(_) => Types::ARRAY,
            Value::Object(_) => Types::OBJECT,
        }
    }

    fn kind(self) -> ColumnKind {
        let some = self.without(Types::NULL);
        if some == Types::STRING {
            ColumnKind::Text
        } else if some == Types::INTEGER {
            ColumnKind::Integer
        } else if some == Types::BOOLEAN {
            ColumnKind::Boolean
        } else if some != Types::NONE && some.without(Types::named("number")) == Types::NONE {
            ColumnKind::Real
        } else {
            ColumnKind::Json
        }
    }
}

/// A field as the schema describes it.
pub(super) struct Field {
    pub name: String,
    pub kind: ColumnKind,
    /// Always there and never null.
    pub required: bool,
}

/// A schema and what has been learnt of it.
pub(super) struct Schema<'a> {
    root: &'a Value,
    types: RefCell<HashMap<*const Value, Types>>,
}

/// The subschemas that speak about one place of the value. `sure` ones always hold; the others
/// are alternatives (`anyOf`, `oneOf`, `then`, `else`).
pub(super) struct Subschemas<'a>(Vec<Part<'a>>);

#[derive(Clone, Copy)]
struct Part<'a> {
    schema: &'a Value,
    sure: bool,
}

impl<'a> Schema<'a> {
    pub fn new(root: &'a Value) -> Self {
        Schema { root, types: RefCell::default() }
    }

    /// The place that `steps` lead to, and with `each` the elements of the array there.
    pub fn place(&self, steps: &[String], each: bool) -> Subschemas<'a> {
        let mut place = self.gather([Part { schema: self.root, sure: true }]);
        for step in steps {
            place = self.gather(place.children(|schema| schema.get("properties")?.get(step)));
        }
        if each {
            place = self.gather(place.children(|schema| schema.get("items")));
        }
        place
    }

    /// True when the value at this place can be an object.
    pub fn takes_object(&self, place: &Subschemas<'a>) -> bool {
        self.types_of(&place.0).has(Types::OBJECT)
    }

    /// The fields of the object at this place, in the order of the schema.
    pub fn fields(&self, place: &Subschemas<'a>) -> Vec<Field> {
        let mut names: Vec<&str> = Vec::new();
        let mut parts: HashMap<&str, Vec<Part<'a>>> = HashMap::new();
        let mut required: HashSet<&str> = HashSet::new();
        for part in &place.0 {
            if let Some(Value::Object(properties)) = part.schema.get("properties") {
                for (name, schema) in properties {
                    let known = parts.entry(name).or_insert_with(|| {
                        names.push(name);
                        Vec::new()
                    });
                    known.push(Part { schema, sure: part.sure });
                }
            }
            if let (true, Some(Value::Array(list))) = (part.sure, part.schema.get("required")) {
                required.extend(list.iter().filter_map(Value::as_str));
            }
        }
        names
            .into_iter()
            .map(|name| {
                let types = parts.get(name).map_or(Types::ALL, |parts| self.types_of(parts));
                Field {
                    name: name.to_owned(),
                    kind: types.kind(),
                    required: required.contains(name) && !types.has(Types::NULL),
                }
            })
            .collect()
    }

    /// Adds what the parts include by reference or combination. Each subschema is looked at once,
    /// so that circles and bombs of references end.
    fn gather(&self, parts: impl IntoIterator<Item = Part<'a>>) -> Subschemas<'a> {
        let mut seen: HashSet<*const Value> = HashSet::new();
        let mut todo: Vec<Part<'a>> = parts.into_iter().collect();
        todo.reverse();
        let mut all = Vec::new();
        while let Some(part) = todo.pop() {
            if !seen.insert(part.schema) {
                continue;
            }
            all.push(part);
            let mut more: Vec<Part<'a>> = Vec::new();
            if let Some(target) = self.target(part.schema) {
                more.push(Part { schema: target, sure: part.sure });
            }
            for schema in list(part.schema, "allOf") {
                more.push(Part { schema, sure: part.sure });
            }
            for word in ["anyOf", "oneOf"] {
                for schema in list(part.schema, word) {
                    more.push(Part { schema, sure: false });
                }
            }
            for word in ["then", "else"] {
                if let Some(schema) = part.schema.get(word) {
                    more.push(Part { schema, sure: false });
                }
            }
            todo.extend(more.into_iter().rev());
        }
        Subschemas(all)
    }

    /// Where a local `$ref` leads.
    fn target(&self, schema: &'a Value) -> Option<&'a Value> {
        let reference = schema.get("$ref")?.as_str()?;
        let pointer = reference.strip_prefix('#')?;
        // A `$ref` is a URI fragment, so its pointer may be percent-encoded.
        self.root.pointer(&percent_decode_str(pointer).decode_utf8_lossy())
    }

    /// Sure parts narrow each other; without any, the alternatives add up.
    fn types_of(&self, parts: &[Part<'a>]) -> Types {
        if parts.iter().any(|part| part.sure) {
            let sure = parts.iter().filter(|part| part.sure);
            sure.fold(Types::ALL, |types, part| types.and(self.types(part.schema)))
        } else {
            parts.iter().fold(Types::NONE, |types, part| types.or(self.types(part.schema)))
        }
    }

    fn types(&self, schema: &'a Value) -> Types {
        if let Some(known) = self.types.borrow().get(&std::ptr::from_ref(schema)) {
            return *known;
        }
        // A circle adds no knowledge: while it is being walked, everything is possible.
        self.types.borrow_mut().insert(schema, Types::ALL);
        let mut types = match schema.get("type") {
            Some(Value::String(name)) => Types::named(name),
            Some(Value::Array(names)) => names
                .iter()
                .filter_map(Value::as_str)
                .fold(Types::NONE, |types, name| types.or(Types::named(name))),
            _ => Types::ALL,
        };
        if let Some(value) = schema.get("const") {
            types = types.and(Types::of(value));
        }
        if let Some(Value::Array(values)) = schema.get("enum") {
            let listed = values.iter().fold(Types::NONE, |types, v| types.or(Types::of(v)));
            types = types.and(listed);
        }
        if let Some(target) = self.target(schema) {
            types = types.and(self.types(target));
        }
        for part in list(schema, "allOf") {
            types = types.and(self.types(part));
        }
        for word in ["anyOf", "oneOf"] {
            if schema.get(word).is_some() {
                let any = list(schema, word)
                    .iter()
                    .fold(Types::NONE, |types, part| types.or(self.types(part)));
                types = types.and(any);
            }
        }
        self.types.borrow_mut().insert(schema, types);
        types
    }
}

impl<'a> Subschemas<'a> {
    fn children(&self, find: impl Fn(&'a Value) -> Option<&'a Value>) -> Vec<Part<'a>> {
        let parts = self.0.iter();
        parts
            .filter_map(|part| Some(Part { schema: find(part.schema)?, sure: part.sure }))
            .collect()
    }
}

fn list<'a>(schema: &'a Value, word: &str) -> &'a [Value] {
    schema.get(word).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
