//! Hostile pipeline and connection files: each is taken, or refused with problems that say where.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use potok_config::{Env, Flags, Problems, load_connections, load_pipeline};
use potok_connectors::registry;
use potok_fuzz::Corpus;

#[test]
fn any_file_is_read_or_refused_with_places() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.yaml");
    let env = Env::of([("HOME_TOPIC", "orders"), ("SECRET", "s3cret")]);
    let corpus = Corpus::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/yaml"));
    let designed = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/design")).unwrap();
    let mut designed: Vec<_> = designed.map(|entry| entry.unwrap().path()).collect();
    designed.sort();
    let designed = designed.iter().filter(|path| path.is_file());
    corpus.with(designed.map(|path| fs::read(path).unwrap())).fuzz(1_500, |input| {
        fs::write(&path, input).unwrap();
        if let Err(problems) = load_pipeline(&path, &env, &registry()) {
            check(&problems, &path, input);
        }
        if let Err(problems) = load_connections(Some(&path), &Flags::default(), &env, &registry()) {
            check(&problems, &path, input);
        }
    });
}

/// There is a problem, and each says what it is and where in the file.
fn check(problems: &Problems, path: &Path, input: &[u8]) {
    assert!(!problems.0.is_empty());
    // Both end a line.
    let lines = input.split(|byte| matches!(byte, b'\n' | b'\r')).count();
    for problem in &problems.0 {
        assert!(problem.code.starts_with('P') && !problem.what.is_empty(), "{problem:?}");
        // What cannot be read at all has no places, and neither has what another file lacks.
        if problem.file == path.display().to_string() && problem.code != "P0101" {
            assert!((1..=lines).contains(&problem.line), "{lines} lines: {problem:?}");
            assert!(problem.column >= 1, "{problem:?}");
        }
        // Showing it must work too, whatever is in the line.
        let shown = problems.to_string();
        assert!(shown.contains(problem.code), "{shown}");
    }
}
