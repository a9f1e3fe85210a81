//! Generated traffic: a task per shipped pipeline, each with a generator of its own. Another one is a
//! file here and a line in [`SHIPPED`].

mod chats;
mod messenger;
mod news;
mod orders;
mod shop;

use std::path::Path;
use std::time::Duration;

use potok_core::Output;
use potok_flow::Engine;
use tokio::task::JoinSet;

/// Makes the traffic of a pipeline.
type MakeTraffic = fn(&TrafficSite<'_>) -> Traffic;

/// The traffic of each shipped pipeline.
const SHIPPED: &[(&str, MakeTraffic)] = &[
    ("orders", orders::traffic),
    ("em-processor", news::traffic),
    ("shop-events", shop::traffic),
    ("chat", chats::traffic),
    ("outbox", messenger::traffic),
];

/// Traffic comes in portions this often, or one by one where that is slower.
const PORTION_EVERY: Duration = Duration::from_millis(100);
const PORTION_MAX: u32 = 1_000;
/// How long to wait where it is not taken.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What a generator is told.
struct TrafficSite<'a> {
    /// Milliseconds since 1970: other records at each start, the same ones would only be repeats.
    now: u64,
    /// Records a second.
    rate: u32,
    data_dir: &'a Path,
}

/// What makes the next records.
enum Traffic {
    /// They go into the log, one by one.
    Records(Box<dyn FnMut() -> Output + Send>),
    /// It writes so many itself, and may block; false where that cannot be done yet.
    Portions(Box<dyn FnMut(u32) -> Result<bool, String> + Send>),
}

/// Starts the traffic of these pipelines, `rate` records a second for each. It ends with the set.
pub(super) fn start<'a>(
    engine: &Engine,
    pipelines: impl IntoIterator<Item = &'a str>,
    rate: u32,
    data_dir: &Path,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let now = engine.clock().now().0.unsigned_abs();
    let site = TrafficSite { now, rate, data_dir };
    for pipeline in pipelines {
        if let Some(traffic) = traffic(pipeline, &site) {
            tasks.spawn(send(engine.clone(), traffic, rate));
        }
    }
    tasks
}

fn traffic(pipeline: &str, site: &TrafficSite<'_>) -> Option<Traffic> {
    let (_, traffic) = SHIPPED.iter().find(|(name, _)| *name == pipeline)?;
    Some(traffic(site))
}

/// Sends at a steady rate until it is cancelled.
async fn send(engine: Engine, mut traffic: Traffic, rate: u32) {
    let portions = (Duration::from_secs(1).as_millis() / PORTION_EVERY.as_millis()) as u32;
    let portion = (rate / portions).clamp(1, PORTION_MAX);
    let mut ticks = tokio::time::interval(Duration::from_secs(1) * portion / rate);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match &mut traffic {
            Traffic::Records(next) => {
                let records: Vec<Output> = (0..portion).map(|_| next()).collect();
                while let Err(fault) = engine.log().append(&records).await {
                    tracing::warn!(%fault, "generated records are not taken; trying again");
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
            }
            Traffic::Portions(_) => {
                let Traffic::Portions(mut write) = traffic else { return };
                let wrote = tokio::task::spawn_blocking(move || (write(portion), write)).await;
                let Ok((wrote, write)) = wrote else { return };
                traffic = Traffic::Portions(write);
                if let Err(why) = wrote {
                    tracing::warn!(why, "generated rows are not taken; trying again");
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::collections::BTreeSet;

    use potok_traffic::gdelt;

    use super::*;

    fn records(pipeline: &str, now: u64, rate: u32) -> Box<dyn FnMut() -> Output + Send> {
        let site = TrafficSite { now, rate, data_dir: Path::new("nowhere") };
        match traffic(pipeline, &site) {
            Some(Traffic::Records(next)) => next,
            _ => panic!("{pipeline} has no records"),
        }
    }

    #[test]
    fn news_comes_in_batches_named_by_their_time() {
        let mut news = records("em-processor", 1_742_742_900_123, 3);
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
        assert_eq!(&*records("orders", 1, 1)().topic, "orders");
        assert_eq!(&*records("shop-events", 1, 1)().topic, "shop-events-in");
        assert_eq!(&*records("chat", 1, 1)().topic, "queue:incoming");
        let site = TrafficSite { now: 1, rate: 1, data_dir: Path::new("nowhere") };
        assert!(traffic("mine", &site).is_none());
    }
}
