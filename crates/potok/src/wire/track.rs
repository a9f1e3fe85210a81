//! `files` and `track`: closed groups as files, and the table that shows how far they are.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use potok_config::LogConnection;
use potok_connectors::group_files::FolderFiles;
use potok_connectors::sql::{LogIdentity, TrackConfig, track_ddl, tracker};
use potok_core::GroupFiles;
use potok_flow::TrackPlan;

use super::Wiring;
use crate::failure::Failure;

/// Whose rows are ours lies here: a data folder that is another one has another name.
const IDENTITY: &str = "tracking-id";

/// Where closed groups become files, if they do.
pub(super) fn files(wiring: &Wiring<'_>) -> Option<Arc<dyn GroupFiles>> {
    let files = wiring.pipeline.group.as_ref()?.files.as_ref()?;
    let folder = wiring.connections.data_dir.join("files").join(files.name());
    Some(Arc::new(FolderFiles::new(folder, *files.keep())))
}

/// The plan of `track`, where there is one.
pub(super) fn plan(wiring: &Wiring<'_>) -> Result<Option<TrackPlan>, Failure> {
    let Some(track) = &wiring.pipeline.track else { return Ok(None) };
    let Some((config, [written, process, deliver])) = config(wiring) else {
        return Ok(None);
    };
    let tracker = tracker(&track.db, wiring.connections, config);
    let tracker = tracker.map_err(|fault| Failure::faults(vec![fault]))?;
    Ok(Some(TrackPlan { tracker, written, process, deliver }))
}

/// The statements that make the tables of `track`.
pub(super) fn ddl(wiring: &Wiring<'_>) -> Result<Vec<String>, Failure> {
    let track = wiring.pipeline.track.as_ref().zip(config(wiring));
    let Some((track, (config, _))) = track else { return Ok(Vec::new()) };
    let statements = track_ddl(&track.db, wiring.connections, &config);
    statements.map_err(|fault| Failure::faults(vec![fault]))
}

/// What is tracked, and how many stages are of which step.
fn config(wiring: &Wiring<'_>) -> Option<(TrackConfig, [usize; 3])> {
    let pipeline = wiring.pipeline;
    let (track, group) = pipeline.track.as_ref().zip(pipeline.group.as_ref())?;
    let splits = group.shard.as_ref().and_then(|shard| shard.stage.as_ref());
    let written: Vec<&str> = group.stage.iter().chain(splits).map(std::ops::Deref::deref).collect();
    let process: Vec<&str> = pipeline.process.iter().map(|stage| &*stage.stage).collect();
    let deliver: Vec<&str> =
        pipeline.deliver.iter().filter_map(|deliver| deliver.stage.as_deref()).collect();
    let minutes = |stage: &str| {
        let known = track.stuck.iter().find(|(known, _)| *known == stage);
        known.and_then(|(_, period)| i64::try_from(period.as_secs() / 60).ok())
    };
    let stages = written.iter().chain(&process).chain(&deliver);
    let config = TrackConfig {
        label: format!("pipeline `{}`, track `{}`", pipeline.name, &*track.db),
        table: track.table.to_string(),
        stages: stages.map(|stage| ((*stage).into(), minutes(stage))).collect(),
        create_tables: track.create_tables,
        pipeline: pipeline.name.to_string(),
        log: match &wiring.connections.log {
            LogConnection::Kafka { .. } => LogIdentity::Known("kafka".to_owned()),
            LogConnection::Embedded => {
                LogIdentity::File(wiring.connections.data_dir.join(IDENTITY))
            }
        },
        owner: owner(),
        keep: track.keep.map(|keep| (*keep).max(Duration::from_secs(60))),
    };
    Some((config, [written.len(), process.len(), deliver.len()]))
}

/// Who works here: this machine and process.
fn owner() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), std::process::id()).trim_start_matches(':').to_owned()
}
