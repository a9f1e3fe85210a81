//! Once per delivery id and once per business id, on a server that many write to.
//!
//! Parents are inserted where neither their id nor their position is there; what was not inserted
//! is explained afterwards by locking reads in the same transaction, so that nobody gets in
//! between. Children follow for inserted parents only. Parents go in the order of their keys: two
//! transactions with the same ids then wait for each other instead of in a circle. Of several
//! records with one id the first in the batch wins, because the order is stable.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::future::Future;

use potok_core::{Fault, Outcome, Reason};

use super::rows::{Cell, RecordRows, Rows};
use super::{Endings, Tables};

/// How one system does the steps, within a transaction that is open. Answers are in the order of
/// the records asked about.
pub(crate) trait OnceSteps {
    /// What a step may fail with.
    type Error: Send;

    /// Inserts parents, in this order; which of them are in.
    fn insert_parents(
        &mut self,
        records: &[RecordRows<'_>],
    ) -> impl Future<Output = Result<Vec<bool>, Self::Error>> + Send;

    /// Inserts the children of these records.
    fn insert_children(
        &mut self,
        records: &[RecordRows<'_>],
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Locks and reads the rows that have the records' positions.
    fn by_delivery_id(
        &mut self,
        records: &[RecordRows<'_>],
    ) -> impl Future<Output = Result<Vec<Option<ExistingRow>>, Self::Error>> + Send;

    /// Locks and reads the rows that have the records' ids.
    fn by_id(
        &mut self,
        records: &[RecordRows<'_>],
    ) -> impl Future<Output = Result<Vec<Option<ExistingRow>>, Self::Error>> + Send;
}

/// A row that is there.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExistingRow {
    /// Its `content_hash`.
    pub hash: Option<String>,
    /// Its `potok_id`.
    pub delivery_id: Option<String>,
}

/// Writes the rows of one call; returns how each record ended that was not inserted. The caller
/// commits, or rolls back after an error.
pub(crate) async fn write<O: OnceSteps>(
    once: &mut O,
    tables: &Tables,
    rows: &Rows,
) -> Result<Endings, O::Error> {
    // The same name twice in one call: the second is decided when the first is.
    let mut seen = HashSet::new();
    let position = |record: &RecordRows<'_>| rows.text_of(record.parent, tables.delivery_id_cell());
    let (mut waiting, again): (Vec<RecordRows<'_>>, Vec<_>) =
        rows.records(tables).partition(|record| seen.insert(position(record)));
    let ids = tables.id_cells();
    waiting.sort_by(|one, other| by_key(rows, &ids, one, other));

    let mut endings = Endings::new();
    let mut inserted = Vec::with_capacity(waiting.len());
    // What stood in the way may be gone when it is looked for: then once more.
    for _ in 0..2 {
        let taken = once.insert_parents(&waiting).await?;
        let mut out = Vec::new();
        for (record, taken) in waiting.into_iter().zip(taken) {
            if taken { inserted.push(record) } else { out.push(record) }
        }
        waiting = explain(once, tables, rows, out, &mut endings).await?;
        if waiting.is_empty() {
            break;
        }
    }
    endings.extend(waiting.iter().map(|record| (record.message, Outcome::Failed(unexplained()))));
    if !inserted.is_empty() {
        once.insert_children(&inserted).await?;
    }
    for record in explain(once, tables, rows, again, &mut endings).await? {
        let fault = Fault::retry("the same name twice in one call").code("P0311");
        endings.push((record.message, Outcome::Failed(fault)));
    }
    Ok(endings)
}

/// Decides for records that were not inserted; returns those for which nothing was found.
async fn explain<'a, O: OnceSteps>(
    once: &mut O,
    tables: &Tables,
    rows: &Rows,
    records: Vec<RecordRows<'a>>,
    endings: &mut Endings,
) -> Result<Vec<RecordRows<'a>>, O::Error> {
    if records.is_empty() {
        return Ok(records);
    }
    let found = once.by_delivery_id(&records).await?;
    let mut others = Vec::new();
    for (record, found) in records.into_iter().zip(found) {
        match found {
            Some(_) => endings.push((record.message, Outcome::Again)),
            None => others.push(record),
        }
    }
    if others.is_empty() {
        return Ok(others);
    }
    let found = once.by_id(&others).await?;
    let mut unexplained = Vec::new();
    for (record, found) in others.into_iter().zip(found) {
        let Some(there) = found else {
            unexplained.push(record);
            continue;
        };
        let hash = rows.text_of(record.parent, tables.hash_cell());
        let outcome = if there.hash.as_deref() == Some(hash) {
            Outcome::Duplicate
        } else {
            Outcome::Failed(conflict(tables, rows, &record, there.delivery_id))
        };
        endings.push((record.message, outcome));
    }
    Ok(unexplained)
}

/// The fault of a record whose id is there with other content. `other` is the delivery id of the
/// row that is there.
pub(crate) fn conflict(
    tables: &Tables,
    rows: &Rows,
    record: &RecordRows<'_>,
    other: Option<String>,
) -> Fault {
    let position = rows.text_of(record.parent, tables.delivery_id_cell());
    let id: Vec<String> = tables.id_cells().into_iter().map(|at| shown(rows, record, at)).collect();
    let other = other.unwrap_or_else(|| "a row potok did not write".to_owned());
    Fault::set_aside(
        Reason::Conflict,
        format!(
            "{} `{}` of {position} is already there with other content, from {other}",
            tables.id_columns().join(", "),
            id.join("`, `")
        ),
    )
    .code("P0309")
}

/// The fault of a record that was not inserted for a reason nobody can see.
pub(crate) fn unexplained() -> Fault {
    Fault::set_aside(
        Reason::Refused,
        "the row was not inserted, though neither its id nor its delivery id is there",
    )
    .hint("look for another unique index or a trigger on the table")
    .code("P0307")
}

/// A key value for a message, cut short.
fn shown(rows: &Rows, record: &RecordRows<'_>, at: usize) -> String {
    const SHOWN_MAX: usize = 100;
    match record.parent.get(at) {
        Some(Cell::Text(range)) => rows.text(range).chars().take(SHOWN_MAX).collect(),
        Some(Cell::Integer(integer)) => integer.to_string(),
        Some(Cell::Real(real)) => real.to_string(),
        Some(Cell::Null) | None => String::new(),
    }
}

/// Any order will do, as long as everybody has the same.
fn by_key(rows: &Rows, ids: &[usize], one: &RecordRows<'_>, other: &RecordRows<'_>) -> Ordering {
    let cells = ids.iter().map(|&at| (one.parent.get(at), other.parent.get(at)));
    cells
        .map(|pair| match pair {
            (Some(Cell::Text(one)), Some(Cell::Text(other))) => {
                rows.text(one).as_bytes().cmp(rows.text(other).as_bytes())
            }
            (Some(Cell::Integer(one)), Some(Cell::Integer(other))) => one.cmp(other),
            (Some(Cell::Real(one)), Some(Cell::Real(other))) => one.total_cmp(other),
            _ => Ordering::Equal,
        })
        .find(|ordering| ordering.is_ne())
        .unwrap_or(Ordering::Equal)
}
