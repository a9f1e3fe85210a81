//! `/metrics`, in Prometheus' text form, rendered from the same status that people read.
//!
//! Names are `potok_<step>_<noun>_<unit>[_total]`. Counters start at zero with the process.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use potok_core::{Feed, OutboxCounts, StageLoad, Timestamp};
use potok_flow::{LatencyCounts, State as PipelineState, Status, WaitsFor};

use crate::{Admin, HttpSourceCounts, parse_since};

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(crate) async fn metrics(State(admin): State<Admin>) -> Response {
    let log = admin.engine().log();
    let statuses = admin.engine().status().await;
    let mut text =
        render(&statuses, admin.identity().version, log.damage().len(), log.trouble().is_some());
    if let Some((_, sources)) = admin.http() {
        text.push_str(&render_http(&sources.counts()));
    }
    text.push_str(&render_tracked(&admin).await);
    text.push_str(&render_outboxes(&admin.engine().feeds(None), &statuses));
    ([(CONTENT_TYPE, TEXT)], text).into_response()
}

/// How long a database may take to say how its stages are: metrics do not wait for it.
const TRACKED_MAX: std::time::Duration = std::time::Duration::from_secs(2);

async fn render_tracked(admin: &Admin) -> String {
    let mut page = MetricsText(String::new());
    let tracked = admin.engine().tracked(None);
    if tracked.is_empty() {
        return page.0;
    }
    let mut loads = Vec::new();
    for of in &tracked {
        let load = tokio::time::timeout(TRACKED_MAX, of.tracker.load()).await;
        let load = load.ok().and_then(Result::ok).unwrap_or_default();
        loads.extend(load.into_iter().map(|load| (of.pipeline.as_str(), load)));
    }
    let name = "potok_track_files";
    page.head(name, "gauge", "Files that are not through all stages, by stage, shard and state.");
    for (pipeline, StageLoad { stage, shard, state, files, .. }) in &loads {
        let shard = shard.to_string();
        let labels =
            [("pipeline", *pipeline), ("stage", stage), ("shard", &shard), ("state", state)];
        page.line(name, &labels, *files as f64);
    }
    let name = "potok_track_oldest_seconds";
    page.head(name, "gauge", "For how long the oldest of these files has been in that state.");
    for (pipeline, StageLoad { stage, shard, state, seconds, .. }) in &loads {
        let shard = shard.to_string();
        let labels =
            [("pipeline", *pipeline), ("stage", stage), ("shard", &shard), ("state", state)];
        page.line(name, &labels, *seconds as f64);
    }
    let name = "potok_track_oldest_started_seconds";
    page.head(name, "gauge", "For how long the oldest file has been `started`, by stage.");
    for (pipeline, load) in loads.iter().filter(|(_, load)| load.state == "started") {
        let shard = load.shard.to_string();
        let labels = [("pipeline", *pipeline), ("stage", &*load.stage), ("shard", &shard)];
        page.line(name, &labels, load.seconds as f64);
    }
    let name = "potok_track_open_slice_records";
    page.head(name, "gauge", "Records in slices that are still open, by shard.");
    for of in &tracked {
        let mut records = BTreeMap::new();
        for slice in &of.open {
            *records.entry(slice.shard).or_insert(0) += slice.records;
        }
        for (shard, records) in records {
            let shard = shard.to_string();
            let labels = [("pipeline", &*of.pipeline), ("shard", &*shard)];
            page.line(name, &labels, records as f64);
        }
    }
    let name = "potok_tracking_foreign_moves_total";
    page.head(name, "counter", "Moves of other programs in rows of this pipeline.");
    for of in &tracked {
        page.line(name, &[("pipeline", &*of.pipeline)], of.tracker.foreign_moves() as f64);
    }
    page.0
}

/// One metric of each outbox.
struct OutboxMetric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    /// `None` leaves the line out.
    value: fn(&Status, &OutboxCounts) -> Option<f64>,
}

const OUTBOX: &[OutboxMetric] = &[
    OutboxMetric {
        name: "potok_outbox_waiting_rows",
        kind: "gauge",
        help: "Rows of the outbox that are not processed, counted up to 100,001.",
        value: |status, _| status.waiting.map(|waiting| waiting as f64),
    },
    OutboxMetric {
        name: "potok_outbox_oldest_seconds",
        kind: "gauge",
        help: "Age of the oldest row that is not processed; 0 when there is none.",
        value: |status, _| {
            status.waiting.map(|_| status.waiting_oldest.unwrap_or(0) as f64 / 1_000.0)
        },
    },
    OutboxMetric {
        name: "potok_outbox_published_rows_total",
        kind: "counter",
        help: "Rows that this process published and marked.",
        value: |_, counts| Some(counts.published as f64),
    },
    OutboxMetric {
        name: "potok_outbox_failed_rows_total",
        kind: "counter",
        help: "Failures of rows in this process, each of a row as often as it failed.",
        value: |_, counts| Some(counts.failed as f64),
    },
    OutboxMetric {
        name: "potok_outbox_failing_keys",
        kind: "gauge",
        help: "Keys that wait behind a row that failed; 0 where another process owns the table.",
        value: |_, counts| Some(counts.failing_keys as f64),
    },
    OutboxMetric {
        name: "potok_outbox_owner",
        kind: "gauge",
        help: "1 while this process owns the table, 0 while it stands by.",
        value: |_, counts| Some(f64::from(u8::from(counts.is_owner))),
    },
    OutboxMetric {
        name: "potok_outbox_dead_rows",
        kind: "gauge",
        help: "Dead letters of the outbox, counted up to 100,001.",
        value: |status, _| status.dead_letters_open.map(|dead| dead as f64),
    },
];

fn render_outboxes(feeds: &[(String, Arc<dyn Feed>)], statuses: &[Status]) -> String {
    let counts = feeds.iter().filter_map(|(pipeline, feed)| {
        let status = statuses.iter().find(|status| status.pipeline == *pipeline)?;
        Some((status, feed.outbox()?.counts()))
    });
    let counts: Vec<(&Status, OutboxCounts)> = counts.collect();
    let mut page = MetricsText(String::new());
    for metric in OUTBOX.iter().filter(|_| !counts.is_empty()) {
        page.head(metric.name, metric.kind, metric.help);
        for (status, counts) in &counts {
            if let Some(value) = (metric.value)(status, counts) {
                page.line(metric.name, &[("pipeline", &status.pipeline)], value);
            }
        }
    }
    page.0
}

fn render_http(all: &[HttpSourceCounts]) -> String {
    let mut page = MetricsText(String::new());
    let name = "potok_http_requests_total";
    page.head(name, "counter", "Requests to HTTP sources, by the status of the answer.");
    for source in all {
        for (status, count) in &source.requests {
            let status = status.to_string();
            let labels =
                [("pipeline", &*source.pipeline), ("path", &source.path), ("status", &status)];
            page.line(name, &labels, *count as f64);
        }
    }
    let name = "potok_http_accepted_records_total";
    page.head(name, "counter", "Records that HTTP sources have taken.");
    for source in all {
        let labels = [("pipeline", &*source.pipeline), ("path", &*source.path)];
        page.line(name, &labels, source.records as f64);
    }
    page.0
}

/// One metric of each pipeline.
struct PerPipeline {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    /// `None` leaves the line out.
    value: fn(&Status) -> Option<f64>,
}

const PER_PIPELINE: &[PerPipeline] = &[
    PerPipeline {
        name: "potok_source_received_records_total",
        kind: "counter",
        help: "Records taken from the sources, those given back among them.",
        value: |status| Some((status.received + status.returned) as f64),
    },
    PerPipeline {
        name: "potok_source_returned_records_total",
        kind: "counter",
        help: "Records given back unfinished: after a rebalance, a drain or a restart.",
        value: |status| Some(status.returned as f64),
    },
    PerPipeline {
        name: "potok_source_put_off_records_total",
        kind: "counter",
        help: "Failures after which the feed of a record keeps it back for a while.",
        value: |status| Some(status.put_off as f64),
    },
    PerPipeline {
        name: "potok_source_waiting_records",
        kind: "gauge",
        help: "Records in the pipeline's feeds that have not ended.",
        value: |status| status.waiting.map(|waiting| waiting as f64),
    },
    PerPipeline {
        name: "potok_source_waiting_oldest_seconds",
        kind: "gauge",
        help: "Age of the oldest record that waits in a feed.",
        value: |status| status.waiting_oldest.map(|oldest| oldest as f64 / 1_000.0),
    },
    PerPipeline {
        name: "potok_source_lag_records",
        kind: "gauge",
        help: "Records in the pipeline's topics and feeds that have not ended.",
        value: |status| status.lag.map(|lag| lag as f64),
    },
    PerPipeline {
        name: "potok_source_in_flight_records",
        kind: "gauge",
        help: "Records taken that have not ended.",
        value: |status| Some(status.in_flight as f64),
    },
    PerPipeline {
        name: "potok_source_oldest_age_seconds",
        kind: "gauge",
        help: "Age of the oldest record in flight; 0 when there is none.",
        value: |status| Some(status.oldest.unwrap_or(0) as f64 / 1_000.0),
    },
    PerPipeline {
        name: "potok_process_filtered_records_total",
        kind: "counter",
        help: "Records filtered by a rule.",
        value: |status| Some(status.filtered as f64),
    },
    PerPipeline {
        name: "potok_process_passed_total",
        kind: "counter",
        help: "Events that went on as they were though a stage failed on them (on_error: pass).",
        value: |status| Some(status.passed as f64),
    },
    PerPipeline {
        name: "potok_deliver_delivered_records_total",
        kind: "counter",
        help: "Records delivered.",
        value: |status| Some(status.delivered as f64),
    },
    PerPipeline {
        name: "potok_deliver_duplicate_records_total",
        kind: "counter",
        help: "Records dropped as duplicates of something delivered.",
        value: |status| Some(status.duplicates as f64),
    },
    PerPipeline {
        name: "potok_deliver_dead_lettered_records_total",
        kind: "counter",
        help: "Records set aside.",
        value: |status| Some(status.dead_lettered as f64),
    },
    PerPipeline {
        name: "potok_dead_letters_open",
        kind: "gauge",
        help: "Dead letters that wait for somebody, whenever they were written.",
        value: |status| status.dead_letters_open.map(|open| open as f64),
    },
    PerPipeline {
        name: "potok_deliver_retried_calls_total",
        kind: "counter",
        help: "Calls to destinations that failed and were repeated.",
        value: |status| Some(status.retries as f64),
    },
    PerPipeline {
        name: "potok_process_retried_calls_total",
        kind: "counter",
        help: "Calls of stages that failed and were repeated.",
        value: |status| Some(status.stage_retries as f64),
    },
    PerPipeline {
        name: "potok_deliver_gate_closed_timestamp_seconds",
        kind: "gauge",
        help: "Unix time since when the gate is not open; 0 while it is.",
        value: |status| Some(gate_since(status)),
    },
    PerPipeline {
        name: "potok_group_open_groups",
        kind: "gauge",
        help: "Groups that still take records.",
        value: |status| Some(status.open_groups as f64),
    },
    PerPipeline {
        name: "potok_group_held_bytes",
        kind: "gauge",
        help: "Bytes of the records that groups hold.",
        value: |status| Some(status.held_bytes as f64),
    },
    PerPipeline {
        name: "potok_group_held_records",
        kind: "gauge",
        help: "Records that groups hold, those that are closed and not sent yet among them.",
        value: |status| Some(status.held_records as f64),
    },
    PerPipeline {
        name: "potok_group_next_close_seconds",
        kind: "gauge",
        help: "Seconds until the next open group closes; 0 where it is due, absent without one.",
        value: |status| status.next_close_in.map(|millis| millis as f64 / 1_000.0),
    },
    PerPipeline {
        name: "potok_group_store_rebuilds_total",
        kind: "counter",
        help: "How often everything held was read again, because its store had lost it.",
        value: |status| Some(status.store_rebuilds as f64),
    },
    PerPipeline {
        name: "potok_group_resumed_seals_total",
        kind: "counter",
        help: "Closed groups that another run had sealed.",
        value: |status| Some(status.resumed_seals as f64),
    },
    PerPipeline {
        name: "potok_group_duplicate_ids_total",
        kind: "counter",
        help: "Records that another record of their batch stood for, because it has the same id.",
        value: |status| Some(status.duplicate_ids as f64),
    },
    PerPipeline {
        name: "potok_pipeline_restarts_total",
        kind: "counter",
        help: "How often a part of the pipeline died and was started again.",
        value: |status| Some(status.restarts as f64),
    },
];

fn gate_since(status: &Status) -> f64 {
    let since = status.gate.since.as_deref().map(|since| parse_since(since, Timestamp(0)));
    since.and_then(Result::ok).map_or(0.0, |time| time.0 as f64 / 1_000.0)
}

fn render(all: &[Status], version: &str, damaged: usize, trouble: bool) -> String {
    let mut page = MetricsText(String::new());
    for metric in PER_PIPELINE {
        page.head(metric.name, metric.kind, metric.help);
        for status in all {
            if let Some(value) = (metric.value)(status) {
                page.line(metric.name, &[("pipeline", &status.pipeline)], value);
            }
        }
    }
    let name = "potok_process_counted_total";
    page.head(name, "counter", "What stages were asked to count (count), by stage and name.");
    for status in all {
        for (stage, counters) in &status.counted {
            for (counter, count) in counters {
                let labels =
                    [("pipeline", &*status.pipeline), ("stage", &**stage), ("name", &**counter)];
                page.line(name, &labels, *count as f64);
            }
        }
    }
    let name = "potok_feed_counted_total";
    page.head(name, "counter", "What feeds count themselves, by feed and name.");
    for status in all {
        for feed in &status.feeds {
            for (counter, count) in &feed.counts {
                let labels =
                    [("pipeline", &*status.pipeline), ("feed", &*feed.feed), ("name", &**counter)];
                page.line(name, &labels, *count as f64);
            }
        }
    }
    let name = "potok_deliver_dead_letters_total";
    page.head(name, "counter", "Dead letters written, by reason.");
    for status in all {
        for (reason, count) in &status.dead_letters_by_reason {
            page.line(name, &[("pipeline", &status.pipeline), ("reason", reason)], *count as f64);
        }
    }
    let name = "potok_deliver_gate_state";
    page.head(name, "gauge", "1 for the state the gate is in.");
    for status in all {
        for state in ["open", "half_open", "closed"] {
            let labels = [("pipeline", status.pipeline.as_str()), ("state", state)];
            page.line(name, &labels, f64::from(u8::from(status.gate.state == state)));
        }
    }
    page.destinations_and_partitions(all);
    let name = "potok_record_age_at_end_seconds";
    let help = "From the arrival of a record in the log to its ending.";
    page.histogram(name, help, all, |status| &status.latency);
    let name = "potok_group_close_lateness_seconds";
    let help = "How much later than due groups closed.";
    page.histogram(name, help, all, |status| &status.lateness);
    let name = "potok_pipeline_state";
    page.head(name, "gauge", "1 for the state the pipeline is in.");
    for status in all {
        for (state, word) in STATES {
            let labels = [("pipeline", status.pipeline.as_str()), ("state", word)];
            page.line(name, &labels, f64::from(u8::from(status.state == state)));
        }
    }
    let name = "potok_pipeline_waiting";
    page.head(name, "gauge", "1 while the pipeline waits for this, besides destinations.");
    for status in all {
        for (what, word) in WaitsFor::ALL {
            let waits = status.waits.iter().any(|wait| wait.what == what);
            let labels = [("pipeline", status.pipeline.as_str()), ("for", word)];
            page.line(name, &labels, f64::from(u8::from(waits)));
        }
    }
    page.single(
        "potok_log_damaged_ranges",
        "Parts of the log that could not be read.",
        damaged as f64,
    );
    let help = "1 while the log cannot take records (a full disk).";
    page.single("potok_log_trouble_state", help, f64::from(u8::from(trouble)));
    page.head("potok_build_info", "gauge", "The version that runs.");
    page.line("potok_build_info", &[("version", version)], 1.0);
    page.0
}

const STATES: [(PipelineState, &str); 6] = [
    (PipelineState::Running, "running"),
    (PipelineState::Paused, "paused"),
    (PipelineState::Waiting, "waiting"),
    (PipelineState::Blocked, "blocked"),
    (PipelineState::Draining, "draining"),
    (PipelineState::Stopped, "stopped"),
];

struct MetricsText(String);

impl MetricsText {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing into a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let open = if index == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{open}{label}=\"{text}\"");
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{close} {value}");
    }

    fn destinations_and_partitions(&mut self, all: &[Status]) {
        let name = "potok_deliver_destination_up";
        self.head(name, "gauge", "1 while the destination takes records, 0 behind a closed gate.");
        for status in all {
            for destination in &status.destinations {
                let labels =
                    [("pipeline", &*status.pipeline), ("destination", &*destination.destination)];
                self.line(name, &labels, f64::from(u8::from(destination.up)));
            }
        }
        let name = "potok_source_partition_lag_records";
        self.head(name, "gauge", "Records of a partition that have not ended.");
        for status in all {
            for partition in &status.partitions {
                let index = partition.partition.to_string();
                let labels = [
                    ("pipeline", &*status.pipeline),
                    ("topic", &*partition.topic),
                    ("partition", &*index),
                ];
                self.line(name, &labels, partition.lag as f64);
            }
        }
    }

    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        all: &[Status],
        times: fn(&Status) -> &LatencyCounts,
    ) {
        self.head(name, "histogram", help);
        for status in all {
            let pipeline = ("pipeline", status.pipeline.as_str());
            let times = times(status);
            let bucket = format!("{name}_bucket");
            for (millis, count) in &times.at_most {
                let bound = (*millis as f64 / 1_000.0).to_string();
                self.line(&bucket, &[pipeline, ("le", &bound)], *count as f64);
            }
            let count = times.count as f64;
            self.line(&bucket, &[pipeline, ("le", "+Inf")], count);
            self.line(&format!("{name}_sum"), &[pipeline], times.sum_millis as f64 / 1_000.0);
            self.line(&format!("{name}_count"), &[pipeline], count);
        }
    }

    fn single(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        self.line(name, &[], value);
    }
}

#[cfg(test)]
mod tests {
    use potok_flow::{DestinationStatus, GateStatus, PartitionLag, Wait};

    use super::*;

    fn status() -> Status {
        Status {
            gate: GateStatus {
                state: "closed",
                since: Some("1970-01-01T00:00:01.500Z".to_owned()),
                why: None,
            },
            waits: vec![Wait {
                what: WaitsFor::Store,
                since: "1970-01-01T00:00:01.500Z".to_owned(),
                why: "it is full".to_owned(),
                needs_somebody: false,
            }],
            lag: Some(3),
            oldest: Some(250),
            received: 12_345_678,
            dead_lettered: 2,
            dead_letters_by_reason: [("no_key".to_owned(), 2)].into(),
            restarts: 1,
            passed: 4,
            counted: [("clean".to_owned(), [("bad_values".to_owned(), 6)].into())].into(),
            resumed_seals: 4,
            duplicate_ids: 5,
            lateness: LatencyCounts { at_most: vec![(250, 6)], count: 7, sum_millis: 1_500 },
            partitions: vec![PartitionLag { topic: "t".to_owned(), partition: 1, lag: 3 }],
            destinations: vec![DestinationStatus {
                destination: "orders".to_owned(),
                up: false,
                gate: Default::default(),
                delivered: 3,
                calls: 4,
                failed_calls: 1,
                busy: 20,
            }],
            latency: LatencyCounts {
                at_most: vec![(5, 1), (2_500, 2)],
                count: 3,
                sum_millis: 9_500,
            },
            ..Status::unknown("a\"b\\c\nd", PipelineState::Waiting)
        }
    }

    #[test]
    fn every_line_is_well_formed_and_labels_are_escaped() {
        let page = render(&[status()], "1.0", 1, true);
        let label = "pipeline=\"a\\\"b\\\\c\\nd\"";
        for expected in [
            format!("potok_source_received_records_total{{{label}}} 12345678"),
            format!("potok_source_oldest_age_seconds{{{label}}} 0.25"),
            format!("potok_process_passed_total{{{label}}} 4"),
            format!("potok_process_counted_total{{{label},stage=\"clean\",name=\"bad_values\"}} 6"),
            format!("potok_deliver_gate_closed_timestamp_seconds{{{label}}} 1.5"),
            format!("potok_deliver_gate_state{{{label},state=\"closed\"}} 1"),
            format!("potok_deliver_gate_state{{{label},state=\"open\"}} 0"),
            format!("potok_pipeline_state{{{label},state=\"waiting\"}} 1"),
            format!("potok_pipeline_waiting{{{label},for=\"store\"}} 1"),
            format!("potok_pipeline_waiting{{{label},for=\"log\"}} 0"),
            format!("potok_deliver_dead_letters_total{{{label},reason=\"no_key\"}} 2"),
            format!("potok_source_partition_lag_records{{{label},topic=\"t\",partition=\"1\"}} 3"),
            format!("potok_deliver_destination_up{{{label},destination=\"orders\"}} 0"),
            format!("potok_record_age_at_end_seconds_bucket{{{label},le=\"0.005\"}} 1"),
            format!("potok_record_age_at_end_seconds_bucket{{{label},le=\"2.5\"}} 2"),
            format!("potok_record_age_at_end_seconds_bucket{{{label},le=\"+Inf\"}} 3"),
            format!("potok_record_age_at_end_seconds_sum{{{label}}} 9.5"),
            format!("potok_record_age_at_end_seconds_count{{{label}}} 3"),
            format!("potok_group_resumed_seals_total{{{label}}} 4"),
            format!("potok_group_duplicate_ids_total{{{label}}} 5"),
            format!("potok_group_close_lateness_seconds_bucket{{{label},le=\"0.25\"}} 6"),
            format!("potok_group_close_lateness_seconds_sum{{{label}}} 1.5"),
            format!("potok_group_close_lateness_seconds_count{{{label}}} 7"),
            "potok_log_trouble_state 1".to_owned(),
            "potok_log_damaged_ranges 1".to_owned(),
            "potok_build_info{version=\"1.0\"} 1".to_owned(),
        ] {
            assert!(page.lines().any(|line| line == expected), "{expected} in\n{page}");
        }
        let names: Vec<_> =
            page.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let name = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| {
                    name.strip_suffix(end).filter(|name| {
                        name.ends_with("_at_end_seconds") || name.ends_with("lateness_seconds")
                    })
                })
                .unwrap_or(name);
            assert!(names.contains(&name), "no TYPE for {line}");
        }
    }
}
