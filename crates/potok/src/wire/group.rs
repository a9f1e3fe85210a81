//! The step `group`.

use std::sync::Arc;

use potok_config::{Expression, OnRepeat, Predicate, QuietBy};
use potok_connectors::redis;
use potok_core::Fault;
use potok_flow::{ClosePlan, GroupPlan, KindPlan, ShardPlan};

use super::{Wiring, in_memory, track};
use crate::failure::Failure;

/// The plan of `group`, where there is one.
pub(super) fn plan(wiring: &Wiring<'_>) -> Result<Option<GroupPlan>, Failure> {
    let Wiring { pipeline, connections } = wiring;
    let Some(group) = &pipeline.group else { return Ok(None) };
    let template = |expression: &Expression| expression.template().clone();
    let kinds = group.kinds.iter().map(|(name, kind)| KindPlan {
        name: name.into(),
        topic: kind.topic.as_ref().into(),
        id: template(&kind.id),
    });
    let close = &group.close;
    let when = close.when.as_ref().map(Predicate::program).transpose();
    let when = when.map_err(|errors| {
        let messages: Vec<_> = errors.into_iter().map(|error| error.message).collect();
        let what = format!("pipeline `{}`, `close.when`: {}", pipeline.name, messages.join("; "));
        Failure::faults(vec![Fault::fix(what).code("P0526")])
    })?;
    let store = redis::store(connections)?.map(|store| Arc::new(store) as _);
    let memory_usual = match &store {
        Some(_) => potok_flow::HELD_MEMORY_BESIDE_A_STORE,
        None => potok_flow::HELD_MEMORY_DEFAULT,
    };
    Ok(Some(GroupPlan {
        memory_max: pipeline.limits.held_memory_bytes.map_or(memory_usual, in_memory),
        by: group.by.as_ref().map(template),
        shard: group
            .shard
            .as_ref()
            .map(|shard| ShardPlan { by: shard.by.path().clone(), of: shard.of }),
        kinds: kinds.collect(),
        id: group.id.as_ref().map(template),
        close: ClosePlan {
            after_first: close.after_first.map(|period| *period),
            quiet: close.quiet.map(|period| *period),
            quiet_by: close.quiet_by.as_ref().map(QuietBy::period_by),
            every: close.every.map(|period| *period),
            max_age: close.max_age.map(|period| *period),
            max_count: close.max_count.map(|count| count as usize),
            max_bytes: close.max_bytes.map(|size| size.bytes()),
            when,
        },
        on_repeat: match group.on_repeat {
            OnRepeat::Replace => potok_flow::OnRepeat::Replace,
            OnRepeat::Keep => potok_flow::OnRepeat::Keep,
            OnRepeat::Count => potok_flow::OnRepeat::Count,
        },
        store,
        internal: format!("potok-{}", pipeline.name).into(),
        files: track::files(wiring),
        track: track::plan(wiring)?,
    }))
}
