//! The kinds of trouble a seed can make, and the recoveries they lead to.

use std::collections::BTreeMap;
use std::fmt;

/// Something that goes wrong, or that somebody does, during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trouble {
    /// The log hands out records late.
    NextSlow,
    /// The log fails to hand out records.
    NextFault,
    /// The log refuses a transaction.
    TransactRefused,
    /// A transaction is written, and the answer is lost.
    TransactReplyLost,
    /// A transaction takes long.
    TransactSlow,
    /// The log refuses an append.
    AppendRefused,
    /// An append is written, and the answer is lost.
    AppendReplyLost,
    /// Partitions leave in good order and come back.
    Revoked,
    /// Partitions are gone without notice and come back.
    Lost,
    /// After a crash the log starts a new incarnation, above every offset given out.
    NewIncarnation,
    /// The destination is away for a while (`Wait`).
    SinkAway,
    /// The destination takes no writes for a while (`Wait`), and its probe says so.
    SinkReadOnly,
    /// The destination answers `Retry` to everything for a while, though its probe answers.
    SinkRetriesAll,
    /// Single calls fail (`Retry`).
    SinkStorm,
    /// Single messages of a call fail (`Retry`).
    SinkPartial,
    /// A call is carried out, and the answer is lost.
    SinkReplyLost,
    /// Calls take long.
    SinkSlow,
    /// The destination's code panics.
    SinkPanics,
    /// The destination needs an operator (`Fix`).
    SinkNeedsFix,
    /// The destination cannot be prepared at first.
    PrepareFails,
    /// A stage fails as a whole.
    StageFault,
    /// A record that the destination answers with `Retry` for ever.
    Poison,
    /// A record that the destination refuses.
    Refused,
    /// A record whose bytes cannot be read.
    Undecodable,
    /// A record that makes the decoder panic.
    Killer,
    /// The process dies at some instant.
    CrashAtInstant,
    /// The process dies at some call, before or after it took effect.
    CrashAtCall,
    /// The process is stopped in good order.
    Drained,
    /// It starts again with another number of workers.
    WorkersChanged,
    /// Somebody pauses the pipeline and resumes it later.
    Paused,
    /// Somebody replays dead letters.
    Replayed,
    /// Somebody drops dead letters.
    Dropped,
    /// The wall clock jumps.
    ClockJumps,
    /// The log will never take an output: it is too large for its topic.
    TooLarge,
    /// The disk is full until everything is worked off: only what that needs is written.
    DiskFull,
    /// What had ended above a position is forgotten.
    MetadataLost,
    /// The store of held records takes no more until some are cleaned.
    StoreFull,
    /// The topic of gathered records will never take the copy of one: it is too large.
    CopyRefused,
    /// The log takes nothing and hands nothing out for a while.
    LogAway,
    /// A topic takes nothing that is offered for a while, as without a right; transactions pass.
    TopicForbidden,
    /// A call of the destination has no answer for a long time.
    SinkHangs,
}

impl Trouble {
    /// The first of them make up a scenario together; each of the others is drawn by itself, so that
    /// one more changes nothing in the scenarios there are.
    pub const TOGETHER: usize = 33;

    /// What pipelines on topics meet.
    pub const ALL: [Trouble; 38] = [
        Trouble::NextSlow,
        Trouble::NextFault,
        Trouble::TransactRefused,
        Trouble::TransactReplyLost,
        Trouble::TransactSlow,
        Trouble::AppendRefused,
        Trouble::AppendReplyLost,
        Trouble::Revoked,
        Trouble::Lost,
        Trouble::NewIncarnation,
        Trouble::SinkAway,
        Trouble::SinkReadOnly,
        Trouble::SinkRetriesAll,
        Trouble::SinkStorm,
        Trouble::SinkPartial,
        Trouble::SinkReplyLost,
        Trouble::SinkSlow,
        Trouble::SinkPanics,
        Trouble::SinkNeedsFix,
        Trouble::PrepareFails,
        Trouble::StageFault,
        Trouble::Poison,
        Trouble::Refused,
        Trouble::Undecodable,
        Trouble::Killer,
        Trouble::CrashAtInstant,
        Trouble::CrashAtCall,
        Trouble::Drained,
        Trouble::WorkersChanged,
        Trouble::Paused,
        Trouble::Replayed,
        Trouble::Dropped,
        Trouble::ClockJumps,
        Trouble::TooLarge,
        Trouble::DiskFull,
        Trouble::MetadataLost,
        Trouble::StoreFull,
        Trouble::CopyRefused,
    ];

    /// What pipelines on feeds meet beside the trouble of the feed itself.
    pub const OF_FEEDS: [Trouble; 21] = [
        Trouble::NextSlow,
        Trouble::NextFault,
        Trouble::TransactRefused,
        Trouble::TransactReplyLost,
        Trouble::TransactSlow,
        Trouble::DiskFull,
        Trouble::LogAway,
        Trouble::TopicForbidden,
        Trouble::TooLarge,
        Trouble::SinkAway,
        Trouble::SinkReadOnly,
        Trouble::SinkRetriesAll,
        Trouble::SinkNeedsFix,
        Trouble::SinkStorm,
        Trouble::SinkPartial,
        Trouble::SinkReplyLost,
        Trouble::SinkSlow,
        Trouble::SinkPanics,
        Trouble::SinkHangs,
        Trouble::PrepareFails,
        Trouble::Refused,
    ];
}

/// A way back from trouble that a run took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Recovery {
    /// A repeat was recognised by its name.
    Duplicate,
    /// A start found records ended above its position.
    ResumedAbove,
    /// A gate was seen closed.
    GateClosed,
    /// A gate was seen half open.
    GateTrial,
    /// A gate that had been closed was seen open.
    GateReopened,
    /// A poisonous record was found and set aside.
    PoisonFound,
    /// One was given up by somebody because nobody could tell.
    Decided,
    /// A record that kills its decoder was found and set aside.
    KillerFound,
    /// A dead letter was delivered by a replay.
    ReplayDelivered,
    /// A replay failed again and is listed again.
    ReplayFailedAgain,
    /// A pipeline that needed an operator went on after `resume`.
    Fixed,
    /// A part of the pipeline died and was started again.
    Restarted,
    /// What completed under an assignment that had left was ignored.
    StaleIgnored,
}

impl Recovery {
    pub const ALL: [Recovery; 13] = [
        Recovery::Duplicate,
        Recovery::ResumedAbove,
        Recovery::GateClosed,
        Recovery::GateTrial,
        Recovery::GateReopened,
        Recovery::PoisonFound,
        Recovery::Decided,
        Recovery::KillerFound,
        Recovery::ReplayDelivered,
        Recovery::ReplayFailedAgain,
        Recovery::Fixed,
        Recovery::Restarted,
        Recovery::StaleIgnored,
    ];
}

/// How often each trouble and each recovery was met.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    troubles: BTreeMap<Trouble, u64>,
    recoveries: BTreeMap<Recovery, u64>,
}

impl Tally {
    /// Counts a trouble.
    pub fn hit(&mut self, trouble: Trouble) {
        *self.troubles.entry(trouble).or_default() += 1;
    }

    /// Counts a recovery.
    pub fn recovered(&mut self, recovery: Recovery) {
        *self.recoveries.entry(recovery).or_default() += 1;
    }

    /// How often a trouble was met.
    pub fn troubles(&self, trouble: Trouble) -> u64 {
        self.troubles.get(&trouble).copied().unwrap_or_default()
    }

    /// How often a recovery was met.
    pub fn recoveries(&self, recovery: Recovery) -> u64 {
        self.recoveries.get(&recovery).copied().unwrap_or_default()
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Tally) {
        for (trouble, times) in &other.troubles {
            *self.troubles.entry(*trouble).or_default() += times;
        }
        for (recovery, times) in &other.recoveries {
            *self.recoveries.entry(*recovery).or_default() += times;
        }
    }

    /// Which of these were never met, and which recoveries, in words.
    pub fn missing(&self, troubles: &[Trouble]) -> Vec<String> {
        let troubles = self.never(troubles).into_iter().map(|t| format!("trouble {t:?}"));
        let recoveries = Recovery::ALL.iter().filter(|r| self.recoveries(**r) == 0);
        troubles.chain(recoveries.map(|r| format!("recovery {r:?}"))).collect()
    }

    /// Which of these were never met.
    pub fn never(&self, troubles: &[Trouble]) -> Vec<Trouble> {
        troubles.iter().copied().filter(|trouble| self.troubles(*trouble) == 0).collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (trouble, times) in &self.troubles {
            write!(f, "{trouble:?} {times}, ")?;
        }
        f.write_str("recovered by: ")?;
        for (recovery, times) in &self.recoveries {
            write!(f, "{recovery:?} {times}, ")?;
        }
        Ok(())
    }
}
