//! Memory and descriptors over many generations of connections, sessions and groups: whatever comes
//! and goes around a process, it does not grow by it.

use std::fs;
use std::time::Duration;

use potok_services::{Kafka, Mode, Redis};
use potok_traffic::gdelt::GdeltGenerator;

use crate::batches::Records;
use crate::database::Database;
use crate::process::{Home, Running, pipelines, run};
use crate::replica::{Replica, Sender, Settings, assert_kept};
use crate::{short_or_soak, wait};

/// What a process may grow by after it has warmed up: caches of the allocator, no more.
const GROWTH_BYTES_MAX: u64 = 48 << 20;
/// Connections come and go; so many more than before are nobody's.
const DESCRIPTORS_MAX: usize = 24;

/// What a process has of the system.
#[derive(Clone, Copy, Debug)]
struct Holds {
    resident: u64,
    descriptors: usize,
}

impl Holds {
    fn of(running: &Running) -> Holds {
        let folder = format!("/proc/{}", running.pid());
        let status = fs::read_to_string(format!("{folder}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse().unwrap();
        let descriptors = fs::read_dir(format!("{folder}/fd")).unwrap().count();
        Holds { resident: kilobytes << 10, descriptors }
    }

    #[track_caller]
    fn assert_no_more_than(self, warm: Holds, what: &str) {
        let grown = self.resident.saturating_sub(warm.resident);
        assert!(grown <= GROWTH_BYTES_MAX, "{what}: {warm:?} became {self:?}");
        let more = self.descriptors.saturating_sub(warm.descriptors);
        assert!(more <= DESCRIPTORS_MAX, "{what}: {warm:?} became {self:?}");
    }
}

/// Restarts of the database, of its network and of the broker, with work in between.
#[test]
fn services_that_come_and_go_cost_a_process_nothing() {
    let (kafka, database) = (Kafka::start(), Database::postgres());
    let settings = Settings::new(&kafka, &database);
    let mut sender = Sender::new(&settings, 74);
    assert!(sender.send(400));
    let replica = Replica::start(&settings);
    let mut warm = None;
    // The first rounds fill what is filled once: pools, caches, arenas.
    let rounds = 3 + short_or_soak(5, 200);
    for round in 0..rounds {
        match round % 3 {
            0 => database.restart(),
            1 => {
                database.pass(Mode::Cut);
                wait::pass(Duration::from_millis(500));
                database.pass(Mode::Pass);
            }
            _ => kafka.restart(),
        }
        for _ in 0..5 {
            sender.send(400);
        }
        replica.running().drained();
        let now = Holds::of(replica.running());
        println!("round {round}: {now:?}");
        match warm {
            None if round == 2 => warm = Some(now),
            None => {}
            Some(warm) => now.assert_no_more_than(warm, &format!("round {round}")),
        }
    }
    assert_eq!(replica.running().status()["restarts"], 0);
    assert_kept(&database, &[&replica], &sender.ledger);
}

/// Groups that open, close and are lost with their store, again and again.
#[test]
fn groups_that_come_and_go_cost_a_process_nothing() {
    let (home, redis) = (Home::new(), Redis::start());
    let environment = [("POTOK_STORE", &*redis.url()), ("BATCH_WINDOW", "300ms")];
    let running = home.start_file(&pipelines().join("em-processor.yaml"), &environment).unwrap();
    let mut generator = GdeltGenerator::good_only(75);
    let mut records = Records { repeatable: true, ..Records::default() };
    let mut warm = None;
    let rounds = 3 + short_or_soak(6, 300);
    for round in 0..rounds {
        for _ in 0..10 {
            let batch = generator.next_batch(20, 60);
            assert!(records.send(&running, batch.records));
        }
        match round % 3 {
            0 => drop(redis.command(&["FLUSHALL"])),
            1 => redis.restart(),
            _ => drop(run(home.command(["groups", "list"]), b"")),
        }
        running.drained();
        let now = Holds::of(&running);
        println!("round {round}: {now:?}");
        match warm {
            None if round == 2 => warm = Some(now),
            None => {}
            Some(warm) => now.assert_no_more_than(warm, &format!("round {round}")),
        }
    }
    let status = running.status();
    assert!(
        status["store_rebuilds"].as_u64() > Some(0),
        "the store was lost, and nobody noticed: {status}"
    );
    records.assert_kept(&running);
}
