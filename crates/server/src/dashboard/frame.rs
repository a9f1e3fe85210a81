//! What every page has: shapes, navigation, search, and its command and JSON address.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use potok_flow::{State, Status};

use super::draw::icon;
use super::text::{self, clean, number, part};
use super::{ActionResult, Context};
use crate::problems::Severity;

/// Shapes that pages use by name. Their ids begin with `i-`: a part of a page is found by its id, too.
pub(super) const SHAPES: &str = include_str!("assets/shapes.svg");
/// Changes of the style or the script get another address.
pub(super) const ASSETS: &str = concat!(env!("CARGO_PKG_VERSION"), "-4");

/// Where a page stands in the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nav {
    Overview,
    Groups,
    DeadLetters,
    Files,
    Outbox,
    Trace,
    Send,
    Audit,
    None,
}

/// A part of a page; a live one is sent again when it changes.
pub(super) struct Part {
    pub id: &'static str,
    pub live: bool,
    /// Stays as it is while somebody points at it.
    pub calm: bool,
    pub html: Markup,
}

impl Part {
    pub fn live(id: &'static str, html: Markup) -> Self {
        Part { id, live: true, calm: false, html }
    }

    pub fn calm(id: &'static str, html: Markup) -> Self {
        Part { id, live: true, calm: true, html }
    }

    pub fn still(id: &'static str, html: Markup) -> Self {
        Part { id, live: false, calm: false, html }
    }
}

/// A page before its frame.
pub(super) struct HtmlPage {
    pub title: String,
    pub nav: Nav,
    pub parts: Vec<Part>,
    /// The same in a terminal, and for programs.
    pub command: String,
    pub json: String,
}

impl HtmlPage {
    pub fn is_live(&self) -> bool {
        self.parts.iter().any(|part| part.live)
    }
}

/// Heading, what it is about, and what can be done.
pub(super) fn head(title: Markup, about: Markup, acts: Markup) -> Markup {
    html! {
        div class="head" {
            div { h1 { (title) } p class="sub" { (about) } }
            div class="acts" { (acts) }
        }
    }
}

/// A panel with a heading.
pub(super) fn panel(title: Markup, more: Markup, inside: Markup) -> Markup {
    html! {
        section class="panel" {
            header { h2 { (title) } span class="more" { (more) } }
            (inside)
        }
    }
}

/// The state of a pipeline as a shape and a colour.
pub(super) fn state_of(status: &Status) -> (&'static str, &'static str, &'static str) {
    match status.state {
        State::Running if status.since.is_none() => ("run", "", "elsewhere"),
        // It takes records and holds what is for the destination that is away.
        State::Running if status.gate.state != "open" => ("gate", "c-warn", "gate closed"),
        State::Running => ("run", "c-ok", "running"),
        State::Waiting if status.gate.state != "open" => ("gate", "c-warn", "waiting"),
        State::Waiting => ("wait", "c-warn", "waiting"),
        State::Paused => ("pause", "c-held", "paused"),
        State::Blocked => ("block", "c-bad", "blocked"),
        State::Draining => ("half", "c-acc", "draining"),
        State::Stopped => ("ring", "", "stopped"),
    }
}

/// The same as a word in a frame of its own.
pub(super) fn state_pill(status: &Status) -> Markup {
    let (shape, _, word) = state_of(status);
    let class = match status.state {
        State::Running if status.gate.state != "open" => "warn",
        State::Waiting => "warn",
        State::Blocked => "bad",
        State::Paused => "held",
        State::Draining => "acc",
        State::Running | State::Stopped => "",
    };
    html! { span class={ "pill " (class) } { (icon(shape, "")) (word) } }
}

struct NavEntry {
    nav: Nav,
    path: &'static str,
    shape: &'static str,
    name: &'static str,
    count: Option<u64>,
    hot: bool,
}

/// Pages in the navigation: those that some pipeline has a use for.
fn entries(context: &Context) -> Vec<NavEntry> {
    let snapshot = &context.snapshot;
    let groups: u64 = snapshot.all.iter().map(|status| text::held(status).1).sum();
    let open = text::open_letters(&snapshot.all);
    let has_groups = snapshot.outlines.values().any(|outline| outline.group.is_some());
    let has_files = snapshot.outlines.values().any(|outline| outline.has_files);
    let entry =
        |nav, path, shape, name| NavEntry { nav, path, shape, name, count: None, hot: false };
    let mut entries = vec![entry(Nav::Overview, "/", "home", "Overview")];
    if has_groups {
        let of_groups = entry(Nav::Groups, "/groups", "clock", "Groups");
        entries.push(NavEntry { count: Some(groups), ..of_groups });
    }
    let letters = entry(Nav::DeadLetters, "/dead-letters", "letter", "Dead letters");
    entries.push(NavEntry { count: open, hot: open.is_some_and(|open| open > 0), ..letters });
    if has_files {
        entries.push(entry(Nav::Files, "/files", "files", "Files"));
    }
    if snapshot.outlines.values().any(|outline| outline.has_outbox) {
        entries.push(entry(Nav::Outbox, "/outbox", "outbox", "Outbox"));
    }
    entries.push(entry(Nav::Trace, "/trace", "find", "Trace"));
    if context.is_operator() {
        entries.push(entry(Nav::Send, "/send", "send", "Send a record"));
    }
    entries.push(entry(Nav::Audit, "/audit", "list", "Audit"));
    entries
}

/// The navigation, sent again when it changes.
pub(super) fn navigation(context: &Context, nav: Nav) -> Part {
    let pipelines = &context.snapshot.all;
    Part::live(
        "nav",
        html! {
            nav class="nav" aria-label="Pages" {
                ul {
                    @for entry in entries(context) {
                        li {
                            a href=(entry.path) aria-current=[(entry.nav == nav).then_some("page")] {
                                svg class="ic" width="16" height="16" aria-hidden="true" { use href={ "#i-" (entry.shape) } {} }
                                (entry.name)
                                @if let Some(count) = entry.count {
                                    span class={ "n" @if entry.hot { " hot" } } { (number(count)) }
                                }
                            }
                        }
                    }
                }
            }
            @if !pipelines.is_empty() {
                nav class="nav pls" aria-label="Pipelines" {
                    h2 { "Pipelines" }
                    ul {
                        @for status in pipelines {
                            @let (shape, class, word) = state_of(status);
                            @let path = context.view.split('?').next().unwrap_or_default();
                            @let here = path == format!("/pipelines/{}", part(&status.pipeline));
                            li {
                                a href={ "/pipelines/" (part(&status.pipeline)) } aria-current=[here.then_some("page")] {
                                    (icon(shape, class)) (clean(&status.pipeline, 60))
                                    span class="vh" { ", " (word) }
                                }
                            }
                        }
                    }
                }
            }
        },
    )
}

/// The whole page.
pub(super) fn frame(context: &Context, page: HtmlPage) -> String {
    let live = page.is_live();
    let HtmlPage { title, nav, parts, command, json } = page;
    let identity = context.admin.identity();
    let now = context.snapshot.at;
    let time = text::time_of(&now.to_string(), now);
    let navigation = navigation(context, nav);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (clean(&title, 80)) " · potok" }
                link rel="icon" href={ "/assets/logo.svg?v=" (ASSETS) } type="image/svg+xml";
                link rel="stylesheet" href={ "/assets/style.css?v=" (ASSETS) };
                script src={ "/assets/potok.js?v=" (ASSETS) } defer {}
            }
            body data-now=(now.0) data-view=[live.then_some(&context.view)] {
                (PreEscaped(SHAPES))
                a class="skip" href="#main" { "Skip to content" }
                div class="app" {
                    div class="side" {
                        a class="brand" href="/" {
                            svg width="22" height="22" aria-hidden="true" { use href="#i-logo" {} }
                            "potok"
                        }
                        div id=(navigation.id) { (navigation.html) }
                        div class="foot" {
                            "potok " (identity.version) br;
                            span class="mono" { (clean(&identity.data_dir, 60)) } br;
                            a class="link" href="/metrics" { "metrics" } " · "
                            a class="link" href="/api/v1/status" { "JSON" }
                            @if context.admin.access().is_some() {
                                br; span class="brk" { (clean(&context.visitor.name, 40)) ", " (context.visitor.role.word()) }
                                (context.form("sign-out", &[], html! { button class="btn s" { "Sign out" } }))
                            }
                        }
                    }
                    main class="main" id="main" {
                        div class="bar" {
                            form class="find" role="search" action="/trace" {
                                svg width="15" height="15" aria-hidden="true" { use href="#i-find" {} }
                                label class="vh" for="q" { "Trace a key, an id or a position" }
                                input id="q" name="id" placeholder="Trace a key, an id or topic/partition/offset" autocomplete="off";
                                kbd { "/" }
                            }
                            div class="live off" id="live" { i {} span { "as of " (time) " UTC" } }
                        }
                        div class="vh" role="status" id="said" {}
                        @if let Some(done) = &context.done { (notice(done)) }
                        @for part in parts {
                            div id=(part.id) data-calm=[part.calm.then_some("")] { (part.html) }
                        }
                        div class="cli" {
                            span { "In a terminal " code { (command) } }
                            span { "As JSON " code { a href=(json) { (json) } } }
                        }
                    }
                }
            }
        }
    };
    page.into_string()
}

/// What came of what somebody did.
fn notice(done: &ActionResult) -> Markup {
    html! {
        div class={ "done" @if done.error.is_some() { " bad" } } role="status" {
            @match &done.error {
                None => { (icon("ok", "c-ok")) " " (clean(&done.text, 600)) },
                Some(error) => {
                    (icon("x", "c-bad")) " " span class="strong" { (clean(&done.text, 600)) }
                    @if !error.code.is_empty() { " " code { (error.code) } }
                    @if let Some(cause) = &error.cause { br; (clean(cause, 1_000)) }
                    @if let Some(hint) = &error.hint { br; span class="muted" { (clean(hint, 600)) } }
                },
            }
        }
    }
}

/// A colour for how grave something is.
pub(super) fn severity_class(severity: Severity) -> &'static str {
    match severity {
        Severity::Act => "c-bad",
        Severity::Waits => "c-warn",
        Severity::Chosen => "c-held",
    }
}
