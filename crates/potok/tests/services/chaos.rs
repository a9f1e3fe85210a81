//! Everything at once: copies are killed and join and leave, the database freezes, its replies
//! vanish, the broker restarts, the topic gets more partitions, all while orders come in.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use potok_services::{Kafka, Mode};
use potok_traffic::Random;

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

fn chaos(database: &Database, seed: u64) {
    let kafka = Kafka::start();
    let settings = Settings::new(&kafka, database);
    let orders = short_or_soak(12_000, 200_000);
    let (enough, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut sender = Sender::new(&settings, seed);
    assert!(sender.send(CALL), "the first orders make the topic");
    let mut replicas = [Replica::start(&settings), Replica::start(&settings)];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while sent.load(Ordering::Relaxed) < orders {
                // A broker that restarts may leave some unacknowledged; the ledger knows which.
                sender.send(CALL);
                sent.fetch_add(CALL, Ordering::Relaxed);
            }
            enough.store(true, Ordering::Relaxed);
        });
        let mut random = Random::new(seed);
        for round in 0.. {
            trouble(round, &kafka, database, &settings, &mut replicas, &mut random);
            if round + 1 >= short_or_soak(8, 40) && enough.load(Ordering::Relaxed) {
                break;
            }
        }
    });
    assert!(sender.ledger.has_every_kind());
    let [one, other] = &replicas;
    assert_kept(database, &[one, other], &sender.ledger);
}

/// One of the troubles, in turn.
fn trouble(
    round: u64,
    kafka: &Kafka,
    database: &Database,
    settings: &Settings,
    replicas: &mut [Replica<'_>; 2],
    random: &mut Random,
) {
    let moment = Duration::from_secs(2);
    match round % 8 {
        0 | 4 => {
            replicas[0].kill();
            wait::random_moment(random, moment);
            replicas[0].restart();
        }
        1 => {
            database.freeze();
            wait::pass(Duration::from_secs(short_or_soak(6, 30 + 90 * (round / 8 % 2))));
            database.thaw();
        }
        2 => {
            database.pass(Mode::DropReplies);
            wait::random_moment(random, moment);
            database.pass(Mode::Pass);
        }
        3 => {
            // A third copy joins and leaves: two rebalances. The first time while the topic grows.
            if round < 8 {
                kafka.add_partitions("orders", 6);
            }
            let mut third = Replica::start(settings);
            wait::random_moment(random, moment);
            third.stop();
        }
        5 => {
            database.kill();
            wait::random_moment(random, moment);
            database.restart();
        }
        6 => kafka.restart(),
        _ => {
            replicas[1].kill();
            database.pass(Mode::Cut);
            wait::random_moment(random, moment);
            database.pass(Mode::Pass);
            replicas[1].restart();
        }
    }
    wait::random_moment(random, moment);
}
