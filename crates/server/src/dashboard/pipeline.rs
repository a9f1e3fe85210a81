//! One pipeline: which step holds it up, why a gate is closed, how far behind it is.

use maud::{Markup, html};
use potok_flow::{DestinationStatus, LatencyCounts, Outline, State, Status};

use super::draw::{bar, chart, icon, line};
use super::frame::{HtmlPage, Nav, Part, head, panel, state_pill};
use super::overview::{due, problem_panel};
use super::text::{
    ShellCommand, UNKNOWN, bytes, clean, count, held, known, number, part, rate, span, time_of,
};
use super::{Context, Query};
use crate::problems;
use crate::sampler::{Window, lately};
use crate::{ApiError, rates};

/// Partitions that are shown, those that are furthest behind.
const PARTITIONS: usize = 20;

pub(super) fn page(context: &Context, pipeline: &str, query: &Query) -> Result<HtmlPage, ApiError> {
    let window = match query.get("window").map(String::as_str) {
        Some("6h") => Window::Hours,
        _ => Window::Minutes,
    };
    let all = &context.snapshot.all;
    let Some(status) = context.snapshot.of(pipeline) else {
        let known: Vec<String> = all.iter().map(|status| status.pipeline.clone()).collect();
        return Err(ApiError::unknown_pipeline(pipeline, &known));
    };
    let outline = context.snapshot.outlines.get(pipeline);
    let mut parts = vec![
        Part::live("head", heading(context, status)),
        Part::live("problems", problem_panel(context, Some(pipeline))),
    ];
    if let Some(outline) = outline {
        parts.push(Part::live("steps", steps(context, status, outline)));
    }
    parts.push(Part::live("rates", arrived_and_delivered(context, status, window)));
    parts.push(Part::live("details", details(context, status)));
    Ok(HtmlPage {
        title: pipeline.to_owned(),
        nav: Nav::None,
        parts,
        command: ShellCommand::new("potok status").names(&[pipeline]).text(),
        json: format!("/api/v1/status?pipeline={}", part(pipeline)),
    })
}

fn heading(context: &Context, status: &Status) -> Markup {
    let name = &status.pipeline;
    let here = status.since.is_some();
    let act = |what: &str, word: &str| {
        context.form(what, &[("pipeline", name)], html! { button class="btn" { (word) } })
    };
    let acts = html! {
        @if context.is_operator() { a class="btn" href={ "/send?pipeline=" (part(name)) } { "Send a test record" } }
        @if here {
            @match status.state {
                State::Paused | State::Blocked => (act("resume", "Resume")),
                State::Running | State::Waiting => (act("pause", "Pause")),
                State::Draining | State::Stopped => {},
            }
        }
    };
    let about = html! {
        @if let Some(why) = &status.why { (clean(why, 400)) }
        @else if !here { "It ran here before, or runs in another process: what it counts is not known here." }
        @else { "Pausing stops taking records; what is in flight goes on, senders are still acknowledged." }
    };
    head(html! { (clean(name, 60)) " " (state_pill(status)) }, about, acts)
}

/// The deliver entries in a few words.
pub(super) fn destinations(outline: &Outline) -> String {
    match outline.delivers.as_slice() {
        [] => UNKNOWN.to_owned(),
        [one] => clean(one, 40),
        many if many.iter().all(|one| one.starts_with("topic")) => format!("{} topics", many.len()),
        many => format!("{} destinations", many.len()),
    }
}

fn steps(context: &Context, status: &Status, outline: &Outline) -> Markup {
    let name = &status.pipeline;
    let sampler = context.admin.sampler();
    let received = lately(&sampler.rates(Some(name), |totals| totals.received));
    let delivered = lately(&sampler.rates(Some(name), |totals| totals.delivered));
    let invalid = ["invalid", "undecodable"]
        .map(|reason| status.dead_letters_by_reason.get(reason).copied().unwrap_or_default());
    let away = status.destinations.iter().filter(|to| !to.up).count();
    let lag = status.lag.map(|lag| lag.saturating_sub(held(status).0));
    html! {
        section class="panel" aria-label="Steps" {
            ol class="steps" {
                li {
                    h3 { "source" }
                    p class="big" { (rate(received)) small { "/s taken" } }
                    p { @for (at, topic) in outline.reads.iter().take(3).enumerate() { @if at > 0 { ", " } code { (clean(topic, 40)) } }
                        @if outline.reads.len() > 3 { " and " (outline.reads.len() - 3) " more" } }
                    p { "lag " (known(lag)) @if let Some(oldest) = status.oldest { ", oldest in flight " (span(oldest)) } }
                }
                li {
                    h3 { "decode" }
                    p class="big" { (number(invalid.iter().sum())) small { " refused" } }
                    p { (number(invalid[0])) " invalid, " (number(invalid[1])) " undecodable" }
                }
                @match &outline.group {
                    Some(rules) => li {
                        h3 { "group" }
                        p class={ "big" @if held(status).0 > 0 { " c-held" } } { (number(held(status).0)) small { " held" } }
                        p { a class="link" href={ "/groups?pipeline=" (part(name)) } { (count(held(status).1, "open group", "open groups")) } ", " (bytes(status.held_bytes)) }
                        p { @if let Some(next) = status.next_close_in { "next closes " (due(context, next)) "; " } (rules.join(", ")) }
                    },
                    None => li class="off" { h3 { "group" } p class="big" { (UNKNOWN) } p { "not used by this pipeline" } },
                }
                @if outline.stages.is_empty() {
                    li class="off" { h3 { "process" } p class="big" { (UNKNOWN) } p { "no stages" } }
                } @else {
                    li {
                        h3 { "process" }
                        p class="big" { (number(status.filtered)) small { " filtered" } }
                        p { @for (at, stage) in outline.stages.iter().take(4).enumerate() { @if at > 0 { " → " } code { (clean(&stage.name, 30)) } @if stage.per_group { " per group" } } }
                        @for (stage, counts) in &status.counted { @for (name, count) in counts {
                            p { (clean(stage, 30)) ": " (number(*count)) " " (clean(name, 30)) }
                        } }
                    }
                }
                li class=(if away > 0 { "w" } else { "" }) {
                    h3 { "deliver" @if away > 0 { " " span class="pill warn" { (icon("gate", "")) "gate closed" } } }
                    p class="big" { (rate(delivered)) small { "/s ended well" } }
                    p { @for (at, to) in outline.delivers.iter().take(4).enumerate() { @if at > 0 { ", " } code { (clean(to, 40)) } }
                        @if outline.delivers.len() > 4 { " and " (outline.delivers.len() - 4) " more" } }
                    p { (latency(&status.latency)) }
                }
            }
        }
    }
}

/// From arrival to outcome, as far as buckets tell.
fn latency(counts: &LatencyCounts) -> String {
    let within = |share: f64| {
        let wanted = (counts.count as f64 * share).ceil() as u64;
        let bucket = counts.at_most.iter().find(|(_, below)| *below >= wanted);
        bucket.map_or("over 1 h".to_owned(), |(bound, _)| match bound {
            0..1_000 => format!("{bound} ms"),
            bound => span(*bound),
        })
    };
    match counts.count {
        0 => "no record has ended yet".to_owned(),
        _ => format!("half within {}, 99 % within {}", within(0.5), within(0.99)),
    }
}

fn arrived_and_delivered(context: &Context, status: &Status, window: Window) -> Markup {
    let name = &status.pipeline;
    let sampler = context.admin.sampler();
    let received = sampler.rates_in(window, Some(name), |totals| totals.received);
    let delivered = sampler.rates_in(window, Some(name), |totals| totals.delivered);
    let away = sampler.levels_in(window, name, |totals| totals.away);
    let mark = |class: &str, rect: bool| {
        html! {
            svg viewBox="0 0 18 8" class="chart" aria-hidden="true" {
                @if rect { rect class=(class) width="18" height="8" {} } @else { path class=(class) d="M0 4H18" {} }
            }
        }
    };
    let what = format!(
        "Taken and delivered per second, last {}; now {} and {}",
        if window == Window::Minutes { "15 minutes" } else { "6 hours" },
        rate(lately(&received)),
        rate(lately(&delivered))
    );
    let here = format!("/pipelines/{}", part(name));
    let keys = html! { span class="key" {
        a class="link" href=(here) aria-current=[(window == Window::Minutes).then_some("true")] { "15 min" }
        a class="link" href={ (here) "?window=6h" } aria-current=[(window == Window::Hours).then_some("true")] { "6 h" }
        span { (mark("in", false)) "taken" } span { (mark("out", false)) "delivered" } span { (mark("shade", true)) "gate closed" }
    } };
    html! {
        div class="cols w21" {
            (panel(html! { "Taken and delivered" }, keys, html! { div class="pad" { (chart(&received, &delivered, &away, window, &what)) } }))
            (panel(html! { "How records ended" }, html! {}, outcomes(context, status)))
        }
    }
}

fn outcomes(context: &Context, status: &Status) -> Markup {
    let Some(since) = &status.since else {
        return html! { div class="pad muted" { "Not counted here: the pipeline does not run in this process." } };
    };
    let rows = [
        ("delivered", status.delivered, "a"),
        ("filtered", status.filtered, "n"),
        ("duplicates", status.duplicates, "n"),
        ("dead-lettered", status.dead_lettered, "b"),
        ("in flight", status.in_flight, ""),
    ];
    let share = |count: u64| 100.0 * count as f64 / status.received.max(1) as f64;
    let shares: Vec<(f64, &str)> = rows.iter().map(|(_, n, class)| (share(*n), *class)).collect();
    html! {
        div class="pad" { (bar(&shares)) }
        table {
            tbody {
                tr { td { "received" } td class="num strong" { (number(status.received)) } td class="faint" { "since " (time_of(since, context.snapshot.at)) } }
                @for (name, n, _) in rows {
                    tr {
                        td class="nowrap" { (name) }
                        td class={ "num" @if name == "dead-lettered" && n > 0 { " c-bad" } } { (number(n)) }
                        td class="faint" {
                            @if name == "dead-lettered" && status.dead_letters_open.is_some_and(|open| open > 0) {
                                a href={ "/dead-letters?pipeline=" (part(&status.pipeline)) } { (known(status.dead_letters_open)) " open" }
                            } @else if name == "in flight" && status.held_records > 0 { (number(status.held_records)) " held" }
                            @else if status.received > 0 && n > 0 { (format!("{:.2} %", share(n))) }
                        }
                    }
                }
            }
        }
    }
}

fn details(context: &Context, status: &Status) -> Markup {
    let mut furthest = status.partitions.clone();
    furthest.sort_by_key(|partition| std::cmp::Reverse(partition.lag));
    let hidden = furthest.len().saturating_sub(PARTITIONS);
    furthest.truncate(PARTITIONS);
    let changed = context.admin.inner.files.changed(&status.pipeline);
    html! {
        @if let Some(file) = changed {
            div class="note-box warn" {
                span class="strong" { (clean(&file.display().to_string(), 200)) " has changed" }
                " since this process read it. What runs is what the file said then; start the process again to take it over."
            }
        }
        @if !status.stages.is_empty() { (stages(status)) }
        div class="cols" {
            div class="stack" {
                @for to in &status.destinations { (destination(context, status, to)) }
                @if status.destinations.is_empty() {
                    (panel(html! { "Destinations" }, html! {}, html! { div class="pad muted" { "Topics of the log only: they are written in the transaction that ends a record, so there is no gate." } }))
                }
            }
            @if furthest.is_empty() {
                (panel(html! { "Partitions" }, html! {}, html! { div class="pad muted" { "The log has not said how far it is: " (UNKNOWN) } }))
            } @else {
                (panel(html! { "Partitions" }, html! {}, html! {
                    div class="scroll" { table {
                        thead { tr { th { "Topic" } th class="num" { "partition" } th class="num" aria-sort="descending" { "not ended" } } }
                        tbody { @for at in furthest {
                            tr { td class="brk" { code { (clean(&at.topic, 60)) } } td class="num" { (at.partition) } td class="num" { (number(at.lag)) } }
                        } }
                    } }
                    @if hidden > 0 { div class="page" { "and " (hidden) " more that are not further behind" } }
                }))
            }
        }
    }
}

/// What each stage did, and how long it took.
fn stages(status: &Status) -> Markup {
    let each = |busy: u64, calls: u64| match calls {
        0 => UNKNOWN.to_owned(),
        calls => format!("{:.2} ms", busy as f64 / calls as f64),
    };
    panel(
        html! { "Stages" },
        html! { "since the start" },
        html! {
            div class="scroll" { table class="card-t" {
                thead { tr { th { "Stage" } th class="num" { "Events" } th class="num" { "Filtered" } th class="num" { "Failed" } th class="num" { "Merged" } th class="num" { "Calls" } th class="num" { "Failed calls" } th class="num" { "Time per call" } } }
                tbody { @for stage in &status.stages {
                    tr {
                        td class="full" { code { (clean(&stage.stage, 60)) } @if stage.per_group { span class="l2" { "per group" } } }
                        td class="num" data-l="events" { (number(stage.events)) }
                        td class="num" data-l="filtered" { (number(stage.filtered)) }
                        td class={ "num" @if stage.failed > 0 { " c-bad" } } data-l="failed" { (number(stage.failed)) }
                        td class="num" data-l="merged" { (number(stage.merged)) }
                        td class="num" data-l="calls" { (number(stage.calls)) }
                        td class={ "num" @if stage.failed_calls > 0 { " c-warn" } } data-l="failed calls" { (number(stage.failed_calls)) }
                        td class="num nowrap" data-l="per call" { (each(stage.busy, stage.calls)) }
                    }
                } }
            } }
        },
    )
}

fn destination(context: &Context, status: &Status, to: &DestinationStatus) -> Markup {
    let taken =
        rates::destination(&context.admin, Window::Minutes, &status.pipeline, &to.destination);
    let since = to.gate.since.as_deref();
    let age = problems::age(since, context.snapshot.at);
    html! {
        section class="panel" {
            header { h2 { "Destination: " (clean(&to.destination, 60)) } span class="more" { (rate(lately(&taken))) "/s" } }
            div class="pad" {
                dl class="kv" {
                    dt { "Gate" }
                    dd {
                        @if to.up { "open" } @else {
                            span class="strong c-warn" { (to.gate.state.replace('_', " ")) }
                            @if let (Some(since), Some(age)) = (since, age) { " since " (time_of(since, context.snapshot.at)) ", " (span(age)) }
                        }
                    }
                    @if let Some(why) = &to.gate.why { dt { "Because" } dd { code { (clean(why, 600)) } } }
                    dt { "Delivered" } dd { (count(to.delivered, "message", "messages")) " since the start" }
                    dt { "Calls" } dd { (number(to.calls)) @if to.calls > 0 { ", " (format!("{:.1} ms", to.busy as f64 / to.calls as f64)) " each, " (format!("{:.0}", to.delivered as f64 / to.calls as f64)) " messages each" } }
                    dt { "Failed calls" } dd class=(if to.failed_calls > 0 { "c-warn" } else { "" }) { (number(to.failed_calls)) }
                }
                div class="below" { (line(&taken, "w", &format!("messages that {} took per second", to.destination))) }
            }
            @if !to.up {
                div class="page" {
                    (context.form("probe", &[("pipeline", &status.pipeline)], html! { button class="btn s" { "Probe now" } }))
                    span { "Meanwhile senders are acknowledged as usual and nothing becomes a dead letter." }
                }
            }
        }
    }
}
