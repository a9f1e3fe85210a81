//! Which tables a record becomes.
//!
//! The table at `.` is first and called the parent; the others are its children. A column is a
//! field of the object at the table's path, under the same name. A field that has a table of its
//! own is left out; other objects and arrays are kept as JSON text. On top come columns of potok:
//!
//! | table | columns besides its fields | keys |
//! |---|---|---|
//! | parent | `content_hash`, `potok_id`, and `once_id` where `once_by` is no plain field | primary key: the fields of `once_by`, or `once_id`, or without `once_by` the delivery id; unique: `potok_id` |
//! | child at `.x` | the parent's key columns | primary key: those |
//! | child at `.x[]` | the parent's key columns, `element` (from 0) | primary key: those and `element` |
//!
//! A name that two columns would share is a problem found here, before any record is read.

use std::collections::HashMap;

use potok_core::Fault;
use potok_expr::{RowsPath, Template};
use serde_json::Value;

use super::schema::Schema;

/// SHA-256 of the source bytes, in hexadecimal.
pub(crate) const CONTENT_HASH: &str = "content_hash";
/// The name of the delivery: `topic/partition/offset@log/deliver/element`.
pub(crate) const POTOK_ID: &str = "potok_id";
/// The place of a row among those of its record.
pub(crate) const ELEMENT: &str = "element";
/// The business id where it is not simply fields of the record.
pub(crate) const ONCE_ID: &str = "once_id";

/// What a pipeline file says about a SQL destination.
#[derive(Clone, Debug)]
pub struct SqlSinkConfig {
    /// How messages call the destination, e.g. ``db `orders` ``.
    pub label: String,
    /// Tables and where their rows are. Exactly one is at `.`.
    pub rows: Vec<(String, RowsPath)>,
    /// The business id; empty means once per delivery id only. With child tables, plain fields.
    pub once_by: Vec<Template>,
    /// The schema records are checked against; columns come from it. Without one they are read
    /// from the tables that exist.
    pub schema: Option<Value>,
    /// Create what is missing before the first delivery. Needs a schema.
    pub create_tables: bool,
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Text: strings as they are, anything else as its JSON.
    Text,
    /// Integers of 64 bits.
    Integer,
    /// Numbers of double precision.
    Real,
    /// True and false.
    Boolean,
    /// The JSON of the field, strings with their quotes.
    Json,
    /// Whatever comes (a column of an existing table that says nothing about it).
    Any,
}

/// What the database says of a column beyond its kind, where that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Its type, as the database prints it.
    pub sql_type: String,
    /// Characters it takes.
    pub chars_max: Option<usize>,
    /// Integers it takes, from and to.
    pub integers: Option<(i64, i64)>,
}

/// A column filled from a field of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name of field and column.
    pub name: String,
    /// What it holds.
    pub kind: ColumnKind,
    /// Never null.
    pub required: bool,
    /// What the database puts where the field is missing, as SQL.
    pub default: Option<String>,
    /// What it takes.
    pub bounds: Bounds,
}

/// Where a field of the record goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum FieldTarget {
    /// Into this column.
    Column(usize),
    /// Into another table.
    Elsewhere,
}

/// One table.
#[derive(Clone, Debug)]
pub struct Table {
    pub name: String,
    /// Where its rows are.
    pub path: RowsPath,
    /// The columns that are fields.
    pub columns: Vec<Column>,
    /// What the columns that no field fills take, in their order; empty until they were found.
    pub(super) own: Vec<Bounds>,
    /// Every field it knows, in the order fields usually come.
    pub(super) slots: Vec<(String, FieldTarget)>,
    /// Index into `slots`, for fields that come in another order.
    pub(super) by_name: HashMap<String, usize>,
}

/// What makes a parent row unique.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ParentId {
    /// These fields.
    Fields(Vec<String>),
    /// The whole of `once_by`, in a column of its own.
    OnceId,
    /// The delivery id: nothing was asked for.
    Delivery,
}

/// The tables of one destination.
#[derive(Clone, Debug)]
pub struct Tables {
    label: String,
    /// The parent first.
    pub(super) tables: Vec<Table>,
    pub(super) id: ParentId,
    /// False until columns have been read from the database (there is no schema).
    pub(super) known: bool,
    create: bool,
    /// Bytes of text a key may have, where an index has a limit of its own.
    pub(super) key_bytes_max: Option<usize>,
    /// Bytes of text a row may have.
    pub(super) row_bytes_max: Option<usize>,
}

impl Tables {
    /// Works out the tables; all problems at once.
    pub fn new(config: &SqlSinkConfig) -> Result<Tables, Vec<Fault>> {
        let mut problems = Problems { label: &config.label, list: Vec::new() };
        let mut rows: Vec<&(String, RowsPath)> = config.rows.iter().collect();
        // Stable, so children keep the order of the file.
        rows.sort_by_key(|(_, path)| !is_parent(path));
        let parents = rows.iter().filter(|(_, path)| is_parent(path)).count();
        if parents != 1 {
            problems.add(
                format!("`rows` has {parents} tables at `.`, it needs exactly one"),
                "the table at `.` keeps the delivery id and the id that make a record arrive once",
            );
        }
        check_names(&rows, &mut problems);
        let has_children = rows.len() > parents;
        let id = read_id(&config.once_by, has_children, &mut problems);
        if config.create_tables && config.schema.is_none() {
            problems.add(
                "`create_tables` is true, but there is no schema to make columns from".to_owned(),
                "give `decode` a `schema`, or create the tables yourself",
            );
        }

        let schema = config.schema.as_ref().map(Schema::new);
        let mut tables = Vec::with_capacity(rows.len());
        for (name, path) in &rows {
            let columns = schema
                .as_ref()
                .map_or_else(Vec::new, |schema| columns(schema, name, path, &rows, &mut problems));
            tables.push(Table::new(name.clone(), path.clone(), columns, &rows));
        }
        let tables = Tables {
            label: config.label.clone(),
            tables,
            id,
            known: schema.is_some(),
            create: config.create_tables,
            key_bytes_max: None,
            row_bytes_max: None,
        };
        if schema.is_some() && parents == 1 {
            tables.check_id(&mut problems);
        }
        for (index, table) in tables.tables.iter().enumerate() {
            tables.check_clashes(index, table, &mut problems);
        }
        if problems.list.is_empty() { Ok(tables) } else { Err(problems.list) }
    }

    /// The same tables, for rows of at most so many bytes.
    pub(crate) fn with_row_bytes_max(mut self, row_bytes_max: usize) -> Tables {
        self.row_bytes_max = Some(row_bytes_max);
        self
    }

    /// How messages call the destination.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// True when missing tables are to be created.
    pub(crate) fn creates(&self) -> bool {
        self.create
    }

    /// The names of the tables, parent first.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tables.iter().map(|table| table.name.as_str())
    }

    /// What the columns that no field fills take, in the order of [`Tables::own_columns`].
    pub(crate) fn own_bounds(&self, index: usize) -> &[Bounds] {
        self.tables.get(index).map_or(&[], |table| &table.own)
    }

    /// The columns of a table that are fields.
    pub(crate) fn columns(&self, index: usize) -> &[Column] {
        self.tables.get(index).map_or(&[], |table| &table.columns)
    }

    /// For each table, whether it has a row per element.
    pub(crate) fn each(&self) -> Vec<bool> {
        self.tables.iter().map(|table| table.path.is_each()).collect()
    }

    /// The key columns of the parent, repeated in every child.
    pub(crate) fn id_columns(&self) -> Vec<&str> {
        match &self.id {
            ParentId::Fields(names) => names.iter().map(String::as_str).collect(),
            ParentId::OnceId => vec![ONCE_ID],
            ParentId::Delivery => vec![POTOK_ID],
        }
    }

    /// The columns of the table at `index` that no field fills, in the order in which they are
    /// bound: behind the fields in the parent, before them in a child.
    pub(crate) fn own_columns(&self, index: usize) -> Vec<&str> {
        if index == 0 {
            let once = (self.id == ParentId::OnceId).then_some(ONCE_ID);
            [CONTENT_HASH, POTOK_ID].into_iter().chain(once).collect()
        } else {
            let each = self.tables.get(index).is_some_and(|table| table.path.is_each());
            self.id_columns().into_iter().chain(each.then_some(ELEMENT)).collect()
        }
    }

    /// The kind of a key column.
    pub(crate) fn id_kind(&self, name: &str) -> ColumnKind {
        let parent = self.tables.first();
        let column = parent.and_then(|parent| parent.columns.iter().find(|c| c.name == name));
        column.map_or(ColumnKind::Text, |column| column.kind)
    }

    fn check_id(&self, problems: &mut Problems<'_>) {
        let (ParentId::Fields(names), Some(parent)) = (&self.id, self.tables.first()) else {
            return;
        };
        for name in names {
            match parent.columns.iter().find(|column| column.name == *name) {
                None => problems.add(
                    format!("`once_by` is `.{name}`, but the schema has no such field at the root"),
                    "name a field of the record, or add it to the schema",
                ),
                Some(column) if column.kind == ColumnKind::Json => problems.add(
                    format!("`once_by` is `.{name}`, which the schema lets be an object or array"),
                    "an id is a string, an integer, a number or a boolean",
                ),
                Some(_) => {}
            }
        }
    }

    fn check_clashes(&self, index: usize, table: &Table, problems: &mut Problems<'_>) {
        let own = self.own_columns(index);
        for (at, column) in table.columns.iter().enumerate() {
            let name = &column.name;
            if own.iter().any(|own| own.eq_ignore_ascii_case(name)) {
                problems.add(
                    format!(
                        "table `{}`: the field `{name}` has the name of a column that potok fills",
                        table.name
                    ),
                    "rename the field in a `vrl` stage",
                );
            }
            // SQL compares names without regard to case.
            let before = table.columns.get(..at).unwrap_or_default();
            if let Some(other) = before.iter().find(|c| c.name.eq_ignore_ascii_case(name)) {
                problems.add(
                    format!(
                        "table `{}`: the fields `{}` and `{name}` would be one column",
                        table.name, other.name
                    ),
                    "rename one of them in a `vrl` stage",
                );
            }
            if name.is_empty() || name.contains('\0') {
                problems.add(
                    format!("table `{}`: `{}` is no column name", table.name, name.escape_debug()),
                    "rename the field in a `vrl` stage",
                );
            }
        }
    }
}

impl Table {
    /// A table with these columns; `rows` says which of its fields have tables of their own.
    pub(super) fn new(
        name: String,
        path: RowsPath,
        columns: Vec<Column>,
        rows: &[&(String, RowsPath)],
    ) -> Table {
        let mut slots: Vec<(String, FieldTarget)> = columns
            .iter()
            .enumerate()
            .map(|(index, column)| (column.name.clone(), FieldTarget::Column(index)))
            .collect();
        for (_, other) in rows {
            if let Some(field) = field_elsewhere(&path, other) {
                slots.push((field.to_owned(), FieldTarget::Elsewhere));
            }
        }
        let by_name = slots.iter().enumerate().map(|(at, (name, _))| (name.clone(), at)).collect();
        Table { name, path, columns, own: Vec::new(), slots, by_name }
    }

    /// The same table with other columns.
    pub(super) fn with_columns(&self, columns: Vec<Column>, own: Vec<Bounds>) -> Table {
        let mut table = Table::new(self.name.clone(), self.path.clone(), columns, &[]);
        table.own = own;
        for (name, slot) in &self.slots {
            if let FieldTarget::Elsewhere = slot {
                table.by_name.insert(name.clone(), table.slots.len());
                table.slots.push((name.clone(), FieldTarget::Elsewhere));
            }
        }
        table
    }
}

fn is_parent(path: &RowsPath) -> bool {
    path.steps().is_empty() && !path.is_each()
}

/// The field of the object at `path` whose rows are those of `other`.
fn field_elsewhere<'a>(path: &RowsPath, other: &'a RowsPath) -> Option<&'a str> {
    let below = other.steps().strip_prefix(path.steps())?;
    match below {
        [field] if !path.is_each() => Some(field),
        _ => None,
    }
}

fn check_names(rows: &[&(String, RowsPath)], problems: &mut Problems<'_>) {
    for (index, (name, path)) in rows.iter().enumerate() {
        if name.is_empty() || name.contains('\0') {
            let shown = name.escape_debug();
            problems.add(format!("`{shown}` is no table name"), "give the table another name");
        }
        let before = rows.get(..index).unwrap_or_default();
        if before.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
            problems.add(
                format!("`rows` names the table `{name}` twice"),
                "SQL compares table names without regard to case",
            );
        }
        if path.steps().is_empty() && path.is_each() {
            problems.add(
                format!("table `{name}`: `{}` would make rows of the whole record", path.source()),
                "use `.` for one row per record, or name the array: `.items[]`",
            );
        }
    }
}

fn read_id(once_by: &[Template], has_children: bool, problems: &mut Problems<'_>) -> ParentId {
    if once_by.is_empty() {
        return ParentId::Delivery;
    }
    let mut fields = Vec::with_capacity(once_by.len());
    for template in once_by {
        match plain_field(template.source()) {
            Some(field) if fields.contains(&field) => problems
                .add(format!("`once_by` names `{}` twice", template.source()), "once is enough"),
            Some(field) => fields.push(field),
            None if has_children => problems.add(
                format!(
                    "`once_by` is `{}`, but tables of one record are tied together by plain \
                     fields of it",
                    template.source()
                ),
                "name a field at the root, like `.order_uid`, or put the id there in a `vrl` stage",
            ),
            None => return ParentId::OnceId,
        }
    }
    ParentId::Fields(fields)
}

/// The field, where the expression is nothing but a field at the root.
fn plain_field(source: &str) -> Option<String> {
    let path = RowsPath::parse(source.trim()).ok().filter(|path| !path.is_each())?;
    match path.steps() {
        [field] => Some(field.clone()),
        _ => None,
    }
}

fn columns(
    schema: &Schema<'_>,
    table: &str,
    path: &RowsPath,
    rows: &[&(String, RowsPath)],
    problems: &mut Problems<'_>,
) -> Vec<Column> {
    let place = schema.place(path.steps(), path.is_each());
    let fields = schema.fields(&place);
    if fields.is_empty() || !schema.takes_object(&place) {
        problems.add(
            format!(
                "table `{table}`: the schema names no fields at `{}`, so it would have no columns",
                path.source()
            ),
            "describe the object there with `properties`, or take the table out of `rows`",
        );
    }
    let elsewhere: Vec<&str> =
        rows.iter().filter_map(|(_, other)| field_elsewhere(path, other)).collect();
    fields
        .into_iter()
        .filter(|field| !elsewhere.contains(&field.name.as_str()))
        .map(|field| Column {
            name: field.name,
            kind: field.kind,
            required: field.required,
            default: None,
            bounds: Bounds::default(),
        })
        .collect()
}

/// Problems found so far.
struct Problems<'a> {
    label: &'a str,
    list: Vec<Fault>,
}

impl Problems<'_> {
    fn add(&mut self, what: String, hint: &str) {
        self.list.push(problem(self.label, &what, hint));
    }
}

/// The fault of a mapping that cannot work.
pub(super) fn problem(label: &str, what: &str, hint: &str) -> Fault {
    Fault::fix(format!("{label}: {what}")).hint(hint).code("P0304")
}
