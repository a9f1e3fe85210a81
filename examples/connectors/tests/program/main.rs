//! The example as its user meets it: the program, YAML files, and what comes out.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod wait;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use wait::wait_for;

fn potok(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_own-connectors"));
    command.args(arguments).current_dir(folder).env_remove("POTOK_DATA_DIR").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const PIPELINE: &str =
    "name: files\nsource: { spool: inbox }\ndeliver: [ { lines: out.ndjson } ]\n";

#[test]
fn its_keys_are_checked_with_line_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("files.yaml");
    for (wrong, right, code, place, words) in [
        ("prefx: x", "prefix", "P0120", (3, 33), "unknown key `prefx`"),
        ("prefix: [x]", "", "P0121", (3, 41), "`prefix` must be text"),
        ("prefix: \"a\\nb\"", "", "P0152", (3, 33), "`prefix` has a line break"),
        ("every: 1s", "", "P0120", (3, 33), "unknown key `every`"),
    ] {
        let good = "lines: out.ndjson";
        fs::write(&file, PIPELINE.replace(good, &format!("{good}, {wrong}"))).unwrap();
        let ran = potok(folder.path(), &["check", "files.yaml", "--json"]);
        assert_eq!(ran.status.code(), Some(2), "{}", text(&ran.stderr));
        let problem: Value =
            serde_json::from_str(text(&ran.stdout).lines().next().unwrap()).unwrap();
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(
            (problem["line"].as_u64(), problem["column"].as_u64()),
            (Some(place.0), Some(place.1))
        );
        assert!(problem["what"].as_str().unwrap().contains(words), "{problem}");
        assert!(problem["hint"].to_string().contains(right), "{problem}");
    }
    fs::write(&file, PIPELINE.replace("spool: inbox", "spool: inbox, every: 5")).unwrap();
    let ran = potok(folder.path(), &["check", "files.yaml"]);
    let shown = text(&ran.stderr);
    assert!(shown.contains("files.yaml:2:32") && shown.contains("write `5s`"), "{shown}");
}

#[test]
fn its_keys_are_in_the_reference_and_in_the_schema() {
    let folder = tempfile::tempdir().unwrap();
    let reference = text(&potok(folder.path(), &["reference"]).stdout);
    for words in
        ["`deliver` with `lines`", "`source` with `spool`", "How often the folder is looked at"]
    {
        assert!(reference.contains(words), "{words}");
    }
    let schema: Value = serde_json::from_slice(&potok(folder.path(), &["schema"]).stdout).unwrap();
    assert!(schema.to_string().contains("\"prefix\""));
}

/// A program that runs; killed when it is dropped.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(folder: &Path) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_own-connectors"));
    command.args(["run", "files.yaml", "--admin", "127.0.0.1:0"]).current_dir(folder);
    let quiet = command.env_remove("POTOK_DATA_DIR").stdout(Stdio::null()).stderr(Stdio::null());
    Running(quiet.spawn().unwrap())
}

#[test]
fn its_feed_hands_out_files_and_removes_them_when_they_are_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let pipeline = PIPELINE.replace("spool: inbox", "spool: inbox, every: 20ms");
    fs::write(at("files.yaml"), pipeline).unwrap();
    fs::create_dir(at("inbox")).unwrap();
    let put = |name: &str, value: &str| {
        fs::write(at("new"), value).unwrap();
        fs::rename(at("new"), at("inbox").join(name)).unwrap();
    };
    let is_empty = || fs::read_dir(at("inbox")).unwrap().next().is_none();
    let lines = || fs::read_to_string(at("out.ndjson")).unwrap_or_default();
    put("a.json", "{\"n\":1}");
    put("b.json", "not JSON");
    {
        let _running = run(folder.path());
        wait_for("the end of both", is_empty);
        assert_eq!(lines(), "{\"n\":1}\n");
        put("c.json", "{\"n\":2}");
        wait_for("the end of the third", is_empty);
    }
    put("d.json", "{\"n\":3}");
    let _again = run(folder.path());
    wait_for("the end of the fourth", is_empty);
    let delivered: BTreeSet<String> = lines().lines().map(str::to_owned).collect();
    let wanted: BTreeSet<String> = (1..=3).map(|n| format!("{{\"n\":{n}}}")).collect();
    assert_eq!(delivered, wanted);
}

#[test]
fn the_guide_shows_these_files() {
    let guide = include_str!("../../../../docs/guides/own-connectors.md");
    for file in [include_str!("../../src/main.rs"), include_str!("../../src/lines.rs")] {
        assert!(guide.contains(file), "docs/guides/own-connectors.md shows another program");
    }
}
