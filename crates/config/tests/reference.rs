//! The pages under `docs/reference` are those the structs make. `POTOK_BLESS=1` rewrites them.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use potok_connectors::registry;

#[test]
fn the_reference_pages_are_fresh() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    for (name, page) in potok_config::reference(&registry()) {
        let file = folder.join(name);
        if std::env::var_os("POTOK_BLESS").is_some() {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&file, &page).unwrap();
        }
        let committed = fs::read_to_string(&file).unwrap_or_default();
        assert!(
            committed == page,
            "{} is stale: POTOK_BLESS=1 cargo test -p potok-config --test reference",
            file.display()
        );
    }
}

/// The comment of a field is its reference, so every field has one with an example.
#[test]
fn every_key_says_what_it_is_and_has_an_example() {
    fn check(schema: &serde_json::Value) -> usize {
        let properties = schema["properties"].as_object().cloned().unwrap_or_default();
        for (key, property) in &properties {
            let description = property["description"].as_str().unwrap_or_default();
            assert!(description.contains("Example: `"), "`{key}`: {description:?}");
        }
        let below = schema["$defs"].as_object().cloned().unwrap_or_default();
        let kinds = schema["oneOf"].as_array().cloned().unwrap_or_default();
        properties.len() + below.values().chain(&kinds).map(check).sum::<usize>()
    }
    let found = check(&potok_config::json_schema(&registry()))
        + check(&potok_config::connections_schema(&registry()));
    assert!(found > 60, "only {found} keys");
}
