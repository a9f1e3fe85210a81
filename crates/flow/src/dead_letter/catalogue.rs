//! Follows the dead letters of a topic: each that is open is told once, and each that is open no more.
//!
//! The first look reads all of them, every later one only what has come since. Whoever follows keeps
//! what it needs; here are what became of them as ranges, and which pieces of bodies have come.

use potok_core::{Fault, Log, PipelineInfo, Position, SourceBatch};

use super::pages::{Pages, Tail};
use super::{DeadLetter, DeadLetterState};

/// Something new about the dead letters of a topic.
pub enum LetterNews {
    /// One that waits for somebody. Of a body in pieces there is only `piece` in its envelope, which
    /// says how long it is: what is followed for ever keeps no bodies.
    Opened(Box<DeadLetter>),
    /// One that does so no more; it may never have been told of.
    Closed(Position),
}

/// A topic of dead letters that is followed, of all pipelines that share it.
pub struct Catalogue {
    notes: Tail,
    letters: Tail,
    pages: Pages,
}

impl Catalogue {
    /// Nothing is read yet.
    pub fn new(log: &dyn Log, info: &PipelineInfo) -> Self {
        Catalogue {
            notes: Tail::new(&info.resolved),
            letters: Tail::new(&info.dead_letters),
            pages: Pages::empty(log),
        }
    }

    /// What the next records say; `None` where there are no more for now. Notes are read first: what
    /// was settled before somebody looked is never told as open.
    pub async fn next(&mut self, log: &dyn Log) -> Result<Option<Vec<LetterNews>>, Fault> {
        if let Some(batch) = self.notes.next(log).await? {
            return Ok(Some(self.settle(&batch)));
        }
        let batch = self.letters.next(log).await?;
        Ok(batch.map(|batch| self.take(batch)))
    }

    fn settle(&mut self, batch: &SourceBatch) -> Vec<LetterNews> {
        let settled = self.pages.settled();
        let about = batch.records.iter().filter_map(|note| settled.apply(note));
        about.map(|(position, _)| LetterNews::Closed(position)).collect()
    }

    fn take(&mut self, batch: SourceBatch) -> Vec<LetterNews> {
        let letters = self.pages.take_batch(batch);
        let open = letters.into_iter().filter(|letter| letter.state == DeadLetterState::Open);
        open.map(|letter| LetterNews::Opened(Box::new(letter))).collect()
    }
}
