//! What a table is called, what it looks like, and how its values are written in SQL.

use std::time::Duration;

use potok_core::trouble::{Bug, Plant};

use crate::sql::Dialect;

/// Where leases are.
pub(super) const LEASES: &str = "potok_leases";
/// Where rows are named that failed, and those behind them.
pub(super) const WAITING: &str = "potok_outbox_waiting";
/// What a dead letter has besides the columns of the table.
pub(super) const DEAD_COLUMNS: [&str; 3] = ["reason", "error", "dead_at"];
/// Where SQLite's own number of a row is kept, which has no column in the table.
pub(super) const ROWID: &str = "potok_rowid";

/// The names of tables and columns, as the pipeline file has them.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub table: String,
    pub dead: String,
    pub id: String,
    pub event_type: String,
    pub payload: String,
    pub added_at: String,
    pub processed: String,
    pub processed_at: String,
    pub retry_count: String,
    pub traceparent: String,
    /// The column that rows are ordered by, where the file names one.
    pub order: Option<String>,
    /// Further columns that become headers.
    pub headers: Vec<String>,
}

/// One column, as the database describes it.
#[derive(Clone, Debug)]
pub(super) struct OutboxColumn {
    pub name: String,
    /// In small letters, without length.
    pub kind: String,
    pub nullable: bool,
    /// The database numbers rows by it.
    pub counts: bool,
    /// The database computes it: it cannot be written.
    pub generated: bool,
}

/// The order of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// By a column that the database counts up, or that the file names.
    Column(String),
    /// By SQLite's own number.
    Rowid,
    /// By time and id: not the order of commits.
    Time,
}

/// A table that was looked at.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub dialect: Dialect,
    pub names: Names,
    /// Where the table is, and with it the tables of potok.
    pub schema: String,
    pub(super) columns: Vec<OutboxColumn>,
    pub(super) order: Order,
    /// The unique index on the id, for MariaDB.
    pub(super) id_index: String,
    /// An index leads to the rows that wait.
    pub has_index: bool,
    /// What the lease is called: the table itself, whatever the settings are.
    pub(super) lease: String,
    /// The naive version that a test has switched on.
    pub(super) plant: Plant,
}

impl Shape {
    /// What the table is called, however the file names it.
    pub fn source(&self) -> String {
        format!("{}.{}", self.schema, self.names.table)
    }

    /// A table of the schema, quoted.
    pub fn table(&self, name: &str) -> String {
        match self.dialect {
            Dialect::Sqlite => self.quote(name),
            Dialect::Postgres | Dialect::Mysql => {
                format!("{}.{}", self.quote(&self.schema), self.quote(name))
            }
        }
    }

    /// The outbox table, quoted.
    pub fn outbox(&self) -> String {
        self.table(&self.names.table)
    }

    pub fn quote(&self, name: &str) -> String {
        self.dialect.quote(name)
    }

    /// A text as a literal.
    pub fn literal(&self, text: &str) -> String {
        // No server takes it inside of text.
        let text = text.replace('\0', "\u{fffd}").replace('\'', "''");
        match self.dialect {
            Dialect::Mysql => format!("'{}'", text.replace('\\', "\\\\")),
            Dialect::Sqlite | Dialect::Postgres => format!("'{text}'"),
        }
    }

    pub(super) fn column(&self, name: &str) -> Option<&OutboxColumn> {
        self.columns.iter().find(|column| column.name == name)
    }

    fn kind(&self, name: &str) -> &str {
        self.column(name).map_or("", |column| &column.kind)
    }

    /// Ids as literals that are compared with the column.
    pub fn ids(&self, ids: &[String]) -> String {
        let all: Vec<String> = ids.iter().map(|id| self.id_literal(id)).collect();
        match all.is_empty() {
            true => "NULL".to_owned(),
            false => all.join(","),
        }
    }

    fn id_literal(&self, id: &str) -> String {
        if self.dialect == Dialect::Mysql {
            let kind = self.kind(&self.names.id);
            if kind.ends_with("int") {
                // Compared with a text, the index would not be used.
                let is_number = id.trim_start_matches('-').bytes().all(|b| b.is_ascii_digit());
                return if is_number && !id.is_empty() { id.to_owned() } else { "NULL".to_owned() };
            }
            if kind.ends_with("binary") {
                let is_hex = id.bytes().all(|b| b.is_ascii_hexdigit()) && !id.is_empty();
                return if is_hex { format!("0x{id}") } else { "NULL".to_owned() };
            }
        }
        self.literal(id)
    }

    /// The id of a row as text.
    pub fn id_text(&self, alias: &str) -> String {
        let id = format!("{alias}.{}", self.quote(&self.names.id));
        match self.dialect {
            Dialect::Postgres => format!("{id}::text"),
            Dialect::Sqlite => format!("CAST({id} AS TEXT)"),
            Dialect::Mysql if self.kind(&self.names.id).ends_with("binary") => {
                format!("LOWER(HEX({id}))")
            }
            Dialect::Mysql => format!("CAST({id} AS CHAR)"),
        }
    }

    /// True for a row that has not been processed.
    pub fn pending(&self, alias: &str) -> String {
        let dot = if alias.is_empty() { "" } else { "." };
        let processed = format!("{alias}{dot}{}", self.quote(&self.names.processed));
        let nullable = self.column(&self.names.processed).is_none_or(|column| column.nullable);
        let nullable = nullable && !self.plant.is(Bug::NullsForgotten);
        match (self.dialect, nullable) {
            (Dialect::Sqlite, false) if self.plant.is(Bug::NullsForgotten) => {
                format!("{processed} = 0")
            }
            (Dialect::Postgres, false) => format!("NOT {processed}"),
            // SQLite keeps texts such as 'false' in a column of any type.
            (Dialect::Postgres, true) | (Dialect::Sqlite, _) => format!("{processed} IS NOT TRUE"),
            (Dialect::Mysql, false) => format!("{processed} = 0"),
            (Dialect::Mysql, true) => format!("({processed} = 0 OR {processed} IS NULL)"),
        }
    }

    /// True, as the column has it.
    pub fn yes(&self) -> &'static str {
        match self.dialect {
            Dialect::Postgres => "true",
            Dialect::Sqlite | Dialect::Mysql => "1",
        }
    }

    /// False, as the column has it.
    pub fn no(&self) -> &'static str {
        match self.dialect {
            Dialect::Postgres => "false",
            Dialect::Sqlite | Dialect::Mysql => "0",
        }
    }

    /// What rows are ordered by.
    pub fn order_by(&self, alias: &str) -> Vec<String> {
        let column = |name: &str| format!("{alias}.{}", self.quote(name));
        match &self.order {
            Order::Column(name) => vec![column(name)],
            Order::Rowid => vec![format!("{alias}.rowid")],
            Order::Time => vec![column(&self.names.added_at), column(&self.names.id)],
        }
    }

    /// True for a row that is processed.
    pub fn is_processed(&self) -> String {
        let processed = self.quote(&self.names.processed);
        match self.dialect {
            Dialect::Postgres => processed,
            Dialect::Sqlite => format!("{processed} IS TRUE"),
            Dialect::Mysql => format!("{processed} = 1"),
        }
    }

    /// Now, as leases and waits are kept.
    pub fn now(&self) -> &'static str {
        match self.dialect {
            Dialect::Postgres => "clock_timestamp()",
            Dialect::Mysql => "UTC_TIMESTAMP(6)",
            Dialect::Sqlite => "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
        }
    }

    /// Milliseconds since 1970.
    pub fn now_ms(&self) -> &'static str {
        match self.dialect {
            Dialect::Postgres => "(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
            Dialect::Mysql => "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)",
            Dialect::Sqlite => self.now(),
        }
    }

    /// So long from now.
    pub fn in_time(&self, wait: Duration) -> String {
        let ms = wait.as_millis();
        let now = self.now();
        match self.dialect {
            Dialect::Postgres => format!("{now} + interval '{ms} milliseconds'"),
            Dialect::Mysql => format!("{now} + INTERVAL {ms}000 MICROSECOND"),
            Dialect::Sqlite => format!("{now} + {ms}"),
        }
    }

    /// Milliseconds from now to that time.
    pub fn ms_until(&self, column: &str) -> String {
        let now = self.now();
        match self.dialect {
            Dialect::Postgres => {
                format!("(extract(epoch FROM ({column} - {now})) * 1000)::bigint")
            }
            Dialect::Mysql => format!("TIMESTAMPDIFF(MICROSECOND, {now}, {column}) DIV 1000"),
            Dialect::Sqlite => format!("({column} - {now})"),
        }
    }

    /// Now, as a column of the table keeps it: where it has no zone, in UTC.
    pub fn now_for(&self, column: &str) -> String {
        match (self.dialect, self.kind(column)) {
            (Dialect::Postgres, "timestamp") => "clock_timestamp() AT TIME ZONE 'UTC'".to_owned(),
            (Dialect::Postgres, _) => "clock_timestamp()".to_owned(),
            (Dialect::Mysql, _) => "UTC_TIMESTAMP(6)".to_owned(),
            (Dialect::Sqlite, _) => "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')".to_owned(),
        }
    }

    /// True for a time of the table that is longer ago.
    pub fn is_older(&self, column: &str, age: Duration) -> String {
        let (seconds, name) = (age.as_secs(), self.quote(column));
        match self.dialect {
            Dialect::Postgres => {
                format!("{name} < {} - interval '{seconds} seconds'", self.now_for(column))
            }
            Dialect::Mysql => format!("{name} < UTC_TIMESTAMP(6) - INTERVAL {seconds} SECOND"),
            Dialect::Sqlite => format!("unixepoch({name}) < unixepoch('now') - {seconds}"),
        }
    }

    /// Milliseconds since 1970 of a time of the table.
    pub fn epoch_ms(&self, alias: &str, column: &str) -> String {
        let name = format!("{alias}.{}", self.quote(column));
        match self.dialect {
            // A time may be infinite.
            Dialect::Postgres => format!(
                "CASE WHEN isfinite({name}) THEN (extract(epoch FROM {name}) * 1000)::bigint END"
            ),
            Dialect::Mysql => format!("CAST(UNIX_TIMESTAMP({name}) * 1000 AS SIGNED)"),
            Dialect::Sqlite => format!("CAST(unixepoch({name}, 'subsec') * 1000 AS INTEGER)"),
        }
    }

    /// A time of the table as text; with `Z` only where the column has a zone.
    pub fn time_text(&self, alias: &str, column: &str) -> String {
        let name = format!("{alias}.{}", self.quote(column));
        match (self.dialect, self.kind(column)) {
            (Dialect::Postgres, "timestamptz") => {
                format!("to_char({name} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
            }
            (Dialect::Postgres, "timestamp") => {
                format!("to_char({name}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US')")
            }
            (Dialect::Mysql, "timestamp") => {
                format!("DATE_FORMAT({name}, '%Y-%m-%dT%H:%i:%s.%fZ')")
            }
            (Dialect::Mysql, "datetime") => format!("DATE_FORMAT({name}, '%Y-%m-%dT%H:%i:%s.%f')"),
            _ => self.as_text(&name),
        }
    }

    /// Any value as text.
    pub fn as_text(&self, value: &str) -> String {
        match self.dialect {
            Dialect::Postgres => format!("{value}::text"),
            Dialect::Sqlite => format!("CAST({value} AS TEXT)"),
            Dialect::Mysql => format!("CAST({value} AS CHAR)"),
        }
    }

    /// The payload, byte for byte as the database prints it; `is_hex` says how to read it.
    pub fn payload(&self, alias: &str) -> String {
        let name = format!("{alias}.{}", self.quote(&self.names.payload));
        match self.dialect {
            Dialect::Postgres if self.is_hex() => format!("encode({name}, 'hex')"),
            Dialect::Postgres => format!("{name}::text"),
            Dialect::Sqlite | Dialect::Mysql => name,
        }
    }

    /// The payload comes in hexadecimal digits.
    pub fn is_hex(&self) -> bool {
        self.dialect == Dialect::Postgres && self.kind(&self.names.payload) == "bytea"
    }

    /// Bytes of the payload, cheaply where that is no more than an estimate of little: PostgreSQL keeps
    /// long values compressed.
    pub fn payload_size(&self, alias: &str) -> String {
        let name = format!("{alias}.{}", self.quote(&self.names.payload));
        match self.dialect {
            Dialect::Postgres => {
                let (kept, bytes) = (format!("pg_column_size({name})"), self.payload_bytes(alias));
                format!("CASE WHEN {kept} < 256 THEN {kept} ELSE {bytes} END")
            }
            Dialect::Sqlite | Dialect::Mysql => format!("octet_length({name})"),
        }
    }

    /// Bytes of the payload, exactly.
    pub fn payload_bytes(&self, alias: &str) -> String {
        let name = format!("{alias}.{}", self.quote(&self.names.payload));
        match self.dialect {
            Dialect::Postgres if !self.is_hex() => format!("octet_length({name}::text)"),
            _ => format!("octet_length({name})"),
        }
    }

    /// Columns that become headers besides the three that always do.
    pub fn header_columns(&self) -> Vec<&str> {
        let traceparent = Some(self.names.traceparent.as_str());
        let traceparent = traceparent.filter(|name| self.column(name).is_some());
        traceparent.into_iter().chain(self.names.headers.iter().map(String::as_str)).collect()
    }

    /// Columns that can be written.
    pub(super) fn written(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().filter(|column| !column.generated).map(|column| column.name.as_str())
    }
}
