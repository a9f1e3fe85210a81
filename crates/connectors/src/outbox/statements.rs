//! The statements of the relay. Each is run in one transaction that begins with a locking read of the
//! lease: while it lasts nobody takes the lease over, and every statement asks whether it is ours. It ends
//! with the question whether the lease has lasted: otherwise it fails, and nothing is changed.

use std::fmt::Write as _;
use std::time::Duration;

use potok_core::RECORD_BYTES_MAX;
use potok_core::trouble::Bug;

use super::shape::{DEAD_COLUMNS, LEASES, Order, ROWID, Shape, WAITING};
use crate::sql::Dialect;

/// Rows that were found free of locks, in MariaDB and MySQL.
const FREE: &str = "potok_free";

/// A note: what runs before the transaction, and in it.
pub(super) struct Note {
    pub before: Vec<String>,
    pub statements: Vec<String>,
}

impl Shape {
    pub(super) fn leases(&self) -> String {
        self.table(LEASES)
    }

    pub(super) fn waiting(&self) -> String {
        self.table(WAITING)
    }

    pub(super) fn source_literal(&self) -> String {
        self.literal(&self.source())
    }

    pub(super) fn lease_literal(&self) -> String {
        self.literal(&self.lease)
    }

    /// The lease lasts still, by the server's clock.
    fn lasts(&self) -> String {
        match self.plant.is(Bug::TokenAlone) {
            true => "1 = 1".to_owned(),
            false => format!("l.until > {}", self.now()),
        }
    }

    /// True while the lease is ours, by the server's clock: after a failover an old token may be
    /// back, but not its time.
    pub(super) fn mine(&self, token: &str) -> String {
        if self.plant.is(Bug::NoteWithoutToken) {
            return "1 = 1".to_owned();
        }
        format!(
            "EXISTS (SELECT 1 FROM {} l WHERE l.name = {} AND l.token = {} AND {})",
            self.leases(),
            self.lease_literal(),
            self.literal(token),
            self.lasts()
        )
    }

    /// Keeps the lease from being taken over until the transaction ends. One row where it is ours.
    fn lock(&self, token: &str) -> String {
        let lock = match self.dialect {
            Dialect::Postgres => " FOR SHARE",
            Dialect::Mysql => " LOCK IN SHARE MODE",
            // Whoever began IMMEDIATE is alone.
            Dialect::Sqlite => "",
        };
        if self.plant.is(Bug::NoteWithoutToken) {
            return "SELECT 'mine', NULL".to_owned();
        }
        format!(
            "SELECT 'mine', NULL FROM {} l WHERE l.name = {} AND l.token = {} AND {}{lock}",
            self.leases(),
            self.lease_literal(),
            self.literal(token),
            self.lasts()
        )
    }

    /// Fails where the token is ours and its time is over: the transaction took too long. A condition
    /// cannot fail, so two rows come where one may, and in SQLite a number has no opposite.
    fn fence(&self, token: &str) -> String {
        let over = format!(
            "FROM {} l WHERE l.name = {} AND l.token = {} AND NOT ({})",
            self.leases(),
            self.lease_literal(),
            self.literal(token),
            self.lasts()
        );
        match self.dialect {
            Dialect::Sqlite => {
                format!("SELECT 'lasts', abs(-9223372036854775807 - EXISTS (SELECT 1 {over}))")
            }
            Dialect::Postgres | Dialect::Mysql => {
                format!("SELECT 'lasts', (SELECT 1 UNION ALL SELECT 2 {over})")
            }
        }
    }

    pub(super) fn note(&self, token: &str, statements: Vec<String>) -> Note {
        let mut all = vec![self.lock(token)];
        all.extend(statements);
        all.push(self.fence(token));
        let before = match self.dialect {
            Dialect::Mysql => vec![
                format!(
                    "CREATE TEMPORARY TABLE IF NOT EXISTS {FREE} SELECT {} FROM {} WHERE FALSE",
                    self.quote(&self.names.id),
                    self.outbox()
                ),
                format!("TRUNCATE {FREE}"),
            ],
            Dialect::Sqlite | Dialect::Postgres => Vec::new(),
        };
        Note { before, statements: all }
    }

    /// By the id, in MariaDB and MySQL: any other way meets rows that somebody has locked.
    fn force(&self) -> String {
        match self.dialect {
            Dialect::Mysql if !self.plant.is(Bug::IndexByPlan) => {
                format!(" FORCE INDEX ({})", self.quote(&self.id_index))
            }
            _ => String::new(),
        }
    }

    /// Rows of these ids that wait and that nobody has locked.
    fn free(&self, token: &str, ids: &[String], lock: &str) -> String {
        let (id, outbox) = (self.quote(&self.names.id), self.outbox());
        let force = self.force();
        let lock = match self.plant.is(Bug::WaitsForLocks) {
            true => lock.replace(" SKIP LOCKED", ""),
            false => lock.to_owned(),
        };
        format!(
            "SELECT o.{id} FROM {outbox} o{force} WHERE o.{id} IN ({}) AND {} AND {}{lock}",
            self.ids(ids),
            self.pending("o"),
            self.mine(token)
        )
    }

    /// Changes free rows of these ids; answers `done` with the id of each where it is asked to.
    fn update(&self, token: &str, ids: &[String], set: &str, answer: bool) -> Vec<String> {
        let (id, outbox) = (self.quote(&self.names.id), self.outbox());
        let force = self.force();
        match self.dialect {
            Dialect::Postgres => {
                let free = self.free(token, ids, " FOR NO KEY UPDATE SKIP LOCKED");
                let update = format!(
                    "UPDATE {outbox} o SET {set} FROM free WHERE o.{id} = free.{id} \
                     RETURNING {}",
                    self.id_text("o")
                );
                let select = if answer {
                    "SELECT 'done', id FROM done"
                } else {
                    "SELECT 'left', NULL WHERE false"
                };
                vec![format!("WITH free AS MATERIALIZED ({free}), done(id) AS ({update}) {select}")]
            }
            Dialect::Mysql => {
                let mut all = vec![
                    format!(
                        "INSERT INTO {FREE} {}",
                        self.free(token, ids, " FOR UPDATE SKIP LOCKED")
                    ),
                    format!(
                        "UPDATE {FREE} f STRAIGHT_JOIN {outbox} o{force} ON o.{id} = f.{id} SET {}",
                        set.replace("@@", "o.")
                    ),
                ];
                if answer {
                    all.push(format!("SELECT 'done', {} FROM {FREE} f", self.id_text("f")));
                }
                all
            }
            Dialect::Sqlite => {
                let returning = if answer {
                    format!(" RETURNING 'done', CAST({id} AS TEXT)")
                } else {
                    String::new()
                };
                vec![format!(
                    "UPDATE {outbox} AS o SET {set} WHERE o.{id} IN ({}) AND {} AND {}{returning}",
                    self.ids(ids),
                    self.pending("o"),
                    self.mine(token)
                )]
            }
        }
    }

    /// A column on the left of an assignment; MariaDB wants to know of which table.
    fn assigned(&self, column: &str) -> String {
        match self.dialect {
            Dialect::Mysql => format!("@@{}", self.quote(column)),
            Dialect::Sqlite | Dialect::Postgres => self.quote(column),
        }
    }

    /// Which of these rows wait: locked ones among those that a note did not change.
    fn left(&self, ids: &[String]) -> String {
        let (id, outbox) = (self.quote(&self.names.id), self.outbox());
        format!(
            "SELECT 'left', {} FROM {outbox} o WHERE o.{id} IN ({}) AND {}",
            self.id_text("o"),
            self.ids(ids),
            self.pending("o")
        )
    }

    /// Marks rows as processed. Answers `mine`, `done` for each that was marked, and `left` for each
    /// that still waits, because somebody has it locked.
    pub(super) fn mark(&self, token: &str, ids: &[String]) -> Note {
        let names = &self.names;
        let set = format!(
            "{} = {}, {} = {}",
            self.assigned(&names.processed),
            self.yes(),
            self.assigned(&names.processed_at),
            self.now_for(&names.processed_at)
        );
        let mut all = self.update(token, ids, &set, true);
        all.push(self.left(ids));
        self.note(token, all)
    }

    /// Counts an attempt of each and keeps the rows back. The count is set only where it is still what
    /// was seen: repeating changes nothing, and a person's reset stays.
    pub(super) fn put_off(&self, token: &str, delays: &[Delay<'_>]) -> Note {
        let mut all = Vec::new();
        for delay in delays {
            if self.dialect == Dialect::Mysql && !all.is_empty() {
                all.push(format!("DELETE FROM {FREE}"));
            }
            all.extend(self.put_off_one(token, delay));
        }
        self.note(token, all)
    }

    fn put_off_one(&self, token: &str, delay: &Delay<'_>) -> Vec<String> {
        let ids = [delay.id.to_owned()];
        let mut all = match delay.counts {
            true => self.count_attempt(token, &ids, delay),
            false => Vec::new(),
        };
        all.push(self.keep_back(token, &ids, delay));
        all
    }

    fn count_attempt(&self, token: &str, ids: &[String], delay: &Delay<'_>) -> Vec<String> {
        let retry = &self.names.retry_count;
        let on_right = match self.dialect {
            Dialect::Mysql => format!("@@{}", self.quote(retry)),
            _ => format!("o.{}", self.quote(retry)),
        };
        let set = match self.plant.bug() {
            Some(Bug::CountsUp) => {
                format!("{} = COALESCE({on_right}, 0) + 1", self.assigned(retry))
            }
            Some(Bug::CountsSet) => format!("{} = {}", self.assigned(retry), delay.attempt),
            _ => format!(
                "{} = CASE WHEN COALESCE({on_right}, 0) = {} THEN {} ELSE {on_right} END",
                self.assigned(retry),
                delay.seen,
                delay.attempt
            ),
        };
        self.update(token, ids, &set, false)
    }

    /// Names a row as one that failed, where it waits still.
    fn keep_back(&self, token: &str, ids: &[String], delay: &Delay<'_>) -> String {
        let until = self.in_time(delay.wait);
        let values = format!(
            "SELECT {}, {}, NULL, {}, {until}, {}, {}{} WHERE {} AND EXISTS ({})",
            self.source_literal(),
            self.literal(delay.id),
            delay.attempt,
            self.literal(delay.error),
            self.literal(delay.key),
            self.dual(),
            self.mine(token),
            self.left(ids)
        );
        let insert = format!(
            "INSERT INTO {} (source, id, behind, attempt, until, error, key_shown) {values}",
            self.waiting()
        );
        match self.dialect {
            Dialect::Mysql => format!(
                "{insert} ON DUPLICATE KEY UPDATE behind = NULL, attempt = VALUES(attempt), \
                 until = VALUES(until), error = VALUES(error), key_shown = VALUES(key_shown)"
            ),
            Dialect::Sqlite | Dialect::Postgres => format!(
                "{insert} ON CONFLICT (source, id) DO UPDATE SET behind = NULL, \
                 attempt = excluded.attempt, until = excluded.until, error = excluded.error, \
                 key_shown = excluded.key_shown"
            ),
        }
    }

    /// Columns of the table that were not there when it was looked at. A row is not moved then: what
    /// they have would be lost.
    fn new_columns(&self) -> String {
        let known: Vec<String> = self.columns.iter().map(|c| self.literal(&c.name)).collect();
        let (table, known) = (self.literal(&self.names.table), known.join(", "));
        match self.dialect {
            Dialect::Sqlite => format!(
                "SELECT 1 FROM pragma_table_xinfo({table}) WHERE hidden <> 1 AND name NOT IN ({known})"
            ),
            Dialect::Postgres => format!(
                "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass({}) AND attnum > 0 \
                 AND NOT attisdropped AND attname NOT IN ({known})",
                self.literal(&self.outbox())
            ),
            Dialect::Mysql => format!(
                "SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = {} \
                 AND TABLE_NAME = {table} AND COLUMN_NAME NOT IN ({known})",
                self.literal(&self.schema)
            ),
        }
    }

    /// Moves a row to the dead letters. Answers `done` where it did, `left` where it is locked, and
    /// `changed` where the table has other columns than it had.
    pub(super) fn bury(&self, token: &str, burial: &Burial<'_>) -> Note {
        let ids = [burial.id.to_owned()];
        let (id, outbox, dead) =
            (self.quote(&self.names.id), self.outbox(), self.table(&self.names.dead));
        let (columns, force): (Vec<&str>, _) = (self.written().collect(), self.force());
        let value = |alias: &str, column: &str| match column == self.names.retry_count {
            true => burial.attempt.to_string(),
            false => format!("{alias}.{}", self.quote(column)),
        };
        let mut into: Vec<String> = columns.iter().map(|name| self.quote(name)).collect();
        let mut from: Vec<String> = columns.iter().map(|name| value("o", name)).collect();
        if self.order == Order::Rowid {
            into.push(self.quote(ROWID));
            from.push("o.rowid".to_owned());
        }
        into.extend(DEAD_COLUMNS.iter().map(|name| self.quote(name)));
        from.extend([
            self.literal(burial.reason),
            self.literal(burial.error),
            self.dead_now().to_owned(),
        ]);
        let (into, from) = (into.join(", "), from.join(", "));
        // Asked when the table is locked against changes: behind the first statement in MariaDB, where
        // the answer is kept.
        let is_known = match self.dialect {
            Dialect::Mysql => "@potok_known = 1".to_owned(),
            _ => format!("NOT EXISTS ({})", self.new_columns()),
        };
        let mut all = match self.dialect {
            Dialect::Postgres => {
                let free = self.free(token, &ids, " FOR UPDATE SKIP LOCKED");
                let again: Vec<String> = DEAD_COLUMNS
                    .iter()
                    .chain([&self.names.retry_count.as_str()])
                    .map(|name| format!("{0} = excluded.{0}", self.quote(name)))
                    .collect();
                vec![format!(
                    "WITH free AS MATERIALIZED ({free}), o AS (DELETE FROM {outbox} o USING free \
                     WHERE o.{id} = free.{id} AND {is_known} RETURNING o.*) \
                     INSERT INTO {dead} ({into}) SELECT {from} FROM o \
                     ON CONFLICT ({id}) DO UPDATE SET {} RETURNING 'done', {id}::text",
                    again.join(", ")
                )]
            }
            Dialect::Mysql => vec![
                format!("INSERT INTO {FREE} {}", self.free(token, &ids, " FOR UPDATE SKIP LOCKED")),
                format!("SET @potok_known = NOT EXISTS ({})", self.new_columns()),
                format!(
                    "REPLACE INTO {dead} ({into}) SELECT {from} FROM {FREE} f \
                     STRAIGHT_JOIN {outbox} o{force} ON o.{id} = f.{id} WHERE {is_known}"
                ),
                format!(
                    "DELETE o FROM {FREE} f STRAIGHT_JOIN {outbox} o{force} ON o.{id} = f.{id} \
                     WHERE {is_known}"
                ),
                format!("SELECT 'done', {} FROM {FREE} f WHERE {is_known}", self.id_text("f")),
            ],
            Dialect::Sqlite => {
                let there = format!(
                    "o.{id} IN ({}) AND {} AND {is_known} AND {}",
                    self.ids(&ids),
                    self.pending("o"),
                    self.mine(token)
                );
                vec![
                    format!(
                        "INSERT OR REPLACE INTO {dead} ({into}) SELECT {from} FROM {outbox} o \
                         WHERE {there}"
                    ),
                    format!(
                        "DELETE FROM {outbox} AS o WHERE {there} RETURNING 'done', CAST({id} AS TEXT)"
                    ),
                ]
            }
        };
        all.push(self.left(&ids));
        all.push(format!("SELECT 'changed', NULL{} WHERE NOT ({is_known})", self.dual()));
        self.note(token, all)
    }

    /// Naive: the row is deleted in a transaction of its own.
    pub(super) fn bury_apart(&self, burial: &Burial<'_>) -> Vec<String> {
        let ids = self.ids(&[burial.id.to_owned()]);
        vec![format!(
            "DELETE FROM {} WHERE {} IN ({ids})",
            self.outbox(),
            self.quote(&self.names.id)
        )]
    }

    /// What MariaDB and MySQL want between a list of values and a condition.
    fn dual(&self) -> &'static str {
        if self.dialect == Dialect::Mysql { " FROM DUAL" } else { "" }
    }

    /// Now, as `dead_at` has it.
    fn dead_now(&self) -> &'static str {
        match self.dialect {
            Dialect::Postgres => "clock_timestamp()",
            Dialect::Mysql => "UTC_TIMESTAMP(6)",
            Dialect::Sqlite => "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
        }
    }

    /// What `rows_of` reads of one row.
    pub(super) fn row_columns(&self, alias: &str) -> String {
        let names = &self.names;
        let event_type = self.as_text(&format!("{alias}.{}", self.quote(&names.event_type)));
        let max = RECORD_BYTES_MAX;
        let mut columns = format!(
            "{}, {event_type}, CASE WHEN {bytes} > {max} THEN NULL ELSE {} END, \
             CASE WHEN {bytes} > {max} THEN 1 ELSE 0 END, {}, {}, COALESCE({alias}.{}, 0)",
            self.id_text(alias),
            self.payload(alias),
            self.time_text(alias, &names.added_at),
            self.epoch_ms(alias, &names.added_at),
            self.quote(&names.retry_count),
            bytes = self.payload_bytes(alias),
        );
        for name in self.header_columns() {
            let value = self.as_text(&format!("{alias}.{}", self.quote(name)));
            // Memory takes everything.
            let _ = write!(columns, ", {value}");
        }
        columns
    }

    /// Rows that wait, from the first on, in one snapshot: no row that commits late is passed over.
    pub(super) fn read(&self, token: &str, except: &[String], limits: ReadLimits) -> String {
        let id = self.quote(&self.names.id);
        let order = self.order_by("o");
        let named: Vec<String> =
            order.iter().enumerate().map(|(at, by)| format!("{by} AS potok_by{at}")).collect();
        let by: Vec<String> = (0..order.len()).map(|at| format!("o.potok_by{at}")).collect();
        let by = by.join(", ");
        let except = match except {
            [] => String::new(),
            ids => format!(" AND o.{id} NOT IN ({})", self.ids(ids)) + &self.page_after(ids),
        } + &self.above_mark();
        // One more than the budget where the first row alone is larger.
        format!(
            "SELECT {} FROM (SELECT o.*, SUM(o.potok_size) OVER (ORDER BY {by} \
             ROWS UNBOUNDED PRECEDING) AS potok_total FROM (SELECT o.*, {}, {} AS potok_size \
             FROM {} o WHERE {}{except} AND NOT EXISTS (SELECT 1 FROM {} w WHERE w.source = {} \
             AND w.id = {}) AND {} ORDER BY {} LIMIT {}) o) o \
             WHERE o.potok_total - o.potok_size < {} ORDER BY {by}",
            self.row_columns("o"),
            named.join(", "),
            format_args!("COALESCE({}, 0)", self.payload_size("o")),
            self.outbox(),
            self.pending("o"),
            self.waiting(),
            self.source_literal(),
            self.id_text("o"),
            self.mine(token),
            order.join(", "),
            limits.rows,
            limits.bytes
        )
    }

    /// Naive: a page begins behind the last row that is out.
    fn page_after(&self, out: &[String]) -> String {
        let (true, Order::Column(by)) = (self.plant.is(Bug::KeysetPages), &self.order) else {
            return String::new();
        };
        let (by, id, outbox) = (self.quote(by), self.quote(&self.names.id), self.outbox());
        let ids = self.ids(out);
        format!(
            " AND o.{by} > (SELECT COALESCE(MAX(p.{by}), 0) FROM {outbox} p WHERE p.{id} IN ({ids}))"
        )
    }

    /// Naive: nothing comes that lies before a row that was processed.
    fn above_mark(&self) -> String {
        let (true, Order::Column(by)) = (self.plant.is(Bug::HighWaterMark), &self.order) else {
            return String::new();
        };
        let (by, outbox, processed) = (self.quote(by), self.outbox(), self.is_processed());
        format!(" AND o.{by} > (SELECT COALESCE(MAX({by}), 0) FROM {outbox} WHERE {processed})")
    }

    /// Those of these rows that wait, up to so many bytes.
    pub(super) fn rows_of(&self, ids: &[String], bytes: usize) -> String {
        let id = self.quote(&self.names.id);
        format!(
            "SELECT {} FROM (SELECT o.*, SUM(o.potok_size) OVER (ORDER BY o.{id} \
             ROWS UNBOUNDED PRECEDING) AS potok_total FROM (SELECT o.*, COALESCE({}, 0) AS potok_size \
             FROM {} o WHERE o.{id} IN ({}) AND {}) o) o \
             WHERE o.potok_total - o.potok_size < {bytes}",
            self.row_columns("o"),
            self.payload_size("o"),
            self.outbox(),
            self.ids(ids),
            self.pending("o")
        )
    }

    /// Takes the lease where it has run out by the server's clock, or where it still is what it was
    /// when this process saw it a whole lease ago. Answers `mine`, or `held` and by whom.
    pub(super) fn take(&self, claim: &Claim<'_>) -> Vec<String> {
        let (leases, name) = (self.leases(), self.lease_literal());
        let until = self.in_time(claim.lease);
        let now = self.now();
        let seen = claim.stale.map_or(String::new(), |(token, until)| {
            let until = match self.dialect {
                Dialect::Sqlite => until.to_owned(),
                _ => self.literal(until),
            };
            format!(" OR (token = {} AND until = {until})", self.literal(token))
        });
        let token = self.literal(claim.token);
        // The settings are noted when what waits has been settled under them.
        let values = format!(
            "owner = {}, pipeline = {}, since = {now}, until = {until}",
            self.literal(claim.owner),
            self.literal(claim.pipeline),
        );
        let insert = format!(
            "INSERT INTO {leases} (name, token, owner, pipeline, config, since, until) \
             SELECT {name}, '', '', '', '', {now}, {}{} WHERE NOT EXISTS \
             (SELECT 1 FROM {leases} l WHERE l.name = {name})",
            self.in_time(Duration::ZERO),
            self.dual(),
        );
        let insert = match self.dialect {
            Dialect::Mysql => {
                format!("{insert} ON DUPLICATE KEY UPDATE {leases}.name = {leases}.name")
            }
            _ => format!("{insert} ON CONFLICT (name) DO NOTHING"),
        };
        vec![
            insert,
            format!(
                "SELECT 'before', config, NULL, NULL, NULL, NULL FROM {leases} WHERE name = {name}"
            ),
            format!(
                "UPDATE {leases} SET token = {token}, {values} WHERE name = {name} \
                 AND (until <= {now}{seen})"
            ),
            format!(
                "SELECT CASE WHEN token = {token} THEN 'mine' ELSE 'held' END, token, {}, owner, \
                 pipeline, {} FROM {leases} WHERE name = {name}",
                self.as_text("until"),
                self.ms_until("until")
            ),
        ]
    }

    /// Holds on to the lease. Answers `mine` where it still is ours.
    pub(super) fn renew(&self, token: &str, lease: Duration) -> Vec<String> {
        let (leases, name) = (self.leases(), self.lease_literal());
        let token = self.literal(token);
        vec![
            format!(
                "UPDATE {leases} SET until = {} WHERE name = {name} AND token = {token} \
                 AND until > {}",
                self.in_time(lease),
                self.now()
            ),
            format!(
                "SELECT 'mine', NULL FROM {leases} l WHERE l.name = {name} AND l.token = {token} \
                 AND l.until > {}",
                self.now()
            ),
        ]
    }

    /// Lets go of the lease at once.
    pub(super) fn release(&self, token: &str) -> String {
        format!(
            "UPDATE {} SET until = {} WHERE name = {} AND token = {}",
            self.leases(),
            self.now(),
            self.lease_literal(),
            self.literal(token)
        )
    }

    /// True for a row that was processed long enough ago.
    fn is_old(&self, age: Duration) -> String {
        let processed = match self.plant.is(Bug::PurgesByAge) {
            true => format!("{} IS NOT NULL", self.quote(&self.names.id)),
            false => self.is_processed(),
        };
        format!(
            "{processed} AND ({} OR ({} IS NULL AND {}))",
            self.is_older(&self.names.processed_at, age),
            self.quote(&self.names.processed_at),
            self.is_older(&self.names.added_at, age)
        )
    }

    /// Some processed rows that are old enough. Without an index this may look at the whole table, so it
    /// is asked by itself, where it keeps nobody from anything.
    pub(super) fn old_rows(&self, age: Duration, most: usize) -> String {
        let (id, outbox, old) = (self.id_text("o"), self.outbox(), self.is_old(age));
        format!("SELECT {id} FROM {outbox} o WHERE {old} LIMIT {most}")
    }

    /// Deletes those of these rows that are old still. Answers `done` for each, or how many there were.
    pub(super) fn purge(&self, token: &str, ids: &[String], age: Duration) -> Note {
        let (id, outbox) = (self.quote(&self.names.id), self.outbox());
        let old = format!(
            "{id} IN ({}) AND {} AND {}",
            self.ids(ids),
            self.is_old(age),
            self.mine(token)
        );
        let all = match self.dialect {
            Dialect::Postgres => vec![format!(
                "WITH old AS MATERIALIZED (SELECT {id} FROM {outbox} WHERE {old} \
                 FOR UPDATE SKIP LOCKED) DELETE FROM {outbox} o USING old WHERE o.{id} = old.{id} \
                 RETURNING 'done', NULL"
            )],
            Dialect::Sqlite => {
                vec![format!("DELETE FROM {outbox} WHERE {old} RETURNING 'done', NULL")]
            }
            Dialect::Mysql => {
                let force = self.force();
                vec![
                    format!(
                        "INSERT INTO {FREE} SELECT {id} FROM {outbox}{force} WHERE {old} \
                         FOR UPDATE SKIP LOCKED"
                    ),
                    format!(
                        "DELETE o FROM {FREE} f STRAIGHT_JOIN {outbox} o{force} ON o.{id} = f.{id}"
                    ),
                    "SELECT 'count', ROW_COUNT()".to_owned(),
                ]
            }
        };
        self.note(token, all)
    }
}

/// How much one read may bring.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadLimits {
    pub rows: usize,
    pub bytes: usize,
}

/// A row that is kept back.
pub(super) struct Delay<'a> {
    pub id: &'a str,
    /// The count of attempts when the row was read.
    pub seen: u32,
    pub attempt: u32,
    pub wait: Duration,
    pub error: &'a str,
    /// Its key, for people.
    pub key: &'a str,
    /// The attempt is counted in the row. Where the table refuses that, the row waits all the same.
    pub counts: bool,
}

/// A row that becomes a dead letter.
pub(super) struct Burial<'a> {
    pub id: &'a str,
    pub attempt: u32,
    pub reason: &'a str,
    pub error: &'a str,
}

/// A wish for the lease.
pub(super) struct Claim<'a> {
    pub token: &'a str,
    pub owner: &'a str,
    pub pipeline: &'a str,
    /// What the settings come down to.
    pub config: &'a str,
    pub lease: Duration,
    /// Token and end of a lease that has not changed for its whole length, by our own clock.
    pub stale: Option<(&'a str, &'a str)>,
}
