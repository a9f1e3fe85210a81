//! JSON Schemas: those made from the structs of this crate and of connectors, and those users give
//! for records.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value as Json, json};

use crate::connections::ConnectionsFile;
use crate::connector::CommonKey;
use crate::deliver::TopicSettings;
use crate::pipeline::Pipeline;
use crate::process::VrlSettings;
use crate::registry::{ConnectorEntry, Registry};
use crate::source::{HttpSource, ListSource, TopicSource, TopicsSource};
use crate::variants::{Section, key_of, variant};

/// The own keys of a kind of entries: its key, the common keys it takes, its schema.
type KindSchema = (&'static str, &'static [CommonKey], Json);

/// Builds the schema of pipeline files, as the check walks it.
pub(crate) fn pipeline(registry: &Registry) -> Json {
    let mut from = generator();
    let mut sources = vec![
        own::<TopicSource>("topic", &[], &mut from),
        own::<TopicsSource>("topics", &[], &mut from),
        own::<ListSource>("list", &[], &mut from),
        own::<HttpSource>("http", &[], &mut from),
    ];
    sources.extend(registered(&registry.feeds, &mut from));
    let mut stages = vec![own::<VrlSettings>("vrl", &[CommonKey::Per], &mut from)];
    stages.extend(registered(&registry.stages, &mut from));
    let mut delivers = vec![own::<TopicSettings>("topic", &[CommonKey::Key], &mut from)];
    delivers.extend(registered(&registry.sinks, &mut from));
    let mut root: Json = from.into_root_schema_for::<Pipeline>().into();
    let sections =
        [(Section::Source, sources), (Section::Process, stages), (Section::Deliver, delivers)];
    for (section, kinds) in sections {
        section.put_kinds(&mut root, |common| {
            let kinds = kinds.iter();
            kinds
                .map(|(key, takes, own)| variant(key, own, common, |name| taken(takes, name)))
                .collect()
        });
    }
    root
}

/// True for a common key that every kind has, or that is among those it takes.
fn taken(takes: &[CommonKey], name: &str) -> bool {
    let optional = CommonKey::ALL.into_iter().find(|common| common.word() == name);
    optional.is_none_or(|common| takes.contains(&common))
}

fn own<T: JsonSchema>(
    key: &'static str,
    takes: &'static [CommonKey],
    from: &mut SchemaGenerator,
) -> KindSchema {
    (key, takes, T::json_schema(from).into())
}

fn registered<S: ?Sized>(
    kinds: &[ConnectorEntry<S>],
    from: &mut SchemaGenerator,
) -> Vec<KindSchema> {
    kinds.iter().map(|kind| (kind.key, kind.takes, (kind.schema)(from).into())).collect()
}

/// What the format of named connections is called, before the key of their kind.
pub(crate) const CONNECTION_FORMAT: &str = "potok-connection-";

/// Builds the schema of `potok.yaml`, as the check walks it.
pub(crate) fn connections(registry: &Registry) -> Json {
    let mut root: Json = generator().into_root_schema_for::<ConnectionsFile>().into();
    if let Some(properties) = root.get_mut("properties").and_then(Json::as_object_mut) {
        for kind in &registry.connections {
            let format = format!("{CONNECTION_FORMAT}{}", kind.key);
            let named = json!({
                "description": kind.description,
                "type": "object",
                "propertyNames": { "format": "potok-connection-name" },
                "additionalProperties": { "type": "string", "format": format, "writeOnly": true },
            });
            properties.insert(kind.key.to_owned(), named);
        }
    }
    root
}

fn generator() -> SchemaGenerator {
    SchemaSettings::draft2020_12().into_generator()
}

/// The JSON Schema of pipeline files, for editors.
pub fn json_schema(registry: &Registry) -> Json {
    for_editors(registry.pipeline_schema(), "potok pipeline")
}

/// The JSON Schema of `potok.yaml`, for editors.
pub fn connections_schema(registry: &Registry) -> Json {
    for_editors(registry.connections_schema(), "potok connections")
}

/// An editor sees the file before the environment is put in, so wherever a number or a yes/no is
/// wanted, `${…}` is fine too.
fn for_editors(schema: &Json, title: &str) -> Json {
    let mut schema = schema.clone();
    allow_variables(&mut schema);
    if let Some(object) = schema.as_object_mut() {
        object.insert("title".into(), title.into());
    }
    schema
}

fn allow_variables(schema: &mut Json) {
    let Some(object) = schema.as_object_mut() else { return };
    for (key, below) in object.iter_mut() {
        match (key.as_str(), below) {
            ("properties" | "$defs", Json::Object(schemas)) => {
                schemas.values_mut().for_each(allow_variables);
            }
            ("anyOf", Json::Array(schemas)) => schemas.iter_mut().for_each(allow_variables),
            ("oneOf", Json::Array(schemas)) if schemas.first().and_then(key_of).is_some() => {
                schemas.iter_mut().for_each(allow_variables);
            }
            ("items" | "additionalProperties", schema) => allow_variables(schema),
            _ => {}
        }
    }
    let kind = object.get("type").map(Json::to_string).unwrap_or_default();
    let typed = ["integer", "number", "boolean"].iter().any(|name| kind.contains(name));
    let words = object.get("oneOf").and_then(Json::as_array);
    let words = words.is_some_and(|kinds| kinds.first().and_then(key_of).is_none());
    if typed || words {
        let variable = json!({ "type": "string", "pattern": "\\$\\{" });
        let keep = ["description", "default"];
        let kept: Vec<_> = keep.iter().filter_map(|key| object.remove_entry(*key)).collect();
        let strict = Json::Object(std::mem::take(object));
        object.extend(kept);
        object.insert("anyOf".into(), json!([strict, variable]));
    }
}

/// The first name on a path that a user's schema does not have, and those it has there. `None` also
/// where the schema says too little to know.
pub(crate) fn missing_field<'p>(schema: &Json, path: &[&'p str]) -> Option<(&'p str, Vec<String>)> {
    let mut here = resolved(schema, schema)?;
    for name in path {
        let open = ["allOf", "anyOf", "oneOf", "if", "patternProperties", "dependentSchemas"];
        let properties = here.get("properties")?.as_object()?;
        match properties.get(*name) {
            Some(below) => here = resolved(schema, below)?,
            None if open.iter().any(|key| here.get(*key).is_some()) => return None,
            None if here.get("additionalProperties").is_some_and(Json::is_object) => return None,
            None => return Some((name, properties.keys().cloned().collect())),
        }
    }
    None
}

/// Follows references within the file.
fn resolved<'s>(root: &'s Json, schema: &'s Json) -> Option<&'s Json> {
    let mut schema = schema;
    // A schema that refers to itself leads nowhere.
    for _ in 0..16 {
        let Some(path) = schema.get("$ref").and_then(Json::as_str) else { return Some(schema) };
        schema = root.pointer(path.strip_prefix('#')?)?;
    }
    None
}

/// Builds what checks records against a user's schema.
///
/// Patterns run in linear time, so no record can hang a worker; a pattern that needs more (look
/// around, back references) is refused here. Nothing is fetched: references stay within the file.
pub fn validator(schema: &Json) -> Result<jsonschema::Validator, String> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err("it is not an object".into());
    }
    jsonschema::options()
        .should_validate_formats(true)
        .with_pattern_options(jsonschema::PatternOptions::regex())
        .build(schema)
        .map_err(|error| format!("{error} (at `{}`)", error.instance_path()))
}
