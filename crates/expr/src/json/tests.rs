//! The parser against tables, against serde_json on random texts, and against hostile bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

fn refused(bytes: &[u8]) -> JsonError {
    match Parser::new().parse(bytes) {
        Err(error) => error,
        Ok(node) => panic!("accepted {node:?}"),
    }
}

#[test]
fn accepts_what_rfc_8259_accepts() {
    for text in [
        "null",
        "true",
        "false",
        "0",
        "-0",
        "1.5e+3",
        "1E-2",
        "\"\"",
        "[]",
        "{}",
        " \t\r\n[ ] ",
        "[1,2]",
        r#"{"a":{"b":[{}]}}"#,
        r#""\"\\\/\b\f\n\r\t""#,
        r#""\ud83d\ude00""#,
        "\"\u{7f}\"",
        r#"{"":1,"a":2}"#,
        "5e-324",
        "1e-999999999999999999999",
        "0e999999999999999999999",
        "\"\u{2028}\u{10ffff}\"",
        r#""\u0000""#,
    ] {
        assert_eq!(Parser::new().parse(text.as_bytes()).unwrap().source(), text.trim());
    }
}

#[test]
fn refuses_and_says_where() {
    let cases: &[(&[u8], usize, &str)] = &[
        (b"", 0, "empty"),
        (b"  ", 2, "end of the input"),
        (b"nul", 0, "a value"),
        (b"nulll", 4, "expected the end"),
        (b"01", 1, "expected the end"),
        (b"-", 1, "a digit"),
        (b"+1", 0, "a value"),
        (b"1.", 2, "a digit"),
        (b".5", 0, "a value"),
        (b"1e", 2, "a digit"),
        (b"1e+", 3, "a digit"),
        (b"NaN", 0, "a value"),
        (b"1e400000", 0, "too large"),
        (b"[1,-1e309]", 3, "too large"),
        (b"[1,]", 3, "a value"),
        (b"[1 2]", 3, "`,` or `]`"),
        (b"[", 1, "end of the input"),
        (b"[1", 2, "end of the input"),
        (b"[1}", 2, "`,` or `]`"),
        (b"]", 0, "a value"),
        (b"{", 1, "a key"),
        (b"{,}", 1, "a key"),
        (b"{1:2}", 1, "a key"),
        (b"{\"a\"}", 4, "`:`"),
        (b"{\"a\":}", 5, "a value"),
        (b"{\"a\":1,}", 7, "a key"),
        (b"{\"a\":1 \"b\":2}", 7, "`,` or `}`"),
        (b"{\"a\":1]", 6, "`,` or `}`"),
        (b"{} {}", 3, "expected the end"),
        (b"\"a", 2, "ends inside a string"),
        (b"\"a\\", 3, "ends inside a string"),
        (b"\"\\x\"", 1, "unknown escape"),
        (b"\"\\u12\"", 1, "four hex digits"),
        (b"\"\\u+123\"", 1, "four hex digits"),
        (b"\"a\nb\"", 2, "control character"),
        (b"\"a\0\"", 2, "control character"),
        (b"\"12345678901\x1f\"", 12, "control character"),
        (b"{}\0", 2, "expected the end"),
        (b"\0", 0, "a value"),
        (b"\"\\ud800\"", 1, "lone surrogate"),
        (b"\"\\udc00\"", 1, "lone surrogate"),
        (b"\"\\ud800\\u0041\"", 1, "lone surrogate"),
        (b"\"\\ud800\\ud800\"", 1, "lone surrogate"),
        (b"\"\\ud83dx\"", 1, "lone surrogate"),
        (b"\"\xff\"", 1, "not UTF-8"),
        (b"\"\xed\xa0\x80\"", 1, "not UTF-8"),
        (b"\xef\xbb\xbf{}", 0, "a value"),
        (b"'a'", 0, "a value"),
        (b"[1,// no\n2]", 3, "a value"),
    ];
    for (bytes, at, part) in cases {
        let error = refused(bytes);
        let shown = String::from_utf8_lossy(bytes);
        assert!(error.message.contains(part), "{shown}: {}", error.message);
        assert_eq!(error.at, *at, "{shown}: {}", error.message);
    }
}

#[test]
fn every_cut_of_a_text_is_refused() {
    let text = r#"{"a":[1.5e2,"x\u00e9\ud83d\ude00",true,null],"b":{"c":-0}}"#;
    assert!(Parser::new().parse(text.as_bytes()).is_ok());
    for cut in 0..text.len() {
        let error = refused(text.get(..cut).unwrap().as_bytes());
        assert!(error.at <= cut, "{cut}: {error}");
    }
}

#[test]
fn a_key_may_stand_once_in_an_object() {
    for text in [
        r#"{"a":1,"a":2}"#,
        r#"{"a":1,"b":{"a":1},"a":2}"#,
        r#"{"a":1,"\u0061":2}"#,
        r#"{"\u0061":1,"a":2}"#,
        r#"{"\/":1,"b":2,"/":2}"#,
        r#"{"x\n":1,"x\u000A":2}"#,
        r#"{"":1,"":2}"#,
        r#"{"😀":1,"\ud83d\ude00":2}"#,
        r#"[{"k":{"a":[],"a":[]}}]"#,
    ] {
        assert!(refused(text.as_bytes()).message.contains("twice"), "{text}");
    }
    for text in [
        r#"{"a":{"a":{"a":1}},"b":[{"a":1},{"a":2}]}"#,
        r#"{"a":1,"A":2,"a ":3,"\\u0061":4}"#,
        r#"{"ab":1,"ba":2,"aab":3,"abb":4,"acb":5}"#,
    ] {
        assert!(Parser::new().parse(text.as_bytes()).is_ok(), "{text}");
    }
}

#[test]
fn a_repeated_key_is_found_at_any_size_and_place() {
    for size in [2usize, 15, 16, 17, 18, 40, 1_000] {
        let field = |key: usize| format!(r#""key{key}":{{"nested":[{key}]}}"#);
        let plain: Vec<_> = (0..size).map(field).collect();
        let text = format!("{{{}}}", plain.join(","));
        assert!(Parser::new().parse(text.as_bytes()).is_ok(), "{size}");
        for (first, second) in [(0, size - 1), (0, 1), (size / 2, size - 1)] {
            for spelled in [format!("\"key{first}\":0"), format!("\"\\u006bey{first}\":0")] {
                let mut fields = plain.clone();
                *fields.get_mut(second).unwrap() = spelled;
                let text = format!("{{{}}}", fields.join(","));
                if first == second {
                    continue;
                }
                assert!(refused(text.as_bytes()).message.contains("twice"), "{text}");
            }
        }
    }
}

#[test]
fn hostile_inputs_end_in_an_error_or_a_value() {
    let mut parser = Parser::new();
    for deep in [b"[".repeat(250_000), b"{\"a\":".repeat(250_000), b"[[],".repeat(250_000)] {
        assert!(parser.parse(&deep).unwrap_err().message.contains("deeper"));
    }
    let nested = |depth: usize| [b"[".repeat(depth), b"]".repeat(depth)].concat();
    assert!(parser.parse(&nested(DEPTH_MAX)).is_ok());
    assert_eq!(parser.parse(&nested(DEPTH_MAX + 1)).unwrap_err().at, DEPTH_MAX);

    let long = [b"\"".as_slice(), &b"x".repeat(60_000_000), b"\""].concat();
    assert_eq!(parser.parse(&long).unwrap().text().unwrap().len(), 60_000_000);
    assert_eq!(parser.parse(long.get(..59_999_999).unwrap()).unwrap_err().at, 59_999_999);
    let escapes = [b"\"".as_slice(), &b"\\n".repeat(3_000_000), b"\""].concat();
    assert_eq!(parser.parse(&escapes).unwrap().text().unwrap().len(), 3_000_000);

    let digits = [b"1".as_slice(), &b"0".repeat(1_000_000)].concat();
    assert!(parser.parse(&digits).unwrap_err().message.contains("too large"));
    let fraction = [b"0.".as_slice(), &b"1".repeat(1_000_000)].concat();
    assert!(parser.parse(&fraction).unwrap().as_f64().is_some());

    let wide = [b"[".as_slice(), &b"1,".repeat(3_000_000), b"1]"].concat();
    assert_eq!(parser.parse(&wide).unwrap().items().count(), 3_000_001);
    // The room one giant record took is given back.
    parser.parse(b"1").unwrap();
    assert!(format!("{parser:?}").contains("tokens: 1"));
}

#[test]
fn a_hundred_thousand_keys_are_checked_at_once() {
    let keys: Vec<_> = (0..100_000).map(|key| format!("\"common prefix {key}\":0")).collect();
    let text = format!("{{{}}}", keys.join(","));
    let mut parser = Parser::new();
    assert_eq!(parser.parse(text.as_bytes()).unwrap().fields().count(), 100_000);
    let text = format!("{{{},\"common prefix 77\":1}}", keys.join(","));
    let error = parser.parse(text.as_bytes()).unwrap_err();
    assert!(error.message.contains("\"common prefix 77\" appears twice"), "{error}");
    // Many objects that are each just too large to be walked, inside one another's arrays.
    let object = format!("{{{}}}", keys.get(..20).unwrap().join(","));
    let text = format!("[{}]", vec![object; 5_000].join(","));
    assert_eq!(parser.parse(text.as_bytes()).unwrap().items().count(), 5_000);
}

#[test]
fn nodes_read_what_was_written() {
    let text = r#" { "s" : "a\u00e9\ud83d\ude00\n" , "plain":"p","i":-12,"f":1.0,"big":9223372036854775808,
        "t":true,"n":null,"l":[1,[2],{"x":3}],"o":{"l":1},"\u006b":"escaped key" } "#;
    let mut parser = Parser::new();
    let root = parser.parse(text.as_bytes()).unwrap();
    assert_eq!(root.kind(), Kind::Object);
    assert_eq!(root.raw(), text.trim().as_bytes());
    assert_eq!(root.get("s").unwrap().text().unwrap(), "aé😀\n");
    let plain = root.get("plain").unwrap();
    assert!(matches!(plain.text().unwrap(), std::borrow::Cow::Borrowed("p")));
    assert_eq!(plain.raw(), b"\"p\"");
    assert_eq!(root.get("i").unwrap().as_i64(), Some(-12));
    assert_eq!(root.get("i").unwrap().as_f64(), Some(-12.0));
    assert_eq!(root.get("f").unwrap().as_i64(), Some(1));
    assert_eq!(root.get("big").unwrap().as_i64(), None);
    assert_eq!(root.get("t").unwrap().as_bool(), Some(true));
    assert!(root.get("n").unwrap().is_null());
    assert_eq!(root.get("k").unwrap().text().unwrap(), "escaped key");
    let list: Vec<_> = root.get("l").unwrap().items().map(|node| node.source()).collect();
    assert_eq!(list, ["1", "[2]", r#"{"x":3}"#]);
    let keys: Vec<_> = root.fields().map(|(key, _)| key.into_owned()).collect();
    assert_eq!(keys, ["s", "plain", "i", "f", "big", "t", "n", "l", "o", "k"]);
    // Asked for what they are not, nodes have nothing.
    assert!(root.get("x").is_none() && plain.get("x").is_none());
    assert!(root.text().is_none() && root.as_i64().is_none() && root.as_bool().is_none());
    assert!(plain.as_f64().is_none() && plain.as_bool().is_none());
    assert_eq!(root.items().count() + plain.items().count() + plain.fields().count(), 0);
}

/// A small generator with a fixed seed, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn json(&mut self, depth: usize, out: &mut String) {
        let space = self.pick(&["", "", "", " ", "\n\t", "\r"]);
        out.push_str(space);
        match self.below(if depth == 0 { 8 } else { 12 }) {
            0 => out.push_str(self.pick(&["null", "true", "false"])),
            1..=3 => out.push_str(self.pick(&[
                "0",
                "-0",
                "17",
                "-1.25",
                "1e5",
                "12E-3",
                "1e308",
                "9223372036854775807",
                "18446744073709551615",
                "123456789012345678901234567890",
                "0.1",
                "2.5e-320",
                "1e-400",
                "0e999",
            ])),
            4..=7 => self.string(out),
            8 | 9 => {
                out.push('[');
                for index in 0..self.below(5) {
                    out.push_str(if index > 0 { "," } else { "" });
                    self.json(depth - 1, out);
                }
                out.push(']');
            }
            _ => {
                out.push('{');
                for index in 0..self.below(24) {
                    out.push_str(if index > 0 { "," } else { "" });
                    self.string(out);
                    out.push(':');
                    self.json(depth.saturating_sub(2), out);
                }
                out.push('}');
            }
        }
        out.push_str(space);
    }

    fn string(&mut self, out: &mut String) {
        out.push('"');
        for _ in 0..self.below(7) {
            out.push_str(self.pick(&[
                "a",
                "b",
                "order_uid",
                "long enough for several words at once",
                "\\n",
                "\\\"",
                "\\u0041",
                "\\u00e9",
                "\\ud83d\\ude00",
                "é",
                "😀",
                "\\/",
                "\\\\",
                "{",
                "[",
                "\u{7f}",
            ]));
        }
        out.push('"');
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        const BYTES: &[u8] = b"\"\\{}[]:,.-+eE019 \n\0\x1f\x80\xff\xc3untfu/d";
        for _ in 0..1 + self.below(3) {
            let at = self.below(bytes.len() + 1);
            let byte = BYTES[self.below(BYTES.len())];
            match self.below(5) {
                0 => bytes.insert(at, byte),
                1 if at < bytes.len() => bytes[at] = byte,
                2 if at < bytes.len() => drop(bytes.remove(at)),
                3 => bytes.truncate(at),
                _ => {
                    let end = (at + self.below(12)).min(bytes.len());
                    let copy = bytes[at..end].to_vec();
                    let to = self.below(bytes.len() + 1);
                    bytes.splice(to..to, copy);
                }
            }
        }
    }
}

fn same(node: Node<'_>, value: &serde_json::Value) {
    use serde_json::Value;
    match value {
        Value::Null => assert!(node.is_null()),
        Value::Bool(value) => assert_eq!(node.as_bool(), Some(*value)),
        Value::Number(number) => {
            if let Some(whole) = number.as_i64() {
                assert_eq!(node.as_i64(), Some(whole));
            }
            // Their float reader may be off by the last bit.
            let (ours, theirs) = (node.as_f64().unwrap(), number.as_f64().unwrap());
            assert!((ours - theirs).abs() <= theirs.abs() * 1e-15, "{ours} {theirs}");
        }
        Value::String(text) => assert_eq!(node.text().unwrap(), *text),
        Value::Array(items) => {
            assert_eq!((node.kind(), node.items().count()), (Kind::Array, items.len()));
            node.items().zip(items).for_each(|(node, item)| same(node, item));
        }
        Value::Object(fields) => {
            assert_eq!((node.kind(), node.fields().count()), (Kind::Object, fields.len()));
            for ((key, node_value), (name, field)) in node.fields().zip(fields) {
                assert_eq!(key, *name);
                assert_eq!(node.get(name).unwrap().source(), node_value.source());
                same(node_value, field);
            }
        }
    }
    let raw: Value = serde_json::from_slice(node.raw()).unwrap();
    assert_eq!(raw, *value);
}

#[test]
fn agrees_with_serde_json_except_where_stricter() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut parser = Parser::new();
    let (mut both, mut neither, mut stricter) = (0, 0, 0);
    for case in 0..24_000 {
        let mut text = String::new();
        random.json(1 + case % 6, &mut text);
        let mut bytes = text.into_bytes();
        if case % 3 != 0 {
            random.mutate(&mut bytes);
        }
        let theirs = serde_json::from_slice::<serde_json::Value>(&bytes);
        let shown = String::from_utf8_lossy(&bytes).into_owned();
        match (parser.parse(&bytes), theirs) {
            (Ok(node), Ok(value)) => {
                both += 1;
                same(node, &value);
            }
            (Err(error), Err(_)) => {
                neither += 1;
                assert!(error.at <= bytes.len());
            }
            (Err(error), Ok(_)) => {
                stricter += 1;
                assert!(error.message.contains("twice"), "{error}: {shown}");
            }
            (Ok(_), Err(error)) => panic!("only we accept {shown:?}: {error}"),
        }
    }
    assert!(both > 5_000 && neither > 5_000 && stricter > 500, "{both} {neither} {stricter}");
}
