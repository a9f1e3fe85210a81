//! What a replay would come to, tried out without doing it, counted per outcome.

use std::collections::BTreeMap;

use potok_flow::dead_letter::DeadLetter;
use potok_flow::{Engine, Forecast};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Action;
use crate::line::push_line;

/// Records that are tried out together: who has enough waits for no more of them.
const TOGETHER: usize = 16;
/// Reasons that are told apart; there are few kinds of them, and many texts.
const WHYS_MAX: usize = 12;

/// How many would come to what, as the pipelines run now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DryRun {
    /// They come to a destination; whether it takes them is known only then.
    pub reaches_destination: u64,
    pub filtered: u64,
    pub dead_lettered: u64,
    /// They would stop their pipeline.
    pub blocks: u64,
    /// It cannot be tried out.
    pub unknown: u64,
    /// Why, without values, and how many.
    pub why: BTreeMap<String, u64>,
}

impl DryRun {
    /// Counts one; says its outcome and why.
    pub fn add(&mut self, forecast: Forecast) -> (&'static str, Option<String>) {
        let (count, word, why) = match forecast {
            Forecast::Reaches(entries) => {
                (&mut self.reaches_destination, "reaches_destination", Some(entries.join(", ")))
            }
            Forecast::Filtered => (&mut self.filtered, "filtered", None),
            Forecast::DeadLettered(fault) => {
                let why = format!("{}: {}", fault.reason.word(), fault.what);
                (&mut self.dead_lettered, "dead_lettered", Some(why))
            }
            Forecast::Blocks(fault) => (&mut self.blocks, "blocks", Some(fault.to_string())),
            Forecast::Unknown(why) => (&mut self.unknown, "unknown", Some(why)),
        };
        *count += 1;
        if let Some(why) = why.as_deref().filter(|_| word != "reaches_destination") {
            let cause = super::book::cause_of(why);
            let is_room = self.why.len() < WHYS_MAX || self.why.contains_key(&cause);
            *self.why.entry(if is_room { cause } else { "others".to_owned() }).or_default() += 1;
        }
        (word, why)
    }

    /// What all of them come to, once.
    pub fn take_line(&mut self, action: Action) -> Vec<u8> {
        let mut lines = Vec::new();
        if action == Action::Replay && *self != DryRun::default() {
            push_line(&mut lines, &json!({ "forecast": std::mem::take(self) }));
        }
        lines
    }
}

/// What would become of each, in order within a pipeline.
pub(super) async fn foreseen<'a>(
    engine: &Engine,
    letters: &'a [DeadLetter],
) -> Vec<(&'a DeadLetter, Forecast)> {
    let mut of: BTreeMap<&str, Vec<&DeadLetter>> = BTreeMap::new();
    for letter in letters {
        of.entry(&letter.envelope.pipeline).or_default().push(letter);
    }
    let mut foreseen = Vec::with_capacity(letters.len());
    for (pipeline, letters) in of {
        for letters in letters.chunks(TOGETHER) {
            let copies: Vec<DeadLetter> = letters.iter().map(|one| (*one).clone()).collect();
            let forecasts = engine.rehearse(pipeline, &copies).await;
            foreseen.extend(letters.iter().copied().zip(forecasts));
        }
    }
    foreseen
}
