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
    /// A completion with an error does not acknowledge, whatever the error says.
    ErrorIsNotDelivered,
    /// A completion counts for whoever was sent a message of that id.
    MatchById,
    /// A completion of an id that is no longer known counts for the message that came after it.
    SlotReused,
    /// A connection that missed a deadline is waited for again with every message.
    WaitsEachTime,
    /// Where a client negotiated is remembered there alone.
    NegotiateKeepsState,
    /// A message is kept for the inbox after its user was looked up.
    InboxAfter,
    /// What was missed is read before the other nodes know of the connection.
    ResumeFirst,
    /// What a client has not answered is not bounded, until its queue is full.
    NoWindow,
    /// Nothing is read from a client that takes nothing.
    AwaitsSendInLoop,
    /// Whatever stands in `X-Forwarded-For` is believed.
    TrustsForwarded,
    /// A socket of this machine is a client of this machine.
    PeerIsLoopback,
    /// Pages may read good answers only.
    CorsOnlyOn200,
    /// Who is told to go is closed, and no more.
    KickOnly,
    /// Messages want an answer from clients that do not know answers.
    IdForEverybody,
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
