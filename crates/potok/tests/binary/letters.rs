//! Dead letters by the thousand: read with little memory, counted, removed when they are done.

use std::fs;
use std::path::PathBuf;

use potok_core::trouble::LETTER_CRASH_POINTS;
use serde_json::Value;

use crate::process::{Home, Running};
use crate::wait;

/// Segments of a size that many fit into a test, and none is mostly checkpoint.
const SEGMENTS: (&str, &str) = ("POTOK_SEGMENT_BYTES", "1048576");
const LETTERS: usize = 30_000;
const LETTER_BYTES: usize = 2_000;

/// A pipeline that sets everything aside that is not JSON, with these settings for dead letters.
fn pipeline(home: &Home, dead_letter: &str) -> PathBuf {
    let file = home.path().join("words.yaml");
    let yaml = format!(
        "name: words\nsource: {{ topic: words }}\ndeliver:\n  - topic: out\ndead_letter: {{ {dead_letter} }}\n"
    );
    fs::write(&file, yaml).unwrap();
    file
}

fn start(home: &Home, dead_letter: &str) -> Running {
    home.start_file(&pipeline(home, dead_letter), &[SEGMENTS]).expect("starts")
}

fn send(running: &Running, lines: &[u8]) {
    running.run(["send", "words"], lines).good();
}

fn list(running: &Running, more: &[&str]) -> Vec<Value> {
    let args = ["dead-letters", "list", "words", "--json"].iter().chain(more);
    running.run(args, b"").good().lines()
}

fn list_of(running: &Running, id: &str) -> Vec<Value> {
    running.run(["dead-letters", "show", id, "--json"], b"").good().lines()
}

fn until_open(running: &Running, open: u64) -> Value {
    wait::until_seen(&format!("{open} dead letters are open"), || {
        let status = running.status();
        if status["dead_letters_open"] == open { Ok(status) } else { Err(status) }
    })
}

/// Bytes of a line `VmHWM: 123 kB`.
fn memory(running: &Running, line: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix(line)).unwrap();
    let kb: u64 = line.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap();
    kb << 10
}

/// How much more memory than at the beginning was ever needed for this.
fn grown_by(running: &Running, work: impl FnOnce()) -> u64 {
    fs::write(format!("/proc/{}/clear_refs", running.pid()), "5").unwrap();
    let before = memory(running, "VmRSS:");
    work();
    memory(running, "VmHWM:").saturating_sub(before)
}

/// Bytes of the log's files.
fn disk(home: &Home) -> u64 {
    let files = fs::read_dir(home.data().join("log")).unwrap();
    files.map(|file| file.unwrap().metadata().map_or(0, |file| file.len())).sum()
}

#[test]
fn many_are_read_with_little_memory_and_dropping_them_frees_the_disk() {
    let home = Home::new();
    home.settings("retention: { age: 1s }\n");
    let running = start(&home, "");
    let line = format!("not JSON: {}\n", "x".repeat(LETTER_BYTES));
    for _ in 0..10 {
        send(&running, line.repeat(LETTERS / 10).as_bytes());
    }
    let good = "{\"n\":1}\n";
    send(&running, good.as_bytes());
    running.drained();
    until_open(&running, LETTERS as u64);

    let all = (LETTERS * LETTER_BYTES) as u64;
    let mut id = String::new();
    let grown = grown_by(&running, || {
        let listed = running.run(["dead-letters", "list", "words"], b"").good();
        assert_eq!(listed.text().lines().count(), LETTERS + 1);
        id = listed.text().lines().nth(1).unwrap().split(' ').next().unwrap().to_owned();
        let shown = running.run(["dead-letters", "show", &id], b"").good();
        assert!(shown.text().contains("undecodable"), "{}", shown.text());
        let none = ["dead-letters", "list", "words", "--where", ".n == 1", "--json"];
        assert!(running.run(none, b"").good().lines().is_empty());
    });
    assert!(grown < all / 2, "{grown} bytes more for {all} bytes of dead letters");
    let grown = grown_by(&running, || {
        running.run(["dead-letters", "show", &id], b"").good();
    });
    assert!(grown < 8 << 20, "{grown} bytes more for one dead letter");

    // Page by page, each once.
    let (mut seen, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let mut args = vec!["--limit", "7000"];
        args.extend(cursor.iter().flat_map(|cursor| ["--cursor", cursor.as_str()]));
        let mut page = list(&running, &args);
        cursor = page
            .pop_if(|last| last.get("cursor").is_some())
            .map(|last| last["cursor"].as_str().unwrap().to_owned());
        seen.extend(page.into_iter().map(|letter| letter["id"].as_str().unwrap().to_owned()));
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), LETTERS);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), LETTERS);
    // Each by its name, whatever partition it lies in.
    for id in seen.iter().step_by(LETTERS / 8) {
        let shown = list_of(&running, id);
        assert_eq!(shown.len(), 1, "{id}");
        assert_eq!(shown[0]["id"], id.as_str());
    }
    let summary = list(&running, &["--summary"]);
    assert_eq!(
        (&summary[0]["reason"], &summary[0]["count"]),
        (&"undecodable".into(), &LETTERS.into())
    );

    let before = disk(&home);
    assert!(before > all, "{before}");
    let grown = grown_by(&running, || {
        running.run(["dead-letters", "drop", "words"], b"").good();
    });
    assert!(grown < all / 2, "{grown} bytes more for dropping {all} bytes");
    until_open(&running, 0);
    assert!(list(&running, &[]).is_empty());
    wait::until_seen("the disk space is freed", || {
        let now = disk(&home);
        if now < before / 4 { Ok(()) } else { Err(format!("{now} of {before}")) }
    });
    // And stays so.
    running.kill();
    let running = start(&home, "");
    until_open(&running, 0);
    assert!(list(&running, &["--all"]).is_empty());
}

#[test]
fn open_ones_are_counted_after_a_restart_and_while_stopped() {
    let home = Home::new();
    let running = start(&home, "");
    send(&running, "bad\n".repeat(62).as_bytes());
    running.drained();
    let status = until_open(&running, 62);
    assert_eq!(status["dead_lettered"], 62);
    assert!(status["since"].is_string(), "{status}");
    running.kill();

    let stopped = home.run(["status", "--json"]).good().lines().remove(0);
    assert_eq!(stopped["state"], "stopped");
    assert_eq!(stopped["dead_letters_open"], 62);
    for field in ["received", "delivered", "dead_lettered", "in_flight", "since"] {
        assert!(stopped[field].is_null(), "{field}: {stopped}");
    }
    let shown = home.run(["status"]).good();
    let row = shown.text().lines().nth(1).unwrap();
    assert!(row.contains("stopped") && row.contains(" - ") && row.contains("62"), "{row}");

    let running = start(&home, "");
    let status = until_open(&running, 62);
    assert_eq!(status["dead_lettered"], 0);
    let (_, metrics) = running.get("/metrics").unwrap();
    assert!(metrics.contains("potok_dead_letters_open{pipeline=\"words\"} 62"), "{metrics}");
}

#[test]
fn dropping_removes_them_without_a_process_too() {
    let home = Home::new();
    let running = start(&home, "");
    send(&running, "bad\n".repeat(20).as_bytes());
    running.drained();
    assert!(running.stop().success());
    // Forgotten, so that no later start of the pipeline would do it either.
    home.run(["consumer-groups", "delete", "words"]).good();
    assert_eq!(home.run(["dead-letters", "list", "--json"]).good().lines().len(), 20);
    home.run(["dead-letters", "drop", "words"]).good();
    assert!(home.run(["dead-letters", "list", "--all", "--json"]).good().lines().is_empty());
}

#[test]
fn they_are_told_in_the_log_a_few_times_however_many() {
    let home = Home::new();
    let running = start(&home, "");
    send(&running, "bad\n".repeat(500).as_bytes());
    running.drained();
    let told = || fs::read_to_string(home.path().join("stderr.log")).unwrap();
    wait::until("the others are told together", || {
        (told().matches("dead letters written").count() >= 2).then_some(())
    });
    let told = told();
    let lines: Vec<_> = told.lines().filter(|l| l.contains("dead letters written")).collect();
    assert!(lines.len() <= 3, "{lines:?}");
    for part in ["WARN", "words", "undecodable", "words-dead/"] {
        assert!(lines[0].contains(part), "{part}: {lines:?}");
    }
    let named = |line: &&str| line.matches("pipeline=").count() == 1;
    assert!(lines.iter().all(named), "{lines:?}");
    let counts: u64 = lines
        .iter()
        .map(|line| {
            let (_, rest) = line.split_once("count=").unwrap();
            rest.split(' ').next().unwrap().parse::<u64>().unwrap()
        })
        .sum();
    assert_eq!(counts, 500, "{lines:?}");
}

#[test]
fn a_replay_says_what_came_of_it_and_replayed_ones_go_after_a_while() {
    let home = Home::new();
    let running = start(&home, "keep_resolved: 2s");
    send(&running, b"bad\n");
    running.drained();
    let first = list(&running, &[]).remove(0);
    let replayed = running.run(["dead-letters", "replay", "words"], b"").good();
    let text = replayed.text();
    assert!(text.contains("1 dead letter replayed") && text.contains("1 dead again"), "{text}");
    let again = list(&running, &[]).remove(0);
    assert!(text.contains(again["id"].as_str().unwrap()), "{text}");
    assert_eq!(again["attempts"], 2);
    assert!(replayed.stderr.is_empty(), "{}", replayed.stderr);

    wait::until("the one that was replayed is removed, and only it", || {
        let all = list(&running, &["--all"]);
        assert!(all.iter().any(|letter| letter["id"] == again["id"]), "{all:?}");
        (!all.iter().any(|letter| letter["id"] == first["id"])).then_some(())
    });
    until_open(&running, 1);

    // What the process runs is not what the file says any more.
    pipeline(&home, "keep_resolved: 1d");
    let args = ["dead-letters", "replay", "words", "--no-wait"];
    let replayed = running.run(args, b"").good();
    assert!(replayed.stderr.contains("has changed since"), "{}", replayed.stderr);
    assert!(!replayed.text().contains("dead again"), "{}", replayed.text());

    // A pipeline that does not run has nothing to wait for.
    wait::until("it has failed again", || (list(&running, &[]).len() == 1).then_some(()));
    running.kill();
    let replayed = home.run(["dead-letters", "replay", "words"]).good();
    assert!(replayed.text().contains("1 still under way"), "{}", replayed.text());
    let running = start(&home, "");
    wait::until("the replay is worked off at the next start", || {
        list(&running, &[]).first().is_some_and(|l| l["attempts"] == 4).then_some(())
    });
}

#[test]
fn whatever_dies_while_they_are_removed_no_open_one_goes_and_no_dropped_one_comes_back() {
    for point in LETTER_CRASH_POINTS {
        let home = Home::new();
        let running = start(&home, "");
        send(&running, b"{\"n\":1}\nbad one\nbad two\nbad three\n");
        running.drained();
        until_open(&running, 3);
        let kept = list(&running, &[]).remove(1);
        running.kill();

        // The first sweep finds nothing to do yet, or all of it: it dies in either.
        let environment = [SEGMENTS, ("POTOK_CRASH_AT", &format!("{point}:2"))];
        let file = pipeline(&home, "");
        let running = home.start_file(&file, &environment).expect("starts");
        let ids: Vec<_> =
            list(&running, &[]).into_iter().filter(|l| l["id"] != kept["id"]).collect();
        let ids: Vec<_> = ids.iter().map(|letter| letter["id"].as_str().unwrap()).collect();
        running.run(["dead-letters", "drop"].iter().chain(&ids), b"").good();
        running.ended(&format!("potok dies at {point}"));

        let running = start(&home, "");
        until_open(&running, 1);
        let open = list(&running, &[]);
        assert_eq!(open.len(), 1, "{point}: {open:?}");
        assert_eq!(open[0]["id"], kept["id"], "{point}");
        wait::until("those dropped are gone", || {
            (list(&running, &["--all"]).len() == 1).then_some(())
        });
        running.kill();
        let running = start(&home, "");
        until_open(&running, 1);
        assert_eq!(list(&running, &[])[0]["value"], kept["value"], "{point}");
    }
}

/// A replay that its process dies in the middle of is finished by the next one, and delivers each once.
#[test]
fn a_replay_goes_on_where_its_process_died() {
    const REPLAYED: usize = 400;
    let mut were_cut = 0;
    for point in ["append.after", "fsync.before", "fsync.after", "position.before"] {
        let home = Home::new();
        let file = home.path().join("words.yaml");
        let pipeline = |decode: &str| {
            let yaml = "name: words\nsource: { topic: words }\ndeliver: [ { topic: out } ]\n";
            fs::write(&file, format!("{yaml}limits: {{ in_flight_bytes: 64KiB }}\n{decode}"))
                .unwrap();
        };
        fs::write(home.path().join("s.json"), "{\"required\": [\"m\"]}").unwrap();
        pipeline("decode: { schema: s.json }\n");
        let running = home.start_file(&file, &[]).expect("starts");
        // Of a kilobyte each: a few of them at a time.
        let of = |n: usize| format!("{{\"n\":{n},\"p\":\"{}\"}}\n", "p".repeat(1_000));
        let lines: String = (0..REPLAYED).map(of).collect();
        send(&running, lines.as_bytes());
        until_open(&running, REPLAYED as u64);
        assert!(running.stop().success());

        pipeline("");
        let place = format!("{point}:8");
        let running = home.start_file(&file, &[("POTOK_CRASH_AT", &place)]).expect("starts");
        running.run(["dead-letters", "replay", "words", "--no-wait"], b"");
        running.ended(&format!("potok dies at {point}"));

        let running = home.start_file(&file, &[]).expect("starts");
        let left = running.drained()["delivered"].as_u64().unwrap();
        were_cut += usize::from(left > 0 && left < REPLAYED as u64);
        // Where it died before all were sent, the rest waits for another replay.
        running.run(["dead-letters", "replay", "words"], b"");
        running.drained();
        until_open(&running, 0);
        let read = running.run(["read", "out", "--json"], b"").good().lines();
        let mut values: Vec<_> = read.iter().map(|line| line["value"].to_string()).collect();
        values.sort();
        values.dedup();
        assert_eq!((values.len(), read.len()), (REPLAYED, REPLAYED), "{point}");
    }
    assert!(were_cut > 0, "no process died in the middle of its replay");
}
