//! Files × shards × stages: in progress, stuck, failed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use maud::{Markup, html};
use potok_core::{FilesAsk, Timestamp, TrackedStage};

use super::draw::icon;
use super::frame::{HtmlPage, Nav, Part, head, panel};
use super::text::{
    ShellCommand, UNKNOWN, address, clean, count, known, number, part, span, time_of,
};
use super::{Context, Query};
use crate::tracked::{File, StuckFiles, TrackedFiles, files_of, stuck_of};
use crate::{ApiError, parse_since};

/// The flag that names a pipeline.
const PIPELINE: &str = "--pipeline";
/// Names on a page.
const NAMES: u32 = 22;
/// Rows of what needs a look.
const STUCK: usize = 20;
/// How long the table may take to answer.
const ASK_MAX: Duration = Duration::from_secs(2);

async fn soon<T>(asked: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    tokio::time::timeout(ASK_MAX, asked).await.unwrap_or_else(|_| {
        let what = "files cannot be told now: the tracking table does not answer";
        Err(ApiError::from(potok_core::Fault::wait(what)))
    })
}

pub(super) async fn page(context: &Context, query: &Query) -> Result<HtmlPage, ApiError> {
    let field = |name: &str| query.get(name).map(String::as_str).unwrap_or_default();
    let tracking: Vec<&String> = context
        .snapshot
        .outlines
        .iter()
        .filter(|(_, outline)| outline.has_files)
        .map(|(name, _)| name)
        .collect();
    let first = tracking.first().map(|name| name.as_str()).unwrap_or_default();
    let pipeline = if field("pipeline").is_empty() { first } else { field("pipeline") };
    let (name, only) = (field("name"), field("only"));
    let mut parts = vec![Part::still("head", heading(pipeline, only))];
    if !tracking.iter().any(|name| *name == pipeline) {
        parts.push(Part::still("none", nothing(pipeline)));
    } else {
        parts.push(Part::still("tabs", tabs(&tracking, pipeline)));
        let before = field("before");
        parts.push(Part::calm("files", shown(context, pipeline, name, only, before).await?));
    }
    let command = match (name, only) {
        ("", "unfinished") => {
            ShellCommand::new("potok files --in-progress").flag(PIPELINE, pipeline)
        }
        ("", _) => ShellCommand::new("potok files").flag(PIPELINE, pipeline),
        (name, _) => ShellCommand::new("potok files show").names(&[name]),
    };
    Ok(HtmlPage {
        title: "Files".to_owned(),
        nav: Nav::Files,
        parts,
        command: command.text(),
        json: address("/api/v1/files", &[("pipeline", pipeline), ("name", name)]),
    })
}

fn heading(pipeline: &str, only: &str) -> Markup {
    let about = html! { "A file per slice of time and shard; every stage of it is a state in the tracking table. A file is done when its rows are saved." };
    let acts = html! {
        @if only == "unfinished" { a class="btn" href=(address("/files", &[("pipeline", pipeline)])) { "All files" } }
        @else { a class="btn" href=(address("/files", &[("pipeline", pipeline), ("only", "unfinished")])) { "Only unfinished" } }
    };
    head(html! { "Files" }, about, acts)
}

fn nothing(pipeline: &str) -> Markup {
    html! {
        section class="panel" { div class="pad" {
            @if pipeline.is_empty() { p class="strong" { "No pipeline of this process tracks files." } }
            @else { p class="strong" { (clean(pipeline, 60)) " tracks no files, or does not run here." } }
            p class="muted" { "A pipeline with a " code { "track:" } " in its file is shown here: " code { "potok run pipelines/shop-events.yaml" } }
        } }
    }
}

fn tabs(tracking: &[&String], current: &str) -> Markup {
    html! {
        @if tracking.len() > 1 {
            nav class="tabs" aria-label="Pipeline" {
                @for name in tracking {
                    a href={ "/files?pipeline=" (part(name)) } aria-current=[(*name == current).then_some("page")] { (clean(name, 40)) }
                }
            }
        }
    }
}

async fn shown(
    context: &Context,
    pipeline: &str,
    name: &str,
    only: &str,
    before: &str,
) -> Result<Markup, ApiError> {
    let ask = match name {
        "" => FilesAsk::Newest {
            names: NAMES,
            before: Some(before.to_owned()).filter(|before| !before.is_empty()),
            is_unfinished: only == "unfinished",
        },
        name => FilesAsk::Named(name.to_owned()),
    };
    let files = soon(files_of(&context.admin, &context.visitor, Some(pipeline), &ask)).await?;
    let stuck = soon(stuck_of(&context.admin, &context.visitor, Some(pipeline))).await?;
    let Some(files) = files.into_iter().next() else { return Ok(nothing(pipeline)) };
    let late: BTreeSet<(String, i64)> =
        stuck.files.iter().map(|file| (file.row.filename.clone(), file.row.shard)).collect();
    let is_failed = |file: &&File| file.row.stages.iter().any(|stage| stage.state == "failed");
    let failed: Vec<&File> = files.files.iter().filter(is_failed).collect();
    let is_new = |file: &&&File| !late.contains(&(file.row.filename.clone(), file.row.shard));
    let mut looks: Vec<&File> = stuck.files.iter().collect();
    looks.extend(failed.iter().filter(|file| is_new(file)));
    Ok(html! {
        @if name.is_empty() { (figures(&files, &stuck)) }
        @if !looks.is_empty() { (problems(context, &looks, &late)) }
        @if !name.is_empty() { @for file in &files.files { (details(context, file)) } }
        (grid(context, pipeline, &files, &late))
        @if files.next.is_some() || !before.is_empty() {
            div class="page" { span {} span class="r" {
                @if !before.is_empty() { a class="btn s" href=(address("/files", &[("pipeline", pipeline), ("only", only)])) { "Newest" } }
                @if let Some(next) = &files.next { a class="btn s" href=(address("/files", &[("pipeline", pipeline), ("only", only), ("before", next)])) { "Older" } }
            } }
        }
    })
}

fn figures(files: &TrackedFiles, found: &StuckFiles) -> Markup {
    let stuck = found.files.len();
    let open: u64 = files.open.iter().map(|slice| slice.records).sum();
    html! {
        section class="panel" aria-label="Per shard" {
            dl class="figs n4" {
                @for shard in files.shards.iter().take(8) {
                    div { dt { "shard " (shard.shard) } dd { (number(shard.completed)) small { " completed" } }
                        dd class="note" { (number(shard.processing)) " processing, " span class=(if shard.failed > 0 { "c-bad" } else { "" }) { (number(shard.failed)) " failed" } } }
                }
                div { dt { "taking records" } dd class=(if open > 0 { "c-held" } else { "" }) { (number(open)) } dd class="note" { (count(files.open.len() as u64, "open slice", "open slices")) } }
                div { dt { "stuck" } dd class=(if stuck > 0 { "c-warn" } else { "" }) { (number(stuck as u64)) @if found.more { "+" } } dd class="note" { @if stuck > 0 { "longer in a stage than it should" } @else { "every stage within its time" } } }
            }
            @if files.shards.len() > 8 { p class="sum" { "and " (files.shards.len() - 8) " more shards" } }
        }
    }
}

/// The stage at which a row stands.
fn current(file: &File) -> Option<&TrackedStage> {
    file.row.stages.iter().find(|stage| stage.state != "done")
}

fn problems(context: &Context, looks: &[&File], late: &BTreeSet<(String, i64)>) -> Markup {
    let hidden = looks.len().saturating_sub(STUCK);
    html! {
        section class="panel probs" {
            header { h2 { "Stuck or failed" } }
            div class="scroll" { table class="card-t" {
                thead { tr { th { "File" } th { "Shard" } th { "Stage" } th { "State" } th class="num" { "Since" } th { "Why" } } }
                tbody { @for file in looks.iter().take(STUCK) {
                    @let is_late = late.contains(&(file.row.filename.clone(), file.row.shard));
                    tr {
                        td data-l="file" { a class="mono" href=(address("/files", &[("pipeline", file.row.pipeline.as_deref().unwrap_or_default()), ("name", &file.row.filename)])) { (clean(&file.row.filename, 60)) } }
                        td data-l="shard" { (file.row.shard) }
                        td data-l="stage" { @match current(file) { Some(stage) => code { (clean(&stage.stage, 40)) }, None => (UNKNOWN) } }
                        td data-l="state" { @if is_late { span class="pill warn" { (icon("warn", "")) "stuck" } } @else { span class="pill bad" { (icon("x", "")) "failed" } } }
                        td class="num nowrap" data-l="since" { (file.row.minutes) " min" }
                        td class="full brk" { @match file.reason.as_ref().or(file.row.error.as_ref()) { Some(why) => (clean(&context.told(why), 300)), None => span class="faint" { "it does not say" } } }
                    }
                } }
            } }
            @if hidden > 0 { div class="page" { "and " (hidden) " more: " code { "potok stuck" } } }
        }
    }
}

/// How long a stage took, where both ends are known.
fn took(stage: &TrackedStage) -> Option<u64> {
    let at = |moment: &Option<String>| {
        let moment = moment.as_ref()?;
        let moment = moment.replace(' ', "T");
        let zoned = if moment.ends_with('Z') { moment } else { format!("{moment}Z") };
        parse_since(&zoned, Timestamp(0)).ok()
    };
    Some(at(&stage.done_at)?.millis_since(at(&stage.started_at)?))
}

fn cell(file: &File, stage: &TrackedStage, is_late: bool) -> Markup {
    let (class, shape, word) = match stage.state.as_str() {
        "done" => ("", "ok", took(stage).map_or("done".to_owned(), span)),
        "failed" => ("fail", "x", "failed".to_owned()),
        "new" => ("new", "ring", "new".to_owned()),
        "started" if is_late => ("stuck", "warn", "stuck".to_owned()),
        "started" => ("run", "half", "started".to_owned()),
        other => ("new", "ring", clean(other, 12)),
    };
    let state = if is_late && class == "stuck" { "stuck" } else { stage.state.as_str() };
    let label = format!("{} shard {} {}: {state}", file.row.filename, file.row.shard, stage.stage);
    html! { span class={ "st " (class) } role="img" aria-label=(clean(&label, 160)) { (icon(shape, "")) span aria-hidden="true" { (word) } } }
}

fn grid(
    context: &Context,
    pipeline: &str,
    files: &TrackedFiles,
    late: &BTreeSet<(String, i64)>,
) -> Markup {
    let shards: BTreeSet<i64> = files.files.iter().map(|file| file.row.shard).collect();
    let mut names: BTreeMap<&str, BTreeMap<i64, &File>> = BTreeMap::new();
    for file in &files.files {
        names.entry(&file.row.filename).or_default().insert(file.row.shard, file);
    }
    if names.is_empty() {
        return html! {
            section class="panel" { div class="pad" {
                p class="strong" { "No such file is in the table." }
                p class="muted" { "A file is here from the moment its slice closes. What still takes records is counted above." }
            } }
        };
    }
    let short = |name: &str| -> (String, String) {
        let mut chars = name.chars();
        (chars.by_ref().take(1).collect(), clean(chars.as_str(), 20))
    };
    let now = context.snapshot.at;
    html! {
        section class="panel" aria-label="Files" {
            div class="scroll" { table class="gridt" {
                thead {
                    tr { th {} th {} @for shard in &shards { th colspan=(files.stages.len().max(1)) class="sh" { "Shard " (shard) } th {} } th {} }
                    tr { th { "File" } th class="ev" { "records" }
                        @for _ in &shards { @for stage in &files.stages { @let (first, rest) = short(stage); th { span aria-hidden="true" { (first) span class="lg" { (rest) } } span class="vh" { (clean(stage, 40)) } } } th class="gap" {} }
                        th class="tot" { "last change" } }
                }
                tbody { @for (name, of) in names.iter().rev() {
                    @let records = of.values().map(|file| file.row.records).sum::<Option<u64>>();
                    tr {
                        td { a class="mono" href=(address("/files", &[("pipeline", pipeline), ("name", name)])) { (clean(name, 60)) } }
                        td class="ev" { (known(records)) }
                        @for shard in &shards {
                            @match of.get(shard) {
                                Some(file) => {
                                    @let is_late = late.contains(&((*name).to_owned(), *shard));
                                    @for stage in &file.row.stages { td { (cell(file, stage, is_late)) } }
                                },
                                None => @for _ in &files.stages { td { span class="faint" { (UNKNOWN) } } },
                            }
                            td class="gap" {}
                        }
                        td class="tot" { @match of.values().map(|file| &file.row.updated_at).max() { Some(at) => (time_of(&at.replace(' ', "T"), now)), None => (UNKNOWN) } }
                    }
                } }
            } }
            div class="page" { span class="key" {
                span { (icon("ring", "")) "new" } span { (icon("half", "c-acc")) "started" } span { (icon("ok", "")) "done, with its time" }
                span { (icon("warn", "c-warn")) "longer than it should" } span { (icon("x", "c-bad")) "failed" }
            } }
        }
    }
}

/// One row whole.
fn details(context: &Context, file: &File) -> Markup {
    let row = &file.row;
    let now = context.snapshot.at;
    let time =
        |moment: &Option<String>| moment.as_deref().map(|at| time_of(&at.replace(' ', "T"), now));
    panel(
        html! { span class="mono" { (clean(&row.filename, 60)) } ", shard " (row.shard) },
        html! { "unchanged for " (row.minutes) " min" },
        html! { div class="pad" { dl class="kv" {
            @if let Some(reason) = &file.reason { dt { "Waits" } dd { (clean(reason, 400)) } }
            @if let Some(error) = &row.error { dt { "Error" } dd { code { (clean(&context.told(error), 600)) } } }
            dt { "Records" } dd { (known(row.records)) }
            @for stage in &row.stages { dt { (clean(&stage.stage, 40)) } dd { (clean(&stage.state, 20)) @if let Some(at) = time(&stage.started_at) { ", began " (at) } @if let Some(at) = time(&stage.done_at) { ", done " (at) } } }
            dt { "Attempts" } dd { (number(row.attempts)) }
            @if let Some(owner) = &row.owner { dt { "Owner" } dd { code { (clean(owner, 120)) } } }
            @if let Some(path) = &file.path { dt { "File" } dd { code { (clean(path, 300)) } } }
            @if let Some(seal) = &row.seal { dt { "Seal" } dd { a class="mono" href={ "/trace?id=" (part(seal.split_once('@').map_or(seal.as_str(), |(place, _)| place))) } { (clean(seal, 120)) } } }
            @if let Some(hash) = &row.hash { dt { "SHA-256" } dd { code class="brk" { (clean(hash, 80)) } } }
        } } },
    )
}
