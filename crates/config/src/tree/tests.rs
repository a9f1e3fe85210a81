//! YAML that must be read or refused.
#![allow(clippy::unwrap_used, clippy::panic)]
use super::*;
use crate::env::Env;
use crate::scalar::ScalarValue;

fn read(text: &str) -> Result<(SourceText, Node), Vec<String>> {
    let source = SourceText::new("f", text);
    let mut findings = Findings::default();
    match parse(&source, &mut findings) {
        Some(root) => Ok((source, root)),
        None => {
            let problems = findings.into_problems(&source);
            assert!(!problems.is_empty());
            Err(problems.iter().map(|p| format!("{} {}:{}", p.code, p.line, p.column)).collect())
        }
    }
}

fn refused(text: &str) -> Vec<String> {
    read(text).err().unwrap_or_else(|| panic!("not refused: {text:.200}"))
}

/// The text in the file of every scalar, key and collection.
fn pieces(source: &SourceText, node: &Node, out: &mut Vec<String>) {
    out.push(source.text()[node.at.clone()].to_owned());
    match &node.value {
        Value::Scalar(_) => {}
        Value::List(items) => items.iter().for_each(|item| pieces(source, item, out)),
        Value::Map(entries) => {
            for entry in entries {
                out.push(source.text()[entry.key_at.clone()].to_owned());
                pieces(source, &entry.value, out);
            }
        }
    }
}

#[test]
fn everything_knows_its_bytes() {
    let (source, root) =
        read("ä: [b, 'c']\n\"d\": { e: f }  # g\nh: |\n  i\n   j\nk: >-\n  l\n\n  m\n").unwrap();
    let mut found = Vec::new();
    pieces(&source, &root, &mut found);
    let expected = [
        "ä", "[b, 'c']", "b", "'c'", "\"d\"", "{ e: f }", "e", "f", "h", "i\n   j", "k", "l\n\n  m",
    ];
    assert_eq!(found[1..], expected.map(str::to_owned));
}

#[test]
fn a_part_of_a_text_is_found_again_in_the_file() {
    for text in [
        "a: one TARGET two",
        "a: 'it''s ''quoted'' TARGET'",
        "a: \"\\u00e4 \\\"x\\\" \\n\\t TARGET\"",
        "a: \"folded\n\n  over \\\n  lines TARGET x\"",
        "a: plain\n  over\n  lines TARGET x",
        "a: |  # comment\n\n\n    ä one\n      two\n    TARGET x\n",
        "a: >2-\n   one\n  two TARGET\n",
        "a: |+\n  x\n\n  TARGET",
        "a: \"${A} ${B:-b} $${c} TARGET\"",
        "a: ${B:-TARGET} TARGET",
    ] {
        let (source, mut root) = read(text).unwrap();
        let env = Env::of([("A", "a value that is longer")]);
        root.scalars_mut(&mut |_, scalar| scalar.substitute(&env, &mut 1000).unwrap());
        let node = root.get("a").unwrap();
        let Value::Scalar(scalar) = &node.value else { panic!("{text}") };
        let at = scalar.text.rfind("TARGET").unwrap();
        let found = scalar.in_source(&node.at, source.text(), at..at + 6);
        assert_eq!(found.start, text.rfind("TARGET").unwrap(), "{text:?}");
        assert_eq!(found.len(), 6, "{text:?}");
    }
}

#[test]
fn types_are_those_of_yaml() {
    for (text, typed) in [
        ("", ScalarValue::Null),
        ("~", ScalarValue::Null),
        ("null", ScalarValue::Null),
        ("true", ScalarValue::Bool(true)),
        ("False", ScalarValue::Bool(false)),
        ("yes", ScalarValue::Text),
        ("12", ScalarValue::Int(12)),
        ("-12", ScalarValue::Int(-12)),
        ("+12", ScalarValue::Int(12)),
        ("0x1F", ScalarValue::Int(31)),
        ("0o17", ScalarValue::Int(15)),
        ("1.5", ScalarValue::Float(1.5)),
        ("-1e3", ScalarValue::Float(-1000.0)),
        ("1.2.3", ScalarValue::Text),
        ("127.0.0.1:80", ScalarValue::Text),
        (".", ScalarValue::Text),
        (".a", ScalarValue::Text),
        ("-", ScalarValue::Text),
        ("'12'", ScalarValue::Text),
        ("30s", ScalarValue::Text),
        (".inf", ScalarValue::Text),
    ] {
        let Ok((_, root)) = read(&format!("a: {text}\n")) else {
            assert_eq!(text, "-");
            continue;
        };
        let Some(Value::Scalar(scalar)) = root.get("a").map(|node| &node.value) else {
            panic!("{text}")
        };
        assert_eq!(scalar.typed(), typed, "{text}");
    }
}

#[test]
fn depth_is_bounded_in_every_notation() {
    let flow = |depth: usize| format!("a: {}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(read(&flow(DEPTH_MAX - 1)).is_ok());
    assert_eq!(refused(&flow(DEPTH_MAX)), ["P0104 1:67"]);
    for deep in [
        "[".repeat(100_000),
        "{a: ".repeat(100_000),
        "- ".repeat(100_000),
        (0..1000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect(),
        "? ".repeat(100_000),
    ] {
        let found = refused(&deep);
        assert!(found[0].starts_with("P0104") || found[0].starts_with("P0103"), "{found:?}");
    }
}

#[test]
fn the_number_of_values_is_bounded() {
    let items = |count: usize| format!("a: [{}]", "x,".repeat(count));
    assert!(read(&items(NODES_MAX - 10)).is_ok());
    assert!(refused(&items(NODES_MAX))[0].starts_with("P0105"));
    assert!(refused(&"a: b\n".repeat(200_000))[0].starts_with("P0105"));
}

#[test]
fn aliases_copy_a_little_and_never_explode() {
    let (_, root) = read("a: &x { b: c }\nd: [*x, *x]\n").unwrap();
    assert_eq!(root.get("d").unwrap().one_or_many()[1].get("b").unwrap().text(), Some("c"));

    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..20 {
        let below = format!("*a{}, ", level - 1).repeat(10);
        bomb.push_str(&format!("a{level}: &a{level} [{below}]\n"));
    }
    assert!(refused(&bomb)[0].starts_with("P0106"));

    let long = format!("a: &x {}\nb: [{}]\n", "y".repeat(100_000), "*x, ".repeat(900));
    assert!(refused(&long)[0].starts_with("P0106"));
    assert!(refused("a: &x [*x]\n")[0].starts_with("P0106"));
    assert!(refused("a: *nowhere\n")[0].starts_with("P0103"));
    // Thirty levels behind forty levels are seventy, though neither is too deep.
    let deep = format!(
        "a: &x {}{}\nb: {}*x{}\n",
        "[".repeat(30),
        "]".repeat(30),
        "[".repeat(40),
        "]".repeat(40)
    );
    assert!(refused(&deep)[0].starts_with("P0104"));
}

#[test]
fn nothing_hides_behind_a_zero_byte() {
    assert_eq!(refused("a: b\n\u{0}\nc: d\n"), ["P0103 2:1"]);
}

/// Whatever stands in a file, reading it ends, and with a place where it is refused.
#[test]
fn scrambled_files_are_read_or_refused() {
    let seed = "a: &x {b: [c, 'd'], \"e\\n\": |\n  f\n g: >-\n*x !t #h\n? - i: ~\n---\n...\n%YAML\t\u{feff}ä${A:-b}";
    let alphabet: Vec<char> = seed.chars().collect();
    // A small generator of its own: the same files every time.
    let mut state = 7_u64;
    let mut next = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut read_whole = 0;
    for _ in 0..20_000 {
        let length = 1 + next(40);
        let text: String = (0..length).map(|_| alphabet[next(alphabet.len())]).collect();
        if let Ok((source, root)) = read(&text) {
            pieces(&source, &root, &mut Vec::new());
            read_whole += 1;
        }
    }
    assert!(read_whole > 100, "{read_whole}");
}
