//! Crash points and planted bugs: how tests make trouble on purpose.
//!
//! Both exist in debug builds only; in a release build every call here is a constant that the
//! compiler removes.
//!
//! A *crash point* is a named place where a process can be made to die at once, without unwinding
//! or flushing (`POTOK_CRASH_AT=name` or `name:3` for the third passing), or to panic on the thread
//! that passes it (`POTOK_PANIC_AT`), which the process has to survive or to end over.
//! A *planted bug* switches a mechanism to the naive version that the promise forbids. The
//! simulator or the test of its mechanism must find each of them; that measures the tests.

/// Every crash point, in the order a record meets them. Tests go through the list, and passing a
/// point that is not in it fails in debug builds.
pub const CRASH_POINTS: &[&str] = &[
    "append.before",
    "append.after",
    "fsync.before",
    "fsync.after",
    "sink.commit.before",
    "sink.commit.after",
    "receipt.after",
    "dead_letter.before",
    "dead_letter.after",
    "position.before",
    "position.after",
    "segment.roll.before",
    "segment.roll.after",
    "checkpoint.before",
    "checkpoint.after",
    "unlink.before",
    "unlink.after",
];

/// Crash points of pipelines with groups.
pub const GROUP_CRASH_POINTS: &[&str] =
    &["group.held", "seal.before", "seal.after", "batch.before", "batch.after"];

/// Crash points of pipelines whose groups become files that a table tracks.
pub const FILE_CRASH_POINTS: &[&str] = &[
    "file.named",
    "file.renamed",
    "file.written",
    "file.worked",
    "file.delivered",
    "file.done",
    "file.swept",
];

/// Crash points of pipelines whose groups have a store besides the log.
pub const STORE_CRASH_POINTS: &[&str] = &["clean.before"];

/// Crash points of pipelines whose groups are gathered on a shared log.
pub const GATHER_CRASH_POINTS: &[&str] = &["gather.before", "gather.sent", "gather.after"];

/// Crash points of pipelines whose source is a queue in Redis, in the order a message meets them.
pub const QUEUE_CRASH_POINTS: &[&str] = &[
    "queue.sort.before",
    "queue.sort.after",
    "queue.claim.before",
    "queue.claim.after",
    "queue.ack.before",
    "queue.ack.after",
];

/// Where nothing durable changes, so that dying is of no interest, but panicking is.
pub const PANIC_POINTS: &[&str] = &["intake", "reader", "poller", "admin"];

/// Crash points of pipelines whose records come from a feed.
pub const FEED_CRASH_POINTS: &[&str] = &["feed.commit.before", "feed.commit.after"];

/// Crash points of removing dead letters.
pub const LETTER_CRASH_POINTS: &[&str] =
    &["letters.release.before", "letters.release.between", "letters.release.after"];

/// Dies here if `POTOK_CRASH_AT` says so, panics if `POTOK_PANIC_AT` does.
#[inline]
pub fn crash_point(name: &str) {
    #[cfg(debug_assertions)]
    debug::crash_point(name);
    #[cfg(not(debug_assertions))]
    let _ = name;
}

/// The naive versions that can be switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Bug {
    /// A record counts as ended when it is read.
    NaiveCommit,
    /// A record is marked ended before its destination answered.
    MarkBeforeDeliver,
    /// The right half of a split batch goes first.
    SplitOrderLost,
    /// Records go to lanes in turn instead of by key.
    LaneOrderLost,
    /// A destination that is away long enough makes dead letters.
    OutageIsPoison,
    /// A record that keeps failing is set aside though nothing else succeeded either.
    NoWitnessNeeded,
    /// A record that alone fails at several trials of a half-open gate is set aside if anything
    /// has ever got through.
    LoneCulprit,
    /// A success of others between two failures counts, however long ago it was.
    WitnessLongAgo,
    /// A dead letter counts as ended before it is written.
    DeadLetterNotAwaited,
    /// Refused messages in a receipt are taken as delivered.
    ReceiptIgnored,
    /// A restart resumes behind the highest ended offset, skipping what is open below it.
    ResumeAtHighest,
    /// Names come from a counter instead of positions.
    NamesFromCounter,
    /// Completions under an old assignment still count.
    StaleCompletion,
    /// A held record counts as ended once it is in the store.
    HeldIsEnded,
    /// A record that the store has lost is left out of its group.
    StoreLossIgnored,
    /// A seal has ended once its batch is being sent.
    SealEndsFirst,
    /// A seal that another process or an earlier run wrote counts for nothing: what belongs
    /// together is decided anew.
    SealsForgotten,
    /// A record that comes while its group's batch is on its way joins it.
    LateJoinsSealed,
    /// Of records of one id the one that was read last stands, whichever came later.
    LastReadWins,
    /// A position is noted when nothing of its partition is open any more.
    CommitWhenIdle,
    /// The log takes endings from whoever had the partition once.
    StaleCommit,
    /// The store takes writes from whoever had the share once.
    StoreUnfenced,
    /// Removing what was sent removes all that the store has of its group.
    CleansWholeGroups,
    /// A record ends when another takes its place, whatever becomes of that one.
    SupersededEndsAtOnce,
    /// A stage gets its facts about a group from the clock and not from the seal: a repeat differs.
    ReasonFromClock,
    /// A shard without records in a slice is nobody's business.
    EmptyForgotten,
    /// A file is said to be done before its rows are there.
    DoneFirst,
    /// A step that the tracking table did not take counts as made.
    TrackIgnored,
    /// All shards have one lane, so that one that is away holds up the others.
    ShardsShareLane,
    /// A sealed record goes to the shard that its value leads to now.
    ShardByNow,
    /// Records that end together are noted partition by partition.
    EndsApart,
    /// Records of a group leave partition by partition.
    ByPartition,
    /// Groups close long after they are due.
    ClosesLate,
    /// A transaction does not wait for the one before it.
    OutOfTurn,
    /// Where the log is shared, records are copied first and their positions noted later.
    GatheredApart,
    /// Where the log is shared, a record whose copy it will never take is left out.
    RefusedCopyLeftOut,
    /// A seal that the log does not take for its size is made the same again.
    SealsUncut,
    /// A group that has gone quiet waits for the end of its window.
    SilenceIgnored,
    /// So does one that is full.
    CountIgnored,
    /// Where the log is shared, windows go by the clock of the process.
    WindowsByOwnClock,
    /// Where the log is shared, its clock is trusted though it was set back.
    SetClockTrusted,
    /// Members of a seal are known by partition number and offset, whatever topic it is, and
    /// whether it was made anew since.
    MembersByNumber,
    /// Names leave out the topic and the incarnation of the log.
    NamesByNumber,
    /// After a restart a record belongs where `by` says now, whatever seal names it.
    GroupsByKeyNow,
    /// Ended offsets of any consumer group are noted in the first.
    NotesInWrongGroup,
    /// A feed is told of endings before their outputs are durable.
    FeedNotedFirst,
    /// Records of a feed that were not finished are not given back to it.
    GivenBackForgotten,
    /// Deliveries of a feed's records are named after the place they were handed out at.
    OriginsIgnored,
    /// A group of a feed is forgotten as soon as it is on its way.
    FinishedTooEarly,
    /// A record that is put off does not keep back those behind it.
    PutOffAlone,
    /// Records of a key that go back to their feed where they fail are sent together, whichever topics
    /// they go to.
    SentTogether,
    /// Rows of an outbox that lie before one that was processed are not looked at.
    HighWaterMark,
    /// A read of an outbox goes on behind the last row that is out.
    KeysetPages,
    /// What is noted in an outbox does not ask whose lease it is.
    NoteWithoutToken,
    /// A token is believed, however long its lease is over.
    TokenAlone,
    /// The lease of a table has another name for other settings.
    LeaseBySettings,
    /// A lease that lasts by the server's clock is waited for.
    ServerClockOnly,
    /// A failure of a row is counted up, not set.
    CountsUp,
    /// A row becomes a dead letter in two transactions, of which the second may never come.
    BuriedApart,
    /// Rows are read before they are committed.
    ReadsUncommitted,
    /// Old rows are deleted, whether they were processed or not.
    PurgesByAge,
    /// Rows whose flag is null are not looked at.
    NullsForgotten,
    /// A note waits for rows that somebody has locked.
    WaitsForLocks,
    /// Rows behind one that failed are read again and again.
    BehindUnnamed,
    /// A key opens when its row is given up, before that is committed.
    ReopenedEarly,
    /// What a table refuses of one row is refused of all that are noted with it.
    NotesStandTogether,
    /// Nobody looks whether a person has taken care of a row that failed.
    SkipsUnseen,
    /// A failure of a row is set, whatever a person has made of its count.
    CountsSet,
    /// What was published is never published again.
    RemembersPublished,
    /// Any index that names the flag, or a part of its name, is taken for that of rows that wait.
    IndexByName,
    /// A server chooses by which index it looks for rows that are noted.
    IndexByPlan,
    /// A server makes a table of a long list of ids.
    ListsAsTables,
    /// Groups close when the first of several intakes has caught up.
    OneIntakeCatchesUp,
    /// Groups that are due are looked for when something comes.
    ClosedByComing,
    /// An ending is counted when it happens and again when it is written.
    EndingsCountedTwice,
    /// Records that are handed back stay counted as received.
    HandBacksForgotten,
    /// Records that were handed back are in no counter that only rises.
    ReturnsUncounted,
    /// Dead letters count as delivered.
    LettersCountedDelivered,
    /// A repeat that its destination dropped counts as delivered.
    RepeatsCountedDelivered,
    /// A lane waits until a full store has room, and does nothing meanwhile.
    WaitsForRoom,
    /// On a full disk, the embedded log takes what says that records have ended and nothing else.
    SealsRefused,
    /// A queue's entries are filed under the keys of what was read before, whatever lies there by now.
    KeysByIndex,
    /// A queue's entries are taken out first and filed later.
    PopsPlainly,
    /// A queue's entries are moved to whoever takes them and filed from there, in any order.
    TakenApart,
    /// A chat that is no list ends the look at all of them.
    OneBadStopsAll,
    /// A full Redis refuses what would free memory.
    RefusedWhenFull,
    /// A claimed group is named by its opening, whatever its members are.
    NameWithoutMembers,
    /// A message that comes puts off the end of a claim's lease.
    ArrivalMovesLease,
    /// A lock is ours where it has the value that everybody writes.
    LockByValue,
    /// An acknowledgement deletes all messages of its chat.
    AckDeletesList,
    /// What came while a chat was delivered is not looked at.
    NoRearm,
    /// Whoever acknowledges a claim ends it.
    AckWithoutToken,
    /// A claim that is taken over gets the members that are there by then.
    ClaimAnew,
    /// What is claimed stays where other programs take it.
    ClaimedStayListed,
    /// A chat closes when it is quiet, and only then.
    NoMaxAge,
    /// A claim is ours for as long as we do not hear otherwise.
    ClaimsTrusted,
    /// Entries that look unlike those we push are left out.
    OwnPushesOnly,
    /// A claim takes all messages that are there.
    TakesAll,
    /// A chat whose foreign lock ran out is ours at once.
    AdoptsAtExpiry,
    /// Looks that lie far ahead after the clock was set back stay there.
    FarLooksLeft,
    /// Keys are made by a format, which cuts them at NUL.
    KeysByFormat,
    /// A group that is closed by hand takes whatever comes until it leaves.
    WishWithoutCount,
    /// Any number of pipelines share the keys of chats.
    AnyPipeline,
    /// A claim without messages is left alone.
    EmptyKept,
    /// Lists without an entry in the index are not looked for.
    IndexTrusted,
    /// A group closes with the message that has more bytes than it may.
    BytesReached,
    /// Whoever takes over a claim that is being tried counts a death, whoever had it.
    OwnDeaths,
    /// A list gets the marker of a message before the message.
    MarkedFirst,
    /// Whoever waits for a queue takes its first entry along.
    MoverUnfenced,
    /// What was handed out is delivered, whoever has it by then.
    SendsOverdue,
    /// What waits for a destination that is away stays where it is, whoever else reaches that.
    KeptBehindGate,
    /// A group that kills its process is tried as before.
    TriedTogether,
    /// A merged message has the name of its last record.
    MergedNamedByMember,
    /// The embedded log acknowledges before the fsync.
    AckBeforeFsync,
    /// Readers of the embedded log see records that are not yet synced.
    ReaderAheadOfFsync,
    /// A torn tail is erased instead of moved aside.
    TailErased,
    /// After a cut, offsets continue where the last good frame ended.
    OffsetsReused,
    /// A damaged frame ends the log; what lies behind it is dropped.
    StopAtDamage,
}

/// The naive version that is switched on where this is made, for work that goes on on other threads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plant(Option<Bug>);

impl Plant {
    /// Of this thread's tests.
    pub fn here() -> Self {
        #[cfg(debug_assertions)]
        return Plant(debug::plant());
        #[cfg(not(debug_assertions))]
        Plant(None)
    }

    /// True when it is this one.
    pub fn is(self, bug: Bug) -> bool {
        self.0 == Some(bug)
    }

    /// Which it is.
    pub fn bug(self) -> Option<Bug> {
        self.0
    }
}

/// Dies here if `POTOK_DIE_OF` names a text that is in `bytes`: a record that kills whoever works on it.
#[inline]
pub fn deadly(bytes: &[u8]) {
    #[cfg(debug_assertions)]
    debug::deadly(bytes);
    #[cfg(not(debug_assertions))]
    let _ = bytes;
}

/// True when the naive version of `bug` is switched on in this thread's tests.
#[inline]
pub fn planted(bug: Bug) -> bool {
    #[cfg(debug_assertions)]
    return debug::planted(bug);
    #[cfg(not(debug_assertions))]
    {
        let _ = bug;
        false
    }
}

#[cfg(debug_assertions)]
pub use debug::with_bug;

#[cfg(debug_assertions)]
mod debug {
    use std::cell::Cell;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::{
        Bug, CRASH_POINTS, FEED_CRASH_POINTS, FILE_CRASH_POINTS, GATHER_CRASH_POINTS,
        GROUP_CRASH_POINTS, LETTER_CRASH_POINTS, PANIC_POINTS, QUEUE_CRASH_POINTS,
        STORE_CRASH_POINTS,
    };

    /// A point that somebody named, and which passing of it is meant.
    struct Target {
        name: String,
        passings_left: AtomicU64,
    }

    impl Target {
        fn of(variable: &str) -> Option<Target> {
            let wish = std::env::var(variable).ok()?;
            let (name, times) = wish.rsplit_once(':').unwrap_or((&wish, "1"));
            let passings_left = AtomicU64::new(times.parse().unwrap_or(1));
            Some(Target { name: name.to_owned(), passings_left })
        }

        fn is_reached(&self, name: &str) -> bool {
            self.name == name && self.passings_left.fetch_sub(1, Ordering::Relaxed) == 1
        }
    }

    pub(super) fn crash_point(name: &str) {
        static CRASH: OnceLock<Option<Target>> = OnceLock::new();
        static PANIC: OnceLock<Option<Target>> = OnceLock::new();
        let lists = [
            CRASH_POINTS,
            GROUP_CRASH_POINTS,
            FILE_CRASH_POINTS,
            STORE_CRASH_POINTS,
            GATHER_CRASH_POINTS,
            QUEUE_CRASH_POINTS,
            PANIC_POINTS,
            FEED_CRASH_POINTS,
            LETTER_CRASH_POINTS,
        ];
        let known = lists.iter().any(|list| list.contains(&name));
        debug_assert!(known, "crash point {name} is not in the list");
        let crash = CRASH.get_or_init(|| Target::of("POTOK_CRASH_AT")).as_ref();
        if crash.is_some_and(|target| target.is_reached(name)) {
            eprintln!("crash point {name}: dying as asked");
            std::process::abort();
        }
        let panic = PANIC.get_or_init(|| Target::of("POTOK_PANIC_AT")).as_ref();
        assert!(!panic.is_some_and(|target| target.is_reached(name)), "as asked at {name}");
    }

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    pub(super) fn planted(bug: Bug) -> bool {
        PLANTED.with(Cell::get) == Some(bug) || from_environment() == Some(bug)
    }

    pub(super) fn plant() -> Option<Bug> {
        PLANTED.with(Cell::get).or_else(from_environment)
    }

    pub(super) fn deadly(bytes: &[u8]) {
        static WORD: OnceLock<Option<String>> = OnceLock::new();
        let word = WORD.get_or_init(|| std::env::var("POTOK_DIE_OF").ok());
        let Some(word) = word.as_ref().filter(|word| !word.is_empty()) else { return };
        if bytes.windows(word.len()).any(|window| window == word.as_bytes()) {
            eprintln!("a record with {word}: dying as asked");
            std::process::abort();
        }
    }

    /// For tests of whole processes: `POTOK_PLANT=AckBeforeFsync`.
    fn from_environment() -> Option<Bug> {
        static BUG: OnceLock<Option<Bug>> = OnceLock::new();
        *BUG.get_or_init(|| {
            let wish = std::env::var("POTOK_PLANT").ok()?;
            [
                Bug::AckBeforeFsync,
                Bug::MoverUnfenced,
                Bug::PopsPlainly,
                Bug::SendsOverdue,
                Bug::KeptBehindGate,
                Bug::NaiveCommit,
                Bug::MarkBeforeDeliver,
                Bug::TailErased,
                Bug::StopAtDamage,
                Bug::WaitsForRoom,
                Bug::SealsRefused,
                Bug::ReasonFromClock,
                Bug::SentTogether,
                Bug::OutageIsPoison,
                Bug::TriedTogether,
                Bug::MergedNamedByMember,
                Bug::EmptyForgotten,
                Bug::DoneFirst,
                Bug::TrackIgnored,
                Bug::ShardsShareLane,
                Bug::ShardByNow,
            ]
            .into_iter()
            .find(|bug| format!("{bug:?}") == wish)
        })
    }

    /// Runs `work` with the naive version of `bug` in place, on this thread.
    pub fn with_bug<T>(bug: Bug, work: impl FnOnce() -> T) -> T {
        let before = PLANTED.replace(Some(bug));
        let result = work();
        PLANTED.set(before);
        result
    }
}
