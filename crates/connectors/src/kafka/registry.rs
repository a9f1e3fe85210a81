//! Which groups are potok's, and whose: a compacted topic, so that tools know without a pipeline.
//!
//! Key: the group. Value: the JSON of its [`PipelineInfo`]; none once the group is forgotten.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use potok_core::{Headers, Output, PipelineInfo, Record};

pub const TOPIC: &str = "potok-groups";

/// The record that says whose a group is, or that it is forgotten.
pub fn entry(group: &str, info: Option<&PipelineInfo>) -> Output {
    Output {
        topic: Arc::from(TOPIC),
        partition: None,
        key: Some(Bytes::copy_from_slice(group.as_bytes())),
        headers: Headers::none(),
        // Serialising plain strings and numbers does not fail.
        value: info.map(|info| serde_json::to_vec(info).unwrap_or_default().into()),
    }
}

/// Takes in what a record says. One that cannot be read says nothing.
pub fn apply(groups: &mut BTreeMap<String, PipelineInfo>, record: &Record) {
    let Some(Ok(group)) = record.key.as_deref().map(std::str::from_utf8) else { return };
    match record.value.as_deref().map(serde_json::from_slice) {
        None => drop(groups.remove(group)),
        Some(Ok(info)) => drop(groups.insert(group.to_owned(), info)),
        Some(Err(_)) => {}
    }
}

#[cfg(test)]
mod tests {
    use potok_core::Timestamp;

    use super::*;

    #[test]
    fn the_last_word_counts() {
        let info = |name: &str| PipelineInfo {
            pipeline: name.into(),
            dead_letters: "d".into(),
            resolved: "r".into(),
            replay: "p".into(),
            replays_max: 5,
            internal: None,
        };
        let mut groups = BTreeMap::new();
        let mut say = |output: Output| {
            let Output { key, headers, value, .. } = output;
            apply(&mut groups, &Record { offset: 0, time: Timestamp(0), key, headers, value });
        };
        say(entry("a", Some(&info("one"))));
        say(entry("a", Some(&info("two"))));
        say(entry("b", Some(&info("three"))));
        say(Output { value: Some(Bytes::from_static(b"\xff")), ..entry("a", None) });
        say(entry("b", None));
        say(Output { key: None, ..entry("a", None) });
        assert_eq!(groups, BTreeMap::from([("a".to_owned(), info("two"))]));
    }
}
