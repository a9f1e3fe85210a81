//! Tables, statements and rows without a database.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::Bytes;
use potok_core::{DeliveryId, Headers, Message, Move, Position, Reason, Timestamp};
use potok_expr::json::Parser;
use potok_expr::{RowsPath, Template};
use serde_json::{Value, json};

use super::*;

fn config(rows: &[(&str, &str)], once_by: &[&str], schema: Option<Value>) -> SqlSinkConfig {
    SqlSinkConfig {
        label: "db `test`".to_owned(),
        rows: rows
            .iter()
            .map(|(table, path)| ((*table).to_owned(), RowsPath::parse(path).unwrap()))
            .collect(),
        once_by: once_by.iter().map(|source| Template::parse(source).unwrap()).collect(),
        schema,
        create_tables: false,
    }
}

fn tables(rows: &[(&str, &str)], once_by: &[&str], schema: Value) -> Tables {
    Tables::new(&config(rows, once_by, Some(schema))).unwrap()
}

fn problems(rows: &[(&str, &str)], once_by: &[&str], schema: Value) -> Vec<String> {
    let faults = Tables::new(&config(rows, once_by, Some(schema))).unwrap_err();
    assert!(faults.iter().all(|fault| fault.next == Move::Fix && fault.code == "P0304"));
    faults.iter().map(ToString::to_string).collect()
}

fn message(value: &str) -> Message {
    let position = Position { log: 10, topic: "orders".into(), partition: 0, offset: 41 };
    Message {
        id: DeliveryId { position, deliver: 0, element: 0 },
        key: None,
        headers: Headers::none(),
        value: Bytes::copy_from_slice(value.as_bytes()),
        source: Bytes::from_static(b"abc"),
        once: Some(Bytes::from_static(b"once")),
        time: Timestamp(0),
    }
}

/// Each row as `table: value, value …`, text in quotes.
fn read(tables: &Tables, value: &str) -> Result<Vec<String>, potok_core::Fault> {
    let mut rows = Rows::default();
    rows.add(tables, &mut Parser::new(), 0, &message(value))?;
    let cell = |cell: &Cell| match cell {
        Cell::Null => "null".to_owned(),
        Cell::Integer(integer) => integer.to_string(),
        Cell::Real(real) => format!("{real:?}"),
        Cell::Text(range) => format!("'{}'", rows.text(range)),
    };
    let line = |table: usize, element: u32, cells: &[Cell]| {
        let cells: Vec<String> = cells.iter().map(cell).collect();
        format!("{table}.{element}: {}", cells.join(", "))
    };
    let mut lines = Vec::new();
    for record in rows.records(tables) {
        lines.push(line(0, 0, record.parent));
        lines.extend(record.children().map(|(table, element, cells)| line(table, element, cells)));
    }
    Ok(lines)
}

fn order_schema() -> Value {
    json!({
        "type": "object",
        "required": ["order_uid", "delivery", "items"],
        "properties": {
            "order_uid": { "type": "string" },
            "delivery": { "$ref": "#/$defs/delivery" },
            "items": { "type": "array", "items": { "$ref": "#/$defs/an%20item~0" } },
            "sm_id": { "type": ["integer", "null"] },
            "extra": { "type": "object" }
        },
        "$defs": {
            "delivery": {
                "allOf": [{ "required": ["name"] }],
                "type": "object",
                "properties": { "name": { "type": "string" }, "express": { "type": "boolean" } }
            },
            "an item~": {
                "type": "object",
                "required": ["price", "rid"],
                "properties": { "price": { "type": "number" }, "rid": { "const": "x" } }
            }
        }
    })
}

const ORDER_ROWS: &[(&str, &str)] =
    &[("items", ".items[]"), ("orders", "."), ("deliveries", ".delivery")];

#[test]
fn statements_follow_the_schema() {
    let ddl = tables(ORDER_ROWS, &[".order_uid"], order_schema()).ddl(Dialect::Sqlite);
    assert_eq!(
        ddl,
        [
            r#"CREATE TABLE IF NOT EXISTS "orders" (
  "order_uid" TEXT NOT NULL,
  "sm_id" INTEGER,
  "extra" TEXT,
  "content_hash" TEXT NOT NULL,
  "potok_id" TEXT NOT NULL,
  PRIMARY KEY ("order_uid"),
  UNIQUE ("potok_id")
) STRICT"#,
            r#"CREATE TABLE IF NOT EXISTS "items" (
  "order_uid" TEXT NOT NULL,
  "element" INTEGER NOT NULL,
  "price" REAL NOT NULL,
  "rid" TEXT NOT NULL,
  PRIMARY KEY ("order_uid", "element"),
  FOREIGN KEY ("order_uid") REFERENCES "orders" ("order_uid") ON DELETE CASCADE
) STRICT"#,
            r#"CREATE TABLE IF NOT EXISTS "deliveries" (
  "order_uid" TEXT NOT NULL,
  "name" TEXT NOT NULL,
  "express" INTEGER,
  PRIMARY KEY ("order_uid"),
  FOREIGN KEY ("order_uid") REFERENCES "orders" ("order_uid") ON DELETE CASCADE
) STRICT"#,
        ]
    );
}

#[test]
fn each_system_has_its_own_types_and_quotes() {
    let tables = tables(ORDER_ROWS, &[".order_uid"], order_schema());
    let ddl = tables.ddl(Dialect::Postgres);
    assert_eq!(
        ddl[..2],
        [
            r#"CREATE TABLE IF NOT EXISTS "orders" (
  "order_uid" TEXT COLLATE "C" NOT NULL,
  "sm_id" BIGINT,
  "extra" JSON,
  "content_hash" TEXT COLLATE "C" NOT NULL,
  "potok_id" TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY ("order_uid"),
  UNIQUE ("potok_id")
)"#,
            r#"CREATE TABLE IF NOT EXISTS "items" (
  "order_uid" TEXT COLLATE "C" NOT NULL,
  "element" BIGINT NOT NULL,
  "price" DOUBLE PRECISION NOT NULL,
  "rid" TEXT NOT NULL,
  PRIMARY KEY ("order_uid", "element"),
  FOREIGN KEY ("order_uid") REFERENCES "orders" ("order_uid") ON DELETE CASCADE
)"#,
        ]
    );
    let ddl = tables.ddl(Dialect::Mysql);
    assert_eq!(
        ddl[0],
        r#"CREATE TABLE IF NOT EXISTS `orders` (
  `order_uid` VARCHAR(512) NOT NULL,
  `sm_id` BIGINT,
  `extra` LONGTEXT,
  `content_hash` VARCHAR(64) NOT NULL,
  `potok_id` VARCHAR(500) NOT NULL,
  PRIMARY KEY (`order_uid`),
  UNIQUE (`potok_id`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin"#
    );
    assert!(ddl[2].contains("`express` BOOLEAN"), "{}", ddl[2]);
    assert_eq!(Dialect::Mysql.quote("a`b\"c"), "`a``b\"c`");
    assert_eq!(Dialect::Postgres.quote("a`b\"c"), "\"a`b\"\"c\"");
}

#[test]
fn keys_of_several_columns_fit_into_one_index() {
    let schema = json!({ "properties": {
        "a": { "type": "string" }, "b": { "type": "string" }, "c": { "type": "integer" },
        "d": { "type": "string" }, "list": { "items": { "properties": { "potok_id": { "type": "string" } } } }
    } });
    let rows = &[("t", "."), ("l", ".list[]")];
    let ddl = tables(rows, &[".a", ".b", ".c"], schema).ddl(Dialect::Mysql);
    // (3072 - 2 * 8) / 4 / 2
    assert!(ddl[1].contains("`a` VARCHAR(382) NOT NULL") && ddl[1].contains("`c` BIGINT NOT NULL"));
    // A field of that name in a child is a field.
    assert!(ddl[1].contains("`potok_id` LONGTEXT"), "{}", ddl[1]);
    assert!(ddl[0].contains("`d` LONGTEXT,"), "{}", ddl[0]);
}

#[test]
fn without_once_by_the_position_is_the_key() {
    let schema = json!({ "properties": {
        "select": { "type": "string" },
        "parts": { "items": { "properties": { "n\"o": { "type": "integer" } } } }
    } });
    let ddl = tables(&[("table", "."), ("p", ".parts[]")], &[], schema).ddl(Dialect::Sqlite);
    assert_eq!(
        ddl,
        [
            r#"CREATE TABLE IF NOT EXISTS "table" (
  "select" TEXT,
  "content_hash" TEXT NOT NULL,
  "potok_id" TEXT NOT NULL,
  PRIMARY KEY ("potok_id")
) STRICT"#,
            r#"CREATE TABLE IF NOT EXISTS "p" (
  "potok_id" TEXT NOT NULL,
  "element" INTEGER NOT NULL,
  "n""o" INTEGER,
  PRIMARY KEY ("potok_id", "element"),
  FOREIGN KEY ("potok_id") REFERENCES "table" ("potok_id") ON DELETE CASCADE
) STRICT"#,
        ]
    );
}

#[test]
fn an_id_that_is_no_field_has_a_column_of_its_own() {
    let schema = json!({ "properties": { "a": { "type": "string" } } });
    let one = tables(&[("t", ".")], &["header.batchId"], schema.clone());
    assert!(one.ddl(Dialect::Sqlite)[0].contains("PRIMARY KEY (\"once_id\")"));
    let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(
        read(&one, r#"{"a":"x"}"#).unwrap(),
        [format!("0.0: 'x', '{hash}', 'orders/0/41@000000000000000a/0/0', 'once'")]
    );
    let two = tables(
        &[("t", ".")],
        &[".a", ".\"b c\""],
        json!({ "properties": {
        "b c": { "type": "integer" }, "a": { "type": "string" }
    } }),
    );
    let ddl = two.ddl(Dialect::Sqlite).remove(0);
    assert!(ddl.contains("PRIMARY KEY (\"a\", \"b c\")"), "{ddl}");
}

#[test]
fn every_problem_is_named() {
    let schema = json!({ "properties": {
        "id": { "type": "string" },
        "ID": { "type": "string" },
        "potok_id": { "type": "integer" },
        "body": { "type": "object" },
        "": { "type": "string" },
        "child": { "properties": { "ID": { "type": "string" } } },
        "list": { "items": { "properties": { "element": { "type": "string" } } } },
        "tags": { "items": { "type": "string" } }
    } });
    let rows = &[("t", "."), ("T", ".child"), ("l", ".list[]"), ("tags", ".tags[]")];
    let found = problems(rows, &[".id", ".gone", ".body", "topic"], schema.clone());
    for part in [
        "names the table `T` twice",
        "`.gone`, but the schema has no such field",
        "`.body`, which the schema lets be an object or array",
        "`topic`, but tables of one record are tied together by plain fields",
        "table `t`: the fields `id` and `ID` would be one column",
        "table `t`: the field `potok_id` has the name of a column that potok fills",
        "table `t`: `` is no column name",
        "table `T`: the field `ID` has the name of a column that potok fills",
        "table `l`: the field `element` has the name of a column that potok fills",
        "table `tags`: the schema names no fields at `.tags[]`",
    ] {
        assert!(found.iter().any(|problem| problem.contains(part)), "{part} not in {found:#?}");
    }
    assert_eq!(found.len(), 10, "{found:#?}");

    assert!(problems(&[("t", ".child")], &[], schema.clone())[0].contains("0 tables at `.`"));
    assert!(problems(&[], &[], schema)[0].contains("0 tables at `.`"));
    let mut no_schema = config(&[("t", ".")], &[], None);
    no_schema.create_tables = true;
    assert!(Tables::new(&no_schema).unwrap_err()[0].what.contains("no schema to make columns"));
}

#[test]
fn circles_and_bombs_of_references_end() {
    let mut defs = serde_json::Map::new();
    for n in 0..60 {
        let next = json!({ "$ref": format!("#/$defs/d{}", (n + 1) % 60) });
        defs.insert(format!("d{n}"), json!({ "anyOf": [next, next], "allOf": [next, next] }));
    }
    let schema = json!({
        "properties": { "id": { "$ref": "#/$defs/d0" }, "self": { "$ref": "#" } },
        "$defs": defs
    });
    let tables = tables(&[("t", ".")], &[], schema);
    let kinds: Vec<ColumnKind> = tables.columns(0).iter().map(|column| column.kind).collect();
    assert_eq!(kinds, [ColumnKind::Json, ColumnKind::Json]);
}

#[test]
fn types_come_from_all_ways_to_say_them() {
    let schema = json!({ "required": ["a", "b", "c", "d", "e", "f", "g", "h", "i"], "properties": {
        "a": { "enum": ["x", "y"] },
        "b": { "enum": [1, 2, null] },
        "c": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
        "d": { "oneOf": [{ "type": "integer" }, { "type": "number" }] },
        "e": { "type": ["string", "integer"] },
        "f": {},
        "g": { "allOf": [{ "type": ["string", "null"] }, { "type": "string" }] },
        "h": true,
        "i": { "type": "array" }
    } });
    let tables = tables(&[("t", ".")], &[], schema);
    let found: Vec<(ColumnKind, bool)> =
        tables.columns(0).iter().map(|c| (c.kind, c.required)).collect();
    assert_eq!(
        found,
        [
            (ColumnKind::Text, true),
            (ColumnKind::Integer, false),
            (ColumnKind::Text, false),
            (ColumnKind::Real, true),
            (ColumnKind::Json, true),
            (ColumnKind::Json, false),
            (ColumnKind::Text, true),
            (ColumnKind::Json, false),
            (ColumnKind::Json, true),
        ]
    );
}

#[test]
fn alternatives_add_columns_that_may_be_null() {
    let schema = json!({
        "properties": { "kind": { "type": "string" } },
        "oneOf": [
            { "required": ["n"], "properties": { "n": { "type": "integer" } } },
            { "properties": { "n": { "type": "string" }, "m": { "type": "boolean" } } }
        ]
    });
    let tables = tables(&[("t", ".")], &[], schema);
    let found: Vec<_> =
        tables.columns(0).iter().map(|c| (c.name.as_str(), c.kind, c.required)).collect();
    assert_eq!(
        found,
        [
            ("kind", ColumnKind::Text, false),
            ("n", ColumnKind::Json, false),
            ("m", ColumnKind::Boolean, false)
        ]
    );
}

#[test]
fn rows_are_read_in_any_order_of_fields() {
    let tables = tables(ORDER_ROWS, &[".order_uid"], order_schema());
    let want = [
        "0.0: 'u1', null, '{\"k\": [1, \"\\u0000\"]}', \
         'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad', \
         'orders/0/41@000000000000000a/0/0'",
        "1.0: 0.5, 'x'",
        "1.1: 10.0, 'x'",
        "2.0: 'Anna \"A\" \u{1f600}', 1",
    ];
    let texts = [
        r#"{"order_uid":"u1","delivery":{"name":"Anna \"A\" \ud83d\ude00","express":true},
           "items":[{"price":0.5,"rid":"x"},{"price":1e1,"rid":"x"}],"sm_id":null,
           "extra":{"k": [1, "\u0000"]}}"#,
        r#"{"extra":{"k": [1, "\u0000"]},"items":[{"rid":"x","price":5e-1},{"rid":"x","price":10}],
           "delivery":{"express":true,"name":"Anna \"A\" 😀"},"order_uid":"u1"}"#,
    ];
    for text in texts {
        assert_eq!(read(&tables, text).unwrap(), want);
    }
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_nothing() {
    let schema = json!({
        "required": ["id"],
        "properties": {
            "id": { "type": "string" }, "text": { "type": "string" },
            "int": { "type": "integer" }, "real": { "type": "number" },
            "flag": { "type": "boolean" }, "need": {}, "one": { "properties": { "a": {} } },
            "many": { "items": { "properties": { "a": { "type": "integer" } } } }
        }
    });
    let rows = &[("t", "."), ("one", ".one"), ("many", ".many[]")];
    let tables = tables(rows, &[".id"], schema);
    let mut kept = Rows::default();
    let mut parser = Parser::new();
    for (index, (fields, reason, part)) in [
        (r#""text":"a\u0000b""#, Reason::Refused, "`text`: the text holds a NUL"),
        (r#""int":9223372036854775808"#, Reason::Refused, "not an integer of 64 bits"),
        (r#""int":1.5"#, Reason::Refused, "`1.5` is not an integer"),
        (r#""int":"1""#, Reason::Refused, "takes integers, not a string"),
        (r#""real":9007199254740993"#, Reason::Refused, "more digits than the column keeps"),
        (r#""real":9223372036854775807"#, Reason::Refused, "more digits than the column keeps"),
        (r#""real":18446744073709551616"#, Reason::Refused, "more digits than the column keeps"),
        (r#""flag":1"#, Reason::Refused, "takes true or false, not a number"),
        (r#""odd":1"#, Reason::Refused, "table `t`: the field `odd` has no column"),
        (r#""potok_id":1"#, Reason::Refused, "the field `potok_id` has no column"),
        (r#""one":[]"#, Reason::Refused, "table `one`: a row is an object, not an array"),
        (r#""many":{}"#, Reason::Refused, "`.many[]` wants an array, the record has an object"),
        (
            r#""many":[{"a":1},{"a":2,"b":3}]"#,
            Reason::Refused,
            "table `many`, element 1: the field",
        ),
        (r#""many":[null]"#, Reason::Refused, "element 0: a row is an object, not null"),
    ]
    .into_iter()
    .enumerate()
    {
        let text = format!(r#"{{"id":"i",{fields}}}"#);
        let fault = kept.add(&tables, &mut parser, index, &message(&text)).unwrap_err();
        assert_eq!((fault.next, fault.reason, fault.code), (Move::SetAside, reason, "P0308"));
        assert!(fault.to_string().contains(part), "{fault}");
    }
    for text in [r#"{"text":"x"}"#, r#"{"id":null}"#] {
        let fault = kept.add(&tables, &mut parser, 0, &message(text)).unwrap_err();
        assert_eq!(fault.next, Move::SetAside, "{fault}");
    }
    let fault = kept.add(&tables, &mut parser, 0, &message("{\"id\":")).unwrap_err();
    assert_eq!((fault.next, fault.reason), (Move::SetAside, Reason::Undecodable));
    let fault = kept.add(&tables, &mut parser, 0, &message("[1]")).unwrap_err();
    assert!(fault.to_string().contains("a row is an object"), "{fault}");
    assert!(kept.is_empty());

    let good =
        r#"{"id":"i","int":1e18,"real":9007199254740992,"flag":false,"one":null,"many":null}"#;
    kept.add(&tables, &mut parser, 7, &message(good)).unwrap();
    assert_eq!((kept.count(), kept.records(&tables).count()), (1, 1));
    assert_eq!(kept.records(&tables).next().unwrap().message, 7);
    let line = read(&tables, good).unwrap().remove(0);
    assert!(
        line.starts_with("0.0: 'i', null, 1000000000000000000, 9007199254740992.0, 0, null,"),
        "{line}"
    );
}

fn found(name: &str, kind: ColumnKind) -> FoundColumn {
    FoundColumn {
        name: name.to_owned(),
        kind,
        not_null: false,
        default: None,
        bounds: Bounds::default(),
    }
}

fn own_columns() -> [FoundColumn; 2] {
    [found("content_hash", ColumnKind::Text), found("potok_id", ColumnKind::Text)]
}

#[test]
fn without_a_schema_columns_are_those_found() {
    let tables = Tables::new(&config(&[("t", ".")], &[".id"], None)).unwrap();
    assert!(tables.ddl(Dialect::Sqlite).is_empty());
    let mut columns = vec![
        found("id", ColumnKind::Text),
        found("any", ColumnKind::Any),
        found("n", ColumnKind::Real),
    ];
    columns.push(FoundColumn {
        not_null: true,
        default: Some("CURRENT_TIMESTAMP".to_owned()),
        ..found("at", ColumnKind::Any)
    });
    columns.extend(own_columns());
    let unique = vec![vec!["id".to_owned()], vec!["potok_id".to_owned()]];
    let there = Some(FoundTable { columns, unique, ..FoundTable::default() });
    let fitted = tables.fit(&[there], Dialect::Sqlite).unwrap();
    let line = |text: &str| read(&fitted, text).unwrap().remove(0);
    assert!(line(r#"{"id":7,"any":1.0,"n":1}"#).starts_with("0.0: '7', 1.0, 1.0, null, 'ba78"));
    assert!(line(r#"{"any":{"a":1},"id":"7"}"#).starts_with("0.0: '7', '{\"a\":1}', null,"));
    assert!(line(r#"{"id":"7","any":true}"#).starts_with("0.0: '7', 1,"));
    assert!(line(r#"{"id":[7],"any":-5}"#).starts_with("0.0: '[7]', -5,"));
}

#[test]
fn tables_that_do_not_fit_are_described_at_once() {
    let schema = json!({ "required": ["id"], "properties": {
        "id": { "type": "string" }, "n": { "type": "string" }, "m": { "type": "integer" },
        "c": { "properties": { "x": { "type": "number" } } }
    } });
    let tables = tables(&[("t", "."), ("c", ".c")], &[".id"], schema);
    let columns = vec![
        found("id", ColumnKind::Text),
        found("n", ColumnKind::Integer),
        FoundColumn { not_null: true, ..found("more", ColumnKind::Text) },
        found("potok_id", ColumnKind::Text),
    ];
    let there =
        Some(FoundTable { columns, unique: vec![vec!["id".to_owned()]], ..FoundTable::default() });
    let fault = tables.fit(&[there.clone(), None], Dialect::Sqlite).unwrap_err();
    assert_eq!((fault.next, fault.code), (Move::Fix, "P0301"));
    for part in [
        "missing: column `content_hash` of table `t`, column `m` of table `t`, table `c`",
        "column `n` of table `t` takes integers, but the schema says text",
        "column `more` of table `t` takes no null and has no default",
        "table `t` has no unique key on `potok_id` that compares bytes",
        "ALTER TABLE \"t\" ADD COLUMN \"content_hash\" TEXT",
        "ALTER TABLE \"t\" ADD COLUMN \"m\" INTEGER",
        "CREATE UNIQUE INDEX \"t_potok_id\" ON \"t\" (\"potok_id\")",
        "CREATE TABLE IF NOT EXISTS \"c\"",
    ] {
        assert!(fault.to_string().contains(part), "{part} not in {fault}");
    }

    let unknown = Tables::new(&config(&[("t", "."), ("c", ".c[]")], &[".id"], None)).unwrap();
    let fault = unknown.fit(&[None, None], Dialect::Sqlite).unwrap_err();
    assert!(fault.to_string().contains("`id`, `element`"), "{fault}");
    let mut there = FoundTable { columns: own_columns().into(), ..FoundTable::default() };
    there.unique = vec![vec!["POTOK_ID".to_owned()], vec!["ID".to_owned()]];
    there.columns.push(found("ID", ColumnKind::Text));
    let fault = unknown.fit(&[Some(there), None], Dialect::Sqlite).unwrap_err();
    assert!(fault.to_string().contains("column `id` of table `t`"), "{fault}");
}
