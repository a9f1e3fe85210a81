//! Everything at once: copies are killed and join and leave, the database freezes, its replies
//! vanish, the broker restarts, the topic gets more partitions, all while orders come in.
//!
//! Each trouble lasts until it is seen to bite: a gate closes, work under way is cut off, a copy that
//! joins is given records, the log is in trouble. One that nobody notices proves nothing, and fails
//! the test.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use potok_services::{Kafka, Mode};
use potok_traffic::Random;
use serde_json::Value;

use crate::database::Database;
use crate::replica::{Replica, Sender, Settings, assert_kept};
use crate::short_or_soak;
use crate::wait;

/// How many orders one call sends.
const CALL: u64 = 400;

#[test]
fn orders_survive_everything_on_the_way_into_postgresql() {
    chaos(&Database::postgres(), 71);
}

#[test]
fn orders_survive_everything_on_the_way_into_mariadb() {
    chaos(&Database::mariadb(), 72);
}

/// A connection that is cut every second: each time something is under way, and nothing healthy is
/// set aside for it.
#[test]
fn a_database_that_flaps_every_second_sets_nothing_aside() {
    let (kafka, database) = (Kafka::start(), Database::postgres());
    let settings = Settings::new(&kafka, &database);
    let mut sender = Sender::good_only(&settings, 73);
    assert!(sender.send(CALL));
    let replica = Replica::start(&settings);
    let mut closed = 0;
    for _ in 0..short_or_soak(12, 300) {
        database.pass(Mode::Cut);
        assert!(sender.send(CALL));
        wait::pass(Duration::from_secs(1));
        closed += u64::from(gate_is_closed(&replica.running().status()));
        database.pass(Mode::Pass);
        wait::pass(Duration::from_secs(1));
    }
    assert!(closed > 0, "the gate was never seen closed: the trouble did not bite");
    assert_kept(&database, &[&replica], &sender.ledger);
    let status = replica.running().status();
    assert_eq!((&status["dead_lettered"], &status["restarts"]), (&0.into(), &0.into()), "{status}");
}

fn chaos(database: &Database, seed: u64) {
    let kafka = Kafka::start();
    let settings = Settings::new(&kafka, database);
    let orders = short_or_soak(12_000, 200_000);
    let (enough, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let (hush, hushed) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut sender = Sender::new(&settings, seed);
    assert!(sender.send(CALL), "the first orders make the topic");
    let mut replicas = [Replica::start(&settings), Replica::start(&settings)];
    std::thread::scope(|scope| {
        // Also when a trouble fails, or the sender would never end.
        let _enough = SetOnDrop(&enough);
        scope.spawn(|| {
            while !enough.load(Ordering::Relaxed) {
                // A broker that restarts may leave some unacknowledged; the ledger knows which.
                sender.send(CALL);
                sent.fetch_add(CALL, Ordering::Relaxed);
                hushed.store(hush.load(Ordering::SeqCst), Ordering::SeqCst);
                wait::until("the sender may go on", || {
                    let stop = enough.load(Ordering::Relaxed);
                    (stop || !hush.load(Ordering::SeqCst)).then_some(())
                });
            }
        });
        let mut random = Random::new(seed);
        for round in 0.. {
            let hush = (&hush, &hushed);
            let chaos = Chaos { kafka: &kafka, database, settings: &settings, hush, round };
            chaos.trouble(&mut replicas, &mut random);
            let done = sent.load(Ordering::Relaxed) >= orders;
            if round + 1 >= short_or_soak(8, 40) && done {
                break;
            }
        }
    });
    assert!(sender.ledger.has_every_kind());
    let [one, other] = &replicas;
    assert_kept(database, &[one, other], &sender.ledger);
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What there is to trouble.
struct Chaos<'a> {
    kafka: &'a Kafka,
    database: &'a Database,
    settings: &'a Settings,
    /// Asks the sender to be silent, and says that it is.
    hush: (&'a AtomicBool, &'a AtomicBool),
    round: u64,
}

impl Chaos<'_> {
    /// One of the troubles, in turn.
    fn trouble(&self, replicas: &mut [Replica<'_>; 2], random: &mut Random) {
        let Chaos { kafka, database, settings, round, .. } = *self;
        let moment = Duration::from_secs(2);
        match round % 8 {
            0 | 4 => {
                self.bites("work that is cut off", &replicas[..1], is_at_work);
                replicas[0].kill();
                wait::random_moment(random, moment);
                replicas[0].restart();
            }
            1 => {
                database.freeze();
                self.bites("a frozen database", &*replicas, gate_is_closed);
                wait::pass(Duration::from_secs(short_or_soak(1, 30 + 90 * (round / 8 % 2))));
                database.thaw();
            }
            2 => {
                database.pass(Mode::DropReplies);
                self.bites("lost replies", &*replicas, gate_is_closed);
                database.pass(Mode::Pass);
            }
            3 => {
                // A third copy joins and leaves: two rebalances. The first time while the topic grows.
                if round < 8 {
                    self.grow(replicas);
                }
                let mut third = Replica::start(settings);
                let third_works = |status: &Value| status["received"].as_u64() > Some(0);
                self.bites("a copy that joins", std::slice::from_ref(&third), third_works);
                third.stop();
            }
            5 => {
                database.kill();
                self.bites("a killed database", &*replicas, gate_is_closed);
                database.restart();
            }
            6 => {
                kafka.stop();
                let replica = &replicas[0];
                wait::until("the log is in trouble", || {
                    (replica.running().get("/ready")?.0 == 503).then_some(())
                });
                kafka.restart();
            }
            _ => {
                self.bites("work that is cut off", &replicas[1..], is_at_work);
                replicas[1].kill();
                database.pass(Mode::Cut);
                self.bites("a cut connection", &replicas[..1], gate_is_closed);
                database.pass(Mode::Pass);
                replicas[1].restart();
            }
        }
        wait::random_moment(random, moment);
    }

    /// Gives the topic more partitions. Kafka then sends keys to other partitions than before, old
    /// ones among them, and between two partitions there is no order: so everything is worked off
    /// first.
    fn grow(&self, replicas: &[Replica<'_>; 2]) {
        let (hush, hushed) = self.hush;
        hush.store(true, Ordering::SeqCst);
        wait::until("the sender is silent", || hushed.load(Ordering::SeqCst).then_some(()));
        wait::until("everything sent has ended", || {
            let idle = |status: Value| status["lag"] == 0 && status["in_flight"] == 0;
            replicas.iter().all(|replica| idle(replica.running().status())).then_some(())
        });
        self.kafka.add_partitions("orders", 6);
        hush.store(false, Ordering::SeqCst);
    }

    /// Waits until one of the copies shows it.
    fn bites(&self, what: &str, replicas: &[Replica<'_>], shows: impl Fn(&Value) -> bool) {
        wait::until(&format!("{what} bites in round {}", self.round), || {
            replicas.iter().any(|replica| shows(&replica.running().status())).then_some(())
        });
    }
}

fn gate_is_closed(status: &Value) -> bool {
    status["gate"]["state"].as_str().is_some_and(|state| state != "open")
}

fn is_at_work(status: &Value) -> bool {
    status["in_flight"].as_u64() > Some(0)
}
