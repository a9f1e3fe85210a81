//! A test record, by hand or from a dead letter.

use maud::html;

use super::frame::{HtmlPage, Nav, Part, head};
use super::text::{ShellCommand, clean};
use super::{Context, Query};
use crate::patience::{ANSWER_MAX, soon};
use crate::{ApiError, letters};

/// Of a dead letter that is edited.
const VALUE_BYTES_MAX: usize = 256 << 10;

pub(super) async fn page(context: &Context, query: &Query) -> Result<HtmlPage, ApiError> {
    let from = query.get("from").filter(|from| !from.is_empty());
    let mut topics: Vec<String> =
        context.admin.engine().reads().iter().map(ToString::to_string).collect();
    topics.sort();
    topics.dedup();
    let (mut topic, mut key, mut value) =
        (query.get("topic").cloned().unwrap_or_default(), String::new(), String::new());
    if let Some(of) = query.get("pipeline").and_then(|name| context.snapshot.outlines.get(name)) {
        topic = of.reads.first().cloned().unwrap_or_default();
    }
    let mut cut = None;
    if let Some(id) = from {
        let (letter, _) = soon(ANSWER_MAX, letters::one(&context.admin, id)).await?;
        topic = letter.envelope.origin.topic.to_string();
        // What a browser would change is not edited in one.
        let text = |bytes: &[u8]| {
            let text =
                std::str::from_utf8(bytes).ok().filter(|text| clean(text, usize::MAX) == *text);
            text.map(str::to_owned)
        };
        let body = letter.record.value.as_deref().filter(|body| body.len() <= VALUE_BYTES_MAX);
        match (text(letter.record.key.as_deref().unwrap_or_default()), body.and_then(text)) {
            (Some(text), Some(body)) => (key, value) = (text, body),
            _ => cut = Some("The record is no plain text, or too large to be edited here."),
        }
    }
    // What somebody typed before they had to sign in again.
    for (typed, name) in [(&mut topic, "topic"), (&mut key, "key"), (&mut value, "value")] {
        if let Some(input) = context.input(name) {
            *typed = input.to_owned();
        }
    }
    let html = html! {
        (head(html! { "Send a test record" }, html! { "It goes the way of every record, with the header " code { "potok-test" } ". The page after it shows what became of it." }, html! {}))
        section class="panel" { div class="pad" {
            @if let Some(cut) = cut { div class="note-box warn" { (cut) } }
            @if topics.is_empty() { p class="strong" { "No pipeline of this process reads a topic." } }
            @else {
                form class="form col" method="post" action="/act/send" {
                    (context.hidden(&[]))
                    label { "Topic " select name="topic" { @for name in &topics { option value=(name) selected[*name == topic] { (clean(name, 80)) } } } }
                    label { "Key " input class="in mono" name="key" value=(key) placeholder="none" autocomplete="off"; }
                    label class="w" { "Value " textarea name="value" spellcheck="false" { (value) } }
                    button class="btn pri" { "Send, then trace it" }
                }
            }
        } }
    };
    Ok(HtmlPage {
        title: "Send a test record".to_owned(),
        nav: Nav::Send,
        parts: vec![Part::still("send", html)],
        command: ShellCommand::new("potok send")
            .names(&[if topic.is_empty() { "TOPIC" } else { &topic }])
            .text(),
        json: "/api/v1/topics".to_owned(),
    })
}
