//! Who is to blame: an order that PostgreSQL keeps refusing, or PostgreSQL?

use potok_traffic::orders::{Order, OrderGenerator};
use serde_json::Value;

use crate::check::{Letter, assert_adds_up};
use crate::database::Database;
use crate::ledger::Ledger;
use crate::process::{Home, Running};
use crate::wait;

/// A server whose table of orders refuses inserts as `refused` says: all of one order, and of the
/// others this share.
const TRIGGER: &str = "
    CREATE TABLE refused (order_uid text, share float);
    INSERT INTO refused VALUES ('', 0);
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF EXISTS (SELECT FROM refused r WHERE r.order_uid = NEW.order_uid OR random() < r.share) THEN
            RAISE EXCEPTION 'could not write block' USING ERRCODE = 'XX000';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION refuse();";

struct Bench {
    database: Database,
    running: Running,
    generator: OrderGenerator,
    ledger: Ledger,
    _home: Home,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let (database, home) = (Database::postgres(), Home::new());
        let url = database.url();
        let running = home.start_with(&[("POTOK_DB_ORDERS", &url), ("WORKERS", "2")]).unwrap();
        let generator = OrderGenerator::good_only(seed);
        let mut bench =
            Bench { database, running, generator, ledger: Ledger::default(), _home: home };
        bench.send(5);
        bench.running.drained();
        bench.database.query(TRIGGER);
        bench
    }

    fn send(&mut self, count: usize) {
        let orders = (0..count).map(|_| self.generator.next_order()).collect();
        self.send_these(orders);
    }

    fn send_these(&mut self, orders: Vec<Order>) {
        let lines: Vec<u8> =
            orders.iter().flat_map(|order| [&order.bytes[..], b"\n"].concat()).collect();
        assert!(self.running.send_lines(&lines, &["--key", ".order_uid"]));
        self.ledger.note(orders, true);
    }

    fn refuse(&self, set: &str) {
        self.database.query(&format!("UPDATE refused SET {set}"));
    }

    fn letters(&self) -> Vec<Letter> {
        Letter::all(&self.running.run(["dead-letters", "list", "orders", "--json"], b"").good())
    }

    /// Records that wait for a decision.
    fn undecided(&self) -> Vec<Value> {
        let list = ["dead-letters", "set-aside", "orders", "--dry-run", "--json"];
        self.running.run(list, b"").good().lines()
    }

    /// Waits until one was refused so often while nothing else got through.
    fn waits_for_a_decision(&self, refused: u64) -> Value {
        wait::until("an order waits for a decision", || {
            let often = |of: &Value| of["refused"].as_u64().is_some_and(|times| times >= refused);
            self.undecided().into_iter().find(often)
        })
    }

    /// All is worked off, nothing lost, and all but these are in the tables.
    fn assert_kept(&self, set_aside: &[&str]) {
        let status = self.running.drained();
        assert_adds_up(&status);
        let letters = self.letters();
        let uids: Vec<String> = letters.iter().map(uid).collect();
        assert_eq!(uids, set_aside, "{}", self.running.journal());
        assert!(letters.iter().all(|letter| letter.reason == "retries_exhausted"), "{letters:?}");
        let tables = self.database.tables();
        assert_eq!(tables.count(), self.ledger.acknowledged() - set_aside.len());
        if set_aside.is_empty() {
            let problems = self.ledger.problems(&tables, &letters);
            assert!(problems.is_empty(), "{problems:?}");
        }
    }
}

fn uid(letter: &Letter) -> String {
    let value: Value = serde_json::from_slice(&letter.value).unwrap();
    value["order_uid"].as_str().unwrap().to_owned()
}

/// Half of the inserts fail, then all of them, and one order is left; after a while it is mended.
#[test]
fn a_brown_out_sets_nothing_aside() {
    let mut bench = Bench::new(91);
    bench.refuse("share = 0.5");
    for _ in 0..10 {
        bench.send(3);
    }
    bench.refuse("share = 1");
    bench.send(1);
    bench.waits_for_a_decision(12);
    let status = bench.running.status();
    assert_eq!((&status["state"], &status["dead_lettered"]), (&"waiting".into(), &0.into()));
    assert_eq!(status["waits"][0]["for"], "decision", "{status}");
    bench.refuse("share = 0");
    bench.assert_kept(&[]);
}

#[test]
fn a_poisonous_order_is_found_where_others_get_through() {
    let mut bench = Bench::new(92);
    let poison = bench.generator.next_order();
    let poison_uid = poison.uid.clone();
    bench.refuse(&format!("order_uid = '{poison_uid}'"));
    bench.send(10);
    bench.send_these(vec![poison]);
    bench.send(30);
    bench.assert_kept(&[&poison_uid]);
}

#[test]
fn a_poisonous_order_alone_waits_for_a_decision() {
    let mut bench = Bench::new(93);
    let poison = bench.generator.next_order();
    let poison_uid = poison.uid.clone();
    bench.refuse(&format!("order_uid = '{poison_uid}'"));
    bench.send_these(vec![poison]);
    let undecided = bench.waits_for_a_decision(8);
    assert_eq!(undecided["key"], poison_uid.as_str(), "{undecided}");
    let status = bench.running.status();
    assert_eq!(status["state"], "waiting", "{status}");
    let position = undecided["position"].as_str().unwrap();
    let why = status["why"].as_str().unwrap();
    assert!(why.contains(position) && why.contains("could not write block"), "{why}");
    assert!(why.contains("potok dead-letters set-aside orders"), "{why}");
    let (_, metrics) = bench.running.get("/metrics").unwrap();
    assert!(metrics.contains("for=\"decision\"} 1"), "{metrics}");
    // To try again is one decision.
    bench.running.run(["resume", "orders"], b"").good();
    let again = undecided["refused"].as_u64().unwrap() + 1;
    bench.waits_for_a_decision(again);
    let other = bench.running.run(["dead-letters", "set-aside", "orders", "orders/0/4711"], b"");
    assert!(other.code != Some(0) && other.stderr.contains("P0529"), "{}", other.stderr);
    // To give it up is the other.
    let place = position.split('@').next().unwrap();
    let done = bench.running.run(["dead-letters", "set-aside", "orders", place], b"").good();
    assert!(done.text().contains("set aside"), "{}", done.text());
    bench.assert_kept(&[&poison_uid]);
    assert!(bench.running.journal().contains("set aside by hand"), "{}", bench.running.journal());
    bench.send(5);
    bench.assert_kept(&[&poison_uid]);
    // What was given up is not lost.
    bench.refuse("order_uid = ''");
    bench.running.run(["dead-letters", "replay", "orders"], b"").good();
    bench.assert_kept(&[]);
}
