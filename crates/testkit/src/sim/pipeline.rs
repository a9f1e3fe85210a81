//! The pipeline of a scenario: the parts that are not simulated systems.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use potok_core::{DecodeResult, Decoder, Event, Fault, Reason, Record, Stage, StageResult, Store};
use potok_expr::Template;
use potok_flow::decode::JsonDecoder;
use potok_flow::{
    ClosePlan, DeliverPlan, GroupPlan, Input, OnError, OnRepeat, Per, Plan, Retry, StagePlan,
    Target, TopicTarget,
};

use super::promises;
use super::scenario::{Change, Hold, Scenario, SimTarget, StageManner};
use super::sink::SimSink;
use super::store::StoreHandle;
use super::trouble::Trouble;
use super::workload::RecordKind;
use super::world::World;

/// Name of the simulated pipeline.
pub const PIPELINE: &str = "sim";

/// Topic of its dead letters.
pub const DEAD: &str = "sim-dead";

/// Its consumer group.
pub const GROUP: &str = "sim-group";

/// Another one, where topics are read in two.
pub const SECOND_GROUP: &str = "sim-group-two";

/// The one that reads what was gathered, where the log is shared.
pub const HELD_GROUP: &str = "sim-group-held";

/// Topic of its seals.
pub const INTERNAL: &str = "potok-sim";

/// The plan of a scenario in its first life, on the destinations of a world.
pub fn plan(world: &Arc<World>, scenario: &Scenario, workers: usize) -> Result<Plan, String> {
    plan_in(world, scenario, workers, (0, 0))
}

/// The same in a life, of one of the processes.
pub(super) fn plan_in(
    world: &Arc<World>,
    scenario: &Scenario,
    workers: usize,
    (life, process): (usize, usize),
) -> Result<Plan, String> {
    let path = |text: &str| Template::parse(text).map_err(|error| error.message);
    let mut delivers = Vec::new();
    for (index, deliver) in scenario.delivers.iter().enumerate() {
        let target = match &deliver.to {
            SimTarget::Sink(manner) => {
                Target::Sink(SimSink::of_process(world.clone(), index, *manner, process))
            }
            SimTarget::Topic(topic) => Target::Topic(TopicTarget::Fixed(topic.clone())),
        };
        delivers.push(DeliverPlan {
            label: format!("entry {index}"),
            number: index as u32,
            shard: None,
            kind: None,
            target,
            key: deliver.key_by_k.then(|| path(".k")).transpose()?,
            once_by: if deliver.once { vec![path(".id")?] } else { Vec::new() },
            headers_id: matches!(deliver.to, SimTarget::Topic(_)),
        });
    }
    let filters = scenario.is_changed(life, |change| matches!(change, Change::Filter));
    let refuses = scenario.is_changed(life, |change| matches!(change, Change::Schema));
    let per_group = |manner: &StageManner| scenario.hold.is_some() && manner.rewrites;
    let stages = scenario.stage.map(|manner| StagePlan {
        name: "stage".to_owned(),
        stage: Arc::new(SimStage {
            world: world.clone(),
            manner,
            filters,
            per_group: per_group(&manner),
        }),
        per: if per_group(&manner) { Per::Group } else { Per::Event },
        on_error: if manner.dead_letters { OnError::DeadLetter } else { OnError::Pass },
        counts: Vec::new(),
    });
    let (attempts, first, max) = scenario.retry;
    Ok(Plan {
        name: PIPELINE.to_owned(),
        workers,
        inputs: inputs(scenario),
        decoder: Arc::new(SimDecoder {
            world: world.clone(),
            json: JsonDecoder::new(None),
            refuses,
        }),
        hold: scenario
            .hold_in(life)
            .map(|hold| hold_plan(world, hold, process, scenario.memory_max()))
            .transpose()?,
        stages: stages.into_iter().collect(),
        delivers,
        order_by: scenario.order_by_k.then(|| path(".k")).transpose()?,
        retry: Retry { attempts, first, max },
        probe_every: scenario.probe_every,
        dead_letter_topic: DEAD.into(),
        replays_max: 20,
        keep_resolved: None,
        in_flight_bytes: scenario.in_flight_bytes,
    })
}

fn inputs(scenario: &Scenario) -> Vec<Input> {
    let read_in = |group: &&str| {
        let topics = scenario.topics.iter().filter(|topic| scenario.group_of(topic) == *group);
        Input::topics(*group, topics.cloned().collect())
    };
    let groups = if scenario.two_groups { &[GROUP, SECOND_GROUP][..] } else { &[GROUP] };
    groups.iter().map(read_in).collect()
}

fn hold_plan(
    world: &Arc<World>,
    hold: Hold,
    process: usize,
    memory_max: usize,
) -> Result<GroupPlan, String> {
    let store = || Arc::new(StoreHandle { world: world.clone(), process }) as Arc<dyn Store>;
    let by = hold.by.map(Template::parse).transpose().map_err(|error| error.message)?;
    Ok(GroupPlan {
        by,
        shard: None,
        kinds: Vec::new(),
        id: hold
            .replace
            .then(|| Template::parse(".id"))
            .transpose()
            .map_err(|error| error.message)?,
        close: ClosePlan {
            after_first: Some(Duration::from_millis(hold.after_first)),
            quiet: hold.quiet.map(Duration::from_millis),
            max_count: hold.max_count,
            ..ClosePlan::default()
        },
        on_repeat: if hold.replace { OnRepeat::Replace } else { OnRepeat::Keep },
        store: hold.stored.then(store),
        memory_max,
        internal: INTERNAL.into(),
        files: None,
        track: None,
    })
}

/// Real JSON decoding, which some records do not survive.
struct SimDecoder {
    world: Arc<World>,
    json: JsonDecoder,
    /// Also what is outdated.
    refuses: bool,
}

impl Decoder for SimDecoder {
    #[allow(clippy::panic, reason = "a decoder may panic; that is what is simulated")]
    fn decode(&self, records: &[&Record]) -> Vec<DecodeResult> {
        for record in records {
            match RecordKind::of(record.value.as_deref()) {
                RecordKind::Killer => {
                    self.world.with(|w| {
                        w.tally.hit(Trouble::Killer);
                        w.note(format_args!("the decoder dies of {}", record.offset));
                    });
                    panic!("{}", super::PANIC);
                }
                RecordKind::Undecodable => self.world.with(|w| w.tally.hit(Trouble::Undecodable)),
                _ => {}
            }
        }
        let mut decoded = self.json.decode(records);
        for (record, decoded) in records.iter().zip(&mut decoded).filter(|_| self.refuses) {
            if RecordKind::of(record.value.as_deref()) == RecordKind::Outdated {
                let what = "simulated: the schema is another by now";
                *decoded = DecodeResult::Bad(Fault::set_aside(Reason::Undecodable, what));
            }
        }
        decoded
    }
}

/// Filters, refuses or changes records, as their bytes say.
struct SimStage {
    world: Arc<World>,
    manner: StageManner,
    /// Also what is not wanted any more.
    filters: bool,
    /// It sees the records of one batch together.
    per_group: bool,
}

#[async_trait]
impl Stage for SimStage {
    async fn apply(&self, events: Vec<Event>) -> Result<Vec<StageResult>, Fault> {
        if self.world.with(|w| w.strikes(Trouble::StageFault, 10)) {
            return Err(Fault::wait("simulated: what the stage asks is away"));
        }
        if self.per_group {
            let batch = events.iter().map(|event| event.position.clone()).collect();
            self.world.with(|w| promises::check_batch(w, batch));
        }
        let apply = |mut event: Event| match RecordKind::of(Some(&event.source)) {
            RecordKind::Filtered => StageResult::Filtered,
            RecordKind::Unwanted if self.filters => {
                self.world.with(|w| w.filtered.insert(event.position));
                StageResult::Filtered
            }
            RecordKind::StageFails => {
                StageResult::Failed(Fault::set_aside(Reason::Stage, "simulated: the stage refuses"))
            }
            _ => {
                if self.manner.rewrites {
                    event.value = [&event.value[..], b" "].concat().into();
                }
                StageResult::On(event)
            }
        };
        Ok(events.into_iter().map(apply).collect())
    }
}
