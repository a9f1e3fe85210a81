//! `potok sample`: generated records to try a pipeline with.

use std::io::Write;

use potok_traffic::orders::Generator;

use crate::failure::Failure;
use crate::terminal;

/// Print generated records, one per line, to try a shipped pipeline with
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok sample orders --count 1000 > orders.ndjson
  potok sample orders --count 100 --good | potok send orders")]
pub struct Sample {
    /// Of which pipeline
    of: Of,
    /// How many
    #[arg(long, default_value_t = 100)]
    count: u64,
    /// The same seed gives the same records
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only good ones; otherwise a few are repeats, conflicts or spoiled
    #[arg(long)]
    good: bool,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Of {
    /// Orders of the pipeline `orders`.
    Orders,
}

impl Sample {
    /// Does it.
    pub fn run(self) -> Result<(), Failure> {
        let mut generator = match (self.of, self.good) {
            (Of::Orders, true) => Generator::good_only(self.seed),
            (Of::Orders, false) => Generator::new(self.seed),
        };
        let mut out = terminal::out();
        for _ in 0..self.count {
            out.write_all(&generator.next_order().bytes)?;
            out.write_all(b"\n")?;
        }
        out.flush()?;
        Ok(())
    }
}
