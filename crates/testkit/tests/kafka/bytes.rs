//! Bytes as other clients write and read them.

use std::io::Write;
use std::process::{Command, Stdio};

use bytes::Bytes;
use potok_core::{HeadersBuilder, Log, Move, NotWritten, Output, ReadFrom, Reason, Transaction};
use potok_testkit::services;

use crate::setup::{Member, blocking, log, records, spec, topic, topic_with, unique};

/// kcat, or a failing test that says how to get it.
fn kcat(arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("kcat")
        .args(["-b", &services::kafka().servers()])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("kcat is installed: run `cargo xtask services install`");
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    output.stdout
}

#[tokio::test(flavor = "multi_thread")]
async fn another_client_reads_what_was_written() {
    let topic = topic("written", 1).await;
    let log = log().await;
    let headers = HeadersBuilder::new()
        .add("a", Some(b"1"))
        .add("a", None)
        .add("b", Some(b""))
        .add("a", Some("п".as_bytes()))
        .build();
    let mut outputs = records(&topic, 0, ["value"]);
    outputs[0].headers = headers;
    outputs.push(Output { key: None, value: None, ..outputs[0].clone() });
    outputs.push(Output {
        key: Some(Bytes::new()),
        value: Some(Bytes::new()),
        ..outputs[0].clone()
    });
    log.append(&outputs).await.unwrap();
    let read = blocking(move || {
        // %K and %S are lengths, -1 for null; the text is NULL for empty ones too.
        kcat(&["-C", "-e", "-q", "-Z", "-t", &topic, "-f", "%K %k %S %s %h\n"], b"")
    })
    .await;
    let expected = "1 k 5 value a=1,a=NULL,b=,a=п\n\
                    -1 NULL -1 NULL a=1,a=NULL,b=,a=п\n\
                    0 NULL 0 NULL a=1,a=NULL,b=,a=п\n";
    assert_eq!(String::from_utf8_lossy(&read), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_client_wrote_is_read() {
    let topic = topic("read", 1).await;
    let to = topic.clone();
    blocking(move || {
        let words = ["-P", "-t", &to, "-K", ":", "-H", "x=1", "-H", "x=\u{1F980}", "-H", "y"];
        kcat(&[&words[..], &["-Z"]].concat(), b"key:val\xff\xfeue\nkey2:\n");
    })
    .await;
    let log = log().await;
    let mut reader = log.read(&topic, ReadFrom::Start).await.unwrap();
    let mut all = Vec::new();
    while let Some(batch) = reader.next(false).await.unwrap() {
        all.extend(batch.records);
    }
    assert_eq!(all.len(), 2);
    assert_eq!(all[0].key.as_deref(), Some(&b"key"[..]));
    assert_eq!(all[0].value.as_deref(), Some(&b"val\xff\xfeue"[..]));
    let headers: Vec<_> = all[0].headers.iter().collect();
    let crab = "\u{1F980}".as_bytes();
    assert_eq!(headers, [("x", Some(&b"1"[..])), ("x", Some(crab)), ("y", None)]);
    assert_eq!(all[1].value, None, "kcat -Z sends an empty value as null");
    assert!(all[0].time.0 > 1_600_000_000_000, "{}", all[0].time);
}

/// Keys go to the partitions that Java clients choose.
#[tokio::test(flavor = "multi_thread")]
async fn keys_meet_the_partitions_of_java_clients() {
    let topic = topic("java", 7).await;
    let log = log().await;
    let to = topic.clone();
    blocking(move || {
        let file = services::kafka().folder().join(format!("{to}.txt"));
        let lines: String = (0..40).map(|n| format!("key{n}:java\n")).collect();
        std::fs::write(&file, lines).unwrap();
        let script = format!(
            "--topic {to} --reader-property parse.key=true --reader-property key.separator=:"
        );
        let words: Vec<&str> = script.split(' ').collect();
        java_produce(&words, &file);
    })
    .await;
    let outputs: Vec<Output> = (0..40)
        .map(|n| Output {
            partition: None,
            key: Some(format!("key{n}").into()),
            ..records(&topic, 0, ["potok"]).remove(0)
        })
        .collect();
    let ours = log.append(&outputs).await.unwrap();
    let mut reader = log.read(&topic, ReadFrom::Start).await.unwrap();
    let mut javas = 0;
    while let Some(batch) = reader.next(false).await.unwrap() {
        for record in batch.records.iter().filter(|r| r.value.as_deref() == Some(b"java")) {
            let key = String::from_utf8_lossy(record.key.as_deref().unwrap()).into_owned();
            let n: usize = key.strip_prefix("key").unwrap().parse().unwrap();
            assert_eq!(ours[n].partition, batch.partition.index, "{key}");
            javas += 1;
        }
    }
    assert_eq!(javas, 40);
}

fn java_produce(words: &[&str], input: &std::path::Path) {
    let status = java("org.apache.kafka.tools.ConsoleProducer")
        .args(["--bootstrap-server", &services::kafka().servers()])
        .args(words)
        .stdin(std::fs::File::open(input).unwrap())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}

/// One of Kafka's own programs.
pub fn java(class: &str) -> Command {
    let cache = std::env::var("XDG_CACHE_HOME").map_or_else(
        |_| std::path::PathBuf::from(std::env::var("HOME").unwrap()).join(".cache"),
        std::path::PathBuf::from,
    );
    let jars = std::fs::read_dir(cache.join("potok"))
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.is_dir() && path.display().to_string().contains("/kafka-"))
        .expect("Kafka is in the cache: cargo xtask services up");
    let mut command = Command::new("java");
    command
        .args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp"])
        .arg(format!("{}/*:{}/jars/*", jars.display(), jars.display()))
        .arg(class);
    command
}

/// What the topic does not take is refused, everything else is written, in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_too_large_for_its_topic_is_refused_alone() {
    let topic = topic_with("small", 1, &[("max.message.bytes", "20000")]).await;
    let log = log().await;
    let noise = |seed: u32| -> Bytes {
        let mut state = seed;
        let mut byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..50_000).map(|_| byte()).collect::<Vec<u8>>().into()
    };
    let mut outputs = records(&topic, 0, 0..6);
    outputs[2].value = Some(noise(1));
    outputs[4].value = Some(noise(2));
    let group = unique("small");
    let member = Member::open(&log, spec(&group, &topic, false)).await;
    let transaction = Transaction { outputs: outputs.clone(), ended: Vec::new() };
    let Err(NotWritten::Refused(refused)) = member.journal.transact(&transaction).await else {
        panic!("two records are too large");
    };
    let which: Vec<usize> = refused.iter().map(|(index, _)| *index).collect();
    assert_eq!(which, [2, 4]);
    for (_, fault) in &refused {
        assert_eq!((fault.next, fault.reason), (Move::SetAside, Reason::TooLarge));
    }
    let mut reader = log.read(&topic, ReadFrom::Start).await.unwrap();
    let mut values = Vec::new();
    while let Some(batch) = reader.next(false).await.unwrap() {
        values.extend(batch.records.iter().map(crate::setup::text));
    }
    assert_eq!(values, ["0", "1", "3", "5"]);
    let fault = log.append(&outputs[2..3]).await.unwrap_err();
    assert_eq!(fault.reason, Reason::TooLarge);
    // The log works as before.
    log.append(&records(&topic, 0, ["after"])).await.unwrap();
    drop(member);
}
