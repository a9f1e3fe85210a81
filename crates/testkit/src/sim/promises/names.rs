//! What potok promises, by name.

use std::fmt;

/// What potok promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// Every record has an ending.
    NothingLost,
    /// What arrives was sent, and is what was sent.
    NothingInvented,
    /// Only what has ended is noted as ended.
    NotedOnlyWhenEnded,
    /// The same work has one name.
    OneName,
    /// A topic on the log has every record once.
    OnceInTopics,
    /// A destination that knows names has every record once.
    OnceInSinks,
    /// Records of one key arrive in order.
    OrderPerKey,
    /// Records of one group leave as they came, whatever partitions they came from.
    OrderOfArrival,
    /// Nothing becomes a dead letter because a destination is away.
    OutageIsNoPoison,
    /// Healthy records never become dead letters.
    HealthyStayAlive,
    /// A bad record is one dead letter, with its bytes and reason.
    BadOnceInDeadLetters,
    /// What was received equals what ended and what is in flight.
    CountsAddUp,
    /// What a process counts is what it did, as the world saw it.
    CountsAreTrue,
    /// Where the log is shared, each record comes into its group once.
    GatheredOnce,
    /// What is sent together is what one seal names.
    SentAsSealed,
    /// Where the log is shared, no group closes before its time, whatever clocks say.
    WindowsLast,
    /// While nothing is in trouble, groups close when they are due.
    WindowsEnd,
    /// Whoever had a share of the groups before changes nothing in their store.
    OwnersWrite,
    /// Whoever had a partition before notes no endings in it.
    OwnersCommit,
    /// The store is cleaned of what is noted as ended, and of nothing else.
    CleanedWhenEnded,
    /// Where later records replace earlier ones, the last arrival stands for all.
    LatestWins,
    /// While work goes on, positions follow it.
    CommitAdvances,
    /// Gates open again once their destination is back.
    GatesReopen,
    /// Once trouble is over, everything ends.
    WorkFinishes,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Promise::NothingLost => "nothing lost",
            Promise::NothingInvented => "nothing invented or changed",
            Promise::NotedOnlyWhenEnded => "noted as ended only when ended",
            Promise::OneName => "the same work has one name",
            Promise::OnceInTopics => "exactly once in topics",
            Promise::OnceInSinks => "exactly once in destinations that know names",
            Promise::OrderPerKey => "order per key kept",
            Promise::OrderOfArrival => "records of a group leave as they came",
            Promise::OutageIsNoPoison => "an outage makes no dead letters",
            Promise::HealthyStayAlive => "healthy records are no dead letters",
            Promise::BadOnceInDeadLetters => "each bad record once in dead letters",
            Promise::CountsAddUp => "counts add up",
            Promise::CountsAreTrue => "counts say what happened",
            Promise::GatheredOnce => "gathered exactly once",
            Promise::SentAsSealed => "batches are sent as they were sealed",
            Promise::WindowsLast => "windows last as long as they should",
            Promise::WindowsEnd => "windows end when they should",
            Promise::OwnersWrite => "only its owner changes a share of the store",
            Promise::OwnersCommit => "only its owner commits a partition",
            Promise::CleanedWhenEnded => "the store is cleaned only of what has ended",
            Promise::LatestWins => "the last arrival of an id stands for all",
            Promise::CommitAdvances => "the commit advances while work goes on",
            Promise::GatesReopen => "gates reopen",
            Promise::WorkFinishes => "work finishes",
        })
    }
}
