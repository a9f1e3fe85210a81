//! Expressions of a pipeline file: paths and templates, rows, VRL.
//!
//! They are parsed and type-checked when the file is loaded; a problem points into the file, also
//! into the middle of a block of VRL.

use std::borrow::Cow;
use std::ops::Deref;

use potok_expr::{ExprError, Program, RowsPath, Template, ValuePath};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::problem::code;
use crate::process::Per;
use crate::values::{TextError, TextValue, written};

fn wrong(code: &'static str, error: ExprError, hint: &str) -> TextError {
    TextError::new(code, error.at..error.at + error.len.max(1), error.message, hint)
}

fn vrl(errors: Vec<ExprError>) -> Vec<TextError> {
    let one = |error: ExprError| {
        let at = error.at..error.at + error.len.max(1);
        TextError { code: code::VRL, at, what: error.message, hint: error.hint }
    };
    errors.into_iter().map(one).collect()
}

/// A path such as `.order_uid`, `header.batchId`, `key`, `topic`, or a template of them such as
/// `"{.channel}:{.chat_id}"`.
#[derive(Clone, Debug)]
pub struct Expression(Template);

impl TextValue for Expression {
    const FORMAT: &'static str = "potok-expression";

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        let hint = "a path (`.a.b`, `header.name`, `key`, `topic`) or a template (`\"{.a}_{.b}\"`)";
        Template::parse(text)
            .map(Expression)
            .map_err(|error| vec![wrong(code::EXPRESSION, error, hint)])
    }
}

impl Expression {
    /// What evaluates it.
    pub fn template(&self) -> &Template {
        &self.0
    }
}

impl Deref for Expression {
    type Target = Template;

    fn deref(&self) -> &Template {
        &self.0
    }
}

/// Which rows a record makes: `.` one of the whole record, `.delivery` one of a part, `.items[]`
/// one per element.
#[derive(Clone, Debug)]
pub struct Rows(RowsPath);

impl TextValue for Rows {
    const FORMAT: &'static str = "potok-rows";

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        let hint =
            "`.` (the whole record), `.delivery` (a part), or `.items[]` (a row per element)";
        RowsPath::parse(text).map(Rows).map_err(|error| vec![wrong(code::EXPRESSION, error, hint)])
    }
}

impl Rows {
    /// What evaluates it.
    pub fn path(&self) -> &RowsPath {
        &self.0
    }
}

impl Deref for Rows {
    type Target = RowsPath;

    fn deref(&self) -> &RowsPath {
        &self.0
    }
}

/// Where in an event stands what a counter adds: `.BadValues`, `.items[0].n`.
#[derive(Clone, Debug)]
pub struct CountPath(ValuePath);

impl TextValue for CountPath {
    const FORMAT: &'static str = "potok-count-path";

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        let hint = "a path to an array, a whole number or `true`, e.g. `.BadValues`";
        ValuePath::parse(text)
            .map(CountPath)
            .map_err(|error| vec![wrong(code::EXPRESSION, error, hint)])
    }
}

impl CountPath {
    /// What evaluates it.
    pub fn path(&self) -> &ValuePath {
        &self.0
    }
}

impl Deref for CountPath {
    type Target = ValuePath;

    fn deref(&self) -> &ValuePath {
        &self.0
    }
}

/// Where in an event a value stands: `.shop_id`, `.shop.id`.
#[derive(Clone, Debug)]
pub struct FieldPath(ValuePath);

impl TextValue for FieldPath {
    const FORMAT: &'static str = "potok-field-path";

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        let hint = "a path to one value, e.g. `.shop_id`";
        ValuePath::parse(text)
            .map(FieldPath)
            .map_err(|error| vec![wrong(code::EXPRESSION, error, hint)])
    }
}

impl FieldPath {
    /// What evaluates it.
    pub fn path(&self) -> &ValuePath {
        &self.0
    }
}

impl Deref for FieldPath {
    type Target = ValuePath;

    fn deref(&self) -> &ValuePath {
        &self.0
    }
}

/// A VRL program of a stage. What `.` and `%` are in it depends on the stage's `per`, so it is
/// compiled by the rules, which see both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageVrl(String);

impl TextValue for StageVrl {
    const FORMAT: &'static str = "potok-vrl-stage";

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        Ok(StageVrl(text.to_owned()))
    }
}

impl StageVrl {
    /// The program as written.
    pub fn source(&self) -> &str {
        &self.0
    }

    /// Compiles it for events or for groups. It compiled when the file was loaded, so this does
    /// not fail.
    pub fn program(&self, per: Per) -> Result<Program, Vec<ExprError>> {
        match per {
            Per::Event => Program::compile(&self.0),
            Per::Group => Program::compile_batch(&self.0),
        }
    }

    /// What is wrong with it.
    pub(crate) fn check(text: &str, per: Per) -> Vec<TextError> {
        StageVrl(text.to_owned()).program(per).err().map(vrl).unwrap_or_default()
    }
}

/// A VRL expression that is true or false.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Predicate(String);

impl TextValue for Predicate {
    const FORMAT: &'static str = "potok-vrl-predicate";

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        match Program::compile_predicate(text) {
            Ok(_) => Ok(Predicate(text.to_owned())),
            Err(errors) => Err(vrl(errors)),
        }
    }
}

impl Predicate {
    /// The expression as written.
    pub fn source(&self) -> &str {
        &self.0
    }

    /// Compiles it. It compiled when the file was loaded, so this does not fail.
    pub fn program(&self) -> Result<Program, Vec<ExprError>> {
        Program::compile_predicate(&self.0)
    }
}

macro_rules! from_source {
    ($type:ty) => {
        written!($type);

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.source())
            }
        }
    };
}
from_source!(Expression);
from_source!(Rows);
from_source!(CountPath);
from_source!(FieldPath);
from_source!(StageVrl);
from_source!(Predicate);
