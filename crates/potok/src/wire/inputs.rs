//! The step `source`.

use std::sync::Arc;

use potok_config::{Input, LogConnection, Refusal, StartFrom};
use potok_connectors::redis;
use potok_core::Fault;

use super::Wiring;
use crate::failure::Failure;

/// The sources of a pipeline, those of one consumer group together.
pub(super) fn of(wiring: &Wiring<'_>) -> Result<Vec<potok_flow::Input>, Failure> {
    let mut inputs: Vec<potok_flow::Input> = Vec::new();
    let keeps = |input: &Input| matches!(input, Input::Feed(feed) if feed.keeps_dead_letters());
    if wiring.pipeline.dead_letter.table.is_some() && !wiring.pipeline.inputs().any(keeps) {
        let fault = Fault::fix("`table` keeps dead letters of an outbox, and no source is one");
        let fault = fault.code("P1305").hint("name a topic: `dead_letter: { topic: … }`");
        return Err(wiring.refused("dead_letter", 0, vec![Refusal::at(["table"], fault)]));
    }
    for (index, input) in wiring.pipeline.inputs().enumerate() {
        let path = |input: &Input| match input {
            Input::Topics { http, .. } => http.as_ref().map(|http| http.path.to_string()),
            Input::Feed(_) => None,
        };
        let mut before = wiring.pipeline.inputs().take(index).filter_map(path);
        if let Some(path) = path(input)
            && before.any(|other| other == path)
        {
            let what = format!("a source before this one has the path `{path}`");
            let fault = Fault::fix(what).code("P0149").hint("each path leads to one topic");
            return Err(wiring.refused("source", index, vec![Refusal::at(["http"], fault)]));
        }
        if let Input::Topics { is_list: true, topics, .. } = input
            && let Some(list) = topics.first()
            && let Some(feed) = redis::queue(
                wiring.connections,
                &wiring.pipeline.name,
                list,
                wiring.pipeline.group.as_ref(),
            )?
        {
            if wiring.pipeline.inputs().count() > 1 {
                let fault = Fault::fix("a list in Redis is the only source of its pipeline");
                let fault = fault.code("P1208").hint("give each source a pipeline of its own");
                return Err(wiring.refused("source", index, vec![Refusal::at(["list"], fault)]));
            }
            let name = Arc::from(list.as_str());
            inputs.push(potok_flow::Input::Feed { name, feed: Arc::new(feed) });
            continue;
        }
        if let Input::Topics { is_list: true, .. } = input
            && !matches!(wiring.connections.log, LogConnection::Embedded)
        {
            let fault = Fault::fix("a list is a topic of the embedded log, and the log is Kafka");
            let fault = fault.code("P1201").hint(
                "read a topic: `source: { topic: … }`, or set `queue: redis://…` in potok.yaml",
            );
            return Err(wiring.refused("source", index, vec![Refusal::at(["list"], fault)]));
        }
        if let Input::Feed(settings) = input {
            let built = settings.build(&wiring.site("source", settings.label(), Vec::new()));
            let feed = built.map_err(|refusals| wiring.refused("source", index, refusals))?;
            if wiring.pipeline.group.is_some() && !feed.abilities().comes_whole {
                return Err(Failure::faults(vec![not_grouped(wiring, settings.label())]));
            }
            if wiring.pipeline.order_by.is_some() && feed.abilities().puts_off.is_some() {
                let fault = ordered_by_feed(settings.label());
                return Err(wiring.refused("order_by", 0, vec![Refusal::at([""], fault)]));
            }
            let name = Arc::from(settings.label());
            inputs.push(potok_flow::Input::Feed { name, feed });
            continue;
        }
        if let Err(what) = join(&mut inputs, &wiring.pipeline.name, input) {
            let fault = Fault::fix(what).code("P0152");
            let keys = ["from", "consumer_group", ""];
            return Err(wiring.refused("source", index, vec![Refusal::at(keys, fault)]));
        }
    }
    Ok(inputs)
}

/// What waits in a group has to lie in the log meanwhile.
fn not_grouped(wiring: &Wiring<'_>, feed: &str) -> Fault {
    let pipeline = &wiring.pipeline.name;
    let what = format!("pipeline `{pipeline}` groups what feed `{feed}` hands out");
    let hint = "let one pipeline bring its records into a topic, and another one group them";
    Fault::fix(what).code("P0409").hint(hint)
}

/// What a feed puts off keeps back what has the same key in the feed, and nothing else.
fn ordered_by_feed(feed: &str) -> Fault {
    let what = format!("`order_by` with `{feed}`, which keeps its records in order itself");
    let hint = "remove `order_by`: records of one key of the source leave in their order; to order by \
                something else, let another pipeline read the topic";
    Fault::fix(what).code("P0153").hint(hint)
}

/// Groups that its feeds close themselves are none of the engine's.
pub(super) fn come_whole(inputs: &[potok_flow::Input]) -> bool {
    inputs.iter().any(|input| match input {
        potok_flow::Input::Topics { .. } => false,
        potok_flow::Input::Feed { feed, .. } => feed.abilities().comes_whole,
    })
}

/// Adds a source to those of its consumer group, or to all.
fn join(
    inputs: &mut Vec<potok_flow::Input>,
    pipeline: &str,
    input: &Input,
) -> Result<(), &'static str> {
    let Input::Topics { topics, consumer_group, from, .. } = input else { return Ok(()) };
    let wanted = consumer_group.as_deref().unwrap_or(pipeline);
    let is_last = *from == StartFrom::Latest;
    let more = topics.iter().map(|topic| Arc::from(topic.as_str()));
    for known in inputs.iter_mut() {
        let potok_flow::Input::Topics { group, topics, from_end } = known else { continue };
        if group != wanted {
            continue;
        }
        if *from_end != is_last {
            return Err("the topics of one consumer group begin at the same end");
        }
        topics.extend(more);
        return Ok(());
    }
    let (group, topics) = (wanted.to_owned(), more.collect());
    inputs.push(potok_flow::Input::Topics { group, topics, from_end: is_last });
    Ok(())
}
