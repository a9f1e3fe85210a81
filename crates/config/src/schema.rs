//! JSON Schemas: those made from the structs of this crate, and those users give for records.

use std::sync::OnceLock;

use schemars::generate::SchemaSettings;
use serde_json::{Value as Json, json};

use crate::connections::ConnectionsFile;
use crate::pipeline::Pipeline;

/// The schema of pipeline files, as the check walks it.
pub(crate) fn pipeline() -> &'static Json {
    static SCHEMA: OnceLock<Json> = OnceLock::new();
    SCHEMA.get_or_init(generate::<Pipeline>)
}

/// The schema of `potok.yaml`, as the check walks it.
pub(crate) fn connections() -> &'static Json {
    static SCHEMA: OnceLock<Json> = OnceLock::new();
    SCHEMA.get_or_init(generate::<ConnectionsFile>)
}

fn generate<T: schemars::JsonSchema>() -> Json {
    SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>().into()
}

/// The JSON Schema of pipeline files, for editors.
pub fn json_schema() -> Json {
    for_editors(pipeline(), "potok pipeline")
}

/// The JSON Schema of `potok.yaml`, for editors.
pub fn connections_schema() -> Json {
    for_editors(connections(), "potok connections")
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
            ("items" | "additionalProperties", schema) => allow_variables(schema),
            _ => {}
        }
    }
    let kind = object.get("type").map(Json::to_string).unwrap_or_default();
    let typed = ["integer", "number", "boolean"].iter().any(|name| kind.contains(name));
    if typed || object.contains_key("oneOf") {
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
