//! The keys of a delivery to a database, and which database a name leads to.
//!
//! All systems share the keys. Which system it is, is told by the connection in `potok.yaml`; each
//! says in a [`DatabaseSystem`] what its settings look like and how it is opened.

use std::path::Path;
use std::sync::Arc;

use potok_config::{
    CommonKey, ConnectionKind, Connections, Destination, EntryCheck, Location, Misfit, OrderedMap,
    Refusal, Registry, Rows, ShardedName, SinkSettings, Site, SqlName,
};
use potok_core::{Fault, Sink, Tracker};
use potok_expr::{RowsPath, Template};
use schemars::JsonSchema;
use serde::Deserialize;

use super::track::TrackTables;
use super::{Dialect, SqlSinkConfig, Tables, TrackConfig};

/// One system behind `db`.
pub(crate) struct DatabaseSystem {
    /// What its settings look like, for hints.
    pub forms: &'static [&'static str],
    /// True for the text of a setting that is one of its own.
    pub takes: fn(&str) -> bool,
    pub dialect: Dialect,
    pub open: OpenDatabase,
    /// Opens it for a tracker; `None` where this system has none.
    pub track: Option<OpenTracker>,
}

type OpenTracker = fn(&DatabaseLocation<'_>, TrackConfig) -> Result<Arc<dyn Tracker>, Fault>;

/// Opens the database at a place; everything that is wrong with the mapping at once.
type OpenDatabase = fn(&DatabaseLocation<'_>, SqlSinkConfig) -> Result<Arc<dyn Sink>, Vec<Fault>>;

/// Every system. The first is the one of a name that nobody has set.
const DATABASES: &[DatabaseSystem] = &[
    #[cfg(feature = "sqlite")]
    crate::sqlite::DATABASE,
    #[cfg(feature = "postgres")]
    crate::postgres::DATABASE,
    #[cfg(feature = "mysql")]
    crate::mysql::DATABASE,
];

/// Where a database is.
pub(crate) struct DatabaseLocation<'a> {
    pub name: &'a str,
    /// As it is set; `None` where it is not.
    pub location: Option<&'a Location>,
    pub data_dir: &'a Path,
}

impl DatabaseLocation<'_> {
    /// The text of the setting; it may hold a password.
    pub fn text(&self) -> &str {
        self.location.map_or("", |location| location.text.expose())
    }
}

/// `db` in `potok.yaml`.
pub const CONNECTIONS: ConnectionKind = ConnectionKind {
    key: "db",
    variable: "POTOK_DB_",
    description: "Databases by name: `sqlite` (a file in `data_dir`), `sqlite:FILE`, \
        `postgres://…` or `mysql://…`. Variable: `POTOK_DB_` and the name in capitals, other \
        characters as `_` (`shop-0` is `POTOK_DB_SHOP_0`). Default: `sqlite`.\n\n\
        Example: `db: { orders: sqlite }`",
    check: |text| match DATABASES.iter().any(|database| (database.takes)(text)) {
        true => Ok(()),
        false => {
            Err(Misfit { what: "this is not a setting for a database".to_owned(), hint: forms() })
        }
    },
};

fn forms() -> String {
    let forms = DATABASES.iter().flat_map(|database| database.forms);
    let forms: Vec<String> = forms.map(|form| format!("`{form}`")).collect();
    match forms.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => "this program has no databases".to_owned(),
    }
}

/// Adds deliveries to databases.
pub(crate) fn register(registry: &mut Registry) {
    registry.connections(CONNECTIONS).sink::<SqlSettings>("db", &[CommonKey::OnceBy]);
}

/// Tables of a database: all rows of a record in one transaction, each record once.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SqlSettings {
    /// The database, by its name in `potok.yaml` under `db`. Without a setting there it is an
    /// SQLite file in the data folder. With `{shard}` in it, each shard of `group.shard` has one of
    /// its own, and they fail and recover apart: `shop-{shard}` is `shop-0`, `shop-1` …
    ///
    /// Example: `db: orders`
    pub db: ShardedName,
    /// The table that gets one row per record.
    ///
    /// Example: `table: events`
    pub table: Option<SqlName>,
    /// Several tables, each with the part of the record that makes its rows. One table takes the
    /// whole record (`.`).
    ///
    /// Example: `rows: { orders: ., items: ".items[]" }`
    #[serde(default)]
    #[schemars(extend("propertyNames" = { "format": "potok-sql-name" }))]
    pub rows: OrderedMap<Rows>,
    /// Creates missing tables at start, with columns from `decode.schema`. `potok ddl` prints the
    /// statements.
    ///
    /// Example: `create_tables: true`
    #[serde(default)]
    pub create_tables: bool,
}

impl SqlSettings {
    /// The tables with the rows of each, in order; `table` is one with the whole record.
    pub fn tables(&self) -> Vec<(&str, RowsPath)> {
        let whole = || RowsPath::parse(".").ok();
        let table = self.table.iter().filter_map(|table| Some((table.as_str(), whole()?)));
        table.chain(self.rows.iter().map(|(table, rows)| (table, rows.path().clone()))).collect()
    }

    fn config(&self, site: &Site<'_>) -> SqlSinkConfig {
        let rows = self.tables().into_iter().map(|(table, path)| (table.to_owned(), path));
        SqlSinkConfig {
            label: site.label.clone(),
            rows: rows.collect(),
            once_by: site.once_by.clone(),
            schema: site.schema.cloned(),
            create_tables: self.create_tables,
        }
    }

    fn place<'a>(&self, name: &'a str, connections: &'a Connections) -> DatabaseLocation<'a> {
        let location = connections.named(&CONNECTIONS, name);
        DatabaseLocation { name, location, data_dir: &connections.data_dir }
    }

    fn check_rows(&self, entry: &mut EntryCheck<'_>) {
        let is_whole = |rows: &Rows| rows.steps().is_empty() && !rows.is_each();
        let whole: Vec<String> = self
            .rows
            .iter()
            .filter(|(_, rows)| is_whole(rows))
            .map(|(table, _)| table.to_owned())
            .collect();
        match whole.as_slice() {
            [] if !self.rows.is_empty() => {
                let what = "no table takes the whole record";
                let hint = "one table has the path `.`: it keeps the id and the position";
                entry.refuse_as(NOT_ONCE, "rows", what, hint);
            }
            [_, others @ ..] => {
                for other in others {
                    let what = format!("`{other}` is a second table for the whole record");
                    let hint = "give the others a part of it, such as `.items[]`";
                    entry.refuse_as(NOT_ONCE, &format!("rows.{other}"), what, hint);
                }
            }
            _ => {}
        }
        if self.rows.is_empty() {
            let what = "`rows` names no table";
            entry.refuse_as(NOT_ONCE, "rows", what, "e.g. `rows: { orders: . }`");
        }
        if !entry.has("once_by") {
            let what = "`rows` without `once_by`: nothing says which rows belong together";
            let hint = "name the id of a record, e.g. `once_by: .order_uid`";
            entry.refuse_as(NOT_ONCE, "rows", what, hint);
        } else if self.rows.len() > 1 {
            self.check_plain_ids(entry);
        }
    }

    /// The rows of child tables carry the id in a column, so it must be a field.
    fn check_plain_ids(&self, entry: &mut EntryCheck<'_>) {
        let ids: Vec<String> = entry.texts("once_by").into_iter().map(str::to_owned).collect();
        for (index, id) in ids.iter().enumerate() {
            let plain = RowsPath::parse(id).is_ok_and(|p| p.steps().len() == 1 && !p.is_each());
            if !plain && Template::parse(id).is_ok() {
                let what = format!("with several tables, `once_by` must be a field, not `{id}`");
                let hint = "every row carries the id in a column of that name, e.g. `.order_uid`";
                entry.refuse_as(NOT_ONCE, &format!("once_by.{index}"), what, hint);
            }
        }
    }
}

/// A delivery that cannot be once per record.
const NOT_ONCE: &str = "P0145";

impl SinkSettings for SqlSettings {
    fn label(&self) -> &str {
        &self.db
    }

    fn check(&self, entry: &mut EntryCheck<'_>) {
        if self.table.is_some() && entry.has("rows") {
            let what = "a delivery has `table` or `rows`, not both";
            entry.refuse_as("P0142", "rows", what, "`table: t` is short for `rows: { t: . }`");
        } else if self.table.is_none() && !entry.has("rows") {
            let what = "`db` without `table` or `rows`: nobody knows where in it";
            entry.refuse_as(NOT_ONCE, "db", what, "add `table: …`, or `rows: { table: . }`");
        }
        if entry.has("rows") {
            self.check_rows(entry);
        }
        if self.db.is_sharded() && !entry.has_shards() {
            let what = "`{shard}` without `group.shard`: there are no shards";
            let hint = "add `group: { shard: { by: …, of: 2 }, close: { every: 10s } }`";
            entry.refuse_as("P0144", "db", what, hint);
        }
        if self.create_tables && !entry.has_schema() {
            let what = "`create_tables` without `decode.schema`: nothing says which columns";
            let hint = "add `decode: { schema: … }`, or create the tables yourself";
            entry.refuse_as("P0146", "create_tables", what, hint);
        }
        if entry.is_raw() {
            let what = "rows of raw bytes: they have no fields";
            let hint =
                "use `format: json`; of raw records only `key`, `topic` and `header.…` are known";
            entry.refuse_as("P0148", "db", what, hint);
        }
    }

    fn is_sharded(&self) -> bool {
        self.db.is_sharded()
    }

    fn build(&self, site: &Site<'_>) -> Result<Destination, Vec<Refusal>> {
        let name = self.db.of(site.shard);
        let place = self.place(&name, site.connections);
        let database = database(&place, &site.label).map_err(|refusal| vec![refusal])?;
        let opened = (database.open)(&place, self.config(site));
        let refused = |fault| in_the_file(&site.label, fault);
        opened.map(Destination::Sink).map_err(|faults| faults.into_iter().map(refused).collect())
    }

    fn ddl(&self, site: &Site<'_>) -> Result<Vec<String>, Vec<Fault>> {
        let name = self.db.of(site.shard);
        let database = database(&self.place(&name, site.connections), &site.label)
            .map_err(|refusal| vec![refusal.fault])?;
        Ok(Tables::new(&self.config(site))?.ddl(database.dialect))
    }
}

/// The tracker of the table in the database of that name.
pub fn tracker(
    name: &str,
    connections: &Connections,
    config: TrackConfig,
) -> Result<Arc<dyn Tracker>, Fault> {
    let (place, open) = tracking(name, connections, &config)?;
    open(&place, config)
}

/// The statements that make its tables.
pub fn track_ddl(
    name: &str,
    connections: &Connections,
    config: &TrackConfig,
) -> Result<Vec<String>, Fault> {
    let (place, _) = tracking(name, connections, config)?;
    let database = database(&place, &config.label).map_err(|refusal| refusal.fault)?;
    Ok(TrackTables::new(config).ddl(database.dialect))
}

fn tracking<'a>(
    name: &'a str,
    connections: &'a Connections,
    config: &TrackConfig,
) -> Result<(DatabaseLocation<'a>, OpenTracker), Fault> {
    let location = connections.named(&CONNECTIONS, name);
    let place = DatabaseLocation { name, location, data_dir: &connections.data_dir };
    let database = database(&place, &config.label).map_err(|refusal| refusal.fault)?;
    let open = database.track.ok_or_else(|| {
        let what = format!("{}: `track` does not know this kind of database", config.label);
        Fault::fix(what).hint("use SQLite, MariaDB or MySQL").code("P1406")
    })?;
    Ok((place, open))
}

/// The system of a place.
pub(crate) fn database(
    place: &DatabaseLocation<'_>,
    label: &str,
) -> Result<&'static DatabaseSystem, Refusal> {
    let found = match place.location {
        Some(location) => DATABASES.iter().find(|known| (known.takes)(location.text.expose())),
        None => DATABASES.first(),
    };
    // What is set was checked when it was read, so this is a program without SQLite.
    found.ok_or_else(|| {
        let what = format!("{label}: nothing says where the database `{}` is", place.name);
        Refusal::from(Fault::fix(what).hint(forms()).code("P0526"))
    })
}

/// A mapping that does not fit is a mistake in the file: at the table it speaks of.
fn in_the_file(label: &str, fault: Fault) -> Refusal {
    if fault.code != "P0304" {
        return Refusal::from(fault);
    }
    let what = fault.what.strip_prefix(label).unwrap_or(&fault.what).trim_start_matches(": ");
    let table = what.strip_prefix("table `").and_then(|rest| rest.split('`').next());
    let keys = match table {
        Some(table) => vec![format!("rows.{table}"), "table".to_owned(), "rows".to_owned()],
        None if what.contains("`create_tables`") => vec!["create_tables".to_owned()],
        None if what.contains("`once_by`") => vec!["once_by".to_owned()],
        None => vec!["rows".to_owned(), "table".to_owned()],
    };
    let what = what.to_owned();
    Refusal::at(keys, Fault { what, ..fault })
}
