//! em-processor in several copies on a real Kafka, with what is held in memory or in Redis: copies
//! die at every crash point, freeze, join and leave, one has a wrong clock, Redis is emptied, the
//! broker goes away. Nothing is lost, order is kept, and what comes out again has the same name.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use potok_core::trouble::{GATHER_CRASH_POINTS, GROUP_CRASH_POINTS, STORE_CRASH_POINTS};
use potok_services::{Kafka, Redis};
use potok_traffic::Random;
use potok_traffic::gdelt::{EVENTS, GdeltGenerator, MENTIONS};
use tempfile::TempDir;

use crate::batches::{Records, outputs};
use crate::process::{Home, ProcessOutput, Running, pipelines, run};
use crate::{short_or_soak, wait};

/// How long a copy may be silent before the group gives its partitions to others.
const SESSION: Duration = Duration::from_secs(6);
/// Longer than a pipeline gives its parts to stop.
const STANDSTILL: Duration = Duration::from_secs(8);
/// What a copy says that was silent for longer.
const LOST: &str = "the group gave our partitions to others";
const WINDOW: (&str, &str) = ("BATCH_WINDOW", "700ms");

/// A folder whose settings lead to these services.
pub fn home(kafka: &Kafka, redis: Option<&Redis>) -> Home {
    let home = Home::new();
    let store = redis.map(|redis| format!("store: {{ redis: '{}' }}\n", redis.url()));
    home.settings(&format!(
        "log:\n  kafka: '{}'\n  properties: {{ session.timeout.ms: '{}', heartbeat.interval.ms: \
         '1000' }}\n{}",
        kafka.servers(),
        SESSION.as_millis(),
        store.unwrap_or_default(),
    ));
    home
}

fn start(home: &Home, environment: &[(&str, &str)]) -> Running {
    start_file(home, &pipelines().join("em-processor.yaml"), environment)
}

/// Starts a copy that keeps no body in memory: what it holds it reads back.
pub fn start_forgetful(home: &Home, environment: &[(&str, &str)]) -> Running {
    let shipped = std::fs::read_to_string(pipelines().join("em-processor.yaml")).unwrap();
    let file = home.path().join("em-processor.yaml");
    std::fs::write(&file, shipped + "\nlimits: { held_memory_bytes: 1B }\n").unwrap();
    start_file(home, &file, environment)
}

fn start_file(home: &Home, file: &Path, environment: &[(&str, &str)]) -> Running {
    home.start_file(file, environment).unwrap_or_else(|end| panic!("it ended at start: {end}"))
}

/// Starts a copy that will die at a point of its work; none where it came there while it started.
fn start_dying(home: &Home, point: &str, passing: u64) -> Option<Running> {
    let file = pipelines().join("em-processor.yaml");
    let place = format!("{point}:{passing}");
    let started = home.start_file(&file, &[WINDOW, ("POTOK_CRASH_AT", &place)]);
    let asked = format!("crash point {point}: dying as asked");
    started.inspect_err(|end| assert!(end.contains(&asked), "it ended at start: {end}")).ok()
}

/// Waits until so many records are in open groups.
fn held(running: &Running, records: usize) {
    wait::until("all records are held", || {
        let batches = running.run(["groups", "list", "--json"], b"").good().lines();
        let kinds = batches.iter().flat_map(|batch| batch["kinds"].as_object().unwrap().values());
        let held: u64 = kinds.map(|kind| kind["records"].as_u64().unwrap()).sum();
        (held == records as u64).then_some(())
    });
}

/// Runs commands straight on the log, whatever runs or does not.
pub fn by_hand(home: &Home) -> impl Fn(&[&str], &[u8]) -> ProcessOutput {
    |args, input| run(home.command(args), input)
}

/// A clock five minutes off, as something to preload.
fn wrong_clock() -> &'static Path {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, file) = BUILT.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("clock.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/services/shim/clock.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&file, &source])
            .arg("-ldl")
            .status()
            .expect("cc starts");
        assert!(built.success(), "the shim compiles");
        (dir, file)
    });
    file
}

#[test]
fn a_batch_is_gathered_held_and_comes_out_whole() {
    let (kafka, redis) = (potok_services::kafka(), Redis::start());
    let home = home(kafka, Some(&redis));
    let running = start(&home, &[("BATCH_WINDOW", "1h")]);
    let batch = GdeltGenerator::good_only(41).next_batch(1_473, 4_446);
    let all = batch.records.len();
    let mut records = Records { repeatable: true, ..Records::default() };
    assert!(records.send(&running, batch.records));
    held(&running, all);
    let members = |kind: &str| {
        let answer = redis.command(&["SCARD", &format!("batch:{kind}:{}", batch.id)]);
        answer.parse::<u64>().unwrap()
    };
    wait::until("everything is in Redis", || {
        (members("events") == 1_473 && members("mentions") > 4_000).then_some(())
    });
    assert_eq!(redis.command(&["SISMEMBER", "active:batches", &batch.id]), "1");
    // Nothing of it waits in memory only: a new process finds it as it was.
    running.kill();
    let running = start(&home, &[("BATCH_WINDOW", "1h")]);
    held(&running, all);
    running.run(["groups", "close", "em-processor", &batch.id], b"").good();
    assert_eq!(records.assert_kept(&running), 0, "nothing went out before");
    wait::until("Redis is empty of it", || {
        redis.command(&["KEYS", &format!("*{}*", batch.id)]).is_empty().then_some(())
    });
}

#[test]
fn batches_survive_everything_in_memory() {
    chaos(None, 81);
}

#[test]
fn batches_survive_everything_in_redis() {
    chaos(Some(&Redis::start()), 82);
}

fn chaos(redis: Option<&Redis>, seed: u64) {
    let kafka = Kafka::start();
    let mut random = Random::new(seed);
    let mut generator = GdeltGenerator::good_only(seed);
    let sender = home(&kafka, redis);
    let mut records = Records { repeatable: true, ..Records::default() };
    let homes = [0, 1, 2].map(|_| home(&kafka, redis));
    let late: [(&str, &str); 3] =
        [WINDOW, ("LD_PRELOAD", wrong_clock().to_str().unwrap()), ("CLOCK_OFF_SECONDS", "-300")];
    // The first copy's clock is five minutes slow for as long as it lives.
    let steady = start(&homes[0], &late);
    // The second has to read back whatever it sends.
    let mut second = Some(start_forgetful(&homes[1], &[WINDOW]));
    let mut points: Vec<&str> = [GATHER_CRASH_POINTS, GROUP_CRASH_POINTS].concat();
    if redis.is_some() {
        points.extend(STORE_CRASH_POINTS);
    }
    let rounds = points.len() as u64;
    // Why records come out again: what was done meanwhile, and how often.
    let mut done: BTreeMap<&str, u64> = BTreeMap::new();
    let mut note = |what| *done.entry(what).or_default() += 1;
    let mut deaths = 0;
    for round in 0..rounds.max(short_or_soak(0, 100)) {
        // This copy dies at the point, wherever it has come to; then the others go on.
        let point = points[round as usize % points.len()];
        let dying = start_dying(&homes[2], point, 1 + random.below(2));
        deaths += u64::from(dying.is_none());
        note("copy started to die at a crash point");
        let mut send = |batches: u64| {
            for _ in 0..batches {
                // An absent broker may leave some unacknowledged; the checker knows which.
                records.send_by(by_hand(&sender), generator.next_batch(10, 30).records);
            }
        };
        send(short_or_soak(8, 2));
        match round {
            1 => {
                if let Some(running) = &second {
                    note("copy frozen");
                    running.signal("STOP");
                    wait::pass(SESSION + SESSION);
                    send(1);
                    running.signal("CONT");
                    wait::until("it hears that others have its partitions", || {
                        running.journal().contains(LOST).then_some(())
                    });
                }
            }
            3 => {
                note("broker away");
                kafka.stop();
                wait::until("the log is in trouble", || {
                    (steady.get("/ready")?.0 == 503).then_some(())
                });
                wait::pass(Duration::from_secs(short_or_soak(5, 120)));
                kafka.restart();
            }
            5 => {
                // Everything held is lost while the broker stands still: what was under way when it
                // is read again must not stand in its way.
                if let Some(redis) = redis {
                    note("Redis flushed while the broker was frozen");
                    wait::until("something is held that can be lost", || {
                        send(1);
                        (!redis.command(&["KEYS", "batch:*"]).is_empty()).then_some(())
                    });
                    redis.command(&["FLUSHALL"]);
                }
                kafka.freeze();
                wait::pass(STANDSTILL);
                kafka.thaw();
            }
            _ => match round % 4 {
                0 => {
                    if let Some(running) = second.take() {
                        note("copy stopped");
                        assert!(running.stop().success(), "a stop in good order");
                    }
                    send(1);
                    second = Some(start_forgetful(&homes[1], &[WINDOW]));
                }
                2 => {
                    if let Some(redis) = redis {
                        note("Redis flushed");
                        redis.command(&["FLUSHALL"]);
                    }
                }
                _ => {
                    note("copy killed");
                    second.take().into_iter().for_each(Running::kill);
                    if let Some(redis) = redis {
                        note("Redis restarted empty");
                        redis.kill();
                        redis.restart();
                    }
                    second = Some(start_forgetful(&homes[1], &[WINDOW]));
                }
            },
        }
        send(short_or_soak(5, 2));
        if let Some(mut running) = dying {
            deaths += u64::from(!running.is_alive());
            running.kill();
        }
    }
    let second = second.expect("it runs");
    let count = |field| [&steady, &second].map(|one| one.status()[field].as_u64().unwrap());
    let takeovers = || count("resumed_seals").iter().sum::<u64>();
    // What was taken over by copies that are gone is not counted. Whoever dies behind a seal leaves it.
    for _ in 0..20 {
        if takeovers() > 0 {
            break;
        }
        note("copy started to die behind a seal");
        let dying = start_dying(&homes[2], "seal.after", 1);
        for _ in 0..4 {
            records.send_by(by_hand(&sender), generator.next_batch(10, 30).records);
        }
        wait::pass(SESSION + SESSION);
        dying.into_iter().for_each(Running::kill);
        for running in [&steady, &second] {
            running.drained();
        }
    }
    for running in [&steady, &second] {
        running.drained();
    }
    let repeats = records.assert_kept(&steady);
    let sent = records.sent.len();
    assert!(sent >= 40 * short_or_soak(100, 400) as usize, "{sent} records are too few");
    assert_order_is_kept(&steady);
    println!(
        "{sent} records in {} batches; {repeats} came out again, after {:?} takeovers and {:?} \
         re-reads of the two copies that are left, and {done:?}",
        sent / 40,
        count("resumed_seals"),
        count("store_rebuilds"),
    );
    assert!(deaths > 0, "no copy came to its crash point: nothing was cut off in the middle");
    assert!(takeovers() > 0, "nothing was taken over in the middle of a group");
    let lost = redis.is_none() || count("store_rebuilds")[0] > 0;
    assert!(lost, "nothing was read again, though Redis was emptied");
}

/// Redis is emptied, which makes everything be read again, while the broker stands still in the middle
/// of a transaction. Nobody has to resume anything.
#[test]
fn a_re_read_while_the_broker_stands_still_needs_nobody() {
    let (kafka, redis) = (Kafka::start(), Redis::start());
    let home = home(&kafka, Some(&redis));
    let running = start(&home, &[("BATCH_WINDOW", "1s")]);
    let mut generator = GdeltGenerator::good_only(83);
    let mut records = Records { repeatable: true, ..Records::default() };
    let (mut rereads, mut rounds) = (0, 0);
    while rereads == 0 || rounds < short_or_soak(2, 20) {
        assert!(rounds < 20, "the fault does not bite");
        rounds += 1;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..12 {
                    records.send_by(by_hand(&home), generator.next_batch(100, 300).records);
                }
            });
            // While records are on their way into Redis.
            wait::until("something is held", || (redis.command(&["DBSIZE"]) != "0").then_some(()));
            redis.command(&["FLUSHALL"]);
            // Somebody notices, and transactions are still under way.
            wait::pass(Duration::from_millis(30));
            kafka.freeze();
            wait::pass(Duration::from_secs(8));
            kafka.thaw();
        });
        let status = running.drained();
        rereads = status["store_rebuilds"].as_u64().unwrap();
    }
    println!("{rereads} re-reads in {rounds} rounds");
    records.assert_kept(&running);
}

/// True where `status`, `/ready` and the metrics say that it waits for that.
fn says(running: &Running, what: &str) -> bool {
    let waits = running.status()["waits"].to_string();
    let (_, ready) = running.get("/ready").unwrap();
    let (_, metrics) = running.get("/metrics").unwrap();
    let metric = format!("potok_pipeline_waiting{{pipeline=\"em-processor\",for=\"{what}\"}} 1");
    let what = format!("\"for\":\"{what}\"");
    waits.contains(&what)
        && ready.contains("\"pipeline\":\"em-processor\"")
        && ready.contains(&what)
        && metrics.lines().any(|line| line == metric)
}

/// Each line about a pipeline names it; the others are about the process and its log.
fn lines_name_their_pipeline(running: &Running) {
    let journal = running.journal();
    let own = ["the log", "Kafka", "broker", "stopping:"];
    let is_said = |line: &&str| [" WARN ", " INFO ", " ERROR "].iter().any(|l| line.contains(l));
    for line in journal.lines().filter(is_said) {
        // The clients of the process speak too; one that writes transactions is a pipeline's.
        let is_clients = line.contains("librdkafka") && !line.contains("TXN");
        let is_own = is_clients || own.iter().any(|own| line.contains(own));
        assert!(is_own || line.contains("pipeline=em-processor"), "{line}");
    }
    let of_waits = journal.lines().filter(|line| line.contains("work waits"));
    assert!(of_waits.clone().count() > 0, "{journal}");
    of_waits.for_each(|line| assert!(line.contains("pipeline=em-processor"), "{line}"));
}

/// Whatever gathering waits for is said in the log and to all who ask, and over when it is over.
#[test]
fn what_gathering_waits_for_is_said_to_all_who_ask() {
    let kafka = Kafka::start();
    let home = home(&kafka, None);
    let running = start(&home, &[WINDOW]);
    let mut generator = GdeltGenerator::good_only(84);
    let mut records = Records { repeatable: true, ..Records::default() };
    records.send_by(by_hand(&home), generator.next_batch(100, 300).records);
    running.drained();
    // Without a broker it is the log that is in trouble.
    let in_trouble = || {
        let status = running.status();
        let waits = status["state"] == "waiting" && status["why"].is_string();
        let (code, _) = running.get("/ready").unwrap();
        let (_, metrics) = running.get("/metrics").unwrap();
        let metric = metrics.lines().any(|line| line == "potok_log_trouble_state 1");
        [waits, code == 503, metric]
    };
    kafka.stop();
    wait::until("all say so", || (in_trouble() == [true; 3]).then_some(()));
    kafka.restart();
    wait::until("that is over", || (in_trouble() == [false; 3]).then_some(()));
    // Whether a transaction is under way when the broker stops is chance.
    let is_said = (0..20).any(|_| {
        let batch = generator.next_batch(1_473, 4_446).records;
        std::thread::scope(|scope| {
            scope.spawn(|| records.send_by(by_hand(&home), batch));
            let received = || running.status()["received"].as_u64().unwrap();
            let before = received();
            wait::until("some are gathered", || (received() > before).then_some(()));
            kafka.freeze();
            let is_said = (0..30).any(|_| {
                wait::pass(Duration::from_millis(500));
                says(&running, "gathering")
            });
            kafka.thaw();
            is_said
        })
    });
    assert!(is_said, "no transaction was cut off in the middle");
    wait::until("that is over", || (!says(&running, "gathering")).then_some(()));
    running.drained();
    records.assert_kept(&running);
    lines_name_their_pipeline(&running);
}

/// Of the records that lie in one partition of an output topic, those of one batch and one source
/// partition come in the order in which the source has them, when repeats are left out.
fn assert_order_is_kept(running: &Running) {
    let mut sources: HashMap<(String, String), Vec<(u64, u64)>> = HashMap::new();
    for topic in [EVENTS, MENTIONS] {
        for line in running.run(["read", topic], b"").good().lines() {
            let place = |name: &str| line[name].as_u64().unwrap();
            let headers = line["headers"].as_array().unwrap();
            let batch = headers.iter().find(|header| header[0] == "batchId").unwrap();
            let value: serde_json::Value =
                serde_json::from_str(line["value"].as_str().unwrap()).unwrap();
            let mut id = value["GlobalEventId"].to_string();
            if topic == MENTIONS {
                id = format!("{id}_{}", value["MentionIdentifier"].as_str().unwrap());
            }
            let batch = batch[1].as_str().unwrap().to_owned();
            let place = (place("partition"), place("offset"));
            sources.entry((batch, id)).or_default().push(place);
        }
    }
    let mut all = outputs(running);
    all.sort_by_key(|one| (one.partition, one.offset));
    let mut last: HashMap<(&str, u64, &str, u64), u64> = HashMap::new();
    let mut seen = std::collections::HashSet::new();
    for one in all.iter().filter(|one| seen.insert(&one.what)) {
        let name = (one.what.batch.clone(), one.what.key.clone());
        // Of several with one id it is not said which came out.
        let Some(&[(from, offset)]) = sources.get(&name).map(Vec::as_slice) else { continue };
        let lane = (one.what.topic, one.partition, &*one.what.batch, from);
        let before = last.insert(lane, offset).unwrap_or_default();
        assert!(before <= offset, "{:?} overtook another in {lane:?}", one.what);
    }
}
