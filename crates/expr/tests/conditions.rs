//! Conditions: what is asked of a record that does not fit is answered with no.
#![allow(clippy::unwrap_used, clippy::panic)]

use potok_core::{Headers, Timestamp};
use potok_expr::{Program, View};

fn view<'a>(value: &'a str, headers: &'a Headers) -> View<'a> {
    let (value, time) = (value.as_bytes(), Timestamp(1_709_210_096_789));
    View { value, key: Some(b"k-1"), headers, topic: "orders", time }
}

/// What a condition fails on is false, and only that part of it.
#[test]
fn a_comparison_or_call_that_fails_is_false() {
    let large = r#"{"amount":11,"name":"ann","items":[{"price":5},{"price":500}]}"#;
    let text = r#"{"amount":"11","name":7,"vip":true,"items":[{"price":"?"},{"price":500}]}"#;
    for (source, on_large, on_text, on_empty) in [
        (".amount > 10", true, false, false),
        ("10 <= .amount", true, false, false),
        (".a.b.c > 1000", false, false, false),
        ("!(.amount > 10)", false, true, true),
        (".amount > 10 && .name == \"ann\"", true, false, false),
        (".amount > 10 || .vip == true", true, true, false),
        (".vip == true || .amount > 10", true, true, false),
        ("(.amount > 10 || .vip == true) && exists(.items)", true, true, false),
        (".amount * 2 + 1 > 20", true, false, false),
        (".amount / .divisor > 1", false, false, false),
        (".amount - 1 == 10", true, false, false),
        (".amount + 1 != 12", false, false, false),
        ("to_int(.amount) > 10", true, true, false),
        ("to_int!(.amount) > 10 || .vip == true", true, true, false),
        ("contains(.name, \"nn\")", true, false, false),
        ("!contains(.name, \"nn\")", false, true, true),
        ("starts_with(downcase(to_string(.name)), \"a\")", true, false, false),
        ("length(.items) == 2 && .amount > 10", true, false, false),
        (
            "length(filter(array!(.items)) -> |_i, item| { item.price > 100 }) > 0",
            true,
            true,
            false,
        ),
        ("(to_int(.amount) ?? 0) > 10", true, true, false),
        ("(.amount > 10) ?? true", true, true, true),
        ("n, err = to_int(.amount)\nerr == null && n > 10", true, true, false),
        ("n = to_int(.amount)\nn > 10", true, true, false),
        ("if .amount > 10 { .name == \"ann\" } else { .vip }", true, true, false),
        ("parse_json(.name).x == 1 || .amount > 10", true, false, false),
        (".vip && .amount != 0", false, true, false),
        (".name && .amount > 10", false, false, false),
        ("abs(.amount - 20) < 10", true, false, false),
        ("%topic == \"orders\" && .amount > 10", true, false, false),
        (".items[1].price > 100", true, true, false),
        ("match(.name, r'^a')", true, false, false),
        ("is_string(.name) && length(.name) > 2", true, false, false),
        ("parse_timestamp(.at, \"%+\") > %time || .amount > 10", true, false, false),
    ] {
        let program =
            Program::compile_predicate(source).unwrap_or_else(|e| panic!("{source}: {e:?}"));
        for (event, holds) in [(large, on_large), (text, on_text), ("{}", on_empty)] {
            let found = program.matches(&view(event, &Headers::none()));
            assert_eq!(found, Ok(holds), "{source} on {event}");
        }
    }
}

#[test]
fn what_can_never_be_a_condition_is_refused() {
    for (source, part) in [
        ("upcase(.a)", "true or false"),
        (".a + 1", "true or false"),
        ("1 < .a < 3", "chained"),
        ("no_such(.a) > 1", "undefined function"),
        ("x > 1", "undefined variable"),
        (".a >", "syntax error"),
        (".a = 1", "read-only"),
    ] {
        let errors = Program::compile_predicate(source).expect_err(source);
        assert!(errors[0].message.contains(part), "{source}: {errors:?}");
    }
}

/// Rewriting makes a condition deeper than it is written.
#[test]
fn long_conditions_compile_and_run() {
    for source in [
        format!(".a > 1{}", " || .a > 1".repeat(100)),
        format!(".a > 1{}", " && .b < 2".repeat(100)),
        format!("{}.a > 1{}", "(".repeat(50), ")".repeat(50)),
        format!("{}(.a > 1)", "!".repeat(200)),
        "if .a > 1 { ".repeat(10) + "true" + &" } else { false }".repeat(10),
    ] {
        let program = Program::compile_predicate(&source).unwrap_or_else(|e| panic!("{e:?}"));
        program.matches(&view("{}", &Headers::none())).unwrap();
    }
}
