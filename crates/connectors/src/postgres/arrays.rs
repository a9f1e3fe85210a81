//! Columns as arrays: one argument holds the values of one column for a whole batch, encoded
//! straight from the cells.

use sqlx::Arguments as _;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgBindIterExt as _};

use crate::sql::{Bounds, Cell, ColumnKind, Rows};

/// What the elements of an array are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Elements {
    Text,
    Integer,
    Real,
    Boolean,
}

impl Elements {
    /// What values of a kind travel as into a column of this type.
    pub fn of(kind: ColumnKind, bounds: &Bounds) -> Elements {
        match kind {
            ColumnKind::Integer => Elements::Integer,
            ColumnKind::Real => Elements::Real,
            ColumnKind::Boolean if bounds.sql_type == "boolean" => Elements::Boolean,
            ColumnKind::Boolean => Elements::Integer,
            ColumnKind::Text | ColumnKind::Json | ColumnKind::Any => Elements::Text,
        }
    }

    /// The type of the array.
    pub fn array(self) -> &'static str {
        match self {
            Elements::Text => "text[]",
            Elements::Integer => "int8[]",
            Elements::Real => "float8[]",
            Elements::Boolean => "bool[]",
        }
    }

    /// Adds the array of these cells as the next argument.
    pub fn add<'a>(
        self,
        arguments: &mut PgArguments,
        rows: &'a Rows,
        cells: impl Iterator<Item = &'a Cell>,
    ) -> Result<(), BoxDynError> {
        match self {
            Elements::Text => arguments.add(cells.map(|cell| text(rows, cell)).bind_iter()),
            Elements::Integer => arguments.add(cells.map(integer).bind_iter()),
            Elements::Real => arguments.add(cells.map(real).bind_iter()),
            Elements::Boolean => {
                arguments.add(cells.map(|cell| integer(cell).map(|one| one != 0)).bind_iter())
            }
        }
    }
}

/// `value` as what the column takes. Text goes into text columns by assignment, which refuses
/// what is too long: a cast would cut it.
pub(super) fn converted(elements: Elements, bounds: &Bounds, value: &str) -> String {
    let to = bounds.sql_type.as_str();
    match (elements, to) {
        (Elements::Text, "text" | "character varying" | "character" | "bpchar" | "") => {
            value.to_owned()
        }
        // A cast would read backslashes.
        (Elements::Text, "bytea") => format!("convert_to({value}, 'UTF8')"),
        (Elements::Text, to) => format!("CAST({value} AS {to})"),
        _ => value.to_owned(),
    }
}

fn text<'a>(rows: &'a Rows, cell: &'a Cell) -> Option<&'a str> {
    if let Cell::Text(range) = cell { Some(rows.text(range)) } else { None }
}

fn integer(cell: &Cell) -> Option<i64> {
    if let Cell::Integer(integer) = cell { Some(*integer) } else { None }
}

fn real(cell: &Cell) -> Option<f64> {
    if let Cell::Real(real) = cell { Some(*real) } else { None }
}
