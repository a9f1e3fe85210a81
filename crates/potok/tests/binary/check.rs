//! What is there: the rows of the database and the dead letters, read without potok's own code.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use serde_json::{Map, Value};

use crate::ledger::Ledger;
use crate::process::{Home, ProcessOutput, Running};

/// Columns potok adds to those of the order.
const ADDED: [&str; 3] = ["content_hash", "potok_id", "element"];

/// One dead letter as `dead-letters list --json` shows it.
#[derive(Clone, Debug)]
pub struct Letter {
    pub id: String,
    pub reason: String,
    pub error: String,
    pub value: Vec<u8>,
}

impl Letter {
    /// Reads the output of `dead-letters list --json`.
    pub fn all(ran: &ProcessOutput) -> Vec<Letter> {
        let text = |value: &Value| value.as_str().expect("a string").to_owned();
        ran.lines()
            .iter()
            .map(|line| Letter {
                id: text(&line["id"]),
                reason: text(&line["reason"]),
                error: text(&line["error"]),
                value: bytes(line, "value").expect("a value"),
            })
            .collect()
    }
}

/// A field of a printed record: text, or base64 where it is not UTF-8.
pub fn bytes(line: &Value, field: &str) -> Option<Vec<u8>> {
    match line[field].as_str() {
        Some(text) => Some(text.as_bytes().to_vec()),
        None => {
            let text = line[format!("{field}_base64")].as_str()?;
            Some(STANDARD.decode(text).expect("base64"))
        }
    }
}

pub type Row = Map<String, Value>;

/// The four tables of `orders`.
#[derive(Default)]
pub struct Tables {
    orders: HashMap<String, Vec<Row>>,
    children: [HashMap<String, Vec<Row>>; 3],
}

/// The tables of children and the fields they came from.
const CHILDREN: [(&str, &str); 3] =
    [("deliveries", "delivery"), ("payments", "payment"), ("items", "items")];

impl Tables {
    /// Reads the file; empty when there is none yet.
    pub fn read(file: &Path) -> Self {
        if !file.exists() {
            return Tables::default();
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let database = Connection::open_with_flags(file, flags).expect("the database opens");
        database.busy_timeout(crate::wait::PATIENCE).unwrap();
        // One transaction, so that all four are of one moment.
        let moment = database.unchecked_transaction().unwrap();
        let check: String =
            moment.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok", "the database is sound");
        let orders = rows(&moment, "orders");
        let children = CHILDREN.map(|(table, _)| rows(&moment, table));
        Tables { orders, children }
    }

    /// Tables that hold these orders, to check the checker.
    pub fn of(orders: impl IntoIterator<Item = Value>) -> Self {
        let mut tables = Tables::default();
        for mut order in orders {
            let uid = order["order_uid"].as_str().unwrap().to_owned();
            for ((_, field), children) in CHILDREN.iter().zip(&mut tables.children) {
                let rows = match order.as_object_mut().unwrap().remove(*field).unwrap() {
                    Value::Array(rows) => rows,
                    one => vec![one],
                };
                let rows = rows.into_iter().map(|row| row.as_object().unwrap().clone());
                children.insert(uid.clone(), rows.collect());
            }
            tables.orders.entry(uid).or_default().push(order.as_object().unwrap().clone());
        }
        tables
    }

    #[allow(dead_code, reason = "for the tests on real services")]
    /// Tables of these rows, as another program read them: `orders` and its children in order.
    pub fn of_rows([orders, deliveries, payments, items]: [Vec<Row>; 4]) -> Self {
        let children = [deliveries, payments, items].map(|rows| by_order(rows, false));
        Tables { orders: by_order(orders, true), children }
    }

    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.orders.keys().map(String::as_str)
    }

    pub fn count(&self) -> usize {
        self.orders.values().map(Vec::len).sum()
    }

    /// The order put together again from its rows. What is there twice does not fit together, and
    /// comes out as something nobody sent.
    pub fn order(&self, uid: &str) -> Option<Value> {
        let rows = self.orders.get(uid)?;
        let [row] = rows.as_slice() else {
            return Some(Value::from(format!("{} rows", rows.len())));
        };
        let mut order = row.clone();
        for ((_, field), children) in CHILDREN.iter().zip(&self.children) {
            let rows: Vec<Value> =
                children.get(uid).into_iter().flatten().cloned().map(Value::Object).collect();
            let value = match rows.as_slice() {
                [one] if *field != "items" => one.clone(),
                _ => Value::Array(rows),
            };
            order.insert((*field).to_owned(), value);
        }
        Some(Value::Object(order))
    }

    /// Children without an order.
    pub fn orphans(&self) -> Vec<String> {
        let tables = CHILDREN.iter().zip(&self.children);
        tables
            .flat_map(|((table, _), children)| children.keys().map(move |uid| (table, uid)))
            .filter(|(_, uid)| !self.orders.contains_key(*uid))
            .map(|(table, uid)| format!("{table} has rows of {uid}, orders has none"))
            .collect()
    }
}

/// All rows of a table by `order_uid`, elements in order, without what potok added.
fn rows(database: &Connection, table: &str) -> HashMap<String, Vec<Row>> {
    let order = if table == "items" { "ORDER BY element" } else { "" };
    let sql = format!("SELECT * FROM \"{table}\" {order}");
    let Ok(mut statement) = database.prepare(&sql) else { return HashMap::new() };
    let mut all = Vec::new();
    let columns: Vec<String> = statement.column_names().into_iter().map(str::to_owned).collect();
    let mut found = statement.query([]).unwrap();
    while let Some(row) = found.next().unwrap() {
        let mut fields = Row::new();
        for (index, column) in columns.iter().enumerate() {
            let value = match row.get_ref(index).unwrap() {
                ValueRef::Null => Value::Null,
                ValueRef::Integer(number) => Value::from(number),
                ValueRef::Real(number) => Value::from(number),
                ValueRef::Text(text) => Value::from(std::str::from_utf8(text).unwrap()),
                ValueRef::Blob(_) => Value::from("a blob"),
            };
            fields.insert(column.clone(), value);
        }
        all.push(fields);
    }
    by_order(all, table == "orders")
}

fn by_order(rows: Vec<Row>, keep_uid: bool) -> HashMap<String, Vec<Row>> {
    let mut all: HashMap<String, Vec<Row>> = HashMap::new();
    for mut fields in rows {
        ADDED.iter().for_each(|column| drop(fields.remove(*column)));
        let uid = fields["order_uid"].as_str().expect("a text").to_owned();
        if !keep_uid {
            fields.remove("order_uid");
        }
        all.entry(uid).or_default().push(fields);
    }
    all
}

/// Waits until `running` has worked everything off, then fails unless the promise was kept and
/// the counts add up.
pub fn assert_kept(home: &Home, running: &Running, ledger: &Ledger) {
    let status = running.drained();
    assert_adds_up(&status);
    let letters = running.run(["dead-letters", "list", "orders", "--json"], b"").good();
    let (tables, letters) = (Tables::read(&home.database()), Letter::all(&letters));
    assert_counts_are_true(&status, home.has_started_once(), tables.count(), letters.len());
    let problems = ledger.problems(&tables, &letters);
    assert!(
        problems.is_empty(),
        "{} problems with {} acknowledged orders, among them:\n{}\n{}",
        problems.len(),
        ledger.acknowledged(),
        problems[..problems.len().min(10)].join("\n"),
        running.journal(),
    );
}

/// Compares what a process counts with what is there: `rows` it has delivered, and open dead
/// letters. Processes before it have their part in that, unless it is the `only` one.
pub fn assert_counts_are_true(status: &Value, only: bool, rows: usize, letters: usize) {
    let count = |field: &str| status[field].as_u64().unwrap_or_else(|| panic!("{field}: {status}"));
    let (delivered, dead_lettered) = (count("delivered") as usize, count("dead_lettered") as usize);
    assert!(delivered <= rows, "{rows} rows: {status}");
    let by_reason = status["dead_letters_by_reason"].as_object().into_iter().flatten();
    let written: u64 = by_reason.map(|(_, count)| count.as_u64().unwrap()).sum();
    assert!(dead_lettered as u64 <= written, "each has a letter or more: {status}");
    // A part that died has delivered what it could not count any more: it is dropped as a duplicate when read again.
    if only && status["restarts"] == 0 {
        assert_eq!(delivered, rows, "{status}");
        // One that was replayed and failed again is one letter, and was counted each time.
        assert!(dead_lettered >= letters, "{letters} dead letters: {status}");
    }
}

/// `received = delivered + filtered + duplicates + dead_lettered + in_flight`.
pub fn assert_adds_up(status: &Value) {
    let count = |field: &str| status[field].as_u64().unwrap_or_else(|| panic!("{field}: {status}"));
    let ended = ["delivered", "filtered", "duplicates", "dead_lettered", "in_flight"];
    assert_eq!(count("received"), ended.into_iter().map(count).sum::<u64>(), "{status}");
}
