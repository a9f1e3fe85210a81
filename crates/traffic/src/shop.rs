//! Events of shops: views, carts, purchases, returns and reviews.
//!
//! Now and then an event comes twice, and a return names no shop: the first has to be recognised,
//! the second to be set aside.

use crate::Random;

/// One generated event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShopEvent {
    /// Its id, the same for a repeat.
    pub id: String,
    /// The shop; `None` for a return without one, which must not be delivered.
    pub shop: Option<i64>,
    /// Its JSON, in one line.
    pub bytes: Vec<u8>,
}

/// Makes events, one after another.
#[derive(Clone, Debug)]
pub struct ShopGenerator {
    random: Random,
    /// Part of every id, so that other seeds have other ids.
    seed: u64,
    number: u64,
    /// Milliseconds since 1970 of the next event.
    time: u64,
    good_only: bool,
    last: Option<ShopEvent>,
}

/// 2025-01-01 00:00:00.
const FIRST_TIME: u64 = 1_735_689_600_000;
const DAY: u64 = 86_400_000;
const TYPES: [&str; 5] = ["view", "cart", "purchase", "return", "review"];
const RETURN: u64 = 3;

impl ShopGenerator {
    /// Events as they are in life: some come twice, some returns have no shop.
    pub fn new(seed: u64) -> Self {
        let random = Random::new(seed);
        ShopGenerator { random, seed, number: 0, time: FIRST_TIME, good_only: false, last: None }
    }

    /// Only events that are delivered, each once.
    pub fn good_only(seed: u64) -> Self {
        ShopGenerator { good_only: true, ..ShopGenerator::new(seed) }
    }

    /// The next one.
    pub fn next_event(&mut self) -> ShopEvent {
        if let Some(last) = &self.last
            && !self.good_only
            && self.random.per_mille(20)
        {
            return last.clone();
        }
        let event = self.fresh();
        self.last = Some(event.clone());
        event
    }

    fn fresh(&mut self) -> ShopEvent {
        self.number += 1;
        self.time += self.random.between(1, 400);
        let id = format!("{:x}-{}", self.seed, self.number);
        let kind = self.random.below(TYPES.len() as u64);
        let lost = kind == RETURN && !self.good_only && self.random.per_mille(100);
        let shop = (!lost).then(|| self.random.between(1, 500) as i64);
        let shop_field = shop.map(|shop| format!("\"shop_id\":{shop},")).unwrap_or_default();
        let (user, cents) = (self.random.between(1, 100_000), self.random.between(100, 90_000));
        let name = TYPES.get(kind as usize).copied().unwrap_or_default();
        let json = format!(
            "{{\"event_id\":\"{id}\",\"event_type\":{kind},{shop_field}\"user_id\":{user},\
             \"timestamp\":\"{}\",\"payload\":{{\"what\":\"{name}\",\"cents\":{cents}}}}}",
            shown(self.time)
        );
        ShopEvent { id, shop, bytes: json.into_bytes() }
    }
}

/// A time within January 2025 and the days after it, which are counted as if it had no end.
fn shown(millis: u64) -> String {
    let since = millis.saturating_sub(FIRST_TIME);
    let (day, rest) = (since / DAY % 31 + 1, since % DAY);
    let (hour, minute) = (rest / 3_600_000, rest / 60_000 % 60);
    let (second, milli) = (rest / 1_000 % 60, rest % 1_000);
    format!("2025-01-{day:02} {hour:02}:{minute:02}:{second:02}.{milli:03}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn every_event_is_what_it_says() {
        let mut generator = ShopGenerator::new(3);
        let events: Vec<ShopEvent> = (0..20_000).map(|_| generator.next_event()).collect();
        let ids: HashSet<&str> = events.iter().map(|event| event.id.as_str()).collect();
        assert!(ids.len() < events.len() && events.iter().any(|event| event.shop.is_none()));
        for event in &events {
            let value: Value = serde_json::from_slice(&event.bytes).unwrap();
            assert_eq!(value["event_id"], event.id.as_str());
            assert_eq!(value["shop_id"].as_i64(), event.shop);
            assert_eq!(value["timestamp"].as_str().unwrap().len(), 23);
            assert!(event.shop.is_some() || value["event_type"] == RETURN);
        }
    }

    #[test]
    fn good_ones_come_once_and_have_a_shop() {
        let mut generator = ShopGenerator::good_only(4);
        let events: Vec<ShopEvent> = (0..5_000).map(|_| generator.next_event()).collect();
        let ids: HashSet<&str> = events.iter().map(|event| event.id.as_str()).collect();
        assert_eq!(ids.len(), events.len());
        assert!(events.iter().all(|event| event.shop.is_some()));
    }
}
