//! The step `deliver`.

use std::sync::Arc;

use potok_config::{Deliver, Destination, Refusal, Site, Target as TargetConfig, TopicTarget};
use potok_core::Fault;
use potok_flow::{DeliverPlan, Target};

use super::{Wiring, gathered, hold_shards, nothing_to_run};
use crate::failure::Failure;

/// The plans of all deliveries.
pub(super) fn plans(wiring: &Wiring<'_>) -> Result<Vec<DeliverPlan>, Failure> {
    let delivers = wiring.pipeline.deliver.iter().enumerate();
    gathered(delivers.flat_map(|(index, deliver)| {
        shards(wiring, deliver).into_iter().map(move |shard| plan(wiring, index, deliver, shard))
    }))
}

/// Shards beyond their number that are looked for: there may have been so many more.
const FORMER_MAX: u32 = 256;

/// The shards that have a destination of their own there; one that is for no shard else. Those that
/// there were before, and that are set up still, have one too: groups keep the shard they were
/// sealed for.
fn shards(wiring: &Wiring<'_>, deliver: &Deliver) -> Vec<Option<u32>> {
    if !deliver.is_sharded() {
        return vec![None];
    }
    let of = hold_shards(wiring.pipeline);
    let was = |shard: &u32| match deliver.target() {
        Some(TargetConfig::Connector(settings)) => {
            settings.has_shard(&site(wiring, deliver, Some(*shard)))
        }
        _ => false,
    };
    (0..of).chain((of..of.saturating_add(FORMER_MAX)).filter(was)).map(Some).collect()
}

fn plan(
    wiring: &Wiring<'_>,
    index: usize,
    deliver: &Deliver,
    shard: Option<u32>,
) -> Result<DeliverPlan, Failure> {
    let site = site(wiring, deliver, shard);
    let target = target(wiring, &site, index, deliver)?;
    let kinds = wiring.pipeline.group.iter().flat_map(|group| group.kinds.iter());
    let kind = deliver.kind.as_ref().and_then(|kind| {
        let at = kinds.map(|(name, _)| name).position(|name| name == kind);
        at.and_then(|at| u16::try_from(at).ok())
    });
    Ok(DeliverPlan {
        label: label(deliver, shard),
        number: u32::try_from(index).unwrap_or(u32::MAX),
        shard,
        kind,
        headers_id: matches!(target, Target::Topic(_)),
        target,
        key: deliver.key.as_ref().map(|key| key.template().clone()),
        once_by: site.once_by,
    })
}

fn label(deliver: &Deliver, shard: Option<u32>) -> String {
    shard.map_or_else(|| deliver.label().to_owned(), |shard| deliver.label_of(shard))
}

fn site<'a>(wiring: &'a Wiring<'_>, deliver: &Deliver, shard: Option<u32>) -> Site<'a> {
    let once_by = deliver.once_by.iter().map(|expression| expression.template().clone());
    let site = wiring.site("deliver", &label(deliver, shard), once_by.collect());
    Site { shard, ..site }
}

fn target(
    wiring: &Wiring<'_>,
    site: &Site<'_>,
    index: usize,
    deliver: &Deliver,
) -> Result<Target, Failure> {
    Ok(match deliver.target() {
        Some(TargetConfig::Topic(TopicTarget::Name(topic))) => fixed(topic.as_ref().into()),
        Some(TargetConfig::Topic(TopicTarget::ByField(target))) => {
            let map = target.map.iter();
            let map = map.map(|(value, topic)| (value.to_owned(), topic.as_ref().into()));
            let by = target.by.template().clone();
            Target::Topic(potok_flow::TopicTarget::Map { by, map: map.collect() })
        }
        Some(TargetConfig::Connector(settings)) => {
            let refused = |refusals| wiring.refused("deliver", index, refusals);
            match settings.build(site).map_err(refused)? {
                Destination::Sink(sink) => Target::Sink(sink),
                Destination::Topic(topic) => {
                    goes_round(wiring, &topic).map_err(|refusal| refused(vec![refusal]))?;
                    fixed(topic)
                }
            }
        }
        None => return Err(nothing_to_run(&site.label, "no such destination is known")),
    })
}

fn fixed(topic: Arc<str>) -> Target {
    Target::Topic(potok_flow::TopicTarget::Fixed(topic))
}

/// A connection that is a topic for want of an address must not be one that the pipeline reads or
/// that potok has for itself: only now is it known.
fn goes_round(wiring: &Wiring<'_>, topic: &str) -> Result<(), Refusal> {
    let pipeline = wiring.pipeline;
    let is_own = pipeline.own_topics().iter().any(|own| own == topic);
    let what = if pipeline.topics().contains(&topic) {
        format!("without an address `{topic}` is a topic that this pipeline reads")
    } else if is_own || potok_core::own_topic(topic).is_some() {
        format!("without an address `{topic}` is a topic of potok's own")
    } else {
        return Ok(());
    };
    let hint = "give the connection an address in potok.yaml, or another name";
    // The entry itself: which of its keys names the connection, only the connector knows.
    Err(Refusal::at([""], Fault::fix(what).code("P0147").hint(hint)))
}

/// The statements that make the tables of all deliveries.
pub(super) fn ddl(wiring: &Wiring<'_>) -> Result<Vec<String>, Failure> {
    let mut statements = Vec::new();
    for deliver in wiring.pipeline.deliver.iter() {
        if let Some(TargetConfig::Connector(settings)) = deliver.target() {
            for shard in shards(wiring, deliver) {
                let made = settings.ddl(&site(wiring, deliver, shard)).map_err(Failure::faults)?;
                // Shards of one system have the same tables.
                let new = made.into_iter().filter(|statement| !statements.contains(statement));
                let new: Vec<String> = new.collect();
                statements.extend(new);
            }
        }
    }
    Ok(statements)
}

/// The label of a delivery and the topic it leads to, where it names a connection that has no
/// address.
pub(super) fn topic_instead<'a>(
    deliver: &'a Deliver,
    plan: &'a DeliverPlan,
) -> Option<(&'a str, &'a str)> {
    match (deliver.target()?, &plan.target) {
        (TargetConfig::Connector(_), Target::Topic(potok_flow::TopicTarget::Fixed(topic))) => {
            Some((deliver.label(), topic))
        }
        _ => None,
    }
}
