//! An error, sorted by whose move it is.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The engine's answer to a fault. Nothing else about an error decides anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Move {
    /// The destination is away, full, read-only or refuses us: close the gate, probe until it
    /// answers. Never a dead letter.
    Wait,
    /// This attempt failed: back off and try again, bounded.
    Retry,
    /// This record is bad: dead-letter it, the others go on.
    SetAside,
    /// The set-up is wrong: stop this pipeline and tell the operator.
    Fix,
}

/// Why a record became a dead letter. The list is closed: users filter by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The bytes are not what the decoder reads (not JSON, not UTF-8, too deep …).
    Undecodable,
    /// Decoded, but against the pipeline's schema.
    Invalid,
    /// A path for a key or id is missing or null.
    NoKey,
    /// A stage failed on it and the pipeline says `on_error: dead_letter`.
    Stage,
    /// The destination refused this record.
    Refused,
    /// Another record has the same business id and other content.
    Conflict,
    /// It kept failing while others succeeded.
    RetriesExhausted,
    /// The process died three times while working on it.
    Crashes,
    /// Larger than the destination takes.
    TooLarge,
    /// Bytes of the log that could not be read back.
    Damaged,
    /// Its batch was dropped by hand.
    Dropped,
}

impl Reason {
    /// All of them, in the order users see.
    pub const ALL: [Reason; 11] = [
        Reason::Undecodable,
        Reason::Invalid,
        Reason::NoKey,
        Reason::Stage,
        Reason::Refused,
        Reason::Conflict,
        Reason::RetriesExhausted,
        Reason::Crashes,
        Reason::TooLarge,
        Reason::Damaged,
        Reason::Dropped,
    ];

    /// The word in dead letters, metrics and `--reason`.
    pub fn word(self) -> &'static str {
        match self {
            Reason::Undecodable => "undecodable",
            Reason::Invalid => "invalid",
            Reason::NoKey => "no_key",
            Reason::Stage => "stage",
            Reason::Refused => "refused",
            Reason::Conflict => "conflict",
            Reason::RetriesExhausted => "retries_exhausted",
            Reason::Crashes => "crashes",
            Reason::TooLarge => "too_large",
            Reason::Damaged => "damaged",
            Reason::Dropped => "dropped",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// An error across a contract: whose move it is, what happened, why, and what to do.
#[derive(Clone, Debug, Serialize)]
pub struct Fault {
    /// Whose move it is.
    pub next: Move,
    /// For [`Move::SetAside`], the dead letter's reason.
    pub reason: Reason,
    /// The code of its page, shown by `potok explain`; empty where there is none.
    pub code: &'static str,
    /// One sentence about what happened, without the cause.
    pub what: String,
    /// The words of the system below.
    pub cause: Option<String>,
    /// Advice to the operator.
    pub hint: Option<String>,
    /// It passes only when somebody acts (grants a right, creates a topic). Unlike with
    /// [`Move::Fix`] work then goes on by itself.
    #[serde(skip_serializing_if = "is_false")]
    pub needs_somebody: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl Fault {
    fn new(next: Move, reason: Reason, what: impl Into<String>) -> Self {
        Fault {
            next,
            reason,
            code: "",
            what: what.into(),
            cause: None,
            hint: None,
            needs_somebody: false,
        }
    }

    /// The destination is away.
    pub fn wait(what: impl Into<String>) -> Self {
        Self::new(Move::Wait, Reason::Refused, what)
    }

    /// This attempt failed.
    pub fn retry(what: impl Into<String>) -> Self {
        Self::new(Move::Retry, Reason::RetriesExhausted, what)
    }

    /// This record is bad, for `reason`.
    pub fn set_aside(reason: Reason, what: impl Into<String>) -> Self {
        Self::new(Move::SetAside, reason, what)
    }

    /// The set-up is wrong.
    pub fn fix(what: impl Into<String>) -> Self {
        Self::new(Move::Fix, Reason::Refused, what)
    }

    /// Adds what the system below said.
    #[must_use]
    pub fn because(mut self, cause: impl fmt::Display) -> Self {
        self.cause = Some(cause.to_string());
        self
    }

    /// Adds what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says that it passes only when somebody acts.
    #[must_use]
    pub fn needs_somebody(mut self) -> Self {
        self.needs_somebody = true;
        self
    }

    /// Adds the code of its page.
    #[must_use]
    pub fn code(mut self, code: &'static str) -> Self {
        self.code = code;
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.code.is_empty() {
            write!(f, "[{}] ", self.code)?;
        }
        f.write_str(&self.what)?;
        if let Some(cause) = &self.cause {
            write!(f, ": {cause}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, " ({hint})")?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}
