//! Traffic of `orders`.

use potok_core::{Headers, Output};
use potok_traffic::orders::OrderGenerator;

use super::{Traffic, TrafficSite};

pub(super) fn traffic(site: &TrafficSite<'_>) -> Traffic {
    let mut orders = OrderGenerator::new(site.now);
    Traffic::Records(Box::new(move || Output {
        topic: "orders".into(),
        partition: None,
        key: None,
        headers: Headers::none(),
        value: Some(orders.next_order().bytes.into()),
    }))
}
