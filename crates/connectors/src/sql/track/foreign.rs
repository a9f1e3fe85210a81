//! Moves that somebody else has made in our rows.
//!
//! They are never trusted and never fought: each is logged and counted once. What potok wrote last
//! is told by the times beside the row, so a restart forgets nothing.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::TextRow;

/// Differences that are remembered: beyond so many the first are counted again.
const KNOWN_MAX: usize = 10_000;

/// What was found so far.
#[derive(Default)]
pub(super) struct ForeignMoves {
    total: AtomicU64,
    known: Mutex<HashSet<(String, u32, String)>>,
}

impl ForeignMoves {
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Looks at a row as it was found: what was noted last as an error, then for each stage its
    /// state and when potok began with it and was done. `None` where the row is gone.
    pub fn look(
        &self,
        (file, shard): (&str, u32),
        stages: &[String],
        row: Option<&[Option<String>]>,
    ) {
        let Some(row) = row else {
            return self.notice(file, shard, "the row was removed".to_owned());
        };
        let has_failed = row.first().is_some_and(Option::is_some);
        for (at, (stage, cells)) in
            stages.iter().zip(row.get(1..).unwrap_or_default().chunks(3)).enumerate()
        {
            let [Some(state), started, done] = cells else { continue };
            let is_ours = match (started.is_some() || at == 0, done.is_some()) {
                (_, true) => state == "done",
                // Where something has failed, a person may put it back to `new`.
                (true, false) => {
                    state == "started" || (has_failed && matches!(state.as_str(), "failed" | "new"))
                }
                (false, false) => state == "new",
            };
            if !is_ours {
                self.notice(file, shard, format!("{stage} is {state}"));
            }
        }
    }

    /// A file has ended: nothing more is said of it.
    pub fn forget(&self, file: &str, shard: u32) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(of, of_shard, _)| of != file || *of_shard != shard);
    }

    fn notice(&self, file: &str, shard: u32, what: String) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        if known.insert((file.to_owned(), shard, what.clone())) {
            self.total.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(file, shard, what, "another program has moved a row of this pipeline");
        }
    }
}

/// The error of a row in which a stage behind `stage` has failed: a step before it says nothing of that.
pub(super) fn standing_error(row: Option<&[Option<String>]>, stage: usize) -> Option<&str> {
    let (error, stages) = row?.split_first()?;
    let has_failed = |cells: &[Option<String>]| {
        cells.first().is_some_and(|state| state.as_deref() == Some("failed"))
    };
    error.as_deref().filter(|_| stages.chunks(3).skip(stage + 1).any(has_failed))
}

/// The cells of an answer from a column on.
pub(super) fn from(row: &TextRow, column: usize) -> &[Option<String>] {
    row.get(column..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<Option<String>> {
        cells
            .iter()
            .map(|cell| Some(*cell).filter(|cell| !cell.is_empty()).map(str::to_owned))
            .collect()
    }

    #[test]
    fn only_what_others_wrote_is_counted_and_once() {
        let stages = ["ingest".to_owned(), "sender".to_owned()];
        let found = |cells: &[&str]| {
            let moves = ForeignMoves::default();
            for _ in 0..3 {
                moves.look(("f", 0), &stages, Some(&row(cells)));
            }
            moves.total()
        };
        for ours in [
            ["", "started", "", "", "new", "", ""],
            ["", "done", "t", "t", "new", "", ""],
            ["", "done", "t", "t", "started", "t", ""],
            ["why", "done", "t", "t", "failed", "t", ""],
            ["why", "done", "t", "t", "new", "t", ""],
            ["", "done", "t", "t", "done", "t", "t"],
        ] {
            assert_eq!(found(&ours), 0, "{ours:?}");
        }
        for foreign in [
            ["", "done", "", "", "new", "", ""],
            ["", "failed", "", "", "new", "", ""],
            ["", "started", "t", "t", "new", "", ""],
            ["", "done", "t", "t", "done", "", ""],
            ["", "done", "t", "t", "new", "t", ""],
            ["", "done", "t", "t", "started", "", ""],
        ] {
            assert_eq!(found(&foreign), 1, "{foreign:?}");
        }
        let moves = ForeignMoves::default();
        moves.look(("f", 0), &stages, None);
        assert_eq!(moves.total(), 1);
    }

    /// Naive: an earlier step clears it, and the row looks as if somebody else had made it fail.
    #[test]
    fn an_earlier_step_leaves_the_error_of_a_failed_stage() {
        let failed = row(&["why", "done", "t", "t", "failed", "t", ""]);
        assert_eq!(standing_error(Some(&failed), 0), Some("why"));
        assert_eq!(standing_error(Some(&failed), 1), None, "the stage itself is tried again");
        let started = row(&["why", "done", "t", "t", "started", "t", ""]);
        assert_eq!(standing_error(Some(&started), 0), None);
        assert_eq!(standing_error(None, 0), None);
    }
}
