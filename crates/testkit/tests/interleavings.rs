//! Interleavings that break weaker rules, each by name, on the simulated systems. Each run also
//! checks that work finishes, and every other promise.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use potok_core::{Envelope, Headers, Log, Output, Reason, Timestamp};
use potok_flow::dead_letter::{self, DeadLetter, DeadLetterState, Resolution};
use potok_flow::{Engine, Status};
use potok_testkit::sim::{
    Act, DEAD, Deliver, LARGE, LogHandle, Manner, Outcome, PIPELINE, RecordKind, Recovery,
    Scenario, SimClock, SimLog, SimTarget, Spell, StageManner, Style, Trouble, World, plan, record,
    run,
};

fn sink(style: Style) -> Deliver {
    let to = SimTarget::Sink(Manner { style, ..Manner::default() });
    Deliver { to, key_by_k: false, once: false }
}

fn topic(name: &str) -> Deliver {
    Deliver { to: SimTarget::Topic(name.into()), key_by_k: false, once: false }
}

fn run_well(scenario: Scenario) -> Outcome {
    let outcome = run(scenario).unwrap();
    if let Err(why) = outcome.verdict() {
        outcome.trace.iter().rev().take(40).rev().for_each(|line| println!("{line}"));
        panic!("{why}");
    }
    outcome
}

/// Ids of what lies in a table, in order of arrival.
fn ids(world: &World, table: usize) -> Vec<String> {
    let id = |value: &[u8]| {
        let value: serde_json::Value = serde_json::from_slice(value).unwrap();
        value["id"].as_str().unwrap().to_owned()
    };
    world.with(|w| w.tables[table].rows.iter().map(|row| id(&row.source)).collect())
}

/// A record is replayed, and the log refuses what it makes once more: it has failed again, and
/// nobody is told that it was delivered.
#[test]
fn a_replay_whose_output_the_log_refuses_is_not_noted_as_delivered() {
    let mut scenario = Scenario::plain(2);
    scenario.overlap = 4;
    scenario.enabled.insert(Trouble::TooLarge);
    scenario.delivers = vec![topic("out")];
    let mut large = record(RecordKind::Good, "large", "a");
    let value = large.value.take().unwrap_or_default();
    large.value = Some([&value[..], " ".repeat(LARGE).as_bytes()].concat().into());
    scenario.acts = vec![(10, Act::Send(vec![record(RecordKind::Good, "small", "a"), large]))];
    let outcome = run_well(scenario);
    let resolved = dead_letter::info(PIPELINE, DEAD, 20).resolved;
    let ends: Vec<_> = outcome.world.with(|w| {
        let notes = w.disk.records(&resolved).filter_map(|(_, note)| Resolution::read(note));
        notes.filter_map(|note| note.outcome).collect()
    });
    assert_eq!(ends, [dead_letter::Outcome::DeadLettered]);
}

/// 14: the left half of a batch fails, the right half holds the same key.
#[test]
fn a_split_keeps_the_order_of_a_key() {
    for style in [Style::Whole, Style::Prefix, Style::PerMessage] {
        let mut sent = vec![record(RecordKind::Poison, "p1", "a")];
        sent.extend((0..8).map(|n| record(RecordKind::Good, &n.to_string(), ["a", "b"][n % 2])));
        sent.insert(5, record(RecordKind::Poison, "p2", "b"));
        let mut scenario = Scenario::plain(14);
        scenario.delivers = vec![sink(style)];
        scenario.acts = vec![(10, Act::Send(sent))];
        let outcome = run_well(scenario);
        let arrived = ids(&outcome.world, 0);
        for n in 0..8 {
            assert!(arrived.contains(&n.to_string()), "{style:?}: {n} is missing in {arrived:?}");
        }
    }
}

/// 15: a replay fails again and is still listed; of two deliver entries only the one that failed
/// runs again.
#[test]
fn a_replay_runs_only_what_failed_and_is_listed_when_it_fails_again() {
    let mut scenario = Scenario::plain(15);
    scenario.delivers = vec![sink(Style::Whole), topic("out")];
    scenario.acts = vec![
        (
            10,
            Act::Send(vec![
                record(RecordKind::Refused, "never", "a"),
                record(RecordKind::Late, "later", "b"),
                record(RecordKind::Good, "good", "c"),
            ]),
        ),
        (5_000, Act::Replay(10)),
        (10_000, Act::Mend),
        (15_000, Act::Replay(10)),
    ];
    let outcome = run_well(scenario);
    let arrived = ids(&outcome.world, 0);
    assert!(arrived.contains(&"later".to_owned()), "the mended destination took it: {arrived:?}");
    // The topic took everything at the first attempt, and nothing twice.
    let copies = outcome.world.with(|w| {
        let mut copies: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        for (_, output) in w.disk.records("out") {
            *copies.entry(output.value.clone().unwrap().to_vec()).or_default() += 1;
        }
        copies
    });
    assert!(copies.len() >= 3 && copies.values().all(|&n| n == 1), "{copies:?}");
    // Every replay of the refused one is an entry of its own; the last one is open.
    let never: Vec<_> = outcome
        .letters
        .iter()
        .filter(|letter| letter.record.key.as_deref() == Some(b"a"))
        .map(|letter| (letter.envelope.attempts, letter.state))
        .collect();
    let open = |attempts| (attempts, DeadLetterState::Open);
    let replayed = |attempts| (attempts, DeadLetterState::Replayed);
    assert_eq!(never, [replayed(1), replayed(2), replayed(3), open(4)]);
}

/// 16: the destination is down, read-only, or answers 500 to everything, and the process is
/// killed ten times: no healthy record becomes a dead letter.
#[test]
fn an_outage_with_ten_kills_makes_no_dead_letters() {
    for trouble in [Trouble::SinkAway, Trouble::SinkReadOnly, Trouble::SinkRetriesAll] {
        for (seed, style) in
            [Style::Whole, Style::Prefix, Style::PerMessage].into_iter().enumerate()
        {
            let mut scenario = Scenario::plain(seed as u64);
            scenario.enabled = BTreeSet::from([Trouble::SinkSlow, Trouble::TransactSlow]);
            scenario.partitions = 3;
            scenario.workers = vec![1, 4, 2, 3];
            scenario.delivers = vec![sink(style)];
            scenario.spells.insert(0, vec![Spell { from: 3_000, to: 200_000, trouble }]);
            scenario.acts = outage_with_kills();
            let outcome = run_well(scenario);
            assert!(outcome.letters.is_empty(), "{trouble:?}, {style:?}: {:?}", outcome.letters);
            let arrived: BTreeSet<String> = ids(&outcome.world, 0).into_iter().collect();
            for n in 0..60 {
                assert!(arrived.contains(&n.to_string()), "{trouble:?}, {style:?}: {n} is missing");
            }
            let closed = outcome.tally.recoveries(Recovery::GateClosed);
            assert!(closed > 0, "{trouble:?}, {style:?}: the gate never closed");
        }
    }
}

fn outage_with_kills() -> Vec<(u64, Act)> {
    let mut acts = Vec::new();
    for n in 0..60_u64 {
        let output = record(RecordKind::Good, &n.to_string(), &format!("k{}", n % 7));
        acts.push((n * 1_000, Act::Send(vec![output])));
    }
    for n in 0..10_u64 {
        let kill = if n % 2 == 0 { Act::Crash } else { Act::CrashInCalls(3 + n) };
        acts.push((4_000 + n * 5_700, kill));
    }
    acts.sort_by_key(|(at, _)| *at);
    acts
}

/// 17, first half: delivered, killed before it was noted, then another expression and another
/// `once_by`: the re-read is dropped as a duplicate by position.
#[test]
fn a_changed_pipeline_recognises_duplicates_by_delivery_id() {
    let world = World::calm(17, 1);
    let mut scenario = Scenario::plain(17);
    scenario.delivers[0].once = true;
    let sent: Vec<Output> =
        (0..5).map(|n| record(RecordKind::Good, &n.to_string(), &format!("k{n}"))).collect();
    // Dies when the destination has written and nobody has noted it.
    in_life(&world, &scenario, |engine| {
        let world = world.clone();
        async move {
            engine.log().append(&sent).await.unwrap();
            while world.with(|w| w.tables.first().is_none_or(|table| table.rows.is_empty())) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let rows = world.with(|w| w.tables[0].rows.len());
    assert!(rows > 0 && position(&world) == 0, "killed too late or too early: {rows} rows");

    scenario.delivers[0] = Deliver { key_by_k: true, once: false, ..sink(Style::Whole) };
    scenario.stage = Some(StageManner { rewrites: true, dead_letters: true });
    let status = in_life(&world, &scenario, |engine| {
        let world = world.clone();
        async move {
            while position(&world) < 5 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            engine.status().await
        }
    });
    assert_eq!(ids(&world, 0), ["0", "1", "2", "3", "4"]);
    assert_eq!(status[0].duplicates, rows as u64, "{status:?}");
}

/// One life of an engine on this world; it ends, as by a crash, when `work` does.
fn in_life<T, F: Future<Output = T>>(
    world: &Arc<World>,
    scenario: &Scenario,
    work: impl FnOnce(Engine) -> F,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        world.begin_life();
        let log: Arc<dyn Log> = Arc::new(LogHandle::new(SimLog::open(world.clone())));
        let engine = Engine::new(log, Arc::new(SimClock::new(world.clone())), None);
        engine.start(plan(world, scenario, 1).unwrap()).unwrap();
        let bound = Duration::from_secs(600);
        let result = tokio::time::timeout(bound, work(engine)).await.expect("work finishes");
        world.end_life();
        result
    })
}

/// Where the pipeline stands in `in/0`.
fn position(world: &World) -> u64 {
    let partition = potok_core::Partition { topic: "in".into(), index: 0 };
    world.with(|w| w.disk.progress("sim-group", &partition).map_or(0, |p| p.position))
}

/// 17, second half: two different orders with one id in one batch are one row and one dead
/// letter; the same order twice is one row and no dead letter.
#[test]
fn one_id_in_one_batch_is_one_row() {
    let order = |text: &str| {
        let mut output = record(RecordKind::Good, "same", "k");
        let mut value = output.value.take().unwrap().to_vec();
        value.extend_from_slice(text.as_bytes());
        output.value = Some(value.into());
        output
    };
    let mut scenario = Scenario::plain(170);
    scenario.delivers[0].once = true;
    scenario.acts = vec![(10, Act::Send(vec![order(""), order(" "), order("")]))];
    let outcome = run_well(scenario);
    let same = ids(&outcome.world, 0).iter().filter(|id| *id == "same").count();
    assert_eq!(same, 1);
    let open: Vec<_> =
        outcome.letters.iter().filter(|l| l.state == DeadLetterState::Open).collect();
    assert_eq!(open.len(), 1, "{:?}", outcome.letters);
    assert_eq!(open[0].envelope.reason, Reason::Conflict);
    assert_eq!(open[0].envelope.origin.offset, 1, "the second one is the other order");
}

/// A poisonous record at the head of the only lane: the healthy ones behind it get through, and it
/// is found, though at first there is nobody to witness that the destination works.
#[test]
fn poison_at_the_head_of_the_only_lane_is_found() {
    for style in [Style::Whole, Style::Prefix, Style::PerMessage] {
        for keys in [1, 3] {
            let mut scenario = Scenario::plain(99);
            scenario.delivers = vec![sink(style)];
            let mut sent = vec![record(RecordKind::Poison, "p", "k0")];
            sent.extend(
                (0..5).map(|n| record(RecordKind::Good, &n.to_string(), &format!("k{}", n % keys))),
            );
            scenario.acts = vec![(10, Act::Send(sent))];
            let outcome = run_well(scenario);
            let reasons: BTreeSet<_> =
                outcome.letters.iter().map(|l| l.envelope.reason.word()).collect();
            assert_eq!(reasons, BTreeSet::from(["retries_exhausted"]), "{style:?}, {keys} keys");
        }
    }
}

/// A status is plain data for tools: it can be printed as one JSON object.
#[test]
fn the_last_status_of_a_run_adds_up() {
    let mut scenario = Scenario::plain(5);
    scenario.stage = Some(StageManner { rewrites: false, dead_letters: true });
    scenario.acts = vec![(
        10,
        Act::Send(vec![
            record(RecordKind::Good, "1", "a"),
            record(RecordKind::Filtered, "2", "a"),
            record(RecordKind::StageFails, "3", "a"),
            record(RecordKind::Undecodable, "4", "a"),
        ]),
    )];
    let outcome = run_well(scenario);
    let status: Status = outcome.status.unwrap();
    assert_eq!(status.in_flight, 0);
    assert_eq!(status.filtered, 1);
    assert_eq!(
        status.received,
        status.delivered + status.filtered + status.duplicates + status.dead_lettered
    );
}

/// The answer to a dead letter without a key is lost, so that it is written again, into another
/// partition; in between somebody has replayed the first. It is one dead letter, and it is on its
/// way.
#[test]
fn a_dead_letter_that_is_written_again_elsewhere_is_replayed_once() {
    let (scenario, world) = (Scenario::plain(15), World::calm(15, 2));
    let letter = |partition| {
        let envelope = Envelope {
            pipeline: PIPELINE.into(),
            origin: "in/0/1@0000000000000001".parse().unwrap(),
            deliver: None,
            reason: Reason::Undecodable,
            error: "no".into(),
            attempts: 1,
            time: Timestamp(5),
            replay_of: None,
            shard: None,
            piece: None,
        };
        let headers = envelope.headers(&Headers::none());
        let (topic, partition) = (DEAD.into(), Some(partition));
        Output { topic, partition, key: None, headers, value: Some("{".into()) }
    };
    let listed = in_life(&world, &scenario, |engine| async move {
        let (log, info) = (engine.log().as_ref(), dead_letter::info(PIPELINE, DEAD, 5));
        engine.pause(PIPELINE).unwrap();
        log.append(&[letter(1)]).await.unwrap();
        let first = dead_letter::list(log, &info).await.unwrap();
        dead_letter::replay(log, &info, &first, engine.clock().as_ref()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        log.append(&[letter(0)]).await.unwrap();
        (first, dead_letter::list(log, &info).await.unwrap())
    });
    let (first, then) = listed;
    let all = |letters: &[DeadLetter]| -> Vec<(String, DeadLetterState)> {
        letters.iter().map(|letter| (letter.id.clone(), letter.state)).collect()
    };
    assert_eq!(all(&first), [(format!("{DEAD}/1/0"), DeadLetterState::Open)]);
    // Which of the two stands for both depends on which is read first.
    assert_eq!(all(&then), [(format!("{DEAD}/0/0"), DeadLetterState::Replaying)]);
}
