//! Kafka refuses: for good, what is too large for a topic of potok's own; and until somebody grants
//! it, whatever a client has no right to.

use potok_services::{Kafka, KafkaOptions};
use serde_json::Value;

use crate::check::assert_adds_up;
use crate::process::{Home, Running, pipelines, potok, run};
use crate::wait;

const WINDOW: (&str, &str) = ("BATCH_WINDOW", "1s");

/// The settings of an internal topic that an administrator made, too small for some records.
const SMALL: [(&str, &str); 4] = [
    ("message.timestamp.type", "LogAppendTime"),
    ("retention.ms", "-1"),
    ("cleanup.policy", "delete"),
    ("max.message.bytes", "100000"),
];

fn start(home: &Home) -> Running {
    let file = pipelines().join("em-processor.yaml");
    home.start_file(&file, &[WINDOW]).unwrap_or_else(|end| panic!("it ended at start: {end}"))
}

fn send(home: &Home, batch: &str, lines: &[u8]) {
    let header = format!("batchId={batch}");
    run(home.command(["send", "adapter-event", "--header", &header]), lines).good();
}

fn events(count: &str) -> Vec<u8> {
    run(potok(["sample", "events", "--count", count]), b"").good().stdout
}

/// A record of that many bytes that do not become fewer when they are compressed.
fn large(bytes: usize) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut state = 7_u32;
    let mut letter = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(LETTERS[(state >> 26) as usize])
    };
    let noise: String = (0..bytes).map(|_| letter()).collect();
    format!("{{\"GlobalEventId\":1,\"x\":\"{noise}\"}}").into_bytes()
}

/// A record that the internal topic will never take is a dead letter with its whole body, also where
/// the topic of dead letters takes no more; the others go on.
#[test]
fn what_does_not_fit_the_internal_topic_is_set_aside_and_the_others_go_on() {
    let kafka = Kafka::start();
    kafka.create_topic("potok-em-processor", 4, &SMALL);
    kafka.create_topic(
        "em-processor-dead",
        4,
        &[("retention.ms", "-1"), ("max.message.bytes", "100000")],
    );
    let home = Home::new();
    home.settings(&format!("log: {{ kafka: '{}' }}\n", kafka.servers()));
    let running = start(&home);
    // Two of them, and neighbours that share a batch with them.
    let one = large(270_000);
    let other = large(150_000);
    let mut lines = events("40");
    lines.extend([&one[..], b"\n", &other[..], b"\n"].concat());
    lines.extend(events("40"));
    send(&home, "b1", &lines);
    send(&home, "b2", &events("100"));
    let status = wait::until("all have ended", || {
        let status = running.status();
        let ended = status["delivered"].as_u64()? + status["duplicates"].as_u64()?;
        (ended == 180 && status["dead_lettered"] == 2 && status["lag"] == 0).then_some(status)
    });
    assert_eq!(status["state"], "running", "{status}");
    assert_eq!(status["dead_letters_by_reason"]["too_large"], 2, "{status}");
    assert_adds_up(&status);
    let letters =
        running.run(["dead-letters", "list", "em-processor", "--json"], b"").good().lines();
    assert_eq!(letters.len(), 2, "{letters:?}");
    let mut bodies: Vec<Vec<u8>> = Vec::new();
    for letter in &letters {
        assert_eq!(letter["reason"], "too_large", "{letter}");
        let id = letter["id"].as_str().unwrap();
        let shown = running.run(["dead-letters", "show", id, "--json"], b"").good();
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        bodies.push(shown["value"].as_str().unwrap().as_bytes().to_vec());
    }
    bodies.sort_by_key(Vec::len);
    assert_eq!(bodies.iter().map(Vec::len).collect::<Vec<_>>(), [other.len(), one.len()]);
    assert!(bodies == [other, one], "the bodies are whole");
    // Nothing of it comes again after a restart.
    assert!(running.stop().success());
    let running = start(&home);
    send(&home, "b3", &events("10"));
    let status = wait::until("the next ten", || {
        let status = running.status();
        (status["lag"] == 0 && status["received"].as_u64()? >= 10 && status["in_flight"] == 0)
            .then_some(status)
    });
    assert_eq!(status["dead_lettered"], 0, "{status}");
    let letters =
        running.run(["dead-letters", "list", "em-processor", "--json"], b"").good().lines();
    assert_eq!(letters.len(), 2, "{letters:?}");
}

/// A client without any right says, one after another, which are missing and how they are granted;
/// whoever does as told ends with a pipeline that works, and never has to resume it.
#[test]
fn a_missing_right_is_named_and_its_granting_is_enough() {
    let authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer";
    let properties = [
        ("authorizer.class.name", authorizer),
        // Brokers and tools come unnamed by listeners of their own.
        ("super.users", "User:ANONYMOUS"),
    ];
    let options = KafkaOptions {
        secure: true,
        properties: properties.map(|(n, v)| (n.to_owned(), v.to_owned())).to_vec(),
        ..KafkaOptions::default()
    };
    let (user, password) = options.users[0].clone();
    let kafka = Kafka::start_with(&options);
    for topic in ["adapter-event", "adapter-mention"] {
        kafka.create_topic(topic, 2, &[]);
    }
    let by_side = Home::new();
    by_side.settings(&format!("log: {{ kafka: '{}' }}\n", kafka.servers()));
    send(&by_side, "b1", &events("20"));
    let home = Home::new();
    home.settings(&format!(
        "log:\n  kafka: '{}'\n  properties: {{ security.protocol: SASL_SSL, ssl.ca.location: '{}', \
         sasl.mechanisms: SCRAM-SHA-256, sasl.username: {user}, sasl.password: {password} }}\n",
        kafka.secure_servers(),
        kafka.certificate().unwrap().authority.display(),
    ));
    let file = pipelines().join("em-processor.yaml");
    let running = home.start_file_unready(&file, &[WINDOW]);
    let mut granted: Vec<String> = Vec::new();
    let status = loop {
        let missing = wait::until("a right is asked for, or all is delivered", || {
            let status = running.status();
            if status["delivered"] == 20 {
                return Some(Err(status));
            }
            let why = status["why"].as_str().unwrap_or_default();
            let (_, command) = why.split_once("`kafka-acls.sh ")?;
            let (command, _) = command.split_once('`')?;
            if granted.iter().any(|known| known == command) {
                return None;
            }
            // What the log itself says of it comes first, for a moment.
            if status["state"] != "blocked" {
                return None;
            }
            assert!(why.contains("P0604"), "{why}");
            println!("potok says: {why}");
            Some(Ok(command.to_owned()))
        });
        match missing {
            Ok(command) => {
                let words = command.replace("NAME", &user);
                kafka.tool("AclCommand", &words.split_whitespace().collect::<Vec<_>>());
                granted.push(command);
            }
            Err(status) => break status,
        }
    };
    assert_adds_up(&status);
    for right in
        ["--topic adapter-event", "--topic potok-em-processor", "--group ", "--transactional-id "]
    {
        assert!(granted.iter().any(|command| command.contains(right)), "{right}: {granted:#?}");
    }
    wait::until("nothing is left to say", || {
        (running.status()["state"] == "running").then_some(())
    });
    // Taken away again while it runs: said again, and over when it is back.
    let id = granted.iter().find(|command| command.contains("--topic potok-em-processor")).unwrap();
    let take = id.replace("NAME", &user).replace("--add", "--remove --force");
    kafka.tool("AclCommand", &take.split_whitespace().collect::<Vec<_>>());
    send(&by_side, "b2", &events("20"));
    wait::until("it is blocked", || (running.status()["state"] == "blocked").then_some(()));
    let give = id.replace("NAME", &user);
    kafka.tool("AclCommand", &give.split_whitespace().collect::<Vec<_>>());
    wait::until("the others are delivered", || {
        let status = running.status();
        (status["delivered"] == 40 && status["state"] == "running").then_some(())
    });
}

/// Nobody but potok writes to potok's own topics, and `check --connect` says how they must be.
#[test]
fn own_topics_are_protected_and_looked_at() {
    let kafka = Kafka::start();
    kafka.create_topic("potok-em-processor", 2, &[("cleanup.policy", "compact")]);
    let home = Home::new();
    home.settings(&format!("log: {{ kafka: '{}' }}\n", kafka.servers()));
    for topic in ["potok-em-processor", "potok-groups", "x-dead", "x-replay", "x-dead-resolved"] {
        let sent = run(home.command(["send", topic]), b"{}\n");
        assert!(sent.code != Some(0) && sent.stderr.contains("P0151"), "{topic}: {}", sent.stderr);
    }
    let file = pipelines().join("em-processor.yaml");
    let check = || {
        let mut command = home.command(["check"]);
        command.arg(&file).arg("--connect").env("BATCH_WINDOW", "1s");
        run(command, b"")
    };
    let checked = check();
    assert!(checked.code != Some(0) && checked.stderr.contains("P0618"), "{}", checked.stderr);
    let running = home.start_file_unready(&file, &[WINDOW]);
    let why = wait::until("it is blocked", || {
        let status = running.status();
        (status["state"] == "blocked").then(|| status["why"].as_str().unwrap().to_owned())
    });
    let (_, command) = why.split_once("`kafka-configs.sh ").expect("a command");
    let words: Vec<&str> = command.split_once('`').unwrap().0.split_whitespace().collect();
    kafka.tool("kafka.admin.ConfigCommand", &words);
    wait::until("it goes on", || (running.status()["state"] == "running").then_some(()));
    let checked = check();
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
}
