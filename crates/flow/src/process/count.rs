//! The counts that stages are asked to keep of the events they let go on.
//!
//! It is read from the event's bytes, so that every stage can be asked, whatever it is written in;
//! where nothing is asked, nothing is read. An event is counted when its answer is accepted, so a
//! call that is repeated counts once; one that is processed again counts again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use potok_expr::ValuePath;
use potok_expr::json::{Kind, Node, Parser};

use crate::plan::{CountPlan, StagePlan};

/// The counts of a pipeline's stages since the process started, stage by stage.
#[derive(Debug, Default)]
pub(crate) struct StageCounts(Vec<StageCount>);

#[derive(Debug)]
struct StageCount {
    stage: String,
    counters: Vec<Counter>,
}

#[derive(Debug)]
struct Counter {
    name: String,
    path: ValuePath,
    total: AtomicU64,
}

impl StageCounts {
    pub fn new(stages: &[StagePlan]) -> Self {
        let counter = |plan: &CountPlan| Counter {
            name: plan.name.clone(),
            path: plan.path.clone(),
            total: AtomicU64::new(0),
        };
        let by_stage = |stage: &StagePlan| StageCount {
            stage: stage.name.clone(),
            counters: stage.counts.iter().map(counter).collect(),
        };
        StageCounts(stages.iter().map(by_stage).collect())
    }

    /// A stage let an event with this value go on.
    pub fn add(&self, stage: usize, value: &[u8], parser: &mut Parser) {
        let Some(counters) = self.0.get(stage).map(|by_stage| &by_stage.counters) else { return };
        if counters.is_empty() {
            return;
        }
        // A value that is not JSON has nothing at any path.
        let Ok(event) = parser.parse(value) else { return };
        for counter in counters {
            let amount = counter.path.find(event).map_or(0, amount);
            counter.total.fetch_add(amount, Ordering::Relaxed);
        }
    }

    /// The totals by stage and name, of the stages that count.
    pub fn totals(&self) -> BTreeMap<String, BTreeMap<String, u64>> {
        let total =
            |counter: &Counter| (counter.name.clone(), counter.total.load(Ordering::Relaxed));
        let counting = self.0.iter().filter(|by_stage| !by_stage.counters.is_empty());
        counting
            .map(|by_stage| (by_stage.stage.clone(), by_stage.counters.iter().map(total).collect()))
            .collect()
    }
}

fn amount(node: Node<'_>) -> u64 {
    match node.kind() {
        Kind::Array => node.items().count() as u64,
        Kind::Number => node.as_i64().and_then(|number| number.try_into().ok()).unwrap_or(0),
        Kind::Bool => node.as_bool().map_or(0, u64::from),
        Kind::Null | Kind::String | Kind::Object => 0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn arrays_whole_numbers_and_true_count_and_nothing_else() {
        let mut parser = Parser::new();
        for (value, wanted) in [
            ("[]", 0),
            ("[null,[1,2],{}]", 3),
            ("0", 0),
            ("7", 7),
            ("2.0", 2),
            ("-7", 0),
            ("1.5", 0),
            ("99999999999999999999", 0),
            ("true", 1),
            ("false", 0),
            ("null", 0),
            ("\"7\"", 0),
            ("{\"a\":1}", 0),
        ] {
            assert_eq!(amount(parser.parse(value.as_bytes()).unwrap()), wanted, "{value}");
        }
    }
}
