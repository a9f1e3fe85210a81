//! Files of the design, the shipped pipelines, and every mistake in `cases/`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use potok_config::{
    Env, Flags, LoadedFile, Pipeline, Problem, Problems, StoreConnection, Target, check_together,
    json_schema, load_connections, load_pipeline,
};
use potok_connectors::registry;
use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::Value as Json;

fn load(file: &Path) -> Result<LoadedFile<Pipeline>, Problems> {
    load_pipeline(file, &env(), &registry())
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn yaml_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|p| p.extension().is_some_and(|e| e == "yaml")).collect();
    files.sort();
    files
}

fn env() -> Env {
    Env::of([("CHAT_WEBHOOK", "https://chat/hook"), ("PUSH_URL", "https://push"), ("WORKERS", "2")])
}

#[test]
fn the_design_files_are_understood() {
    for name in ["em-processor", "orders"] {
        let file = here("tests/design").join(format!("{name}.yaml"));
        let loaded = load(&file).unwrap_or_else(|all| panic!("{all}"));
        assert_eq!(loaded.name.as_str(), name);
    }
}

#[test]
fn the_orders_pipeline_is_what_its_file_says() {
    let loaded = load(&here("tests/design/orders.yaml")).unwrap();
    assert_eq!(loaded.workers, 2);
    assert_eq!(loaded.topics(), ["orders"]);
    assert_eq!(loaded.consumer_groups(), ["order-consumer"]);
    assert_eq!(loaded.dead_letter_topic(), "orders-dead");
    assert_eq!(loaded.limits.in_flight_bytes.bytes(), 64 << 20);
    assert_eq!(loaded.gate.probe_every.as_secs(), 2);
    let deliver = &loaded.deliver[0];
    let Some(Target::Connector(settings)) = deliver.target() else { panic!("a database") };
    assert_eq!(settings.label(), "orders");
    assert_eq!(deliver.once_by[0].source(), ".order_uid");
    assert!(loaded.schema.is_some() && loaded.validator().is_some());
    assert_eq!(deliver.label(), "orders");
}

#[test]
fn shipped_pipelines_load() {
    let files = yaml_files(&here("../../pipelines"));
    assert!(!files.is_empty());
    for file in files {
        let loaded = load_pipeline(&file, &Env::default(), &registry());
        loaded.unwrap_or_else(|all| panic!("{all}"));
    }
}

/// As an editor sees it, before the environment is put in.
fn as_json(file: &Path) -> Json {
    let text = fs::read_to_string(file).unwrap();
    let mut open: Vec<Vec<Json>> = vec![Vec::new()];
    for event in Parser::new_from_str(&text) {
        match event.unwrap().0 {
            Event::MappingStart(..) | Event::SequenceStart(..) => open.push(Vec::new()),
            Event::Scalar(text, style, ..) => {
                let plain = style == ScalarStyle::Plain;
                let typed = plain.then(|| serde_json::from_str(&text).ok()).flatten();
                open.last_mut().unwrap().push(typed.unwrap_or_else(|| Json::from(text.as_ref())));
            }
            Event::SequenceEnd => {
                let items = open.pop().unwrap();
                open.last_mut().unwrap().push(Json::Array(items));
            }
            Event::MappingEnd => {
                let items = open.pop().unwrap();
                let pairs = items.chunks(2).map(|pair| {
                    let key = pair[0].as_str().map_or_else(|| pair[0].to_string(), str::to_owned);
                    (key, pair[1].clone())
                });
                let map = pairs.collect();
                open.last_mut().unwrap().push(Json::Object(map));
            }
            _ => {}
        }
    }
    open.pop().unwrap().pop().unwrap()
}

#[test]
fn editors_accept_good_files_before_the_environment_is_put_in() {
    let validator = jsonschema::validator_for(&json_schema(&registry())).unwrap();
    let designed = ["orders.yaml", "em-processor.yaml"].map(|file| here("tests/design").join(file));
    for file in designed.into_iter().chain(yaml_files(&here("../../pipelines"))) {
        let json = as_json(&file);
        let errors: Vec<_> = validator.iter_errors(&json).map(|e| e.to_string()).collect();
        assert!(errors.is_empty(), "{}: {errors:?}", file.display());
    }
    let base = serde_json::json!({
        "name": "a", "source": { "topic": "a" }, "deliver": [{ "topic": "b" }],
        "workers": "${WORKERS:-4}", "retry": { "first": "${FIRST}" },
    });
    let errors: Vec<_> = validator.iter_errors(&base).map(|e| e.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    for (key, wrong) in [
        ("nam", serde_json::json!(1)),
        ("source", serde_json::json!({ "topic": "a", "list": "b" })),
        ("deliver", serde_json::json!([{ "topic": "a", "db": "b" }])),
        ("deliver", serde_json::json!([{ "topic": "a", "table": "b" }])),
        ("deliver", serde_json::json!([{ "kind": "a" }])),
        ("process", serde_json::json!([{ "stage": "a", "webhook": "a", "per": "group" }])),
    ] {
        let mut file = base.clone();
        file[key] = wrong;
        assert!(!validator.is_valid(&file), "{file}");
    }
}

#[test]
fn connections_of_the_design_are_understood() {
    let load = |file: &str| {
        load_connections(Some(&here(file)), &Flags::default(), &Env::default(), &registry())
    };
    let embedded = load("tests/design/potok.yaml").unwrap();
    assert_eq!(embedded.store, StoreConnection::Embedded);
    let elsewhere = load("tests/design/potok-elsewhere.yaml").unwrap();
    assert!(matches!(elsewhere.store, StoreConnection::Redis { .. }));
}

/// Values are told, but cannot write to the terminal or fill it.
#[test]
fn messages_are_one_short_printable_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.yaml");
    let long = "x".repeat(100_000);
    let text = format!(
        "name: a\nsource: {{ topic: a }}\ndeliver: [ {{ topic: b }} ]\n\
        on_set_aside: {long}\ngate: {{ probe_every: \"\\e[31m\\n\" }}\n"
    );
    fs::write(&file, text).unwrap();
    let problems = load_pipeline(&file, &Env::default(), &registry()).unwrap_err();
    assert_eq!(problems.len(), 2);
    for problem in &problems {
        assert!(!problem.what.contains(char::is_control), "{:?}", problem.what);
        assert!(problem.to_string().len() < 2000);
    }
}

/// Two pipelines of one process need names, groups and dead letters of their own.
#[test]
fn files_that_cannot_run_together_are_told_apart() {
    let load = |file: &str| load_pipeline(&here(file), &env(), &registry()).unwrap();
    let orders = || load("tests/design/orders.yaml");
    let problems = check_together(&[orders(), load("tests/design/em-processor.yaml"), orders()]);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!((problems[0].code, problems[0].line), ("P0149", 1));
}

#[test]
fn topics_that_another_pipeline_has_for_itself_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let load = |name: &str, text: &str| {
        let file = folder.path().join(format!("{name}.yaml"));
        fs::write(&file, format!("name: {name}\n{text}")).unwrap();
        load_pipeline(&file, &Env::default(), &registry()).unwrap_or_else(|all| panic!("{all}"))
    };
    let plain = "source: { topic: s }\ndeliver: [ { topic: t } ]\n";
    let set_aside = format!("{plain}dead_letter: {{ topic: aside }}\n");
    let into_aside = "source: { topic: s }\ndeliver: [ { topic: aside } ]\n";
    for (one, other, place) in [
        (&*set_aside, into_aside, Some(("P0151", 3))),
        (into_aside, &set_aside, Some(("P0151", 4))),
        // Dead letters may be read by others.
        (&set_aside, "source: { topic: aside }\ndeliver: [ { topic: t } ]\n", None),
        (plain, "source: { topic: a-dead }\ndeliver: [ { topic: t } ]\n", None),
        (plain, plain, None),
    ] {
        let problems = check_together(&[load("a", one), load("b", other)]);
        let found = problems.first().map(|problem| (problem.code, problem.line));
        assert_eq!(found, place, "{problems:?}");
    }
}

/// What the schema does not name is probably a slip, and may be right: it is said, and runs.
#[test]
fn fields_that_the_schema_does_not_name_are_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let schema = r##"{ "type": "object", "properties": {
        "device": { "type": "string" }, "site": { "$ref": "#/$defs/site" }, "any": {} },
        "$defs": { "site": { "properties": { "name": {} }, "additionalProperties": false } } }"##;
    fs::write(folder.path().join("s.json"), schema).unwrap();
    let warnings = |more: &str| {
        let file = folder.path().join("a.yaml");
        let base = "name: a\nsource: { topic: a }\ndecode: { schema: s.json }\n";
        fs::write(&file, format!("{base}{more}")).unwrap();
        load_pipeline(&file, &Env::default(), &registry())
            .unwrap_or_else(|all| panic!("{all}"))
            .warnings
    };
    let deliver = "deliver: [ { topic: b } ]\n";
    let close = "close: { after_first: 1m }";
    let found = warnings(&format!("group: {{ by: .devcie, {close} }}\n{deliver}"));
    assert_eq!(found.len(), 1, "{found:?}");
    let warning = &found[0];
    assert_eq!((warning.severity, warning.code), ("warning", "P0131"));
    assert_eq!((warning.line, warning.column), (4, 14));
    assert_eq!(warning.hint.as_deref(), Some("did you mean `device`?"));
    for by in [".device", ".site.name", ".any.thing", "header.x", "key"] {
        let found = warnings(&format!("group: {{ by: {by}, {close} }}\n{deliver}"));
        assert!(found.is_empty(), "{by}: {found:?}");
    }
    assert_eq!(warnings(&format!("order_by: .site.nam\n{deliver}")).len(), 1);
    assert_eq!(warnings("deliver: [ { topic: b, key: .devise } ]\n").len(), 1);
    // A stage may have made it.
    let staged = "process: [ { stage: s, vrl: \".devise = 1\" } ]\n";
    assert!(warnings(&format!("{staged}deliver: [ {{ topic: b, key: .devise }} ]\n")).is_empty());
}

/// Where a program fails is told by the place in the file.
#[test]
fn places_in_a_program_are_places_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.yaml");
    let text = "name: a\nsource: { topic: a }\nprocess:\n  - stage: one\n    vrl: .n = 1\n  - stage: two\n    vrl: |\n      .a = 1\n      .b = to_int!(.c)\ndeliver: [ { topic: b } ]\n";
    fs::write(&file, text).unwrap();
    let loaded =
        load_pipeline(&file, &Env::default(), &registry()).unwrap_or_else(|all| panic!("{all}"));
    let name = file.display();
    let program = loaded.process[1].vrl().unwrap().source();
    let at = program.find("to_int").unwrap();
    assert_eq!(loaded.program_places(1).unwrap()(at), format!("{name}:9:12"));
    assert_eq!(loaded.program_places(0).unwrap()(5), format!("{name}:5:15"));
    assert!(loaded.program_places(2).is_none());
}

/// `# expect: P0120 3:1 words that the message or the hint must contain`
struct Expected {
    code: String,
    place: String,
    words: String,
}

impl Expected {
    fn is(&self, problem: &Problem, text: &str) -> bool {
        let hint = problem.hint.as_deref().unwrap_or_default();
        let line = text.lines().nth(problem.line - 1).unwrap_or_default();
        self.code == problem.code
            && self.place == format!("{}:{}", problem.line, problem.column)
            && format!("{} {hint}", problem.what).contains(&self.words)
            && (problem.text == line.replace('\t', " ").replace(char::is_control, "\u{fffd}")
                || problem.text.contains("***"))
    }
}

fn expected(text: &str) -> Vec<Expected> {
    let lines = text.lines().take_while(|line| line.starts_with('#'));
    let lines = lines.filter_map(|line| line.strip_prefix("# expect: "));
    lines
        .map(|line| {
            let mut parts = line.splitn(3, ' ').map(str::to_owned);
            let mut part = || parts.next().expect("code, line:column, words");
            Expected { code: part(), place: part(), words: part() }
        })
        .collect()
}

#[test]
fn every_case_has_exactly_the_problems_it_expects() {
    let files = yaml_files(&here("tests/cases"));
    assert!(files.len() >= 40, "only {} cases", files.len());
    let (mut codes, mut failures) = (BTreeSet::new(), Vec::new());
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).unwrap();
        let problems = match name.starts_with("connections-") {
            true => load_connections(Some(&file), &Flags::default(), &env(), &registry()).err(),
            false => load_pipeline(&file, &env(), &registry()).err(),
        };
        let problems = problems.map(|problems| problems.0).unwrap_or_default();
        let expected = expected(&text);
        let good = expected.len() == problems.len()
            && !expected.is_empty()
            && problems
                .iter()
                .zip(&expected)
                .all(|(problem, expected)| expected.is(problem, &text));
        if !good {
            let found: Vec<_> = problems.iter().map(Problem::to_string).collect();
            failures.push(format!("{name}:\n{}\n", found.join("\n")));
        }
        codes.extend(problems.iter().map(|problem| problem.code));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // Those that no pipeline file in a folder can show have tests of their own.
    let elsewhere = ["P0101", "P0102", "P0104", "P0105", "P0106", "P0131", "P0152", "P0153"];
    for code in potok_config::explain_codes().filter(|code| code.starts_with("P01")) {
        assert!(codes.contains(code) || elsewhere.contains(&code), "no case for {code}");
    }
}

#[test]
fn a_problem_looks_like_this() {
    let file = here("tests/cases/unknown-key-near.yaml");
    let problems = load_pipeline(&file, &Env::default(), &registry()).unwrap_err();
    let shown = problems.to_string().replace(&file.display().to_string(), "FILE");
    let expected = "error[P0120]: unknown key `worker`\n --> FILE:5:1\n  |\n5 | worker: 4\n  | ^^^^^^\n  hint: did you mean `workers`?";
    assert_eq!(shown, expected);
    let json = serde_json::to_value(&problems).unwrap();
    assert_eq!(json[0]["code"], "P0120");
    assert_eq!(json[0]["line"], 5);
    assert_eq!(json[0]["text"], "worker: 4");
    assert_eq!(json[0]["hint"], "did you mean `workers`?");
}
