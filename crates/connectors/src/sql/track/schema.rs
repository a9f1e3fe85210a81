//! The two tables: the statements that make them, and whether those that are there will do.

use std::fmt::Write as _;

use potok_core::Fault;

use super::TrackConfig;
use crate::sql::Dialect;

/// The table that the description names, and the one beside it.
const DOCUMENTED: &str = "pipeline_tracking";
const BESIDE: &str = "potok_tracking";

/// The tables of one tracker.
#[derive(Clone, Debug)]
pub(crate) struct TrackTables {
    pub table: String,
    /// What potok notes besides.
    pub beside: String,
    /// The tracked stages.
    pub stages: Vec<String>,
    label: String,
}

/// What a database has of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct FoundTracking {
    /// Columns of the table: name, declared type, and whether it follows changes by itself. None
    /// where there is no such table.
    pub columns: Vec<(String, String, bool)>,
    /// Columns of unique keys of the table, each sorted.
    pub unique: Vec<Vec<String>>,
    /// Columns of the table beside it.
    pub beside: Vec<String>,
    /// SQLite: the trigger that keeps `updated_at` is there.
    pub follows: bool,
}

impl TrackTables {
    pub fn new(config: &TrackConfig) -> Self {
        let beside = match config.table.as_str() {
            DOCUMENTED => BESIDE.to_owned(),
            other => format!("potok_{other}"),
        };
        TrackTables {
            table: config.table.clone(),
            beside,
            stages: config.stages.iter().map(|(stage, _)| stage.to_string()).collect(),
            label: config.label.clone(),
        }
    }

    /// The columns with the states.
    pub fn statuses(&self) -> impl Iterator<Item = String> {
        self.stages.iter().map(|stage| format!("{stage}_status"))
    }

    pub fn trigger(&self) -> String {
        format!("{}_updated_at", self.table)
    }

    /// The statements that create the tables. Repeatable.
    pub fn ddl(&self, dialect: Dialect) -> Vec<String> {
        match dialect {
            Dialect::Mysql => vec![self.mysql(), self.mysql_beside()],
            Dialect::Sqlite | Dialect::Postgres => {
                vec![self.sqlite(), self.sqlite_trigger(), self.sqlite_beside()]
            }
        }
    }

    fn mysql(&self) -> String {
        let quote = |name: &str| Dialect::Mysql.quote(name);
        let mut sql = format!(
            "CREATE TABLE IF NOT EXISTS {} (\n  `id` BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY \
             KEY,\n  `filename` VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,\n  \
             `shard` INT NOT NULL,\n",
            quote(&self.table)
        );
        // Writing to a String does not fail.
        for status in self.statuses() {
            let _ = writeln!(
                sql,
                "  {} ENUM('new','started','done','failed') NOT NULL DEFAULT 'new',",
                quote(&status)
            );
        }
        sql.push_str(
            "  `created_at` TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,\n  `updated_at` TIMESTAMP \
             NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,\n  UNIQUE KEY \
             (`filename`, `shard`)",
        );
        if let Some(last) = self.statuses().last() {
            let _ = write!(sql, ",\n  KEY ({})", quote(&last));
        }
        for status in self.statuses() {
            let _ = write!(sql, ",\n  CHECK ({} <> '')", quote(&status));
        }
        sql.push_str("\n) ENGINE=InnoDB");
        sql
    }

    fn mysql_beside(&self) -> String {
        let mut sql = format!(
            "CREATE TABLE IF NOT EXISTS {} (\n  `filename` VARCHAR(64) CHARACTER SET ascii COLLATE \
             ascii_bin NOT NULL,\n  `shard` INT NOT NULL,\n  `pipeline` VARCHAR(128) NOT NULL,\n  \
             `log` VARCHAR(64) NOT NULL,\n  `shards` INT NOT NULL,\n  `seal` VARBINARY(500) NULL \
             DEFAULT NULL,\n  `owner` VARCHAR(128) NULL DEFAULT NULL,\n  `finished_at` TIMESTAMP(3) \
             NULL DEFAULT NULL,\n",
            Dialect::Mysql.quote(&self.beside)
        );
        for count in ["records", "rows", "duplicates", "filtered", "dead"] {
            let _ = writeln!(sql, "  `{count}` BIGINT NULL DEFAULT NULL,");
        }
        sql.push_str(
            "  `attempts` INT NOT NULL DEFAULT 0,\n  `error` TEXT NULL,\n  `hash` CHAR(64) CHARACTER \
             SET ascii COLLATE ascii_bin NULL DEFAULT NULL,\n",
        );
        for stage in &self.stages {
            for moment in ["started", "done"] {
                let column = Dialect::Mysql.quote(&format!("{stage}_{moment}_at"));
                let _ = writeln!(sql, "  {column} TIMESTAMP(3) NULL DEFAULT NULL,");
            }
        }
        sql.push_str(
            "  PRIMARY KEY (`filename`, `shard`),\n  UNIQUE KEY (`seal`),\n  KEY (`finished_at`)\n) \
             ENGINE=InnoDB DEFAULT CHARSET=utf8mb4",
        );
        sql
    }

    fn sqlite(&self) -> String {
        let quote = |name: &str| Dialect::Sqlite.quote(name);
        let mut sql = format!(
            "CREATE TABLE IF NOT EXISTS {} (\n  \"id\" INTEGER PRIMARY KEY AUTOINCREMENT,\n  \
             \"filename\" TEXT NOT NULL,\n  \"shard\" INTEGER NOT NULL,\n",
            quote(&self.table)
        );
        for status in self.statuses() {
            let status = quote(&status);
            let _ = writeln!(
                sql,
                "  {status} TEXT NOT NULL DEFAULT 'new' CHECK ({status} IN \
                 ('new','started','done','failed')),"
            );
        }
        sql.push_str(
            "  \"created_at\" TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,\n  \"updated_at\" TEXT NOT \
             NULL DEFAULT CURRENT_TIMESTAMP,\n  UNIQUE (\"filename\", \"shard\")\n)",
        );
        sql
    }

    /// SQLite has no columns that follow changes by themselves.
    fn sqlite_trigger(&self) -> String {
        let quote = |name: &str| Dialect::Sqlite.quote(name);
        let columns: Vec<String> = self.statuses().map(|status| quote(&status)).collect();
        let differs: Vec<String> =
            columns.iter().map(|column| format!("OLD.{column} <> NEW.{column}")).collect();
        let table = quote(&self.table);
        format!(
            "CREATE TRIGGER IF NOT EXISTS {} AFTER UPDATE OF {} ON {table}\nFOR EACH ROW WHEN \
             {}\nBEGIN\n  UPDATE {table} SET \"updated_at\" = CURRENT_TIMESTAMP WHERE \"id\" = \
             NEW.\"id\";\nEND",
            quote(&self.trigger()),
            columns.join(", "),
            differs.join(" OR ")
        )
    }

    fn sqlite_beside(&self) -> String {
        let quote = |name: &str| Dialect::Sqlite.quote(name);
        let mut sql = format!(
            "CREATE TABLE IF NOT EXISTS {} (\n  \"filename\" TEXT NOT NULL,\n  \"shard\" INTEGER NOT \
             NULL,\n  \"pipeline\" TEXT NOT NULL,\n  \"log\" TEXT NOT NULL,\n  \"shards\" INTEGER NOT \
             NULL,\n  \"seal\" TEXT UNIQUE,\n  \"owner\" TEXT,\n  \"finished_at\" TEXT,\n",
            quote(&self.beside)
        );
        for count in ["records", "rows", "duplicates", "filtered", "dead"] {
            let _ = writeln!(sql, "  \"{count}\" INTEGER,");
        }
        sql.push_str(
            "  \"attempts\" INTEGER NOT NULL DEFAULT 0,\n  \"error\" TEXT,\n  \"hash\" TEXT,\n",
        );
        for stage in &self.stages {
            for moment in ["started", "done"] {
                let _ = writeln!(sql, "  {} TEXT,", quote(&format!("{stage}_{moment}_at")));
            }
        }
        sql.push_str("  PRIMARY KEY (\"filename\", \"shard\")\n)");
        sql
    }

    /// True where something has to be created.
    pub fn lacks(&self, found: &FoundTracking, dialect: Dialect) -> bool {
        let follows = dialect == Dialect::Mysql || found.follows;
        found.columns.is_empty() || found.beside.is_empty() || !follows
    }

    /// Says what is wrong with the tables that are there.
    pub fn check(&self, found: &FoundTracking, dialect: Dialect) -> Result<(), Fault> {
        let wrong = |what: String, hint: String| {
            Err(Fault::fix(format!("{}: {what}", self.label)).hint(hint).code("P1405"))
        };
        let table = dialect.quote(&self.table);
        for (name, there) in
            [(&self.table, !found.columns.is_empty()), (&self.beside, !found.beside.is_empty())]
        {
            if !there {
                let hint = "create it with what `potok ddl` prints, or set `create_tables: true`";
                return wrong(format!("there is no table `{name}`"), hint.to_owned());
            }
        }
        let is_there = |wanted: &str| found.columns.iter().any(|(name, ..)| name == wanted);
        let statuses: Vec<String> = self.statuses().collect();
        let others = ["filename", "shard", "updated_at"].map(str::to_owned);
        for column in others.iter().chain(&statuses) {
            if !is_there(column) {
                let hint = "compare it with what `potok ddl` prints".to_owned();
                return wrong(format!("`{}` has no column `{column}`", self.table), hint);
            }
        }
        if !found.unique.iter().any(|key| key == &["filename", "shard"]) {
            let hint = format!("ALTER TABLE {table} ADD UNIQUE KEY (filename, shard)");
            return wrong(format!("`{}` has no unique (filename, shard)", self.table), hint);
        }
        let updated = found.columns.iter().find(|(name, ..)| name == "updated_at");
        let follows = match dialect {
            Dialect::Mysql => {
                updated.is_some_and(|(_, kind, follows)| kind.starts_with("timestamp") && *follows)
            }
            Dialect::Sqlite | Dialect::Postgres => found.follows,
        };
        if !follows {
            let hint = match dialect {
                Dialect::Mysql => format!(
                    "ALTER TABLE {table} MODIFY updated_at TIMESTAMP NOT NULL DEFAULT \
                     CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP"
                ),
                _ => "create the trigger that `potok ddl` prints".to_owned(),
            };
            let what = format!(
                "`{}`.`updated_at` is no TIMESTAMP that follows changes: stuck tasks would be \
                 computed wrongly",
                self.table
            );
            return wrong(what, hint);
        }
        let is_beside = |wanted: &String| found.beside.contains(wanted);
        let times = self
            .stages
            .iter()
            .flat_map(|stage| ["started", "done"].map(|moment| format!("{stage}_{moment}_at")));
        if let Some(column) = times.into_iter().find(|column| !is_beside(column)) {
            let hint = "the stages of the pipeline have other names now: add the columns that \
                        `potok ddl` prints, or give it another `table`"
                .to_owned();
            return wrong(format!("`{}` has no column `{column}`", self.beside), hint);
        }
        Ok(())
    }
}
