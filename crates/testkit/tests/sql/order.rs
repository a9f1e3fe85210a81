//! Orders of the well-known shape, and messages that carry them.

use bytes::Bytes;
use potok_connectors::sql::SqlSinkConfig;
use potok_core::{DeliveryId, Headers, Message, Position, Timestamp};
use potok_expr::{RowsPath, Template};
use serde_json::{Value, json};

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

/// Orders `u<first>` and so on, at offsets of the same number.
pub fn orders(numbers: impl IntoIterator<Item = u64>) -> Vec<Message> {
    numbers.into_iter().map(|n| message(n, &order(&format!("u{n}")))).collect()
}
