//! The values of a record's rows.
//!
//! Read once, on the lane that delivers, into flat buffers: no allocation per value, and whoever
//! runs the statements only binds. A record whose values do not fit its columns leaves nothing
//! behind and says why. Values are never bent: a number that a column cannot keep exactly, a
//! text with a NUL, a field without a column are refused, not changed or dropped.

use std::fmt::Write as _;
use std::ops::Range;

use potok_core::{Fault, Message, Reason};
use potok_expr::json::{self, Node, Parser};
use sha2::{Digest, Sha256};

use super::ColumnKind;
use super::tables::{Bounds, Column, FieldTarget, ParentId, Table, Tables};

/// One value. Text lies in the buffer of its [`Rows`].
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Null,
    /// An integer, or 0 and 1 for false and true.
    Integer(i64),
    /// A number.
    Real(f64),
    /// Bytes of the text buffer.
    Text(Range<usize>),
}

/// The rows of many records.
#[derive(Debug, Default)]
pub struct Rows {
    text: String,
    cells: Vec<Cell>,
    /// For each record, the number of rows in each child table.
    counts: Vec<u32>,
    /// For each record, the index of its message in the batch.
    messages: Vec<usize>,
}

/// The rows of one record.
#[derive(Clone, Copy, Debug)]
pub struct RecordRows<'a> {
    /// Index of the message in the batch.
    pub message: usize,
    /// The parent's fields, then its hash, its delivery id and, where there is one, its `once_id`.
    pub parent: &'a [Cell],
    tables: &'a Tables,
    children: &'a [Cell],
    counts: &'a [u32],
}

impl Rows {
    /// Room for the rows of about `bytes` of JSON.
    pub fn with_capacity(bytes: usize, messages: usize) -> Self {
        Rows {
            text: String::with_capacity(bytes + messages * 128),
            cells: Vec::with_capacity(bytes / 16),
            counts: Vec::new(),
            messages: Vec::with_capacity(messages),
        }
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// How many rows there are, in all tables.
    pub fn count(&self) -> usize {
        self.messages.len() + self.counts.iter().map(|&count| count as usize).sum::<usize>()
    }

    /// The text of a cell.
    pub fn text(&self, range: &Range<usize>) -> &str {
        self.text.get(range.clone()).unwrap_or_default()
    }

    /// The text of a cell of a row; empty where it is none.
    pub(crate) fn text_of(&self, row: &[Cell], at: usize) -> &str {
        match row.get(at) {
            Some(Cell::Text(range)) => self.text(range),
            _ => "",
        }
    }

    /// Record by record. `tables` are those the rows were read with.
    pub fn records<'a>(&'a self, tables: &'a Tables) -> impl Iterator<Item = RecordRows<'a>> {
        let children = tables.tables.len().saturating_sub(1);
        let mut cells: &[Cell] = &self.cells;
        let mut counts: &[u32] = &self.counts;
        self.messages.iter().map_while(move |&message| {
            let (parent, rest) = cells.split_at_checked(tables.parent_width())?;
            let (mine, other_counts) = counts.split_at_checked(children)?;
            let width = child_widths(tables)
                .zip(mine)
                .map(|(width, &count)| width * count as usize)
                .sum::<usize>();
            let (below, other_cells) = rest.split_at_checked(width)?;
            (cells, counts) = (other_cells, other_counts);
            Some(RecordRows { message, parent, tables, children: below, counts: mine })
        })
    }

    /// Adds the rows of the message at `index` of its batch. On a fault nothing is added.
    pub fn add(
        &mut self,
        tables: &Tables,
        parser: &mut Parser,
        index: usize,
        message: &Message,
    ) -> Result<(), Fault> {
        let before = (self.text.len(), self.cells.len(), self.counts.len());
        let added = self.add_record(tables, parser, message);
        match added {
            Ok(()) => self.messages.push(index),
            Err(_) => {
                self.text.truncate(before.0);
                self.cells.truncate(before.1);
                self.counts.truncate(before.2);
            }
        }
        added
    }

    fn add_record(
        &mut self,
        tables: &Tables,
        parser: &mut Parser,
        message: &Message,
    ) -> Result<(), Fault> {
        let root = parser.parse(&message.value).map_err(|error| {
            Fault::set_aside(Reason::Undecodable, "the value is not JSON").because(error)
        })?;
        let Some((parent, children)) = tables.tables.split_first() else { return Ok(()) };
        let ids: &[String] = if let ParentId::Fields(ids) = &tables.id { ids } else { &[] };
        let at = self.cells.len();
        self.add_row(tables, parent, root, ids, None)?;
        self.add_hash(&message.source);
        let start = self.text.len();
        // Writing to a String does not fail.
        let _ = write!(self.text, "{}", message.id);
        self.cells.push(Cell::Text(start..self.text.len()));
        self.check_own(parent, 1, "the delivery id")?;
        if tables.id == ParentId::OnceId {
            self.add_once_id(message)?;
            self.check_own(parent, 2, "the id of `once_by`")?;
        }
        self.check_key(tables, at)?;
        for child in children {
            let count = self.add_child(tables, child, root)?;
            self.counts.push(count);
        }
        Ok(())
    }

    /// The cell added last goes into a column that no field fills: does it fit?
    fn check_own(&self, parent: &Table, own: usize, what: &str) -> Result<(), Fault> {
        let (Some(bounds), Some(cell)) = (parent.own.get(own), self.cells.last()) else {
            return Ok(());
        };
        self.check(bounds, cell).map_err(|why| refused(format!("{what}: {why}")))
    }

    /// A key longer than an index takes would be refused there, in words of no help.
    fn check_key(&self, tables: &Tables, at: usize) -> Result<(), Fault> {
        let Some(max) = tables.key_bytes_max else { return Ok(()) };
        let cells = self.cells.get(at..).unwrap_or_default();
        let mut bytes = 0;
        for cell in tables.id_cells().into_iter().filter_map(|id| cells.get(id)) {
            bytes += if let Cell::Text(range) = cell { range.len() } else { 8 };
        }
        if bytes <= max {
            return Ok(());
        }
        let what = format!(
            "`{}` has {bytes} bytes, an index takes {max}",
            tables.id_columns().join("`, `")
        );
        Err(Fault::set_aside(Reason::TooLarge, what).code("P0312"))
    }

    fn add_hash(&mut self, source: &[u8]) {
        const DIGITS: [char; 16] =
            ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
        let start = self.text.len();
        for byte in Sha256::digest(source) {
            self.text.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        self.cells.push(Cell::Text(start..self.text.len()));
    }

    fn add_once_id(&mut self, message: &Message) -> Result<(), Fault> {
        let Some(once) = &message.once else {
            return Err(Fault::set_aside(Reason::NoKey, "`once_by` gave no id"));
        };
        let text = std::str::from_utf8(once)
            .map_err(|error| refused("the id of `once_by` is not UTF-8".into()).because(error))?;
        let cell = self.add_text(text).map_err(|why| refused(format!("`once_by` {why}")))?;
        self.cells.push(cell);
        Ok(())
    }

    fn add_child(&mut self, tables: &Tables, table: &Table, root: Node<'_>) -> Result<u32, Fault> {
        let steps = table.path.steps();
        let found = steps.iter().try_fold(root, |node, step| node.get(step));
        let Some(node) = found.filter(|node| !node.is_null()) else { return Ok(0) };
        if !table.path.is_each() {
            self.add_row(tables, table, node, &[], None)?;
            return Ok(1);
        }
        if node.kind() != json::Kind::Array {
            let (path, kind) = (table.path.source(), node.kind());
            return Err(refused(format!("`{path}` wants an array, the record has {kind} there")));
        }
        let mut count = 0;
        for item in node.items() {
            self.add_row(tables, table, item, &[], Some(count))?;
            count += 1;
        }
        Ok(count)
    }

    fn add_row(
        &mut self,
        tables: &Tables,
        table: &Table,
        node: Node<'_>,
        ids: &[String],
        element: Option<u32>,
    ) -> Result<(), Fault> {
        // Which row it is matters to whoever reads the message, so it is put together late.
        let place = || match element {
            Some(element) => format!("table `{}`, element {element}", table.name),
            None => format!("table `{}`", table.name),
        };
        if node.kind() != json::Kind::Object {
            let kind = node.kind();
            return Err(refused(format!("{}: a row is an object, not {kind}", place())));
        }
        let (at, text_at) = (self.cells.len(), self.text.len());
        self.cells.resize(at + table.columns.len(), Cell::Null);
        let mut next = 0;
        for (name, value) in node.fields() {
            let Some((slot_at, slot)) = table.slot(&name, next) else {
                return Err(refused(format!("{}: the field `{name}` has no column", place()))
                    .hint("add the column, or take the field out in a `vrl` stage"));
            };
            if let (FieldTarget::Column(index), Some(column)) = (slot, table.column(slot)) {
                next = slot_at + 1;
                let cell = self
                    .read_column(column, value)
                    .map_err(|why| refused(format!("{}, field `{name}`: {why}", place())))?;
                if let Some(free) = self.cells.get_mut(at + index) {
                    *free = cell;
                }
            }
        }
        let bytes = self.text.len() - text_at;
        if let Some(max) = tables.row_bytes_max.filter(|max| bytes > *max) {
            let what = format!("{}: a row of {bytes} bytes, the database takes {max}", place());
            return Err(Fault::set_aside(Reason::TooLarge, what).code("P0312"));
        }
        let cells = self.cells.get(at..).unwrap_or_default();
        for (column, _) in table.columns.iter().zip(cells).filter(|(_, cell)| **cell == Cell::Null)
        {
            let name = &column.name;
            if ids.contains(name) {
                // A null never equals another: without an id it would never be a repeat.
                let what = format!("`once_by` is `.{name}`, which is missing or null");
                return Err(Fault::set_aside(Reason::NoKey, what));
            }
            if column.required {
                let what = format!("{}: the field `{name}` is missing or null", place());
                return Err(refused(what));
            }
        }
        Ok(())
    }

    fn read_column(&mut self, column: &Column, node: Node<'_>) -> Result<Cell, String> {
        let cell = self.read(column.kind, node)?;
        self.check(&column.bounds, &cell)?;
        Ok(cell)
    }

    /// A value the column would cut or refuse. Checked here where it is cheap, so that one such
    /// record does not cost its whole batch an attempt.
    fn check(&self, bounds: &Bounds, cell: &Cell) -> Result<(), String> {
        match (cell, bounds.chars_max, bounds.integers) {
            (Cell::Text(range), Some(max), _) if range.len() > max => {
                let chars = self.text(range).chars().count();
                if chars > max {
                    return Err(format!("the text has {chars} characters, the column takes {max}"));
                }
            }
            (Cell::Integer(integer), _, Some((from, to))) if *integer < from || *integer > to => {
                return Err(format!("{integer} is not between {from} and {to}"));
            }
            _ => {}
        }
        Ok(())
    }

    fn read(&mut self, kind: ColumnKind, node: Node<'_>) -> Result<Cell, String> {
        match (kind, node.kind()) {
            (_, json::Kind::Null) => Ok(Cell::Null),
            (ColumnKind::Text | ColumnKind::Any, json::Kind::String) => {
                self.add_text(&node.text().unwrap_or_default())
            }
            (ColumnKind::Json | ColumnKind::Text, _)
            | (ColumnKind::Any, json::Kind::Array | json::Kind::Object) => {
                self.add_text(node.source())
            }
            (ColumnKind::Integer | ColumnKind::Boolean | ColumnKind::Any, json::Kind::Bool) => {
                Ok(Cell::Integer(i64::from(node.as_bool() == Some(true))))
            }
            (ColumnKind::Integer, json::Kind::Number) => match node.as_i64() {
                Some(integer) => Ok(Cell::Integer(integer)),
                None => Err(format!("{} is not an integer of 64 bits", short(node.source()))),
            },
            (ColumnKind::Real, json::Kind::Number) => real(node),
            (ColumnKind::Any, json::Kind::Number) if is_integer(node.source()) => {
                self.read(ColumnKind::Integer, node)
            }
            (ColumnKind::Any, json::Kind::Number) => real(node),
            (kind, other) => Err(format!("the column takes {}, not {other}", kind.words())),
        }
    }

    fn add_text(&mut self, text: &str) -> Result<Cell, String> {
        if text.as_bytes().contains(&0) {
            return Err("the text holds a NUL character, which SQL text cannot keep".to_owned());
        }
        let start = self.text.len();
        self.text.push_str(text);
        Ok(Cell::Text(start..self.text.len()))
    }
}

impl<'a> RecordRows<'a> {
    /// The rows of children: index of the table, place among the rows of that table, fields.
    pub fn children(&self) -> impl Iterator<Item = (usize, u32, &'a [Cell])> {
        let mut rest = self.children;
        child_widths(self.tables).zip(self.counts).enumerate().flat_map(move |(table, counted)| {
            let (width, &count) = counted;
            let (mine, others) =
                rest.split_at_checked(width * count as usize).unwrap_or((&[], &[]));
            rest = others;
            (0..count).map(move |element| {
                let from = width * element as usize;
                (table + 1, element, mine.get(from..from + width).unwrap_or_default())
            })
        })
    }
}

impl Tables {
    /// Cells of a parent row.
    pub(crate) fn parent_width(&self) -> usize {
        let fields = self.tables.first().map_or(0, |parent| parent.columns.len());
        fields + 2 + usize::from(self.id == ParentId::OnceId)
    }

    /// Where in a parent row the key columns are.
    pub(crate) fn id_cells(&self) -> Vec<usize> {
        let columns = self.tables.first().map_or(&[][..], |parent| &parent.columns);
        match &self.id {
            ParentId::Fields(names) => names
                .iter()
                .filter_map(|name| columns.iter().position(|column| column.name == *name))
                .collect(),
            ParentId::OnceId => vec![columns.len() + 2],
            ParentId::Delivery => vec![self.delivery_id_cell()],
        }
    }

    /// Where in a parent row the hash is.
    pub(crate) fn hash_cell(&self) -> usize {
        self.delivery_id_cell() - 1
    }

    /// Where in a parent row the delivery id is.
    pub(crate) fn delivery_id_cell(&self) -> usize {
        self.tables.first().map_or(0, |parent| parent.columns.len()) + 1
    }
}

impl Table {
    /// Where a field goes, and its index. `next` is where it would be if fields come in the
    /// order they usually do, which saves the search.
    fn slot(&self, name: &str, next: usize) -> Option<(usize, FieldTarget)> {
        if let Some((known, slot)) = self.slots.get(next)
            && known == name
        {
            return Some((next, *slot));
        }
        let at = *self.by_name.get(name)?;
        self.slots.get(at).map(|(_, slot)| (at, *slot))
    }

    fn column(&self, slot: FieldTarget) -> Option<&Column> {
        match slot {
            FieldTarget::Column(index) => self.columns.get(index),
            FieldTarget::Elsewhere => None,
        }
    }
}

fn child_widths(tables: &Tables) -> impl Iterator<Item = usize> {
    tables.tables.iter().skip(1).map(|table| table.columns.len())
}

/// Written without fraction and exponent.
fn is_integer(source: &str) -> bool {
    !source.contains(['.', 'e', 'E'])
}

/// A number written as an integer is meant exactly; one with a fraction is the nearest double.
fn real(node: Node<'_>) -> Result<Cell, String> {
    let source = node.source();
    let value = node.as_f64().unwrap_or_default();
    if is_integer(source) {
        let exact = node.as_i64().is_some_and(|integer| integer as f64 as i128 == integer.into());
        if !exact {
            return Err(format!("{} has more digits than the column keeps", short(source)));
        }
    }
    if !value.is_finite() {
        return Err(format!("{} is larger than the column keeps", short(source)));
    }
    Ok(Cell::Real(value))
}

/// The beginning of what may be very long.
fn short(source: &str) -> String {
    const SHOWN_MAX: usize = 40;
    match source.get(..SHOWN_MAX) {
        Some(head) if source.len() > SHOWN_MAX => format!("`{head}…`"),
        _ => format!("`{source}`"),
    }
}

fn refused(what: String) -> Fault {
    Fault::set_aside(Reason::Refused, what).code("P0308")
}
