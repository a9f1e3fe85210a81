//! Generated traffic: a task per shipped pipeline, each with a generator of its own.

use std::time::Duration;

use potok_core::{Headers, HeadersBuilder, Output};
use potok_flow::Engine;
use potok_traffic::{gdelt, orders, shop};
use tokio::task::JoinSet;

/// Traffic comes in portions this often, or one by one where that is slower.
const PORTION_EVERY: Duration = Duration::from_millis(100);
const PORTION_MAX: u32 = 1_000;
/// How long to wait where the log does not take it.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Seconds until the next batch of news. A quarter of an hour, as it is in life, is too long to
/// watch.
const NEWS_BATCH_SECONDS: u32 = 20;

/// Starts the traffic of these pipelines, `rate` records a second for each. It ends with the set.
pub(super) fn start<'a>(
    engine: &Engine,
    pipelines: impl IntoIterator<Item = &'a str>,
    rate: u32,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    // Other records at each start: the same ones would only be repeats.
    let now = engine.clock().now().0.unsigned_abs();
    for traffic in pipelines.into_iter().filter_map(|pipeline| traffic(pipeline, now, rate)) {
        tasks.spawn(send(engine.clone(), traffic, rate));
    }
    tasks
}

/// What makes the next record.
type Traffic = Box<dyn FnMut() -> Output + Send>;

/// The traffic of a shipped pipeline; `now` is in milliseconds.
fn traffic(pipeline: &str, now: u64, rate: u32) -> Option<Traffic> {
    match pipeline {
        "orders" => {
            let mut orders = orders::OrderGenerator::new(now);
            Some(Box::new(move || Output {
                topic: "orders".into(),
                partition: None,
                key: None,
                headers: Headers::none(),
                value: Some(orders.next_order().bytes.into()),
            }))
        }
        "em-processor" => {
            // Batches are named by the time at which they come, so that no two starts share one.
            let mut news = gdelt::GdeltGenerator::new(now)
                .starting_at_seconds(now / 1_000)
                .with_step(u64::from(NEWS_BATCH_SECONDS))
                .with_batch_of(u64::from(rate) * u64::from(NEWS_BATCH_SECONDS));
            Some(Box::new(move || {
                let sent = news.next_record();
                let batch = Some(sent.batch_id.as_bytes());
                Output {
                    topic: sent.topic.into(),
                    partition: None,
                    key: sent.key.map(|key| key.into_bytes().into()),
                    headers: HeadersBuilder::new().add(gdelt::HEADER, batch).build(),
                    value: Some(sent.value.into()),
                }
            }))
        }
        "shop-events" => {
            let mut events = shop::ShopGenerator::new(now);
            Some(Box::new(move || {
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
        _ => None,
    }
}

/// Sends at a steady rate until it is cancelled.
async fn send(engine: Engine, mut next: Traffic, rate: u32) {
    let portions = (Duration::from_secs(1).as_millis() / PORTION_EVERY.as_millis()) as u32;
    let portion = (rate / portions).clamp(1, PORTION_MAX);
    let mut ticks = tokio::time::interval(Duration::from_secs(1) * portion / rate);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let records: Vec<Output> = (0..portion).map(|_| next()).collect();
        while let Err(fault) = engine.log().append(&records).await {
            tracing::warn!(%fault, "generated records are not taken; trying again");
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn news_comes_in_batches_named_by_their_time() {
        let mut news = traffic("em-processor", 1_742_742_900_123, 3).unwrap();
        let batch = |output: &Output| {
            let named = output.headers.iter().find(|(name, _)| *name == gdelt::HEADER);
            String::from_utf8(named.unwrap().1.unwrap().to_vec()).unwrap()
        };
        let first: Vec<_> = (0..60).map(|_| news()).collect();
        assert!(first.iter().all(|output| batch(output) == "20250323151500"));
        assert_eq!(batch(&news()), "20250323151520");
        let topics: BTreeSet<_> = first.iter().map(|output| output.topic.to_string()).collect();
        assert_eq!(topics.into_iter().collect::<Vec<_>>(), [gdelt::EVENTS, gdelt::MENTIONS]);
    }

    #[test]
    fn only_shipped_pipelines_have_traffic() {
        assert_eq!(&*traffic("orders", 1, 1).unwrap()().topic, "orders");
        assert_eq!(&*traffic("shop-events", 1, 1).unwrap()().topic, "shop-events-in");
        assert!(traffic("mine", 1, 1).is_none());
    }
}
