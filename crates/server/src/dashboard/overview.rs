//! Is anything wrong? Does data flow? Do counts add up? What happened?

use maud::{Markup, html};
use potok_flow::{Outline, State, Status};

use super::draw::{icon, line};
use super::frame::{HtmlPage, Nav, Part, head, severity_class, state_of};
use super::text::{
    UNKNOWN, address, bytes, clean, count, known, number, part, rate, span, time_of,
};
use super::{Context, pipeline, text};
use crate::problems::{self, Problem, Remedy, Severity};
use crate::sampler::{Totals, lately};

/// Changes that are shown.
const CHANGES: usize = 8;
/// Problems that are shown; what is behind them is in their pages.
const PROBLEMS: usize = 12;

pub(super) fn page(context: &Context) -> HtmlPage {
    let parts = vec![
        Part::live("head", heading(context)),
        Part::live("problems", problem_panel(context, None)),
        Part::live("figures", figures(context)),
        Part::calm("flow", flow(context)),
        Part::calm("changes", changes(context)),
    ];
    HtmlPage {
        title: "Overview".to_owned(),
        nav: Nav::Overview,
        parts,
        command: "potok top".to_owned(),
        json: "/api/v1/status".to_owned(),
    }
}

fn heading(context: &Context) -> Markup {
    let all = &context.snapshot.all;
    let of = |state: State| all.iter().filter(|status| status.state == state).count() as u64;
    let mut said = vec![format!("{} running", of(State::Running))];
    let others = [
        (State::Waiting, "waiting"),
        (State::Blocked, "blocked"),
        (State::Paused, "paused"),
        (State::Draining, "draining"),
        (State::Stopped, "stopped"),
    ];
    said.extend(
        others
            .into_iter()
            .filter(|(state, _)| of(*state) > 0)
            .map(|(state, word)| format!("{} {word}", of(state))),
    );
    let about =
        html! { (count(all.len() as u64, "pipeline", "pipelines")) ": " (said.join(", ")) "." };
    let send =
        html! { @if context.is_operator() { a class="btn" href="/send" { "Send a test record" } } };
    head(html! { "Overview" }, about, send)
}

/// The problems of all pipelines, or of one.
pub(super) fn problem_panel(context: &Context, only: Option<&str>) -> Markup {
    let is_wanted = |problem: &&Problem| {
        only.is_none() || problem.pipeline.as_deref() == only || problem.pipeline.is_none()
    };
    let wanted: Vec<Problem> = context.problems.iter().filter(is_wanted).cloned().collect();
    let wanted = if only.is_none() { joined(context, wanted) } else { wanted };
    let error = context.snapshot.error.as_ref();
    if wanted.is_empty() && error.is_none() {
        return html! {
            section class="panel" aria-label="Problems" {
                div class="calm" {
                    (icon("ok", "c-ok"))
                    span { span class="strong" { "Nothing needs a person." } " "
                    span class="muted" { "What is held closes by itself; nothing waits, repeats or was set aside." } }
                }
            }
        };
    }
    let grave = error.is_some() || wanted.iter().any(|problem| problem.severity == Severity::Act);
    let title = match wanted.len() {
        1 => "1 thing needs a look".to_owned(),
        many => format!("{many} things need a look"),
    };
    html! {
        section class={ "panel probs" @if grave { " bad" } } aria-labelledby="pr" {
            header {
                h2 id="pr" { (title) }
                span class="faint" { (reassurance(&wanted, error.is_some())) }
            }
            @if let Some(error) = error {
                div class="prob" {
                    (icon("warn", "c-bad"))
                    h3 { "The log does not answer" }
                    p { (clean(&error.what, 400)) ". What it alone knows is shown as " (UNKNOWN) ", not as zero." }
                }
            }
            @for problem in wanted.iter().take(PROBLEMS) { (shown(context, problem)) }
            @if wanted.len() > PROBLEMS {
                div class="page" { "and " (wanted.len() - PROBLEMS) " more: " code { "/api/v1/problems" } }
            }
        }
    }
}

/// What is well all the same.
fn reassurance(problems: &[Problem], is_log_silent: bool) -> String {
    let of_log = |kind: &str| problems.iter().any(|one| one.pipeline.is_none() && one.kind == kind);
    let mut said = Vec::new();
    if of_log("damage") {
        said.push("what the damaged parts held may be gone; their bytes are kept");
    }
    if is_log_silent {
        said.push("what was acknowledged is kept; nothing more is known until the log answers");
    } else if of_log("log") {
        said.push("what was acknowledged is kept; senders are refused");
    } else if said.is_empty() {
        said.push("nothing is lost; everything else goes on");
    } else {
        said.push("everything else goes on");
    }
    said.join("; ")
}

fn shown(context: &Context, problem: &Problem) -> Markup {
    let shape = match problem.kind {
        "gate" => "gate",
        "dead_letters" => "letter",
        "paused" => "pause",
        "blocked" => "block",
        _ if problem.severity == Severity::Waits => "wait",
        _ => "warn",
    };
    let age = problems::age(problem.since.as_deref(), context.snapshot.at);
    let pipeline = problem.pipeline.as_deref().unwrap_or_default();
    let here = format!("/pipelines/{}", part(pipeline));
    let since = problem.since.as_deref().map(|since| {
        crate::parse_since(since, context.snapshot.at).map(|since| since.0).unwrap_or_default()
    });
    let act = |what: &str, word: &str| {
        let button = html! { button class="btn s" { (word) } };
        context.form(what, &[("pipeline", pipeline)], button)
    };
    html! {
        div class="prob" {
            (icon(shape, severity_class(problem.severity)))
            h3 {
                (clean(&problem.what, 200))
                @if let Some(age) = age { " · " span data-since=[since] { (span(age)) } }
            }
            div class="do" {
                @match problem.remedy {
                    Remedy::Probe => (act("probe", "Probe now")),
                    Remedy::Resume => (act("resume", "Resume")),
                    Remedy::Review => a class="btn s" href=(address("/dead-letters", &[("pipeline", pipeline)])) { "Review" },
                    Remedy::Open => {},
                }
                @if !pipeline.is_empty() && problem.remedy != Remedy::Review && context.view != here {
                    a class="btn s" href=(here) { "Open" }
                }
            }
            p {
                (clean(&sentence(problem), 400)) ". " (problem.meanwhile) " " (problem.advice)
            }
        }
    }
}

/// Dead letters of several pipelines are one thing to look at.
fn joined(context: &Context, problems: Vec<Problem>) -> Vec<Problem> {
    let of_letters = |problem: &Problem| problem.kind == "dead_letters";
    if problems.iter().filter(|problem| of_letters(problem)).count() < 2 {
        return problems;
    }
    let (mut letters, mut others): (Vec<_>, Vec<_>) = problems.into_iter().partition(of_letters);
    let open = |problem: &Problem| {
        let status = problem.pipeline.as_deref().and_then(|name| context.snapshot.of(name));
        status.and_then(|status| status.dead_letters_open).unwrap_or_default()
    };
    letters.sort_by_key(|problem| std::cmp::Reverse(open(problem)));
    let total: u64 = letters.iter().map(&open).sum();
    let of: Vec<String> = letters
        .iter()
        .map(|one| format!("{} {}", one.pipeline.as_deref().unwrap_or_default(), number(open(one))))
        .collect();
    if let Some(first) = letters.into_iter().next() {
        let what = format!("{} dead letters are open", number(total));
        others.insert(0, Problem { pipeline: None, what, cause: of.join(", "), ..first });
    }
    others
}

/// The cause as a sentence; names of pipelines stay as they are.
fn sentence(problem: &Problem) -> String {
    let text = problem.cause.trim_end_matches('.');
    if problem.pipeline.is_none() {
        return text.to_owned();
    }
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

fn figures(context: &Context) -> Markup {
    let all = &context.snapshot.all;
    let sampler = context.admin.sampler();
    let received = sampler.rates(None, |totals| totals.received);
    let delivered = sampler.rates(None, |totals| totals.delivered);
    let held: u64 = all.iter().map(|status| text::held(status).0).sum();
    let groups: u64 = all.iter().map(|status| text::held(status).1).sum();
    let held_bytes: u64 = all.iter().map(|status| status.held_bytes).sum();
    let next = all.iter().filter_map(|status| status.next_close_in).min();
    let waiting = all.iter().map(waiting).sum::<Option<u64>>();
    let oldest =
        all.iter().filter(|status| status.held_records == 0).filter_map(|s| s.oldest).max();
    let open = text::open_letters(all);
    let lately_dead: f64 = sampler.rates(None, |totals| totals.dead_lettered).iter().sum();
    html! {
        section class="panel" aria-label="All pipelines" {
            dl class="figs" {
                div { dt { "received" } dd { (rate(lately(&received))) small { " /s" } }
                    dd class="note" { (line(&received, "w", "received per second")) } }
                div { dt { "delivered" } dd { (rate(lately(&delivered))) small { " /s" } }
                    dd class="note" { (line(&delivered, "w", "delivered per second")) } }
                div { dt { "held in groups" } dd class=(if held > 0 { "c-held" } else { "" }) { (number(held)) }
                    dd class="note" {
                        @if groups > 0 { (count(groups, "group", "groups")) ", " (bytes(held_bytes)) }
                        @else { "no group is open" }
                        @if let Some(next) = next { br; "next " (due(context, next)) }
                    } }
                div { dt { "waiting in the log" } dd class=(if waiting.is_some_and(|w| w > 1_000) { "c-warn" } else { "" }) { (known(waiting)) }
                    dd class="note" { "neither ended nor held" } }
                div { dt { "oldest not held" } dd { (oldest.map_or(UNKNOWN.to_owned(), span)) }
                    dd class="note" { "in flight now" } }
                div { dt { "open dead letters" } dd class=(if open.is_some_and(|o| o > 0) { "c-bad" } else { "" }) { (known(open)) }
                    dd class="note" { "+" (number(lately_dead.round() as u64)) " in the last 15 min" } }
            }
            (sum(context))
        }
    }
}

/// When something is due, counted down by the script.
pub(super) fn due(context: &Context, millis: u64) -> Markup {
    let at = context.snapshot.at.0.saturating_add_unsigned(millis);
    html! { span data-due=(at) { @if millis == 0 { "due" } @else { "in " (span(millis)) } } }
}

/// Records that have not ended and are not held; unknown where the log does not answer.
fn waiting(status: &Status) -> Option<u64> {
    Some(status.lag?.saturating_sub(text::held(status).0))
}

fn sum(context: &Context) -> Markup {
    let all: Vec<&Status> = context.snapshot.all.iter().filter(|s| s.since.is_some()).collect();
    let of = |get: fn(&Status) -> u64| all.iter().map(|status| get(status)).sum::<u64>();
    let received = of(|s| s.received);
    let parts = [
        ("delivered", of(|s| s.delivered)),
        ("filtered", of(|s| s.filtered)),
        ("duplicates", of(|s| s.duplicates)),
        ("dead-lettered", of(|s| s.dead_lettered)),
        ("in flight", of(|s| s.in_flight)),
    ];
    let adds_up = received == parts.iter().map(|(_, count)| count).sum::<u64>();
    let since = all.iter().filter_map(|status| status.since.as_deref()).min();
    html! {
        p class="sum" {
            @if let Some(since) = since {
                @if adds_up { (icon("ok", "c-ok")) " Counts add up since " }
                @else { (icon("x", "c-bad")) " Counts do not add up since " }
                (time_of(since, context.snapshot.at)) ": " span class="strong" { (number(received)) } " received ="
                @for (at, (name, count)) in parts.iter().enumerate() {
                    @if at > 0 { " +" } " " (number(*count)) " " (name)
                }
            } @else { "No pipeline runs in this process." }
        }
    }
}

fn flow(context: &Context) -> Markup {
    let all = &context.snapshot.all;
    if all.is_empty() {
        return html! {
            section class="panel" {
                div class="pad" {
                    p class="strong" { "No pipeline runs here yet." }
                    p class="muted" { "Start one, or try everything with generated traffic; this page follows by itself." }
                    br;
                    pre { "potok dev" }
                }
            }
        };
    }
    html! {
        section class="panel" aria-label="Pipelines" {
            div class="scroll" {
                table class="flow card-t" {
                    thead { tr {
                        th { "Pipeline" } th { span class="step" { "source" } } th { span class="step" { "group" } }
                        th { span class="step" { "process" } } th { span class="step" { "deliver" } } th class="num" { "Dead letters" }
                    } }
                    tbody { @for status in all { (row(context, status)) } }
                }
            }
        }
    }
}

fn row(context: &Context, status: &Status) -> Markup {
    let name = &status.pipeline;
    let nothing = Outline::default();
    let outline = context.snapshot.outlines.get(name).map_or(&nothing, |outline| outline);
    let sampler = context.admin.sampler();
    let rates = |of: fn(&Totals) -> u64| sampler.rates(Some(name), of);
    let (received, delivered) = (rates(|t| t.received), rates(|t| t.delivered));
    let filtered = lately(&rates(|t| t.filtered));
    let (shape, class, word) = state_of(status);
    let is_well = status.state == State::Running && status.gate.state == "open";
    let tone = if is_well { "" } else { "warn" };
    let lag = waiting(status);
    let (held, groups) = text::held(status);
    let away: Vec<_> = status.destinations.iter().filter(|to| !to.up).collect();
    html! {
        tr {
            td class="full" {
                span class="nowrap" {
                    (icon(shape, class)) " "
                    a class="name" href={ "/pipelines/" (part(name)) } { (clean(name, 40)) }
                    @if is_well { span class="vh" { (word) } } @else { " " (super::frame::state_pill(status)) }
                }
                span class="l2 ind" { (about(outline)) }
            }
            td data-l="source" class="full" {
                div class="cell" {
                    (line(&received, tone, &format!("{name}: received per second, last 15 minutes")))
                    div {
                        span class="b" { @if status.since.is_some() { (rate(lately(&received))) "/s" } @else { (UNKNOWN) } }
                        span class={ "l2" @if lag.is_some_and(|lag| lag > 1_000) { " c-warn" } } { "lag " (known(lag)) }
                    }
                }
            }
            td data-l="group" class=(if outline.group.is_some() { "" } else { "none" }) {
                @if outline.group.is_some() {
                    span class={ "b" @if held > 0 { " c-held" } } { (number(held)) " held" }
                    span class="l2" {
                        @if groups == 0 { "no group is open" }
                        @else { a href={ "/groups?pipeline=" (part(name)) } { (count(groups, "group", "groups")) } }
                        @if let Some(next) = status.next_close_in { ", next " (due(context, next)) }
                    }
                } @else { span class="dash" { (UNKNOWN) } }
            }
            td data-l="process" class=(if outline.stages.is_empty() { "none" } else { "" }) {
                @if let Some(first) = outline.stages.first() {
                    span class="b" { (clean(&first.name, 24)) @if outline.stages.len() > 1 { " +" (outline.stages.len() - 1) } }
                    span class="l2" { (rate(filtered)) "/s filtered" }
                } @else { span class="dash" { (UNKNOWN) } }
            }
            td data-l="deliver" {
                @if let Some(to) = away.first() {
                    span class="b c-warn" { "gate closed" }
                    span class="l2" { (clean(&to.destination, 40)) }
                } @else {
                    span class="b" { @if status.since.is_some() { (rate(lately(&delivered))) "/s" } @else { (UNKNOWN) } }
                    span class="l2" { (pipeline::destinations(outline)) }
                }
            }
            td class="num" data-l="dead letters" {
                @match status.dead_letters_open {
                    Some(0) => span class="faint" { "0" },
                    Some(open) => a class="strong c-bad" href={ "/dead-letters?pipeline=" (part(name)) } { (number(open)) },
                    None => span class="faint" { (UNKNOWN) },
                }
            }
        }
    }
}

/// What a pipeline does, in a few words.
fn about(outline: &Outline) -> String {
    match outline.reads.as_slice() {
        [] => String::new(),
        [one] => clean(one, 48),
        [one, others @ ..] => format!("{} and {} more", clean(one, 36), others.len()),
    }
}

fn changes(context: &Context) -> Markup {
    let changes = context.admin.sampler().changes(CHANGES);
    if changes.is_empty() {
        return html! {};
    }
    html! {
        section class="panel" {
            header { h2 { "What happened" } span class="more" { a class="link" href="/audit" { "What people did" } } }
            div class="scroll" {
                table class="card-t ev" {
                    tbody {
                        @for change in changes {
                            @let (shape, class) = match change.kind { "good" => ("ok", "c-ok"), "bad" => ("warn", "c-bad"), _ => ("wait", "c-warn") };
                            tr {
                                td class="nowrap faint" { (time_of(&change.time, context.snapshot.at)) }
                                td class="nowrap" { (icon(shape, class)) " " a href={ "/pipelines/" (part(&change.pipeline)) } { (clean(&change.pipeline, 40)) } }
                                td class="full brk" { (clean(&context.told(&change.what), 300)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_well_all_the_same_is_true() {
        // It said that nothing is lost and everything goes on, whatever was wrong.
        let problem = |kind, pipeline: Option<&str>| Problem {
            kind,
            severity: Severity::Act,
            pipeline: pipeline.map(str::to_owned),
            destination: None,
            since: None,
            what: String::new(),
            cause: String::new(),
            meanwhile: String::new(),
            advice: String::new(),
            command: None,
            remedy: Remedy::Open,
        };
        let usual = "nothing is lost; everything else goes on";
        assert_eq!(reassurance(&[problem("gate", Some("orders"))], false), usual);
        assert_eq!(reassurance(&[problem("log", Some("orders"))], false), usual);
        let full = reassurance(&[problem("gate", Some("orders")), problem("log", None)], false);
        assert!(full.contains("senders are refused") && !full.contains("everything"), "{full}");
        let damage = reassurance(&[problem("damage", None)], false);
        assert!(!damage.contains("nothing is lost") && damage.contains("may be gone"), "{damage}");
        let silent = reassurance(&[], true);
        assert!(silent.contains("nothing more is known"), "{silent}");
    }
}
