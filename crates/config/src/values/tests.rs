//! Durations, sizes and names.
#![allow(clippy::unwrap_used)]
use super::*;

#[test]
fn durations() {
    for (text, ms) in [
        ("50ms", 50),
        ("30s", 30_000),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("7d", 604_800_000),
        ("1d2h3m4s5ms", 93_784_005),
        ("007s", 7_000),
    ] {
        let period = Period::read(text).unwrap();
        assert_eq!(period.as_millis(), ms, "{text}");
        assert_eq!(Period::read(&period.to_string()).unwrap(), period, "{text}");
    }
    for text in [
        "",
        "s",
        "30",
        "30 s",
        "1.5s",
        "-1s",
        "1m1m",
        "1ms1s",
        "0s",
        "30S",
        "1y",
        "99999999d",
        "99999999999999999999s",
        "1s ",
        "١s",
    ] {
        assert_eq!(Period::read(text).unwrap_err()[0].code, code::DURATION, "{text}");
    }
}

#[test]
fn sizes() {
    for (text, bytes, shown) in [
        ("1B", 1, "1B"),
        ("64KB", 64_000, "64KB"),
        ("16MiB", 16 << 20, "16MiB"),
        ("1024KiB", 1 << 20, "1MiB"),
        ("10GiB", 10 << 30, "10GiB"),
        ("1TiB", 1 << 40, "1TiB"),
    ] {
        let size = Size::read(text).unwrap();
        assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, shown));
    }
    for text in
        ["", "64", "MiB", "1kb", "16Mb", "0B", "1.5MiB", "-1B", "1B1B", "9999999999TiB", "16 MiB"]
    {
        assert_eq!(Size::read(text).unwrap_err()[0].code, code::SIZE, "{text}");
    }
}

#[test]
fn names() {
    fn good<T: TextValue>(texts: &[&str]) {
        for text in texts {
            assert!(T::read(text).is_ok(), "{} refuses {text:?}", T::FORMAT);
        }
    }
    fn bad<T: TextValue>(texts: &[&str]) {
        for text in texts {
            assert!(T::read(text).is_err(), "{} takes {text:?}", T::FORMAT);
        }
    }
    let (long64, long63, long250) = ("a".repeat(65), "a".repeat(64), "a".repeat(250));
    good::<PipelineName>(&["orders", "a-1", "0"]);
    bad::<PipelineName>(&["", "Orders", "a_b", "a b", "-a", "potok", "ä", &long64]);
    good::<TopicName>(&["orders", "queue:incoming", "A.b_c-d", "ünïcode"]);
    bad::<TopicName>(&["", "a b", "a/b", "a\tb", "a\u{0}", ".", "..", &long250, "a\u{2003}b"]);
    good::<SqlName>(&["orders", "_a1", "A"]);
    bad::<SqlName>(&["", "1a", "a-b", "a b", "a\"b", "a;drop", "ä", &long63]);
    good::<ConnectionName>(&["orders", "shop-0", "A_b"]);
    bad::<ConnectionName>(&["", "a.b", "../a", "{shard}", "a b", "sqlite:x"]);
    good::<HttpPath>(&["/", "/events", "/a/b"]);
    bad::<HttpPath>(&["", "events", "/a b", "/a?b", "/a#b"]);
    good::<EachPath>(&[".a[]", ".entry[].changes[].value.messages[]", ".a_b-1[]"]);
    bad::<EachPath>(&["", ".", "a[]", ".a", ".a[0]", ".a[].", ".a b[]", "..a[]"]);
    good::<Address>(&["127.0.0.1:7600", "localhost:0", "[::1]:80", "0.0.0.0:65535"]);
    bad::<Address>(&[
        "",
        "localhost",
        ":80",
        "a:",
        "a:b",
        "a:65536",
        "::1:80",
        "http://a:80",
        "a b:80",
        "a:+80",
    ]);
}

#[test]
fn loopback_is_only_this_machine() {
    let loopback = |text: &str| Address::read(text).unwrap().is_loopback();
    assert!(
        ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "LOCALHOST:1"]
            .iter()
            .all(|a| loopback(a))
    );
    assert!(
        !["0.0.0.0:1", "10.0.0.1:1", "[::]:1", "example:1", "localhost.example:1"]
            .iter()
            .any(|a| loopback(a))
    );
}

/// A format that no type answers for would let every text pass.
#[test]
fn every_format_of_the_schemas_has_a_check() {
    fn formats(schema: &serde_json::Value, found: &mut Vec<String>) {
        match schema {
            serde_json::Value::Object(fields) => {
                if let Some(format) = fields.get("format").and_then(|format| format.as_str()) {
                    found.push(format.to_owned());
                }
                fields.values().for_each(|value| formats(value, found));
            }
            serde_json::Value::Array(items) => items.iter().for_each(|item| formats(item, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    let registry = crate::Registry::new();
    formats(registry.pipeline_schema(), &mut found);
    formats(registry.connections_schema(), &mut found);
    let ours: Vec<_> = found.iter().filter(|format| format.starts_with("potok-")).collect();
    assert!(ours.len() > 20);
    // What a program of a stage means depends on the keys beside it: the rules compile it.
    let by_rules = crate::expression::StageVrl::FORMAT;
    for format in ours.into_iter().filter(|format| *format != by_rules) {
        // No type of ours takes this.
        assert!(!check_format(format, "} {").is_empty(), "nothing checks `{format}`");
    }
}
