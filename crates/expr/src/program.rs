//! VRL programs: filter, validate, enrich.
//!
//! The event is `.`, always an object. Metadata can be read, not written: `%key` (string or
//! null), `%headers` (an object, the last value of each name), `%topic`, `%time`. `abort` filters
//! the record out. What `.` is at the end goes on; a program that only looks leaves the bytes
//! exactly as they were.
//!
//! Promised: a program that compiles handles every error VRL knows of; a run ends soon after the
//! deadline, because VRL asks between expressions whether to go on; numbers that VRL cannot hold
//! make the run fail instead of changing. Only the fields a program names are made into VRL's
//! values, and all of them when it changes something. Not promised: stopping a single function call in its
//! middle, or bounding the memory a program asks for.

mod compile;
mod convert;
mod event;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use potok_core::{Headers, Timestamp};
use vrl::compiler::runtime::{Runtime, Terminate};
use vrl::compiler::{ExpressionError, TimeZone};
use vrl::value::Value;

use self::event::Event;
use crate::ExprError;

/// How long one run may take unless told otherwise.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(1);

/// Reading the clock costs about as much as a small expression, so it is asked at every eighth.
const CHECKPOINTS_PER_LOOK: u32 = 8;

/// A compiled program. Cheap to clone; runs on any thread, on many at once.
#[derive(Clone)]
pub struct Program {
    source: Arc<str>,
    program: Arc<vrl::compiler::Program>,
    /// The fields of the event that suffice to run it, unless it changes something; none where
    /// that is not known.
    named: Arc<[Box<str>]>,
    timezone: TimeZone,
    deadline: Duration,
}

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
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The headers.
    pub headers: &'a Headers,
    /// The topic it came from.
    pub topic: &'a str,
    /// When the log took it.
    pub time: Timestamp,
}

/// How a run ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ran {
    /// With this value.
    Value(Bytes),
    /// With the value it was given: it only looked.
    Unchanged,
    /// With `abort`: the record is to be filtered out.
    Filtered,
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

    /// Compiles a program whose value is true or false and which changes nothing.
    pub fn compile_predicate(source: &str) -> Result<Program, Vec<ExprError>> {
        Self::build(source, compile::Purpose::Predicate)
    }

    fn build(source: &str, purpose: compile::Purpose) -> Result<Program, Vec<ExprError>> {
        let program = compile::compile(source, purpose)?;
        Ok(Program {
            source: source.into(),
            named: event::named(&program),
            program: Arc::new(program),
            // Where a program reads a time without a zone, the machine's zone must not matter.
            timezone: TimeZone::parse("UTC").unwrap_or_default(),
            deadline: DEADLINE_DEFAULT,
        })
    }

    /// The same program with another deadline.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Program {
        self.deadline = deadline;
        self
    }

    /// The text it was compiled from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Runs it on one record.
    pub fn run(&self, view: &View<'_>) -> Result<Ran, ProgramError> {
        let (ended, event) = self.resolve(view)?;
        match ended {
            Ended::Aborted => Ok(Ran::Filtered),
            Ended::With(_) => match event.changed() {
                None => Ok(Ran::Unchanged),
                Some(value) => {
                    let mut out = Vec::with_capacity(view.value.len());
                    convert::write(value, &mut out).map_err(ProgramError::Failed)?;
                    Ok(Ran::Value(Bytes::from(out)))
                }
            },
        }
    }

    /// Runs it on one record and tells whether it holds. `abort` means that it does not.
    pub fn matches(&self, view: &View<'_>) -> Result<bool, ProgramError> {
        match self.resolve(view)?.0 {
            Ended::Aborted => Ok(false),
            Ended::With(Value::Boolean(holds)) => Ok(holds),
            Ended::With(other) => Err(ProgramError::Failed(format!(
                "the condition gave {} instead of true or false",
                other.kind_str()
            ))),
        }
    }

    fn resolve<'a>(&'a self, view: &View<'a>) -> Result<(Ended, Event<'a>), ProgramError> {
        let mut event = Event::new(*view, &self.named).map_err(ProgramError::Failed)?;
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
        // VRL takes what cannot be read for what is not there.
        if let Some(why) = event.trouble() {
            return Err(ProgramError::Failed(why.to_owned()));
        }
        match ended {
            Ok(Ok(value)) => Ok((Ended::With(value), event)),
            Ok(Err(Terminate::Abort(ExpressionError::Abort { .. }))) => Ok((Ended::Aborted, event)),
            Ok(Err(Terminate::Interrupted)) => Err(ProgramError::Deadline),
            Ok(Err(error)) => Err(ProgramError::Failed(error.to_string())),
            Err(panic) => {
                let what = compile::panic_message(panic.as_ref());
                Err(ProgramError::Failed(format!("the program crashed: {what}")))
            }
        }
    }
}

enum Ended {
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
