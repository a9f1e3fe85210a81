//! Programs compiled, refused, run and stopped.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use potok_core::HeadersBuilder;

fn view<'a>(value: &'a str, headers: &'a Headers) -> View<'a> {
    View {
        value: value.as_bytes(),
        key: Some(b"k-1"),
        headers,
        topic: "orders",
        time: Timestamp(1_709_210_096_789),
    }
}

fn run(source: &str, value: &str) -> Result<ProgramOutcome, ProgramError> {
    let program = Program::compile(source).unwrap_or_else(|e| panic!("{source}: {e:?}"));
    program.run(&view(value, &Headers::none()))
}

fn value(source: &str, value: &str) -> String {
    match run(source, value) {
        Ok(ProgramOutcome::Value(bytes)) => {
            crate::json::Parser::new().parse(&bytes).unwrap();
            String::from_utf8(bytes.into()).unwrap()
        }
        Ok(ProgramOutcome::Unchanged) => value.to_owned(),
        other => panic!("{source}: {other:?}"),
    }
}

fn failure(source: &str, value: &str) -> String {
    match run(source, value) {
        Err(ProgramError::Failed(message)) => message,
        other => panic!("{source}: {other:?}"),
    }
}

fn refused(source: &str) -> Vec<ExprError> {
    Program::compile(source).expect_err(source)
}

#[test]
fn changes_the_event() {
    for (source, before, after) in [
        (".b = 1", r#"{"a":"x"}"#, r#"{"a":"x","b":1}"#),
        (".a = upcase(string!(.a))", r#"{"a":"é\"\n"}"#, r#"{"a":"É\"\n"}"#),
        ("del(.a)", r#"{"a":1,"b":[null,true,{}]}"#, r#"{"b":[null,true,{}]}"#),
        (". = {\"n\": .n}", r#"{"n":1.5,"m":2}"#, r#"{"n":1.5}"#),
        (".t = t'2024-02-29T12:34:56.5Z'", "{}", r#"{"t":"2024-02-29T12:34:56.500Z"}"#),
        (".r = r'a+'", "{}", r#"{"r":"a+"}"#),
        (". = [1, 2]", "{}", "[1,2]"),
        (".a.b[1] = 2", "{}", r#"{"a":{"b":[null,2]}}"#),
        (". |= {\"z\": 1}", r#"{"z":0}"#, r#"{"z":1}"#),
    ] {
        assert_eq!(value(source, before), after, "{source}");
    }
}

#[test]
fn a_program_that_only_looks_keeps_the_bytes() {
    let before = "{ \"z\": 1.50, \"a\": 1e2,\n\"b\" : \"\\u0041\" }";
    for source in [
        "if .z == 2 { abort }",
        "x = .a; x",
        "true",
        "y = . ; y.z = 3; y",
        "exists(.a)",
        "for_each(keys(.)) -> |_i, k| { k }",
    ] {
        assert_eq!(value(source, before), before, "{source}");
    }
}

#[test]
fn abort_filters() {
    let source = "if .kind == \"test\" { abort }";
    assert_eq!(run(source, r#"{"kind":"test"}"#), Ok(ProgramOutcome::Filtered));
    assert_eq!(run(source, r#"{"kind":"real"}"#), Ok(ProgramOutcome::Unchanged));
    assert_eq!(run("abort \"why\"", "{}"), Ok(ProgramOutcome::Filtered));
}

#[test]
fn an_error_the_program_raises_fails_the_record() {
    assert!(failure("assert!(.n == 1, \"n must be 1\")", r#"{"n":2}"#).contains("n must be 1"));
    assert!(failure(".n = to_int!(.n)", r#"{"n":"x"}"#).contains("to_int"));
}

#[test]
fn metadata_can_be_read() {
    let headers = HeadersBuilder::new()
        .add("h", Some(b"first"))
        .add("h", Some(b"last"))
        .add("odd name", Some(b"o"))
        .add("bad", Some(b"a\xff"))
        .add("gone", Some(b"x"))
        .add("gone", None)
        .build();
    let source = r#"
        .key = %key
        .topic = upcase(%topic)
        .h = %headers.h
        .odd = %headers."odd name"
        .bad = %headers.bad
        .gone = %headers.gone
        .missing = %headers.missing
        .time = %time
        .year = format_timestamp!(%time, "%Y")
    "#;
    let program = Program::compile(source).unwrap();
    let want = "{\"bad\":\"a\u{fffd}\",\"gone\":null,\"h\":\"last\",\"key\":\"k-1\",\"missing\":null,\
        \"odd\":\"o\",\"time\":\"2024-02-29T12:34:56.789Z\",\"topic\":\"ORDERS\",\"year\":\"2024\"}";
    assert_eq!(program.run(&view("{}", &headers)), Ok(ProgramOutcome::Value(want.into())));
    let keyless = View { key: None, time: Timestamp(-1), ..view("{}", &headers) };
    let program = Program::compile(".k = %key; .t = %time").unwrap();
    let want = r#"{"k":null,"t":"1969-12-31T23:59:59.999Z"}"#;
    assert_eq!(program.run(&keyless), Ok(ProgramOutcome::Value(want.into())));
    for time in [i64::MIN, i64::MAX] {
        let far = View { time: Timestamp(time), ..view("{}", &headers) };
        assert!(matches!(program.run(&far), Ok(ProgramOutcome::Value(_))));
    }
}

#[test]
fn a_key_that_is_no_text_is_not_bent_into_one() {
    let none = Headers::none();
    let view = View { key: Some(b"\xff\x00"), ..view("{}", &none) };
    let program = Program::compile(".k = %key").unwrap();
    assert!(matches!(program.run(&view), Err(ProgramError::Failed(m)) if m.contains("UTF-8")));
    let program = Program::compile(".k = encode_base64(%key ?? \"\")");
    assert!(program.is_err(), "`%key` may be null and cannot fail, so `??` is wrong here");
    let program = Program::compile(".k = encode_base64(string!(%key))").unwrap();
    assert_eq!(program.run(&view), Ok(ProgramOutcome::Value(r#"{"k":"/wA="}"#.into())));
}

#[test]
fn numbers_survive_or_are_refused() {
    for number in [
        "0",
        "-1",
        "9223372036854775807",
        "-9223372036854775808",
        "0.1",
        "1.5",
        "-0.0",
        "1e20",
        "5e-324",
        "1.7976931348623157e308",
        "9007199254740993",
        "0.30000000000000004",
        "1.0",
    ] {
        let event = format!("{{\"n\":{number}}}");
        let after = value(".m = 1", &event);
        let mut parser = crate::json::Parser::new();
        let node = parser.parse(after.as_bytes()).unwrap().get("n").unwrap();
        assert_eq!(node.as_f64(), number.parse().ok(), "{number} became {}", node.source());
        assert_eq!(node.as_i64(), crate::number::exact_i64(number), "{number}");
    }
    for number in [
        "9223372036854775808",
        "18446744073709551615",
        "-9223372036854775809",
        "1e-400",
        "0.12345678901234567890",
        "123456789012345678901234567890",
    ] {
        let message = failure(".m = 1", &format!("{{\"deep\":[{{\"n\":{number}}}]}}"));
        assert!(message.contains(number), "{message}");
    }
}

#[test]
fn values_that_are_no_objects_are_refused() {
    for (event, part) in [
        ("[1]", "an array"),
        ("\"x\"", "a string"),
        ("null", "null"),
        ("{", "not JSON"),
        ("", "not JSON"),
        (r#"{"a":1,"a":2}"#, "twice"),
    ] {
        assert!(failure(".a = 1", event).contains(part), "{event}");
    }
}

#[test]
fn results_that_are_no_json_are_refused() {
    assert!(failure(".a = decode_base64!(\"/w==\")", "{}").contains("UTF-8"));
    let deep = format!(".a{} = 1", ".b".repeat(DEPTH_FITS + 1));
    assert!(failure(&deep, "{}").contains("deeper"));
    let fits = format!(".a{} = 1", ".b".repeat(DEPTH_FITS));
    value(&fits, "{}");
}

/// The root is the first level, `.a` the last that may hold a scalar.
const DEPTH_FITS: usize = crate::json::DEPTH_MAX - 1;

#[test]
fn compile_errors_point_at_their_place() {
    for (source, text, part) in [
        (".a = upcase(.b)", "upcase(.b)", "unhandled fallible assignment"),
        (".a = nosuch(.b)", "nosuch", "undefined function"),
        (".a = 1 +", "", "syntax error"),
        (".a = (1", "", "syntax error"),
        (".a = \"é\" + nosuch()", "nosuch", "undefined function"),
        ("x", "x", "undefined variable"),
        (".a = 5 % 2", "", "syntax error"),
        ("%key = \"x\"", "%key", "read-only"),
        ("%headers.a = \"x\"", "%headers.a", "read-only"),
        (". = %nosuch", "%nosuch", "there are %key, %headers, %topic and %time"),
    ] {
        let errors = refused(source);
        let first = errors.first().unwrap();
        let found = source.get(first.at..first.at + first.len).unwrap();
        assert!(found.contains(text), "{source}: `{found}` {}", first.message);
        assert!(first.message.contains(part), "{source}: {}", first.message);
        assert!(!first.message.contains('\u{1b}'), "{source}: {}", first.message);
    }
}

#[test]
fn all_problems_come_at_once() {
    let errors = refused(".a = upcase(.b)\n.c = nosuch()\n.d = downcase(.e)");
    assert!(errors.len() >= 2, "{errors:?}");
    let mut places: Vec<_> = errors.iter().map(|error| error.at).collect();
    places.dedup();
    assert_eq!(places.len(), errors.len(), "{errors:?}");
}

#[test]
fn an_unused_result_is_no_error() {
    assert_eq!(value("1 + 1\n.a = 1", "{}"), r#"{"a":1}"#);
}

#[test]
fn predicates_hold_or_do_not() {
    let holds = |source: &str, event: &str| {
        let program = Program::compile_predicate(source).unwrap_or_else(|e| panic!("{e:?}"));
        program.matches(&view(event, &Headers::none()))
    };
    assert_eq!(holds(".n == 1", r#"{"n":1}"#), Ok(true));
    assert_eq!(holds(".n == 1", r#"{"n":2}"#), Ok(false));
    assert_eq!(holds("%topic == \"orders\" && exists(.n)", r#"{"n":2}"#), Ok(true));
    assert_eq!(holds("if .n == 1 { abort }\ntrue", r#"{"n":1}"#), Ok(false));
    assert_eq!(holds(".flag", r#"{"flag":true}"#), Ok(true));
    assert_eq!(holds(".flag", r#"{"flag":"yes"}"#), Ok(false));
    assert_eq!(holds(".flag", "{}"), Ok(false));
    assert_eq!(holds(".flag", "not JSON"), Ok(false));
    assert_eq!(holds("%topic == \"orders\"", "not JSON"), Ok(true), "no field is asked for");
}

#[test]
fn predicates_are_booleans_and_change_nothing() {
    for (source, part) in [
        ("1 + 1", "true or false"),
        ("\"true\"", "true or false"),
        (".a = 1\ntrue", "read-only"),
        ("del(.a)\ntrue", "read-only"),
    ] {
        let errors = Program::compile_predicate(source).expect_err(source);
        assert!(errors.first().unwrap().message.contains(part), "{source}: {errors:?}");
    }
}

#[test]
fn a_runaway_program_meets_its_deadline() {
    let items = vec!["1"; 3_000].join(",");
    let event = format!("{{\"items\":[{items}]}}");
    for source in [
        // 3,000³ rounds.
        "items = array!(.items)
        for_each(items) -> |_i, _a| { for_each(items) -> |_j, _b| { for_each(items) -> |_k, _c| { .n = 1 } } }",
        "items = array!(.items)
        .items = map_values(items) -> |_a| { for_each(items) -> |_j, _b| { for_each(items) -> |_k, _c| { .n = 1 } } ; 1 }",
        "text = join!(map_values(array!(.items)) -> |_v| { \"x\" })
        .t = replace_with(text, r'x') -> |_m| { y = replace_with(text, r'x') -> |_m| { z = replace_with(text, r'x') -> |_m| { \"y\" }; z }; y }",
        // VRL may not catch the interruption as one of its own errors.
        "items = array!(.items)
        .x = to_int(filter(items) -> |_i, _v| { for_each(items) -> |_j, _b| { for_each(items) -> |_k, _c| { .n = 1 } } ; true }) ?? 0",
    ] {
        let program = Program::compile(source).unwrap_or_else(|e| panic!("{source}: {e:?}"));
        let program = program.with_deadline(Duration::from_millis(30));
        let ended = program.run(&view(&event, &Headers::none()));
        assert_eq!(ended, Err(ProgramError::Deadline), "{source}");
    }
}

#[test]
fn a_crash_inside_vrl_is_a_failure_of_the_record() {
    let message = failure(".a = \"xx\" * 9223372036854775807", "{}");
    assert!(message.contains("crashed"), "{message}");
}

#[test]
fn deep_sources_neither_overflow_nor_take_for_ever() {
    let nested = |open: &str, inner: &str, close: &str, depth: usize| {
        format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
    };
    for source in [
        nested("(", "1", ")", 100_000),
        nested("[", "1", "]", 30_000),
        nested("!", "true", "", 60_000),
        format!("1{}", " + 1".repeat(16_000)),
        nested("(", "1", ")", 10_000),
    ] {
        assert_eq!(refused(&source).len(), 1);
    }
    // As deep as can be: these must compile and run on a thread with an ordinary stack.
    for source in [
        nested("(", "1", ")", 60),
        format!(".a = {}", nested("[", "1", "]", 60)),
        format!(".a = {}", nested("{\"a\":", "1", "}", 50)),
        nested("{ ", "1", " }", 60),
        nested("if .a == 1 { ", "1", " }", 40),
        nested("!", "true", "", 600),
        format!(".a = 1{}", " + 1".repeat(300)),
        format!(".a = .b == 1{}", " || .b == 1".repeat(100)),
        format!(".a{} = 1", ".b".repeat(600)),
        format!("if .a == 1 {{ 1 }}{}", " else if .a == 1 { 1 }".repeat(40)),
    ] {
        let program = Program::compile(&source).unwrap_or_else(|e| panic!("{source}: {e:?}"));
        let ended = program.run(&view("{}", &Headers::none()));
        assert!(!matches!(ended, Err(ProgramError::Deadline)), "{source}");
    }
}

#[test]
fn programs_run_on_many_threads() {
    let program = Program::compile(".n = int!(.n) + 1").unwrap();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let program = program.clone();
            scope.spawn(move || {
                let event = format!("{{\"n\":{n}}}");
                let want = format!("{{\"n\":{}}}", n + 1);
                let ended = program.run(&view(&event, &Headers::none()));
                assert_eq!(ended, Ok(ProgramOutcome::Value(want.into())));
            });
        }
    });
}

/// A program that looks at little is run on little; whatever it does, the result is that of a run
/// on everything.
#[test]
fn reading_little_and_reading_all_agree() {
    let sources = [
        ".a == 1",
        ".a.b[0] == \"x\" || exists(.c)",
        "length(.) == 2",
        "x = .; x.a == 1",
        "get!(., [\"a\"]) == 1",
        "%topic == \"t\" && .a == 1",
        "%headers.h == \"1\"",
        "is_null(.missing)",
        "to_int!(.c) > 1",
        ".a > 0 || .c > \"1\"",
        ".\"a b\" == true",
    ];
    let records = [
        "{}",
        r#"{"a":1,"c":"2"}"#,
        r#"{"a":{"b":["x"]},"big":123456789012345678901234567890}"#,
        r#"{"a b":true,"c":"no number"}"#,
    ];
    let headers = HeadersBuilder::new().add("h", Some(b"1")).build();
    for source in sources {
        let program =
            Program::compile_predicate(source).unwrap_or_else(|e| panic!("{source}: {e:?}"));
        for record in records {
            let view = view(record, &headers);
            let whole = Program { reads: None, ..program.clone() };
            // What is not looked at may be anything.
            let is_unreadable = |why: &str| why.contains("digits");
            match whole.resolve(&view) {
                Err(ProgramError::Failed(why)) if is_unreadable(&why) => {}
                _ => {
                    assert_eq!(program.matches(&view), whole.matches(&view), "{source} on {record}")
                }
            }
        }
    }
    let deletes = Program::compile("del(.a)\nif .b == 1 { abort }").unwrap();
    let view = view(r#"{"a":1,"c":3}"#, &headers);
    assert_eq!(deletes.run(&view), Ok(ProgramOutcome::Value(Bytes::from_static(br#"{"c":3}"#))));
    let filter = Program::compile("if .a == 2 { abort }").unwrap();
    assert!(filter.reads.is_some(), "a filter is run on what it looks at");
    let (_, event) = filter.resolve(&view).unwrap();
    assert!(event.reads.is_some(), "and once, not a second time on everything");
    assert_eq!(filter.run(&view), Ok(ProgramOutcome::Unchanged), "bytes as they were");
}

fn run_group(source: &str, values: &[&str]) -> Result<GroupOutcome, ProgramError> {
    let program = Program::compile_batch(source).unwrap_or_else(|e| panic!("{source}: {e:?}"));
    let headers = Headers::none();
    let views: Vec<_> = values.iter().map(|value| view(value, &headers)).collect();
    let key = Bytes::from_static(b"group-7");
    program.run_batch(&GroupInfo::replayed(key, Timestamp(0), "n".to_owned()), &views)
}

fn run_batch(source: &str, values: &[&str]) -> Result<Vec<ProgramOutcome>, ProgramError> {
    match run_group(source, values)? {
        GroupOutcome::Each(ran) => Ok(ran),
        GroupOutcome::One(value) => panic!("{source}: {value:?}"),
    }
}

#[test]
fn a_program_per_group_may_leave_one_object() {
    let source = ". = { \"n\": length(.), \"why\": %group.reason, \"at\": %group.closed }";
    let value = r#"{"at":"1970-01-01T00:00:00Z","n":2,"why":"replayed"}"#;
    let one = GroupOutcome::One(Bytes::from_static(value.as_bytes()));
    assert_eq!(run_group(source, &["{}", "{}"]).unwrap(), one);
}

#[test]
fn a_batch_is_an_array_of_its_values() {
    let value = |text: &str| ProgramOutcome::Value(Bytes::copy_from_slice(text.as_bytes()));
    let values = [r#"{"n":1.50}"#, r#"{"n":2}"#, r#"{"n":3}"#];
    let total = "sum = 0\nfor_each(.) -> |_i, e| { sum = sum + to_int!(e.n) }\n.[1].sum = sum";
    assert_eq!(
        run_batch(total, &[r#"{"n":1.0}"#, r#"{"n":2}"#]).unwrap(),
        // Only what changed is written anew.
        [ProgramOutcome::Unchanged, value(r#"{"n":2,"sum":3}"#)]
    );
    assert_eq!(
        run_batch(". = map_values(.) -> |e| { if e.n == 2 { null } else { e } }", &values).unwrap(),
        [ProgramOutcome::Unchanged, ProgramOutcome::Filtered, ProgramOutcome::Unchanged]
    );
    assert_eq!(
        run_batch(".[0] = %key\n.[2] = %events[2].topic", &values).unwrap(),
        [value(r#""group-7""#), ProgramOutcome::Unchanged, value(r#""orders""#)]
    );
    assert_eq!(
        run_batch("if length(.) == 3 { abort }", &values).unwrap(),
        [ProgramOutcome::Filtered, ProgramOutcome::Filtered, ProgramOutcome::Filtered]
    );
    assert_eq!(run_batch("length(.)", &values[..1]).unwrap(), [ProgramOutcome::Unchanged]);
}

#[test]
fn a_batch_keeps_its_length() {
    let failure = |source: &str, values: &[&str]| match run_batch(source, values) {
        Err(ProgramError::Failed(what)) => what,
        other => panic!("{source}: {other:?}"),
    };
    let longer = failure(". = push(., 1)", &["{}", "{}"]);
    assert!(longer.contains("3 elements for 2 events"), "{longer}");
    let broken = failure("length(.)", &["{}", "{"]);
    assert!(broken.contains("event 2"), "{broken}");
    let refused = |source: &str| Program::compile_batch(source).expect_err(source);
    assert!(refused(". = 1")[0].message.contains("must leave an array"));
    assert!(refused("x = %topic")[0].message.contains("%events"));
}
