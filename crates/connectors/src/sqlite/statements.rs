//! The statements of one destination, and one record's way through them.
//!
//! The parent is inserted with `ON CONFLICT DO NOTHING`; whether a row that was not inserted is a
//! repeat or a conflict is decided afterwards, by reads in the same transaction, so that nobody
//! can get in between. Children are inserted for inserted parents only.

use potok_core::Outcome;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, Error, ToSql};

use crate::sql::{Cell, Dialect, RecordRows, Rows, Tables, conflict, unexplained};

/// Tables as they are, and the SQL for them.
#[derive(Debug)]
pub(super) struct SqlitePlan {
    pub tables: Tables,
    inserts: Vec<String>,
    by_delivery_id: String,
    by_id: String,
    id_cells: Vec<usize>,
    /// For each table, whether its rows have an `element`.
    each: Vec<bool>,
}

impl SqlitePlan {
    pub fn new(tables: Tables) -> SqlitePlan {
        let quote = |name: &str| Dialect::Sqlite.quote(name);
        let parent = quote(tables.names().next().unwrap_or_default());
        let ids: Vec<String> = tables.id_columns().iter().map(|name| quote(name)).collect();
        let matches: Vec<String> =
            ids.iter().enumerate().map(|(at, id)| format!("{id} = ?{}", at + 1)).collect();
        SqlitePlan {
            inserts: (0..tables.names().count()).map(|index| insert(&tables, index)).collect(),
            by_delivery_id: format!("SELECT 1 FROM {parent} WHERE \"potok_id\" = ?1"),
            by_id: format!(
                "SELECT \"content_hash\", \"potok_id\" FROM {parent} WHERE {}",
                matches.join(" AND ")
            ),
            id_cells: tables.id_cells(),
            each: tables.each(),
            tables,
        }
    }

    /// Prepares the inserts; SQLite keeps them between transactions.
    pub fn ready<'c>(&'c self, connection: &'c Connection) -> Result<PreparedPlan<'c>, Error> {
        let inserts = self.inserts.iter().map(|sql| connection.prepare_cached(sql));
        Ok(PreparedPlan { plan: self, connection, inserts: inserts.collect::<Result<_, _>>()? })
    }
}

/// `INSERT INTO "items" ("order_uid", "element", "price") VALUES (?1, ?2, ?3)`.
fn insert(tables: &Tables, index: usize) -> String {
    let own = tables.own_columns(index).into_iter().map(|name| (name, None));
    let fields = tables.columns(index).iter().map(|c| (c.name.as_str(), c.default.as_deref()));
    let columns: Vec<(&str, Option<&str>)> =
        if index == 0 { fields.chain(own).collect() } else { own.chain(fields).collect() };
    let names: Vec<String> = columns.iter().map(|(name, _)| Dialect::Sqlite.quote(name)).collect();
    let values: Vec<String> = columns
        .iter()
        .enumerate()
        .map(|(at, (_, default))| match default {
            // A null would stand instead of the column's default.
            Some(default) => format!("coalesce(?{}, ({default}))", at + 1),
            None => format!("?{}", at + 1),
        })
        .collect();
    let once = if index == 0 { " ON CONFLICT DO NOTHING" } else { "" };
    let table = Dialect::Sqlite.quote(tables.names().nth(index).unwrap_or_default());
    format!("INSERT INTO {table} ({}) VALUES ({}){once}", names.join(", "), values.join(", "))
}

/// Statements ready to run.
pub(super) struct PreparedPlan<'c> {
    plan: &'c SqlitePlan,
    connection: &'c Connection,
    inserts: Vec<CachedStatement<'c>>,
}

impl PreparedPlan<'_> {
    /// Inserts the rows of one record; `None` when they are in, else how it ended instead. After
    /// an error rows of it may be there: the caller rolls back.
    pub fn insert(
        &mut self,
        rows: &Rows,
        record: &RecordRows<'_>,
    ) -> Result<Option<Outcome>, Error> {
        let Some((parent, children)) = self.inserts.split_first_mut() else { return Ok(None) };
        for (at, cell) in record.parent.iter().enumerate() {
            parent.raw_bind_parameter(at + 1, Bound { cell, rows })?;
        }
        if parent.raw_execute()? == 0 {
            return self.decide(rows, record).map(Some);
        }
        for (table, element, cells) in record.children() {
            let Some(statement) = children.get_mut(table - 1) else { continue };
            let mut at = 0;
            for cell in self.plan.id_cells.iter().filter_map(|&id| record.parent.get(id)) {
                at += 1;
                statement.raw_bind_parameter(at, Bound { cell, rows })?;
            }
            if self.plan.each.get(table) == Some(&true) {
                at += 1;
                statement.raw_bind_parameter(at, element)?;
            }
            for cell in cells {
                at += 1;
                statement.raw_bind_parameter(at, Bound { cell, rows })?;
            }
            statement.raw_execute()?;
        }
        Ok(None)
    }

    /// The parent row was not inserted: why?
    fn decide(&self, rows: &Rows, record: &RecordRows<'_>) -> Result<Outcome, Error> {
        let tables = &self.plan.tables;
        let text = |index: usize| rows.text_of(record.parent, index);
        let (hash, position) = (text(tables.hash_cell()), text(tables.delivery_id_cell()));
        let mut by_delivery_id = self.connection.prepare_cached(&self.plan.by_delivery_id)?;
        if by_delivery_id.exists([position])? {
            return Ok(Outcome::Again);
        }
        let mut by_id = self.connection.prepare_cached(&self.plan.by_id)?;
        for (at, cell) in
            self.plan.id_cells.iter().filter_map(|&id| record.parent.get(id)).enumerate()
        {
            by_id.raw_bind_parameter(at + 1, Bound { cell, rows })?;
        }
        let mut found = by_id.raw_query();
        let Some(row) = found.next()? else {
            return Ok(Outcome::Failed(unexplained()));
        };
        let (other_hash, other): (Option<String>, Option<String>) = (row.get(0)?, row.get(1)?);
        if other_hash.as_deref() == Some(hash) {
            return Ok(Outcome::Duplicate);
        }
        Ok(Outcome::Failed(conflict(tables, rows, record, other)))
    }
}

/// A cell as SQLite binds it: text straight from the buffer.
struct Bound<'a> {
    cell: &'a Cell,
    rows: &'a Rows,
}

impl ToSql for Bound<'_> {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>, Error> {
        Ok(ToSqlOutput::Borrowed(match self.cell {
            Cell::Null => ValueRef::Null,
            Cell::Integer(integer) => ValueRef::Integer(*integer),
            Cell::Real(real) => ValueRef::Real(*real),
            Cell::Text(range) => ValueRef::Text(self.rows.text(range).as_bytes()),
        }))
    }
}
