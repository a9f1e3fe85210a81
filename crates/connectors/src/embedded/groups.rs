//! How consumer groups are registered and where they start.

use std::collections::BTreeSet;
use std::sync::Arc;

use potok_core::{ConsumerGroup, ConsumerGroupPartition, ConsumerGroupSpec, RangeSet};

use super::draft::Draft;
use super::format::{Entry, FrameKind};
use super::shared::{LogState, OpenLog};

/// The entry to write before the group may read; `None` when the group stands as it is.
///
/// A fresh group's start is written too: where "the end" was must not move when the process dies
/// before the first record ended.
pub fn registration(shared: &OpenLog, spec: &ConsumerGroupSpec) -> Option<Draft> {
    let state = shared.state();
    let catalog = &state.catalog;
    let known = catalog.groups.get(spec.group.as_str());
    let topics: Vec<&str> = topics(spec).collect();
    let info = serde_json::to_vec(&spec.info).unwrap_or_default();
    let floor = (catalog.floor, catalog.floor);

    let mut entries: Vec<Entry<'_>> = Vec::new();
    for topic in topics.iter().filter(|topic| !catalog.topics.contains_key(**topic)) {
        let heads = vec![floor; shared.options.partitions.max(1) as usize];
        entries.push(Entry::Topic { topic, heads });
    }
    let same = known.is_some_and(|known| {
        known.info == info && known.topics.iter().map(|topic| &**topic).eq(topics.iter().copied())
    });
    if !same {
        let fresh = known.is_none();
        entries.push(Entry::Group {
            fresh,
            group: &spec.group,
            info: &info,
            topics: topics.clone(),
        });
    }
    if known.is_none() {
        for topic in &topics {
            for (partition, head) in catalog.topics.get(*topic).into_iter().flatten().enumerate() {
                let partition = partition as u32;
                let start = match spec.from_end {
                    true => head.end,
                    false => state.earliest(topic, partition),
                };
                let ranges = std::iter::once(0..start).collect();
                entries.push(Entry::Ended { group: &spec.group, topic, partition, ranges });
            }
        }
    }
    let own = [&spec.info.dead_letters, &spec.info.resolved, &spec.info.replay];
    for topic in own.into_iter().filter(|topic| !catalog.kept.contains(topic.as_str())) {
        entries.push(Entry::Kept { topic });
    }
    (!entries.is_empty()).then(|| Draft::of_entries(FrameKind::Transaction, &entries))
}

/// Every partition of the group with what has ended of it.
pub fn partitions(state: &LogState, spec: &ConsumerGroupSpec) -> Vec<(Arc<str>, u32, RangeSet)> {
    let mut partitions = Vec::new();
    for topic in topics(spec) {
        let Some((topic, heads)) = state.catalog.topics.get_key_value(topic) else { continue };
        for partition in 0..heads.len() as u32 {
            let ended = state.ended(&spec.group, topic, partition);
            partitions.push((topic.clone(), partition, ended));
        }
    }
    partitions
}

/// Every registered group, as tools show it.
pub fn list(state: &LogState, open: impl Fn(&str) -> bool) -> Vec<ConsumerGroup> {
    let infos = state.catalog.groups.iter().map(|(name, group)| {
        let mut partitions = Vec::new();
        for topic in &group.topics {
            for (partition, head) in
                state.catalog.topics.get(topic).into_iter().flatten().enumerate()
            {
                // Looked at where it is: there may be a million ranges, and the log waits.
                let ended = group.ended(topic, partition as u32);
                let earliest = state.earliest(topic, partition as u32);
                let position = ended.map_or(earliest, |ended| ended.first_gap(earliest));
                partitions.push(ConsumerGroupPartition {
                    topic: topic.to_string(),
                    partition: partition as u32,
                    committed: position,
                    acknowledged_ahead: ended.map_or(0, |ended| ended.count_from(position)),
                    end: head.end,
                });
            }
        }
        ConsumerGroup {
            group: name.to_string(),
            info: group.pipeline(name),
            partitions,
            open: open(name),
        }
    });
    infos.collect()
}

/// The topics of a spec, each once, in order.
fn topics(spec: &ConsumerGroupSpec) -> impl Iterator<Item = &str> {
    let mut seen = BTreeSet::new();
    spec.topics.iter().map(|topic| &**topic).filter(move |topic| seen.insert(*topic))
}
