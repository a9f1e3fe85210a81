//! VRL programs: filter, validate, enrich.
//!
//! The event is `.`, always an object. Metadata can be read, not written: `%key` (string or
//! null), `%headers` (an object, the last value of each name), `%topic`, `%time`. `abort` filters
//! the record out. What `.` is at the end goes on; a program that only looks leaves the bytes
//! exactly as they were.
//!
//! A program per group sees the values of a group as an array `.`, in order, and must leave one of
//! the same length: element i is what event i becomes, null filters it, `abort` filters all. Or it
//! leaves one object, which all of them become. There, `%key` is the key of the group, `%group` what
//! is known of it and `%events` has the metadata of each event.
//!
//! A condition is true or false, and false where it fails (`condition.rs`).
//!
//! Promised: a program that compiles handles every error VRL knows of; a run ends soon after the
//! deadline, because VRL asks between expressions whether to go on; numbers that VRL cannot hold
//! make the run fail instead of changing. Not promised: stopping a single function call in its
//! middle, or bounding the memory a program asks for.

mod compile;
mod condition;
mod convert;
mod explain;
mod reads;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use potok_core::{GroupInfo, Headers, Timestamp};
use vrl::compiler::runtime::{Runtime, Terminate};
use vrl::compiler::{ExpressionError, SecretTarget, Target, TargetValue, TimeZone};
use vrl::path::{OwnedTargetPath, PathPrefix};
use vrl::value::{Secrets, Value};

use self::reads::Reads;
use crate::ExprError;
use crate::json::{Kind, Parser};

/// How long one run may take unless told otherwise.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(1);

/// The same for a program that sees a whole batch.
pub const BATCH_DEADLINE_DEFAULT: Duration = Duration::from_secs(10);

/// Reading the clock costs about as much as a small expression, so it is asked at every eighth.
const CHECKPOINTS_PER_LOOK: u32 = 8;

/// A compiled program. Cheap to clone; runs on any thread, on many at once.
#[derive(Clone)]
pub struct Program {
    source: Arc<str>,
    program: Arc<vrl::compiler::Program>,
    /// What it looks at, where that is less than everything.
    reads: Option<Arc<Reads>>,
    timezone: TimeZone,
    deadline: Duration,
    places: Option<Places>,
}

/// How to call the place of a byte of a program, such as `orders.yaml:12:9`.
pub type Places = Arc<dyn Fn(usize) -> String + Send + Sync>;

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("source", &self.source).finish_non_exhaustive()
    }
}

/// The record a program looks at.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The value, a JSON object.
    pub value: &'a [u8],
    /// `None` for a record without a key.
    pub key: Option<&'a [u8]>,
    /// In the order of the record; empty where it has none.
    pub headers: &'a Headers,
    /// The topic it came from.
    pub topic: &'a str,
    /// When the log took it.
    pub time: Timestamp,
}

impl<'a> From<&'a potok_core::Event> for View<'a> {
    fn from(event: &'a potok_core::Event) -> Self {
        View {
            value: &event.value,
            key: event.key.as_deref(),
            headers: &event.headers,
            topic: &event.position.topic,
            time: event.time,
        }
    }
}

/// How a run ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramOutcome {
    /// With the value as it was.
    Unchanged,
    /// With this value.
    Value(Bytes),
    /// With `abort`: the record is to be filtered out.
    Filtered,
}

/// How a run on a group ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupOutcome {
    /// For each event, in order.
    Each(Vec<ProgramOutcome>),
    /// All events became this value.
    One(Bytes),
}

/// How a run ended badly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// The record is nothing this program can work on, or the program gave up on it.
    #[error("{0}")]
    Failed(String),
    /// It took longer than it may.
    #[error("the program did not finish before its deadline")]
    Deadline,
}

impl Program {
    /// Compiles a program that may change the event. All problems at once.
    pub fn compile(source: &str) -> Result<Program, Vec<ExprError>> {
        Self::build(source, compile::Purpose::Transform)
    }

    /// Compiles a condition: a program whose value is true or false and which changes nothing. A
    /// comparison or call in it that fails is false.
    pub fn compile_predicate(source: &str) -> Result<Program, Vec<ExprError>> {
        Self::build(source, compile::Purpose::Predicate)
    }

    /// Compiles a program that sees a whole batch and may change its events.
    pub fn compile_batch(source: &str) -> Result<Program, Vec<ExprError>> {
        let program = Self::build(source, compile::Purpose::Batch)?;
        Ok(program.with_deadline(BATCH_DEADLINE_DEFAULT))
    }

    fn build(source: &str, purpose: compile::Purpose) -> Result<Program, Vec<ExprError>> {
        let program = compile::compile(source, purpose)?;
        Ok(Program {
            source: source.into(),
            reads: Reads::of(&program).map(Arc::new),
            program: Arc::new(program),
            // Where a program reads a time without a zone, the machine's zone must not matter.
            timezone: TimeZone::parse("UTC").unwrap_or_default(),
            deadline: DEADLINE_DEFAULT,
            places: None,
        })
    }

    /// The same program with another deadline.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Program {
        self.deadline = deadline;
        self
    }

    /// The same program, which calls places in it by their places in a file.
    #[must_use]
    pub fn with_places(mut self, places: Option<Places>) -> Program {
        self.places = places;
        self
    }

    /// The text it was compiled from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Runs it on one record.
    pub fn run(&self, view: &View<'_>) -> Result<ProgramOutcome, ProgramError> {
        let (ended, event) = self.resolve(view)?;
        match ended {
            ProgramEnd::Aborted => Ok(ProgramOutcome::Filtered),
            ProgramEnd::With(_) if !event.changed => Ok(ProgramOutcome::Unchanged),
            ProgramEnd::With(_) => {
                let mut out = Vec::with_capacity(view.value.len());
                convert::write(&event.target.value, &mut out).map_err(ProgramError::Failed)?;
                Ok(ProgramOutcome::Value(Bytes::from(out)))
            }
        }
    }

    /// Runs it on the events of a group, in order.
    pub fn run_batch(
        &self,
        group: &GroupInfo,
        events: &[View<'_>],
    ) -> Result<GroupOutcome, ProgramError> {
        let failed = ProgramError::Failed;
        let values = events.iter().zip(1..).map(|(view, number)| {
            read_value(view.value).map_err(|what| failed(format!("event {number}: {what}")))
        });
        let before: Vec<Value> = values.collect::<Result<_, _>>()?;
        // Where everything is named, everything has to be there.
        let metadata = convert::batch_metadata(group, events);
        let (ended, event) = self.execute(Value::Array(before.clone()), metadata, None)?;
        let after = match (ended, event.changed, event.target.value) {
            (ProgramEnd::Aborted, ..) => {
                return Ok(GroupOutcome::Each(vec![ProgramOutcome::Filtered; events.len()]));
            }
            (ProgramEnd::With(_), false, _) => {
                return Ok(GroupOutcome::Each(vec![ProgramOutcome::Unchanged; events.len()]));
            }
            (ProgramEnd::With(_), true, Value::Array(after)) => after,
            (ProgramEnd::With(_), true, one @ Value::Object(_)) => {
                let mut out = Vec::new();
                convert::write(&one, &mut out).map_err(failed)?;
                return Ok(GroupOutcome::One(Bytes::from(out)));
            }
            (ProgramEnd::With(_), true, other) => {
                let what = format!(
                    "the program left {} instead of an array or an object",
                    other.kind_str()
                );
                return Err(failed(what));
            }
        };
        if after.len() != before.len() {
            let (left, given) = (after.len(), before.len());
            let what = format!("the program left {left} elements for {given} events");
            return Err(failed(what));
        }
        let pairs = before.iter().zip(&after).zip(1..);
        let ran = pairs.map(|((before, after), number)| {
            if after.is_null() {
                return Ok(ProgramOutcome::Filtered);
            }
            // What a program did not touch keeps its bytes.
            if before == after {
                return Ok(ProgramOutcome::Unchanged);
            }
            let mut out = Vec::new();
            convert::write(after, &mut out)
                .map_err(|what| failed(format!("event {number}: {what}")))?;
            Ok(ProgramOutcome::Value(Bytes::from(out)))
        });
        Ok(GroupOutcome::Each(ran.collect::<Result<_, _>>()?))
    }

    /// Tells whether a condition holds for a record. What it fails on, it does not hold for: so no
    /// other error than the deadline is left. A value that is no object has no fields.
    pub fn matches(&self, view: &View<'_>) -> Result<bool, ProgramError> {
        // A look at metadata alone needs no value that can be read.
        let sees_fields = self.reads.as_ref().is_none_or(|reads| !reads.fields.is_empty());
        let view = if sees_fields { *view } else { View { value: b"{}", ..*view } };
        match self.resolve(&view) {
            Ok((ProgramEnd::With(Value::Boolean(holds)), _)) => Ok(holds),
            Ok((ProgramEnd::With(_) | ProgramEnd::Aborted, _)) | Err(ProgramError::Failed(_)) => {
                Ok(false)
            }
            Err(ProgramError::Deadline) => Err(ProgramError::Deadline),
        }
    }

    fn resolve(&self, view: &View<'_>) -> Result<(ProgramEnd, Event), ProgramError> {
        if let Some(reads) = &self.reads {
            let ran = self.resolve_on(view, Some(reads.clone()));
            let saw_enough = match &ran {
                Ok((_, event)) => !event.changed && !event.missed.get(),
                Err(error) => *error == ProgramError::Deadline,
            };
            if saw_enough {
                return ran;
            }
        }
        self.resolve_on(view, None)
    }

    fn resolve_on(
        &self,
        view: &View<'_>,
        reads: Option<Arc<Reads>>,
    ) -> Result<(ProgramEnd, Event), ProgramError> {
        let metadata = match &reads {
            Some(reads) if !reads.metadata => Value::Object(Default::default()),
            _ => convert::metadata(view),
        };
        let value = read_event(view.value, reads.as_deref()).map_err(ProgramError::Failed)?;
        self.execute(value, metadata, reads)
    }

    fn execute(
        &self,
        value: Value,
        metadata: Value,
        reads: Option<Arc<Reads>>,
    ) -> Result<(ProgramEnd, Event), ProgramError> {
        let target = TargetValue { value, metadata, secrets: Secrets::default() };
        let mut event = Event {
            target,
            changed: false,
            reads,
            missed: Cell::new(false),
            begun: Cell::new(false),
        };
        let mut control = deadline(self.deadline);
        // A panic inside VRL is a fault of one record and must not become one of its lane.
        let ended = catch_unwind(AssertUnwindSafe(|| {
            Runtime::default().resolve_with_control(
                &mut event,
                &self.program,
                &self.timezone,
                &mut control,
            )
        }));
        match ended {
            Ok(Ok(value)) => Ok((ProgramEnd::With(value), event)),
            Ok(Err(Terminate::Abort(ExpressionError::Abort { .. }))) => {
                Ok((ProgramEnd::Aborted, event))
            }
            Ok(Err(Terminate::Interrupted)) => Err(ProgramError::Deadline),
            Ok(Err(Terminate::Error(error) | Terminate::Abort(error))) => Err(self.failed(&error)),
            Err(panic) => {
                let what = compile::panic_message(panic.as_ref());
                Err(ProgramError::Failed(format!("the program crashed: {what}")))
            }
        }
    }

    /// What went wrong, and where in the file, or else in the program.
    fn failed(&self, error: &ExpressionError) -> ProgramError {
        let (what, at) = explain::failure(&self.source, error);
        ProgramError::Failed(match (at, &self.places) {
            (None, _) => what,
            (Some(at), Some(places)) => format!("{what} (at {})", places(at)),
            (Some(at), None) => {
                let before = self.source.get(..at).unwrap_or_default();
                let line = before.matches('\n').count() + 1;
                let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
                format!("{what} (at line {line}, column {column} of the program)")
            }
        })
    }
}

thread_local! {
    /// Its buffers serve every run on the thread.
    static PARSER: RefCell<Parser> = RefCell::default();
}

fn read_event(bytes: &[u8], reads: Option<&Reads>) -> Result<Value, String> {
    PARSER.with_borrow_mut(|parser| {
        let node =
            parser.parse(bytes).map_err(|error| format!("the value is not JSON: {error}"))?;
        match (node.kind(), reads) {
            (Kind::Object, Some(reads)) => convert::read_fields(node, &reads.fields),
            (Kind::Object, None) => convert::read(node),
            (other, _) => Err(format!("a program works on an object, and the value is {other}")),
        }
    })
}

fn read_value(bytes: &[u8]) -> Result<Value, String> {
    PARSER.with_borrow_mut(|parser| {
        let node =
            parser.parse(bytes).map_err(|error| format!("the value is not JSON: {error}"))?;
        convert::read(node)
    })
}

enum ProgramEnd {
    With(Value),
    Aborted,
}

/// The checkpoint that VRL calls between expressions.
#[allow(
    clippy::disallowed_methods,
    reason = "a deadline of the processor, which no simulated clock may stretch"
)]
fn deadline(limit: Duration) -> impl FnMut() -> ControlFlow<()> {
    let started = Instant::now();
    let mut passed = 0u32;
    move || {
        passed = passed.wrapping_add(1);
        if passed.is_multiple_of(CHECKPOINTS_PER_LOOK) && started.elapsed() >= limit {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// VRL's view of a record, with a note of whether `.` was touched.
#[derive(Debug)]
struct Event {
    target: TargetValue,
    changed: bool,
    /// What was read, where that is less than everything.
    reads: Option<Arc<Reads>>,
    /// The program looked at something that was not.
    missed: Cell<bool>,
    /// VRL's runtime has looked whether there is an event, as it does before it runs a program.
    begun: Cell<bool>,
}

impl Event {
    fn note_look(&self, path: &OwnedTargetPath) {
        if !self.begun.replace(true) && *path == OwnedTargetPath::event_root() {
            return;
        }
        if self.reads.as_ref().is_some_and(|reads| !reads.covers(path)) {
            self.missed.set(true);
        }
    }

    fn note_change(&mut self, path: &OwnedTargetPath) {
        self.changed |= path.prefix == PathPrefix::Event;
    }
}

impl Target for Event {
    fn target_insert(&mut self, path: &OwnedTargetPath, value: Value) -> Result<(), String> {
        self.note_change(path);
        self.target.target_insert(path, value)
    }

    fn target_get(&self, path: &OwnedTargetPath) -> Result<Option<&Value>, String> {
        self.note_look(path);
        self.target.target_get(path)
    }

    fn target_get_mut(&mut self, path: &OwnedTargetPath) -> Result<Option<&mut Value>, String> {
        self.note_change(path);
        self.target.target_get_mut(path)
    }

    fn target_remove(
        &mut self,
        path: &OwnedTargetPath,
        compact: bool,
    ) -> Result<Option<Value>, String> {
        self.note_change(path);
        self.target.target_remove(path, compact)
    }
}

impl SecretTarget for Event {
    fn get_secret(&self, key: &str) -> Option<&str> {
        self.target.get_secret(key)
    }

    fn insert_secret(&mut self, key: &str, value: &str) {
        self.target.insert_secret(key, value);
    }

    fn remove_secret(&mut self, key: &str) {
        self.target.remove_secret(key);
    }
}
