//! The statements that create the tables.

use std::fmt::Write as _;

use potok_core::Fault;

use super::tables::{CONTENT_HASH, ColumnKind, ELEMENT, ONCE_ID, POTOK_ID, Tables, problem};

/// A system's way of writing SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// SQLite. Its default collation compares bytes, as keys must.
    Sqlite,
    /// PostgreSQL. Keys have the collation `C`.
    Postgres,
    /// MariaDB and MySQL. Keys have a collation that compares bytes and does not pad: the others
    /// take `a` and `a ` for the same.
    Mysql,
}

/// Characters of a delivery id in MariaDB and MySQL: the longest name of a topic, and some.
const POTOK_ID_CHARS_MAX: usize = 500;
/// Characters of a key in MariaDB and MySQL where there is room for more.
const KEY_CHARS_MAX: usize = 512;
/// Bytes that an index of InnoDB takes.
const INNODB_KEY_BYTES_MAX: usize = 3_072;

impl Dialect {
    /// A name as an identifier: always quoted, so that any word will do.
    pub fn quote(self, name: &str) -> String {
        match self {
            Dialect::Sqlite | Dialect::Postgres => format!("\"{}\"", name.replace('"', "\"\"")),
            Dialect::Mysql => format!("`{}`", name.replace('`', "``")),
        }
    }

    fn quote_all(self, names: &[&str]) -> String {
        names.iter().map(|name| self.quote(name)).collect::<Vec<_>>().join(", ")
    }

    /// Two names of columns that mean the same one.
    pub(super) fn is_same_name(self, one: &str, other: &str) -> bool {
        match self {
            Dialect::Sqlite | Dialect::Mysql => one.eq_ignore_ascii_case(other),
            // Quoted, as they always are here, names keep their case.
            Dialect::Postgres => one == other,
        }
    }

    /// Why a name will not do; it would be cut or refused later.
    fn name_problem(self, name: &str) -> Option<&'static str> {
        match self {
            Dialect::Postgres if name.len() > 63 => Some("names have at most 63 bytes"),
            Dialect::Mysql if name.chars().count() > 64 => Some("names have at most 64 characters"),
            Dialect::Mysql if name.ends_with(' ') => Some("names do not end with a space"),
            Dialect::Mysql if name.chars().any(|c| c > '\u{ffff}') => {
                Some("names have no characters beyond U+FFFF")
            }
            _ => None,
        }
    }

    /// Bytes of text in a key, where the limit is that of an index and not of a column.
    pub(super) fn key_bytes_max(self) -> Option<usize> {
        match self {
            // A third of a page. Longer keys may fit when compressed, which nobody can foresee.
            Dialect::Postgres => Some(2_600),
            Dialect::Sqlite | Dialect::Mysql => None,
        }
    }

    /// What to know about keys that compare bytes.
    pub(super) fn bytewise_hint(self) -> &'static str {
        match self {
            Dialect::Mysql => {
                " (text needs a collation that does not pad, like utf8mb4_nopad_bin, or VARBINARY)"
            }
            Dialect::Sqlite | Dialect::Postgres => "",
        }
    }

    fn type_name(self, kind: ColumnKind) -> &'static str {
        match (self, kind) {
            (Dialect::Sqlite, ColumnKind::Integer | ColumnKind::Boolean) => "INTEGER",
            (Dialect::Sqlite, ColumnKind::Real) => "REAL",
            (Dialect::Sqlite, ColumnKind::Any) => "ANY",
            (Dialect::Sqlite | Dialect::Postgres, ColumnKind::Text)
            | (Dialect::Sqlite, ColumnKind::Json) => "TEXT",
            // Not `jsonb`, which rewrites what it keeps.
            (Dialect::Postgres, ColumnKind::Json | ColumnKind::Any) => "JSON",
            (Dialect::Postgres | Dialect::Mysql, ColumnKind::Integer) => "BIGINT",
            (Dialect::Postgres, ColumnKind::Real) => "DOUBLE PRECISION",
            (Dialect::Postgres | Dialect::Mysql, ColumnKind::Boolean) => "BOOLEAN",
            (Dialect::Mysql, ColumnKind::Real) => "DOUBLE",
            // JSON too: the type of that name refuses deep values, or rewrites what it keeps.
            (Dialect::Mysql, ColumnKind::Text | ColumnKind::Json | ColumnKind::Any) => "LONGTEXT",
        }
    }
}

impl Tables {
    /// The statements that create the tables, parent first; none where the columns are not known
    /// because there is no schema. Repeatable: they change nothing that exists.
    pub fn ddl(&self, dialect: Dialect) -> Vec<String> {
        if !self.known {
            return Vec::new();
        }
        (0..self.tables.len()).map(|index| self.create(dialect, index)).collect()
    }

    /// Names that this system would cut or refuse; all at once.
    pub(crate) fn check_names(&self, dialect: Dialect) -> Result<(), Vec<Fault>> {
        let mut faults = Vec::new();
        for table in &self.tables {
            let columns = table.columns.iter().map(|column| (&column.name, "column"));
            for (name, what) in [(&table.name, "table")].into_iter().chain(columns) {
                if let Some(why) = dialect.name_problem(name) {
                    let what = format!("`{name}` cannot be the name of a {what}: {why}");
                    let hint = "give the table another name, or rename the field in a `vrl` stage";
                    faults.push(problem(self.label(), &what, hint));
                }
            }
        }
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    /// The statement that creates one table.
    pub(super) fn create(&self, dialect: Dialect, index: usize) -> String {
        let Some(table) = self.tables.get(index) else { return String::new() };
        let ids = self.id_columns();
        let fields = table.columns.iter().map(|column| {
            // An id is there or the record is a dead letter, whatever the schema says.
            let never_null = column.required || index == 0 && ids.contains(&column.name.as_str());
            (column.name.as_str(), column.kind, never_null)
        });
        let own = self.own_columns(index);
        let own = own.iter().map(|name| (*name, self.own_kind(name), true));
        let columns: Vec<(&str, ColumnKind, bool)> =
            if index == 0 { fields.chain(own).collect() } else { own.chain(fields).collect() };

        let mut sql = format!("CREATE TABLE IF NOT EXISTS {} (\n", dialect.quote(&table.name));
        for (name, kind, never_null) in columns {
            let not_null = if never_null { " NOT NULL" } else { "" };
            let (quoted, kind) =
                (dialect.quote(name), self.column_type(dialect, index, name, kind));
            // Writing to a String does not fail.
            let _ = writeln!(sql, "  {quoted} {kind}{not_null},");
        }
        let mut key = ids.clone();
        if index > 0 && table.path.is_each() {
            key.push(ELEMENT);
        }
        let _ = write!(sql, "  PRIMARY KEY ({})", dialect.quote_all(&key));
        if index == 0 && key != [POTOK_ID] {
            let _ = write!(sql, ",\n  UNIQUE ({})", dialect.quote(POTOK_ID));
        }
        if let (true, Some(parent)) = (index > 0, self.tables.first()) {
            let ids = dialect.quote_all(&ids);
            let parent = dialect.quote(&parent.name);
            let _ = write!(
                sql,
                ",\n  FOREIGN KEY ({ids}) REFERENCES {parent} ({ids}) ON DELETE CASCADE"
            );
        }
        sql.push_str(match dialect {
            // Strict: a column takes its type and nothing else.
            Dialect::Sqlite => "\n) STRICT",
            Dialect::Postgres => "\n)",
            Dialect::Mysql => {
                "\n) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 \
                 COLLATE=utf8mb4_nopad_bin"
            }
        });
        sql
    }

    /// The statement that adds a missing column. It cannot demand a value: rows may exist.
    pub(super) fn add_column(
        &self,
        dialect: Dialect,
        index: usize,
        name: &str,
        kind: ColumnKind,
    ) -> String {
        let table = dialect.quote(self.tables.get(index).map_or("", |table| &table.name));
        let kind = self.column_type(dialect, index, name, kind);
        format!("ALTER TABLE {table} ADD COLUMN {} {kind}", dialect.quote(name))
    }

    /// The type of a column of the table at `index`; text in a key has one of its own.
    fn column_type(&self, dialect: Dialect, index: usize, name: &str, kind: ColumnKind) -> String {
        let is_key = self.own_columns(index).contains(&name)
            || index == 0 && self.id_columns().contains(&name);
        match dialect {
            Dialect::Postgres if is_key && kind == ColumnKind::Text => {
                "TEXT COLLATE \"C\"".to_owned()
            }
            Dialect::Mysql if is_key && kind == ColumnKind::Text => {
                format!("VARCHAR({})", self.key_chars(name))
            }
            _ => dialect.type_name(kind).to_owned(),
        }
    }

    /// Characters of a key column of MariaDB and MySQL, so that all of the key fits into an index
    /// together with `element`.
    fn key_chars(&self, name: &str) -> usize {
        match name {
            CONTENT_HASH => 64,
            POTOK_ID => POTOK_ID_CHARS_MAX,
            _ => {
                let ids = self.id_columns();
                let texts =
                    ids.iter().filter(|id| self.id_kind(id) == ColumnKind::Text).count().max(1);
                let others = (ids.len() + 1).saturating_sub(texts) * 8;
                (INNODB_KEY_BYTES_MAX.saturating_sub(others) / 4 / texts).min(KEY_CHARS_MAX)
            }
        }
    }

    /// What a column that no field fills holds.
    pub(super) fn own_kind(&self, name: &str) -> ColumnKind {
        match name {
            CONTENT_HASH | POTOK_ID | ONCE_ID => ColumnKind::Text,
            ELEMENT => ColumnKind::Integer,
            id => self.id_kind(id),
        }
    }
}
