//! The outbox from real databases to a real Kafka that refuses: a topic that is forbidden is a failure of
//! the row that goes there, not of the pipeline.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use potok_services::{Kafka, KafkaOptions};
use serde_json::Value;

use crate::database::Database;
use crate::process::{Home, ProcessOutput, Running, run};
use crate::wait;

/// Of the brokers, so that records of several topics can be put in one order.
const BROKER_TIME: (&str, &str) = ("message.timestamp.type", "LogAppendTime");

pub fn uuid(number: u64) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

/// A record that was published.
#[derive(Clone, Debug)]
pub struct PublishedRow {
    pub topic: String,
    pub place: (u64, u64),
    pub time: u64,
    pub key: String,
    pub number: u64,
}

/// Everything that topics have, each in the order of its partitions.
pub fn published(home: &Home, topics: &[&str]) -> Vec<PublishedRow> {
    let mut all = Vec::new();
    for topic in topics {
        let ran = run(home.command(["read", topic, "--json"]), b"");
        let lines = if ran.code == Some(0) { ran.lines() } else { Vec::new() };
        all.extend(lines.iter().map(|line| record(topic, line)));
    }
    all
}

fn record(topic: &str, line: &Value) -> PublishedRow {
    let headers = line["headers"].as_array().unwrap_or_else(|| panic!("{line}"));
    let header = |name: &str| {
        let of: Vec<&Value> = headers.iter().filter(|header| header[0] == name).collect();
        assert_eq!(of.len(), 1, "{line}");
        of[0][1].as_str().unwrap().to_owned()
    };
    let id = header("potok-id");
    assert_eq!(header("id"), id, "{line}");
    assert!(!header("event_type").is_empty(), "{line}");
    assert!(header("added_at").starts_with("20"), "{line}");
    let value: Value = serde_json::from_str(line["value"].as_str().unwrap()).unwrap();
    let number = value["n"].as_u64().unwrap();
    assert_eq!(id, uuid(number), "a repeat has the same name: {line}");
    PublishedRow {
        topic: topic.to_owned(),
        place: (line["partition"].as_u64().unwrap(), line["offset"].as_u64().unwrap()),
        time: time(&line["time"]),
        key: line["key"].as_str().unwrap().to_owned(),
        number,
    }
}

/// A time as a number that is larger the later it is.
fn time(time: &Value) -> u64 {
    match time {
        Value::Number(number) => number.as_u64().unwrap(),
        Value::String(text) => text
            .bytes()
            .filter(u8::is_ascii_digit)
            .fold(0, |number, digit| number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'))),
        other => panic!("{other}"),
    }
}

/// The pipeline file: event types and their topics.
pub fn pipeline(home: &Home, attempts: u32, map: &str, more: &str) -> PathBuf {
    let path = home.path().join("outbox.yaml");
    let text = format!(
        "name: outbox\n\
         source:\n  outbox: outbox\n  db: messenger\n  create_tables: true\n  attempts: {attempts}\n  \
         backoff: {{ first: 50ms, max: 300ms }}\n{more}\
         deliver:\n  - topic: {{ by: header.event_type, map: {{ {map} }} }}\n    key: .key\n\
         dead_letter: {{ table: outbox_dead }}\n"
    );
    fs::write(&path, text).unwrap();
    path
}

/// Waits until potok has made its tables.
pub fn until_tables(database: &Database) {
    let count = "SELECT count(*) FROM information_schema.tables WHERE table_name IN \
                 ('outbox', 'outbox_dead', 'potok_leases', 'potok_outbox_waiting')";
    wait::until("the tables are there", || (database.query(count)[0][0] == "4").then_some(()));
}

pub fn insert(number: u64, key: &str, event_type: &str) -> String {
    format!(
        "INSERT INTO outbox (id, event_type, payload) VALUES \
         ('{}', '{event_type}', '{{\"key\":\"{key}\",\"n\":{number}}}')",
        uuid(number)
    )
}

/// A Kafka with users and their rights, one user, and a table.
struct Fortress {
    kafka: Kafka,
    user: String,
    settings: String,
    /// Somebody who may read everything.
    reader: Home,
}

impl Fortress {
    fn new() -> Fortress {
        let authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer";
        let properties = [("authorizer.class.name", authorizer), ("super.users", "User:ANONYMOUS")];
        let options = KafkaOptions {
            secure: true,
            properties: properties.map(|(n, v)| (n.to_owned(), v.to_owned())).to_vec(),
            ..KafkaOptions::default()
        };
        let (user, password) = options.users[0].clone();
        let kafka = Kafka::start_with(&options);
        let settings = format!(
            "log:\n  kafka: '{}'\n  properties: {{ security.protocol: SASL_SSL, ssl.ca.location: '{}', \
             sasl.mechanisms: SCRAM-SHA-256, sasl.username: {user}, sasl.password: {password} }}\n",
            kafka.secure_servers(),
            kafka.certificate().unwrap().authority.display(),
        );
        let reader = Home::new();
        reader.settings(&format!("log: {{ kafka: '{}' }}\n", kafka.servers()));
        let fortress = Fortress { kafka, user, settings, reader };
        // Everything, from which tests take away.
        let all = "--operation All --topic * --group * --cluster --transactional-id *";
        fortress.acl(&format!("--add --allow-principal User:NAME {all}"));
        fortress
    }

    fn acl(&self, words: &str) {
        let words = words.replace("NAME", &self.user);
        self.kafka.tool("AclCommand", &words.split_whitespace().collect::<Vec<_>>());
    }

    fn forbid(&self, topic: &str, operation: &str) {
        self.acl(&format!(
            "--add --deny-principal User:NAME --operation {operation} --topic {topic}"
        ));
    }

    fn allow(&self, topic: &str, operation: &str) {
        self.acl(&format!(
            "--remove --force --deny-principal User:NAME --operation {operation} --topic {topic}"
        ));
    }

    fn topics(&self, topics: &[&str]) {
        for topic in topics {
            self.kafka.create_topic(topic, 2, &[BROKER_TIME]);
        }
    }

    fn home(&self) -> Home {
        let home = Home::new();
        home.settings(&self.settings);
        home
    }
}

/// A relay on a table.
fn relay(home: &Home, file: &Path, database: &Database, plant: Option<&str>) -> Running {
    let url = database.url();
    let mut environment = vec![("POTOK_DB_MESSENGER", url.as_str())];
    environment.extend(plant.map(|bug| ("POTOK_PLANT", bug)));
    let running = home.start_file(file, &environment);
    let running = running.unwrap_or_else(|end| panic!("it ended at start: {end}"));
    until_tables(database);
    running
}

/// A command that finds the table's database.
pub fn ask(home: &Home, database: &Database, args: &[&str]) -> ProcessOutput {
    let mut command = home.command(args);
    command.env("POTOK_DB_MESSENGER", database.url());
    run(command, b"").good()
}

pub fn number(database: &Database, sql: &str) -> u64 {
    database.query(sql)[0][0].parse().unwrap()
}

/// Numbers of a key, in the order in which brokers took them first.
pub fn order(records: &[PublishedRow], key: &str) -> Vec<u64> {
    let mut of_key: Vec<&PublishedRow> = records.iter().filter(|row| row.key == key).collect();
    of_key.sort_by_key(|row| (row.time, row.number));
    let mut numbers: Vec<u64> = Vec::new();
    for row in of_key {
        if !numbers.contains(&row.number) {
            numbers.push(row.number);
        }
    }
    numbers
}

/// Writes rows of a key of its own that every topic takes, until something is so.
pub struct Witness<'a> {
    pub database: &'a Database,
    pub next: u64,
}

impl Witness<'_> {
    pub fn until(&mut self, what: &str, mut is: impl FnMut() -> bool) {
        wait::until(what, || {
            self.database.query(&insert(self.next, "witness", "Good"));
            self.next += 1;
            is().then_some(())
        });
    }
}

#[test]
fn an_unmapped_type_and_a_forbidden_topic_are_failures_of_their_rows() {
    let (fortress, database) = (Fortress::new(), Database::mariadb());
    fortress.topics(&["good", "denied", "late"]);
    fortress.forbid("denied", "Write");
    let home = fortress.home();
    let file = pipeline(&home, 3, "Good: good, Denied: denied", "");
    let running = relay(&home, &file, &database, None);
    for (number, key, event_type) in [
        (1, "a", "Good"),
        (2, "b", "Denied"),
        (3, "b", "Good"),
        (4, "c", "Unmapped"),
        (5, "c", "Good"),
    ] {
        database.query(&insert(number, key, event_type));
    }
    let mut witness = Witness { database: &database, next: 1_000 };
    let mut counted = BTreeMap::new();
    witness.until("two rows are dead", || {
        for row in database.query("SELECT id, retry_count FROM outbox WHERE retry_count > 0") {
            counted.insert(row[0].clone(), row[1].clone());
        }
        number(&database, "SELECT count(*) FROM outbox_dead") == 2
    });
    assert!(counted.contains_key(&uuid(2)), "its count was seen to rise: {counted:?}");
    // The next one of the key has the same fault.
    database.query(&insert(8, "b", "Denied"));
    witness
        .until("the other is dead", || number(&database, "SELECT count(*) FROM outbox_dead") == 3);
    wait::until("the others are marked", || {
        let left = number(&database, "SELECT count(*) FROM outbox WHERE NOT processed");
        (left == 0).then_some(())
    });
    let status = running.status();
    assert_eq!((&status["state"], &status["restarts"]), (&"running".into(), &0.into()), "{status}");
    let dead = ask(&home, &database, &["dead-letters", "list", "outbox.yaml", "--json"]);
    let dead = dead.lines();
    let mut ids: Vec<&str> = dead.iter().map(|row| row["id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [2, 4, 8].map(|n| format!("outbox_dead/{}", uuid(n))));
    assert!(dead.iter().all(|row| row["attempts"] == 3), "{dead:?}");
    let refused = dead
        .iter()
        .find(|row| row["id"].as_str().is_some_and(|id| id.ends_with(&uuid(2))))
        .unwrap();
    assert!(refused["error"].as_str().unwrap().contains("P0604"), "{refused}");
    let records = published(&fortress.reader, &["good", "denied"]);
    for (key, numbers) in [("a", [1]), ("b", [3]), ("c", [5])] {
        assert_eq!(order(&records, key), numbers);
    }
    // Mended, and replayed: in their order.
    assert!(running.stop().success());
    fortress.allow("denied", "Write");
    let mended = "Good: good, Denied: denied, Unmapped: late";
    let file = pipeline(&home, 3, mended, "");
    let running = relay(&home, &file, &database, None);
    ask(&home, &database, &["dead-letters", "replay", "outbox.yaml"]);
    wait::until("all are marked", || {
        let left = number(&database, "SELECT count(*) FROM outbox WHERE NOT processed");
        (left == 0).then_some(())
    });
    let records = published(&fortress.reader, &["denied", "late"]);
    assert_eq!((order(&records, "b"), order(&records, "c")), (vec![2, 8], vec![4]));
    assert_eq!(number(&database, "SELECT count(*) FROM outbox_dead"), 0);
    drop(running);
}

/// `TopicsApart`: rows of one key alternate between a forbidden topic and a good one.
#[test]
fn a_key_that_goes_to_a_forbidden_topic_and_to_a_good_one_stays_in_order() {
    let fortress = Fortress::new();
    let map = |apart: &str| format!("Good: good{apart}, Denied: denied{apart}");
    for (apart, plant) in [("-naive", Some("SentTogether")), ("", None)] {
        let database = Database::postgres();
        let (good, denied) = (format!("good{apart}"), format!("denied{apart}"));
        fortress.topics(&[&good, &denied]);
        fortress.forbid(&denied, "All");
        let home = fortress.home();
        let file = pipeline(&home, 1_000, &map(apart), "");
        let running = relay(&home, &file, &database, plant);
        let mut rows = String::new();
        for number in 1..=12 {
            let event_type = if number % 2 == 1 { "Denied" } else { "Good" };
            rows += &format!("{};\n", insert(number, "k", event_type));
        }
        database.query(&rows);
        let mut witness = Witness { database: &database, next: 1_000 };
        let first = format!("SELECT retry_count FROM outbox WHERE id = '{}'", uuid(1));
        witness.until("it failed twice", || number(&database, &first) >= 2);
        let while_denied = order(&published(&fortress.reader, &[&good]), "k");
        if plant.is_some() {
            assert!(!while_denied.is_empty(), "the naive version was not found");
            drop(running);
            continue;
        }
        assert!(while_denied.is_empty(), "rows overtook the first of their key: {while_denied:?}");
        let waiting = "SELECT count(*) FROM outbox WHERE NOT processed AND \
                       payload::json->>'key' = 'witness'";
        wait::until("no other waits", || (number(&database, waiting) == 0).then_some(()));
        assert_eq!(number(&database, "SELECT count(*) FROM outbox WHERE NOT processed"), 12);
        fortress.allow(&denied, "All");
        wait::until("all are marked", || {
            let left = number(&database, "SELECT count(*) FROM outbox WHERE NOT processed");
            (left == 0).then_some(())
        });
        let records = published(&fortress.reader, &[&good, &denied]);
        assert_eq!(order(&records, "k"), (1..=12).collect::<Vec<u64>>());
        let status = running.status();
        assert_eq!((&status["state"], &status["restarts"]), (&"running".into(), &0.into()));
        assert_eq!(number(&database, "SELECT count(*) FROM outbox_dead"), 0);
    }
}

/// `AclOutage`: the only topic cannot be written to for longer than all attempts last.
#[test]
fn the_only_topic_that_is_forbidden_costs_no_attempt() {
    let fortress = Fortress::new();
    for (topic, plant) in [("only-naive", Some("OutageIsPoison")), ("only", None)] {
        let database = Database::mariadb();
        fortress.topics(&[topic]);
        let home = fortress.home();
        let file = pipeline(&home, 3, &format!("Only: {topic}"), "");
        let running = relay(&home, &file, &database, plant);
        database.query(&insert(1, "a", "Only"));
        wait::until("the first is marked", || {
            (number(&database, "SELECT count(*) FROM outbox WHERE processed") == 1).then_some(())
        });
        // Taken away from a topic that has proven itself.
        fortress.forbid(topic, "Write");
        let keys = ["a", "b", "c", "d"];
        for number in 2..=40 {
            database.query(&insert(number, keys[number as usize % 4], "Only"));
        }
        if plant.is_some() {
            wait::until("the naive version makes dead letters", || {
                (number(&database, "SELECT count(*) FROM outbox_dead") > 0).then_some(())
            });
            drop(running);
            continue;
        }
        // As often as would be too often for every key, three times over.
        wait::until("it was tried often", || {
            (running.status()["put_off"].as_u64()? >= 4 * 3 * 3).then_some(())
        });
        assert_eq!(number(&database, "SELECT count(*) FROM outbox WHERE retry_count > 0"), 0);
        assert_eq!(number(&database, "SELECT count(*) FROM outbox_dead"), 0);
        fortress.allow(topic, "Write");
        wait::until("all are marked", || {
            let left = number(&database, "SELECT count(*) FROM outbox WHERE NOT processed");
            (left == 0).then_some(())
        });
        let records = published(&fortress.reader, &[topic]);
        for key in keys {
            let numbers = order(&records, key);
            assert!(numbers.is_sorted() && numbers.len() >= 9, "{key}: {numbers:?}");
        }
        assert_eq!(running.status()["restarts"], 0);
    }
}
