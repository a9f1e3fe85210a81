//! What was sent, and what must have become of it.
//!
//! Knows nothing of how potok works: only the orders themselves, whether their sending was
//! acknowledged, and the rules a user was promised.

use std::collections::{HashMap, HashSet};

use potok_traffic::orders::{Order, OrderKind, OrderSpoiling};
use serde_json::Value;

use crate::check::{Letter, Tables};

/// Everything that was sent to one folder, in order.
#[derive(Default)]
pub struct Ledger {
    sent: Vec<Sent>,
}

struct Sent {
    order: Order,
    /// False when the answer was lost: it is there, or it is not.
    acknowledged: bool,
}

/// How often a dead letter may be there.
#[derive(Default, Debug)]
struct Expected {
    at_least: usize,
    at_most: usize,
    reason: &'static str,
}

impl Ledger {
    pub fn note(&mut self, orders: Vec<Order>, acknowledged: bool) {
        self.sent.extend(orders.into_iter().map(|order| Sent { order, acknowledged }));
    }

    /// Joins what another sender sent under ids of its own.
    pub fn join(&mut self, other: Ledger) {
        self.sent.extend(other.sent);
    }

    pub fn acknowledged(&self) -> usize {
        self.sent.iter().filter(|sent| sent.acknowledged).count()
    }

    /// True when every kind of order is among what was acknowledged.
    pub fn has_every_kind(&self) -> bool {
        let kinds: HashSet<_> = self
            .sent
            .iter()
            .filter(|sent| sent.acknowledged)
            .map(|sent| std::mem::discriminant(&sent.order.kind))
            .collect();
        kinds.len() == 4
    }

    /// Compares with what is there; empty when the promise was kept.
    pub fn problems(&self, tables: &Tables, letters: &[Letter]) -> Vec<String> {
        let mut problems = Vec::new();
        let mut expected: HashMap<&[u8], Expected> = HashMap::new();
        let mut by_id: HashMap<&str, Vec<&Sent>> = HashMap::new();
        for sent in &self.sent {
            match sent.order.kind {
                OrderKind::Spoiled(how) => expect(&mut expected, sent, reason(how)),
                _ => by_id.entry(&sent.order.uid).or_default().push(sent),
            }
        }
        for (uid, versions) in &by_id {
            let row = tables.order(uid);
            match winner(versions, row.as_ref()) {
                Err(problem) => problems.push(format!("order {uid}: {problem}")),
                Ok(None) => {}
                Ok(Some(winner)) => {
                    for sent in
                        versions.iter().filter(|sent| sent.order.bytes != winner.order.bytes)
                    {
                        expect(&mut expected, sent, "conflict");
                    }
                }
            }
        }
        problems.extend(tables.ids().filter(|uid| !by_id.contains_key(uid)).map(|uid| {
            format!("order {uid} is in the tables, but nothing good was sent under that id")
        }));
        problems.extend(tables.orphans());
        letter_problems(&expected, letters, &mut problems);
        problems
    }
}

fn expect<'a>(expected: &mut HashMap<&'a [u8], Expected>, sent: &'a Sent, reason: &'static str) {
    let entry = expected.entry(&sent.order.bytes).or_default();
    entry.at_least += usize::from(sent.acknowledged);
    entry.at_most += 1;
    entry.reason = reason;
}

fn reason(how: OrderSpoiling) -> &'static str {
    if how.is_json() { "invalid" } else { "undecodable" }
}

/// Which of the orders under one id stands in the tables. The first acknowledged one wins, unless
/// one before it got there although its answer was lost.
fn winner<'a>(versions: &[&'a Sent], row: Option<&Value>) -> Result<Option<&'a Sent>, String> {
    let first = versions.iter().position(|sent| sent.acknowledged);
    let may_win = first.map_or(versions, |first| &versions[..=first]);
    match row {
        None if first.is_none() => Ok(None),
        None => Err("acknowledged, but not in the tables".to_owned()),
        Some(row) => may_win
            .iter()
            .find(|sent| same(&sent.order.bytes, row))
            .map(|sent| Some(*sent))
            .ok_or_else(|| format!("not what was sent first; the tables hold {row}")),
    }
}

fn same(sent: &[u8], row: &Value) -> bool {
    serde_json::from_slice::<Value>(sent).is_ok_and(|sent| sent == *row)
}

fn letter_problems(
    expected: &HashMap<&[u8], Expected>,
    letters: &[Letter],
    problems: &mut Vec<String>,
) {
    let mut found: HashMap<&[u8], Vec<&Letter>> = HashMap::new();
    for letter in letters {
        found.entry(&letter.value).or_default().push(letter);
    }
    for (bytes, wish) in expected {
        let there = found.remove(bytes).unwrap_or_default();
        if !(wish.at_least..=wish.at_most).contains(&there.len()) {
            problems.push(format!("{} dead letters, not {wish:?}: {}", there.len(), show(bytes)));
        }
        for letter in there.iter().filter(|letter| letter.reason != wish.reason) {
            problems.push(format!("{} says {}, not {}", letter.id, letter.reason, wish.reason));
        }
    }
    problems.extend(found.values().flatten().map(|letter| {
        format!(
            "dead letter {} ({}) that nobody expects: {}",
            letter.id,
            letter.error,
            show(&letter.value)
        )
    }));
}

fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned()
}

#[cfg(test)]
mod tests {
    use potok_traffic::orders::OrderGenerator;

    use super::*;

    /// The checker is what every other test here stands on: each kind of failure must show.
    #[test]
    fn the_checker_sees_what_is_wrong() {
        let mut generator = OrderGenerator::new(1);
        let (good, spoiled) = (generator.good(), generator.spoiled(OrderSpoiling::Sale));
        let version = generator.version_of(&good.uid);
        let mut ledger = Ledger::default();
        ledger.note(vec![good.clone(), version.clone(), good.clone(), spoiled.clone()], true);

        let row = |order: &Order| serde_json::from_slice::<Value>(&order.bytes).unwrap();
        let letter = |order: &Order, reason: &str| Letter {
            id: "orders-dead/0/0".into(),
            reason: reason.into(),
            error: String::new(),
            value: order.bytes.clone(),
        };
        let letters = [letter(&version, "conflict"), letter(&spoiled, "invalid")];
        let right = Tables::of([row(&good)]);
        let seen =
            |tables: &Tables, letters: &[Letter]| !ledger.problems(tables, letters).is_empty();

        assert_eq!(ledger.problems(&right, &letters), Vec::<String>::new());
        assert!(seen(&Tables::of([]), &letters), "lost");
        assert!(seen(&Tables::of([row(&version)]), &letters), "order of versions");
        assert!(seen(&right, &letters[..1]), "spoiled one lost");
        assert!(seen(&right, &letters[1..]), "conflict lost");
        let twice = [&letters[..], &letters[..1]].concat();
        assert!(seen(&right, &twice), "dead letter twice");
        let healthy = [&letters[..], &[letter(&good, "refused")]].concat();
        assert!(seen(&right, &healthy), "a healthy one among the dead letters");
        let other_reason = [letter(&version, "conflict"), letter(&spoiled, "refused")];
        assert!(seen(&right, &other_reason), "reason");
        let foreign = Tables::of([row(&good), row(&generator.good())]);
        assert!(seen(&foreign, &letters), "a row nobody sent");
    }
}
