//! Copies of potok against one Kafka and one database, and a sender beside them.

use potok_services::Kafka;
use potok_traffic::orders::{Order, OrderGenerator, OrderKind, Shares};
use serde_json::Value;

use crate::check::{Letter, assert_adds_up};
use crate::database::Database;
use crate::ledger::Ledger;
use crate::process::{Home, ProcessOutput, Running, run};
use crate::wait;

/// More trouble than ordinary traffic has.
const SHARES: Shares = Shares { repeats: 60, versions: 60, spoiled: 60 };

/// Where everything is.
pub struct Settings {
    log: String,
    database: String,
}

impl Settings {
    pub fn new(kafka: &Kafka, database: &Database) -> Self {
        Settings { log: format!("kafka://{}", kafka.servers()), database: database.url() }
    }

    pub fn environment(&self) -> [(&str, &str); 2] {
        [("POTOK_LOG", &self.log), ("POTOK_DB_ORDERS", &self.database)]
    }
}

/// One copy: a folder of its own and the process in it.
pub struct Replica<'a> {
    settings: &'a Settings,
    pub home: Home,
    running: Option<Running>,
}

impl<'a> Replica<'a> {
    pub fn start(settings: &'a Settings) -> Self {
        let mut replica = Replica { settings, home: Home::new(), running: None };
        replica.restart();
        replica
    }

    /// Starts it again, killing it first where it runs.
    pub fn restart(&mut self) {
        self.kill();
        let running = self.home.start_with(&self.settings.environment());
        self.running = Some(running.unwrap_or_else(|end| panic!("potok ended at start: {end}")));
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.running.take().into_iter().for_each(Running::kill);
    }

    /// SIGTERM; it leaves in good order.
    pub fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            let status = running.stop();
            assert!(status.success(), "a stop in good order: {status}");
        }
    }

    pub fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }
}

/// Sends orders straight to Kafka, whatever runs or does not.
pub struct Sender<'a> {
    settings: &'a Settings,
    home: Home,
    generator: OrderGenerator,
    pub ledger: Ledger,
}

impl<'a> Sender<'a> {
    pub fn new(settings: &'a Settings, seed: u64) -> Self {
        Self::of(settings, OrderGenerator::new(seed).with_shares(SHARES))
    }

    pub fn good_only(settings: &'a Settings, seed: u64) -> Self {
        Self::of(settings, OrderGenerator::good_only(seed))
    }

    fn of(settings: &'a Settings, generator: OrderGenerator) -> Self {
        Sender { settings, home: Home::new(), generator, ledger: Ledger::default() }
    }

    /// Sends the next `count` orders and notes them; false when they were not acknowledged.
    pub fn send(&mut self, count: u64) -> bool {
        let orders: Vec<_> = (0..count).map(|_| self.generator.next_order()).collect();
        // With the id as key, orders of one id stay in order. Bytes that are not JSON have no id.
        let (keyed, bare): (Vec<_>, Vec<_>) = orders.into_iter().partition(is_json);
        let keyed = self.send_as(keyed, &["--key", ".order_uid"]);
        let bare = self.send_as(bare, &[]);
        keyed && bare
    }

    fn send_as(&mut self, orders: Vec<Order>, more: &[&str]) -> bool {
        if orders.is_empty() {
            return true;
        }
        let lines: Vec<u8> =
            orders.iter().flat_map(|order| [&order.bytes[..], b"\n"].concat()).collect();
        let acknowledged =
            self.command(&[&["send", "orders"], more].concat(), &lines).code == Some(0);
        self.ledger.note(orders, acknowledged);
        acknowledged
    }

    /// A command on the log, without any process at work.
    pub fn command(&self, args: &[&str], input: &[u8]) -> ProcessOutput {
        let mut command = self.home.command(args);
        command.envs(self.settings.environment());
        run(command, input)
    }
}

fn is_json(order: &Order) -> bool {
    match order.kind {
        OrderKind::Spoiled(how) => how.is_json(),
        _ => true,
    }
}

/// Waits until all is worked off, then fails unless the promise was kept.
pub fn assert_kept(database: &Database, replicas: &[&Replica<'_>], ledger: &Ledger) {
    let statuses = || replicas.iter().map(|replica| replica.running().status());
    wait::until("everything sent has ended", || {
        statuses().all(|status| status["lag"] == 0 && status["in_flight"] == 0).then_some(())
    });
    statuses().for_each(|status| assert_adds_up(&status));
    let running = replicas.first().expect("one of them").running();
    let letters = running.run(["dead-letters", "list", "orders", "--json"], b"").good();
    let tables = database.tables();
    let delivered = |status: Value| status["delivered"].as_u64().unwrap();
    let delivered: u64 = statuses().map(delivered).sum();
    assert!(delivered <= tables.count() as u64, "{delivered} of {} rows", tables.count());
    let problems = ledger.problems(&tables, &Letter::all(&letters));
    assert!(
        problems.is_empty(),
        "{} problems with {} acknowledged orders, among them:\n{}\n{}",
        problems.len(),
        ledger.acknowledged(),
        problems[..problems.len().min(10)].join("\n"),
        running.journal(),
    );
}
