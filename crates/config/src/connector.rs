//! What a connector tells configuration: the keys it takes, which of them do not fit together, and
//! what they build. A [`crate::Registry`] is the list of those that a program has.
//!
//! Settings are a plain struct with serde and schemars, beside the code of the connector. Its
//! comments are the reference, its types are checked when a file is loaded, and what types cannot
//! say is said by `check`, with a place in the file. Nothing here connects to anything: a connector
//! that was built does so when it is called first.

use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use potok_core::{Fault, Feed, Sink, Stage};
use potok_expr::Template;
use serde_json::Value as Json;

use crate::connections::Connections;
use crate::problem::{Findings, code};
use crate::tree::{Entry, Node};

/// The settings of a destination: the keys of an entry under `deliver` that are its own.
pub trait SinkSettings: Debug + Send + Sync {
    /// What messages and metrics call the destination where its entry has no name, e.g. the name
    /// of its connection.
    fn label(&self) -> &str;

    /// Refuses keys that do not fit together. Called when each of them is good for itself.
    fn check(&self, _entry: &mut EntryCheck<'_>) {}

    /// Builds the destination; everything that is in the way at once. Connects to nothing.
    fn build(&self, site: &Site<'_>) -> Result<Destination, Vec<Refusal>>;

    /// True where each shard has a destination of its own: it is built once for each, and
    /// `Site.shard` says for which.
    fn is_sharded(&self) -> bool {
        false
    }

    /// True where the shard of the site is set up, though `group.shard` may not count it any more:
    /// groups that were sealed for it go there.
    fn has_shard(&self, _site: &Site<'_>) -> bool {
        false
    }

    /// The SQL statements that make its tables, for `potok ddl`.
    fn ddl(&self, _site: &Site<'_>) -> Result<Vec<String>, Vec<Fault>> {
        Ok(Vec::new())
    }
}

/// Where an entry of `deliver` leads, once its connection is known.
pub enum Destination {
    /// A system outside the log.
    Sink(Arc<dyn Sink>),
    /// A topic of the log: a named connection that nobody has set.
    Topic(Arc<str>),
}

impl<S: Sink + 'static> From<S> for Destination {
    fn from(sink: S) -> Self {
        Destination::Sink(Arc::new(sink))
    }
}

/// The settings of a stage: the keys of an entry under `process` that are its own.
pub trait StageSettings: Debug + Send + Sync {
    /// Refuses keys that do not fit together. Called when each of them is good for itself.
    fn check(&self, _entry: &mut EntryCheck<'_>) {}

    /// Builds the stage; everything that is in the way at once. Connects to nothing.
    fn build(&self, site: &Site<'_>) -> Result<Arc<dyn Stage>, Vec<Refusal>>;
}

/// The settings of a feed: the keys of an entry under `source` that are its own.
pub trait FeedSettings: Debug + Send + Sync {
    /// What messages and `status` call the feed, e.g. the name of its table or list.
    fn label(&self) -> &str;

    /// Refuses keys that do not fit together. Called when each of them is good for itself.
    fn check(&self, _entry: &mut EntryCheck<'_>) {}

    /// Builds the feed; everything that is in the way at once. Connects to nothing.
    fn build(&self, site: &Site<'_>) -> Result<Arc<dyn Feed>, Vec<Refusal>>;

    /// True where records that cannot be delivered stay in the feed, as dead letters that it keeps
    /// itself (`dead_letter.table`).
    fn keeps_dead_letters(&self) -> bool {
        false
    }

    /// What two pipelines of a process cannot both have as their source, e.g. a table; none where they
    /// can.
    fn sole(&self) -> Option<String> {
        None
    }

    /// The settings themselves, for commands that are about this connector only.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

/// Keys that entries have in common, for connectors that make use of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommonKey {
    /// `key` of a delivery: what `Message.key` is.
    Key,
    /// `once_by` of a delivery: what `Message.once` is.
    OnceBy,
    /// `per` of a stage: the stage can be called with whole groups.
    Per,
}

impl CommonKey {
    /// Every common key, in the order of the reference.
    pub(crate) const ALL: [CommonKey; 3] = [CommonKey::Key, CommonKey::OnceBy, CommonKey::Per];

    /// As it is written.
    pub(crate) fn word(self) -> &'static str {
        match self {
            CommonKey::Key => "key",
            CommonKey::OnceBy => "once_by",
            CommonKey::Per => "per",
        }
    }
}

/// A map of named connections in `potok.yaml`, such as `db`: each name leads to one line of text.
#[derive(Clone, Copy)]
pub struct ConnectionKind {
    /// The key in `potok.yaml`.
    pub key: &'static str,
    /// What the environment variables begin with: `POTOK_DB_`, followed by the name in capitals.
    pub variable: &'static str,
    /// For the reference, with an example: ``Databases by name. Example: `db: { orders: sqlite }` ``
    pub description: &'static str,
    /// Refuses a text that is no setting. Must not repeat it: it may hold a password.
    pub check: fn(&str) -> Result<(), Misfit>,
}

/// Why a text is no setting.
#[derive(Clone, Debug)]
pub struct Misfit {
    /// What is wrong, without the text itself.
    pub what: String,
    /// What to write instead.
    pub hint: String,
}

/// Where a connector is built: what the file and `potok.yaml` say besides its own keys.
pub struct Site<'a> {
    /// The name of the pipeline.
    pub pipeline: &'a str,
    /// What to call the connector in messages: ``pipeline `orders`, deliver `orders` ``.
    pub label: String,
    /// What potok.yaml says, with defaults filled in.
    pub connections: &'a Connections,
    /// The JSON Schema of records, where the pipeline has one.
    pub schema: Option<&'a Json>,
    /// `once_by` of the entry.
    pub once_by: Vec<Template>,
    /// The shard it is for, where it is for one.
    pub shard: Option<u32>,
    /// What the pipeline keeps in order, for feeds that hold records of a key back.
    pub order_key: Option<Template>,
    /// The table of dead letters, where the pipeline names one.
    pub dead_table: Option<&'a str>,
    /// Tells this pipeline file from an earlier one, in every process alike.
    pub file_hash: u64,
}

/// Why a connector cannot be built.
#[derive(Debug)]
pub struct Refusal {
    /// The key of the entry that is meant, such as `table` or `rows.items`; `None` where the fault
    /// lies outside the file.
    pub keys: Vec<String>,
    /// What is wrong.
    pub fault: Fault,
}

impl Refusal {
    /// A fault in the file, at the first of these keys that the entry has.
    pub fn at<K: Into<String>>(keys: impl IntoIterator<Item = K>, fault: Fault) -> Self {
        Refusal { keys: keys.into_iter().map(Into::into).collect(), fault }
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Refusal { keys: Vec::new(), fault }
    }
}

/// An entry of a pipeline file while its connector looks at it.
///
/// A place is a dotted path from the entry: `rows.items`, `once_by.0`.
pub struct EntryCheck<'a> {
    pub(crate) root: &'a Node,
    pub(crate) node: &'a Node,
    pub(crate) findings: &'a mut Findings,
}

impl EntryCheck<'_> {
    /// True where the entry has a key, its own or a common one.
    pub fn has(&self, path: &str) -> bool {
        self.entry(path).is_some()
    }

    /// The texts of a key that holds one or a list of them.
    pub fn texts(&self, path: &str) -> Vec<&str> {
        let nodes = self.entry(path).map(|entry| entry.value.one_or_many()).unwrap_or_default();
        nodes.iter().filter_map(Node::text).collect()
    }

    /// True where `group.shard` spreads records over shards.
    pub fn has_shards(&self) -> bool {
        self.root.get("group").is_some_and(|group| group.get("shard").is_some())
    }

    /// True where the pipeline groups records.
    pub fn has_group(&self) -> bool {
        self.root.get("group").is_some()
    }

    /// How many sources the pipeline has.
    pub fn sources(&self) -> usize {
        self.root.get("source").map_or(0, |source| source.one_or_many().len())
    }

    /// For each delivery of the pipeline: `topic`, or else.
    pub fn delivers(&self) -> Vec<&'static str> {
        let delivers = self.root.get("deliver").map(Node::one_or_many).unwrap_or_default();
        let kind = |deliver: &Node| if deliver.get("topic").is_some() { "topic" } else { "other" };
        delivers.iter().map(kind).collect()
    }

    /// True where records are raw bytes, which have no fields.
    pub fn is_raw(&self) -> bool {
        let format = self.root.get("decode").and_then(|decode| decode.get("format"));
        format.and_then(Node::text) == Some("raw")
    }

    /// True where `decode.schema` says how records look.
    pub fn has_schema(&self) -> bool {
        self.root.get("decode").is_some_and(|decode| decode.get("schema").is_some())
    }

    /// Refuses the file for what stands at a key.
    pub fn refuse(&mut self, path: &str, what: impl Into<String>, hint: &str) {
        self.refuse_as(code::SETTING, path, what, hint);
    }

    /// The same under a code that has a page of its own.
    pub fn refuse_as(
        &mut self,
        code: &'static str,
        path: &str,
        what: impl Into<String>,
        hint: &str,
    ) {
        let at = self.entry(path).map(|entry| entry.key_at.clone());
        let at = at.or_else(|| self.element(path)).unwrap_or_else(|| self.start());
        self.findings.add_hint(code, at, what, hint);
    }

    fn entry(&self, path: &str) -> Option<&Entry> {
        let mut steps = path.split('.');
        let first = self.node.entry(steps.next()?)?;
        steps.try_fold(first, |entry, step| entry.value.entry(step))
    }

    /// The value at a path that ends in a number: one of a list, or the one there is.
    fn element(&self, path: &str) -> Option<Range<usize>> {
        let (path, index) = path.rsplit_once('.')?;
        let nodes = self.entry(path)?.value.one_or_many();
        nodes.get(index.parse::<usize>().ok()?).map(|node| node.at.clone())
    }

    fn start(&self) -> Range<usize> {
        self.node.at.start..self.node.at.start + 1
    }
}
