//! Dead letters: one cause or many, one of them whole, and what a replay would do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use maud::{Markup, html};
use potok_core::{Reason, Timestamp};
use potok_flow::dead_letter::DeadLetterState;

use super::draw::icon;
use super::frame::{HtmlPage, Nav, Part, head, panel};
use super::text::{
    ShellCommand, UNKNOWN, address, bytes, clean, clean_bytes, count, laid_out, number, part, span,
    time_of,
};
use super::{Context, Query, actions, job};
use crate::jobs::{self, JobForecast};
use crate::letters::book::{self, Contents, LetterEntry, NEWEST_MAX};
use crate::letters::{self, Action};
use crate::patience::{ANSWER_MAX, soon};
use crate::{ApiError, parse_since};

/// Rows of a page.
const ROWS: usize = 50;
/// Causes that are shown.
const CAUSES: usize = 12;
/// How much of a payload is shown.
const BODY_BYTES_MAX: usize = 64 << 10;
/// How long it may take to say what a replay would do.
const DRY_RUN_MAX: Duration = Duration::from_secs(2);

/// Dead letters a second, as a form offers them.
const PACES: [(&str, &str); 4] = [
    ("", "as fast as it goes"),
    ("10", "10 a second"),
    ("100", "100 a second"),
    ("1000", "1,000 a second"),
];

/// The dead letters that a page is about.
struct LetterSelection<'a> {
    pipeline: &'a str,
    reason: &'a str,
    cause: &'a str,
    since: &'a str,
}

impl<'a> LetterSelection<'a> {
    fn of(query: &'a Query) -> Self {
        let field = |name: &str| query.get(name).map(String::as_str).unwrap_or_default();
        let (pipeline, reason) = (field("pipeline"), field("reason"));
        LetterSelection { pipeline, reason, cause: field("cause"), since: field("since") }
    }

    fn params(&self) -> [(&'static str, &'a str); 4] {
        [
            ("pipeline", self.pipeline),
            ("reason", self.reason),
            ("cause", self.cause),
            ("since", self.since),
        ]
    }

    fn address(&self, path: &str) -> String {
        address(path, &self.params())
    }

    fn has(&self, entry: &LetterEntry, since: Option<Timestamp>) -> bool {
        (self.pipeline.is_empty() || *entry.pipeline == *self.pipeline)
            && (self.reason.is_empty() || entry.reason == self.reason)
            && (self.cause.is_empty() || *entry.cause == *self.cause)
            && since.is_none_or(|since| entry.time >= since)
    }

    /// How many there are of a pipeline and reason.
    fn count(&self, contents: &Contents) -> u64 {
        let is_it = |(pipeline, reason): &(Arc<str>, &'static str)| {
            (self.pipeline.is_empty() || **pipeline == *self.pipeline)
                && (self.reason.is_empty() || *reason == self.reason)
        };
        let ours = contents.counts.iter().filter(|(of, _)| is_it(of));
        ours.map(|(_, tally)| tally.count).sum()
    }

    fn command(&self, verb: &str) -> ShellCommand {
        ShellCommand::new("potok dead-letters")
            .word(verb)
            .word(self.pipeline)
            .flag("--reason", self.reason)
            .flag("--cause", self.cause)
            .flag("--since", self.since)
    }
}

pub(super) async fn page(context: &Context, query: &Query) -> HtmlPage {
    let which = LetterSelection::of(query);
    let after = query.get("after").map(String::as_str).unwrap_or_default();
    let shown = book::open_letters(&context.admin).await;
    let about = html! { "Records that no destination will take as they are. They are kept whole until somebody replays or drops them." };
    let mut parts = vec![Part::still("head", head(html! { "Dead letters" }, about, html! {}))];
    let mut live = Vec::new();
    if let Some(error) = &shown.error {
        live.push(html! { div class="note-box warn" { span class="strong" { "They cannot be read now: " } (clean(&context.told(error), 300)) ". What is shown may be old." } });
    }
    let contents = shown.contents;
    for why in contents.unknown.values() {
        live.push(html! { div class="note-box warn" { span class="strong" { "Not known: " } (clean(&context.told(why), 300)) ". They are not in the numbers below." } });
    }
    if shown.is_first && shown.error.is_none() {
        live.push(html! { div class="note-box" { span class="strong" { "Dead letters are being counted: " (number(contents.total)) " so far." } " There are many, or the log is slow; this page follows by itself." } });
    } else if shown.stale {
        let old = span(context.snapshot.at.millis_since(contents.at));
        live.push(html! { p class="hint" { "As of " (old) " ago; more are being read." } });
    }
    parts.push(Part::live(
        "book",
        html! { @for one in live { (one) } (figures(context, &contents, &which)) },
    ));
    let jobs = context.admin.inner.jobs.all();
    if !jobs.is_empty() {
        parts.push(Part::live("jobs", job::list(context, &jobs)));
    }
    if contents.total > 0 || !contents.newest.is_empty() {
        parts.push(Part::still("filter", filters(&contents, &which)));
        parts.push(Part::calm("causes", causes(context, &contents, &which)));
        parts.push(Part::calm("list", list(context, &contents, &which, after)));
    }
    finished(&which, parts)
}

fn finished(which: &LetterSelection, parts: Vec<Part>) -> HtmlPage {
    HtmlPage {
        title: "Dead letters".to_owned(),
        nav: Nav::DeadLetters,
        parts,
        command: which.command("list").text(),
        json: which.address("/api/v1/dead-letters"),
    }
}

fn figures(context: &Context, contents: &Contents, which: &LetterSelection) -> Markup {
    if contents.total == 0 && contents.at == Timestamp::default() {
        return html! {};
    }
    if contents.total == 0 && !contents.unknown.is_empty() {
        return html! {
            section class="panel" { div class="calm" {
                (icon("wait", "c-warn"))
                span { span class="strong" { "How many are open is not known: " (UNKNOWN) } " " span class="muted" { "Those that are known are none." } }
            } }
        };
    }
    if contents.total == 0 {
        return html! {
            section class="panel" { div class="calm" {
                (icon("ok", "c-ok"))
                span { span class="strong" { "No open dead letters." } " " span class="muted" { "What is set aside is listed here with its cause, and can be replayed." } }
            } }
        };
    }
    let mut of: BTreeMap<&str, (u64, Vec<String>)> = BTreeMap::new();
    for ((pipeline, reason), tally) in &contents.counts {
        let (total, reasons) = of.entry(pipeline).or_default();
        *total += tally.count;
        reasons.push(format!("{reason} {}", number(tally.count)));
    }
    let first = contents.counts.values().map(|tally| tally.first).min();
    html! {
        section class="panel" aria-label="Summary" {
            dl class="figs n4" {
                div { dt { "open" } dd class="c-bad" { @if !contents.unknown.is_empty() { "at least " } (number(contents.total)) } dd class="note" { @if let Some(first) = first { "oldest " (time_of(&first.to_string(), context.snapshot.at)) } } }
                @for (pipeline, (total, reasons)) in of.iter().take(3) {
                    div { dt { a href={ "/dead-letters?pipeline=" (part(pipeline)) } { (clean(pipeline, 40)) } }
                        dd { (number(*total)) } dd class="note" { (reasons.join(", ")) } }
                }
            }
            @if of.len() > 3 { p class="sum" { "and " (count(of.len() as u64 - 3, "more pipeline", "more pipelines")) } }
            @if !which.pipeline.is_empty() && !of.contains_key(which.pipeline) {
                p class="sum" { (clean(which.pipeline, 60)) @if contents.unknown.contains_key(which.pipeline) { ": not known." } @else { " has none." } }
            }
        }
    }
}

fn filters(contents: &Contents, which: &LetterSelection) -> Markup {
    let mut pipelines: Vec<&str> =
        contents.counts.keys().map(|(pipeline, _)| &**pipeline).collect();
    pipelines.dedup();
    let mut reasons: Vec<&str> = contents.counts.keys().map(|(_, reason)| *reason).collect();
    reasons.sort_unstable();
    reasons.dedup();
    let spans = [
        ("", "any time"),
        ("15m", "last 15 min"),
        ("1h", "last hour"),
        ("24h", "last 24 h"),
        ("7d", "last 7 days"),
    ];
    html! {
        form class="filt" action="/dead-letters" {
            select name="pipeline" aria-label="Pipeline" {
                option value="" { "every pipeline" }
                @for name in pipelines { option value=(name) selected[name == which.pipeline] { (clean(name, 40)) } }
            }
            select name="reason" aria-label="Reason" {
                option value="" { "every reason" }
                @for reason in reasons { option value=(reason) selected[reason == which.reason] { (reason) } }
            }
            select name="since" aria-label="Set aside" {
                @for (value, word) in spans { option value=(value) selected[value == which.since] { (word) } }
            }
            button class="btn" { "Show" }
            @if which.params().iter().any(|(_, value)| !value.is_empty()) { a class="link sm" href="/dead-letters" { "All" } }
        }
    }
}

/// One cause, and how many share it.
struct Cause<'a> {
    entry: &'a LetterEntry,
    count: u64,
    first: Timestamp,
    last: Timestamp,
}

fn matching<'a>(
    context: &Context,
    contents: &'a Contents,
    which: &LetterSelection,
) -> Vec<&'a LetterEntry> {
    let since = (!which.since.is_empty())
        .then(|| parse_since(which.since, context.snapshot.at).ok())
        .flatten();
    contents.newest.iter().map(|entry| &**entry).filter(|entry| which.has(entry, since)).collect()
}

fn causes(context: &Context, contents: &Contents, which: &LetterSelection) -> Markup {
    let mut causes: BTreeMap<(&str, &str, &Arc<str>), Cause> = BTreeMap::new();
    for entry in matching(context, contents, which) {
        let cause = causes.entry((&entry.pipeline, entry.reason, &entry.cause)).or_insert(Cause {
            entry,
            count: 0,
            first: entry.time,
            last: entry.time,
        });
        cause.count += 1;
        cause.first = cause.first.min(entry.time);
    }
    let mut causes: Vec<Cause> = causes.into_values().collect();
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.count));
    let hidden = causes.len().saturating_sub(CAUSES);
    causes.truncate(CAUSES);
    let now = context.snapshot.at;
    let covers = match contents.total > NEWEST_MAX as u64 {
        true => format!("of the newest {}", number(NEWEST_MAX as u64)),
        false => "errors without their values".to_owned(),
    };
    panel(
        html! { (count(causes.len() as u64 + hidden as u64, "cause", "causes")) },
        html! { (covers) },
        html! {
            div class="scroll" { table class="card-t" {
                thead { tr { th class="num" { "Count" } th { "Cause" } th { "Pipeline" } th { "First" } th { "Last" } th { span class="vh" { "Actions" } } } }
                tbody { @for Cause { entry, count, first, last } in &causes {
                    @let only = LetterSelection { pipeline: &entry.pipeline, reason: entry.reason, cause: &entry.cause, since: which.since };
                    tr {
                        td class="num strong" data-l="count" { (number(*count)) }
                        td class="full err" { a href=(only.address("/dead-letters")) { span class="pill bad" { (entry.reason) } " " (clean(&entry.cause, 220)) } }
                        td data-l="pipeline" { (clean(&entry.pipeline, 40)) }
                        td class="nowrap faint none" { (time_of(&first.to_string(), now)) }
                        td class="nowrap faint" data-l="last" { (time_of(&last.to_string(), now)) }
                        td class="num full nowrap" {
                            @if context.is_operator() { a class="btn s" href=(only.address("/dead-letters/replay")) { "Replay…" } " " }
                            @if context.is_admin() { a class="btn s dng" href=(only.address("/dead-letters/drop")) { "Drop…" } }
                        }
                    }
                } }
            } }
            @if hidden > 0 { div class="page" { "and " (hidden) " rarer causes; narrow it by pipeline, reason or time" } }
        },
    )
}

fn list(context: &Context, contents: &Contents, which: &LetterSelection, after: &str) -> Markup {
    let all = matching(context, contents, which);
    let total = all.len();
    let start = match after {
        "" => 0,
        after => all.iter().position(|entry| entry.id == after).map_or(0, |at| at + 1),
    };
    let rows: Vec<&&LetterEntry> = all.iter().skip(start).take(ROWS).collect();
    let next = rows.last().filter(|_| start + rows.len() < total).map(|entry| {
        let mut params = which.params().to_vec();
        params.push(("after", &entry.id));
        address("/dead-letters", &params)
    });
    let now = context.snapshot.at;
    let of = if contents.total > NEWEST_MAX as u64 {
        format!(" among the newest {}", number(NEWEST_MAX as u64))
    } else {
        String::new()
    };
    let more = html! {
        @if total > 0 && rows.len() > 1 {
            @if context.is_operator() { a class="btn s" href=(which.address("/dead-letters/replay")) { "Replay all…" } " " }
            @if context.is_admin() { a class="btn s dng" href=(which.address("/dead-letters/drop")) { "Drop all…" } }
        }
    };
    panel(
        html! { "Newest first" },
        more,
        html! {
            @if rows.is_empty() { div class="pad muted" { "None of these" (of) "." } }
            @else {
                div class="scroll" { table class="card-t" {
                    thead { tr { th { "Dead letter" } th { "Why" } th { "Key" } th class="num" { "Size" } th class="num" { "Attempts" } } }
                    tbody { @for entry in &rows {
                        tr {
                            td class="nowrap" data-l="set aside" { a class="mono" href={ "/dead-letters?id=" (part(&entry.id)) } { (clean(&entry.id, 60)) } span class="l2" { (time_of(&entry.time.to_string(), now)) } }
                            td class="full err" { span class="pill" { (entry.reason) } " " (clean(if context.is_operator() { &entry.error } else { &entry.cause }, 200)) }
                            td data-l="key" class="brk" { @match &entry.key { Some(key) => a class="mono" href={ "/trace?id=" (part(key)) } { (clean(key, 40)) }, None => span class="faint" { "none" } } }
                            td class="num none" { (bytes(entry.bytes)) }
                            td class="num" data-l="attempts" { (entry.attempts) }
                        }
                    } }
                } }
                div class="page" {
                    span { (number(start as u64 + 1)) "–" (number((start + rows.len()) as u64)) " of " (number(total as u64)) (of) }
                    span class="r" {
                        @if start > 0 { a class="btn s" href=(which.address("/dead-letters")) { "Newest" } }
                        @if let Some(next) = next { a class="btn s" href=(next) { "Older" } }
                    }
                }
            }
        },
    )
}

/// One of them, whole.
pub(super) async fn one(context: &Context, query: &Query) -> Result<HtmlPage, ApiError> {
    let id = query.get("id").map(String::as_str).unwrap_or_default();
    let (letter, differs) = soon(ANSWER_MAX, letters::one(&context.admin, id)).await?;
    let envelope = &letter.envelope;
    let origin = format!(
        "{}/{}/{}",
        envelope.origin.topic, envelope.origin.partition, envelope.origin.offset
    );
    let value = letter.record.value.as_deref();
    let body = value.map(|value| match laid_out(value, BODY_BYTES_MAX) {
        Some(text) => (text, true),
        None => clean_bytes(value, BODY_BYTES_MAX),
    });
    let open = letter.state == DeadLetterState::Open;
    let (state, state_class) = match letter.state {
        DeadLetterState::Open => ("open", "bad"),
        DeadLetterState::Replaying => ("replaying", "acc"),
        DeadLetterState::Replayed => ("replayed", ""),
        DeadLetterState::Dropped => ("dropped", ""),
    };
    let acts = html! {
        a class="btn" href={ "/trace?id=" (part(&origin)) } { "Trace" }
        @if context.is_operator() { a class="btn" href={ "/send?from=" (part(&letter.id)) } { "Edit and send as new" } }
        @if open {
            (context.form("replay", &[("id", &letter.id)], html! { button class="btn pri" { "Replay" } }))
            @if context.is_admin() { a class="btn dng" href={ "/dead-letters/drop?id=" (part(&letter.id)) } { "Drop…" } }
        }
    };
    let changed = context.admin.inner.files.changed(&envelope.pipeline);
    let fields = named_fields(&envelope.error);
    let error = context.told(&envelope.error);
    let html = html! {
        (head(html! { span class="mono" { (clean(&letter.id, 80)) } " " span class={ "pill " (state_class) } { (state) } },
            html! { "Set aside by " a href={ "/pipelines/" (part(&envelope.pipeline)) } { (clean(&envelope.pipeline, 60)) } " at " (envelope.time.to_string()) }, acts))
        @if let (true, Some(file)) = (open, changed) {
            div class="note-box warn" { span class="strong" { (clean(&file.display().to_string(), 200)) " has changed" } " since the process was started. A replay runs as the file was then; restart it first where the change is the cure." }
        }
        div class="cols w23" {
            (panel(html! { "Why" }, html! {}, html! { div class="pad" { dl class="kv" {
                dt { "Reason" } dd { span class="pill bad" { (envelope.reason.word()) } }
                dt { "Error" } dd { code { (clean(&error, 4_000)) } }
                @if let Some(differs) = &differs { dt { "Differs in" } dd { @for field in differs { code { (clean(field, 120)) } " " } } }
                dt { "Origin" } dd { a class="mono" href={ "/trace?id=" (part(&origin)) } { (clean(&origin, 120)) } }
                dt { "Arrived" } dd { (letter.record.time.to_string()) }
                dt { "Attempts" } dd { (envelope.attempts) @match envelope.deliver { Some(entry) => { ", at deliver entry " (entry + 1) }, None => ", before any destination was called" } }
                @if let Some(place) = &envelope.shard {
                    dt { "Shard" } dd { (place.number) }
                    @if let Some(file) = &place.file { dt { "File" } dd { code { (clean(file, 64)) } } }
                }
                @if let Some(of) = &envelope.replay_of { dt { "Replay of" } dd { code { (clean(of, 120)) } } }
                dt { "Key" } dd { @match letter.record.key.as_deref() { Some(key) => code { (clean_bytes(key, 1_000).0) }, None => span class="faint" { "none" } } }
                @for (name, value) in letter.record.headers.iter().take(if context.is_operator() { 30 } else { 0 }) {
                    dt { (clean(name, 60)) } dd { @match value { Some(value) => code { (clean_bytes(value, 500).0) }, None => span class="faint" { "null" } } }
                }
            } } }))
            (panel(html! { "Record" }, html! { (value.map_or("no value".to_owned(), |value| bytes(value.len() as u64))) }, html! { div class="pad" {
                @match &body {
                    Some(_) if !context.is_operator() => p class="muted" { "Payloads are shown to operators." },
                    Some((text, whole)) => {
                        pre class="body" { (marked(text, &fields)) }
                        @if !whole { p class="hint below" { "Cut after " (bytes(BODY_BYTES_MAX as u64)) ". Whole: " code { "potok dead-letters show " (clean(&letter.id, 80)) } } }
                    },
                    None => p class="muted" { "It has no value: a tombstone." },
                }
            } }))
        }
    };
    Ok(HtmlPage {
        title: letter.id.clone(),
        nav: Nav::DeadLetters,
        parts: vec![Part::still("letter", html)],
        command: ShellCommand::new("potok dead-letters show").names(&[&letter.id]).text(),
        json: address("/api/v1/dead-letters", &[("ids", &letter.id), ("all", "true")]),
    })
}

/// Last parts of the JSON pointers that an error names: `/payment/currency` names `currency`.
fn named_fields(error: &str) -> Vec<String> {
    let words = error.split([' ', ':', ',', '`', '(', ')']).filter(|word| word.starts_with('/'));
    let names = words.filter_map(|word| word.rsplit('/').next()).filter(|name| !name.is_empty());
    names.take(8).map(str::to_owned).collect()
}

/// The text of a record with the lines marked that an error names.
fn marked(text: &str, fields: &[String]) -> Markup {
    let is_named = |line: &str| {
        let name = line.trim_start().strip_prefix('"').and_then(|rest| rest.split_once("\": "));
        name.is_some_and(|(name, _)| fields.iter().any(|field| field == name))
    };
    html! {
        @for (at, line) in text.split('\n').enumerate() {
            @if at > 0 { "\n" }
            @if is_named(line) { mark { (line) } } @else { (line) }
        }
    }
}

/// How many there are of a pipeline and reason, as the book has counted them, and where the list of them
/// ends; none where it does not know them all.
async fn counted(
    context: &Context,
    which: &LetterSelection<'_>,
) -> Result<Option<(u64, String)>, ApiError> {
    let end = async || soon(ANSWER_MAX, letters::end_now(&context.admin, which.pipeline)).await;
    let before = end().await?;
    // Of what feeds keep it has the first so many.
    let pipeline = Some(which.pipeline).filter(|pipeline| !pipeline.is_empty());
    let feeds = context.admin.engine().feeds(pipeline);
    if feeds.iter().any(|(_, feed)| feed.letters().is_some()) {
        return Ok(None);
    }
    let shown = book::open_letters(&context.admin).await;
    let is_known = !shown.is_first
        && !shown.stale
        && shown.error.is_none()
        && shown.contents.unknown.is_empty();
    if !is_known || end().await? != before {
        return Ok(None);
    }
    Ok(Some((which.count(&shown.contents), before)))
}

/// What a replay or a drop would do, before it is done.
pub(super) async fn confirm(
    context: &Context,
    action: Action,
    query: &Query,
) -> Result<HtmlPage, ApiError> {
    let mut query = query.clone();
    // An hour ago is another moment when somebody has made up their mind.
    if let Some(since) = query.get_mut("since").filter(|since| !since.is_empty()) {
        *since = parse_since(since, context.snapshot.at).map_err(ApiError::usage)?.to_string();
    }
    let which = LetterSelection::of(&query);
    let id = query.get("id").map(String::as_str).unwrap_or_default();
    let wish = actions::wish(&query);
    let target = wish.target();
    // Where the filter is a pipeline or a reason, the book knows how many there are; exactly, where
    // none have come since.
    let narrows = |name: &str| query.get(name).is_some_and(|value| !value.is_empty());
    let is_counted = !["id", "cause", "since", "until"].into_iter().any(narrows)
        && (which.reason.is_empty() || Reason::ALL.iter().any(|one| one.word() == which.reason));
    let counted = match is_counted {
        true => counted(context, &which).await?,
        false => None,
    };
    let exact = counted.as_ref().map(|(count, _)| *count);
    let JobForecast { progress: found, whole, until } = match (action, &counted) {
        // Nothing is tried out for those that are dropped, and nothing stands in the way.
        (Action::Drop, Some((count, until))) => JobForecast::of_count(*count, until),
        _ => jobs::dry_run(&context.admin, &context.actor(), wish, action, DRY_RUN_MAX).await?,
    };
    let until = until.unwrap_or_default();
    let exact = exact.filter(|_| counted.as_ref().is_some_and(|(_, mark)| *mark == until));
    let found = jobs::Progress { done: exact.unwrap_or(found.done).max(found.done), ..found };
    let is_exact = whole || exact.is_some();
    let at_least = if is_exact { "" } else { "at least " };
    let (verb, title) = match action {
        Action::Replay => ("replay", "Replay"),
        Action::Drop => ("drop", "Drop"),
    };
    let mut fields = which.params().to_vec();
    fields.push(("id", id));
    let expected = if id.is_empty() { found.done.to_string() } else { id.to_owned() };
    fields.push(("expected", &expected));
    // What is done is what was there when this page was made.
    fields.push(("until", &until));
    let confirmed = if is_exact { found.done.to_string() } else { String::new() };
    fields.push(("confirmed", &confirmed));
    let back = if id.is_empty() {
        which.address("/dead-letters")
    } else {
        address("/dead-letters", &[("id", id)])
    };
    let letters = count(found.done, "dead letter", "dead letters");
    let name = format!("{verb} of {}", clean(&target, 60));
    let html = html! {
        (head(html! { (title) " " (at_least) (letters) }, html! { "Those of " code { (clean(&target, 300)) } " that are open now. What is set aside from now on is left alone, whenever you confirm." }, html! {}))
        section class="panel" { div class="pad" {
            @if !is_exact { p class="c-warn" { "Counting stopped after " (DRY_RUN_MAX.as_secs()) " s: there may be more, and all that were there by now are meant." } br; }
            @if found.skipped > 0 {
                div class="note-box warn" { (count(found.skipped, "one is", "are")) " left out: " @for note in &found.notes { (clean(note, 300)) " " } }
            } @else { @for note in &found.notes { div class="note-box warn" { (clean(note, 300)) } } }
            @if found.done == 0 { p class="strong" { "Nothing to " (verb) "." } p class="below" { a class="btn" href=(back) { "Back" } } }
            @else if action == Action::Replay {
                @if let Some(dry) = &found.forecast { (forecast(dry, whole)) }
                p { "Each goes into its own pipeline again, under the name it had, so that destinations recognise what they have already. What fails again is a new dead letter." }
                br;
                form class="form" method="post" action="/act/replay" {
                    (context.hidden(&fields))
                    label { "Name " input class="in" name="name" value=(context.input("name").unwrap_or(&name)) maxlength="120"; }
                    label { "Pace " select name="rate" { @for (value, word) in PACES { option value=(value) selected[context.input("rate") == Some(value)] { (word) } } } }
                    button class="btn pri" { "Replay " (letters) }
                    a class="link" href=(back) { "Cancel" }
                    span class="faint xs" { "It can be stopped; what is left stays open." }
                }
            } @else {
                p { "Dropped dead letters are gone for good. Nothing delivers them any more." }
                br;
                form class="form" method="post" action="/act/drop" {
                    (context.hidden(&fields))
                    label { "Type " code { (clean(&expected, 80)) } " to confirm " input class="in mono" name="typed" value=[context.input("typed")] autocomplete="off" required; }
                    button class="btn dng" { "Drop " (letters) }
                    a class="link" href=(back) { "Cancel" }
                }
            }
        } }
    };
    let (command, json) = match id {
        "" => {
            let mut params = which.params().to_vec();
            params.push(("until", &until));
            let command = which.command(verb).flag("--until", &until);
            (command, address("/api/v1/dead-letters", &params))
        }
        id => (
            ShellCommand::new("potok dead-letters").word(verb).names(&[id]),
            address("/api/v1/dead-letters", &[("ids", id)]),
        ),
    };
    Ok(HtmlPage {
        title: format!("{title} dead letters"),
        nav: Nav::DeadLetters,
        parts: vec![Part::still("confirm", html)],
        command: command.text(),
        json,
    })
}

/// What a replay would come to, as pipelines run now.
fn forecast(dry: &letters::DryRun, whole: bool) -> Markup {
    let rows = [
        (
            "come to their destination",
            dry.reaches_destination,
            "ok",
            "c-ok",
            "whether it takes them is known only then",
        ),
        ("are filtered", dry.filtered, "ok", "", "a rule leaves them out"),
        ("fail again", dry.dead_lettered, "x", "c-bad", "they would be new dead letters"),
        ("stop the pipeline", dry.blocks, "block", "c-bad", "its stage says on_error: stop"),
        ("are not known", dry.unknown, "ring", "", "they cannot be tried out"),
    ];
    let tried: u64 = rows.iter().map(|(_, count, ..)| count).sum();
    html! {
        h2 class="sm" { "Dry run, as it runs now" @if !whole { " (of the first " (number(tried)) ")" } }
        table class="fit" { tbody {
            @for (what, n, shape, class, note) in rows.iter().filter(|(_, n, ..)| *n > 0) {
                tr { td class="num strong" { (number(*n)) } td class="nowrap" { (icon(shape, class)) " " (what) } td class="muted" { (note) } }
            }
            @for (why, n) in &dry.why { tr { td class="num faint" { (number(*n)) } td colspan="2" class="brk faint" { (clean(why, 220)) } } }
        } }
        br;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_that_an_error_names_is_marked() {
        let fields = named_fields("/payment/currency: \"rub\" does not match ^[A-Z]{3}$");
        assert_eq!(fields, ["currency"]);
        let shown =
            marked("{\n  \"currency\": \"<b>\",\n  \"amount\": 1\n}", &fields).into_string();
        assert!(
            shown.contains("<mark>  &quot;currency&quot;: &quot;&lt;b&gt;&quot;,</mark>"),
            "{shown}"
        );
        assert_eq!(shown.matches("<mark>").count(), 1);
    }
}
