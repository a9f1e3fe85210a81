//! The suite of [`Sink`].

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::join_all;
use potok_core::{
    Batch, DeliveryId, Fault, Headers, Message, Move, Outcome, Position, Reason, Sink, Timestamp,
};

use super::{STRANGE_TEXT, ensure, run_checks, within};

/// What may differ between destinations.
#[derive(Clone, Copy, Debug)]
pub struct SinkFeatures {
    /// Drops repeats of a name, for ever.
    pub deduplicates: bool,
    /// Keeps one entry per business id (`once_by`).
    pub once: bool,
    /// `found` tells in which order things arrived.
    pub ordered: bool,
}

/// Brings destinations to the suite.
#[async_trait]
pub trait SinkHarness: Send + Sync {
    /// What this destination declares.
    fn features(&self) -> SinkFeatures;

    /// A sink on an empty destination.
    async fn fresh(&self) -> Result<Arc<dyn Sink>, String>;

    /// A new sink on the same destination.
    async fn reopen(&self, sink: Arc<dyn Sink>) -> Result<Arc<dyn Sink>, String>;

    /// A value that this destination takes and that carries an id and a text.
    fn value(&self, id: &str, text: &str) -> Bytes;

    /// A value that it refuses; `None` where it takes everything.
    fn refused(&self, id: &str) -> Option<Bytes>;

    /// Id and text of everything that is there.
    async fn found(&self) -> Result<Vec<(String, String)>, String>;
}

/// Runs every check; the number that passed, or all failures in words.
pub async fn run_all(harness: &dyn SinkHarness) -> Result<usize, String> {
    run_checks!(
        "sink",
        harness,
        [
            a_healthy_destination_answers_the_probe,
            preparing_is_repeatable,
            messages_arrive_in_order,
            an_empty_batch_is_fine,
            a_large_batch_arrives_whole,
            strange_and_large_texts_arrive,
            duplicates_are_dropped,
            duplicates_are_dropped_after_reopening,
            repeats_from_two_lanes_arrive_once,
            refused_messages_are_named_and_the_others_are_there,
            lanes_do_not_disturb_each_other,
            one_entry_per_business_id,
        ]
    )
}

struct Suite<'a> {
    harness: &'a dyn SinkHarness,
    sink: Arc<dyn Sink>,
}

impl<'a> Suite<'a> {
    async fn new(harness: &'a dyn SinkHarness) -> Result<Self, String> {
        let sink = harness.fresh().await?;
        within("prepare", sink.prepare()).await?;
        Ok(Suite { harness, sink })
    }

    fn message(&self, lane: u32, n: u64, value: Bytes, id: &str) -> Message {
        let position = Position { log: 3, topic: "suite".into(), partition: lane, offset: n };
        Message {
            id: DeliveryId { position, deliver: 0, element: 0 },
            key: Some(Bytes::copy_from_slice(id.as_bytes())),
            headers: Headers::none(),
            source: value.clone(),
            value,
            once: self.harness.features().once.then(|| Bytes::copy_from_slice(id.as_bytes())),
            time: Timestamp(1_700_000_000_000 + n as i64),
        }
    }

    /// A good message, with an id made from lane and number.
    fn good(&self, lane: u32, n: u64) -> Message {
        let id = id(lane, n);
        self.message(lane, n, self.harness.value(&id, "text"), &id)
    }

    fn lane(&self, lane: u32, numbers: impl IntoIterator<Item = u64>) -> Batch {
        Batch { messages: numbers.into_iter().map(|n| self.good(lane, n)).collect() }
    }

    async fn deliver(&self, batch: &Batch) -> Result<Vec<Outcome>, String> {
        let receipt = within("deliver", self.sink.deliver(batch)).await?;
        Ok(receipt.outcomes(batch.messages.len()).collect())
    }

    /// The ids that are there, in order where there is one.
    async fn ids(&self) -> Result<Vec<String>, String> {
        let mut ids: Vec<_> = self.harness.found().await?.into_iter().map(|(id, _)| id).collect();
        if !self.harness.features().ordered {
            ids.sort();
        }
        Ok(ids)
    }
}

fn id(lane: u32, n: u64) -> String {
    format!("id-{lane}-{n:05}")
}

fn ids(lane: u32, numbers: impl IntoIterator<Item = u64>) -> Vec<String> {
    numbers.into_iter().map(|n| id(lane, n)).collect()
}

fn words(outcomes: &[Outcome]) -> Vec<&'static str> {
    outcomes
        .iter()
        .map(|outcome| match outcome {
            Outcome::Delivered => "delivered",
            Outcome::Duplicate | Outcome::Again => "duplicates",
            Outcome::Failed(_) => "failed",
        })
        .collect()
}

async fn a_healthy_destination_answers_the_probe(harness: &dyn SinkHarness) -> Result<(), String> {
    let suite = Suite::new(harness).await?;
    for _ in 0..3 {
        within("probe", suite.sink.probe()).await?;
    }
    ensure!(suite.ids().await?.is_empty(), "the probe wrote something");
    Ok(())
}

async fn preparing_is_repeatable(harness: &dyn SinkHarness) -> Result<(), String> {
    let suite = Suite::new(harness).await?;
    suite.deliver(&suite.lane(0, 0..2)).await?;
    within("prepare again", suite.sink.prepare()).await?;
    suite.deliver(&suite.lane(0, 2..4)).await?;
    let found = suite.ids().await?;
    ensure!(found == ids(0, 0..4), "found {found:?}");
    Ok(())
}

async fn messages_arrive_in_order(harness: &dyn SinkHarness) -> Result<(), String> {
    let suite = Suite::new(harness).await?;
    for start in [0, 5, 10] {
        let outcomes = suite.deliver(&suite.lane(0, start..start + 5)).await?;
        ensure!(words(&outcomes) == ["delivered"; 5], "{outcomes:?}");
    }
    let found = suite.ids().await?;
    ensure!(found == ids(0, 0..15), "found {found:?}");
    Ok(())
}

async fn an_empty_batch_is_fine(harness: &dyn SinkHarness) -> Result<(), String> {
    let suite = Suite::new(harness).await?;
    let outcomes = suite.deliver(&Batch::default()).await?;
    ensure!(outcomes.is_empty() && suite.ids().await?.is_empty(), "nothing became something");
    Ok(())
}

async fn a_large_batch_arrives_whole(harness: &dyn SinkHarness) -> Result<(), String> {
    let suite = Suite::new(harness).await?;
    let count = suite.sink.limits().batch_records_max.min(5_000) as u64;
    let outcomes = suite.deliver(&suite.lane(0, 0..count)).await?;
    ensure!(words(&outcomes).iter().all(|w| *w == "delivered"), "not all were delivered");
    let found = suite.ids().await?;
    ensure!(found == ids(0, 0..count), "{} of {count} arrived in order", found.len());
    Ok(())
}

async fn strange_and_large_texts_arrive(harness: &dyn SinkHarness) -> Result<(), String> {
    let suite = Suite::new(harness).await?;
    let texts = [String::new(), STRANGE_TEXT.to_owned(), "x'".repeat(500_000)];
    let message =
        |(text, n): (&String, u64)| suite.message(0, n, harness.value(&id(0, n), text), &id(0, n));
    let batch = Batch { messages: texts.iter().zip(0..).map(message).collect() };
    suite.deliver(&batch).await?;
    let found: BTreeMap<_, _> = harness.found().await?.into_iter().collect();
    for (text, n) in texts.iter().zip(0..) {
        let got = found.get(&id(0, n)).ok_or(format!("text {n} is not there"))?;
        ensure!(got == text, "text {n} changed ({} and {} bytes)", text.len(), got.len());
    }
    Ok(())
}

async fn duplicates_are_dropped(harness: &dyn SinkHarness) -> Result<(), String> {
    let suite = Suite::new(harness).await?;
    suite.deliver(&suite.lane(0, 0..3)).await?;
    let outcomes = suite.deliver(&suite.lane(0, 1..5)).await?;
    if harness.features().deduplicates {
        let expected = ["duplicates", "duplicates", "delivered", "delivered"];
        ensure!(words(&outcomes) == expected, "outcomes {:?}", words(&outcomes));
        let found = suite.ids().await?;
        ensure!(found == ids(0, 0..5), "found {found:?}");
    } else {
        ensure!(words(&outcomes) == ["delivered"; 4], "outcomes {:?}", words(&outcomes));
    }
    Ok(())
}

async fn duplicates_are_dropped_after_reopening(harness: &dyn SinkHarness) -> Result<(), String> {
    if !harness.features().deduplicates {
        return Ok(());
    }
    let mut suite = Suite::new(harness).await?;
    let batch = suite.lane(0, 0..3);
    suite.deliver(&batch).await?;
    suite.sink = harness.reopen(suite.sink).await?;
    within("prepare", suite.sink.prepare()).await?;
    let outcomes = suite.deliver(&batch).await?;
    ensure!(words(&outcomes) == ["duplicates"; 3], "outcomes {:?}", words(&outcomes));
    Ok(())
}

async fn repeats_from_two_lanes_arrive_once(harness: &dyn SinkHarness) -> Result<(), String> {
    if !harness.features().deduplicates {
        return Ok(());
    }
    let suite = Suite::new(harness).await?;
    for round in 0..5 {
        let batch = suite.lane(0, round * 10..round * 10 + 10);
        // An owner that was replaced may still be sending what the new one sends.
        let (a, b) = tokio::join!(suite.sink.deliver(&batch), suite.sink.deliver(&batch));
        for result in [a, b] {
            if let Err(fault) = result {
                let allowed = matches!(fault.next, Move::Retry | Move::Wait);
                ensure!(allowed, "a concurrent repeat is {:?}: {fault}", fault.next);
            }
        }
        suite.deliver(&batch).await?;
    }
    let mut found = suite.ids().await?;
    found.sort();
    ensure!(found == ids(0, 0..50), "found {found:?}");
    Ok(())
}

async fn refused_messages_are_named_and_the_others_are_there(
    harness: &dyn SinkHarness,
) -> Result<(), String> {
    let suite = Suite::new(harness).await?;
    let mut batch = suite.lane(0, 0..5);
    for n in [1, 4] {
        let Some(value) = harness.refused(&id(0, n)) else { return Ok(()) };
        let refused = suite.message(0, n, value, &id(0, n));
        if let Some(message) = batch.messages.get_mut(n as usize) {
            *message = refused;
        }
    }
    let outcomes = suite.deliver(&batch).await?;
    let expected = ["delivered", "failed", "delivered", "delivered", "failed"];
    ensure!(words(&outcomes) == expected, "outcomes {:?}", words(&outcomes));
    for outcome in &outcomes {
        if let Outcome::Failed(fault) = outcome {
            ensure!(fault.next == Move::SetAside, "refused as {:?}: {fault}", fault.next);
        }
    }
    let found = suite.ids().await?;
    ensure!(found == ids(0, [0, 2, 3]), "found {found:?}");
    Ok(())
}

async fn lanes_do_not_disturb_each_other(harness: &dyn SinkHarness) -> Result<(), String> {
    let suite = Arc::new(Suite::new(harness).await?);
    let lanes = 6;
    let work = (0..lanes).map(|lane| {
        let suite = suite.clone();
        async move {
            for start in 0..8 {
                let batch = suite.lane(lane, start * 5..start * 5 + 5);
                deliver_until_taken(suite.as_ref(), &batch).await?;
            }
            Ok::<_, String>(())
        }
    });
    for result in join_all(work).await {
        result?;
    }
    let found = suite.ids().await?;
    for lane in 0..lanes {
        let of_lane = format!("id-{lane}-");
        let found: Vec<_> = found.iter().filter(|id| id.starts_with(&of_lane)).cloned().collect();
        ensure!(found == ids(lane, 0..40), "lane {lane}: found {found:?}");
    }
    Ok(())
}

/// One call is one attempt: a busy destination may ask for another.
async fn deliver_until_taken(suite: &Suite<'_>, batch: &Batch) -> Result<(), String> {
    let taken = async {
        loop {
            match suite.sink.deliver(batch).await {
                Ok(_) => return Ok::<(), Fault>(()),
                Err(fault) if matches!(fault.next, Move::Retry | Move::Wait) => {
                    tokio::task::yield_now().await;
                }
                Err(fault) => return Err(fault),
            }
        }
    };
    within("deliver", taken).await
}

async fn one_entry_per_business_id(harness: &dyn SinkHarness) -> Result<(), String> {
    if !harness.features().once {
        return Ok(());
    }
    let suite = Suite::new(harness).await?;
    let value = harness.value("same", "text");
    let other = harness.value("same", "other text");
    let twins = Batch {
        messages: vec![
            suite.message(0, 0, value.clone(), "same"),
            suite.message(0, 1, value.clone(), "same"),
            suite.message(0, 2, other.clone(), "same"),
        ],
    };
    let one = suite.deliver(&twins).await?;
    let later = Batch {
        messages: vec![suite.message(1, 3, other, "same"), suite.message(1, 4, value, "same")],
    };
    let two = suite.deliver(&later).await?;
    let expected = ["delivered", "duplicates", "failed"];
    ensure!(words(&one) == expected, "in one batch: {:?}", words(&one));
    ensure!(words(&two) == ["failed", "duplicates"], "in a later batch: {:?}", words(&two));
    for outcome in one.iter().chain(&two) {
        if let Outcome::Failed(fault) = outcome {
            let conflict = fault.next == Move::SetAside && fault.reason == Reason::Conflict;
            ensure!(conflict, "the conflict is {:?} {:?}", fault.next, fault.reason);
        }
    }
    let found = harness.found().await?;
    ensure!(found == [("same".to_owned(), "text".to_owned())], "found {found:?}");
    // The same position again is a repeat, even where it was refused as a conflict before.
    let again = suite.deliver(&twins).await?;
    ensure!(words(&again) == ["duplicates", "duplicates", "failed"], "{:?}", words(&again));
    Ok(())
}
