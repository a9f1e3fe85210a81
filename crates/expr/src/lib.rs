//! Expressions: how a pipeline file speaks about a record.
//!
//! Three kinds, from cheap to rich. [`Template`], [`RowsPath`] and [`ValuePath`] read single values
//! straight from the bytes, through the tape of [`json`]. [`Program`] is VRL: type-checked when the file
//! is loaded, run under a deadline.
//!
//! Promised: bad JSON and bad expressions give an error that says where, never a panic; a value
//! is never changed silently (numbers, duplicate keys, escapes). Deliberately not here: what a
//! record's fault means for the record, which `flow` decides, and schemas, which connectors hold.
#![deny(missing_docs)]

pub mod json;
mod nesting;
mod number;
mod path;
mod period_by;
mod program;
mod rows;
mod template;

pub use path::ValuePath;
pub use period_by::PeriodBy;
pub use program::{
    BATCH_DEADLINE_DEFAULT, DEADLINE_DEFAULT, GroupOutcome, Places, Program, ProgramError,
    ProgramOutcome, View,
};
pub use rows::RowsPath;
pub use template::{Scope, Template};

/// What is wrong with the text of an expression, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ExprError {
    /// First byte of the offending part of the text.
    pub at: usize,
    /// How many bytes it covers; 0 where something is missing.
    pub len: usize,
    /// What is wrong.
    pub message: String,
    /// What to write instead, where that is known and not said in `message`.
    pub hint: Option<String>,
}

impl ExprError {
    fn new(at: usize, len: usize, message: impl Into<String>) -> Self {
        ExprError { at, len, message: message.into(), hint: None }
    }
}
