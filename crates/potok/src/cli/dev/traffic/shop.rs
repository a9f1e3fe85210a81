//! Traffic of `shop-events`.

use potok_core::{Headers, Output};
use potok_traffic::shop::ShopGenerator;

use super::{Traffic, TrafficSite};

pub(super) fn traffic(site: &TrafficSite<'_>) -> Traffic {
    let mut events = ShopGenerator::new(site.now);
    Traffic::Records(Box::new(move || {
        let event = events.next_event();
        Output {
            topic: "shop-events-in".into(),
            partition: None,
            key: event.shop.map(|shop| shop.to_string().into()),
            headers: Headers::none(),
            value: Some(event.bytes.into()),
        }
    }))
}
