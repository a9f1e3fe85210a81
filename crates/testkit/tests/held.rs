//! Interleavings of open and sealed groups with everything that may happen meanwhile: stores that
//! forget, owners that die or stand still, records that come too late, somebody who changes the
//! pipeline. Each runs where the log is one process's own and where several share it, also checks
//! that work finishes, and every other promise; and each finds the weaker rule. Their numbers are
//! those of the list of interleavings that the promise came from.
//!
//! | | what happens | where |
//! |---|---|---|
//! | 1 | the store loses everything, or goes back, in mid-window | `store.rs` |
//! | 2 | the owner of what is held dies, another one reads it again | `owners.rs` |
//! | 3 | an owner that stood still wakes when all is delivered | `owners.rs` |
//! | 4 | it dies when the batch is sent and that is not noted | `sealed.rs` |
//! | 5 | a record comes when its group closes, or is sent, or is cleaned up | `sealed.rs` |
//! | 6 | the later of two versions is refused, or read first | `versions.rs` |
//! | 7, 8 | topics or the pipeline are changed while the process is down | `changes.rs` |
//! | 9 | a group that always has an open generation | `sealed.rs` |
//! | 10 | the process dies while it gathers; a record is sent twice | `owners.rs` |
//! | | a group comes from several partitions, or never goes quiet | `order.rs` |
//! | | the clock of a shared log is set while groups are open | `clocks.rs` |
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "held/changes.rs"]
mod changes;
#[path = "held/clocks.rs"]
mod clocks;
#[path = "held/order.rs"]
mod order;
#[path = "held/owners.rs"]
mod owners;
#[path = "held/sealed.rs"]
mod sealed;
#[path = "held/store.rs"]
mod store;
#[path = "held/versions.rs"]
mod versions;

use std::collections::{BTreeMap, BTreeSet};

#[cfg(debug_assertions)]
use potok_core::trouble::{Bug, with_bug};
use potok_core::{Output, Position, Record};
#[cfg(debug_assertions)]
use potok_testkit::sim::Promise;
use potok_testkit::sim::{
    Hold, Outcome, RecordKind, Scenario, Spell, StageManner, Trouble, World, record, run, seals,
};

/// Until then the destination takes nothing.
const BACK: u64 = 20_000;

/// Lanes, processes that share the log, and whether bodies are in a store that outlives them.
#[derive(Clone, Copy, Debug)]
struct Shape {
    workers: usize,
    sharing: usize,
    stored: bool,
}

const SHAPES: [Shape; 5] = [
    Shape { workers: 1, sharing: 0, stored: false },
    Shape { workers: 4, sharing: 0, stored: false },
    Shape { workers: 4, sharing: 0, stored: true },
    Shape { workers: 2, sharing: 2, stored: false },
    Shape { workers: 2, sharing: 2, stored: true },
];

/// Two topics feed groups by `.k` that close after a second; the destination is there.
fn steady(shape: Shape) -> Scenario {
    let mut scenario = Scenario::plain(78);
    scenario.topics.push("in-two".into());
    scenario.workers = vec![shape.workers];
    scenario.sharing = shape.sharing;
    scenario.overlap = if shape.sharing > 0 { 4 } else { 1 };
    scenario.stage = Some(StageManner { rewrites: true, dead_letters: true });
    scenario.hold = Some(Hold {
        by: Some(".k"),
        after_first: 1_000,
        quiet: None,
        max_count: None,
        stored: shape.stored,
        replace: false,
    });
    scenario
}

/// The same with a destination that takes nothing for a while.
fn holding(shape: Shape) -> Scenario {
    let mut scenario = steady(shape);
    away_until(&mut scenario, BACK);
    scenario
}

fn away_until(scenario: &mut Scenario, to: u64) {
    let trouble = Trouble::SinkReadOnly;
    scenario.spells.insert(0, vec![Spell { from: 0, to, trouble }]);
}

fn sent(topic: &str, kind: RecordKind, id: &str, key: &str) -> Output {
    Output { topic: topic.into(), ..record(kind, id, key) }
}

fn all_good(topic: &str, ids: &[&str]) -> Vec<Output> {
    ids.iter().map(|id| sent(topic, RecordKind::Good, id, "k")).collect()
}

fn id_of(value: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(value).unwrap();
    value["id"].as_str().unwrap().to_owned()
}

/// The id of a record, also of one that was deleted with its topic.
fn id_at(world: &World, at: &Position) -> String {
    let id = |record: &Record| id_of(record.value.as_deref().unwrap());
    world.with(|w| w.disk.record(at).or_else(|| w.disk.gone().get(at)).map(id)).unwrap()
}

/// What became of each record, by id.
fn endings(outcome: &Outcome) -> BTreeMap<String, Vec<&'static str>> {
    let mut found: BTreeSet<(String, &'static str, usize)> = BTreeSet::new();
    let (rows, filtered) = outcome.world.with(|w| (w.tables[0].rows.clone(), w.filtered.clone()));
    found.extend(rows.iter().zip(0..).map(|(row, at)| (id_of(&row.source), "delivered", at)));
    found.extend(filtered.iter().map(|at| (id_at(&outcome.world, at), "filtered", 0)));
    let letters = outcome.letters.iter().map(|letter| &letter.record);
    found.extend(letters.map(|r| (id_of(r.value.as_deref().unwrap()), "dead-lettered", 0)));
    let mut endings: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
    for (id, ending, _) in found {
        endings.entry(id).or_default().push(ending);
    }
    endings
}

/// The ids that each seal names.
fn sealed_ids(outcome: &Outcome) -> Vec<BTreeSet<String>> {
    let seals = outcome.world.with(|w| seals(w));
    let ids = |members: &BTreeSet<Position>| {
        members.iter().map(|at| id_at(&outcome.world, at)).collect::<BTreeSet<String>>()
    };
    seals.iter().map(|(_, members)| ids(members)).collect()
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

/// Runs it; every promise is kept.
fn run_through(scenario: Scenario, what: &str) -> Outcome {
    let outcome = run(scenario).unwrap();
    if let Err(why) = outcome.verdict() {
        outcome.trace.iter().rev().take(60).rev().for_each(|line| println!("{line}"));
        panic!("{what}: {why}");
    }
    outcome
}

/// The same, and no record is in two batches.
fn run_well(scenario: Scenario, what: &str) -> Outcome {
    let outcome = run_through(scenario, what);
    let mut seen = BTreeSet::new();
    for id in sealed_ids(&outcome).into_iter().flatten() {
        assert!(seen.insert(id.clone()), "{what}: {id} was sealed twice");
    }
    outcome
}

/// Each of these was delivered, once.
fn all_delivered(outcome: &Outcome, ids: &[&str], what: &str) {
    let endings = endings(outcome);
    for id in ids {
        assert_eq!(endings.get(*id), Some(&vec!["delivered"]), "{what}: {id}");
    }
}

/// True when the naive version breaks the promise in this scenario.
#[cfg(debug_assertions)]
fn breaks(bug: Bug, promise: Promise, scenario: Scenario) -> bool {
    with_bug(bug, || run(scenario)).unwrap().broke(promise)
}

fn happened(outcome: &Outcome, what: &str) -> bool {
    outcome.trace.iter().any(|line| line.contains(what))
}
