//! What a pipeline file may say and this version does not run.
//!
//! Apart from the check, so that a file written for a later version is understood as a whole, and
//! the refusal says exactly what is in the way. A version that learns something removes its lines.

use crate::load::Loaded;
use crate::pipeline::{OnSetAside, Pipeline};
use crate::problem::{Findings, Problem, code};
use crate::tree::{Entry, Node};

const RUNS: &str = "this version runs topics, groups, VRL and webhook stages, and deliveries to topics and databases";

/// Everything in a pipeline that this version does not run; `run` refuses the file with these.
pub fn not_yet(pipeline: &Loaded<Pipeline>) -> Vec<Problem> {
    let document = &pipeline.document;
    let mut findings = Findings::default();
    let root = &document.root;
    note(&mut findings, root.entry("track"), "`track`");
    let handed_on_as = document.entry(&["group", "as"]);
    note(&mut findings, handed_on_as, "`as` of a group");
    for source in root.get("source").map(Node::one_or_many).unwrap_or_default() {
        for key in ["list", "http", "outbox"] {
            note(&mut findings, source.entry(key), &format!("a source of `{key}`"));
        }
    }
    several_groups(pipeline, &mut findings);
    for stage in root.get("process").map(Node::one_or_many).unwrap_or_default() {
        if let Some(secret) = stage.get("webhook") {
            findings.hide(secret.at.clone());
        }
        note(&mut findings, stage.entry("shard"), "`shard`");
    }
    for deliver in root.get("deliver").map(Node::one_or_many).unwrap_or_default() {
        // What goes to a webhook may be secret; in a problem about it the line is shown.
        for secret in [deliver.get("webhook"), deliver.get("else")].into_iter().flatten() {
            findings.hide(secret.at.clone());
        }
        for key in ["each", "webhook", "hub", "else"] {
            note(&mut findings, deliver.entry(key), &format!("`{key}` in `deliver`"));
        }
        if deliver.entry("topic").is_some() {
            note(&mut findings, deliver.entry("once_by"), "`once_by` for a topic");
        }
        let sharded = |entry: &&Entry| entry.value.text().is_some_and(|t| t.contains("{shard}"));
        note(&mut findings, deliver.entry("db").filter(sharded), "`{shard}`");
        if let Some(entry) = deliver.entry("order_by") {
            let what = format!("{RUNS}; `order_by` of one delivery is not in it");
            let hint = "put `order_by` at the top of the file";
            findings.add_hint(code::NOT_YET, entry.key_at.clone(), what, hint);
        }
    }
    note(&mut findings, document.entry(&["dead_letter", "table"]), "a table for dead letters");
    if pipeline.on_set_aside == OnSetAside::Park {
        note(&mut findings, root.entry("on_set_aside"), "`on_set_aside: park`");
    }
    findings.into_problems(&document.source)
}

fn note(findings: &mut Findings, entry: Option<&Entry>, what: &str) {
    if let Some(entry) = entry {
        let what = format!("{RUNS}; {what} is not in it");
        findings.add(code::NOT_YET, entry.key_at.clone(), what);
    }
}

/// One pipeline has one consumer group and one start, however many sources it has.
fn several_groups(pipeline: &Loaded<Pipeline>, findings: &mut Findings) {
    let sources = pipeline.document.root.get("source").map(Node::one_or_many).unwrap_or_default();
    let group = pipeline.consumer_group();
    let from = pipeline.source.first().map(|source| source.from);
    for (source, node) in pipeline.source.iter().zip(sources).skip(1) {
        let at =
            |key| node.entry(key).map_or(node.at.start..node.at.start + 1, |e| e.key_at.clone());
        if source.group_or(&pipeline.name) != group {
            let what = format!("{RUNS}; several consumer groups in one pipeline are not in it");
            let hint = format!("give all sources the group `{group}`, or make two pipelines");
            findings.add_hint(code::NOT_YET, at("consumer_group"), what, hint);
        }
        if Some(source.from) != from {
            let what = format!("{RUNS}; sources that begin at different ends are not in it");
            findings.add(code::NOT_YET, at("from"), what);
        }
    }
}
