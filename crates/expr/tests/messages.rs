//! What people read when a program is refused, and when a run of it fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use potok_core::{Headers, Timestamp};
use potok_expr::{Program, ProgramError, View};

#[test]
fn every_way_out_is_named() {
    for (source, place, hint) in [
        (
            ".f = .temp * 9 / 5 + 32",
            ".temp * 9 / 5 + 32",
            "`.f = to_float!(.temp) * 9 / 5 + 32` to let the record fail, or \
             `.f = (.temp * 9 / 5 + 32) ?? 0` to go on with a default, or \
             `.f, err = .temp * 9 / 5 + 32` to look at the error",
        ),
        (
            ".n = to_int(.a)",
            "to_int(.a)",
            "`.n = to_int!(.a)` to let the record fail, or `.n = to_int(.a) ?? 0` to go on with a \
             default, or `.n, err = to_int(.a)` to look at the error",
        ),
        (
            ".name = \"x\" + .a",
            "\"x\" + .a",
            "`.name = \"x\" + string!(.a)` to let the record fail, or `.name = (\"x\" + .a) ?? \"\"` to \
             go on with a default, or `.name, err = \"x\" + .a` to look at the error",
        ),
        (
            "to_int(.a)",
            "to_int(.a)",
            "`to_int!(.a)` to let the record fail, or `to_int(.a) ?? 0` to go on with a default",
        ),
        (".a = no_such(.b)", "no_such", "the functions of VRL are listed at"),
        (".a = upcas(.b)", "upcas", "did you mean `upcase`?"),
        ("avg = no_such(.b)\n.a = avg", "no_such", "the functions of VRL"),
        ("total = 1\n.a = totl", "totl", "did you mean `total`?"),
    ] {
        let errors = Program::compile(source).expect_err(source);
        assert_eq!(errors.len(), 1, "one error for one cause: {source}: {errors:?}");
        let error = &errors[0];
        assert_eq!(source.get(error.at..error.at + error.len), Some(place), "{source}: {errors:?}");
        let found = error.hint.as_deref().unwrap_or_default();
        assert!(found.starts_with(hint), "{source}: {errors:?}");
        // What the hint says to write can be written.
        for way in found.split('`').skip(1).step_by(2).filter(|way| way.contains(['!', '?'])) {
            Program::compile(way).unwrap_or_else(|errors| panic!("{way}: {errors:?}"));
        }
    }
}

#[test]
fn a_failed_run_names_the_innermost_call_and_its_place() {
    let source = "x = 1\nfor_each(array!(.items)) -> |_i, item| {\n  .n = to_int!(item)\n}";
    let program = Program::compile(source).unwrap();
    let headers = Headers::none();
    let value = br#"{"items":["x"]}"#;
    let view = View { value, key: None, headers: &headers, topic: "t", time: Timestamp(0) };
    let failed = |program: &Program| match program.run(&view) {
        Err(ProgramError::Failed(what)) => what,
        other => panic!("{other:?}"),
    };
    let what = failed(&program);
    assert!(what.starts_with("`to_int` failed: "), "{what}");
    assert!(what.ends_with("(at line 3, column 8 of the program)"), "{what}");
    let placed = program.with_places(Some(Arc::new(|at| format!("f.yaml:{at}"))));
    let what = failed(&placed);
    let at = source.find("to_int").unwrap();
    assert!(what.ends_with(&format!("(at f.yaml:{at})")), "{what}");
}
