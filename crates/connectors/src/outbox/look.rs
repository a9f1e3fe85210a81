//! Looks at the tables before anything is relayed, and makes them where that is wanted.

use potok_core::Fault;
use potok_core::trouble::{Bug, Plant};
use tracing::warn;

use super::ddl;
use super::session::{OutboxSession, number, text};
use super::shape::{DEAD_COLUMNS, LEASES, Names, Order, OutboxColumn, ROWID, Shape, WAITING};
use crate::sql::Dialect;

/// What one asks about a table.
fn columns_sql(dialect: Dialect, schema: Option<&str>, table: &str) -> String {
    let text = |text: &str| format!("'{}'", text.replace('\'', "''"));
    match dialect {
        Dialect::Sqlite => format!(
            "SELECT 'main', name, lower(type), \"notnull\" = 0 AND pk = 0, \
             pk = 1 AND lower(type) = 'integer' AND \
             (SELECT count(*) FROM pragma_table_xinfo({0}) WHERE pk > 0) = 1, \
             hidden IN (2, 3) FROM pragma_table_xinfo({0}) WHERE hidden <> 1 ORDER BY cid",
            text(table)
        ),
        Dialect::Postgres => {
            let name = match schema {
                Some(schema) => {
                    format!("quote_ident({}) || '.' || quote_ident({})", text(schema), text(table))
                }
                None => format!("quote_ident({})", text(table)),
            };
            format!(
                "SELECT n.nspname, a.attname, b.typname, (NOT a.attnotnull)::int, \
                 (a.attidentity <> '' OR coalesce(pg_get_expr(d.adbin, d.adrelid), '') \
                 LIKE 'nextval(%')::int, (a.attgenerated <> '')::int \
                 FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid \
                 JOIN pg_namespace n ON n.oid = c.relnamespace \
                 JOIN pg_type t ON t.oid = a.atttypid \
                 JOIN pg_type b ON b.oid = CASE WHEN t.typbasetype <> 0 THEN t.typbasetype ELSE t.oid END \
                 LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
                 WHERE a.attrelid = to_regclass({name}) AND a.attnum > 0 AND NOT a.attisdropped \
                 ORDER BY a.attnum"
            )
        }
        Dialect::Mysql => format!(
            "SELECT TABLE_SCHEMA, COLUMN_NAME, LOWER(DATA_TYPE), CAST(IS_NULLABLE = 'YES' AS CHAR), \
             CAST(EXTRA LIKE '%auto_increment%' AS CHAR), \
             CAST(EXTRA LIKE '%GENERATED%' AND EXTRA NOT LIKE '%DEFAULT_GENERATED%' AS CHAR) \
             FROM information_schema.COLUMNS \
             WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = {} ORDER BY ORDINAL_POSITION",
            text(table)
        ),
    }
}

/// The schema and the columns of a table; `None` where it is not there.
async fn columns(
    session: &dyn OutboxSession,
    dialect: Dialect,
    schema: Option<&str>,
    table: &str,
) -> Result<Option<(String, Vec<OutboxColumn>)>, Fault> {
    let rows = session.query(columns_sql(dialect, schema, table)).await?;
    let schema = rows.first().and_then(|row| text(row, 0));
    let yes = |row, at| number(row, at) == Some(1);
    let columns = rows.iter().map(|row| OutboxColumn {
        name: text(row, 1).unwrap_or_default(),
        kind: text(row, 2).unwrap_or_default(),
        nullable: yes(row, 3),
        counts: yes(row, 4),
        generated: yes(row, 5),
    });
    Ok(schema.map(|schema| (schema, columns.collect())))
}

/// The unique index on the id alone; and whether an index leads to rows that wait: it has nothing but
/// them, or begins with the flag and goes on in their order. The index of old rows begins with the flag as
/// well, and is named after a column whose name has the flag's in it.
async fn indexes(
    session: &dyn OutboxSession,
    shape: &Shape,
) -> Result<(Option<String>, bool), Fault> {
    let names = &shape.names;
    let (table, id, processed) =
        (shape.literal(&names.table), shape.literal(&names.id), shape.literal(&names.processed));
    let by = match &shape.order {
        Order::Column(column) => shape.literal(column),
        Order::Time | Order::Rowid => shape.literal(&names.added_at),
    };
    let sql = match shape.dialect {
        Dialect::Sqlite => format!(
            "SELECT l.name, l.\"unique\" AND NOT l.partial AND (SELECT group_concat(name) FROM \
             pragma_index_info(l.name)) = {id}, 0, s.sql \
             FROM pragma_index_list({table}) l LEFT JOIN sqlite_schema s ON s.name = l.name \
             UNION ALL SELECT 'PRIMARY', 1, 0, NULL FROM pragma_table_xinfo({table}) \
             WHERE pk = 1 AND lower(type) = 'integer' AND name = {id}"
        ),
        Dialect::Postgres => format!(
            "SELECT c.relname, (i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL \
             AND i.indnkeyatts = 1 AND a.attname = {id})::int, \
             (i.indisvalid AND i.indpred IS NULL AND {} AND a.attname = {processed} \
             AND (i.indnkeyatts = 1 OR b.attname = {by}))::int, \
             CASE WHEN i.indisvalid THEN pg_get_expr(i.indpred, i.indrelid) END \
             FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
             LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] \
             LEFT JOIN pg_attribute b ON b.attrelid = i.indrelid AND b.attnum = i.indkey[1] \
             WHERE i.indrelid = to_regclass({})",
            // Where the flag may be null, the server finds rows that wait by no key.
            !shape.may_be_null(&names.processed),
            shape.literal(&shape.outbox())
        ),
        Dialect::Mysql => format!(
            "SELECT INDEX_NAME, CAST(MIN(NON_UNIQUE) = 0 AND COUNT(*) = 1 AND MAX(COLUMN_NAME) = {id} AS CHAR), \
             CAST(SUM(SEQ_IN_INDEX = 1 AND COLUMN_NAME = {processed}) > 0 AND (COUNT(*) = 1 OR \
             SUM(SEQ_IN_INDEX = 2 AND COLUMN_NAME = {by}) > 0) AS CHAR), NULL \
             FROM information_schema.STATISTICS \
             WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = {table} GROUP BY INDEX_NAME \
             ORDER BY INDEX_NAME = 'PRIMARY' DESC"
        ),
    };
    let rows = session.query(sql).await?;
    let unique = rows.iter().find(|row| number(row, 1) == Some(1)).and_then(|row| text(row, 0));
    let has_index = rows.iter().any(|row| {
        number(row, 2) == Some(1) || text(row, 3).is_some_and(|of| shape.is_of_waiting(&of))
    });
    Ok((unique, has_index))
}

impl Shape {
    fn may_be_null(&self, name: &str) -> bool {
        self.column(name).is_none_or(|column| column.nullable)
    }

    /// True for an index of nothing but rows that wait, by its condition: in PostgreSQL that itself, in
    /// SQLite the end of the statement that made it. It has to be the one that reads have, or the server
    /// does not see that it serves them.
    fn is_of_waiting(&self, condition: &str) -> bool {
        let plain = |text: &str| {
            let text = text.replace(['(', ')', '"', '`', '[', ']'], " ");
            text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
        };
        let (condition, flag) = (plain(condition), plain(&self.names.processed));
        if self.plant.is(Bug::IndexByName) {
            return condition.contains(&flag);
        }
        let condition = match self.dialect {
            Dialect::Sqlite => match condition.rsplit_once(" where ") {
                Some((_, condition)) => condition.to_owned(),
                None => return false,
            },
            _ => condition.replace(" ::boolean", ""),
        };
        match (self.dialect, self.may_be_null(&self.names.processed)) {
            (Dialect::Postgres, false) => {
                condition == format!("not {flag}") || condition == format!("{flag} = false")
            }
            _ => condition == format!("{flag} is not true"),
        }
    }
}

/// True where an index leads to the rows that wait.
pub(super) async fn has_index(session: &dyn OutboxSession, shape: &Shape) -> Result<bool, Fault> {
    indexes(session, shape).await.map(|(_, has_index)| has_index)
}

/// The table with the columns that it has now; refused where dead letters lack one of them.
pub(super) async fn with_columns_of_now(
    session: &dyn OutboxSession,
    shape: &Shape,
) -> Result<Shape, Fault> {
    let (dialect, schema) = (shape.dialect, Some(&*shape.schema));
    let found = columns(session, dialect, schema, &shape.names.table).await?;
    let Some((_, now)) = found else { return Err(Fault::retry("the table is gone")) };
    let shape = Shape { columns: now, ..shape.clone() };
    let found = columns(session, dialect, schema, &shape.names.dead).await?;
    let there = found.map(|(_, columns)| columns).unwrap_or_default();
    let lacking = shape.lacking(&there);
    if !lacking.is_empty() {
        return Err(lacks(&shape.source(), &shape.names.dead, &lacking));
    }
    Ok(shape)
}

impl Shape {
    /// Columns that dead letters need and do not have.
    fn lacking(&self, there: &[OutboxColumn]) -> Vec<&str> {
        let rowid = Some(ROWID).filter(|_| self.order == Order::Rowid);
        let needed = self.written().chain(DEAD_COLUMNS).chain(rowid);
        needed.filter(|name| !there.iter().any(|column| column.name == *name)).collect()
    }
}

fn lacks(label: &str, dead: &str, lacking: &[&str]) -> Fault {
    let what = format!("table `{dead}` lacks {}", lacking.join(", "));
    fix(label, what, "it has every column of the outbox table, with the same types", "P1303")
}

fn fix(label: &str, what: String, hint: impl Into<String>, code: &'static str) -> Fault {
    Fault::fix(format!("{label}: {what}")).hint(hint).code(code)
}

/// Statements of one kind, run one by one where the database commits each by itself.
pub(super) async fn run_all(
    session: &dyn OutboxSession,
    dialect: Dialect,
    statements: &[String],
) -> Result<(), Fault> {
    match dialect {
        Dialect::Sqlite => session.transact(&[], statements).await.map(drop),
        Dialect::Postgres => {
            // `CREATE TABLE IF NOT EXISTS` fails where two run at once. The number is the word potok.
            let lock = "SELECT pg_advisory_xact_lock(482906238827)".to_owned();
            let all: Vec<String> =
                std::iter::once(lock).chain(statements.iter().cloned()).collect();
            session.transact(&[], &all).await.map(drop)
        }
        Dialect::Mysql => {
            for statement in statements {
                session.query(statement.clone()).await?;
            }
            Ok(())
        }
    }
}

/// How to look.
pub(super) struct Look<'a> {
    pub session: &'a dyn OutboxSession,
    pub dialect: Dialect,
    pub names: &'a Names,
    pub label: &'a str,
    /// The pipeline file, for hints.
    pub pipeline: &'a str,
    /// Makes what is missing.
    pub create: bool,
    /// The naive version that a test has switched on.
    pub plant: Plant,
}

impl Look<'_> {
    /// The table as it is; `None` where it is not there.
    pub async fn table(&self) -> Result<Option<Shape>, Fault> {
        let names = self.names;
        let found = columns(self.session, self.dialect, None, &names.table).await?;
        let Some((schema, columns)) = found else { return Ok(None) };
        for needed in [
            &names.id,
            &names.event_type,
            &names.payload,
            &names.added_at,
            &names.processed,
            &names.processed_at,
            &names.retry_count,
        ]
        .into_iter()
        .chain(&names.headers)
        .chain(&names.order)
        {
            if !columns.iter().any(|column| column.name == *needed) {
                let there: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
                let what = format!("table `{}` has no column `{needed}`", names.table);
                let hint = format!("it has {}; name others under `columns`", there.join(", "));
                return Err(fix(self.label, what, hint, "P1302"));
            }
        }
        let counts = columns.iter().find(|column| column.counts).map(|column| column.name.clone());
        let order = match (names.order.clone().or(counts), self.dialect) {
            (Some(column), _) => Order::Column(column),
            (None, Dialect::Sqlite) => Order::Rowid,
            (None, _) => Order::Time,
        };
        let mut shape = Shape {
            dialect: self.dialect,
            names: names.clone(),
            schema,
            columns,
            order,
            id_index: String::new(),
            has_index: false,
            lease: String::new(),
            plant: self.plant,
        };
        shape.lease = shape.source();
        let is_flag = |kind: &str| match self.dialect {
            Dialect::Postgres => kind == "bool",
            _ => true,
        };
        let kind = shape.column(&names.processed).map_or("", |column| &column.kind);
        if !is_flag(kind) {
            let what = format!("column `{}` is {kind}, not boolean", names.processed);
            return Err(fix(self.label, what, "potok sets it to true", "P1302"));
        }
        let (unique, has_index) = indexes(self.session, &shape).await?;
        let Some(unique) = unique else {
            let what = format!("column `{}` of `{}` has no unique index", names.id, names.table);
            let hint = format!(
                "each note would read the whole table: CREATE UNIQUE INDEX ON {} ({})",
                shape.outbox(),
                shape.quote(&names.id)
            );
            return Err(fix(self.label, what, hint, "P1302"));
        };
        (shape.id_index, shape.has_index) = (unique, has_index);
        self.bears_notes(&shape).await?;
        Ok(Some(shape))
    }

    /// Without transactions nothing can be promised.
    async fn bears_notes(&self, shape: &Shape) -> Result<(), Fault> {
        if self.dialect != Dialect::Mysql {
            return Ok(());
        }
        let sql = format!(
            "SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() \
             AND TABLE_NAME = {}",
            shape.literal(&self.names.table)
        );
        let rows = self.session.query(sql).await?;
        let said = rows.first().and_then(|row| text(row, 0)).unwrap_or_default();
        if said.eq_ignore_ascii_case("InnoDB") {
            return Ok(());
        }
        let what = format!("table `{}` is kept by {said}", self.names.table);
        let hint = format!("it has no transactions: ALTER TABLE {} ENGINE=InnoDB", shape.outbox());
        Err(fix(self.label, what, hint, "P1302"))
    }

    /// What somebody should know of a table that can be relayed.
    pub async fn doubts(&self, shape: &Shape) -> Result<Vec<String>, Fault> {
        let outbox = shape.outbox();
        let mut doubts = Vec::new();
        if self.dialect == Dialect::Postgres {
            let hides = shape.literal(&outbox);
            let sql = format!("SELECT row_security_active(to_regclass({hides}))::int");
            let rows = self.session.query(sql).await?;
            if rows.first().and_then(|row| number(row, 0)) == Some(1) {
                doubts.push(format!(
                    "row level security hides rows of {outbox} from this user, and they are never \
                     published; give it BYPASSRLS"
                ));
            }
        }
        if shape.order == Order::Time {
            let counted = match self.dialect {
                Dialect::Mysql => "BIGINT NOT NULL AUTO_INCREMENT UNIQUE",
                Dialect::Postgres | Dialect::Sqlite => "bigint GENERATED BY DEFAULT AS IDENTITY",
            };
            doubts.push(format!(
                "rows are ordered by `{}` and id, which is not the order of commits; add a column \
                 that the database counts: ALTER TABLE {outbox} ADD {} {counted}",
                self.names.added_at,
                ddl::SEQ
            ));
        }
        if !shape.has_index {
            doubts.push(format!(
                "no index leads to the rows that wait, so the table is read less often; {}",
                shape.index()
            ));
        }
        Ok(doubts)
    }

    /// Whether it can be relayed, and what somebody should know; changes nothing.
    pub async fn check(&self) -> Result<Vec<String>, Fault> {
        let command = self.command();
        let Some(shape) = self.table().await? else {
            return match self.create {
                true => Ok(Vec::new()),
                false => Err(self.no_table(command)),
            };
        };
        let missing = self.missing(&shape).await?;
        if !missing.is_empty() && !self.create {
            return Err(self.no_tables(&missing, &command));
        }
        self.doubts(&shape).await
    }

    fn command(&self) -> String {
        format!("`potok outbox ddl {}` prints the statements", self.pipeline)
    }

    fn no_table(&self, command: String) -> Fault {
        fix(self.label, format!("there is no table `{}`", self.names.table), command, "P1301")
    }

    /// The table, with everything that the relay needs beside it.
    pub async fn prepare(&self) -> Result<Shape, Fault> {
        let command = self.command();
        let shape = match self.table().await? {
            Some(shape) => shape,
            None if self.create => {
                let planned = Shape::planned(self.dialect, self.names);
                let all = [ddl::outbox(self.dialect, self.names), planned.index()];
                self.make(&all).await?;
                let made = self.table().await?;
                made.ok_or_else(|| {
                    fix(self.label, "the table was not made".to_owned(), command.clone(), "P1301")
                })?
            }
            None => return Err(self.no_table(command)),
        };
        self.beside(&shape, &command).await?;
        for doubt in self.doubts(&shape).await? {
            warn!("{}: {doubt}", self.label);
        }
        Ok(shape)
    }

    async fn make(&self, statements: &[String]) -> Result<(), Fault> {
        run_all(self.session, self.dialect, statements).await.map_err(|fault| match fault.next {
            potok_core::Move::Wait => fault,
            _ => Fault::fix(format!("{}: cannot create the tables", self.label))
                .because(fault)
                .hint("`potok outbox ddl` prints the statements; then `potok resume`")
                .code("P1301"),
        })
    }

    /// The tables of potok, and dead letters.
    async fn beside(&self, shape: &Shape, command: &str) -> Result<(), Fault> {
        if self.create && !self.missing(shape).await?.is_empty() {
            self.make(&shape.beside()).await?;
        }
        let missing = self.missing(shape).await?;
        if missing.is_empty() { Ok(()) } else { Err(self.no_tables(&missing, command)) }
    }

    /// Those of them that are not there; refused where dead letters lack a column.
    async fn missing<'a>(&'a self, shape: &Shape) -> Result<Vec<&'a str>, Fault> {
        let dead = self.names.dead.as_str();
        let mut missing = Vec::new();
        for table in [LEASES, WAITING, dead] {
            let found = columns(self.session, self.dialect, Some(&shape.schema), table).await?;
            let Some((_, there)) = found else {
                missing.push(table);
                continue;
            };
            let lacking = if table == dead { shape.lacking(&there) } else { Vec::new() };
            if !lacking.is_empty() {
                return Err(lacks(self.label, dead, &lacking));
            }
        }
        Ok(missing)
    }

    fn no_tables(&self, missing: &[&str], command: &str) -> Fault {
        fix(self.label, format!("there is no table {}", missing.join(", ")), command, "P1301")
    }
}
