//! The statements of one destination, and a batch's way through them.
//!
//! A table's rows travel as one array per column. `ON CONFLICT DO NOTHING` without a target takes
//! both unique keys, and waits where another transaction is about to insert the same key; which
//! rows are in is what `RETURNING` names.

use std::collections::HashSet;
use std::sync::Arc;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{AssertSqlSafe, Error, PgConnection, Row as _};

use super::arrays::{Elements, converted};
use crate::sql::{
    Bounds, Cell, ColumnKind, Dialect, ExistingRow, OnceSteps, RecordRows, Rows, Tables,
};

/// Tables as they are, and the SQL for them.
pub(super) struct PostgresPlan {
    pub tables: Tables,
    inserts: Vec<PostgresInsert>,
    by_delivery_id: PostgresLookup,
    by_id: PostgresLookup,
}

/// Where a column's values come from.
#[derive(Clone, Copy)]
enum PostgresCellSource {
    /// A cell of the parent's row.
    Parent(usize),
    /// The place among the rows of the record.
    Element,
    /// A cell of the row itself.
    Field(usize),
}

struct PostgresInsert {
    sql: Arc<str>,
    columns: Vec<(PostgresCellSource, Elements)>,
}

/// Reads rows by some of their columns.
struct PostgresLookup {
    sql: Arc<str>,
    /// Cells of the parent's row.
    keys: Vec<(usize, Elements)>,
}

impl PostgresPlan {
    pub fn new(tables: Tables) -> PostgresPlan {
        let ids: Vec<(usize, &str)> =
            tables.id_cells().into_iter().zip(tables.id_columns()).collect();
        PostgresPlan {
            inserts: (0..tables.names().count()).map(|index| insert(&tables, index)).collect(),
            by_delivery_id: lookup(&tables, &[(tables.delivery_id_cell(), "potok_id")]),
            by_id: lookup(&tables, &ids),
            tables,
        }
    }
}

/// `INSERT INTO "items" ("order_uid", "element", "price") SELECT … FROM UNNEST(…) …`.
fn insert(tables: &Tables, index: usize) -> PostgresInsert {
    let mut columns: Vec<(PostgresCellSource, &str, ColumnKind, &Bounds, Option<&str>)> =
        Vec::new();
    let none = Bounds::default();
    let own_bounds = tables.own_bounds(index);
    let own = tables.own_columns(index).into_iter().enumerate().map(|(at, name)| {
        let bounds = own_bounds.get(at).unwrap_or(&none);
        (at, name, bounds)
    });
    let fields = tables.columns(index);
    let each_field = fields.iter().enumerate().map(|(at, column)| {
        let from =
            if index == 0 { PostgresCellSource::Parent(at) } else { PostgresCellSource::Field(at) };
        (from, column.name.as_str(), column.kind, &column.bounds, column.default.as_deref())
    });
    if index == 0 {
        columns.extend(each_field);
        columns.extend(own.map(|(at, name, bounds)| {
            (PostgresCellSource::Parent(fields.len() + at), name, ColumnKind::Text, bounds, None)
        }));
    } else {
        let ids = tables.id_cells();
        columns.extend(own.map(|(at, name, bounds)| match ids.get(at) {
            Some(&cell) => {
                (PostgresCellSource::Parent(cell), name, tables.id_kind(name), bounds, None)
            }
            None => (PostgresCellSource::Element, name, ColumnKind::Integer, bounds, None),
        }));
        columns.extend(each_field);
    }

    let quote = |name: &str| Dialect::Postgres.quote(name);
    let mut names = Vec::with_capacity(columns.len());
    let (mut values, mut arrays, mut aliases) = (Vec::new(), Vec::new(), Vec::new());
    let mut sources = Vec::with_capacity(columns.len());
    for (at, (from, name, kind, bounds, default)) in columns.into_iter().enumerate() {
        let elements = Elements::of(kind, bounds);
        let value = converted(elements, bounds, &format!("u.c{at}"));
        names.push(quote(name));
        values.push(match default {
            // A null would stand instead of the column's default.
            Some(default) => format!("coalesce({value}, ({default}))"),
            None => value,
        });
        arrays.push(format!("${}::{}", at + 1, elements.array()));
        aliases.push(format!("c{at}"));
        sources.push((from, elements));
    }
    let once = if index == 0 { " ON CONFLICT DO NOTHING RETURNING \"potok_id\"::text" } else { "" };
    let sql = format!(
        "INSERT INTO {} ({}) SELECT {} FROM UNNEST({}) AS u({}){once}",
        quote(tables.names().nth(index).unwrap_or_default()),
        names.join(", "),
        values.join(", "),
        arrays.join(", "),
        aliases.join(", "),
    );
    PostgresInsert { sql: sql.into(), columns: sources }
}

/// Locks and reads the parents that have the keys of an array, each with its place in it.
fn lookup(tables: &Tables, keys: &[(usize, &str)]) -> PostgresLookup {
    let quote = |name: &str| Dialect::Postgres.quote(name);
    let fields = tables.columns(0);
    let (mut arrays, mut aliases, mut matches) = (Vec::new(), Vec::new(), Vec::new());
    let mut cells = Vec::with_capacity(keys.len());
    for (at, (cell, name)) in keys.iter().enumerate() {
        let own = |cell: usize| tables.own_bounds(0).get(cell.checked_sub(fields.len())?);
        let none = Bounds::default();
        let (kind, bounds) = match fields.get(*cell) {
            Some(column) => (column.kind, &column.bounds),
            None => (ColumnKind::Text, own(*cell).unwrap_or(&none)),
        };
        let elements = Elements::of(kind, bounds);
        arrays.push(format!("${}::{}", at + 1, elements.array()));
        aliases.push(format!("c{at}"));
        let value = converted(elements, bounds, &format!("k.c{at}"));
        matches.push(format!("p.{} = {value}", quote(name)));
        cells.push((*cell, elements));
    }
    let sql = format!(
        "SELECT k.n, p.\"content_hash\"::text, p.\"potok_id\"::text \
         FROM UNNEST({}) WITH ORDINALITY AS k({}, n) JOIN {} p ON {} FOR SHARE OF p",
        arrays.join(", "),
        aliases.join(", "),
        quote(tables.names().next().unwrap_or_default()),
        matches.join(" AND ")
    );
    PostgresLookup { sql: sql.into(), keys: cells }
}

/// A batch in its transaction.
pub(super) struct PostgresBatch<'a> {
    pub connection: &'a mut PgConnection,
    pub plan: &'a PostgresPlan,
    pub rows: &'a Rows,
}

/// A row of a child: its parent's row, its place, its fields.
type ChildRow<'a> = (&'a [Cell], Cell, &'a [Cell]);

impl PostgresBatch<'_> {
    async fn look_up(
        &mut self,
        lookup: &PostgresLookup,
        records: &[RecordRows<'_>],
    ) -> Result<Vec<Option<ExistingRow>>, Error> {
        let mut arguments = PgArguments::default();
        for (cell, elements) in &lookup.keys {
            let cells = records.iter().filter_map(|record| record.parent.get(*cell));
            elements.add(&mut arguments, self.rows, cells).map_err(Error::Encode)?;
        }
        let found = fetch(self.connection, &lookup.sql, arguments).await?;
        let mut there: Vec<Option<ExistingRow>> = vec![None; records.len()];
        for row in found {
            let at = usize::try_from(row.try_get::<i64, _>(0)?).unwrap_or_default();
            if let Some(place) = there.get_mut(at.wrapping_sub(1)) {
                *place = Some(ExistingRow { hash: row.try_get(1)?, delivery_id: row.try_get(2)? });
            }
        }
        Ok(there)
    }
}

impl OnceSteps for PostgresBatch<'_> {
    type Error = Error;

    async fn insert_parents(&mut self, records: &[RecordRows<'_>]) -> Result<Vec<bool>, Error> {
        let Some(insert) = self.plan.inserts.first() else { return Ok(Vec::new()) };
        let mut arguments = PgArguments::default();
        for (from, elements) in &insert.columns {
            let PostgresCellSource::Parent(cell) = from else { continue };
            let cells = records.iter().filter_map(|record| record.parent.get(*cell));
            elements.add(&mut arguments, self.rows, cells).map_err(Error::Encode)?;
        }
        let inserted = fetch(self.connection, &insert.sql, arguments).await?;
        if inserted.len() == records.len() {
            return Ok(vec![true; records.len()]);
        }
        let mut positions = HashSet::with_capacity(inserted.len());
        for row in &inserted {
            positions.insert(row.try_get::<&str, _>(0)?);
        }
        let at = self.plan.tables.delivery_id_cell();
        let position = |record: &RecordRows<'_>| self.rows.text_of(record.parent, at);
        Ok(records.iter().map(|record| positions.contains(position(record))).collect())
    }

    async fn insert_children(&mut self, records: &[RecordRows<'_>]) -> Result<(), Error> {
        let mut tables: Vec<Vec<ChildRow<'_>>> = vec![Vec::new(); self.plan.inserts.len()];
        for record in records {
            for (table, element, cells) in record.children() {
                if let Some(rows) = tables.get_mut(table) {
                    rows.push((record.parent, Cell::Integer(element.into()), cells));
                }
            }
        }
        for (insert, rows) in self.plan.inserts.iter().zip(tables) {
            if rows.is_empty() {
                continue;
            }
            let mut arguments = PgArguments::default();
            for (from, elements) in &insert.columns {
                let cells = rows.iter().filter_map(|(parent, element, cells)| match from {
                    PostgresCellSource::Parent(cell) => parent.get(*cell),
                    PostgresCellSource::Element => Some(element),
                    PostgresCellSource::Field(cell) => cells.get(*cell),
                });
                elements.add(&mut arguments, self.rows, cells).map_err(Error::Encode)?;
            }
            let sql = AssertSqlSafe(insert.sql.clone());
            sqlx::query_with(sql, arguments).execute(&mut *self.connection).await?;
        }
        Ok(())
    }

    async fn by_delivery_id(
        &mut self,
        records: &[RecordRows<'_>],
    ) -> Result<Vec<Option<ExistingRow>>, Error> {
        self.look_up(&self.plan.by_delivery_id, records).await
    }

    async fn by_id(
        &mut self,
        records: &[RecordRows<'_>],
    ) -> Result<Vec<Option<ExistingRow>>, Error> {
        self.look_up(&self.plan.by_id, records).await
    }
}

async fn fetch(
    connection: &mut PgConnection,
    sql: &Arc<str>,
    arguments: PgArguments,
) -> Result<Vec<PgRow>, Error> {
    sqlx::query_with(AssertSqlSafe(sql.clone()), arguments).fetch_all(connection).await
}
