//! Nothing is left behind: not by drop, not at the end of a process, not when it is killed.

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use potok_services::{Kafka, Mariadb, Postgres, Redis};

use crate::processes::{alive, inside};
use crate::wait::until;

/// Says to this very program that it is to hold services, and how to end.
const HOLD: &str = "POTOK_TEST_HOLD";

#[test]
fn dropped_services_are_gone() {
    let (postgres, redis) = (Postgres::start(), Redis::start());
    let folders = [postgres.folder().to_owned(), redis.folder().to_owned()];
    let pids = [postgres.pid(), redis.pid()];
    assert!(pids.iter().all(|pid| alive(*pid)));
    drop((postgres, redis));
    assert!(!pids.iter().any(|pid| alive(*pid)));
    for folder in folders {
        assert_eq!(inside(&folder), Vec::<u32>::new());
        assert!(!folder.exists());
    }
}

#[test]
fn a_panic_stops_services() {
    let (told, folder) = std::sync::mpsc::channel();
    let failing = std::thread::spawn(move || {
        let redis = Redis::start();
        told.send((redis.folder().to_owned(), redis.pid())).unwrap();
        panic!("on purpose");
    });
    assert!(failing.join().is_err());
    let (folder, pid) = folder.recv().unwrap();
    assert!(!alive(pid));
    assert!(!folder.exists());
}

/// Shared services are never dropped, so the end of the process has to do.
#[test]
fn services_end_with_their_process() {
    const TEST: &str = "leftovers::services_end_with_their_process";
    if std::env::var_os(HOLD).is_some() {
        let (postgres, redis) = (potok_services::postgres(), potok_services::redis());
        show(&[(postgres.folder(), postgres.pid()), (redis.folder(), redis.pid())]);
        return;
    }
    let (mut holder, held) = hold(TEST);
    assert!(holder.process.wait().unwrap().success());
    gone(&held);
}

#[test]
fn services_end_with_their_killed_process() {
    const TEST: &str = "leftovers::services_end_with_their_killed_process";
    if std::env::var_os(HOLD).is_some() {
        let (kafka, postgres) = (Kafka::start(), Postgres::start());
        let (mariadb, redis) = (Mariadb::start(), Redis::start());
        // Frozen backends do not notice that their server is gone.
        postgres.freeze();
        show(&[
            (kafka.folder(), kafka.pid()),
            (postgres.folder(), postgres.pid()),
            (mariadb.folder(), mariadb.pid()),
            (redis.folder(), redis.pid()),
        ]);
        loop {
            std::thread::park();
        }
    }
    let (mut holder, held) = hold(TEST);
    assert_eq!(held.len(), 4);
    assert!(held.iter().all(|(folder, pid)| folder.exists() && alive(*pid)), "{held:?}");
    holder.process.kill().unwrap();
    holder.process.wait().unwrap();
    gone(&held);
}

fn show(held: &[(&Path, u32)]) {
    for (folder, pid) in held {
        println!("holding {pid} {}", folder.display());
    }
    println!("holding all");
}

struct Holder {
    process: Child,
    /// Kept open: it fails where it cannot print.
    _output: Lines<BufReader<ChildStdout>>,
}

/// Starts this program anew with one test only, which holds services.
fn hold(test: &str) -> (Holder, Vec<(PathBuf, u32)>) {
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(HOLD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut held = Vec::new();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    while let Some(line) = lines.next() {
        // The test's own name may stand in front.
        let line = line.unwrap();
        let Some((_, what)) = line.split_once("holding ") else { continue };
        if what == "all" {
            return (Holder { process: holder, _output: lines }, held);
        }
        let (pid, folder) = what.split_once(' ').unwrap();
        held.push((PathBuf::from(folder), pid.parse().unwrap()));
    }
    panic!("the holder ended: {:?}", holder.wait());
}

fn gone(held: &[(PathBuf, u32)]) {
    until("all processes are gone", || {
        let left = held.iter().any(|(folder, pid)| alive(*pid) || !inside(folder).is_empty());
        (!left).then_some(())
    });
    until("all folders are gone", || {
        (!held.iter().any(|(folder, _)| folder.exists())).then_some(())
    });
}
