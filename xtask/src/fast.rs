//! The tests that start no process: everything but the binary's and those that use services.
//!
//! Which ones use services is seen in their sources, so that nobody has to keep a list. A test that
//! could run without them belongs into another file of `tests/`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::cargo;

/// Whole crates that are about processes.
const SLOW: [&str; 2] = ["potok", "potok-services"];

pub fn run() -> Result<()> {
    let mut arguments = vec!["--workspace"];
    for name in SLOW {
        arguments.extend(["--exclude", name]);
    }
    cargo::run("test", &[&arguments[..], &["--doc"]].concat())?;
    let targets = targets(Path::new("crates"))?;
    arguments.extend(["--lib", "--bins"]);
    arguments.extend(targets.iter().flat_map(|target| ["--test", target]));
    cargo::run("test", &arguments)
}

/// The test targets of the other crates that name no service.
fn targets(crates: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(crates)?.flatten() {
        let folder = entry.path();
        let slow = SLOW.iter().any(|name| {
            folder.file_name().is_some_and(|found| *name == found || *name == package(found))
        });
        let Ok(tests) = fs::read_dir(folder.join("tests")) else { continue };
        for test in tests.flatten().filter(|_| !slow) {
            let path = test.path();
            let is_target =
                path.extension().is_some_and(|ext| ext == "rs") || path.join("main.rs").is_file();
            let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
            // A target `name.rs` may keep its modules in a folder `name`.
            if is_target && !uses_services(&path)? && !uses_services(&path.with_extension(""))? {
                names.push(name.to_owned());
            }
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

fn package(folder: &std::ffi::OsStr) -> String {
    format!("potok-{}", folder.to_string_lossy())
}

fn uses_services(path: &PathBuf) -> Result<bool> {
    if path.is_dir() {
        let mut inside = fs::read_dir(path)?.flatten().map(|entry| entry.path());
        return inside.try_fold(false, |found, path| Ok(found || uses_services(&path)?));
    }
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    Ok(["potok_services", "services::"].iter().any(|word| text.contains(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_use_services_are_left_out() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let names = targets(&crates).unwrap();
        assert!(names.iter().any(|name| name == "sim"), "{names:?}");
        assert!(!names.iter().any(|name| name == "services" || name == "binary"), "{names:?}");
    }
}
