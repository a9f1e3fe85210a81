//! Planted bugs: naive versions that tests must find. They exist in debug builds only; in a release
//! build [`planted`] is a constant that the compiler removes.

use crate::settings::Limits;

/// The naive versions that can be switched on, by [`Limits::planted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum Planted {
    /// A message to another node goes to the place that the user's connection had there, whoever
    /// has it now.
    RouteByConnection,
    /// A parcel that was taken by the line counts as acknowledged.
    SentIsDelivered,
    /// A directory that cannot be asked counts as one that knows nobody.
    AwayIsNobody,
    /// Users are announced once, when they connect.
    AnnouncedOnce,
    /// Who has no connection is nobody, also when they had one a moment ago.
    NobodyAtOnce,
}

pub(crate) fn planted(limits: &Limits, bug: Planted) -> bool {
    #[cfg(debug_assertions)]
    return limits.planted == Some(bug);
    #[cfg(not(debug_assertions))]
    {
        let _ = (limits, bug);
        false
    }
}
