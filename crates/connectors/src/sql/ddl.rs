//! The statements that create the tables.

use std::fmt::Write as _;

use super::tables::{CONTENT_HASH, ELEMENT, Kind, ONCE_ID, POSITION, Tables};

/// A system's way of writing SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// SQLite. Its default collation compares bytes, as keys must.
    Sqlite,
}

impl Dialect {
    /// A name as an identifier: always quoted, so that any word will do.
    pub fn quote(self, name: &str) -> String {
        match self {
            Dialect::Sqlite => format!("\"{}\"", name.replace('"', "\"\"")),
        }
    }

    fn quote_all(self, names: &[&str]) -> String {
        names.iter().map(|name| self.quote(name)).collect::<Vec<_>>().join(", ")
    }

    fn type_name(self, kind: Kind) -> &'static str {
        match (self, kind) {
            (Dialect::Sqlite, Kind::Text | Kind::Json) => "TEXT",
            (Dialect::Sqlite, Kind::Integer | Kind::Boolean) => "INTEGER",
            (Dialect::Sqlite, Kind::Real) => "REAL",
            (Dialect::Sqlite, Kind::Any) => "ANY",
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
        let columns: Vec<(&str, Kind, bool)> =
            if index == 0 { fields.chain(own).collect() } else { own.chain(fields).collect() };

        let mut sql = format!("CREATE TABLE IF NOT EXISTS {} (\n", dialect.quote(&table.name));
        for (name, kind, never_null) in columns {
            let not_null = if never_null { " NOT NULL" } else { "" };
            let (name, kind) = (dialect.quote(name), dialect.type_name(kind));
            // Writing to a String does not fail.
            let _ = writeln!(sql, "  {name} {kind}{not_null},");
        }
        let mut key = ids.clone();
        if index > 0 && table.path.is_each() {
            key.push(ELEMENT);
        }
        let _ = write!(sql, "  PRIMARY KEY ({})", dialect.quote_all(&key));
        if index == 0 && key != [POSITION] {
            let _ = write!(sql, ",\n  UNIQUE ({})", dialect.quote(POSITION));
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
        });
        sql
    }

    /// The statement that adds a missing column. It cannot demand a value: rows may exist.
    pub(super) fn add_column(
        &self,
        dialect: Dialect,
        table: &str,
        name: &str,
        kind: Kind,
    ) -> String {
        let (table, name) = (dialect.quote(table), dialect.quote(name));
        format!("ALTER TABLE {table} ADD COLUMN {name} {}", dialect.type_name(kind))
    }

    /// What a column that no field fills holds.
    pub(super) fn own_kind(&self, name: &str) -> Kind {
        match name {
            CONTENT_HASH | POSITION | ONCE_ID => Kind::Text,
            ELEMENT => Kind::Integer,
            id => self.id_kind(id),
        }
    }
}
