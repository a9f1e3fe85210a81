//! `potok groups`: what pipelines hold until it is complete.

use std::io::Write;

use potok_core::{Clock, SystemClock, Timestamp};
use potok_server::parse_since;
use serde_json::{Value, json};

use crate::client::{Client, Target, encode};
use crate::failure::Failure;
use crate::terminal::{self, Table};

/// Groups being held: what is in them, when they close, and closing them by hand
#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  potok groups list em-processor
  potok groups show em-processor 20250323151500
  potok groups close em-processor 20250323151500")]
pub enum Groups {
    /// Show the groups that are held now
    #[command(after_help = "\
Examples:
  potok groups list
  potok groups list em-processor --limit 1000
  potok groups list em-processor --prefix 202503 --state sealed
  potok groups list em-processor --json             all of them, one to a line

What closes first comes first; DUE is how long that will be.
`open` groups still take records, `sealed` ones are complete and wait to be delivered, and
`delivering` ones wait for their destinations. REASON is why a group closed, once it has.")]
    List {
        /// Only of this pipeline
        pipeline: Option<String>,
        /// Only groups whose names begin so
        #[arg(long, value_name = "TEXT")]
        prefix: Option<String>,
        /// Only groups in this state: open, sealed or delivering
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        /// Show so many; 100 without it, with --json all
        #[arg(long, value_name = "COUNT")]
        limit: Option<usize>,
        /// Show all of them
        #[arg(long, conflicts_with = "limit")]
        all: bool,
        #[command(flatten)]
        place: Target,
    },
    /// Show one group, as JSON
    #[command(after_help = "\
Examples:
  potok groups show em-processor 20250323151500")]
    Show {
        /// The pipeline
        pipeline: String,
        /// The group: the value of `group.by`
        id: String,
        #[command(flatten)]
        place: Target,
    },
    /// Close an open group now instead of when it is due
    #[command(after_help = "\
Examples:
  potok groups close em-processor 20250323151500
  potok groups close chat --all                     all that are open now

What comes for it afterwards makes the next group of that name.")]
    Close {
        /// The pipeline
        pipeline: String,
        /// The group: the value of `group.by`
        #[arg(required_unless_present = "all")]
        id: Option<String>,
        /// All of the pipeline that are open now
        #[arg(long, conflicts_with = "id")]
        all: bool,
        #[command(flatten)]
        place: Target,
    },
    /// Give an open group up: its records become dead letters
    #[command(after_help = "\
Examples:
  potok groups drop em-processor 20250323151500
  potok dead-letters list em-processor --reason dropped

Nothing is lost: the dead letters can be replayed.")]
    Drop {
        /// The pipeline
        pipeline: String,
        /// The group: the value of `group.by`
        id: String,
        #[command(flatten)]
        place: Target,
    },
}

impl Groups {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        match self {
            Groups::List { pipeline, prefix, state, limit, all, place } => {
                let usual = if all || json { usize::MAX } else { SHOWN };
                let (prefix, state) = (prefix.as_deref(), state.as_deref());
                let wanted = WantedGroups { pipeline: pipeline.as_deref(), prefix, state };
                list(&place, &wanted, limit.unwrap_or(usual).max(1), json)
            }
            Groups::Show { pipeline, id, place } => show(&place, &pipeline, &id),
            Groups::Close { pipeline, id: Some(id), all: _, place } => {
                ask(&place, &pipeline, &id, "close", "closes now", json)
            }
            Groups::Close { pipeline, id: None, all: _, place } => {
                close_all(&place, &pipeline, json)
            }
            Groups::Drop { pipeline, id, place } => ask(
                &place,
                &pipeline,
                &id,
                "drop",
                "is given up: its records become dead letters",
                json,
            ),
        }
    }
}

/// Groups asked for at once, and shown to who does not say how many.
const PAGE: usize = 1_000;
const SHOWN: usize = 100;

#[derive(serde::Deserialize)]
struct Page {
    groups: Vec<Value>,
    total: u64,
    next: Option<String>,
}

/// Which groups are asked for.
struct WantedGroups<'a> {
    pipeline: Option<&'a str>,
    prefix: Option<&'a str>,
    state: Option<&'a str>,
}

impl WantedGroups<'_> {
    /// All of them, of one pipeline or of every one.
    fn is_all(&self) -> bool {
        self.prefix.is_none() && self.state.is_none()
    }
}

/// Goes through what is held, page by page, and says how much there is in all.
fn each_page(
    client: &Client,
    wanted: &WantedGroups<'_>,
    limit: usize,
    mut show: impl FnMut(&[Value]) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let (mut left, mut after) = (limit, None::<String>);
    loop {
        let mut path = format!("/api/v1/groups?limit={}", left.min(PAGE));
        let WantedGroups { pipeline, prefix, state } = *wanted;
        let after_given = after.as_deref();
        for (name, value) in
            [("pipeline", pipeline), ("prefix", prefix), ("state", state), ("after", after_given)]
        {
            let value = value.map(|value| format!("&{name}={}", encode(value)));
            path.push_str(&value.unwrap_or_default());
        }
        let mut page: Page = client.get_json(&path)?;
        page.groups.truncate(left);
        show(&page.groups)?;
        left = left.saturating_sub(page.groups.len());
        after = page.next;
        if left == 0 || after.is_none() {
            return Ok(page.total);
        }
    }
}

fn list(
    place: &Target,
    wanted: &WantedGroups<'_>,
    limit: usize,
    json: bool,
) -> Result<(), Failure> {
    let client = Client::find(place)?;
    let mut out = terminal::out();
    if json {
        each_page(&client, wanted, limit, |groups| {
            groups.iter().try_for_each(|group| writeln!(out, "{group}"))?;
            Ok(())
        })?;
        out.flush()?;
        return Ok(());
    }
    let (mut shown, now) = (0, SystemClock.now());
    let total = each_page(&client, wanted, limit, |groups| {
        let mut table = Table::new(&[
            "PIPELINE",
            "GROUP",
            "STATE",
            "RECORDS",
            "DUPLICATES",
            "OPENED",
            "DUE",
            "REASON",
        ]);
        for group in groups {
            let text = |key: &str| match &group[key] {
                Value::String(text) => text.clone(),
                Value::Null => "-".to_owned(),
                other => other.to_string(),
            };
            let kinds = group["kinds"].as_object().into_iter().flatten();
            let kinds: Vec<String> =
                kinds.map(|(kind, counts)| format!("{} {kind}", counts["records"])).collect();
            let cells = [text("pipeline"), text("id"), text("state"), kinds.join(", ")];
            let due = group["due"].as_str().map_or("-".to_owned(), |due| countdown(due, now));
            let rest = [text("duplicates"), text("opened"), due, text("reason")];
            table.row(cells.into_iter().chain(rest));
        }
        shown += groups.len() as u64;
        if !groups.is_empty() {
            table.print(&mut out)?;
        }
        Ok(())
    })?;
    if shown == 0 {
        let what =
            if wanted.is_all() { "nothing is held now" } else { "no such group is held now" };
        writeln!(out, "{what}")?;
    } else if shown < total && wanted.is_all() {
        writeln!(out, "… and {} more; --limit COUNT or --all shows them", total - shown)?;
    }
    out.flush()?;
    Ok(())
}

/// How long it is until a moment.
fn countdown(moment: &str, now: Timestamp) -> String {
    match parse_since(moment, now) {
        Ok(at) if at > now => format!("in {}", terminal::span(at.millis_since(now))),
        Ok(_) => "now".to_owned(),
        Err(_) => moment.to_owned(),
    }
}

fn show(place: &Target, pipeline: &str, id: &str) -> Result<(), Failure> {
    let path = format!("/api/v1/groups?pipeline={}&id={}", encode(pipeline), encode(id));
    let Page { groups, .. } = Client::find(place)?.get_json(&path)?;
    if groups.is_empty() {
        let what = format!("pipeline `{pipeline}` holds no group `{id}`");
        let fault = potok_core::Fault::fix(what).code("P0527");
        return Err(Failure::faults(vec![fault.hint("`potok groups list` shows what is held")]));
    }
    let mut out = terminal::out();
    for group in &groups {
        serde_json::to_writer_pretty(&mut out, group).map_err(std::io::Error::from)?;
        writeln!(out)?;
    }
    out.flush()?;
    Ok(())
}

/// Closes what is open now. What closed by itself meanwhile, or is being delivered, needs nobody.
fn close_all(place: &Target, pipeline: &str, as_json: bool) -> Result<(), Failure> {
    let client = Client::find(place)?;
    let wanted = WantedGroups { pipeline: Some(pipeline), prefix: None, state: Some("open") };
    // What is closed leaves the list: all are known before the first is.
    let mut open = Vec::new();
    each_page(&client, &wanted, usize::MAX, |groups| {
        let name = |group: &Value, of: &str| group[of].as_str().map(encode);
        open.extend(
            groups.iter().filter_map(|one| Some((name(one, "id")?, name(one, "generation")?))),
        );
        Ok(())
    })?;
    let (mut closed, mut refused) = (0, None);
    for (id, generation) in open {
        let group = format!("/api/v1/pipelines/{}/groups/{id}", encode(pipeline));
        let path = format!("{group}/close?generation={generation}");
        match client.post_json::<Value>(&path, "application/json", Vec::new()) {
            Ok(_) => closed += 1,
            Err(failure) if ["P0527", "P1210", "P1505"].iter().any(|code| failure.is(code)) => {}
            Err(failure) => refused = refused.or(Some(failure)),
        }
    }
    let mut out = terminal::out();
    if as_json {
        writeln!(out, "{}", json!({ "closed": closed }))?;
    } else {
        writeln!(out, "{} closed", terminal::count(closed, "group"))?;
    }
    out.flush()?;
    refused.map_or(Ok(()), Err)
}

fn ask(
    place: &Target,
    pipeline: &str,
    id: &str,
    verb: &str,
    done: &str,
    json: bool,
) -> Result<(), Failure> {
    let path = format!("/api/v1/pipelines/{}/groups/{}/{verb}", encode(pipeline), encode(id));
    let answer: Value = Client::find(place)?.post_json(&path, "application/json", Vec::new())?;
    let mut out = terminal::out();
    if json {
        writeln!(out, "{answer}")?;
    } else {
        writeln!(out, "{id} {done}")?;
    }
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_counted_down() {
        let now = Timestamp(1_700_000_000_000);
        let at = |millis: i64| Timestamp(now.0 + millis).to_string();
        assert_eq!(countdown(&at(8_000), now), "in 8.0s");
        assert_eq!(countdown(&at(-1), now), "now");
        assert_eq!(countdown("when a rule holds", now), "when a rule holds");
    }
}
