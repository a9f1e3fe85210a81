//! `potok sample`: generated records to try a pipeline with.

use std::io::Write;

use potok_traffic::{gdelt, orders};

use crate::failure::Failure;
use crate::terminal;

/// Print generated records, one per line, to try a shipped pipeline with
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok sample orders --count 1000 > orders.ndjson
  potok sample orders --count 100 --good | potok send orders
  potok sample events | potok send adapter-event --header batchId=20250323151500
  potok sample mentions --count 300 | potok send adapter-mention --header batchId=20250323151500
  potok sample events --batch 20250323153000 --good   the quarter of an hour after that

Events and mentions of one seed and batch belong together, three mentions to an event; most mentions
are of events of earlier batches.")]
pub struct Sample {
    /// Of what
    of: SampleKind,
    /// How many
    #[arg(long, default_value_t = 100)]
    count: u64,
    /// The same seed gives the same records
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only good ones; otherwise a few are repeats, conflicts or spoiled
    #[arg(long)]
    good: bool,
    /// For events and mentions: the time they are of [default: 20250323151500]
    #[arg(long, value_name = "ID")]
    batch: Option<String>,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum SampleKind {
    /// Orders, for the pipeline `orders`.
    Orders,
    /// Events of one batch, for the pipeline `em-processor`.
    Events,
    /// Mentions of one batch, for the pipeline `em-processor`.
    Mentions,
}

impl Sample {
    pub fn run(self) -> Result<(), Failure> {
        let mut next = self.records()?;
        let mut out = terminal::out();
        for _ in 0..self.count {
            out.write_all(&next())?;
            out.write_all(b"\n")?;
        }
        out.flush()?;
        Ok(())
    }

    fn records(&self) -> Result<Box<dyn FnMut() -> Vec<u8>>, Failure> {
        let (topic, batch_of) = match self.of {
            SampleKind::Orders if self.batch.is_some() => {
                return Err(Failure::usage("orders are of no batch"));
            }
            SampleKind::Orders => {
                let mut orders = match self.good {
                    true => orders::OrderGenerator::good_only(self.seed),
                    false => orders::OrderGenerator::new(self.seed),
                };
                return Ok(Box::new(move || orders.next_order().bytes));
            }
            // A quarter of a batch are events: what is asked for is all there is of it.
            SampleKind::Events => (gdelt::EVENTS, self.count.saturating_mul(4)),
            SampleKind::Mentions => {
                (gdelt::MENTIONS, self.count.saturating_add(self.count.div_ceil(3)))
            }
        };
        let batch = self.batch.as_deref().unwrap_or(gdelt::FIRST_BATCH);
        let generator = match self.good {
            true => gdelt::GdeltGenerator::good_only(self.seed),
            false => gdelt::GdeltGenerator::new(self.seed),
        };
        let mut generator =
            generator.with_batch_of(batch_of).starting_at(batch).ok_or_else(|| {
                Failure::usage(format!("`{batch}` is no batch"))
                    .hint("a time in 14 digits, such as 20250323151500")
            })?;
        Ok(Box::new(move || {
            loop {
                let sent = generator.next_record();
                if sent.topic == topic {
                    return sent.value;
                }
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    fn sample(of: SampleKind, count: u64, batch: Option<&str>) -> Vec<Vec<u8>> {
        let batch = batch.map(str::to_owned);
        let sample = Sample { of, count, seed: 7, good: false, batch };
        let mut next = sample.records().unwrap_or_else(|failure| panic!("{failure:?}"));
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn events_and_mentions_are_one_batch() {
        for count in [1, 2, 3, 10, 100] {
            let batch = gdelt::GdeltGenerator::new(7).next_batch(count, 3 * count);
            let of = |topic| {
                let records = batch.records.iter().filter(move |sent| sent.topic == topic);
                records.map(|sent| sent.value.clone()).collect::<Vec<_>>()
            };
            assert_eq!(sample(SampleKind::Events, count, None), of(gdelt::EVENTS));
            assert_eq!(sample(SampleKind::Mentions, 3 * count, None), of(gdelt::MENTIONS));
        }
        let events = sample(SampleKind::Events, 100, None);
        assert_eq!(sample(SampleKind::Events, 10, Some(gdelt::FIRST_BATCH)), events[..10]);
        assert_ne!(sample(SampleKind::Events, 10, Some("20250323153000")), events[..10]);
        for count in [0, 1, 2, 4, 5, 1_000] {
            assert_eq!(sample(SampleKind::Mentions, count, None).len() as u64, count);
        }
    }

    #[test]
    fn what_is_no_batch_is_refused() {
        for (of, batch) in
            [(SampleKind::Events, "2025-03-23"), (SampleKind::Orders, "20250323151500")]
        {
            let sample = Sample { of, count: 1, seed: 1, good: true, batch: Some(batch.into()) };
            assert_eq!(sample.run().err().map(|failure| failure.exit), Some(2));
        }
    }
}
