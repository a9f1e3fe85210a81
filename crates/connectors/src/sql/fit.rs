//! Do the tables that exist fit what will be written into them?
//!
//! Asked before the first delivery, so that a wrong table stops the pipeline with one message
//! that says everything, instead of refusing records one by one.

use potok_core::Fault;

use super::Dialect;
use super::tables::{Bounds, Column, ColumnKind, POTOK_ID, ParentId, Table, Tables};

/// A column as the database has it.
#[derive(Clone, Debug)]
pub struct FoundColumn {
    pub name: String,
    /// What it takes.
    pub kind: ColumnKind,
    /// It takes no null, and the database does not fill it by itself.
    pub not_null: bool,
    /// What it is without a value, as SQL.
    pub default: Option<String>,
    /// What it takes, more exactly.
    pub bounds: Bounds,
}

/// What a transaction means to a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RollbackSupport {
    /// What is rolled back was never there.
    #[default]
    Transactions,
    /// Rows stay whatever becomes of their transaction; the engine that keeps them so.
    Engine(String),
    /// A view: nothing tells how the tables behind it keep their rows.
    View,
}

/// A table as the database has it.
#[derive(Clone, Debug, Default)]
pub struct FoundTable {
    /// What a transaction means to it.
    pub keeping: RollbackSupport,
    /// The columns one can write.
    pub columns: Vec<FoundColumn>,
    /// Sets of columns that are unique, compared byte by byte.
    pub unique: Vec<Vec<String>>,
}

impl FoundTable {
    fn column(&self, dialect: Dialect, name: &str) -> Option<&FoundColumn> {
        self.columns.iter().find(|column| dialect.is_same_name(&column.name, name))
    }

    /// A unique key whose columns are exactly these.
    fn is_unique(&self, dialect: Dialect, names: &[&str]) -> bool {
        self.unique.iter().any(|set| {
            set.len() == names.len()
                && names.iter().all(|name| set.iter().any(|n| dialect.is_same_name(n, name)))
        })
    }
}

/// What is wrong, gathered.
#[derive(Default)]
struct Misfits {
    missing: Vec<String>,
    /// Tables that would keep half of a record.
    torn: Vec<String>,
    wrong: Vec<String>,
    /// Statements that would help.
    cure: Vec<String>,
}

impl Tables {
    /// What is wrong with the tables that are there; others are yet to be made where potok may.
    pub(crate) fn check(
        &self,
        found: &[Option<FoundTable>],
        dialect: Dialect,
    ) -> Result<(), Fault> {
        let mut misfits = Misfits::default();
        for (index, table) in self.tables.iter().enumerate() {
            match found.get(index).and_then(Option::as_ref) {
                Some(found) => {
                    self.fit_table(dialect, index, table, found, &mut misfits);
                }
                None if self.creates() => {}
                None => self.miss_table(dialect, index, &mut misfits),
            }
        }
        self.fault(&misfits)
    }

    /// Compares with what the database has (`found`, in the order of the tables). Returns the
    /// tables as they will be written: without a schema, with the columns found.
    pub fn fit(&self, found: &[Option<FoundTable>], dialect: Dialect) -> Result<Tables, Fault> {
        let mut misfits = Misfits::default();
        let mut tables = Vec::with_capacity(self.tables.len());
        for (index, table) in self.tables.iter().enumerate() {
            match found.get(index).and_then(Option::as_ref) {
                None => self.miss_table(dialect, index, &mut misfits),
                Some(found) => {
                    tables.push(self.fit_table(dialect, index, table, found, &mut misfits));
                }
            }
        }
        self.fault(&misfits)?;
        let mut fitted = self.clone();
        (fitted.tables, fitted.known) = (tables, true);
        fitted.key_bytes_max = dialect.key_bytes_max();
        Ok(fitted)
    }

    fn fit_table(
        &self,
        dialect: Dialect,
        index: usize,
        table: &Table,
        found: &FoundTable,
        misfits: &mut Misfits,
    ) -> Table {
        misfits.check_keeping(dialect, &table.name, &found.keeping);
        let own = self.own_columns(index);
        let mut own_bounds = Vec::with_capacity(own.len());
        for name in &own {
            match found.column(dialect, name) {
                Some(column) => own_bounds.push(column.bounds.clone()),
                None => self.miss(dialect, index, name, self.own_kind(name), misfits),
            }
        }
        let columns = if self.known {
            self.fit_columns(dialect, index, table, found, misfits)
        } else {
            adopt_columns(dialect, found, &own)
        };
        for extra in &found.columns {
            let filled = own.iter().any(|own| dialect.is_same_name(own, &extra.name))
                || columns.iter().any(|column| dialect.is_same_name(&column.name, &extra.name));
            if !filled && extra.not_null && extra.default.is_none() {
                misfits.wrong.push(format!(
                    "column `{}` of table `{}` takes no null and has no default, but no field \
                     fills it",
                    extra.name, table.name
                ));
            }
        }
        if index == 0 {
            self.check_unique(dialect, table, found, misfits);
        }
        if let (0, ParentId::Fields(ids)) = (index, &self.id) {
            // Letter for letter: it must be the field's column, not only one SQL takes for it.
            for id in ids.iter().filter(|id| !found.columns.iter().any(|c| c.name == **id)) {
                self.miss(dialect, index, id, self.id_kind(id), misfits);
            }
        }
        table.with_columns(columns, own_bounds)
    }

    fn fit_columns(
        &self,
        dialect: Dialect,
        index: usize,
        table: &Table,
        found: &FoundTable,
        misfits: &mut Misfits,
    ) -> Vec<Column> {
        let mut columns = Vec::with_capacity(table.columns.len());
        for column in &table.columns {
            let Some(there) = found.column(dialect, &column.name) else {
                self.miss(dialect, index, &column.name, column.kind, misfits);
                continue;
            };
            match stored_as(column.kind, there.kind) {
                Some(kind) => columns.push(Column {
                    kind,
                    required: column.required || there.not_null && there.default.is_none(),
                    default: there.default.clone(),
                    bounds: there.bounds.clone(),
                    ..column.clone()
                }),
                None => misfits.wrong.push(format!(
                    "column `{}` of table `{}` takes {}, but the schema says {}",
                    column.name,
                    table.name,
                    there.kind.words(),
                    column.kind.words()
                )),
            }
        }
        columns
    }

    /// Without these keys a repeat would become a second row.
    fn check_unique(
        &self,
        dialect: Dialect,
        table: &Table,
        found: &FoundTable,
        misfits: &mut Misfits,
    ) {
        let mut sets = vec![self.id_columns()];
        if sets != [[POTOK_ID]] {
            sets.push(vec![POTOK_ID]);
        }
        for set in sets {
            if !found.is_unique(dialect, &set) {
                let names = set.join("`, `");
                misfits.wrong.push(format!(
                    "table `{}` has no unique key on `{names}` that compares bytes{}",
                    table.name,
                    dialect.bytewise_hint()
                ));
                let columns: Vec<String> = set.iter().map(|name| dialect.quote(name)).collect();
                let index = format!("{}_{}", table.name, set.join("_"));
                misfits.cure.push(format!(
                    "CREATE UNIQUE INDEX {} ON {} ({})",
                    dialect.quote(&index),
                    dialect.quote(&table.name),
                    columns.join(", ")
                ));
            }
        }
    }

    fn miss_table(&self, dialect: Dialect, index: usize, misfits: &mut Misfits) {
        let name = self.tables.get(index).map_or("", |table| &table.name);
        misfits.missing.push(format!("table `{name}`"));
        misfits.cure.push(self.cure_for_table(dialect, index));
    }

    fn miss(
        &self,
        dialect: Dialect,
        index: usize,
        column: &str,
        kind: ColumnKind,
        misfits: &mut Misfits,
    ) {
        let table = self.tables.get(index).map_or("", |table| &table.name);
        let what = format!("column `{column}` of table `{table}`");
        if !misfits.missing.contains(&what) {
            misfits.missing.push(what);
            misfits.cure.push(self.add_column(dialect, index, column, kind));
        }
    }

    fn cure_for_table(&self, dialect: Dialect, index: usize) -> String {
        if self.known {
            return self.create(dialect, index);
        }
        let name = self.tables.get(index).map_or("", |table| &table.name);
        let needed: Vec<&str> = self.own_columns(index);
        format!(
            "CREATE TABLE {} with a column for each field, and `{}`",
            dialect.quote(name),
            needed.join("`, `")
        )
    }

    fn fault(&self, misfits: &Misfits) -> Result<(), Fault> {
        let code = match misfits {
            Misfits { missing, .. } if !missing.is_empty() => "P0301",
            Misfits { torn, .. } if !torn.is_empty() => "P0810",
            Misfits { wrong, .. } if !wrong.is_empty() => "P0302",
            _ => return Ok(()),
        };
        let mut what = Vec::new();
        if !misfits.missing.is_empty() {
            what.push(format!("missing: {}", misfits.missing.join(", ")));
        }
        what.extend(misfits.torn.iter().chain(&misfits.wrong).cloned());
        let statements = misfits.cure.join("; ");
        let cure = match (misfits.cure.is_empty(), misfits.missing.is_empty()) {
            (true, _) => "change the table or the schema, then `potok resume`".to_owned(),
            (_, true) => format!("run this, then `potok resume`: {statements};"),
            (_, false) => format!(
                "set `create_tables: true` for missing tables, or run these, then `potok resume`: \
                 {statements};"
            ),
        };
        Err(Fault::fix(format!("{}: {}", self.label(), what.join("; "))).hint(cure).code(code))
    }
}

impl Misfits {
    /// A record is all its rows or none, which only transactions can promise.
    fn check_keeping(&mut self, dialect: Dialect, table: &str, keeping: &RollbackSupport) {
        match keeping {
            RollbackSupport::Transactions => {}
            RollbackSupport::Engine(engine) => {
                self.torn.push(format!(
                    "table `{table}` is kept by the engine {engine}, which has no transactions: a \
                     failed call would leave half of a record"
                ));
                self.cure.push(format!("ALTER TABLE {} ENGINE=InnoDB", dialect.quote(table)));
            }
            RollbackSupport::View => self.torn.push(format!(
                "`{table}` is a view, and nothing tells whether what is behind it has \
                 transactions: name the table itself"
            )),
        }
    }
}

/// Every column found that potok does not fill itself.
fn adopt_columns(dialect: Dialect, found: &FoundTable, own: &[&str]) -> Vec<Column> {
    let fields = found
        .columns
        .iter()
        .filter(|column| !own.iter().any(|own| dialect.is_same_name(own, &column.name)));
    fields
        .map(|column| Column {
            name: column.name.clone(),
            kind: column.kind,
            required: column.not_null && column.default.is_none(),
            default: column.default.clone(),
            bounds: column.bounds.clone(),
        })
        .collect()
}

/// How values of `wanted` go into a column that takes `there`; `None` where they could change.
fn stored_as(wanted: ColumnKind, there: ColumnKind) -> Option<ColumnKind> {
    match (wanted, there) {
        (wanted, there) if wanted == there => Some(wanted),
        (wanted, ColumnKind::Any) => Some(wanted),
        (ColumnKind::Json, ColumnKind::Text) => Some(ColumnKind::Json),
        (_, ColumnKind::Text) => Some(ColumnKind::Text),
        (ColumnKind::Boolean, ColumnKind::Integer) => Some(ColumnKind::Boolean),
        (ColumnKind::Integer, ColumnKind::Real) => Some(ColumnKind::Real),
        _ => None,
    }
}

impl ColumnKind {
    /// For messages.
    pub(super) fn words(self) -> &'static str {
        match self {
            ColumnKind::Text => "text",
            ColumnKind::Integer => "integers",
            ColumnKind::Real => "numbers",
            ColumnKind::Boolean => "true or false",
            ColumnKind::Json => "JSON",
            ColumnKind::Any => "anything",
        }
    }
}
