//! One record from its source to what became of it.

use maud::{Markup, html};

use super::draw::icon;
use super::frame::{HtmlPage, Nav, Part, head, panel};
use super::text::{ShellCommand, address, bytes, clean, count, exact_time_of, number, part};
use super::{Context, Query};
use crate::ApiError;
use crate::trace::{Sighting, TraceQuery, TraceResult, WINDOW, search};

/// Places that are shown.
const ROWS: usize = 200;

pub(super) async fn page(context: &Context, query: &Query) -> Result<HtmlPage, ApiError> {
    let id = query.get("id").map(|id| id.trim()).unwrap_or_default();
    let since = query.get("since").map(String::as_str).unwrap_or("1h");
    let about = html! { "Everything the log still has of a key, an id anywhere in a record, a group, or a place such as " code { "orders/0/17" } "." };
    let mut parts = vec![
        Part::still(
            "head",
            head(
                html! { "Trace " @if !id.is_empty() { span class="mono" { (clean(id, 100)) } } },
                about,
                html! {},
            ),
        ),
        Part::still("find", form(id, since)),
    ];
    if !id.is_empty() {
        let wish = TraceQuery {
            id: id.to_owned(),
            since: Some(since.to_owned()),
            seconds: None,
            megabytes: None,
            limit: Some(ROWS),
        };
        let found = search(&context.admin, wish, context.is_operator()).await?;
        parts.push(Part::still("found", results(context, id, since, &found)));
    }
    let command = ShellCommand::new("potok trace").flag("--since", since);
    let command = command.names(&[if id.is_empty() { "ID" } else { id }]);
    Ok(HtmlPage {
        title: "Trace".to_owned(),
        nav: Nav::Trace,
        parts,
        command: command.text(),
        json: address("/api/v1/trace", &[("id", id), ("since", since)]),
    })
}

fn form(id: &str, since: &str) -> Markup {
    let spans = [
        ("15m", "last 15 min"),
        ("1h", "last hour"),
        ("6h", "last 6 h"),
        ("24h", "last 24 h"),
        ("", "all that is kept"),
    ];
    html! {
        form class="filt" role="search" action="/trace" {
            input class="grow mono" name="id" value=(clean(id, 1_000)) aria-label="What to look for" placeholder="a key, an id, a group, topic/partition/offset" autocomplete="off" required;
            select name="since" aria-label="How far back" { @for (value, word) in spans { option value=(value) selected[value == since] { (word) } } }
            button class="btn pri" { "Trace" }
        }
    }
}

fn results(context: &Context, id: &str, since: &str, found: &TraceResult) -> Markup {
    let searched = html! {
        dl class="kv" {
            dt { "Range" } dd { @match &found.since { Some(since) => { "since " (since) }, None => "all that is kept" } }
            dt { "Read" } dd { (count(found.records, "record", "records")) ", " (bytes(found.bytes)) @if found.complete { ", complete" } @else { ", " span class="c-warn strong" { "not complete" } ": time, bytes or places ran out, or others search; choose a shorter time" } }
            dt { "Not searched" } dd { "rows in databases: look them up by " code { "potok_id" }
                @if found.since.is_some() && context.admin.engine().log().is_shared() { "; records that their senders have dated newer than the " (number(WINDOW)) " behind them, all of which are older" } }
        }
    };
    html! {
        div class="cols w21" {
            @if found.seen.is_empty() {
                section class="panel" { div class="pad" {
                    p class="strong" { @if found.complete { "Found nowhere." } @else { "Not found so far." } }
                    p class="muted" { "No record " @if !since.is_empty() { "of this time " } "has it as its key, as a header's value or as a whole word of its value. "
                        a href=(address("/trace", &[("id", id), ("since", "24h")])) { "Look 24 h back" } " · "
                        a href={ "/trace?id=" (part(id)) "&since=" } { "Look at all that is kept" } }
                } }
            } @else {
                (panel(html! { (count(found.seen.len() as u64, "place", "places")) }, html! { "times in UTC" }, html! {
                    ol class="tl" { @for seen in &found.seen { (row(context, seen)) } }
                    @if found.seen.len() >= ROWS { div class="page" { "as many as a page shows: choose a shorter time, or use the command" } }
                }))
            }
            (panel(html! { "How it was searched" }, html! {}, html! { div class="pad" { (searched) } }))
        }
    }
}

fn row(context: &Context, seen: &Sighting) -> Markup {
    let (shape, class, title) = match seen.what {
        "record" => ("ring", "", "Arrived"),
        "ended" => ("ok", "c-ok", "Ended"),
        "open" => ("wait", "c-warn", "Not ended yet"),
        "gathered" => ("half", "c-acc", "Gathered by its group"),
        "sealed" => ("half", "c-acc", "Sealed"),
        "delivered" => ("ok", "c-ok", "Delivered to a topic"),
        "dead letter" => ("letter", "c-bad", "Dead letter"),
        "replay" => ("send", "c-acc", "Replayed"),
        "resolved" => ("ok", "", "Dead letter settled"),
        "held" => ("wait", "c-held", "Held in a group"),
        _ => ("ring", "", "Found"),
    };
    let time = if seen.time == "-" { String::new() } else { exact_time_of(&seen.time) };
    let date = seen.time.split_once('T').map(|(date, _)| date).unwrap_or_default();
    let place = match seen.what {
        "dead letter" => Some(format!("/dead-letters?id={}", part(&seen.at))),
        "held" => seen
            .pipeline
            .as_ref()
            .zip(seen.key.as_ref())
            .map(|(pipeline, key)| format!("/groups/{}/{}", part(pipeline), part(key))),
        _ => Some(format!("/trace?id={}", part(&seen.at))),
    };
    html! {
        li {
            time { (time) small { (date) } }
            span class="pt" { (icon(shape, class)) }
            div {
                h3 { (title) @if let Some(pipeline) = &seen.pipeline { span class="pill" { (clean(pipeline, 40)) } } }
                p {
                    @match place { Some(place) => a class="mono" href=(place) { (clean(&seen.at, 100)) }, None => code { (clean(&seen.at, 100)) } }
                    @if let Some(key) = &seen.key { ", key " code { (clean(key, 80)) } }
                }
                @if let Some(more) = seen.more.as_ref().filter(|_| context.is_operator()) { p { (clean(more, 500)) } }
            }
        }
    }
}
