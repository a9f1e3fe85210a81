//! The files that pipelines were started from: whoever replays wants to know that the process runs
//! what the file says now.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// The files of pipelines, as they were at the start.
#[derive(Debug, Default)]
pub(crate) struct PipelineFiles(BTreeMap<String, Vec<(PathBuf, Option<u64>)>>);

impl PipelineFiles {
    /// Notes what the files say now.
    pub fn new(files: impl IntoIterator<Item = (String, Vec<PathBuf>)>) -> Self {
        let noted = files.into_iter().map(|(pipeline, files)| {
            let files = files.into_iter().map(|file| (file.clone(), content(&file)));
            (pipeline, files.collect())
        });
        PipelineFiles(noted.collect())
    }

    /// A file of the pipeline that says something else by now.
    pub fn changed(&self, pipeline: &str) -> Option<&Path> {
        let files = self.0.get(pipeline)?;
        let changed = files.iter().find(|(file, before)| content(file) != *before);
        changed.map(|(file, _)| file.as_path())
    }
}

/// A hash of what a file says; `None` where it cannot be read.
fn content(file: &Path) -> Option<u64> {
    let bytes = std::fs::read(file).ok()?;
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    Some(hasher.finish())
}
