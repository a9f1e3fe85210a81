//! The tests that start no process: everything but the binary's and those that use services.
//!
//! Which ones use services is seen in their sources, so that nobody has to keep a list: a file of
//! `tests/` that names them, and every file that names such a file. Where this overlooks one, the
//! fast tests start a service and are slower, not wrong. A suite that runs on several databases has a
//! module `sqlite` for the one that is only a file; that part of it is run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::cargo;

/// Whole crates that are about processes.
const SLOW: [&str; 2] = ["potok", "potok-services"];

/// What the names of tests on files have in them.
const ON_FILES: &str = "sqlite";

pub fn run() -> Result<()> {
    let mut workspace = vec!["--workspace"];
    for name in SLOW {
        workspace.extend(["--exclude", name]);
    }
    cargo::run("test", &[&workspace[..], &["--doc"]].concat())?;
    let (mixed, whole): (Vec<_>, Vec<_>) =
        targets(Path::new("crates"))?.into_iter().partition(|target| !target.left_out.is_empty());
    let mut arguments = workspace.clone();
    arguments.extend(["--lib", "--bins"]);
    arguments.extend(whole.iter().flat_map(|target| ["--test", &target.name]));
    cargo::run("test", &arguments)?;
    for target in &mixed {
        let mut arguments = workspace.clone();
        arguments.extend(["--test", &target.name, "--"]);
        match target.on_files {
            true => arguments.push(ON_FILES),
            false => arguments.extend(target.left_out.iter().flat_map(|module| ["--skip", module])),
        }
        cargo::run("test", &arguments)?;
    }
    Ok(())
}

/// A test program, and the beginnings of the names of tests in it that use services.
#[derive(Debug)]
struct Target {
    name: String,
    left_out: Vec<String>,
    /// Every test of it is there for several databases.
    on_files: bool,
}

/// The test programs of the crates that are not about processes, as far as they need no service.
fn targets(crates: &Path) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    for entry in fs::read_dir(crates)?.flatten() {
        let folder = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if SLOW.contains(&name.as_str()) || SLOW.contains(&format!("potok-{name}").as_str()) {
            continue;
        }
        let Ok(tests) = fs::read_dir(folder.join("tests")) else { continue };
        for test in tests.flatten().map(|test| test.path()) {
            targets.extend(target(&test)?);
        }
    }
    targets.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(targets)
}

/// `tests/name.rs` with modules in `tests/name/`, or all of it in `tests/name/`.
fn target(path: &Path) -> Result<Option<Target>> {
    let modules = path.with_extension("");
    let root = if path.is_dir() { path.join("main.rs") } else { path.to_owned() };
    let is_rust = root.is_file() && root.extension().is_some_and(|ext| ext == "rs");
    let name = path.file_stem().and_then(|stem| stem.to_str());
    let (true, Some(name)) = (is_rust, name) else { return Ok(None) };
    let (mut left_out, mut left) = (vec!["services".to_owned()], Vec::new());
    for (module, text) in texts(&modules)? {
        left.push((module, text));
    }
    // Whoever names one that is left out is left out too.
    let names = |text: &str, module: &String| text.contains(&format!("{module}::"));
    while let Some(found) =
        left.iter().position(|(_, text)| left_out.iter().any(|module| names(text, module)))
    {
        left_out.push(left.swap_remove(found).0);
    }
    let root = fs::read_to_string(&root)?;
    let needed = left_out.iter().any(|module| names(&root, module));
    let tests = root.contains("test]") || left.iter().any(|(_, text)| text.contains("test"));
    let on_files = root.contains(&format!("mod {ON_FILES} {{"));
    let left_out = left_out.into_iter().skip(1).map(|module| format!("{module}::")).collect();
    let runs = on_files || !needed && tests;
    Ok(runs.then(|| Target { name: name.to_owned(), left_out, on_files }))
}

/// The modules in a folder, each with its text and that of the modules below it.
fn texts(folder: &Path) -> Result<Vec<(String, String)>> {
    let mut texts: Vec<(String, String)> = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return Ok(texts) };
    let is_module = |path: &PathBuf| {
        path.is_dir()
            || path.extension().is_some_and(|ext| ext == "rs") && !path.ends_with("main.rs")
    };
    for path in entries.flatten().map(|entry| entry.path()).filter(is_module) {
        let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        let text = if path.is_dir() { texts_below(&path)? } else { fs::read_to_string(&path)? };
        match texts.iter_mut().find(|(found, _)| found == name) {
            Some((_, all)) => all.push_str(&text),
            None => texts.push((name.to_owned(), text)),
        }
    }
    Ok(texts)
}

fn texts_below(folder: &Path) -> Result<String> {
    Ok(texts(folder)?.into_iter().map(|(_, text)| text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_use_services_are_left_out() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let targets = targets(&crates).unwrap();
        let find = |name: &str| targets.iter().find(|target| target.name == name);
        assert!(find("sim").unwrap().left_out.is_empty(), "{targets:?}");
        assert!(find("conformance").unwrap().left_out.contains(&"postgres::".to_owned()));
        assert!(!find("conformance").unwrap().left_out.contains(&"memory::".to_owned()));
        for needs_services in ["services", "binary", "kafka"] {
            assert!(find(needs_services).is_none(), "{targets:?}");
        }
        for on_files in ["sql", "outbox"] {
            assert!(find(on_files).unwrap().on_files, "{targets:?}");
        }
    }
}
