//! Orders of the well-known shape, and a database to put them into.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use potok_connectors::sql::SqlSinkConfig;
use potok_connectors::sqlite::SqliteSink;
use potok_core::{Batch, DeliveryId, Headers, Message, Outcome, Position, Sink as _, Timestamp};
use potok_expr::{RowsPath, Template};
use rusqlite::Connection;
use rusqlite::types::Value as SqlValue;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder with one database and its sink.
pub struct RowPlace {
    pub folder: TempDir,
    pub path: PathBuf,
    pub sink: SqliteSink,
}

impl RowPlace {
    /// Orders into four tables, which are created.
    pub async fn orders() -> RowPlace {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db").join("orders.sqlite");
        let sink = SqliteSink::new(path.clone(), orders_config()).unwrap();
        sink.prepare().await.unwrap();
        RowPlace { folder, path, sink }
    }

    /// A database made by `sql`, and a sink for it. Not prepared.
    pub fn made_by(sql: &str, config: SqlSinkConfig) -> RowPlace {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made.sqlite");
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        let sink = SqliteSink::new(path.clone(), config).unwrap();
        RowPlace { folder, path, sink }
    }

    /// Delivers; every outcome as one word, with what a failed one says.
    pub async fn deliver(&self, messages: Vec<Message>) -> Vec<String> {
        outcomes(&self.sink, messages).await
    }

    /// The rows of a query, values as SQL prints them.
    pub fn query(&self, sql: &str) -> Vec<String> {
        query(&self.path, sql)
    }

    pub fn count(&self, table: &str) -> usize {
        self.query(&format!("SELECT * FROM \"{table}\"")).len()
    }
}

pub async fn outcomes(sink: &SqliteSink, messages: Vec<Message>) -> Vec<String> {
    let len = messages.len();
    let receipt = sink.deliver(&Batch { messages }).await.unwrap();
    let word = |outcome| match outcome {
        Outcome::Delivered => "delivered".to_owned(),
        Outcome::Duplicate | Outcome::Again => "duplicates".to_owned(),
        Outcome::Failed(fault) => format!("{:?} {}: {fault}", fault.next, fault.reason),
    };
    receipt.outcomes(len).map(word).collect()
}

pub fn query(path: &Path, sql: &str) -> Vec<String> {
    let connection = Connection::open(path).unwrap();
    let mut statement = connection.prepare(sql).unwrap();
    let width = statement.column_count();
    let mut rows = statement.query([]).unwrap();
    let mut lines = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        let cell = |index| match row.get::<_, SqlValue>(index).unwrap() {
            SqlValue::Null => "null".to_owned(),
            SqlValue::Integer(integer) => integer.to_string(),
            SqlValue::Real(real) => format!("{real:?}"),
            SqlValue::Text(text) => format!("'{text}'"),
            SqlValue::Blob(_) => "blob".to_owned(),
        };
        lines.push((0..width).map(cell).collect::<Vec<_>>().join(", "));
    }
    lines
}

pub fn config(rows: &[(&str, &str)], once_by: &[&str], schema: Option<Value>) -> SqlSinkConfig {
    SqlSinkConfig {
        label: "db `test`".to_owned(),
        rows: rows
            .iter()
            .map(|(table, path)| ((*table).to_owned(), RowsPath::parse(path).unwrap()))
            .collect(),
        once_by: once_by.iter().map(|source| Template::parse(source).unwrap()).collect(),
        create_tables: schema.is_some(),
        schema,
    }
}

pub fn orders_config() -> SqlSinkConfig {
    let rows = &[
        ("orders", "."),
        ("deliveries", ".delivery"),
        ("payments", ".payment"),
        ("items", ".items[]"),
    ];
    config(rows, &[".order_uid"], Some(schema()))
}

fn schema() -> Value {
    let object = |texts: &[&str], integers: &[&str]| {
        let texts = texts.iter().map(|name| (*name, json!({ "type": "string" })));
        let integers = integers.iter().map(|name| (*name, json!({ "type": "integer" })));
        let all: Vec<(&str, Value)> = texts.chain(integers).collect();
        let required: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        let properties: serde_json::Map<String, Value> =
            all.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        json!({ "type": "object", "properties": properties, "required": required })
    };
    let mut schema = object(&["order_uid", "track_number", "locale", "date_created"], &["sm_id"]);
    let delivery = object(&["name", "phone", "city"], &[]);
    let payment = object(&["transaction", "currency"], &["amount", "payment_dt"]);
    let item = object(&["rid", "name"], &["chrt_id", "price", "sale"]);
    let properties = schema["properties"].as_object_mut().unwrap();
    properties.insert("delivery".to_owned(), json!({ "$ref": "#/$defs/delivery" }));
    properties.insert("payment".to_owned(), json!({ "$ref": "#/$defs/payment" }));
    properties.insert(
        "items".to_owned(),
        json!({ "type": "array", "minItems": 1, "items": { "$ref": "#/$defs/item" } }),
    );
    schema["$defs"] = json!({ "delivery": delivery, "payment": payment, "item": item });
    schema
}

/// An order with two items.
pub fn order(uid: &str) -> Value {
    json!({
        "order_uid": uid,
        "track_number": "TRACK7",
        "delivery": { "name": "Olga O'Neil", "phone": "+49301234567", "city": "Zürich" },
        "payment": {
            "transaction": uid, "currency": "EUR", "amount": 1_817, "payment_dt": 4_102_444_800_i64
        },
        "items": [
            { "chrt_id": 1, "price": 0, "rid": "r1", "name": "Кружка", "sale": 30 },
            { "chrt_id": 2, "price": 453, "rid": "r2", "name": "", "sale": 0 }
        ],
        "locale": "de",
        "date_created": "2026-03-01T06:22:19Z",
        "sm_id": 99
    })
}

/// A message at an offset of partition 0.
pub fn message(offset: u64, value: &Value) -> Message {
    bytes_message(offset, Bytes::from(value.to_string()))
}

pub fn bytes_message(offset: u64, value: Bytes) -> Message {
    let position = Position { log: 7, topic: "orders".into(), partition: 0, offset };
    Message {
        id: DeliveryId { position, deliver: 0, element: 0 },
        key: None,
        headers: Headers::none(),
        source: value.clone(),
        value,
        once: None,
        time: Timestamp(0),
    }
}
