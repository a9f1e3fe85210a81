//! One file, read and understood as YAML, with the environment put in.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::env::Env;
use crate::problem::{Findings, Problems, code};
use crate::text::{FILE_BYTES_MAX, SourceText};
use crate::tree::{Entry, Node, Value, parse};

/// A file as a tree.
#[derive(Debug)]
pub(crate) struct Document {
    pub source: Arc<SourceText>,
    pub root: Node,
    /// The folder of the file, to which paths in it are relative.
    pub base_dir: PathBuf,
}

impl Document {
    /// Reads a file. What cannot be read or is not YAML is an error at once; a `${…}` that cannot
    /// be replaced is a finding among those to come.
    pub fn open(path: &Path, env: &Env, findings: &mut Findings) -> Result<Self, Problems> {
        let source = SourceText::read(path)?;
        let base_dir = path.parent().map(Path::to_path_buf).unwrap_or_default();
        let mut refused = Findings::default();
        let Some(mut root) = parse(&source, &mut refused) else {
            return Err(Problems(refused.into_problems(&source)));
        };
        if !matches!(root.value, Value::Map(_)) {
            findings.guess_secrets();
            findings.add_hint(
                code::WRONG_TYPE,
                root.at.clone(),
                "the file is not a map of keys and values",
                "it begins like `name: orders`",
            );
            let findings = std::mem::take(findings);
            return Err(Problems(findings.into_problems(&source)));
        }
        let mut room = FILE_BYTES_MAX as usize;
        root.scalars_mut(&mut |at, scalar| {
            for unset in scalar.substitute(env, &mut room).err().unwrap_or_default() {
                let at = scalar.in_source(at, source.text(), unset.at);
                findings.add_hint(code::ENVIRONMENT, at, unset.what, unset.hint);
            }
        });
        Ok(Document { source: Arc::new(source), root, base_dir })
    }

    /// The entry at a path of keys from the root.
    pub fn entry(&self, path: &[&str]) -> Option<&Entry> {
        let (last, parents) = path.split_last()?;
        parents.iter().try_fold(&self.root, |node, key| node.get(key))?.entry(last)
    }
}
