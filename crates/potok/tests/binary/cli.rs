//! The command line: exit codes, shapes of output, and what is refused.

use std::fs;

use potok_traffic::orders::OrderGenerator;
use serde_json::{Value, json};

use crate::check::{assert_adds_up, assert_kept, bytes};
use crate::ledger::Ledger;
use crate::load::lines;
use crate::process::{Home, ProcessOutput, pipelines, potok, run};
use crate::wait;

const COMMANDS: [&str; 23] = [
    "dev",
    "run",
    "check",
    "send",
    "read",
    "status",
    "top",
    "pause",
    "resume",
    "probe",
    "changes",
    "audit",
    "dead-letters",
    "jobs",
    "groups",
    "hub",
    "token",
    "schema",
    "reference",
    "explain",
    "new",
    "ddl",
    "sample",
];

fn bare<const N: usize>(args: [&str; N]) -> ProcessOutput {
    run(potok(args), b"")
}

#[test]
fn help_names_every_command_and_wrong_usage_exits_with_2() {
    let help = bare(["--help"]).good();
    for command in COMMANDS {
        assert!(help.text().contains(command), "{command} in:\n{}", help.text());
        let own = bare([command, "--help"]).good();
        assert!(own.text().contains(&format!("potok {command}")), "an example of {command}");
        assert!(!own.text().contains('\u{1b}'), "no colours when piped");
    }
    bare(["nonsense"]).exits(2);
    bare(["run"]).exits(2);
    bare(["send"]).exits(2);
    bare(["run", "no-such-file.yaml"]).exits(2);
    bare(["explain", "P9999"]).exits(1);
}

#[test]
fn check_shows_every_problem_with_its_place() {
    let home = Home::new();
    let file = home.path().join("wrong.yaml");
    let text = "name: wrong\nsource: { topc: orders }\nworkers: many\ndeliver:\n  - db: orders\n    rows: { orders: '.' }\n    onceby: .order_uid\n";
    fs::write(&file, text).unwrap();
    let path = file.to_str().unwrap();
    let ran = bare(["check", path]).exits(2);
    let said = format!("{}{}", ran.text(), ran.stderr);
    for place in ["wrong.yaml:2:", "wrong.yaml:3:", "wrong.yaml:7:"] {
        assert!(said.contains(place), "{place} in:\n{said}");
    }
    assert!(said.contains("topic") && said.contains("once_by"), "the nearest right keys:\n{said}");
    assert!(!said.contains('\u{1b}'), "no colours when piped");

    let problems = bare(["check", "--json", path]).exits(2).lines();
    assert!(problems.len() >= 3);
    for problem in &problems {
        assert!(problem["line"].as_u64() > Some(0) && problem["column"].as_u64() > Some(0));
        assert!(problem["file"].as_str().unwrap().ends_with("wrong.yaml"), "{problem}");
    }
    for good in fs::read_dir(pipelines()).unwrap() {
        let good = good.unwrap().path();
        if good.file_name().is_some_and(|name| name == "orders.yaml") {
            bare(["check", good.to_str().unwrap()]).good();
        }
    }
}

/// Sends odd bytes, keys and headers, and reads them back, through `ask`.
fn round_trip(ask: &dyn Fn(&[&str], &[u8]) -> ProcessOutput) {
    let odd: [&[u8]; 6] =
        [b"plain", b"\xff\xfe not text", b"a\0b", b" spaces \t", b"\r", "жук \u{1f41e}".as_bytes()];
    // Empty lines are skipped, and the last line needs no end.
    let input = [odd[..3].join(&b'\n'), odd[3..].join(&b'\n')].join(&b"\n\n\n"[..]);
    let sent =
        ask(&["send", "odd", "--header", "a=1", "--header", "a=", "--header", "b=x=y"], &input);
    assert!(sent.good().text().contains('6'), "how many");

    let read = ask(&["read", "odd"], b"").good().lines();
    let mut values: Vec<_> = read.iter().map(|line| bytes(line, "value").unwrap()).collect();
    values.sort();
    let mut expected = odd.map(<[u8]>::to_vec).to_vec();
    expected.sort();
    assert_eq!(values, expected);
    for line in &read {
        let keys: Vec<_> = line.as_object().unwrap().keys().map(String::as_str).collect();
        let value = if line.get("value").is_some() { "value" } else { "value_base64" };
        assert_eq!(keys, ["topic", "partition", "offset", "time", "key", "headers", value]);
        assert_eq!(line["headers"], json!([["a", "1"], ["a", ""], ["b", "x=y"]]));
        assert_eq!(line["key"], Value::Null);
        assert!(line["time"].as_str().unwrap().ends_with('Z'));
    }

    let whole = b"one\n\ntwo\n";
    ask(&["send", "whole", "--framing", "whole"], whole).good();
    let read = ask(&["read", "whole"], b"").good().lines();
    assert_eq!(read.len(), 1);
    assert_eq!(bytes(&read[0], "value").unwrap(), whole);

    ask(&["send", "keyed", "--key", ".id"], b"{\"id\":\"k1\",\"n\":1}\n{\"id\":\"k1\",\"n\":2}\n")
        .good();
    let read = ask(&["read", "keyed"], b"").good().lines();
    assert_eq!(read.len(), 2);
    assert_eq!(read[0]["partition"], read[1]["partition"], "one key, one partition");
    let offsets: Vec<_> = read.iter().map(|line| line["offset"].as_u64().unwrap()).collect();
    assert!(offsets[0] < offsets[1]);
    assert_eq!((&read[0]["key"], &read[1]["key"]), (&json!("k1"), &json!("k1")));
    assert!(read[0]["value"].as_str().unwrap().contains("\"n\":1"), "in order");

    assert_eq!(ask(&["read", "odd", "--count", "2"], b"").good().lines().len(), 2);
    assert_eq!(ask(&["read", "odd", "--from", "end"], b"").good().lines().len(), 0);
    let from = offsets[1].to_string();
    assert_eq!(ask(&["read", "keyed", "--from", &from], b"").good().lines().len(), 1);
    ask(&["read", "no-such-topic"], b"").exits(1);
}

#[test]
fn what_is_sent_is_read_back_with_and_without_a_process() {
    let home = Home::new();
    round_trip(&|args, input| run(home.command(args), input));
    let home = Home::new();
    let running = home.start();
    round_trip(&|args, input| running.run(args, input));
    // Through the folder one comes to the process that owns it.
    let read = home.run(["read", "whole"]).good().lines();
    assert_eq!(read.len(), 1);
}

#[test]
fn read_follows() {
    let home = Home::new();
    let running = home.start();
    running.run(["send", "live"], b"first\n").good();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| running.run(["read", "live", "--follow", "--count", "2"], b""));
        running.run(["send", "live"], b"second\n").good();
        let read = reader.join().unwrap().good().lines();
        assert_eq!(read.len(), 2);
    });
}

#[test]
fn status_has_its_shape_and_pause_holds_records_back() {
    let home = Home::new();
    let running = home.start();
    let status = running.status();
    for field in [
        "pipeline",
        "state",
        "gate",
        "lag",
        "oldest",
        "received",
        "delivered",
        "filtered",
        "duplicates",
        "dead_lettered",
        "in_flight",
        "damaged",
    ] {
        assert!(status.get(field).is_some(), "{field}: {status}");
    }
    assert_eq!((&status["pipeline"], &status["damaged"]), (&json!("orders"), &json!([])));
    assert_eq!(status["gate"]["state"], "open");

    running.run(["pause", "orders"], b"").good();
    let orders: Vec<_> = {
        let mut generator = OrderGenerator::new(70);
        (0..200).map(|_| generator.next_order()).collect()
    };
    assert!(running.send_lines(&lines(&orders), &[]));
    let status = wait::until("paused with records waiting", || {
        let status = running.status();
        (status["state"] == "paused" && status["lag"] == 200).then_some(status)
    });
    assert_adds_up(&status);
    assert_eq!(status["delivered"], 0);

    running.run(["resume", "orders"], b"").good();
    let status = running.drained();
    assert_adds_up(&status);
    assert_eq!(status["received"], 200);
    assert_eq!(status["state"], "running");
    running.run(["pause", "nobody"], b"").exits(1);
    running.run(["status", "nobody"], b"").exits(1);
    let human = running.run(["status"], b"").good();
    assert!(human.text().contains("orders") && !human.text().contains('\u{1b}'));
}

#[test]
fn a_second_process_on_the_folder_is_refused() {
    let home = Home::new();
    let mut running = home.start();
    let orders = pipelines().join("orders.yaml");
    let mut second = home.command(["run", orders.to_str().unwrap()]);
    second.args(["--admin", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    let second = run(second, b"");
    assert_eq!(second.code, Some(1), "{}", second.stderr);
    assert!(second.stderr.contains("data"), "names the folder: {}", second.stderr);
    assert!(running.is_alive());
    assert_eq!(running.get("/live").unwrap().0, 200);

    // The lock goes with the process, however it ends.
    running.kill();
    home.start();
}

/// A note of an address that another folder's process left must not lead there.
#[test]
fn a_command_never_talks_to_the_owner_of_another_folder() {
    let (home, other) = (Home::new(), Home::new());
    let running = other.start();
    fs::copy(other.data().join("admin.json"), home.data().join("admin.json")).unwrap();
    run(home.command(["send", "mine"]), b"one\n").good();
    assert_eq!(home.run(["read", "mine"]).good().lines().len(), 1);
    running.run(["read", "mine"], b"").exits(1);
}

#[test]
fn only_programs_of_this_machine_are_answered() {
    let home = Home::new();
    let running = home.start();
    let host = format!("Host: {}\r\n", running.address);
    for path in ["/live", "/ready", "/metrics", "/api/v1/status"] {
        assert_eq!(running.get(path).unwrap().0, 200, "{path}");
        assert_eq!(running.get_as(path, "Host: evil.example\r\n").unwrap().0, 403, "{path}");
        let foreign = format!("{host}Origin: https://evil.example\r\n");
        assert_eq!(running.get_as(path, &foreign).unwrap().0, 403, "{path}");
    }
    let (_, metrics) = running.get("/metrics").unwrap();
    assert!(metrics.contains("potok_") && metrics.contains("# TYPE "), "{metrics}");
    let refused = run(
        {
            let mut command = home.command(["run", "whatever.yaml"]);
            command.args(["--admin", "0.0.0.0:0"]);
            command
        },
        b"",
    );
    assert_eq!(refused.code, Some(2), "no admin API for other machines: {}", refused.stderr);
}

#[test]
fn consumer_groups_are_listed_and_deleted_once_nobody_reads_them() {
    let home = Home::new();
    let running = home.start();
    wait::until("the pipeline has opened its group", || {
        let groups = running.run(["consumer-groups", "list", "--json"], b"").good().lines();
        let ours = |group: &&Value| group["group"] == "order-consumer" && group["open"] == true;
        groups.iter().find(ours).map(drop)
    });
    running.run(["consumer-groups", "delete", "order-consumer"], b"").exits(1);
    assert!(running.stop().success());

    home.run(["consumer-groups", "delete", "order-consumer"]).good();
    let groups = home.run(["consumer-groups", "list", "--json"]).good().lines();
    assert!(groups.iter().all(|group| group["group"] != "order-consumer"), "{groups:?}");
    home.run(["consumer-groups", "delete", "order-consumer"]).exits(1);
}

#[test]
fn a_polite_stop_finishes_what_was_begun_and_a_restart_continues() {
    let home = Home::new();
    let mut ledger = Ledger::default();
    let mut generator = OrderGenerator::good_only(80);
    for _ in 0..3 {
        let running = home.start();
        let orders: Vec<_> = (0..300).map(|_| generator.good()).collect();
        assert!(running.send_lines(&lines(&orders), &[]));
        ledger.note(orders, true);
        assert_eq!(running.stop().code(), Some(0));
    }
    // What is sent while no process runs is picked up by the next.
    let orders: Vec<_> = (0..50).map(|_| generator.good()).collect();
    run(home.command(["send", "orders"]), &lines(&orders)).good();
    ledger.note(orders, true);
    assert_kept(&home, &home.start(), &ledger);
}

#[test]
fn pages_for_users_are_printed() {
    let schema: Value = serde_json::from_str(bare(["schema"]).good().text()).unwrap();
    assert!(schema["properties"]["deliver"].is_object(), "{schema}");
    assert!(bare(["reference"]).good().text().contains("once_by"));
    assert!(bare(["explain", "P0304"]).good().text().len() > 100);
    let orders = pipelines().join("orders.yaml");
    let ddl = bare(["ddl", orders.to_str().unwrap()]).good();
    for table in ["orders", "deliveries", "payments", "items"] {
        assert!(ddl.text().contains(table), "{table} in {}", ddl.text());
    }
    // The statements are good SQL.
    let database = rusqlite::Connection::open_in_memory().unwrap();
    database.execute_batch(ddl.text()).unwrap();
}

#[test]
fn a_token_is_not_sent_to_another_machine_in_clear() {
    // Nobody answers there (RFC 5737), so that whoever sends it would wait.
    let refused = |address: &str| {
        let mut command = potok(["status", "--admin", address]);
        command.env("POTOK_TOKEN", "secret-word");
        run(command, b"").exits(1)
    };
    for address in ["192.0.2.1:7600", "http://192.0.2.1:7600"] {
        let refused = refused(address);
        assert!(refused.stderr.contains("P0530"), "{}", refused.stderr);
        assert!(refused.stderr.contains("--insecure") && !refused.stderr.contains("secret-word"));
    }
}

#[test]
fn what_people_did_and_what_happened_is_listed() {
    let home = Home::new();
    let running = home.start();
    let said = |args: &[&str]| running.run(args, b"").good().text().to_owned();
    assert!(said(&["audit"]).contains("nobody has changed anything yet"));
    said(&["pause", "orders"]);
    let changes = wait::until("the pause is noticed", || {
        Some(running.run(["changes", "--json"], b"").good().lines()).filter(|all| !all.is_empty())
    });
    assert_eq!(changes[0]["pipeline"], "orders", "{changes:?}");
    assert!(said(&["changes"]).contains("PIPELINE"));
    said(&["resume", "orders"]);
    assert!(said(&["probe", "orders"]).contains("every destination of orders is open already"));
    let audit = running.run(["audit", "--limit", "2", "--json"], b"").good().lines();
    let actions: Vec<_> = audit.iter().map(|entry| entry["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["probe", "resume"]);
    let table = said(&["audit"]);
    assert!(table.contains("WHO") && table.contains("pause") && table.contains("local"), "{table}");
    running.run(["probe", "nobody"], b"").exits(1);
}
