//! What is held, when it closes, and why then.

use std::time::Duration;

use maud::{Markup, html};
use potok_flow::GroupView;

use super::draw::{bar, icon};
use super::frame::{HtmlPage, Nav, Part, head, panel};
use super::overview::due;
use super::text::{
    ShellCommand, UNKNOWN, address, bytes, clean, count, held, number, part, span, time_of,
};
use super::{Context, Query};
use crate::groups::{Held, STATES, WantedGroups};
use crate::problems::age;
use crate::{ApiError, groups, parse_since};

/// Rows of a page.
const ROWS: usize = 50;
/// How long a feed may take to say what it holds.
const ASK_MAX: Duration = Duration::from_secs(2);

/// Waits no longer than a person does.
async fn soon<T>(asked: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    tokio::time::timeout(ASK_MAX, asked).await.unwrap_or_else(|_| {
        let what = "what is held cannot be told now: the feed does not answer";
        Err(ApiError::from(potok_core::Fault::wait(what)))
    })
}

pub(super) async fn page(context: &Context, query: &Query) -> Result<HtmlPage, ApiError> {
    let field = |name: &str| query.get(name).map(String::as_str).unwrap_or_default();
    let holding: Vec<&String> = context
        .snapshot
        .outlines
        .iter()
        .filter(|(_, outline)| outline.group.is_some())
        .map(|(name, _)| name)
        .collect();
    let first = holding.first().map(|name| name.as_str()).unwrap_or_default();
    let pipeline = if field("pipeline").is_empty() { first } else { field("pipeline") };
    let mut parts = vec![Part::still("head", heading())];
    if !holding.iter().any(|name| *name == pipeline) {
        parts.push(Part::still("none", nothing(pipeline)));
    } else {
        parts.push(Part::live("tabs", tabs(context, &holding, pipeline)));
        parts.push(Part::live("figures", figures(context, pipeline)));
        parts.push(Part::still("find", find(pipeline, field("key"), field("state"))));
        parts.push(Part::calm("list", list(context, pipeline, query).await?));
    }
    let command = ShellCommand::new("potok groups list");
    let command = command.flag("--prefix", field("key")).flag("--state", field("state"));
    let command = if pipeline.is_empty() { command } else { command.names(&[pipeline]) };
    Ok(HtmlPage {
        title: "Groups".to_owned(),
        nav: Nav::Groups,
        parts,
        command: command.text(),
        json: address(
            "/api/v1/groups",
            &[
                ("pipeline", pipeline),
                ("prefix", field("key")),
                ("state", field("state")),
                ("limit", &ROWS.to_string()),
            ],
        ),
    })
}

fn heading() -> Markup {
    let about = html! { "Records that are collected under one key until they close. Held is not stuck: each group has a moment at which it goes on." };
    head(html! { "Groups" }, about, html! {})
}

fn nothing(pipeline: &str) -> Markup {
    html! {
        section class="panel" { div class="pad" {
            @if pipeline.is_empty() { p class="strong" { "No pipeline of this process holds groups." } }
            @else { p class="strong" { (clean(pipeline, 60)) " holds no groups, or does not run here." } }
            p class="muted" { "A pipeline with a " code { "group:" } " in its file is listed here." }
        } }
    }
}

fn tabs(context: &Context, holding: &[&String], current: &str) -> Markup {
    html! {
        nav class="tabs" aria-label="Pipeline" {
            @for name in holding {
                a href={ "/groups?pipeline=" (part(name)) } aria-current=[(*name == current).then_some("page")] {
                    (clean(name, 40))
                    span class="n" { (number(context.snapshot.of(name).map_or(0, |status| held(status).1))) }
                }
            }
        }
    }
}

fn figures(context: &Context, pipeline: &str) -> Markup {
    let Some(status) = context.snapshot.of(pipeline) else { return html! {} };
    let (records, groups) = held(status);
    let rules = context.snapshot.outlines.get(pipeline).and_then(|outline| outline.group.clone());
    let late = &status.lateness;
    let punctual = late.at_most.iter().find(|(bound, _)| *bound == 250).map(|(_, below)| *below);
    let share = punctual.map(|below| 100.0 * below as f64 / late.count.max(1) as f64);
    html! {
        section class="panel" aria-label="Summary" {
            dl class="figs n5" {
                div { dt { "open" } dd class="c-held" { (number(groups)) } dd class="note" { (count(records, "record", "records")) ", " (bytes(status.held_bytes)) } }
                div { dt { "next closes" } dd { @match status.next_close_in { Some(next) => (due(context, next)), None => (UNKNOWN) } } dd class="note" { "counted down here" } }
                div { dt { "oldest record" } dd { (status.oldest.map_or(UNKNOWN.to_owned(), span)) } dd class="note" { "since it arrived" } }
                div { dt { "closed in time" } dd { @match share { Some(share) if late.count > 0 => { (format!("{share:.1}")) small { " %" } }, _ => (UNKNOWN) } } dd class="note" { "within 250 ms, of " (number(late.count)) } }
                div { dt { "closes by" } dd class="note" { (rules.unwrap_or_default().join(", ")) } }
            }
        }
    }
}

fn find(pipeline: &str, key: &str, state: &str) -> Markup {
    let states = STATES.map(|state| (state, state));
    html! {
        form class="filt" role="search" action="/groups" {
            input type="hidden" name="pipeline" value=(pipeline);
            input class="grow mono" name="key" value=(clean(key, 1_000)) aria-label="Key of a group, or how it begins" placeholder="key of a group, or how it begins" autocomplete="off";
            select name="state" aria-label="State" {
                @for (value, word) in [("", "every state")].into_iter().chain(states) { option value=(value) selected[value == state] { (word) } }
            }
            button class="btn" { "Show" }
            @if !key.is_empty() || !state.is_empty() { a class="link sm" href={ "/groups?pipeline=" (part(pipeline)) } { "All" } }
        }
    }
}

async fn list(context: &Context, pipeline: &str, query: &Query) -> Result<Markup, ApiError> {
    let given = |name: &str| query.get(name).filter(|text| !text.is_empty());
    let (key, state, after) = (given("key"), given("state"), given("after"));
    let text = |given: Option<&String>| given.cloned().unwrap_or_default();
    let wanted = WantedGroups { prefix: key.cloned(), state: state.cloned() };
    let after_given = after.map(String::as_str);
    let asked = async {
        if !wanted.is_some() {
            return groups::page(&context.admin, Some(pipeline), after_given, ROWS).await;
        }
        // A whole key is known at once, wherever it stands.
        if let (Some(key), None, None) = (key, state, after) {
            let groups = groups::of_key(&context.admin, Some(pipeline), key).await?;
            let total = groups.len() as u64;
            if total > 0 {
                return Ok(groups::GroupsPage { total, groups, looked_at: None, next: None });
            }
        }
        groups::matching(&context.admin, Some(pipeline), &wanted, after_given, ROWS).await
    };
    let page = soon(asked).await?;
    let (key_text, state_text) = (text(key), text(state));
    let kept = [("pipeline", pipeline), ("key", key_text.as_str()), ("state", state_text.as_str())];
    let next = page
        .next
        .as_ref()
        .map(|next| address("/groups", &[kept[0], kept[1], kept[2], ("after", next.as_str())]));
    Ok(html! {
        section class="panel" {
            @if page.groups.is_empty() {
                div class="pad" {
                    @if let (Some(looked_at), Some(next)) = (page.looked_at, &next) { p class="strong" { "None among the " (count(looked_at, "group that was", "groups that were")) " looked at." } p class="below" { a class="btn s" href=(next) { "Go on" } } }
                    @else if !wanted.is_some() && after.is_none() { p class="strong" { "Nothing is held now." } p class="muted" { "A group is here from its first record until it is sent." } }
                    @else { p class="strong" { "No such group is held." } p class="muted" { "It was sent, or nothing has come for it." } }
                }
            } @else {
                div class="scroll" { table class="card-t" {
                    thead { tr { th { "Key" } th { "State" } th class="num" { "Records" } th class="num" { "Bytes" } th { "Opened" } th aria-sort="ascending" { "Closes" } th { span class="vh" { "Action" } } } }
                    tbody { @for group in &page.groups { (row(context, group)) } }
                } }
                div class="page" {
                    span {
                        (number(page.groups.len() as u64)) " of " (count(page.total, "group", "groups")) ", what closes first in front"
                        @if let Some(looked_at) = page.looked_at { "; " (number(looked_at)) " were looked at" }
                    }
                    span class="r" {
                        @if after.is_some() { a class="btn s" href=(address("/groups", &kept)) { "First" } }
                        @if let Some(next) = next { a class="btn s" href=(next) { @if page.looked_at.is_some() { "Go on" } @else { "Next" } } }
                    }
                }
            }
        }
    })
}

fn records(group: &GroupView) -> u64 {
    group.kinds.values().map(|kind| kind.records).sum()
}

fn state(group: &GroupView) -> Markup {
    let (class, shape) = match group.state {
        "open" => ("held", "ring"),
        "sealed" => ("acc", "half"),
        _ if group.attempts > 1 => ("warn", "warn"),
        _ => ("acc", "half"),
    };
    html! { span class={ "pill " (class) } { (icon(shape, "")) (group.state) } }
}

/// When it closes, and how much of its time is over.
fn closes(context: &Context, group: &GroupView) -> Markup {
    let now = context.snapshot.at;
    let due_at = group.due.as_deref().and_then(|due| parse_since(due, now).ok());
    let opened = parse_since(&group.opened, now).ok();
    if group.state != "open" {
        return html! { span class="faint" { "closed" @if let Some(reason) = group.reason { ": " (reason.replace('_', " ")) } } };
    }
    let Some(due_at) = due_at else { return html! { span class="faint" { "when a rule holds" } } };
    let left = due_at.millis_since(now);
    let whole = opened.map_or(1, |opened| due_at.millis_since(opened)).max(1);
    let over = 100.0 * (1.0 - left as f64 / whole as f64);
    html! { span class="strong" { (due(context, left)) } (bar(&[(over, "")])) }
}

fn page_of(group: &GroupView) -> String {
    format!("/groups/{}/{}", part(&group.pipeline), part(&group.id))
}

fn row(context: &Context, group: &GroupView) -> Markup {
    let shown = if group.id.is_empty() { "(all)".to_owned() } else { clean(&group.id, 80) };
    html! {
        tr {
            td class="full brk" {
                a class="mono" href=(page_of(group)) { (shown) }
                @if group.state != "open" && group.attempts > 1 { span class="l2 c-warn" { "attempt " (group.attempts) } }
                @if group.kinds.len() > 1 { span class="l2" { (kinds(group)) } }
            }
            td data-l="state" { (state(group)) }
            td class="num" data-l="records" { (number(records(group))) }
            td class="num none" { (bytes(group.bytes)) }
            td class="nowrap none" { (time_of(&group.opened, context.snapshot.at)) }
            td data-l="closes" class="wid" { (closes(context, group)) }
            td class="num full" { @if group.state == "open" { (close(context, group)) } }
        }
    }
}

fn close(context: &Context, group: &GroupView) -> Markup {
    let fields = [
        ("pipeline", group.pipeline.as_str()),
        ("key", group.id.as_str()),
        ("generation", group.generation.as_str()),
    ];
    context.form("close-group", &fields, html! { button class="btn s" { "Close now" } })
}

fn kinds(group: &GroupView) -> String {
    let kinds: Vec<String> =
        group.kinds.iter().map(|(name, kind)| format!("{} {name}", number(kind.records))).collect();
    clean(&kinds.join(", "), 120)
}

/// One key: all groups that are held under it.
pub(super) async fn one(
    context: &Context,
    pipeline: &str,
    key: &str,
) -> Result<HtmlPage, ApiError> {
    let groups = soon(groups::of_key(&context.admin, Some(pipeline), key)).await?;
    let parts = vec![
        Part::still(
            "head",
            head(
                html! { span class="mono" { (clean(key, 120)) } },
                html! { "Group of " a href={ "/pipelines/" (part(pipeline)) } { (clean(pipeline, 60)) } },
                html! {
                    a class="btn" href={ "/trace?id=" (part(key)) } { "Trace" }
                },
            ),
        ),
        Part::calm(
            "groups",
            html! {
                @if groups.is_empty() {
                    section class="panel" { div class="pad" {
                        p class="strong" { "Nothing is held under this key now." }
                        p class="muted" { "It was sent, or nothing has come for it. " a href={ "/trace?id=" (part(key)) } { "Trace it" } " to see what became of it." }
                    } }
                }
                @for group in &groups { (details(context, group)) }
            },
        ),
    ];
    Ok(HtmlPage {
        title: key.to_owned(),
        nav: Nav::Groups,
        parts,
        command: ShellCommand::new("potok groups show").names(&[pipeline, key]).text(),
        json: address("/api/v1/groups", &[("pipeline", pipeline), ("id", key)]),
    })
}

fn details(context: &Context, group: &GroupView) -> Markup {
    let now = context.snapshot.at;
    let old = age(Some(&group.opened), now).map(span).unwrap_or_default();
    panel(
        html! { "Generation " span class="mono" { (clean(&group.generation, 60)) } },
        state(group),
        html! {
            div class="pad" {
                dl class="kv" {
                    dt { "Closes" } dd { (closes(context, group)) }
                    dt { "Records" } dd { (number(records(group))) " (" (kinds(group)) "), " (bytes(group.bytes)) }
                    dt { "Distinct ids" } dd { (number(group.kinds.values().map(|kind| kind.ids).sum())) ", " (count(group.duplicates, "duplicate", "duplicates")) }
                    dt { "Opened" } dd { (time_of(&group.opened, now)) ", " (old) " ago" }
                    dt { "Owner" } dd { (group.owner) }
                    dt { "Attempts" } dd { (number(group.attempts)) }
                }
            }
            @if group.state == "open" {
                div class="page" {
                    (close(context, group))
                    @if context.is_operator() { span { "Closing sends what it holds now. " } }
                    @if context.is_admin() { span class="r" { a class="btn s dng" href={ (page_of(group)) "/drop" } { "Drop…" } } }
                }
            }
        },
    )
}

/// Dropping is confirmed by the key.
pub(super) async fn drop(
    context: &Context,
    pipeline: &str,
    key: &str,
) -> Result<HtmlPage, ApiError> {
    let Held { records, mark } = soon(groups::held(&context.admin, pipeline, key)).await?;
    let html = html! {
        (head(html! { "Drop " span class="mono" { (clean(key, 120)) } }, html! { "Group of " (clean(pipeline, 60)) }, html! {}))
        section class="panel" { div class="pad" {
            @if records == 0 { p class="strong" { "No open group is held under this key." } }
            @else {
                p { (count(records, "record", "records")) " would become dead letters with reason " code { "dropped" } ". They can be replayed from there." }
                br;
                form class="form" method="post" action="/act/drop-group" {
                    (context.hidden(&[("pipeline", pipeline), ("key", key), ("held", &mark)]))
                    label { "Type the key to confirm " input class="in mono" name="typed" value=[context.input("typed")] autocomplete="off" required; }
                    button class="btn dng" { "Drop " (count(records, "record", "records")) }
                    a class="link" href={ "/groups/" (part(pipeline)) "/" (part(key)) } { "Cancel" }
                }
            }
        } }
    };
    Ok(HtmlPage {
        title: "Drop a group".to_owned(),
        nav: Nav::Groups,
        parts: vec![Part::still("drop", html)],
        command: ShellCommand::new("potok groups drop").names(&[pipeline, key]).text(),
        json: address("/api/v1/groups", &[("pipeline", pipeline), ("id", key)]),
    })
}
