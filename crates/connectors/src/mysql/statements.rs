//! The statements of one destination, and a batch's way through them.
//!
//! A statement takes as many rows as it has places for, and each number of rows is a statement of
//! its own to the server; so numbers are powers of two, and a batch is cut into those.
//!
//! `INSERT IGNORE` would hide bad values, so parents are inserted with an update that changes
//! nothing. The driver asks the server to count such rows as found, and the count says nothing
//! about which they are; so the update notes the delivery id of each in a variable of the session.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use sqlx::error::BoxDynError;
use sqlx::mysql::{MySqlArguments, MySqlRow};
use sqlx::{Arguments as _, AssertSqlSafe, Error, MySqlConnection, Row as _};

use crate::sql::{Cell, Dialect, ExistingRow, OnceSteps, RecordRows, Rows, Tables};

/// Places for values in one statement. The server takes 65,535, but keeps half a kilobyte for
/// each, in every session.
const PLACES_MAX: usize = 4_096;
/// Rows looked for by one statement.
const LOOKUPS_MAX: usize = 64;
/// Room in a packet for what is not text.
const PACKET_RESERVE_BYTES: usize = 8 << 10;

/// Tables as they are, and the SQL for them.
pub(super) struct MysqlPlan {
    pub tables: Tables,
    packet_bytes_max: usize,
    inserts: Vec<MysqlInsert>,
    by_delivery_id: MysqlLookup,
    by_id: MysqlLookup,
}

/// Where a column's values come from.
#[derive(Clone, Copy)]
enum MysqlCellSource {
    /// A cell of the parent's row.
    Parent(usize),
    /// The place among the rows of the record.
    Element,
    /// A cell of the row itself.
    Field(usize),
}

/// An insert of 1, 2, 4 … rows.
struct MysqlInsert {
    head: String,
    /// The values of one row.
    row: String,
    tail: &'static str,
    columns: Vec<MysqlCellSource>,
    sizes: Sizes,
}

/// Reads 1, 2, 4 … rows by some of their columns.
struct MysqlLookup {
    /// Behind the number of the row.
    one: String,
    /// Cells of the parent's row.
    keys: Vec<usize>,
    sizes: Sizes,
}

/// The statement for each power of two, made when it is first needed.
#[derive(Default)]
struct Sizes([OnceLock<Arc<str>>; 16]);

impl Sizes {
    fn get(&self, rows: usize, make: impl FnOnce() -> String) -> Arc<str> {
        match self.0.get(rows.ilog2() as usize) {
            Some(place) => place.get_or_init(|| make().into()).clone(),
            None => make().into(),
        }
    }
}

/// Notes which rows were there already; the rows themselves stay as they are.
const NOTE: &str = " ON DUPLICATE KEY UPDATE `potok_id` = IF((@potok_there := \
                    CONCAT_WS('\\n', @potok_there, CAST(VALUES(`potok_id`) AS BINARY))) IS NULL, \
                    `potok_id`, `potok_id`)";
/// Forgets them, before each transaction.
pub(super) const BEGIN: &str = "SET @potok_there = NULL; START TRANSACTION";

impl MysqlPlan {
    pub fn new(tables: Tables, packet_bytes_max: usize) -> MysqlPlan {
        let packet_bytes_max = packet_bytes_max.saturating_sub(PACKET_RESERVE_BYTES).max(1);
        let tables = tables.with_row_bytes_max(packet_bytes_max);
        let ids: Vec<(usize, &str)> =
            tables.id_cells().into_iter().zip(tables.id_columns()).collect();
        MysqlPlan {
            inserts: (0..tables.names().count()).map(|index| insert(&tables, index)).collect(),
            by_delivery_id: lookup(&tables, &[(tables.delivery_id_cell(), "potok_id")]),
            by_id: lookup(&tables, &ids),
            packet_bytes_max,
            tables,
        }
    }
}

fn quote(name: &str) -> String {
    Dialect::Mysql.quote(name)
}

fn insert(tables: &Tables, index: usize) -> MysqlInsert {
    let fields = tables.columns(index);
    let own = tables.own_columns(index).into_iter().enumerate();
    let each_field = fields.iter().enumerate().map(|(at, column)| {
        let from =
            if index == 0 { MysqlCellSource::Parent(at) } else { MysqlCellSource::Field(at) };
        (from, column.name.as_str(), column.default.as_deref())
    });
    let columns: Vec<(MysqlCellSource, &str, Option<&str>)> = if index == 0 {
        let own = own.map(|(at, name)| (MysqlCellSource::Parent(fields.len() + at), name, None));
        each_field.chain(own).collect()
    } else {
        let ids = tables.id_cells();
        let own = own.map(|(at, name)| {
            let from =
                ids.get(at).map_or(MysqlCellSource::Element, |&cell| MysqlCellSource::Parent(cell));
            (from, name, None)
        });
        own.chain(each_field).collect()
    };
    let names: Vec<String> = columns.iter().map(|(_, name, _)| quote(name)).collect();
    let values: Vec<String> = columns
        .iter()
        .map(|(_, _, default)| match default {
            // A null would stand instead of the column's default.
            Some(default) => format!("COALESCE(?, {default})"),
            None => "?".to_owned(),
        })
        .collect();
    let table = quote(tables.names().nth(index).unwrap_or_default());
    MysqlInsert {
        head: format!("INSERT INTO {table} ({}) VALUES ", names.join(", ")),
        row: format!("({})", values.join(", ")),
        tail: if index == 0 { NOTE } else { "" },
        columns: columns.into_iter().map(|(from, _, _)| from).collect(),
        sizes: Sizes::default(),
    }
}

fn lookup(tables: &Tables, keys: &[(usize, &str)]) -> MysqlLookup {
    let matches: Vec<String> =
        keys.iter().map(|(_, name)| format!("{} = ?", quote(name))).collect();
    MysqlLookup {
        one: format!(
            ", `content_hash`, `potok_id` FROM {} WHERE {} LOCK IN SHARE MODE)",
            quote(tables.names().next().unwrap_or_default()),
            matches.join(" AND ")
        ),
        keys: keys.iter().map(|(cell, _)| *cell).collect(),
        sizes: Sizes::default(),
    }
}

/// A row to insert: its parent's row, its place, its fields.
type InsertRow<'a> = (&'a [Cell], Cell, &'a [Cell]);

impl MysqlInsert {
    fn cells<'a>(&'a self, row: &'a InsertRow<'_>) -> impl Iterator<Item = &'a Cell> {
        let (parent, element, fields) = row;
        self.columns.iter().filter_map(move |from| match from {
            MysqlCellSource::Parent(cell) => parent.get(*cell),
            MysqlCellSource::Element => Some(element),
            MysqlCellSource::Field(cell) => fields.get(*cell),
        })
    }

    /// What the rows take in a packet, and a little more.
    fn bytes(&self, rows: &[InsertRow<'_>]) -> usize {
        let bytes = |cell: &Cell| if let Cell::Text(range) = cell { range.len() + 9 } else { 8 };
        rows.iter().map(|row| self.cells(row).map(|cell| bytes(cell) + 3).sum::<usize>()).sum()
    }

    /// How many of these rows go next: a power of two.
    fn next(&self, rows: &[InsertRow<'_>], bytes_max: usize) -> usize {
        let places = PLACES_MAX / self.columns.len().max(1);
        let mut count = floor_power(rows.len().min(places.max(1)));
        while count > 1 && self.bytes(rows.get(..count).unwrap_or_default()) > bytes_max {
            count /= 2;
        }
        count
    }

    fn sql(&self, rows: usize) -> Arc<str> {
        self.sizes.get(rows, || {
            let values = vec![self.row.as_str(); rows].join(",");
            format!("{}{values}{}", self.head, self.tail)
        })
    }

    fn arguments(
        &self,
        rows: &Rows,
        chunk: &[InsertRow<'_>],
    ) -> Result<MySqlArguments, BoxDynError> {
        let mut arguments = MySqlArguments::default();
        arguments.reserve(chunk.len() * self.columns.len(), self.bytes(chunk));
        for row in chunk {
            for cell in self.cells(row) {
                add(&mut arguments, rows, cell)?;
            }
        }
        Ok(arguments)
    }
}

impl MysqlLookup {
    fn sql(&self, rows: usize) -> Arc<str> {
        self.sizes.get(rows, || {
            let each = (0..rows).map(|n| format!("(SELECT {n}{}", self.one));
            each.collect::<Vec<_>>().join(" UNION ALL ")
        })
    }
}

fn add(arguments: &mut MySqlArguments, rows: &Rows, cell: &Cell) -> Result<(), BoxDynError> {
    match cell {
        Cell::Null => arguments.add(None::<&str>),
        Cell::Integer(integer) => arguments.add(*integer),
        Cell::Real(real) => arguments.add(*real),
        Cell::Text(range) => arguments.add(rows.text(range)),
    }
}

/// The largest power of two that is not larger; of nothing, one.
fn floor_power(count: usize) -> usize {
    1 << count.max(1).ilog2()
}

/// A batch in its transaction.
pub(super) struct MysqlBatch<'a> {
    pub connection: &'a mut MySqlConnection,
    pub plan: &'a MysqlPlan,
    pub rows: &'a Rows,
}

impl MysqlBatch<'_> {
    async fn insert(
        &mut self,
        insert: &MysqlInsert,
        mut rows: &[InsertRow<'_>],
    ) -> Result<(), Error> {
        while !rows.is_empty() {
            let count = insert.next(rows, self.plan.packet_bytes_max);
            let (chunk, rest) = rows.split_at(count);
            let arguments = insert.arguments(self.rows, chunk).map_err(Error::Encode)?;
            let sql = AssertSqlSafe(insert.sql(count));
            sqlx::query_with(sql, arguments).execute(&mut *self.connection).await?;
            rows = rest;
        }
        Ok(())
    }

    async fn look_up(
        &mut self,
        lookup: &MysqlLookup,
        records: &[RecordRows<'_>],
    ) -> Result<Vec<Option<ExistingRow>>, Error> {
        let mut there = Vec::with_capacity(records.len());
        while let Some(rest) = records.get(there.len()..).filter(|rest| !rest.is_empty()) {
            let count = floor_power(rest.len().min(LOOKUPS_MAX));
            let mut arguments = MySqlArguments::default();
            for record in rest.iter().take(count) {
                for cell in lookup.keys.iter().filter_map(|&key| record.parent.get(key)) {
                    add(&mut arguments, self.rows, cell).map_err(Error::Encode)?;
                }
            }
            let sql = AssertSqlSafe(lookup.sql(count));
            let found = sqlx::query_with(sql, arguments).fetch_all(&mut *self.connection).await?;
            let before = there.len();
            there.resize(before + count, None);
            for row in &found {
                let at = usize::try_from(row.try_get_unchecked::<i64, _>(0)?).unwrap_or_default();
                if let Some(place) = there.get_mut(before + at) {
                    *place = Some(ExistingRow { hash: text(row, 1)?, delivery_id: text(row, 2)? });
                }
            }
        }
        Ok(there)
    }

    /// The positions that the last inserts noted.
    async fn noted(&mut self) -> Result<Vec<u8>, Error> {
        let row = sqlx::query("SELECT @potok_there").fetch_one(&mut *self.connection).await?;
        Ok(row.try_get_unchecked::<Option<Vec<u8>>, _>(0)?.unwrap_or_default())
    }
}

/// Whatever type the column has, potok's own values in it are text.
fn text(row: &MySqlRow, at: usize) -> Result<Option<String>, Error> {
    let bytes: Option<Vec<u8>> = row.try_get_unchecked(at)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

impl OnceSteps for MysqlBatch<'_> {
    type Error = Error;

    async fn insert_parents(&mut self, records: &[RecordRows<'_>]) -> Result<Vec<bool>, Error> {
        let Some(insert) = self.plan.inserts.first() else { return Ok(Vec::new()) };
        let rows: Vec<InsertRow<'_>> =
            records.iter().map(|record| (record.parent, Cell::Null, &[][..])).collect();
        self.insert(insert, &rows).await?;
        let noted = self.noted().await?;
        let there: HashSet<&[u8]> = if noted.is_empty() {
            HashSet::new()
        } else {
            noted.split(|byte| *byte == b'\n').collect()
        };
        let at = self.plan.tables.delivery_id_cell();
        let position = |record: &RecordRows<'_>| self.rows.text_of(record.parent, at).as_bytes();
        Ok(records.iter().map(|record| !there.contains(position(record))).collect())
    }

    async fn insert_children(&mut self, records: &[RecordRows<'_>]) -> Result<(), Error> {
        let mut tables: Vec<Vec<InsertRow<'_>>> = vec![Vec::new(); self.plan.inserts.len()];
        for record in records {
            for (table, element, cells) in record.children() {
                if let Some(rows) = tables.get_mut(table) {
                    rows.push((record.parent, Cell::Integer(element.into()), cells));
                }
            }
        }
        for (insert, rows) in self.plan.inserts.iter().zip(&tables) {
            self.insert(insert, rows).await?;
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
