//! The facts about a group of records.

use bytes::Bytes;

use crate::Timestamp;

/// Why a group closed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// No record came for `quiet`.
    SilenceReached,
    /// It reached `max_age`.
    MaxWaitReached,
    /// It reached `max_count`.
    MaxCount,
    /// It reached `max_bytes`.
    MaxBytes,
    /// `after_first` went by.
    WindowEnded,
    /// Its slice of the clock (`every`) ended.
    SliceEnded,
    /// A record made `when` true.
    ConditionMet,
    /// Somebody closed it.
    ClosedByHand,
    /// Somebody gave it up.
    Dropped,
    /// It is one dead letter that is replayed: its group has been sent.
    Replayed,
    /// Its seal is of a version that did not note it, or of a later one.
    #[default]
    #[serde(other)]
    Unknown,
}

impl CloseReason {
    /// As it is written in seals, metadata and lists.
    pub fn as_str(self) -> &'static str {
        match self {
            CloseReason::SilenceReached => "silence_reached",
            CloseReason::MaxWaitReached => "max_wait_reached",
            CloseReason::MaxCount => "max_count",
            CloseReason::MaxBytes => "max_bytes",
            CloseReason::WindowEnded => "window_ended",
            CloseReason::SliceEnded => "slice_ended",
            CloseReason::ConditionMet => "condition_met",
            CloseReason::ClosedByHand => "closed_by_hand",
            CloseReason::Dropped => "dropped",
            CloseReason::Replayed => "replayed",
            CloseReason::Unknown => "unknown",
        }
    }

    /// The reason that is written so; [`CloseReason::Unknown`] where none is.
    pub fn of(word: &str) -> Self {
        let known = [
            CloseReason::SilenceReached,
            CloseReason::MaxWaitReached,
            CloseReason::MaxCount,
            CloseReason::MaxBytes,
            CloseReason::WindowEnded,
            CloseReason::SliceEnded,
            CloseReason::ConditionMet,
            CloseReason::ClosedByHand,
            CloseReason::Dropped,
        ];
        known.into_iter().find(|reason| reason.as_str() == word).unwrap_or_default()
    }
}

/// A group that a stage is given. All of it is read from the group's seal, so that the same group
/// is told the same however often it is sent.
#[derive(Clone, Debug)]
pub struct GroupInfo {
    /// Empty where all records are one group.
    pub key: Bytes,
    /// Why it closed.
    pub reason: CloseReason,
    /// When the log took its first record.
    pub opened: Timestamp,
    /// When it closed.
    pub closed: Timestamp,
    /// Tells it from other groups of that key.
    pub name: String,
}

impl GroupInfo {
    /// Of a replayed dead letter, which comes alone.
    pub fn replayed(key: Bytes, time: Timestamp, name: String) -> Self {
        GroupInfo { key, reason: CloseReason::Replayed, opened: time, closed: time, name }
    }
}
