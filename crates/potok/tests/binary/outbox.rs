//! The shipped `outbox` on SQLite and the embedded log: every committed row is published, in the
//! order of its key, whatever is killed or frozen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use rusqlite::Connection;
use serde_json::Value;

use crate::process::{Home, Running, pipelines};
use crate::wait;
use crate::walk::{DONE, Guide, Walk};

const SENT: &str = "send-message-notification-topic-v1";
const INFO: &str = "system-notifications-topic-v1";

fn uuid(number: u32) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

/// The application's database, once potok has made its tables.
fn application(home: &Home) -> Connection {
    wait::until("the tables are there", || {
        let connection = Connection::open(home.data().join("db/messenger.sqlite")).ok()?;
        connection.busy_timeout(wait::PATIENCE).ok()?;
        let tables = "SELECT 1 FROM outbox, outbox_dead, potok_leases LIMIT 1";
        let are_there = connection.prepare(tables).is_ok();
        are_there.then_some(connection)
    })
}

fn add(application: &Connection, number: u32, conversation: &str, event_type: &str) {
    let payload = format!(
        "{{\"event_type\":\"x\",\"payload\":{{\"conversation_id\":\"{conversation}\", \"n\":{number}}}}}"
    );
    let sql = "INSERT INTO outbox (id, event_type, payload) VALUES (?1, ?2, ?3)";
    application.execute(sql, (uuid(number), event_type, payload)).unwrap();
}

/// What a topic has: the number, the key and the id of each, in order.
fn published(running: &Running, topic: &str) -> Vec<(u64, String, String)> {
    let ran = running.run(["read", topic, "--json"], b"");
    let lines = if ran.code == Some(0) { ran.lines() } else { Vec::new() };
    let record = |line: &Value| {
        let value = line["value"].as_str().unwrap_or_else(|| panic!("{line}"));
        let value: Value = serde_json::from_str(value).unwrap();
        let headers = &line["headers"];
        let id = header(headers, "potok-id");
        assert_eq!(header(headers, "id"), id, "{line}");
        assert!(!header(headers, "event_type").is_empty(), "{line}");
        assert!(header(headers, "added_at").starts_with("20"), "{line}");
        let number = value["payload"]["n"].as_u64().unwrap();
        (number, line["key"].as_str().unwrap().to_owned(), id)
    };
    lines.iter().map(record).collect()
}

fn header(headers: &Value, name: &str) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match headers {
        Value::Object(map) => text(&map[name]),
        Value::Array(all) => {
            let of: Vec<&Value> =
                all.iter().filter(|h| h[0] == name || h["name"] == name).collect();
            assert_eq!(of.len(), 1, "{headers}");
            text(if of[0].is_array() { &of[0][1] } else { &of[0]["value"] })
        }
        other => panic!("{other}"),
    }
}

fn waiting(application: &Connection) -> u32 {
    let sql = "SELECT count(*) FROM outbox WHERE NOT processed";
    application.query_row(sql, [], |row| row.get(0)).unwrap()
}

fn until_published(application: &Connection) {
    wait::until_seen("every row is marked", || match waiting(application) {
        0 => Ok(()),
        left => Err(left),
    });
}

/// First occurrences of each key are in order, all are there, repeats have the same id.
fn check(records: &[(u64, String, String)], numbers: impl Iterator<Item = u32>) {
    let mut last: BTreeMap<&str, u64> = BTreeMap::new();
    let mut seen: BTreeSet<u64> = BTreeSet::new();
    for (number, key, id) in records {
        assert_eq!(*id, uuid(*number as u32));
        if seen.insert(*number) {
            let before = last.insert(key, *number);
            assert!(before.is_none_or(|before| before < *number), "{key}: {before:?}, {number}");
        }
    }
    assert_eq!(seen, numbers.map(u64::from).collect::<BTreeSet<_>>());
}

fn shipped() -> PathBuf {
    pipelines().join("outbox.yaml")
}

/// The shipped file with other settings.
fn file(home: &Home, change: impl FnOnce(String) -> String) -> PathBuf {
    let path = home.path().join("outbox.yaml");
    fs::write(&path, change(fs::read_to_string(shipped()).unwrap())).unwrap();
    path
}

#[test]
fn rows_are_published_and_marked_whatever_is_killed() {
    let home = Home::new();
    let mut running = home.start_file(&shipped(), &[]).unwrap();
    let application = application(&home);
    let mut number = 0;
    // Between the publishing and the mark, before the one and after the other.
    for point in ["", "sink.commit.before", "sink.commit.after", "fsync.before", "fsync.after"] {
        for _ in 0..40 {
            number += 1;
            add(&application, number, &format!("c{}", number % 7), "MessageSent");
        }
        if point.is_empty() {
            until_published(&application);
            continue;
        }
        running.kill();
        match home.start_file(&shipped(), &[("POTOK_CRASH_AT", point)]) {
            Ok(mut doomed) => wait::until("it dies", || (!doomed.is_alive()).then_some(())),
            Err(_died_early) => {}
        }
        running = home.start_file(&shipped(), &[]).unwrap();
        until_published(&application);
    }
    check(&published(&running, SENT), 1..=number);
    let records = running.run(["read", SENT, "--json"], b"").good().lines();
    let is_first = |line: &&Value| header(&line["headers"], "id") == uuid(1);
    let record = records.iter().find(is_first).unwrap();
    let payload: String = application
        .query_row("SELECT payload FROM outbox WHERE id = ?1", [uuid(1)], |row| row.get(0))
        .unwrap();
    assert_eq!(record["value"], payload.as_str(), "byte for byte");
}

#[test]
fn a_type_that_is_not_mapped_keeps_only_its_key_back() {
    let home = Home::new();
    let short = |text: String| {
        text.replace("attempts: 10", "attempts: 3")
            .replace("first: 1s, max: 10m", "first: 10ms, max: 20ms")
    };
    let first = file(&home, short);
    let running = home.start_file(&first, &[]).unwrap();
    let application = application(&home);
    add(&application, 1, "a", "MessageSent");
    add(&application, 2, "b", "Unknown");
    add(&application, 3, "b", "MessageSent");
    add(&application, 4, "c", "ChannelInfoUpdated");
    until_published(&application);
    check(&published(&running, SENT), [1, 3].into_iter());
    check(&published(&running, INFO), [4].into_iter());
    let dead = running.run(["dead-letters", "list", "outbox", "--json"], b"").good().lines();
    assert_eq!(dead.len(), 1);
    let id = format!("outbox_dead/{}", uuid(2));
    assert_eq!((&dead[0]["id"], &dead[0]["attempts"]), (&id.as_str().into(), &3.into()));
    assert_eq!((&dead[0]["pipeline"], &dead[0]["key"]), (&"outbox".into(), &"b".into()));
    assert!(dead[0]["error"].as_str().unwrap().contains("no topic is mapped to `Unknown`"));
    let value: Value = serde_json::from_str(dead[0]["value"].as_str().unwrap()).unwrap();
    assert_eq!(value["payload"]["n"], 2);
    let journal = running.journal();
    let is_told = |line: &&str| line.contains(&uuid(2)) && line.contains("no topic is mapped");
    assert!(journal.lines().any(|line| is_told(&line)), "each failure is said: {journal}");
    // By its id, by the row's own behind the pipeline, by a filter; and where nothing is meant.
    let whole = running.run(["dead-letters", "show", &id], b"").good().text().to_owned();
    assert!(whole.contains("no topic is mapped") && whole.contains("conversation_id"), "{whole}");
    let same =
        running.run(["dead-letters", "show", "outbox", &uuid(2)], b"").good().text().to_owned();
    assert_eq!(same, whole);
    running.run(["dead-letters", "show", "outbox", &uuid(3)], b"").exits(1);
    let filtered = |filter: [&str; 2]| {
        let ran = running.run(["dead-letters", "list", "outbox", filter[0], filter[1]], b"");
        ran.good().text().contains(&id)
    };
    assert!(filtered(["--where", ".payload.n == 2"]) && !filtered(["--where", ".payload.n == 3"]));
    assert!(filtered(["--limit", "1"]));
    wait::until_seen("status and metrics count it", || {
        let open = running.status()["dead_letters_open"].clone();
        if open == 1 { Ok(()) } else { Err(open) }
    });
    let metrics = running.get("/metrics").unwrap().1;
    for line in ["potok_outbox_dead_rows", "potok_outbox_owner"] {
        assert!(metrics.contains(&format!("{line}{{pipeline=\"outbox\"}} 1\n")), "{metrics}");
    }
    for (name, value) in [("published_rows_total", 3), ("failed_rows_total", 3)] {
        let line = format!("potok_outbox_{name}{{pipeline=\"outbox\"}} {value}\n");
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
    let dry =
        running.run(["dead-letters", "drop", "outbox", "--dry-run"], b"").good().text().to_owned();
    assert!(dry.contains("1 dead letter would be dropped"), "{dry}");
    // Mended, and replayed: in its order. Who stops lets go of the table.
    assert!(running.stop().success());
    let of_file = |words: &[&str]| {
        let mut command = crate::process::potok(words);
        command.arg("--data-dir").arg(home.data()).current_dir(home.path());
        crate::process::run(command, b"").good()
    };
    // Nobody runs, so the table itself is asked.
    assert_eq!(of_file(&["dead-letters", "list", "outbox.yaml", "--json"]).lines().len(), 1);
    let status = &of_file(&["outbox", "status", "outbox.yaml", "--json"]).lines()[0];
    assert_eq!((&status["dead"], &status["owner"]), (&1.into(), &Value::Null));
    file(&home, |text| short(text).replace("MessageSent:", "Unknown: mended, MessageSent:"));
    let running = home.start_file(&first, &[]).unwrap();
    add(&application, 5, "b", "Unknown");
    until_published(&application);
    let replayed = running.run(["dead-letters", "replay", "outbox"], b"").good().text().to_owned();
    assert!(replayed.contains("1 dead letter replayed"), "{replayed}");
    assert!(replayed.contains("1 delivered"), "{replayed}");
    assert_eq!(published(&running, "mended").len(), 2);
    let status = &running.run(["outbox", "status", "--json"], b"").good().lines()[0];
    assert_eq!((&status["waiting"], &status["dead"]), (&0.into(), &0.into()));
    assert_eq!(status["owner"]["pipeline"], "outbox");
    let text = of_file(&["outbox", "status", "outbox.yaml"]).text().to_owned();
    assert!(text.contains("relayed by outbox on"), "{text}");
}

#[test]
fn failing_rows_are_shown_retried_and_skipped() {
    let home = Home::new();
    let slow = |text: String| text.replace("first: 1s, max: 10m", "first: 1h, max: 2h");
    let running = home.start_file(&file(&home, slow), &[]).unwrap();
    let application = application(&home);
    add(&application, 1, "a", "Unknown");
    add(&application, 2, "a", "MessageSent");
    add(&application, 3, "b", "Unknown");
    let status = || running.run(["outbox", "status", "--json"], b"").good().lines()[0].clone();
    let failing = wait::until("both keys fail", || {
        let status = status();
        let behind = status["failing"].as_array()?.iter().find(|row| row["key"] == "a")?.clone();
        (status["failing_keys"] == 2 && behind["behind"] == 1).then_some(behind)
    });
    assert_eq!((&failing["id"], &failing["attempt"]), (&uuid(1).into(), &1.into()));
    assert!(failing["error"].as_str().unwrap().contains("no topic is mapped to `Unknown`"));
    assert!(failing["next_seconds"].as_f64().unwrap() > 60.0, "{failing}");
    let text = running.run(["outbox", "status"], b"").good().text().to_owned();
    assert!(text.contains("FAILING KEY") && text.contains(&uuid(1)), "{text}");
    let same: Value = serde_json::from_str(&running.get("/api/v1/outbox").unwrap().1).unwrap();
    assert_eq!(same["outboxes"][0]["failing_keys"], 2);
    assert_eq!(same["outboxes"][0]["pipeline"], "outbox");
    // Tried at once, and failed again.
    running.run(["outbox", "retry", &uuid(1)], b"").good();
    wait::until_seen("it is tried again", || {
        let sql = "SELECT retry_count FROM outbox WHERE id = ?1";
        let count: u32 = application.query_row(sql, [uuid(1)], |row| row.get(0)).unwrap();
        if count == 2 { Ok(()) } else { Err(count) }
    });
    running.run(["outbox", "retry", &uuid(2)], b"").exits(1);
    // Skipped, its key goes on; the other one waits.
    running.run(["outbox", "skip", &uuid(1)], b"").good();
    wait::until("what waited behind it is published", || {
        (published(&running, SENT).len() == 1).then_some(())
    });
    assert_eq!(waiting(&application), 1);
    running.run(["outbox", "retry", "--all"], b"").good();
    running.run(["outbox", "skip"], b"").exits(2);
    // Who did that is noted, and to which rows.
    let audit: Value = serde_json::from_str(&running.get("/api/v1/audit").unwrap().1).unwrap();
    let noted: BTreeSet<(String, String)> = audit
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| [&entry["action"], &entry["target"]].map(|of| of.as_str().unwrap().to_owned()))
        .map(|[action, target]| (action, target))
        .collect();
    for (action, target) in
        [("retry_rows", uuid(1)), ("skip_rows", uuid(1)), ("retry_rows", "all".to_owned())]
    {
        assert!(noted.contains(&(action.to_owned(), target)), "{action}: {audit}");
    }
}

/// `ReopenedEarly`: the row is given up, and before that is committed the process dies. What waits behind
/// it is published after it has become a dead letter, and not before.
#[test]
fn a_key_waits_for_a_dead_letter_that_is_not_written() {
    let home = Home::new();
    let last = |text: String| text.replace("attempts: 10", "attempts: 1");
    let file = file(&home, last);
    let running = home.start_file(&file, &[]).unwrap();
    let application = application(&home);
    running.kill();
    add(&application, 1, "a", "Unknown");
    add(&application, 2, "a", "MessageSent");
    let dead = || -> u32 {
        application.query_row("SELECT count(*) FROM outbox_dead", [], |row| row.get(0)).unwrap()
    };
    for _ in 0..2 {
        match home.start_file(&file, &[("POTOK_CRASH_AT", "dead_letter.before")]) {
            Ok(mut doomed) => wait::until("it dies", || (!doomed.is_alive()).then_some(())),
            Err(_died_early) => {}
        }
        assert_eq!((dead(), waiting(&application)), (0, 2));
    }
    let running = home.start_file(&file, &[]).unwrap();
    until_published(&application);
    assert_eq!(dead(), 1);
    check(&published(&running, SENT), [2].into_iter());
    let sql = "SELECT d.dead_at <= o.processed_at FROM outbox_dead d, outbox o";
    let is_behind: bool = application.query_row(sql, [], |row| row.get(0)).unwrap();
    assert!(is_behind, "the key opened before the dead letter was written");
}

/// Where a row has the trace of whoever wrote it, its record goes on with that.
#[test]
fn a_record_has_the_type_the_time_and_the_trace_of_its_row() {
    let home = Home::new();
    let running = home.start_file(&shipped(), &[]).unwrap();
    let application = application(&home);
    assert!(running.stop().success());
    for table in ["outbox", "outbox_dead"] {
        let add = format!("ALTER TABLE {table} ADD COLUMN traceparent TEXT");
        application.execute(&add, []).unwrap();
    }
    let running = home.start_file(&shipped(), &[]).unwrap();
    add(&application, 1, "a", "MessageSent");
    let trace = "00-0af7651916cd43dd8448eb211c80319c";
    let sql = "INSERT INTO outbox (id, event_type, payload, traceparent) \
               SELECT ?1, event_type, payload, ?2 FROM outbox";
    application.execute(sql, (uuid(2), format!("{trace}-b7ad6b7169203331-01"))).unwrap();
    until_published(&application);
    let times: Vec<String> = {
        let mut statement =
            application.prepare("SELECT added_at FROM outbox ORDER BY seq").unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let records = running.run(["read", SENT, "--json"], b"").good().lines();
    let of = |number: u32| {
        let is_it = |line: &&Value| header(&line["headers"], "id") == uuid(number);
        &records.iter().find(is_it).unwrap()["headers"]
    };
    for (number, time) in [(1, &times[0]), (2, &times[1])] {
        assert_eq!(header(of(number), "event_type"), "MessageSent");
        assert_eq!(header(of(number), "added_at"), *time);
    }
    assert!(header(of(2), "traceparent").starts_with(trace), "{}", of(2));
}

#[test]
fn another_process_takes_over_from_a_frozen_one() {
    let home = Home::new();
    let other = Home::new();
    let quick = |text: String| text.replace("db: messenger", "db: messenger\n  lease: 2s");
    let running = home.start_file(&file(&home, quick), &[]).unwrap();
    let application = application(&home);
    add(&application, 1, "a", "MessageSent");
    until_published(&application);
    let database = format!("sqlite:{}", home.data().join("db/messenger.sqlite").display());
    let settings = [("POTOK_DB_MESSENGER", database.as_str())];
    // It stands by, and is ready all the same.
    let standby = other.start_file(&file(&other, quick), &settings).unwrap();
    add(&application, 2, "a", "MessageSent");
    until_published(&application);
    check(&published(&running, SENT), 1..=2);
    assert!(published(&standby, SENT).is_empty());
    running.signal("STOP");
    add(&application, 3, "a", "MessageSent");
    until_published(&application);
    check(&published(&standby, SENT), [3].into_iter());
    let marked = || -> Vec<String> {
        let mut statement =
            application.prepare("SELECT processed_at FROM outbox ORDER BY seq").unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let before = marked();
    running.signal("CONT");
    add(&application, 4, "a", "MessageSent");
    until_published(&application);
    assert_eq!(marked()[..3], before, "whoever wakes up changes nothing");
    check(&published(&standby, SENT), [3, 4].into_iter());
    check(&published(&running, SENT), 1..=2);
    // Whoever keeps the lease says for which pipeline.
    let journal = standby.journal();
    let line = journal.lines().find(|line| line.contains("relays the table"));
    assert!(line.is_some_and(|line| line.contains("pipeline=outbox")), "{journal}");
}

#[test]
fn files_that_cannot_keep_the_promise_are_refused() {
    let home = Home::new();
    let refused = |change: &dyn Fn(String) -> String, code: &str| {
        let path = file(&home, change);
        let ran = home.run(["check", path.to_str().unwrap(), "--json"]).exits(2);
        assert!(ran.text().contains(code), "{} {}", ran.text(), ran.stderr);
    };
    refused(&|text| text.replace("deliver:", "deliver:\n  - topic: second"), "P1304");
    refused(&|text| format!("{text}group: {{ by: .a, close: {{ every: 10s }} }}\n"), "P1304");
    refused(&|text| format!("{text}order_by: .a\n"), "P0153");
    let topic = "name: a\nsource: { topic: a }\ndeliver: [ { topic: b } ]\n";
    refused(&|_| format!("{topic}dead_letter: {{ table: x }}\n"), "P1305");
    refused(&|text| text.replace("{ table: outbox_dead }", "{ table: a, topic: b }"), "P014");
    // Two pipelines on one table: the second would stand by for ever.
    let both = |of: &str| {
        let name =
            |name: &str| fs::read_to_string(shipped()).unwrap().replace("name: outbox", name);
        let one = file(&home, |_| name("name: one"));
        let other = home.path().join("other.yaml");
        fs::write(&other, name("name: other").replace("outbox: outbox", of)).unwrap();
        home.run(["check", one.to_str().unwrap(), other.to_str().unwrap(), "--json"])
    };
    let ran = both("outbox: outbox").exits(2);
    assert!(ran.text().contains("P0149") && ran.text().contains("table"), "{}", ran.text());
    both("outbox: another").good();
}

#[test]
fn every_command_of_the_guide_runs() {
    let guide = Guide::read("outbox.md");
    assert_eq!(guide.sections().len(), 8, "of which 5 and 6 are walked with real services");
    let instead = [("cargo build --release", DONE), ("alias potok=target/release/potok", DONE)];
    let mut walk = Walk::through(&guide, 1..=4, &instead);
    walk.to("potok run");
    // Whoever types has given it the time to make its tables.
    walk.until("potok outbox status 2>&1 || true", "relayed by outbox on");
    walk.to("sqlite3");
    walk.until("potok read send-message-notification-topic-v1 2>&1 || true", "c1");
    let record = walk.to("potok read send-message-notification-topic-v1");
    assert!(record.contains(r#"\"message_text\":\"hi\""#), "{record}");
    let status = walk.to("potok outbox status");
    assert!(status.contains("relayed by outbox on"), "{status}");
    walk.to("sqlite3");
    let failing = "no topic is mapped to `MessageReported`";
    walk.until("potok outbox status", failing);
    let status = walk.to("potok outbox status");
    assert!(status.contains("c2") && walk.last.ends_with(failing), "{status}");
    assert!(walk.to("potok outbox retry").contains("retried"));
    assert!(walk.to("potok outbox skip").contains("skipped"));
    assert_eq!(walk.to("potok dead-letters list outbox"), "no dead letters\n");
    walk.to("potok dead-letters replay outbox");
    assert!(walk.take().interrupt().success(), "Ctrl-C is a stop in good order");
    walk.finish();
}

/// What a newcomer sees first: rows flow, one fails with its reason, and commands work beside it.
#[test]
fn dev_relays_what_its_application_writes() {
    let home = Home::new();
    let mut command = crate::process::potok(["dev", "--only", "outbox", "--rate", "200"]);
    command.current_dir(home.path()).args(["--admin", "127.0.0.1:0", "--data-dir"]);
    command.arg(home.data());
    let dev = Running::spawn(command, home.path().join("dev.log"));
    let dev = dev.listening(&home.data()).and_then(Running::ready).unwrap();
    let application = application(&home);
    let status = wait::until("rows flow, and one fails", || {
        let ran = dev.run(["outbox", "status", "--json"], b"");
        let status = ran.lines().into_iter().next()?;
        let failing = status["failing"].as_array()?.first()?;
        let is_told = failing["error"].as_str()?.contains("`MessageReported`");
        (is_told && failing["behind"].as_u64() > Some(0)).then_some(status)
    });
    assert_eq!(status["owner"]["pipeline"], "outbox");
    let sql = "SELECT count(*) FROM outbox JOIN messages USING (id)";
    let count = |sql: &str| application.query_row(sql, [], |row| row.get::<_, u32>(0)).unwrap();
    assert!(count(sql) > 0);
    assert!(!published_lines(&dev, INFO).is_empty() || !published_lines(&dev, SENT).is_empty());
}

fn published_lines(running: &Running, topic: &str) -> Vec<Value> {
    running.run(["read", topic, "--json"], b"").lines()
}
