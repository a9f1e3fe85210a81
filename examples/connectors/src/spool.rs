//! A feed: each file of a folder is a record, and is removed when the record has ended.
//!
//! The folder remembers what is left to do, so a restart hands out what is still there. Deliveries
//! are named after the file, so that what is delivered again after a crash has the same id.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use potok_config::{FeedSettings, Period, Refusal, Site};
use potok_core::{
    Assignment, Backlog, Fault, Feed, FeedCommit, FeedFacts, Headers, Log, OpenFeed, Partition,
    PartitionEnd, PipelineInfo, Position, Progress, RangeSet, Record, Source, SourceBatch,
    SourceEvent, Timestamp,
};
use schemars::JsonSchema;
use serde::Deserialize;

/// The files of a folder: each is a record, and is removed when the record has ended.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpoolSettings {
    /// The folder. Whoever puts a file there moves it in when it is complete.
    ///
    /// Example: `spool: inbox`
    spool: String,
    /// How often the folder is looked at.
    ///
    /// Example: `every: 1s`
    #[serde(default = "half_a_second")]
    every: Period,
}

fn half_a_second() -> Period {
    Period::ms(500)
}

impl FeedSettings for SpoolSettings {
    fn label(&self) -> &str {
        &self.spool
    }

    fn build(&self, _site: &Site<'_>) -> Result<Arc<dyn Feed>, Vec<Refusal>> {
        Ok(Arc::new(Spool { folder: PathBuf::from(&self.spool), every: *self.every }))
    }
}

struct Spool {
    folder: PathBuf,
    every: Duration,
}

/// The files in a folder, by name.
fn files(folder: &Path) -> Result<BTreeSet<String>, Fault> {
    let cannot = |error: std::io::Error| {
        Fault::wait(format!("the folder {} cannot be read", folder.display())).because(error)
    };
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        if entry.file_type().map_err(cannot)?.is_file() {
            files.extend(entry.file_name().into_string());
        }
    }
    Ok(files)
}

#[async_trait]
impl Feed for Spool {
    async fn open(&self, _info: &PipelineInfo, _log: Arc<dyn Log>) -> Result<OpenFeed, Fault> {
        let taken = Arc::new(OpenFiles { folder: self.folder.clone(), files: Mutex::default() });
        let source = SpoolSource {
            taken: taken.clone(),
            every: self.every,
            assigned: false,
            paused: false,
            next: 0,
        };
        Ok(OpenFeed { source: Box::new(source), progress: taken })
    }

    async fn backlog(&self) -> Result<Backlog, Fault> {
        let records = files(&self.folder)?.len() as u64;
        Ok(Backlog { records, ..Backlog::default() })
    }
}

/// The files that were handed out and have not ended, by offset.
struct OpenFiles {
    folder: PathBuf,
    files: Mutex<BTreeMap<u64, String>>,
}

/// There is one partition, and nobody takes it away: one process works in a folder.
const ASSIGNMENT: u64 = 1;

fn partition() -> Partition {
    Partition { topic: "spool".into(), index: 0 }
}

#[async_trait]
impl Progress for OpenFiles {
    /// Called when everything that came of the records is durable. A file that is gone already was
    /// noted before.
    async fn commit(&self, commit: &FeedCommit) -> Result<(), Fault> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = commit.ended.iter().filter(|ended| ended.assignment == ASSIGNMENT);
        for offset in ended.flat_map(|ended| ended.ranges.iter().cloned()).flatten() {
            let Some(name) = files.get(&offset) else { continue };
            if let Err(error) = std::fs::remove_file(self.folder.join(name))
                && error.kind() != std::io::ErrorKind::NotFound
            {
                return Err(Fault::wait(format!("{name} cannot be removed")).because(error));
            }
            files.remove(&offset);
        }
        // What is given back is handed out again: it is no longer taken.
        let back = commit.given_back.iter().filter(|back| back.assignment == ASSIGNMENT);
        for offset in back.flat_map(|back| back.ranges.iter().cloned()).flatten() {
            files.remove(&offset);
        }
        Ok(())
    }
}

struct SpoolSource {
    taken: Arc<OpenFiles>,
    every: Duration,
    assigned: bool,
    paused: bool,
    next: u64,
}

impl SpoolSource {
    /// The first file that was not handed out yet.
    fn take(&mut self) -> Result<Option<SourceBatch>, Fault> {
        let mut taken = self.taken.files.lock().unwrap_or_else(PoisonError::into_inner);
        let new = files(&self.taken.folder)?;
        let new = new.into_iter().find(|name| !taken.values().any(|taken| taken == name));
        let Some(name) = new else { return Ok(None) };
        let path = self.taken.folder.join(&name);
        let read = std::fs::read(&path).and_then(|value| Ok((value, path.metadata()?.modified()?)));
        let (value, modified) = read.map_err(|error| {
            Fault::wait(format!("{} cannot be read", path.display())).because(error)
        })?;
        let time = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        let offset = self.next;
        self.next += 1;
        taken.insert(offset, name.clone());
        let record = Record {
            offset,
            time: Timestamp(i64::try_from(time.as_millis()).unwrap_or(i64::MAX)),
            key: Some(Bytes::from(name.clone())),
            headers: Headers::none(),
            value: Some(Bytes::from(value)),
        };
        let named = Position { log: 0, topic: name.into(), partition: 0, offset: 0 };
        Ok(Some(SourceBatch {
            partition: partition(),
            log: 0,
            assignment: ASSIGNMENT,
            first: offset,
            next: offset + 1,
            records: vec![record],
            order: None,
            feed: Some(Box::new(FeedFacts { origins: Some(vec![(named, 0)]), whole: None })),
        }))
    }
}

#[async_trait]
impl Source for SpoolSource {
    async fn next(&mut self) -> Result<SourceEvent, Fault> {
        if !self.assigned {
            self.assigned = true;
            return Ok(SourceEvent::Assigned(vec![Assignment {
                partition: partition(),
                nonce: ASSIGNMENT,
                start: 0,
                ended: RangeSet::default(),
            }]));
        }
        loop {
            if !self.paused
                && let Some(batch) = self.take()?
            {
                return Ok(SourceEvent::Batch(batch));
            }
            // Cancelling here loses nothing: nothing was taken.
            tokio::time::sleep(self.every).await;
        }
    }

    fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    fn ends(&self) -> Vec<PartitionEnd> {
        vec![PartitionEnd { partition: partition(), end: self.next }]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use potok_core::SystemClock;
    use potok_testkit::memory::MemoryLog;
    use potok_testkit::suites::feed::{FeedHarness, run_all};
    use tempfile::TempDir;

    use super::*;

    #[derive(Default)]
    struct Spools(Mutex<Option<(TempDir, usize)>>);

    #[async_trait]
    impl FeedHarness for Spools {
        async fn fresh(&self) -> Result<Arc<dyn Feed>, String> {
            *self.0.lock().unwrap() = Some((tempfile::tempdir().unwrap(), 0));
            self.another().await
        }

        async fn another(&self) -> Result<Arc<dyn Feed>, String> {
            let folder = self.0.lock().unwrap().as_ref().unwrap().0.path().to_owned();
            Ok(Arc::new(Spool { folder, every: Duration::from_millis(5) }))
        }

        async fn fill(&self, records: &[(&str, &str)]) -> Result<(), String> {
            let mut folder = self.0.lock().unwrap();
            let (folder, count) = folder.as_mut().unwrap();
            for (key, value) in records {
                *count += 1;
                std::fs::write(folder.path().join(format!("{count:04}-{key}")), value).unwrap();
            }
            Ok(())
        }

        fn key_of(&self, record: &Record) -> String {
            let name = String::from_utf8_lossy(record.key.as_deref().unwrap_or_default());
            name.split_once('-').map_or_else(String::new, |(_, key)| key.to_owned())
        }

        async fn log(&self) -> Result<Arc<dyn Log>, String> {
            Ok(Arc::new(MemoryLog::new(Arc::new(SystemClock))))
        }

        /// One process works in a folder.
        fn is_fenced(&self) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn it_keeps_what_is_asked_of_a_feed() {
        run_all(&Spools::default()).await.unwrap();
    }
}
