//! From events to messages: keys, business ids and names.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use potok_core::{DeliveryId, Event, Fault, Headers, HeadersBuilder, Message, Output, Reason};
use potok_expr::{Scope, Template, json::Parser};

use crate::lane::{Item, Rejection};
use crate::plan::{DeliverPlan, Target, TopicTarget};

/// Header that carries the name of a delivery.
pub(crate) const ID_HEADER: &str = "potok-id";

/// Room for that header besides the topic, so that it is written in one piece.
const ID_BYTES_USUAL: usize = 64;

/// A message and the record it belongs to.
pub(crate) struct AddressedMessage {
    pub item: usize,
    pub lane_key: u64,
    pub message: Message,
}

/// Makes the messages of a deliver entry for the items from `from` on. What goes to a topic
/// is put beside its item at once; what lacks a key is set aside.
pub(crate) fn address(
    plan: &DeliverPlan,
    is_last: bool,
    items: &mut [Item],
    from: usize,
) -> Vec<AddressedMessage> {
    let mut parser = Parser::new();
    let mut addressed = Vec::with_capacity(items.len() - from);
    for (at, item) in items.iter_mut().enumerate().skip(from) {
        if !item.wants(plan) || item.open == 0 {
            continue;
        }
        // The last entry may have the event itself; the others get a copy of the handles.
        let event = if is_last { item.event.take() } else { item.event.clone() };
        let Some(event) = event else {
            continue;
        };
        // A record named by its feed keeps that name; a message made of several has another.
        let is_named = item.named && !item.leads;
        let end = match message(plan, &mut parser, event, item.id.as_deref(), is_named) {
            Ok(RenderedMessage::Message(message)) => {
                addressed.push(AddressedMessage { item: at, lane_key: item.lane_key, message });
                continue;
            }
            Ok(RenderedMessage::Output(output)) => {
                item.outputs.push((plan.number, output));
                item.delivered = true;
                None
            }
            Err(fault) => Some(Rejection { deliver: Some(plan.number), fault }),
        };
        item.letters.extend(end);
        item.open -= 1;
    }
    addressed
}

enum RenderedMessage {
    Message(Message),
    Output(Output),
}

fn message(
    plan: &DeliverPlan,
    parser: &mut Parser,
    event: Event,
    id: Option<&[u8]>,
    is_named: bool,
) -> Result<RenderedMessage, Fault> {
    let routed_by = match &plan.target {
        Target::Topic(TopicTarget::Map { by, .. }) => Some(by),
        Target::Topic(TopicTarget::Fixed(_)) | Target::Sink(_) => None,
    };
    let mut templates = plan.key.iter().chain(&plan.once_by).chain(routed_by);
    let needs_value = templates.any(Template::needs_value);
    let node = if needs_value { parser.parse(&event.value).ok() } else { None };
    let scope = Scope {
        value: node,
        key: event.key.as_deref(),
        headers: &event.headers,
        topic: &event.position.topic,
        id,
        receiver: None,
    };
    let key = match &plan.key {
        Some(template) => Some(required(template, &scope, "key")?),
        None => event.key.clone(),
    };
    let once = match plan.once_by.as_slice() {
        [] => None,
        [one] => Some(required(one, &scope, "once_by")?),
        parts => Some(joined(parts, &scope)?),
    };
    let topic = match &plan.target {
        Target::Sink(_) => None,
        Target::Topic(TopicTarget::Fixed(topic)) => Some(topic.clone()),
        Target::Topic(TopicTarget::Map { by, map }) => {
            let value = required(by, &scope, "topic.by")?;
            let known = std::str::from_utf8(&value).ok().and_then(|value| map.get(value));
            let unknown = || {
                let value = String::from_utf8_lossy(&value).into_owned();
                Fault::set_aside(Reason::NoKey, format!("no topic is mapped to `{value}`"))
            };
            Some(known.cloned().ok_or_else(unknown)?)
        }
    };
    let id = DeliveryId { position: event.position, deliver: plan.number, element: 0 };
    let headers = with_id(plan, &id, event.headers, is_named);
    let Some(topic) = topic else {
        let Event { value, source, time, .. } = event;
        return Ok(RenderedMessage::Message(Message {
            id,
            key,
            headers,
            value,
            source,
            once,
            time,
        }));
    };
    let value = Some(event.value).filter(|value| !(event.tombstone && value.is_empty()));
    let output = Output { topic, partition: None, key, headers, value };
    if output.is_too_large() {
        let what = format!("{} bytes are more than a record may have", output.bytes());
        return Err(Fault::set_aside(Reason::TooLarge, what));
    }
    Ok(RenderedMessage::Output(output))
}

fn with_id(plan: &DeliverPlan, id: &DeliveryId, headers: Headers, is_named: bool) -> Headers {
    if !plan.headers_id || is_named {
        return headers;
    }
    let room = headers.encoded().len() + ID_BYTES_USUAL + id.position.topic.len();
    let all = HeadersBuilder::with_capacity(room).add_all(&headers);
    all.add_written(ID_HEADER, |value| value.show(id)).build()
}

fn required(template: &Template, scope: &Scope<'_>, what: &str) -> Result<Bytes, Fault> {
    template.eval_bytes(scope).ok_or_else(|| {
        let source = template.source();
        Fault::set_aside(Reason::NoKey, format!("{what} `{source}` is missing or null"))
    })
}

/// Several parts as one id: each with its length before it, so that no two lists meet.
fn joined(parts: &[Template], scope: &Scope<'_>) -> Result<Bytes, Fault> {
    let mut id = Vec::new();
    for template in parts {
        let part = required(template, scope, "once_by")?;
        id.extend_from_slice(part.len().to_string().as_bytes());
        id.push(b':');
        id.extend_from_slice(&part);
    }
    Ok(id.into())
}

/// The naive way to id things; see `Bug::NamesFromCounter`.
pub(crate) fn counted_name() -> u64 {
    static COUNTER: AtomicU64 = AtomicU64::new(1 << 40);
    COUNTER.fetch_add(1, Ordering::Relaxed)
}
