//! What needs a look, the gravest first: since when, why, what potok does meanwhile, what to do.
//!
//! Everything is derived from one snapshot and the ring of samples, so that pages, `/api/v1/problems`
//! and `potok top` say the same.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use potok_core::Timestamp;
use potok_flow::{DestinationStatus, State as PipelineState, Status, Wait, WaitsFor};
use serde::Serialize;

use crate::Admin;
use crate::access::{Role, Visitor};
use crate::sampler::{Sampler, Snapshot, lately};

/// Whose move it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// It lasts until a person acts.
    Act,
    /// It goes on by itself.
    Waits,
    /// Somebody wanted it so.
    Chosen,
}

/// What can be done about it at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Remedy {
    Probe,
    Resume,
    Review,
    Open,
}

/// One thing that needs a look.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Problem {
    /// `log`, `blocked`, `gate`, `paused`, `restarts`, `retries`, `dead_letters`, `damage`, or what
    /// a pipeline waits for.
    pub kind: &'static str,
    pub severity: Severity,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// As RFC 3339, where it is known.
    pub since: Option<String>,
    pub what: String,
    pub cause: String,
    /// What potok does about it by itself, and what that costs.
    pub meanwhile: String,
    /// What a person can do.
    #[serde(rename = "do")]
    pub advice: String,
    /// The command for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    pub remedy: Remedy,
}

pub(crate) async fn list(State(admin): State<Admin>, visitor: Visitor) -> Json<Vec<Problem>> {
    let mut snapshot = admin.snapshot().await;
    if !visitor.may(Role::Operator) {
        snapshot = Arc::new(snapshot.without_values());
    }
    Json(problems(&snapshot, admin.sampler()))
}

/// All of them.
pub(crate) fn problems(snapshot: &Snapshot, sampler: &Sampler) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Some(trouble) = &snapshot.log_trouble {
        problems.push(Problem {
            kind: "log",
            severity: Severity::Act,
            pipeline: None,
            destination: None,
            since: None,
            what: "the log takes no records".to_owned(),
            cause: trouble.clone(),
            meanwhile:
                "Senders are refused and keep what they have; what was acknowledged is kept. \
                        potok tries again by itself."
                    .to_owned(),
            advice: "Make room on the disk, or see to the brokers.".to_owned(),
            command: None,
            remedy: Remedy::Open,
        });
    }
    for status in &snapshot.all {
        of_pipeline(status, snapshot, sampler, &mut problems);
    }
    let damaged = snapshot.all.first().map(|status| status.damaged.len()).unwrap_or_default();
    if damaged > 0 {
        problems.push(Problem {
            kind: "damage",
            severity: Severity::Act,
            pipeline: None,
            destination: None,
            since: None,
            what: format!("{damaged} damaged parts of the log"),
            cause: "bytes on the disk are not what was written".to_owned(),
            meanwhile:
                "The bytes are kept aside and are dead letters of `potok`; everything else is \
                        read as usual."
                    .to_owned(),
            advice: "Look at the disk; then drop these dead letters.".to_owned(),
            command: Some("potok status".to_owned()),
            remedy: Remedy::Review,
        });
    }
    problems.sort_by(|one, other| (one.severity, &one.since).cmp(&(other.severity, &other.since)));
    problems
}

fn of_pipeline(status: &Status, snapshot: &Snapshot, sampler: &Sampler, into: &mut Vec<Problem>) {
    let name = &status.pipeline;
    let problem = |kind, severity, what: String, cause: String| Problem {
        kind,
        severity,
        pipeline: Some(name.clone()),
        destination: None,
        since: None,
        what,
        cause,
        meanwhile: String::new(),
        advice: String::new(),
        command: None,
        remedy: Remedy::Open,
    };
    let why = || status.why.clone().unwrap_or_else(|| "it does not say why".to_owned());
    // What only waits for somebody goes on by itself, and says so below.
    let is_waiting = status.waits.iter().any(|wait| wait.needs_somebody);
    if status.state == PipelineState::Blocked && !is_waiting {
        into.push(Problem {
            meanwhile: format!("{} It takes nothing until then.", kept(status)),
            advice: "Mend what the cause names, then resume it.".to_owned(),
            command: Some(format!("potok resume {name}")),
            remedy: Remedy::Resume,
            ..problem("blocked", Severity::Act, format!("{name} is blocked"), why())
        });
    }
    for to in status.destinations.iter().filter(|to| !to.up) {
        into.push(gate(status, to, snapshot, sampler));
    }
    into.extend(status.waits.iter().map(|wait| waits(status, wait)));
    if status.state == PipelineState::Paused {
        into.push(Problem {
            meanwhile: format!("{} What was in flight went on.", kept(status)),
            advice: "Resume it when it may go on.".to_owned(),
            command: Some(format!("potok resume {name}")),
            remedy: Remedy::Resume,
            ..problem("paused", Severity::Chosen, format!("{name} is paused"), "by hand".to_owned())
        });
    }
    let restarts = sampler.rise(name, |totals| totals.restarts);
    if restarts > 0 {
        into.push(Problem {
            meanwhile: "It starts again by itself and goes on from the log; nothing is lost."
                .to_owned(),
            advice: "The log of the process says which part died.".to_owned(),
            command: Some(format!("potok status {name}")),
            ..problem(
                "restarts",
                Severity::Waits,
                format!("{name} was started again {restarts} times in the last 15 min"),
                status.why.clone().unwrap_or_else(|| "a part of it died".to_owned()),
            )
        });
    }
    let repeats = lately(&sampler.rates(Some(name), |totals| totals.retries));
    if status.destinations.iter().all(|to| to.up) && repeats.is_some_and(|rate| rate >= 0.2) {
        into.push(Problem {
            meanwhile:
                "Calls are repeated with growing waits; when nothing gets through, the gate \
                        closes."
                    .to_owned(),
            advice: "Look at the destination.".to_owned(),
            command: Some(format!("potok status {name} --json")),
            ..problem(
                "retries",
                Severity::Waits,
                format!("{name} runs but repeats calls"),
                why_repeats(status),
            )
        });
    }
    if let Some(open @ 1..) = status.dead_letters_open {
        let reasons: Vec<String> = status
            .dead_letters_by_reason
            .iter()
            .map(|(reason, count)| format!("{reason} {count}"))
            .collect();
        let cause = match reasons.is_empty() {
            true => "set aside before this process started".to_owned(),
            false => format!("set aside since the start: {}", reasons.join(", ")),
        };
        into.push(Problem {
            meanwhile:
                "They are kept whole until somebody replays or drops them; the others go on."
                    .to_owned(),
            advice: "Review the causes, mend them, then replay.".to_owned(),
            command: Some(format!("potok dead-letters list {name}")),
            remedy: Remedy::Review,
            ..problem(
                "dead_letters",
                Severity::Act,
                match open {
                    1 => format!("{name} has 1 open dead letter"),
                    open => format!("{name} has {} open dead letters", grouped(open)),
                },
                cause,
            )
        });
    }
}

fn why_repeats(status: &Status) -> String {
    status.why.clone().unwrap_or_else(|| "a destination or stage fails now and then".to_owned())
}

fn gate(
    status: &Status,
    to: &DestinationStatus,
    snapshot: &Snapshot,
    sampler: &Sampler,
) -> Problem {
    let name = &status.pipeline;
    let forecast = forecast(status, sampler).map(|text| format!(" {text}")).unwrap_or_default();
    let every = snapshot.outlines.get(name).map(|outline| outline.probe_every);
    let every = every.map(|millis| format!(", asked every {} s", millis as f64 / 1_000.0));
    Problem {
        kind: "gate",
        severity: Severity::Waits,
        pipeline: Some(name.clone()),
        destination: Some(to.destination.clone()),
        since: to.gate.since.clone(),
        what: format!("{name} waits for {}", to.destination),
        cause: to.gate.why.clone().unwrap_or_else(|| "it does not answer".to_owned()),
        meanwhile: format!(
            "{} They go on by themselves when it is back{}; nothing becomes a dead letter.{forecast}",
            kept(status),
            every.unwrap_or_default(),
        ),
        advice: "See to the destination; a probe asks it now.".to_owned(),
        command: Some(format!("potok resume {name}")),
        remedy: Remedy::Probe,
    }
}

/// How long catching up takes, measured by the best that was seen lately.
fn forecast(status: &Status, sampler: &Sampler) -> Option<String> {
    let rates = sampler.rates(Some(&status.pipeline), |totals| totals.delivered);
    let best = rates.windows(5).filter_map(lately).fold(0.0, f64::max);
    let waiting = status.lag?.saturating_sub(status.held_records);
    (best >= 1.0 && waiting > 0).then(|| {
        let seconds = (waiting as f64 / best).ceil();
        format!("Then about {seconds} s to catch up, at {best:.0}/s as before.")
    })
}

fn waits(status: &Status, wait: &Wait) -> Problem {
    let name = &status.pipeline;
    let (what, meanwhile, advice) = match wait.what {
        WaitsFor::Log => (
            "the log",
            "What has been done is done again when the log answers; nothing is lost.",
            "Make room on the disk, or see to the brokers.",
        ),
        WaitsFor::Source => (
            "its source",
            "It asks again by itself.",
            "See to the source, or to the coordinator of its consumer group.",
        ),
        WaitsFor::Feed => (
            "its feed",
            "What is not marked there is read again; nothing is lost.",
            "See to the system that the cause names.",
        ),
        WaitsFor::Store => {
            ("its store", "What it cannot keep there is read from the log again.", "See to Redis.")
        }
        WaitsFor::Tracking => (
            "its tracking table",
            "Records are taken in and groups close; files and deliveries wait.",
            "See to the database that `track` names.",
        ),
        WaitsFor::Destination => (
            "the destination of a shard",
            "What was sealed for that shard waits; the other shards go on.",
            "Give the shard its connection, or set the number of shards back.",
        ),
        WaitsFor::Gathering => (
            "its internal topic",
            "Records stay in their topic and are copied later.",
            "See to the brokers and the rights on the topic.",
        ),
        WaitsFor::Decision => (
            "somebody to decide about a record",
            "It is tried again and again; the records behind it wait.",
            "Probe to try it now, or give it up: `potok dead-letters set-aside`.",
        ),
        WaitsFor::CatchUp => (
            "what it holds to be read again",
            "Groups close when that is done; nothing to do.",
            "Wait.",
        ),
    };
    let act = wait.needs_somebody || wait.what == WaitsFor::Decision;
    Problem {
        kind: wait.what.word(),
        severity: if act { Severity::Act } else { Severity::Waits },
        pipeline: Some(name.clone()),
        destination: None,
        since: Some(wait.since.clone()),
        what: format!("{name} waits for {what}"),
        cause: wait.why.clone(),
        meanwhile: meanwhile.to_owned(),
        advice: advice.to_owned(),
        command: Some(format!("potok status {name}")),
        remedy: if wait.what == WaitsFor::Decision { Remedy::Probe } else { Remedy::Open },
    }
}

/// Where the records are meanwhile.
fn kept(status: &Status) -> String {
    match status.lag.map(|lag| lag.saturating_sub(status.held_records)) {
        Some(0) => "No record waits; new ones are still taken into the log.".to_owned(),
        Some(1) => "1 record waits in the log; new ones are still taken.".to_owned(),
        Some(lag) => format!("{} records wait in the log; new ones are still taken.", grouped(lag)),
        None => "Records wait in the log; how many is not known now.".to_owned(),
    }
}

/// A number with its thousands apart.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// How long ago something began, in milliseconds.
pub(crate) fn age(since: Option<&str>, now: Timestamp) -> Option<u64> {
    let since = crate::parse_since(since?, now).ok()?;
    Some(now.millis_since(since))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use potok_flow::GateStatus;

    use super::*;

    fn snapshot(status: Status) -> Snapshot {
        Snapshot::for_tests(vec![status])
    }

    #[test]
    fn a_closed_gate_says_why_since_when_and_what_happens_meanwhile() {
        let gate = GateStatus {
            state: "closed",
            since: Some("2026-11-17T03:10:40.000Z".to_owned()),
            why: Some("connection refused".to_owned()),
        };
        let to = DestinationStatus {
            destination: "db orders".into(),
            up: false,
            gate,
            delivered: 0,
            calls: 0,
            failed_calls: 0,
            busy: 0,
        };
        let status = Status {
            lag: Some(78_120),
            destinations: vec![to],
            dead_letters_open: Some(2),
            ..Status::unknown("orders", PipelineState::Waiting)
        };
        let found = problems(&snapshot(status), &Sampler::default());
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].kind, "dead_letters", "what a person must do comes first");
        let gate = &found[1];
        assert_eq!((gate.kind, gate.severity), ("gate", Severity::Waits));
        assert!(gate.cause.contains("refused") && gate.meanwhile.contains("78,120 records"));
        assert_eq!(gate.since.as_deref(), Some("2026-11-17T03:10:40.000Z"));
    }

    #[test]
    fn what_is_well_is_no_problem_and_held_is_not_stuck() {
        let status = Status {
            lag: Some(100),
            held_records: 100,
            open_groups: 3,
            dead_letters_open: Some(0),
            ..Status::unknown("chat", PipelineState::Running)
        };
        assert!(problems(&snapshot(status), &Sampler::default()).is_empty());
    }

    #[test]
    fn thousands_stand_apart() {
        let shown = [0, 999, 1_000, 1_234_567].map(grouped);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
    }
}
