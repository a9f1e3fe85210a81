//! The steps of a pipeline, for people who look at it.

use std::time::Duration;

use serde::Serialize;

use crate::plan::{Per, Plan, Target};

/// The steps of a pipeline, by the names that its file gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outline {
    /// Topics that it reads, and feeds.
    pub reads: Vec<String>,
    pub feeds: Vec<String>,
    /// Lanes.
    pub workers: usize,
    /// When its groups close, as the file says it; `None` where it holds none.
    pub group: Option<Vec<String>>,
    /// Its stages, in order.
    pub stages: Vec<OutlineStage>,
    /// The labels of its deliver entries.
    pub delivers: Vec<String>,
    /// How often a destination that is away is asked, in milliseconds.
    pub probe_every: u64,
    /// Where its dead letters go.
    pub dead_letters: String,
    /// Its groups are tracked in a table, as files with stages.
    pub has_files: bool,
    /// It relays an outbox table.
    pub has_outbox: bool,
}

/// One stage of an [`Outline`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OutlineStage {
    pub name: String,
    /// It works on groups, not on single events.
    pub per_group: bool,
}

impl Outline {
    pub(crate) fn of(plan: &Plan) -> Self {
        let stage = |stage: &crate::plan::StagePlan| OutlineStage {
            name: stage.name.clone(),
            per_group: stage.per == Per::Group,
        };
        let deliver = |deliver: &crate::plan::DeliverPlan| match &deliver.target {
            Target::Sink(_) => deliver.label.clone(),
            Target::Topic(_) if deliver.label.starts_with("topic") => deliver.label.clone(),
            Target::Topic(_) => format!("topic {}", deliver.label),
        };
        Outline {
            reads: plan.topics().iter().map(ToString::to_string).collect(),
            feeds: plan.feeds().map(|(name, _)| name.to_string()).collect(),
            workers: plan.workers,
            group: plan.hold.as_ref().map(|hold| rules(&hold.close)).or_else(|| {
                let any = plan.feeds().any(|(_, feed)| feed.groups().is_some());
                any.then(|| vec!["the feed closes them".to_owned()])
            }),
            stages: plan.stages.iter().map(stage).collect(),
            delivers: plan.delivers.iter().map(deliver).collect(),
            probe_every: u64::try_from(plan.probe_every.as_millis()).unwrap_or(u64::MAX),
            dead_letters: plan.dead_letter_topic.to_string(),
            has_files: plan.hold.as_ref().is_some_and(|hold| hold.track.is_some()),
            has_outbox: plan.feeds().any(|(_, feed)| feed.outbox().is_some()),
        }
    }
}

/// The rules by which groups close, each as its key and value stand in the file.
fn rules(close: &crate::plan::ClosePlan) -> Vec<String> {
    let times = [
        ("after_first", close.after_first),
        ("quiet", close.quiet),
        ("every", close.every),
        ("max_age", close.max_age),
    ];
    let times =
        times.into_iter().filter_map(|(name, time)| Some(format!("{name} {}", span(time?))));
    let sizes = [
        close.max_count.map(|count| format!("max_count {count}")),
        close.max_bytes.map(|bytes| format!("max_bytes {bytes}")),
        close.when.as_ref().map(|_| "when".to_owned()),
    ];
    times.chain(sizes.into_iter().flatten()).collect()
}

fn span(time: Duration) -> String {
    match time.as_millis() {
        millis if millis % 3_600_000 == 0 && millis > 0 => format!("{}h", millis / 3_600_000),
        millis if millis % 60_000 == 0 && millis > 0 => format!("{}m", millis / 60_000),
        millis if millis % 1_000 == 0 => format!("{}s", millis / 1_000),
        millis => format!("{millis}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ClosePlan;

    #[test]
    fn closing_rules_read_as_in_the_file() {
        let close = ClosePlan {
            quiet: Some(Duration::from_secs(10)),
            max_age: Some(Duration::from_secs(300)),
            max_count: Some(50),
            after_first: Some(Duration::from_millis(1_500)),
            ..ClosePlan::default()
        };
        assert_eq!(
            rules(&close),
            ["after_first 1500ms", "quiet 10s", "max_age 5m", "max_count 50"]
        );
    }
}
