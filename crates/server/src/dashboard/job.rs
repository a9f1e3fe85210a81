//! A replay or drop under way, and what came of it.

use std::sync::Arc;

use maud::{Markup, html};

use super::Context;
use super::draw::{bar, icon};
use super::frame::{HtmlPage, Nav, Part, head, panel};
use super::text::{ShellCommand, clean, count, number, part, time_of};
use crate::ApiError;
use crate::jobs::{self, Job, Phase, Progress};

/// Jobs in the list.
const JOBS: usize = 5;

pub(super) fn page(context: &Context, id: &str) -> Result<HtmlPage, ApiError> {
    let job = jobs::find(&context.admin, id)?;
    Ok(HtmlPage {
        title: context.named(&job.name),
        nav: Nav::DeadLetters,
        parts: vec![Part::live("job", details(context, &job))],
        command: ShellCommand::new("potok jobs show").names(&[id]).text(),
        json: format!("/api/v1/jobs/{}", part(id)),
    })
}

fn phase(progress: &Progress) -> Markup {
    let (class, shape, word) = match progress.phase {
        Phase::Running => ("acc", "half", "under way"),
        Phase::Done => ("ok", "ok", "done"),
        Phase::Stopped => ("warn", "pause", "stopped"),
        Phase::Failed => ("bad", "x", "failed"),
    };
    html! { span class={ "pill " (class) } { (icon(shape, "")) (word) } }
}

/// The latest jobs.
pub(super) fn list(context: &Context, jobs: &[Arc<Job>]) -> Markup {
    panel(
        html! { "Jobs" },
        html! {},
        html! {
            div class="scroll" { table class="card-t" { tbody { @for job in jobs.iter().take(JOBS) {
                @let progress = job.progress();
                tr {
                    td class="nowrap faint" { (time_of(&job.started, context.snapshot.at)) }
                    td class="full brk" { a href={ "/jobs/" (job.id) } { (clean(&context.named(&job.name), 120)) } }
                    td { (phase(&progress)) }
                    td class="num" { (number(progress.done)) @if progress.skipped > 0 { ", " (number(progress.skipped)) " left out" } }
                }
            } } } }
        },
    )
}

fn details(context: &Context, job: &Job) -> Markup {
    let progress = job.progress();
    let running = progress.phase == Phase::Running;
    let acts = html! { @if running { (context.form("stop-job", &[("job", &job.id)], html! { button class="btn dng" { "Stop" } })) } };
    let outcome = progress.outcome.as_ref();
    let of = |name: &str| outcome.and_then(|outcome| outcome[name].as_u64()).unwrap_or_default();
    let rows = [
        ("delivered", "a"),
        ("filtered", "n"),
        ("duplicates", "n"),
        ("dead_lettered", "b"),
        ("under_way", "w"),
    ];
    let all: u64 = rows.iter().map(|(name, _)| of(name)).sum();
    let shares: Vec<(f64, &str)> = rows
        .iter()
        .map(|(name, class)| (100.0 * of(name) as f64 / all.max(1) as f64, *class))
        .collect();
    let again =
        outcome.and_then(|outcome| outcome["dead_again"].as_array()).cloned().unwrap_or_default();
    // Somebody else may have settled some of those that were confirmed.
    let gone = job.confirmed.filter(|_| progress.phase == Phase::Done);
    let gone = gone.map_or(0, |all| all.saturating_sub(progress.done + progress.skipped));
    html! {
        (head(html! { (clean(&context.named(&job.name), 120)) " " (phase(&progress)) }, html! { "Started at " (time_of(&job.started, context.snapshot.at)) ", " code { (clean(&context.named(&job.target), 300)) } @if let Some(rate) = job.rate { ", " (rate) " a second" } }, acts))
        section class="panel" aria-label="Progress" {
            dl class="figs n4" {
                div { dt { @if job.action == "replay" { "sent again" } @else { "dropped" } } dd { (number(progress.done)) } dd class="note" { @if let Some(all) = job.confirmed { "of " (number(all)) " confirmed" } @else if running { "so far" } @else { "in all" } } }
                div { dt { "left out" } dd { (number(progress.skipped)) } dd class="note" { "they stay open" } }
                @if outcome.is_some() {
                    div { dt { "delivered" } dd { (number(of("delivered"))) } dd class="note" { (count(of("duplicates"), "was", "were")) " there already" } }
                    div { dt { "failed again" } dd class=(if of("dead_lettered") > 0 { "c-bad" } else { "" }) { (number(of("dead_lettered"))) } dd class="note" { (number(of("under_way"))) " not ended yet" } }
                }
            }
            @if outcome.is_some() { div class="pad" { (bar(&shares)) } }
        }
        @if gone > 0 { div class="note-box" { (count(gone, "of those confirmed was", "of those confirmed were")) " open no more when it came to it." } }
        @if let Some(error) = &progress.error { div class="done bad" { (clean(&context.told(error), 600)) } }
        @for note in &progress.notes { div class="note-box warn" { (clean(&context.told(note), 400)) } }
        @if !again.is_empty() {
            (panel(html! { "Failed again" }, html! {}, html! { div class="scroll" { table class="card-t" { tbody { @for one in again.iter().take(20) {
                @let id = one["id"].as_str().unwrap_or_default();
                tr { td class="nowrap" { a class="mono" href={ "/dead-letters?id=" (part(id)) } { (clean(id, 60)) } } td class="full err" { (clean(&context.told(one["error"].as_str().unwrap_or_default()), 200)) } }
            } } } } }))
        }
        p class="below" { a class="btn" href="/dead-letters" { "Dead letters" } }
    }
}
