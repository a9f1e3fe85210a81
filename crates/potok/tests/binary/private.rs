//! Whole records lie in the data folder: nobody else may look into it, whatever the umask was.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::load::Sender;
use crate::process::{Home, Running, SMALL_SEGMENTS, pipelines};

/// Everything in the folder, the folder first, with the modes.
fn modes(folder: &Path) -> Vec<(PathBuf, u32)> {
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    let mut all = vec![(folder.to_owned(), mode(folder))];
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(modes(&path));
        } else {
            all.push((path.clone(), mode(&path)));
        }
    }
    all
}

#[track_caller]
fn assert_private(folder: &Path) {
    for (path, mode) in modes(folder) {
        let wanted = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode, wanted, "{} has {mode:o}", path.display());
    }
}

/// Starts `orders` with another umask than that of the tests.
fn start_with_umask(home: &Home, data: &Path, umask: &str, more: &[(&str, &str)]) -> Running {
    let mut command = Command::new("sh");
    let line = format!("umask {umask}; exec \"$@\"");
    command.args(["-c", &line, "sh", env!("CARGO_BIN_EXE_potok"), "run"]);
    command.arg(pipelines().join("orders.yaml")).args(["--admin", "127.0.0.1:0"]);
    command.arg("--data-dir").arg(data).current_dir(home.path());
    command.envs([SMALL_SEGMENTS]).envs(more.iter().copied());
    command.process_group(0);
    let running = Running::spawn(command, home.path().join("stderr.log"));
    running.listening(data).and_then(Running::ready).expect("starts")
}

#[test]
fn what_potok_makes_is_its_owners_alone() {
    for umask in ["000", "022", "077"] {
        let home = Home::new();
        let data = home.path().canonicalize().unwrap().join("deep/down/made");
        let elsewhere = format!("sqlite:{}", home.path().join("else/where.sqlite").display());
        let running = start_with_umask(&home, &data, umask, &[("POTOK_DB_ORDERS", &elsewhere)]);
        let mut sender = Sender::new(95);
        assert!(sender.send(&running, 500));
        running.drained();
        assert_private(&data);
        assert!(data.join("admin.json").is_file() && data.join("notes").is_dir());
        assert_private(&home.path().join("else"));
        for beside in ["where.sqlite", "where.sqlite-wal", "where.sqlite-shm"] {
            assert!(home.path().join("else").join(beside).is_file(), "{beside}");
        }
        running.kill();
    }
}

#[test]
fn a_folder_that_others_could_read_is_tightened_and_never_loosened() {
    let home = Home::new();
    let running = home.start_with(&[SMALL_SEGMENTS]).expect("starts");
    assert!(Sender::new(96).send(&running, 300));
    running.drained();
    running.kill();
    for (path, _) in modes(&home.data()) {
        let open = if path.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(&path, Permissions::from_mode(open)).unwrap();
    }
    let outside = home.path().join("outside");
    fs::write(&outside, "not potok's").unwrap();
    fs::set_permissions(&outside, Permissions::from_mode(0o644)).unwrap();
    std::os::unix::fs::symlink(&outside, home.data().join("link")).unwrap();
    let kept = home.data().join("kept");
    fs::write(&kept, "as it is").unwrap();
    fs::set_permissions(&kept, Permissions::from_mode(0o400)).unwrap();

    let running = home.start_with(&[SMALL_SEGMENTS]).expect("starts again");
    assert!(Sender::new(97).send(&running, 300));
    fs::remove_file(home.data().join("link")).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&kept), 0o400, "never loosened");
    assert_eq!(mode(&outside), 0o644, "a link leads out of the folder");
    fs::remove_file(&kept).unwrap();
    assert_private(&home.data());
}
