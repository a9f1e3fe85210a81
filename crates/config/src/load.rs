//! From a path to a checked pipeline: read, walk beside the schema, apply the rules, read the
//! JSON Schema it names, and only then deserialize.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use potok_expr::Places;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::check::conform;
use crate::document::Document;
use crate::env::Env;
use crate::own_topics;
use crate::pipeline::Pipeline;
use crate::problem::{Findings, Problem, Problems, code};
use crate::registry::Registry;
use crate::settings::Settings;
use crate::text::{FILE_BYTES_MAX, read_bounded};
use crate::tree::{Entry, Node, Value};
use crate::{rules, schema};

/// A file that was loaded, and where from.
#[derive(Debug)]
pub struct LoadedFile<T> {
    /// What it says.
    pub value: T,
    /// Its path as it was given.
    pub file: PathBuf,
    /// Its folder, to which paths in it are relative.
    pub base_dir: PathBuf,
    /// The JSON Schema of `decode.schema`, known to be one.
    pub schema: Option<Arc<Json>>,
    /// What runs and probably does not do what was meant.
    pub warnings: Vec<Problem>,
    pub(crate) document: Document,
}

impl<T> Deref for LoadedFile<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl LoadedFile<Pipeline> {
    /// The file, and the schema that it names.
    pub fn files(&self) -> Vec<PathBuf> {
        let schema = self.decode.schema.iter().map(|schema| self.base_dir.join(schema));
        std::iter::once(self.file.clone()).chain(schema).collect()
    }

    /// Tells the text of this file from another, in every process alike.
    pub fn fingerprint(&self) -> u64 {
        // FNV-1a: what it is for needs no more, and it must never change.
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        self.document.source.text().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step)
    }

    /// What checks records against `decode.schema`. See [`schema::validator`].
    pub fn validator(&self) -> Option<jsonschema::Validator> {
        // It was built once already, when the file was loaded.
        self.schema.as_deref().and_then(|schema| schema::validator(schema).ok())
    }

    /// How to call the place of a byte in the program of a stage: `orders.yaml:12:9`.
    pub fn program_places(&self, stage: usize) -> Option<Places> {
        let stages = self.document.root.get("process").map(Node::one_or_many)?;
        let Node { value: Value::Scalar(scalar), at } = stages.get(stage)?.get("vrl")? else {
            return None;
        };
        let (scalar, at, source) = (scalar.clone(), at.clone(), self.document.source.clone());
        Some(Arc::new(move |byte| {
            let place = scalar.in_source(&at, source.text(), byte..byte + 1);
            let (line, column) = source.place(place.start);
            format!("{}:{line}:{column}", source.file())
        }))
    }

    /// A problem of an entry of a section that shows only when it is built, at the first of these
    /// keys that it has; `rows.items` is a key below a key.
    pub fn problem_of(
        &self,
        section: &str,
        index: usize,
        keys: &[&str],
        code: &'static str,
        what: &str,
        hint: Option<&str>,
    ) -> Problem {
        let entries = self.document.root.get(section).map(Node::one_or_many);
        let node = entries.and_then(|entries| entries.get(index));
        let entry = |key: &&str| {
            let mut steps = key.split('.');
            let first = node?.entry(steps.next()?)?;
            steps.try_fold(first, |entry, step| entry.value.entry(step))
        };
        let at = match (keys.iter().find_map(entry), node) {
            (Some(entry), _) if entry.value.is_map() => entry.key_at.clone(),
            (Some(entry), _) => entry.value.at.clone(),
            (None, Some(node)) => node.at.start..node.at.start + 1,
            (None, None) => 0..0,
        };
        let mut findings = Findings::default();
        match hint {
            Some(hint) => findings.add_hint(code, at, what, hint),
            None => findings.add(code, at, what),
        }
        let mut problems = findings.into_problems(&self.document.source);
        problems.pop().unwrap_or_else(|| Problem::elsewhere(code, &*self.name, what, None))
    }
}

/// True for a file with connections instead of a pipeline: `potok.yaml` beside the pipelines.
pub fn holds_connections(path: &Path, env: &Env, registry: &Registry) -> bool {
    let document = Document::open(path, env, &mut Findings::default());
    document.is_ok_and(|document| is_connections(&document.root, path, registry))
}

fn is_connections(root: &Node, path: &Path, registry: &Registry) -> bool {
    // What every pipeline has: with one of these it is a pipeline, whatever else is wrong.
    let is_pipeline = ["name", "source", "deliver"].iter().any(|key| root.get(key).is_some());
    let known = registry.connections_schema().get("properties").and_then(Json::as_object);
    let is_known = |key: &str| known.is_some_and(|known| known.contains_key(key));
    let named_so = path.file_name().is_some_and(|name| name == "potok.yaml");
    !is_pipeline && (named_so || root.entries().iter().any(|entry| is_known(&entry.key)))
}

/// Loads a pipeline file; every problem at once.
pub fn load_pipeline(
    path: &Path,
    env: &Env,
    registry: &Registry,
) -> Result<LoadedFile<Pipeline>, Problems> {
    let mut findings = Findings::default();
    let document = Document::open(path, env, &mut findings)?;
    let one = |what: &str, hint: &str| {
        let mut findings = Findings::default();
        findings.add_hint(code::MISSING, 0..0, what, hint);
        Err(Problems(findings.into_problems(&document.source)))
    };
    if is_connections(&document.root, path, registry) {
        let hint = "give it with `--config`; a pipeline has `name`, `source` and `deliver`";
        return one("this file has connections, and no pipeline", hint);
    }
    if document.root.entries().is_empty() {
        return one("the file is empty", "`potok new NAME` writes one to begin with");
    }
    let schema = registry.pipeline_schema();
    let mut json = conform(&document.root, &document.source, schema, registry, &mut findings);
    let settings = Settings::take(&document, &mut json, registry, &mut findings);
    rules::check(&document.root, &document.source, schema, &mut findings);
    let schema = match document.entry(&["decode", "schema"]) {
        Some(entry) => read_schema(entry, &document.base_dir, &mut findings),
        None => None,
    };
    let mut value: Pipeline = finish(json, &document, findings)?;
    settings.put_into(&mut value);
    let mut unknown = Findings::default();
    if let Some(schema) = &schema {
        rules::fields(&document.root, schema, &mut unknown);
    }
    Ok(LoadedFile {
        value,
        warnings: unknown.into_warnings(&document.source),
        file: path.to_path_buf(),
        base_dir: document.base_dir.clone(),
        schema: schema.map(Arc::new),
        document,
    })
}

/// Deserializes what was found good.
pub(crate) fn finish<T: DeserializeOwned>(
    json: Json,
    document: &Document,
    findings: Findings,
) -> Result<T, Problems> {
    if !findings.is_empty() {
        return Err(Problems(findings.into_problems(&document.source)));
    }
    // The walk accepted it, so this fails only where schema and struct differ: a mistake of ours,
    // told without the values, which may be secret.
    serde_json::from_value(json).map_err(|_| {
        let file = document.source.file();
        let what = "the file was checked and still cannot be used: please report this";
        Problem::elsewhere(code::WRONG_TYPE, file, what, None).into()
    })
}

/// Reads the file of `decode.schema`.
fn read_schema(entry: &Entry, base_dir: &Path, findings: &mut Findings) -> Option<Json> {
    let path = base_dir.join(entry.value.text()?);
    let read = match read_bounded(&path) {
        Ok(Some(bytes)) => serde_json::from_slice::<Json>(&bytes)
            .map_err(|error| format!("`{}` is not JSON: {error}", path.display()))
            .and_then(|json| match schema::validator(&json) {
                Ok(_) => Ok(json),
                Err(why) => Err(format!("`{}` is not a JSON Schema: {why}", path.display())),
            }),
        Ok(None) => {
            Err(format!("`{}` is larger than {} MiB", path.display(), FILE_BYTES_MAX >> 20))
        }
        Err(error) => Err(format!("`{}` cannot be read: {error}", path.display())),
    };
    read.map_err(|what| {
        let hint = "the path is relative to this file; a JSON Schema is a JSON object";
        findings.add_hint(code::SCHEMA_FILE, entry.value.at.clone(), what, hint);
    })
    .ok()
}

/// What two pipelines cannot both be in one process: the same name, progress under the same
/// consumer group, one outbox table, dead letters in the same topic. Reported in the later file.
pub fn check_together(pipelines: &[LoadedFile<Pipeline>]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, later) in pipelines.iter().enumerate() {
        for earlier in pipelines.iter().take(index) {
            let mut findings = Findings::default();
            let file = earlier.file.display();
            let clash = [
                (later.name == earlier.name, "name", &["name"][..], "name"),
                (
                    later
                        .consumer_groups()
                        .iter()
                        .any(|group| earlier.consumer_groups().contains(group)),
                    "consumer group",
                    &["source", "consumer_group"][..],
                    "name",
                ),
                (
                    later.http_paths().any(|path| earlier.http_paths().any(|other| other == path)),
                    "path for HTTP requests",
                    &["source", "http"][..],
                    "source",
                ),
                (
                    later.sole_sources().any(|one| earlier.sole_sources().any(|of| of == one)),
                    "table as the source",
                    &["source", "outbox"][..],
                    "source",
                ),
                (
                    later.dead_letter_topic() == earlier.dead_letter_topic(),
                    "topic for dead letters",
                    &["dead_letter", "topic"][..],
                    "name",
                ),
            ];
            // One name for both makes the other two follow: the first is the cause.
            if let Some((_, what, path, other)) = clash.into_iter().find(|(same, ..)| *same) {
                let entry = later.document.entry(path).or_else(|| later.document.entry(&[other]));
                let at = entry.map_or(0..0, |entry| entry.value.at.clone());
                let what = format!("the same {what} as in {file}");
                findings.add_hint(code::SAME_NAME, at, what, "each pipeline has its own");
            } else if let Some((what, path)) = own_topics::clash(later, earlier) {
                let entry = later.document.entry(path).or_else(|| later.document.entry(&["name"]));
                let at = entry.map_or(0..0, |entry| entry.value.at.clone());
                let what = format!("{what} (in {file})");
                findings.add_hint(code::OWN_TOPIC, at, what, "use another topic");
            }
            problems.extend(findings.into_problems(&later.document.source));
        }
    }
    problems
}
