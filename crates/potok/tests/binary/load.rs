//! Senders that keep a process busy until it goes away or enough was sent.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use potok_traffic::Random;
use potok_traffic::orders::{Order, OrderGenerator, Shares};

use crate::ledger::Ledger;
use crate::process::Running;

/// More trouble than ordinary traffic has.
const SHARES: Shares = Shares { repeats: 60, versions: 60, spoiled: 120 };

/// One stream of orders with ids of its own; goes on over restarts.
pub struct Sender {
    generator: OrderGenerator,
    random: Random,
    pub ledger: Ledger,
}

impl Sender {
    pub fn new(seed: u64) -> Self {
        Self::of(OrderGenerator::new(seed).with_shares(SHARES), seed)
    }

    pub fn good_only(seed: u64) -> Self {
        Self::of(OrderGenerator::good_only(seed), seed)
    }

    fn of(generator: OrderGenerator, seed: u64) -> Self {
        Sender { generator, random: Random::new(seed), ledger: Ledger::default() }
    }

    /// Sends the next `count` orders and notes them; false when they were not acknowledged.
    pub fn send(&mut self, running: &Running, count: u64) -> bool {
        let orders: Vec<_> = (0..count).map(|_| self.generator.next_order()).collect();
        // With the id as key, orders of one id stay in order. Bytes that are not JSON have no id.
        let (keyed, bare): (Vec<_>, Vec<_>) = orders.into_iter().partition(is_json);
        let keyed = self.send_as(running, keyed, &["--key", ".order_uid"]);
        let bare = self.send_as(running, bare, &[]);
        keyed && bare
    }

    fn send_as(&mut self, running: &Running, orders: Vec<Order>, more: &[&str]) -> bool {
        let acknowledged = orders.is_empty() || running.send_lines(&lines(&orders), more);
        self.ledger.note(orders, acknowledged);
        acknowledged
    }

    /// Sends in bits of random size until told to stop, until `max` were acknowledged, or until
    /// one is not acknowledged.
    pub fn send_until(
        &mut self,
        running: &Running,
        stop: &AtomicBool,
        max: usize,
        sent: &AtomicUsize,
    ) {
        while !stop.load(Ordering::Relaxed) && sent.load(Ordering::Relaxed) < max {
            let count = self.random.between(1, 40);
            if !self.send(running, count) {
                break;
            }
            sent.fetch_add(count as usize, Ordering::Relaxed);
        }
    }
}

fn is_json(order: &Order) -> bool {
    match order.kind {
        potok_traffic::orders::OrderKind::Spoiled(how) => how.is_json(),
        _ => true,
    }
}

/// One order per line.
pub fn lines(orders: &[Order]) -> Vec<u8> {
    orders.iter().flat_map(|order| [&order.bytes[..], b"\n"].concat()).collect()
}

/// Runs the senders beside each other until `max` orders were acknowledged or the process is gone.
pub fn send_all(running: &Running, senders: &mut [Sender], max: usize) {
    let (never, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for sender in senders {
            scope.spawn(|| sender.send_until(running, &never, max, &sent));
        }
    });
}

/// Runs the senders beside each other while `trouble` does its work.
pub fn under_load(running: &Running, senders: &mut [Sender], trouble: impl FnOnce()) {
    let (stop, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for sender in senders {
            scope.spawn(|| sender.send_until(running, &stop, usize::MAX, &sent));
        }
        // Also when `trouble` fails, or the senders would never end.
        let _stop = StopOnDrop(&stop);
        trouble();
    })
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What all of them sent.
pub fn joined(senders: Vec<Sender>) -> Ledger {
    let mut all = Ledger::default();
    senders.into_iter().for_each(|sender| all.join(sender.ledger));
    all
}
