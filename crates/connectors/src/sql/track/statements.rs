//! The statements of a tracker. All values are parameters.

use super::{TrackConfig, TrackTables};
use crate::sql::Dialect;

/// What the dialects write in their own way.
pub(super) struct Statements {
    dialect: Dialect,
    tables: TrackTables,
}

impl Statements {
    pub fn new(dialect: Dialect, tables: TrackTables) -> Self {
        Statements { dialect, tables }
    }

    fn table(&self) -> String {
        self.dialect.quote(&self.tables.table)
    }

    fn beside(&self) -> String {
        self.dialect.quote(&self.tables.beside)
    }

    fn status(&self, stage: usize) -> String {
        let stage = self.tables.stages.get(stage).map_or("", String::as_str);
        self.dialect.quote(&format!("{stage}_status"))
    }

    fn time(&self, stage: usize, moment: &str) -> String {
        let stage = self.tables.stages.get(stage).map_or("", String::as_str);
        self.dialect.quote(&format!("{stage}_{moment}_at"))
    }

    /// The database's clock, to the millisecond.
    fn now(&self) -> &'static str {
        match self.dialect {
            Dialect::Mysql => "NOW(3)",
            Dialect::Sqlite | Dialect::Postgres => "strftime('%Y-%m-%d %H:%M:%f', 'now')",
        }
    }

    /// Behind an INSERT: what is there stays, and nothing of it is touched.
    fn stays(&self) -> &'static str {
        match self.dialect {
            Dialect::Mysql => "ON DUPLICATE KEY UPDATE filename = VALUES(filename)",
            Dialect::Sqlite | Dialect::Postgres => "ON CONFLICT (filename, shard) DO NOTHING",
        }
    }

    /// For how many whole minutes a row has been as it is; the same expression as the description's.
    fn minutes(&self) -> &'static str {
        match self.dialect {
            Dialect::Mysql => "TIMESTAMPDIFF(MINUTE, t.updated_at, NOW())",
            Dialect::Sqlite | Dialect::Postgres => {
                "((strftime('%s', 'now') - strftime('%s', t.updated_at)) / 60)"
            }
        }
    }

    /// The same in seconds.
    fn seconds(&self) -> &'static str {
        match self.dialect {
            Dialect::Mysql => "TIMESTAMPDIFF(SECOND, t.updated_at, NOW())",
            Dialect::Sqlite | Dialect::Postgres => {
                "(strftime('%s', 'now') - strftime('%s', t.updated_at))"
            }
        }
    }

    /// The newest file of ours, and how many shards there were. pipeline, log
    pub fn newest_shards(&self) -> String {
        format!(
            "SELECT filename, CAST(shards AS CHAR) FROM {} WHERE pipeline = ? AND log = ? ORDER BY \
             filename DESC LIMIT 1",
            self.beside()
        )
    }

    /// seal
    pub fn name_of_seal(&self) -> String {
        format!("SELECT filename FROM {} WHERE seal = ?", self.beside())
    }

    /// Names of a slice that a shard cannot have: another program, pipeline or log has rows of them,
    /// or the shard's own is taken or has ended. first, end, pipeline, log; first, end, shard, pipeline,
    /// log.
    pub fn taken_names(&self) -> String {
        let is_foreign = "p.filename IS NULL OR p.pipeline <> ? OR p.log <> ?";
        let has_ended = "p.seal IS NOT NULL OR p.finished_at IS NOT NULL";
        let (table, beside) = (self.table(), self.beside());
        format!(
            "SELECT t.filename FROM {table} t LEFT JOIN {beside} p ON p.filename = t.filename AND \
             p.shard = t.shard WHERE t.filename >= ? AND t.filename < ? AND ({is_foreign}) UNION \
             SELECT p.filename FROM {beside} p WHERE p.filename >= ? AND p.filename < ? AND p.shard = ? \
             AND (p.pipeline <> ? OR p.log <> ? OR {has_ended})"
        )
    }

    /// filename
    pub fn owners(&self) -> String {
        format!(
            "SELECT p.pipeline, p.log FROM {} t LEFT JOIN {} p ON p.filename = t.filename AND \
             p.shard = t.shard WHERE t.filename = ?",
            self.table(),
            self.beside()
        )
    }

    /// (filename, shard, pipeline, log, shards, owner) × rows
    pub fn insert_beside(&self, rows: usize) -> String {
        let values = vec!["(?, ?, ?, ?, ?, ?)"; rows].join(", ");
        format!(
            "INSERT INTO {} (filename, shard, pipeline, log, shards, owner) VALUES {values} {}",
            self.beside(),
            self.stays()
        )
    }

    /// (filename, shard) × rows
    pub fn insert(&self, rows: usize) -> String {
        let values = vec!["(?, 'started', ?)"; rows].join(", ");
        format!(
            "INSERT INTO {} (filename, {}, shard) VALUES {values} {}",
            self.table(),
            self.status(0),
            self.stays()
        )
    }

    /// seal, filename, shard, pipeline, log
    pub fn claim(&self) -> String {
        format!(
            "UPDATE {} SET seal = ? WHERE filename = ? AND shard = ? AND pipeline = ? AND log = ? \
             AND seal IS NULL AND finished_at IS NULL",
            self.beside()
        )
    }

    /// filename, shard
    pub fn presence(&self) -> String {
        let mut columns = vec!["p.error".to_owned()];
        for stage in 0..self.tables.stages.len() {
            columns.push(format!("CAST(t.{} AS CHAR)", self.status(stage)));
            columns.push(format!("CAST(p.{} AS CHAR)", self.time(stage, "started")));
            columns.push(format!("CAST(p.{} AS CHAR)", self.time(stage, "done")));
        }
        format!(
            "SELECT CAST(p.finished_at AS CHAR), CAST(t.shard AS CHAR), {} FROM {} p LEFT JOIN {} t \
             ON t.filename = p.filename AND t.shard = p.shard WHERE p.filename = ? AND p.shard = ?",
            columns.join(", "),
            self.beside(),
            self.table()
        )
    }

    /// Rows of ours that have not ended, of one name. filename, pipeline, log
    pub fn unfinished(&self) -> String {
        format!(
            "SELECT CAST(shard AS CHAR) FROM {} WHERE filename = ? AND pipeline = ? AND log = ? AND \
             finished_at IS NULL",
            self.beside()
        )
    }

    /// Rows of ours that ended longer ago than so many seconds, some of them. pipeline, log
    pub fn expired(&self, seconds: u64, rows: u32) -> String {
        let before = match self.dialect {
            Dialect::Mysql => format!("NOW(3) - INTERVAL {seconds} SECOND"),
            Dialect::Sqlite | Dialect::Postgres => {
                format!("strftime('%Y-%m-%d %H:%M:%f', 'now', '-{seconds} seconds')")
            }
        };
        format!(
            "SELECT filename, CAST(shard AS CHAR) FROM {} WHERE pipeline = ? AND log = ? AND \
             finished_at < {before} LIMIT {rows}",
            self.beside()
        )
    }

    /// filename, shard: of the table, and of the one beside it.
    pub fn remove(&self) -> [String; 2] {
        let remove =
            |table: String| format!("DELETE FROM {table} WHERE filename = ? AND shard = ?");
        [remove(self.table()), remove(self.beside())]
    }

    /// One legal move, or nothing. filename, shard
    pub fn move_stage(&self, stage: usize, from: &str, to: &str) -> String {
        let status = self.status(stage);
        let before = match (to, stage.checked_sub(1)) {
            ("started", Some(before)) => format!(" AND {} = 'done'", self.status(before)),
            _ => String::new(),
        };
        format!(
            "UPDATE {} SET {status} = '{to}' WHERE filename = ? AND shard = ? AND {status} = \
             '{from}'{before}",
            self.table()
        )
    }

    /// filename, shard
    pub fn note_time(&self, stage: usize, moment: &str) -> String {
        let column = self.time(stage, moment);
        format!(
            "UPDATE {} SET {column} = {} WHERE filename = ? AND shard = ?",
            self.beside(),
            self.now()
        )
    }

    /// seal, owner, records, hash, error, attempts, filename, shard
    pub fn note_facts(&self) -> String {
        format!(
            "UPDATE {} SET seal = COALESCE(seal, ?), owner = ?, records = COALESCE(?, records), hash \
             = COALESCE(?, hash), error = ?, attempts = attempts + ? WHERE filename = ? AND shard = ?",
            self.beside()
        )
    }

    /// rows, duplicates, filtered, dead, filename, shard
    pub fn finish(&self) -> String {
        let rows = self.dialect.quote("rows");
        format!(
            "UPDATE {} SET {rows} = ?, duplicates = ?, filtered = ?, dead = ?, finished_at = {} \
             WHERE filename = ? AND shard = ?",
            self.beside(),
            self.now()
        )
    }

    /// pipeline, log
    pub fn unclaimed(&self) -> String {
        format!(
            "SELECT filename, CAST(shard AS CHAR) FROM {} WHERE finished_at IS NULL AND seal IS NULL \
             AND pipeline = ? AND log = ?",
            self.beside()
        )
    }

    /// owner, filename, shard, pipeline, log
    pub fn sweep(&self) -> String {
        let rows = self.dialect.quote("rows");
        format!(
            "UPDATE {} SET finished_at = {}, records = 0, {rows} = 0, duplicates = 0, filtered = 0, \
             dead = 0, owner = ? WHERE filename = ? AND shard = ? AND pipeline = ? AND log = ? AND \
             seal IS NULL AND finished_at IS NULL",
            self.beside(),
            self.now()
        )
    }

    /// Files that are stuck, as the description computes it, longest first.
    pub fn list_stuck(&self, config: &TrackConfig, limit: u32) -> String {
        let stuck = self.stuck(config);
        format!(
            "{} WHERE {stuck} ORDER BY t.updated_at, t.filename, t.shard LIMIT {limit}",
            self.rows()
        )
    }

    /// Rows with everything that is known of them, newest first.
    pub fn list(&self, condition: &str) -> String {
        format!("{} WHERE {condition} ORDER BY t.filename DESC, t.shard", self.rows())
    }

    /// The same of rows that a stage may begin with, oldest first.
    pub fn queue(&self, stage: usize, limit: u32, offset: u32) -> String {
        let before = stage.checked_sub(1);
        let before = before.map(|before| format!(" AND t.{} = 'done'", self.status(before)));
        format!(
            "{} WHERE t.{} = 'new'{} ORDER BY t.filename, t.shard LIMIT {limit} OFFSET {offset}",
            self.rows(),
            self.status(stage),
            before.unwrap_or_default()
        )
    }

    fn rows(&self) -> String {
        let mut columns = vec![
            "t.filename".to_owned(),
            "CAST(t.shard AS CHAR)".to_owned(),
            "CAST(t.updated_at AS CHAR)".to_owned(),
            format!("CAST({} AS CHAR)", self.minutes()),
            "p.pipeline".to_owned(),
            "CAST(p.seal AS CHAR)".to_owned(),
            "p.owner".to_owned(),
            "CAST(p.finished_at AS CHAR)".to_owned(),
        ];
        for count in ["records", "rows", "duplicates", "filtered", "dead", "attempts"] {
            columns.push(format!("CAST(p.{} AS CHAR)", self.dialect.quote(count)));
        }
        columns.extend(["p.error".to_owned(), "p.hash".to_owned()]);
        for stage in 0..self.tables.stages.len() {
            columns.push(format!("CAST(t.{} AS CHAR)", self.status(stage)));
            columns.push(format!("CAST(p.{} AS CHAR)", self.time(stage, "started")));
            columns.push(format!("CAST(p.{} AS CHAR)", self.time(stage, "done")));
        }
        format!(
            "SELECT {} FROM {} t LEFT JOIN {} p ON p.filename = t.filename AND p.shard = t.shard",
            columns.join(", "),
            self.table(),
            self.beside()
        )
    }

    /// The newest so many names. What they must be older than, where that is said.
    pub fn newest(&self, names: u32, is_bounded: bool, is_unfinished: bool) -> String {
        let open = format!("({})", self.in_progress());
        let mut conditions = Vec::new();
        if is_bounded {
            conditions.push("t.filename < ?");
        }
        if is_unfinished {
            conditions.push(&open);
        }
        let only = match conditions.as_slice() {
            [] => String::new(),
            conditions => format!("WHERE {} ", conditions.join(" AND ")),
        };
        let newest = format!(
            "t.filename IN (SELECT filename FROM (SELECT DISTINCT t.filename FROM {} t {only}ORDER BY \
             t.filename DESC LIMIT {names}) newest)",
            self.table()
        );
        if is_unfinished { format!("{newest} AND {open}") } else { newest }
    }

    fn in_progress(&self) -> String {
        let stages = 0..self.tables.stages.len();
        let open: Vec<String> =
            stages.map(|stage| format!("t.{} <> 'done'", self.status(stage))).collect();
        open.join(" OR ")
    }

    fn stuck(&self, config: &TrackConfig) -> String {
        let stages = config.stages.iter().enumerate();
        let late = stages.filter_map(|(stage, (_, minutes))| {
            let minutes = (*minutes)?;
            Some(format!(
                "(t.{} = 'started' AND {} > {minutes})",
                self.status(stage),
                self.minutes()
            ))
        });
        let late: Vec<String> = late.collect();
        if late.is_empty() { "1 = 0".to_owned() } else { late.join(" OR ") }
    }

    pub fn totals(&self) -> String {
        let last = self.status(self.last());
        let sum = |state: &str| {
            format!("CAST(SUM(CASE WHEN {last} = '{state}' THEN 1 ELSE 0 END) AS CHAR)")
        };
        format!(
            "SELECT CAST(shard AS CHAR), CAST(COUNT(*) AS CHAR), {}, {}, {} FROM {} GROUP BY shard \
             ORDER BY shard",
            sum("done"),
            sum("started"),
            sum("failed"),
            self.table()
        )
    }

    /// Shard, then how many rows are in each state of a stage.
    pub fn stage_totals(&self, stage: usize) -> String {
        let status = self.status(stage);
        let sums = ["new", "started", "done", "failed"].map(|state| {
            format!("CAST(SUM(CASE WHEN {status} = '{state}' THEN 1 ELSE 0 END) AS CHAR)")
        });
        format!(
            "SELECT CAST(shard AS CHAR), {} FROM {} GROUP BY shard ORDER BY shard",
            sums.join(", "),
            self.table()
        )
    }

    /// Shard, state, how many files and the age of the oldest, of one stage. What is through the last
    /// stage is left out by its index: that is nearly everything.
    pub fn load(&self, stage: usize) -> String {
        let (status, last) = (self.status(stage), self.status(self.last()));
        format!(
            "SELECT CAST(t.shard AS CHAR), CAST(t.{status} AS CHAR), CAST(COUNT(*) AS CHAR), \
             CAST(MAX({}) AS CHAR) FROM {} t WHERE t.{last} IN ('new', 'started', 'failed') AND \
             t.{status} <> 'done' GROUP BY t.shard, t.{status} ORDER BY t.shard",
            self.seconds(),
            self.table(),
        )
    }

    /// The last stage.
    fn last(&self) -> usize {
        self.tables.stages.len().saturating_sub(1)
    }
}
