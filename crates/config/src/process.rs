//! The step `process` of a pipeline file.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::connector::StageSettings;
use crate::expression::{CountPath, StageVrl};
use crate::shapes::OrderedMap;
use crate::values::SqlName;

/// One step of processing. What it does is told by one key of its own.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Its name, in messages and metrics.
    ///
    /// Example: `stage: clean`
    pub stage: SqlName,
    /// What the stage sees at a time.
    ///
    /// Example: `per: group`
    #[serde(default)]
    pub per: Per,
    /// What happens to a record on which the stage fails.
    ///
    /// Example: `on_error: pass`
    #[serde(default)]
    pub on_error: OnError,
    /// What to count in the events that this stage lets go on, with `per: group` too: a counter's
    /// name (small letters, digits, `_`) and a path in the event as the stage left it. An array
    /// adds its length, a whole number from 0 on itself, `true` one, everything else nothing. Seen
    /// in `potok status` and as the metric `potok_process_counted_total`, since the process
    /// started. An event that is processed again, as after a restart, is counted again.
    ///
    /// Example: `count: { bad_values: .BadValues }`
    #[serde(default)]
    #[schemars(extend("propertyNames" = { "format": "potok-counter-name" }))]
    pub count: OrderedMap<CountPath>,
    #[serde(skip)]
    pub(crate) work: Option<StageWork>,
}

impl Stage {
    /// What it does; there for every stage of a pipeline that was loaded.
    pub fn work(&self) -> Option<&StageWork> {
        self.work.as_ref()
    }

    /// Its program, where it is one.
    pub fn vrl(&self) -> Option<&StageVrl> {
        match self.work.as_ref()? {
            StageWork::Vrl(vrl) => Some(vrl),
            StageWork::Connector(_) => None,
        }
    }
}

/// What a stage does.
#[derive(Clone, Debug)]
pub enum StageWork {
    /// It runs a program.
    Vrl(StageVrl),
    /// It calls a connector of the registry.
    Connector(Arc<dyn StageSettings>),
}

/// A VRL program that changes the event or filters it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct VrlSettings {
    /// A VRL program. The event is `.`; key, headers, topic and time are `%key`, `%headers`,
    /// `%topic`, `%time`; `abort` filters the record. With `per: group` it is another: see there.
    ///
    /// Example: `vrl: ".tone = to_float(.AvgTone) ?? 0.0"`
    pub vrl: StageVrl,
}

/// What a program sees at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// One event.
    #[default]
    Event,
    /// A complete group, only with `group`: `.` is the array of the values in order of arrival,
    /// `%key` the value of `group.by` (empty without it), `%events` an array with `key`,
    /// `headers`, `topic` and `time` of each event, `%group` an object with `key`, `reason`
    /// (why it closed: `silence_reached`, `max_wait_reached`, `max_count`, `max_bytes`,
    /// `closed_by_hand`, …), `opened`, `closed` and `name`, which are the same whenever the group is
    /// sent. The program must leave an array of the same length: each element is what its event
    /// becomes, null filters it, `abort` filters all. Or it leaves one object: then the group is one
    /// message, with the key of the group and a delivery id of its own, and all records end as it
    /// does; where that is as dead letters, each is one with its own bytes. If
    /// the program fails, it has failed on every event of the group. A group of more than 10,000
    /// records or 16 MiB is sent in parts, and the program runs once for each; a repeat after a
    /// crash may lack events that have ended already; a dead letter that is replayed comes alone.
    Group,
}

/// What happens to a record on which a stage fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// It becomes a dead letter `stage`.
    #[default]
    DeadLetter,
    /// It goes on as it was before the stage.
    Pass,
    /// The pipeline stops and says so.
    Stop,
}
