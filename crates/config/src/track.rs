//! `files` of the step `group`, and `track` of a pipeline file.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::shapes::OrderedMap;
use crate::values::{ConnectionName, Period, SqlName};

/// How closed groups become files.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Files {
    /// In the folder of that name, kept for seven days.
    Name(ConnectionName),
    /// The same in full.
    Settings(FilesSettings),
}

impl Files {
    /// The folder, under `files` of the data folder.
    pub fn name(&self) -> &str {
        match self {
            Files::Name(name) => name,
            Files::Settings(settings) => &settings.name,
        }
    }

    /// How long a file is kept.
    pub fn keep(&self) -> Period {
        match self {
            Files::Name(_) => files_keep(),
            Files::Settings(settings) => settings.keep,
        }
    }
}

/// A folder of files.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesSettings {
    /// The folder, under `files` of the data folder.
    ///
    /// Example: `name: shop-events`
    pub name: ConnectionName,
    /// How long a file is kept after it was written. One whose group has not been delivered stays.
    ///
    /// Example: `keep: 7d`
    #[serde(default = "files_keep")]
    pub keep: Period,
}

/// How long files are kept where nobody says it.
pub(crate) fn files_keep() -> Period {
    Period::secs(7 * 24 * 3600)
}

/// Where it is shown how far each file has come. It is a view: what happens is decided by the log.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Track {
    /// The database, by its name in `potok.yaml` under `db`: SQLite, MariaDB or MySQL.
    ///
    /// Example: `db: tracking`
    #[serde(default = "tracking")]
    pub db: ConnectionName,
    /// The table: a row for each file and shard, with a column `…_status` for each `stage` of
    /// `group`, `group.shard`, `process` and `deliver`. What potok notes besides lies in the table
    /// `potok_tracking`, or `potok_` and this name.
    ///
    /// Example: `table: pipeline_tracking`
    #[serde(default = "pipeline_tracking")]
    pub table: SqlName,
    /// After how many minutes in `started` a stage is stuck: `potok stuck` lists those files.
    ///
    /// Example: `stuck: { event_ingest: 5m, mysql_sender: 5m }`
    #[serde(default)]
    pub stuck: OrderedMap<Period>,
    /// How long the rows of a file are kept after it has ended in all its stages: at least a minute,
    /// and at least as long as the file itself. Without it they are kept for ever.
    ///
    /// Example: `keep: 30d`
    pub keep: Option<Period>,
    /// Creates missing tables at start. `potok ddl` prints the statements.
    ///
    /// Example: `create_tables: true`
    #[serde(default)]
    pub create_tables: bool,
}

#[allow(clippy::expect_used, reason = "checked by a test")]
fn tracking() -> ConnectionName {
    ConnectionName::parse("tracking").expect("a name")
}

#[allow(clippy::expect_used, reason = "checked by a test")]
fn pipeline_tracking() -> SqlName {
    SqlName::parse("pipeline_tracking").expect("a name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_nobody_gives_are_names() {
        assert_eq!((&*tracking(), &*pipeline_tracking()), ("tracking", "pipeline_tracking"));
    }
}
