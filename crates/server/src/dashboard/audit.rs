//! What people did.

use maud::html;

use super::Context;
use super::draw::icon;
use super::frame::{HtmlPage, Nav, Part, head};
use super::text::{clean, known, part, time_of};
use crate::ApiError;
use crate::audit::{Door, newest};
use crate::patience::ANSWER_MAX;

/// Changes that are shown.
const ROWS: usize = 100;

pub(super) async fn page(context: &Context) -> Result<HtmlPage, ApiError> {
    let entries = newest(&context.admin, &context.visitor, ROWS, ANSWER_MAX).await?;
    let html = html! {
        (head(html! { "Audit" }, html! { "What people did, here and by commands. It lies in the topic " code { "potok-audit" } "." }, html! {}))
        section class="panel" {
            @if entries.is_empty() { div class="pad" { p class="strong" { "Nobody has changed anything yet." } } }
            @else {
                div class="scroll" { table class="card-t" {
                    thead { tr { th { "Time" } th { "Who" } th { "What" } th { "Pipeline" } th { "Which" } th class="num" { "Count" } th { "Result" } } }
                    tbody { @for entry in &entries {
                        tr {
                            td class="nowrap faint" { (time_of(&entry.time, context.snapshot.at)) }
                            td data-l="who" { (clean(&entry.by, 60)) @if entry.via == Door::Api { span class="l2" { "command" } } @else { span class="l2" { "dashboard" } } @if let Some(from) = entry.from.filter(|from| !from.is_loopback()) { span class="l2" { (from) } } }
                            td data-l="what" { (clean(&entry.action.replace('_', " "), 40)) }
                            td data-l="pipeline" { @match &entry.pipeline { Some(name) => a href={ "/pipelines/" (part(name)) } { (clean(name, 40)) }, None => span class="faint" { "–" } } }
                            td class="full brk" { @if let Some(target) = &entry.target { code { (clean(target, 200)) } } }
                            td class="num" data-l="count" { (known(entry.count)) }
                            td data-l="result" class="brk" {
                                @match entry.result.as_str() { "done" => { (icon("ok", "c-ok")) " done" }, "started" | "stopped" | "cut off" => (entry.result), other => span class="c-bad" { (clean(other, 200)) } }
                            }
                        }
                    } }
                } }
            }
        }
    };
    Ok(HtmlPage {
        title: "Audit".to_owned(),
        nav: Nav::Audit,
        parts: vec![Part::still("audit", html)],
        command: "potok audit".to_owned(),
        json: "/api/v1/audit".to_owned(),
    })
}
