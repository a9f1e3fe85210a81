//! The program of `pipelines/em-processor.yaml`, run on records written by hand and on generated
//! ones. What it must make of them is written by hand too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::sync::LazyLock;

use potok_config::{Env, OnError, Per, load_pipeline};
use potok_connectors::registry;
use potok_core::{Headers, Timestamp};
use potok_expr::{Program, ProgramOutcome, View};
use potok_traffic::gdelt::{
    EVENTS, GdeltGenerator, GdeltKind, GdeltSpoiling, MENTIONS, SentRecord,
};
use serde_json::{Value, json};

/// Compiled once: that takes longer than all the runs.
static PROGRAM: LazyLock<Program> = LazyLock::new(|| {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pipelines/em-processor.yaml");
    let loaded =
        load_pipeline(&file, &Env::default(), &registry()).unwrap_or_else(|all| panic!("{all}"));
    let [stage] = loaded.process.as_slice() else { panic!("one stage") };
    assert_eq!((stage.stage.as_str(), stage.on_error), ("clean", OnError::Pass));
    stage.vrl().unwrap().program(Per::Event).unwrap()
});

fn run(topic: &str, value: &[u8]) -> Value {
    let headers = Headers::none();
    let view = View { value, key: None, headers: &headers, topic, time: Timestamp(0) };
    match PROGRAM.run(&view) {
        Ok(ProgramOutcome::Value(bytes)) => serde_json::from_slice(&bytes).unwrap(),
        other => panic!("{other:?} for {}", String::from_utf8_lossy(value)),
    }
}

fn event(value: Value) -> Value {
    run(EVENTS, value.to_string().as_bytes())
}

fn mention(value: Value) -> Value {
    run(MENTIONS, value.to_string().as_bytes())
}

#[test]
fn an_event_as_it_should_be() {
    let made = event(json!({
        "GlobalEventId": 1219144758, "Day": 20240229, "MonthYear": 202402, "Year": 2024,
        "FractionDate": 2024.1589, "Actor1Name": null, "Actor2Name": "  ŁÓDŹ \"24\" ",
        "Actor1Code": " ", "AvgTone": 1.78571428571429, "NumArticles": 8,
        "Actor1GeoLat": null, "Actor1GeoLong": null,
        "Actor2GeoLat": 51.75, "Actor2GeoLong": 19.4667,
        "ActionGeoLat": -10, "ActionGeoLong": -55.0,
        "DateAdded": 20250106214500_u64, "SourceUrl": "https://news.example/64610",
    }));
    let wanted = json!({
        "GlobalEventId": 1219144758, "EventDate": "2024-02-29T00:00:00Z",
        "ElasticIndexDate": "2024-02-29", "DateAdded": "2025-01-06T21:45:00Z",
        "Actor1Name": null, "Actor2Name": "ŁÓDŹ \"24\"", "Actor1Code": null,
        "AvgTone": 1.78571428571429, "Tone": "positive", "NumArticles": 8,
        "Actor1Location": null,
        "Actor2Location": { "lat": 51.75, "lon": 19.4667 },
        "ActionLocation": { "lat": -10.0, "lon": -55.0 },
        "SourceUrl": "https://news.example/64610",
    });
    assert_eq!(made, wanted);
}

#[test]
fn a_mention_as_it_should_be() {
    let made = mention(json!({
        "GlobalEventId": 1219110299, "EventTimeDate": 20241231171500_u64,
        "MentionTimeDate": 20250106223000_u64, "MentionType": 1,
        "MentionSourceName": " news.example ", "MentionIdentifier": "https://news.example/ a ",
        "SentenceId": 6, "Actor1CharOffset": -1, "InRawText": 0, "MentionDocTone": -2.63157894736842,
        "MentionDocTranslationInfo": "",
    }));
    let wanted = json!({
        "GlobalEventId": 1219110299, "EventTimeDate": "2024-12-31T17:15:00Z",
        "MentionTimeDate": "2025-01-06T22:30:00Z", "ElasticIndexDate": "2025-01-06",
        "MentionType": 1, "MentionSourceName": "news.example",
        // Part of the id, so left as it came.
        "MentionIdentifier": "https://news.example/ a ",
        "SentenceId": 6, "Actor1CharOffset": -1, "InRawText": 0, "MentionDocTone": -2.63157894736842,
        "Tone": "negative", "MentionDocTranslationInfo": null,
    });
    assert_eq!(made, wanted);
}

#[test]
fn bad_dates_become_null_and_are_told() {
    let bad = |field: &str, value: &str| json!([{ "Field": field, "Value": value }]);
    for (day, written) in [
        (json!(20251399), "20251399"),
        (json!(20250229), "20250229"),
        (json!(20250100), "20250100"),
        (json!(2025080), "2025080"),
        (json!(202508071), "202508071"),
        (json!(0), "0"),
        (json!(-20250807), "-20250807"),
        (json!("yesterday"), "yesterday"),
        (json!("2025 8 7"), "2025 8 7"),
        (json!("+2025080"), "+2025080"),
        (json!(20250807.5), "20250807.5"),
        (json!(true), "true"),
        (json!([20250807]), "[20250807]"),
    ] {
        let made =
            event(json!({ "GlobalEventId": 1, "Day": day, "DateAdded": 20250807231500_u64 }));
        assert_eq!(made["EventDate"], Value::Null, "{day}");
        assert_eq!(made["ElasticIndexDate"], Value::Null, "{day}");
        assert_eq!(made["DateAdded"], "2025-08-07T23:15:00Z", "{day}");
        assert_eq!(made["BadValues"], bad("Day", written), "{day}");
        assert_eq!(made.get("Day"), None);
    }
    for time in [
        20250230151500_u64,
        20251399996100,
        20250807240000,
        20250807236000,
        20250807235960,
        2025080723150,
        202508072315000,
    ] {
        let made = event(json!({ "GlobalEventId": 1, "Day": 20250807, "DateAdded": time }));
        assert_eq!(made["DateAdded"], Value::Null, "{time}");
        assert_eq!(made["EventDate"], "2025-08-07T00:00:00Z", "{time}");
        assert_eq!(made["BadValues"], bad("DateAdded", &time.to_string()), "{time}");
        let made = mention(json!({
            "GlobalEventId": 1, "MentionIdentifier": "u", "EventTimeDate": 20250807231500_u64,
            "MentionTimeDate": time,
        }));
        assert_eq!(made["MentionTimeDate"], Value::Null, "{time}");
        assert_eq!(made["ElasticIndexDate"], Value::Null, "{time}");
        assert_eq!(made["EventTimeDate"], "2025-08-07T23:15:00Z", "{time}");
        assert_eq!(made["BadValues"], bad("MentionTimeDate", &time.to_string()), "{time}");
    }
    // Text that is a date will do.
    let made = event(json!({ "GlobalEventId": 1, "Day": " 20250807 " }));
    assert_eq!(made["EventDate"], "2025-08-07T00:00:00Z");
    assert_eq!(made.get("BadValues"), None);
}

#[test]
fn the_tone_has_borders_and_none_is_not_neutral() {
    for (tone, word) in [
        (json!(-100.0), "negative"),
        (json!(-1.0000000001), "negative"),
        (json!(-1.0), "neutral"),
        (json!(-1), "neutral"),
        (json!(0), "neutral"),
        (json!(-0.0), "neutral"),
        (json!(1.0), "neutral"),
        (json!(1.0000000001), "positive"),
        (json!(2), "positive"),
        (json!(100), "positive"),
        (json!("-2.5"), "negative"),
        (Value::Null, "unknown"),
        (json!(""), "unknown"),
    ] {
        let made = event(json!({ "GlobalEventId": 1, "AvgTone": tone }));
        assert_eq!((&made["Tone"], made.get("BadValues")), (&json!(word), None), "{tone}");
        let made = mention(
            json!({ "GlobalEventId": 1, "MentionIdentifier": "u", "MentionDocTone": tone }),
        );
        assert_eq!((&made["Tone"], made.get("BadValues")), (&json!(word), None), "{tone}");
    }
    for (tone, written) in [
        (json!(100.5), "100.5"),
        (json!(-1e30), "-1000000000000000000000000000000"),
        (json!("N/A"), "N/A"),
        (json!("inf"), "inf"),
        (json!("NaN"), "NaN"),
        (json!(true), "true"),
        (json!({ "a": 1 }), "{\"a\":1}"),
    ] {
        let made = event(json!({ "GlobalEventId": 1, "AvgTone": tone }));
        assert_eq!((&made["Tone"], &made["AvgTone"]), (&json!("unknown"), &Value::Null), "{tone}");
        assert_eq!(made["BadValues"], json!([{ "Field": "AvgTone", "Value": written }]));
        let made = mention(
            json!({ "GlobalEventId": 1, "MentionIdentifier": "u", "MentionDocTone": tone }),
        );
        assert_eq!((&made["Tone"], &made["MentionDocTone"]), (&json!("unknown"), &Value::Null));
        assert_eq!(made["BadValues"], json!([{ "Field": "MentionDocTone", "Value": written }]));
    }
    // A mention without a tone of its own does not take an event's.
    let made = mention(json!({ "GlobalEventId": 1, "MentionIdentifier": "u", "AvgTone": 9.0 }));
    assert_eq!(made["Tone"], "unknown");
}

#[test]
fn points_need_both_numbers_and_zero_is_one() {
    let place = |lat: Value, long: Value| {
        let made = event(json!({ "GlobalEventId": 1, "ActionGeoLat": lat, "ActionGeoLong": long }));
        assert_eq!((made.get("ActionGeoLat"), made.get("ActionGeoLong")), (None, None));
        assert_eq!(
            (&made["Actor1Location"], &made["Actor2Location"]),
            (&Value::Null, &Value::Null)
        );
        (made["ActionLocation"].clone(), made.get("BadValues").cloned())
    };
    for (lat, long) in [(0.0, 0.0), (0.0, 109.3333), (51.4779, 0.0), (-90.0, 180.0), (90.0, -180.0)]
    {
        let (point, bad) = place(json!(lat), json!(long));
        assert_eq!((point, bad), (json!({ "lat": lat, "lon": long }), None));
    }
    assert_eq!(place(json!(0), json!("24.1")).0, json!({ "lat": 0.0, "lon": 24.1 }));
    assert_eq!(place(Value::Null, Value::Null), (Value::Null, None));
    for (lat, long, written) in [
        (json!(90.1), json!(0), "[90.1,0]"),
        (json!(0), json!(-180.5), "[0,-180.5]"),
        (json!(56.95), Value::Null, "[56.95,null]"),
        (Value::Null, json!(24.1), "[null,24.1]"),
        (json!("north"), json!(24.1), "[\"north\",24.1]"),
        (json!(false), json!(24.1), "[false,24.1]"),
    ] {
        let bad = json!([{ "Field": "ActionGeo", "Value": written }]);
        assert_eq!(place(lat, long), (Value::Null, Some(bad)));
    }
}

#[test]
fn records_with_almost_nothing_in_them_go_through() {
    let made = event(json!({ "GlobalEventId": 1 }));
    let wanted = json!({
        "GlobalEventId": 1, "EventDate": null, "DateAdded": null, "ElasticIndexDate": null,
        "AvgTone": null, "Tone": "unknown",
        "Actor1Location": null, "Actor2Location": null, "ActionLocation": null,
    });
    assert_eq!(made, wanted);
    let made = mention(json!({ "GlobalEventId": 1, "MentionIdentifier": "u", "Extras": [1, " "] }));
    let wanted = json!({
        "GlobalEventId": 1, "MentionIdentifier": "u", "EventTimeDate": null,
        "MentionTimeDate": null, "ElasticIndexDate": null, "MentionDocTone": null,
        "Tone": "unknown", "Extras": [1, " "],
    });
    assert_eq!(made, wanted);
    // Several at once, in the order dates, tone, places.
    let made = event(json!({
        "GlobalEventId": 1, "Day": 1, "DateAdded": 2, "AvgTone": "x", "Actor1GeoLat": 99,
        "Actor2GeoLong": 1,
    }));
    let fields: Vec<_> =
        made["BadValues"].as_array().unwrap().iter().map(|bad| bad["Field"].clone()).collect();
    assert_eq!(fields, ["DateAdded", "Day", "AvgTone", "Actor1Geo", "Actor2Geo"]);
}

#[test]
fn generated_records_lose_nothing() {
    let batch = GdeltGenerator::new(11).next_batch(400, 1_200);
    let deliverable = |sent: &&SentRecord| match sent.what {
        GdeltKind::Spoiled(how) => how.is_delivered(),
        _ => true,
    };
    let dropped = ["Day", "MonthYear", "Year", "FractionDate"];
    for sent in batch.records.iter().filter(deliverable) {
        let (came, made): (Value, _) =
            (serde_json::from_slice(&sent.value).unwrap(), run(sent.topic, &sent.value));
        let spoiled = sent.what == GdeltKind::Spoiled(GdeltSpoiling::BadDate);
        assert_eq!(made.get("BadValues").is_some(), spoiled, "{made}");
        let (came, made) = (came.as_object().unwrap(), made.as_object().unwrap());
        let known = match sent.topic {
            EVENTS => 61 - 4 - 6 + 3 + 3,
            _ => 15 + 2,
        };
        assert_eq!(made.len() - usize::from(spoiled), known, "{made:?}");
        for (name, value) in came {
            let coordinate = name.ends_with("GeoLat") || name.ends_with("GeoLong");
            if name.contains("Date") || coordinate || dropped.contains(&name.as_str()) {
                continue;
            }
            assert_eq!(made.get(name), Some(value), "{name}");
        }
    }
}
