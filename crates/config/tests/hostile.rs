//! Files made to hurt: each refused with a problem, none read whole or run into the ground.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::path::Path;

use potok_config::{Env, Flags, load_connections, load_pipeline};
use potok_connectors::registry;

/// The code of the first problem, the same for both kinds of files.
fn refused(path: &Path) -> &'static str {
    let pipeline = load_pipeline(path, &Env::default(), &registry()).unwrap_err();
    let connections =
        load_connections(Some(path), &Flags::default(), &Env::default(), &registry()).unwrap_err();
    assert_eq!(pipeline.0[0].code, connections.0[0].code);
    pipeline.0[0].code
}

#[test]
fn hostile_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let bomb = |levels: usize| {
        let below = |level: usize| {
            format!("a{level}: &a{level} [{}]\n", format!("*a{}, ", level - 1).repeat(9))
        };
        "a0: &a0 [x, x]\n".to_owned() + &(1..levels).map(below).collect::<String>()
    };
    for (name, text, code) in [
        ("bomb", bomb(30).into_bytes(), "P0106"),
        ("merge bomb", bomb(30).replace("[", "{<<: [").replace("]", "]}").into_bytes(), "P0106"),
        ("deep flow", "[".repeat(100_000).into_bytes(), "P0104"),
        ("deep map", "{a: ".repeat(100_000).into_bytes(), "P0104"),
        ("deep block", "- ".repeat(100_000).into_bytes(), "P0104"),
        ("many", "- a\n".repeat(200_000).into_bytes(), "P0105"),
        ("duplicates", "a: 1\n".repeat(3_000).into_bytes(), "P0107"),
        ("not utf-8", b"name: \xff\n".to_vec(), "P0101"),
        ("zero bytes", vec![0; 1000], "P0103"),
        ("one long line", "x".repeat(1 << 20).into_bytes(), "P0121"),
        ("one long key", format!("{}: 1\n", "x".repeat(900)).into_bytes(), "P0120"),
        ("just too large", vec![b'#'; (1 << 20) + 1], "P0102"),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        assert_eq!(refused(&path), code, "{name}");
    }
}

/// Its length says enough: 100 MB, and as many TB as a file system will promise.
#[test]
fn a_huge_file_is_refused_unread() {
    let folder = tempfile::tempdir().unwrap();
    for length in [100 << 20, 1 << 40] {
        let path = folder.path().join(length.to_string());
        File::create(&path).unwrap().set_len(length).unwrap();
        assert_eq!(refused(&path), "P0102");
    }
}

/// A device has no length; reading stops all the same.
#[test]
#[cfg(unix)]
fn an_endless_file_is_refused() {
    assert_eq!(refused(Path::new("/dev/zero")), "P0102");
}

#[test]
fn folders_and_missing_files_are_told() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(refused(folder.path()), "P0101");
    assert_eq!(refused(&folder.path().join("missing")), "P0101");
}

/// The schema of records is a file as well.
#[test]
fn a_huge_or_deep_schema_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.yaml");
    fs::write(
        &path,
        "name: a\nsource: { topic: a }\ndecode: { schema: s.json }\ndeliver: [ { topic: b } ]\n",
    )
    .unwrap();
    let schema = folder.path().join("s.json");
    let code = || load_pipeline(&path, &Env::default(), &registry()).unwrap_err().0[0].code;
    File::create(&schema).unwrap().set_len(100 << 20).unwrap();
    assert_eq!(code(), "P0130");
    fs::write(&schema, "[".repeat(100_000)).unwrap();
    assert_eq!(code(), "P0130");
    fs::write(&schema, "[]").unwrap();
    assert_eq!(code(), "P0130");
}
