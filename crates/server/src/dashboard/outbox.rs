//! Outbox tables: what waits, what fails, and who relays them.

use std::time::Duration;

use maud::{Markup, html};
use potok_core::{FailingRow, OutboxStatus};

use super::Context;
use super::draw::icon;
use super::frame::{HtmlPage, Nav, Part, head, panel};
use super::text::{UNKNOWN, clean, count, known, number, part, rate, span};
use crate::ApiError;
use crate::outbox::{OutboxLine, outboxes};

/// Rows that are shown of those that fail.
const ROWS: usize = 50;
/// How long tables may take to answer.
const ASK_MAX: Duration = Duration::from_secs(2);
/// A table counts no further.
const COUNTED_MAX: u64 = 100_000;

pub(super) async fn page(context: &Context) -> Result<HtmlPage, ApiError> {
    let asked = tokio::time::timeout(ASK_MAX, outboxes(&context.admin, None)).await;
    let found = asked.unwrap_or_else(|_| {
        let what = "the outbox cannot be told now: its database does not answer";
        Err(ApiError::from(potok_core::Fault::wait(what)))
    })?;
    let about = html! { "Rows that programs wrote in their own transactions; each is published once it is committed, in the order of its key, and marked." };
    let parts = vec![
        Part::still("head", head(html! { "Outbox" }, about, html! {})),
        Part::calm("outboxes", html! { @for one in &found { (shown(context, one)) } }),
    ];
    Ok(HtmlPage {
        title: "Outbox".to_owned(),
        nav: Nav::Outbox,
        parts,
        command: "potok outbox status pipelines/outbox.yaml".to_owned(),
        json: "/api/v1/outbox".to_owned(),
    })
}

fn millis(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1_000.0) as u64
}

fn counted(count: u64) -> String {
    if count > COUNTED_MAX { format!("over {}", number(COUNTED_MAX)) } else { number(count) }
}

fn shown(context: &Context, line: &OutboxLine) -> Markup {
    let name =
        html! { a href={ "/pipelines/" (part(&line.pipeline)) } { (clean(&line.pipeline, 60)) } };
    let Some(status) = &line.status else {
        let why = line.error.as_deref().unwrap_or("its database does not say");
        return panel(
            name,
            html! {},
            html! { div class="pad" {
                p class="strong c-warn" { (icon("wait", "")) " How it stands is not known: " (UNKNOWN) }
                p class="brk" { (clean(&context.told(why), 400)) }
            } },
        );
    };
    html! {
        section class="panel" aria-label=(clean(&line.pipeline, 60)) {
            header { h2 { (name) " " code { (clean(&status.table, 80)) } } span class="more" { (owner(status)) } }
            dl class="figs n5" {
                div { dt { "waiting" } dd class=(if status.waiting > 1_000 { "c-warn" } else { "" }) { (counted(status.waiting)) } dd class="note" { "rows not published yet" } }
                div { dt { "oldest" } dd { (status.oldest_seconds.map_or(UNKNOWN.to_owned(), |age| span(millis(age)))) } dd class="note" { "since it was written" } }
                div { dt { "published" } dd { (rate(status.rate)) small { " /s" } } dd class="note" { "in the last minute" } }
                div { dt { "failing keys" } dd class=(if status.failing_keys > 0 { "c-warn" } else { "" }) { (known(Some(status.failing_keys))) } dd class="note" { "others go on" } }
                div { dt { "dead letters" } dd class=(if status.dead > 0 { "c-bad" } else { "" }) { (counted(status.dead)) } dd class="note" { @if status.dead > 0 { a href={ "/dead-letters?pipeline=" (part(&line.pipeline)) } { "review" } } @else { "none" } } }
            }
        }
        @if !status.failing.is_empty() { (failing(context, &line.pipeline, status)) }
    }
}

fn owner(status: &OutboxStatus) -> Markup {
    match status.owner.as_ref().filter(|owner| owner.lease_seconds > 0.0) {
        Some(owner) => {
            html! { "relayed by " (clean(&owner.owner, 80)) ", lease " (span(millis(owner.lease_seconds))) }
        }
        None => html! { span class="c-warn" { "relayed by nobody now" } },
    }
}

fn failing(context: &Context, pipeline: &str, status: &OutboxStatus) -> Markup {
    let hidden = status.failing_keys.saturating_sub(status.failing.len().min(ROWS) as u64);
    let retry = context.form(
        "retry-rows",
        &[("pipeline", pipeline)],
        html! { button class="btn s" { "Try all now" } },
    );
    panel(
        html! { "Failing, and tried again" },
        retry,
        html! {
            div class="scroll" { table class="card-t" {
                thead { tr { th { "Key" } th { "Row" } th class="num" { "Attempts" } th { "Next try" } th class="num" { "Behind it" } th { "Error" } } }
                tbody { @for row in status.failing.iter().take(ROWS) { (failing_row(context, row)) } }
            } }
            @if hidden > 0 { div class="page" { "and " (count(hidden, "key", "keys")) " more: " code { "potok outbox status" } } }
        },
    )
}

fn failing_row(context: &Context, row: &FailingRow) -> Markup {
    html! {
        tr {
            td class="brk" data-l="key" { span class="mono" { (clean(&row.key, 60)) } }
            td class="brk" data-l="row" { code { (clean(&row.id, 60)) } }
            td class="num" data-l="attempts" { (number(row.attempt)) }
            td class="nowrap" data-l="next try" { @if row.next_seconds > 0.0 { "in " (span(millis(row.next_seconds))) } @else { "due" } }
            td class="num" data-l="behind" { (number(row.behind)) }
            td class="full err" { (clean(&context.told(&row.error), 200)) }
        }
    }
}
