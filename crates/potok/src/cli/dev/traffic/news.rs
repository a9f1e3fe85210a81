//! Traffic of `em-processor`.

use potok_core::{HeadersBuilder, Output};
use potok_traffic::gdelt;

use super::{Traffic, TrafficSite};

/// Seconds until the next batch of news. A quarter of an hour, as it is in life, is too long to
/// watch.
const BATCH_SECONDS: u32 = 20;

pub(super) fn traffic(site: &TrafficSite<'_>) -> Traffic {
    // Batches are named by the time at which they come, so that no two starts share one.
    let mut news = gdelt::GdeltGenerator::new(site.now)
        .starting_at_seconds(site.now / 1_000)
        .with_step(u64::from(BATCH_SECONDS))
        .with_batch_of(u64::from(site.rate) * u64::from(BATCH_SECONDS));
    Traffic::Records(Box::new(move || {
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
