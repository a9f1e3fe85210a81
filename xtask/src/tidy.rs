//! Rules no compiler checks. All problems are reported at once, each with its file.
//!
//! Looks at the files as they lie in the working folder and knows nothing of version control, so
//! that it works in an unpacked archive too.

mod names;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Past this length, look for the second idea inside.
const LINES_MAX: usize = 750;
/// Larger files do not belong into a repository.
const BYTES_MAX: u64 = 512 * 1024;
/// A file named like this says nothing about its duty.
const EMPTY_NAMES: [&str; 5] = ["util", "utils", "common", "helpers", "manager"];
/// The only file of the tests that may sleep: it polls a condition until a deadline.
const WAITING: &str = "wait.rs";

/// Checks everything; fails with the list of what is wrong.
pub fn run() -> Result<()> {
    let files = Files::gather()?;
    let mut problems = Vec::new();
    documents(&files, &mut problems);
    paths_named_in_documents(&files, &mut problems);
    sources(&files, &mut problems);
    error_pages(&files, &mut problems);
    words(&files, &mut problems);
    retired_words(&files, &mut problems);
    unused_dependencies(&files, &mut problems);
    names::types(&files, &mut problems);
    names::doc_comments(&files, &mut problems);
    if problems.is_empty() {
        eprintln!("xtask: tidy, {} files", files.all.len());
        return Ok(());
    }
    for problem in &problems {
        eprintln!("{problem}");
    }
    bail!("{} things to tidy", problems.len());
}

/// The files of the project: path, and text where it is text.
struct Files {
    all: Vec<(PathBuf, u64, Option<String>)>,
}

impl Files {
    fn gather() -> Result<Self> {
        let mut all = Vec::new();
        let mut folders = vec![PathBuf::from(".")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                let path = folder.join(entry.file_name());
                let path = path.strip_prefix(".").unwrap_or(&path).to_path_buf();
                let name = entry.file_name();
                if name == "target" || name == ".git" || name == "potok-data" {
                    continue;
                }
                if entry.file_type()?.is_dir() {
                    folders.push(path);
                } else {
                    let bytes = fs::read(&path)?;
                    all.push((path, bytes.len() as u64, String::from_utf8(bytes).ok()));
                }
            }
        }
        all.sort();
        Ok(Files { all })
    }

    fn text(&self, path: &str) -> Option<&str> {
        let (_, _, text) = self.all.iter().find(|(found, ..)| found == Path::new(path))?;
        text.as_deref()
    }

    fn texts(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.all.iter().filter_map(|(path, _, text)| Some((path.as_path(), text.as_deref()?)))
    }

    fn rust(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.texts().filter(|(path, _)| path.extension().is_some_and(|ext| ext == "rs"))
    }
}

fn documents(files: &Files, problems: &mut Vec<String>) {
    for needed in [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        ".ci/run",
    ] {
        if files.text(needed).is_none() {
            problems.push(format!("{needed}: missing"));
        }
    }
    for command in ["cargo run --release -- dev", "cargo xtask test"] {
        if !files.text("README.md").is_some_and(|readme| readme.contains(command)) {
            problems.push(format!("README.md: does not name its command `{command}`"));
        }
    }
    let Some(map) = files.text("ARCHITECTURE.md") else { return };
    let Ok(crates) = fs::read_dir("crates") else { return };
    for entry in crates.flatten() {
        let name = format!("crates/{}", entry.file_name().to_string_lossy());
        if !map.contains(&format!("`{name}")) {
            problems.push(format!("ARCHITECTURE.md: does not say what `{name}` is for"));
        }
    }
}

/// Everything in backticks that looks like a path of this repository must be one.
fn paths_named_in_documents(files: &Files, problems: &mut Vec<String>) {
    let documents = files.texts().filter(|(path, _)| {
        path.extension().is_some_and(|ext| ext == "md") && *path != Path::new("CHANGELOG.md")
    });
    for (document, text) in documents {
        for (number, line) in text.lines().enumerate() {
            for name in line.split('`').skip(1).step_by(2).filter(|name| is_path(name)) {
                let folder = document.parent().unwrap_or(Path::new(""));
                let places =
                    [PathBuf::from(name), Path::new("crates").join(name), folder.join(name)];
                if !places.iter().any(|place| place.exists()) {
                    let (document, number) = (document.display(), number + 1);
                    problems.push(format!("{document}:{number}: `{name}` does not exist"));
                }
            }
        }
    }
}

/// A relative path with a folder in it, that ends like a file of ours or starts like a folder of
/// ours. Patterns, placeholders and URLs are not paths.
fn is_path(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let ours = ["crates/", "bench/", "xtask/", "docs/", "pipelines/", ".ci/"];
    let endings = [".rs", ".md", ".toml", ".c"];
    name.contains('/')
        && !name.starts_with('/')
        && name.chars().all(plain)
        && (ours.iter().any(|folder| name.starts_with(folder))
            || endings.iter().any(|ending| name.ends_with(ending)))
}

fn sources(files: &Files, problems: &mut Vec<String>) {
    for (path, bytes, _) in &files.all {
        if *bytes > BYTES_MAX && path != Path::new("Cargo.lock") {
            problems.push(format!("{}: {} KiB", path.display(), bytes / 1024));
        }
    }
    for (path, text) in files.rust() {
        let shown = path.display();
        if !text.starts_with("//!") {
            problems.push(format!("{shown}: does not open with `//!` and what it is for"));
        }
        let lines = text.lines().count();
        if lines > LINES_MAX {
            problems.push(format!("{shown}: {lines} lines; look for the second idea inside"));
        }
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let folder = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        if EMPTY_NAMES.iter().any(|name| *name == stem || Some(*name) == folder) {
            problems.push(format!("{shown}: a name that says nothing about its duty"));
        }
        let test = path.components().any(|part| part.as_os_str() == "tests");
        if test && !path.ends_with(WAITING) {
            for (number, _) in lines_with(text, &[concat!("thread::", "sleep(")]) {
                problems.push(format!("{shown}:{number}: sleeps; wait for a condition instead"));
            }
        }
    }
}

/// Every code in the sources has a page that its index names, and every page has its code.
fn error_pages(files: &Files, problems: &mut Vec<String>) {
    let pages = Path::new("docs/errors");
    let index = files.text("docs/reference/errors.md").unwrap_or_default();
    let mut used = Vec::new();
    for (path, text) in files.rust().filter(|(path, _)| is_product(path)) {
        for code in codes(text) {
            if !pages.join(format!("{code}.md")).is_file() {
                problems.push(format!("{}: {code} has no page in docs/errors", path.display()));
            } else if !index.contains(&code) {
                problems.push(format!("docs/reference/errors.md: does not list {code}"));
            }
            used.push(code);
        }
    }
    for (path, _) in files.texts().filter(|(path, _)| path.starts_with(pages)) {
        let code = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if code != "README" && !used.iter().any(|used| used == code) {
            problems.push(format!("{}: nothing uses this code", path.display()));
        }
    }
}

/// String literals that are exactly a code: `P` and four digits.
fn codes(text: &str) -> Vec<String> {
    let is_code = |word: &&str| {
        word.len() == 5 && word.starts_with('P') && word[1..].chars().all(|c| c.is_ascii_digit())
    };
    text.split('"').filter(is_code).map(str::to_owned).collect()
}

/// Words that do not belong into a finished project. Written in halves, so that this file passes.
fn words(files: &Files, problems: &mut Vec<String>) {
    let forbidden = [
        (concat!("/wo", "rk/"), "a path of one machine"),
        (concat!("/ro", "ot/"), "a path of one machine"),
        (concat!("/ho", "me/"), "a path of one machine"),
        (concat!("/t", "mp/"), "a path of one machine; use a scratch folder"),
        (concat!("TO", "DO"), "an unfinished mark"),
        (concat!("FIX", "ME"), "an unfinished mark"),
        (concat!("todo", "!("), "an unfinished mark"),
        (concat!("unimplemented", "!("), "an unfinished mark"),
        (concat!("#[ign", "ore"), "a test switched off"),
        (concat!("dbg", "!("), "left over from debugging"),
    ];
    for (path, text) in files.texts().filter(|(path, _)| *path != Path::new("Cargo.lock")) {
        for (word, why) in forbidden {
            for (number, _) in lines_with(text, &[word]) {
                problems.push(format!("{}:{number}: `{word}` is {why}", path.display()));
            }
        }
    }
}

/// Words of the glossary that had another name once. Written in halves, so that this file passes.
fn retired_words(files: &Files, problems: &mut Vec<String>) {
    let retired = [
        (concat!("supp", "ress"), "duplicate"),
        (concat!("SUPP", "RESS"), "DUPLICATES"),
        (concat!("needs", "_fix"), "blocked"),
        (concat!("potok ba", "tches"), "potok groups"),
        (concat!("per: ba", "tch"), "per: group"),
        (concat!("groups fo", "rget"), "consumer-groups delete"),
        (concat!("ended", "_above"), "acknowledged_ahead"),
        (concat!("in_flight", "_max"), "in_flight_bytes"),
        (concat!("held_in", "_memory"), "held_memory_bytes"),
        (concat!("layout: co", "mpact"), "keys: packed"),
        (concat!("layout: doc", "umented"), "keys: readable"),
        (concat!("Hold", "Plan"), "GroupPlan"),
        (concat!("Batch", "View"), "GroupView"),
    ];
    // What was decided or changed once is told in the words of its time.
    let history =
        |path: &Path| path.starts_with("docs/decisions") || path.ends_with("CHANGELOG.md");
    for (path, text) in files.texts().filter(|(path, _)| !history(path)) {
        for (word, instead) in retired {
            for (number, _) in lines_with(text, &[word]) {
                let shown = path.display();
                problems.push(format!("{shown}:{number}: `{word}` is retired; say `{instead}`"));
            }
        }
    }
}

/// A dependency is named somewhere in the code of its crate, and one of the workspace by a crate.
fn unused_dependencies(files: &Files, problems: &mut Vec<String>) {
    let manifests = files.texts().filter(|(path, _)| path.ends_with("Cargo.toml"));
    let (roots, crates): (Vec<_>, Vec<_>) = manifests.partition(|(_, text)| is_workspace(text));
    let mut wanted = Vec::new();
    for (path, text) in crates {
        let folder = path.parent().unwrap_or(Path::new(""));
        let sources = files.rust().filter(|(path, _)| path.starts_with(folder));
        let unused = unused(text, sources.map(|(_, source)| source));
        let unused = unused.iter().map(|name| format!("{}: nothing uses `{name}`", path.display()));
        problems.extend(unused);
        wanted.extend(dependencies(text));
    }
    for (path, text) in roots {
        for name in dependencies(text).into_iter().filter(|name| !wanted.contains(name)) {
            problems.push(format!("{}: no crate uses `{name}`", path.display()));
        }
    }
}

/// The dependencies of a manifest that no code names; comments do not count.
fn unused<'a>(manifest: &'a str, sources: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let words: BTreeSet<String> = sources.flat_map(names::words).map(|(_, word)| word).collect();
    let mut names = dependencies(manifest);
    names.retain(|name| !words.contains(&name.replace('-', "_")));
    names
}

fn is_workspace(manifest: &str) -> bool {
    manifest.lines().any(|line| line == "[workspace]")
}

/// The names in the tables of dependencies of a manifest.
fn dependencies(manifest: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut inside = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.ends_with("dependencies]");
        } else if inside && line.starts_with(|c: char| c.is_ascii_lowercase()) {
            names.extend(line.split(['.', ' ', '=']).next());
        }
    }
    names
}

/// Lines that contain one of `words`, numbered from 1.
fn lines_with<'a>(text: &'a str, words: &[&str]) -> Vec<(usize, &'a str)> {
    let numbered = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    numbered.filter(|(_, line)| words.iter().any(|word| line.contains(word))).collect()
}

/// Sources of the crates, without their tests, which also name codes that must not exist.
fn is_product(path: &Path) -> bool {
    path.starts_with("crates") && path.components().all(|part| part.as_os_str() != "tests")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_from_other_words() {
        for path in ["crates/flow", "flow/src/lib.rs", "docs/guides/", "pipelines/orders.yaml"] {
            assert!(is_path(path), "{path}");
        }
        for other in ["/live", "https://a/b.md", "crates/<name>/src", "a.rs", "text/plain", "*.rs"]
        {
            assert!(!is_path(other), "{other}");
        }
    }

    #[test]
    fn codes_are_whole_literals() {
        assert_eq!(codes(r#"fault.code("P0142").hint("see P0143") "P01420""#), ["P0142"]);
    }

    #[test]
    fn dependencies_are_read_from_their_tables() {
        let manifest = "[package]\nname = \"a\"\n[dependencies]\nserde.workspace = true\n\
                        # why\nserde-json = \"1\"\n[features]\nx = []\n[dev-dependencies]\ntempfile = \"3\"\n";
        assert_eq!(dependencies(manifest), ["serde", "serde-json", "tempfile"]);
    }

    #[test]
    fn a_dependency_that_a_comment_names_is_not_used() {
        let manifest = "[dependencies]\nserde-json = \"1\"\ntokio = \"1\"\n";
        let sources = ["//! Timers are `tokio::time`.\nfn a() { serde_json::json!({}); }"];
        assert_eq!(unused(manifest, sources.into_iter()), ["tokio"]);
    }

    #[test]
    fn lines_are_numbered_from_one() {
        assert_eq!(lines_with("a\nb\nab", &["b"]), [(2, "b"), (3, "ab")]);
    }
}
