//! Lets go of what nobody needs any more, on a thread of its own.
//!
//! What is not pinned (`pin`) goes when it is older than `retention_age`, when the log is larger
//! than `retention_bytes`, or, in topics that groups read, when the disk is full. A segment without
//! pinned records is unlinked, after that was noted durably. What is pinned in others is copied
//! forward, at the same offsets, into the segment of a neighbour (`compaction`), so that neither a
//! paused pipeline nor a dead letter now and then holds the disk.
//!
//! The number of files is bounded: of two neighbours, not counting the newest few, either is more
//! than half a segment. The newest two segments are never touched: their checkpoints are the
//! state.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use potok_core::Timestamp;
use potok_core::trouble::crash_point;
use tokio::sync::oneshot;

use super::catalog::Catalog;
use super::compaction::{Member, merge};
use super::draft::Draft;
use super::format::FrameKind;
use super::pin::{EvictionCause, loose};
use super::shared::{Alarm, Command, LogState, OpenLog, Segment};

/// Never touched: their checkpoints are the state.
const NEWEST_KEPT: usize = 2;
/// So many small segments that are not old yet stay as they are: what they say besides records
/// helps where damage is found.
const SMALL_KEPT_MAX: usize = 32;
/// A segment merged in one pass may fit together with its new neighbours in the next.
const PASSES_MAX: usize = 8;

enum Wake {
    Look,
    Press,
    Now(oneshot::Sender<()>),
    Stop,
}

/// Wakes retention.
#[derive(Clone)]
pub struct RetentionWaker(mpsc::Sender<Wake>);

/// A reason for the keeper to wake.
pub struct RetentionWakes(mpsc::Receiver<Wake>);

impl RetentionWaker {
    /// A keeper, and what to start with it.
    pub fn new() -> (RetentionWaker, RetentionWakes) {
        let (sender, receiver) = mpsc::channel();
        (RetentionWaker(sender), RetentionWakes(receiver))
    }

    /// There may be something to let go of.
    pub fn wake(&self) {
        let _ = self.0.send(Wake::Look);
    }

    /// The disk is full.
    pub fn press(&self) {
        let _ = self.0.send(Wake::Press);
    }

    /// Looks now; the answer comes when it is done.
    pub fn now(&self) -> oneshot::Receiver<()> {
        let (reply, answer) = oneshot::channel();
        let _ = self.0.send(Wake::Now(reply));
        answer
    }

    /// Ends the thread.
    pub fn stop(&self) {
        let _ = self.0.send(Wake::Stop);
    }
}

impl RetentionWakes {
    /// Starts the thread.
    pub fn start(self, shared: Arc<OpenLog>) -> io::Result<JoinHandle<()>> {
        let thread = std::thread::Builder::new().name("potok-log-keeper".to_owned());
        thread.spawn(move || {
            let _alarm = Alarm(shared.clone(), "the log's retention");
            self.run(&shared);
        })
    }

    fn run(&self, shared: &OpenLog) {
        loop {
            let mut pressed = false;
            let mut waiting = Vec::new();
            let first = match self.0.recv_timeout(shared.options.retain_every) {
                Ok(wake) => Some(wake),
                Err(mpsc::RecvTimeoutError::Timeout) => None,
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            };
            // Many reasons to look are one.
            for wake in first.into_iter().chain(self.0.try_iter()) {
                match wake {
                    Wake::Look => {}
                    Wake::Press => pressed = true,
                    Wake::Now(reply) => waiting.push(reply),
                    Wake::Stop => return,
                }
            }
            if let Err(error) = look(shared, pressed) {
                tracing::warn!(%error, "retention could not finish; it tries again");
            }
            for reply in waiting {
                let _ = reply.send(());
            }
        }
    }
}

/// The fate of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Nothing may be done to it.
    Hold,
    Keep,
    Unlink,
    /// Worth to be rewritten by itself.
    Shrink,
}

/// An old segment, as retention sees it.
#[derive(Clone, Copy, Debug)]
struct OldSegment {
    number: u64,
    need: EvictionCause,
    fate: Fate,
    /// About how many bytes of frames would be left.
    bytes: u64,
    /// How large the file is.
    end: u64,
}

fn look(shared: &OpenLog, pressed: bool) -> io::Result<()> {
    let now = shared.clock.now();
    for _ in 0..PASSES_MAX {
        let old = judge(shared, now, pressed);
        let (going, staying): (Vec<OldSegment>, Vec<OldSegment>) =
            old.into_iter().partition(|old| old.fate == Fate::Unlink);
        let_go(shared, going.iter().map(|old| old.number));
        unlink(shared)?;
        let room = shared.options.segment_bytes;
        let runs = if pressed { alone(&staying) } else { plan(&staying, room) };
        let mut merged = false;
        for run in runs {
            merged |= merge_run(shared, &run, room)?;
        }
        if !merged {
            break;
        }
    }
    Ok(())
}

/// The fate of each segment but the newest.
fn judge(shared: &OpenLog, now: Timestamp, pressed: bool) -> Vec<OldSegment> {
    let mut state = shared.state_mut();
    let LogState { catalog, segments, .. } = &mut *state;
    let mut total: u64 = segments.values().map(|segment| segment.end).sum();
    let overhead = Draft::of_entries(FrameKind::Checkpoint, &catalog.checkpoint()).len() as u64;
    let numbers: Vec<u64> = segments.keys().copied().collect();
    let old = numbers.len().saturating_sub(NEWEST_KEPT);
    let mut judged = Vec::with_capacity(old);
    for number in numbers.into_iter().take(old) {
        let Some(segment) = segments.get_mut(&number) else { continue };
        let over = shared.options.retention_bytes.is_some_and(|most| total > most);
        let need = EvictionCause { due: over || is_aged(shared, segment, now), pressed };
        let (fate, left) = fate(catalog, number, segment, need);
        let bytes = left.min(segment.end.saturating_sub(overhead)).max(1);
        if matches!(fate, Fate::Unlink | Fate::Shrink) {
            total = total.saturating_sub(segment.end - left.min(segment.end));
        }
        judged.push(OldSegment { number, need, fate, bytes, end: segment.end });
    }
    let is_small =
        |old: &&OldSegment| old.need.is_none() && old.bytes <= shared.options.segment_bytes / 2;
    if judged.iter().filter(is_small).count() <= SMALL_KEPT_MAX {
        judged.iter_mut().filter(|old| old.need.is_none()).for_each(|old| {
            old.fate = match old.fate {
                Fate::Keep => Fate::Hold,
                other => other,
            }
        });
    }
    judged
}

fn is_aged(shared: &OpenLog, segment: &Segment, now: Timestamp) -> bool {
    match (shared.options.retention_age, segment.index.newest()) {
        (Some(age), Some(newest)) => {
            u128::from(now.millis_since(Timestamp(newest))) > age.as_millis()
        }
        // Nothing but notes in it.
        (_, None) => true,
        (None, _) => false,
    }
}

/// The fate of one segment, and about how many of its bytes would be left.
fn fate(catalog: &Catalog, number: u64, segment: &mut Segment, need: EvictionCause) -> (Fate, u64) {
    // What damaged frames had ended is open again from the next opening on, which reads in the
    // frames around them what that was. It lies in the same segment or before, counts as ended until
    // then, and must still be there.
    if catalog.damage.iter().any(|note| number <= note.segment && !note.settled) {
        return (Fate::Hold, segment.end);
    }
    let estimate = loose(catalog, &segment.index, need);
    // Without need only what was released goes.
    if need.is_none() && estimate.loose == 0 {
        return (Fate::Keep, segment.end);
    }
    if estimate.pinned == 0 {
        return (Fate::Unlink, 0);
    }
    // Looked at before, and nothing more is loose since: reading it again would tell nothing new.
    if segment.loose == Some(estimate.loose) || estimate.pinned > need.worth(segment.end) {
        return (Fate::Keep, segment.end);
    }
    segment.loose = Some(estimate.loose);
    (Fate::Shrink, estimate.pinned)
}

/// Each segment by itself: on a full disk there is no room for more.
fn alone(old: &[OldSegment]) -> Vec<Vec<OldSegment>> {
    old.iter().filter(|old| old.fate == Fate::Shrink).map(|old| vec![*old]).collect()
}

/// Which neighbours become one file of about `room` bytes at most, oldest first.
///
/// Among the newest, a file waits until what came behind it is about as large: so each record is
/// copied a few times in all, and not once with each new segment. Of the others, two that fit
/// into one become one.
fn plan(old: &[OldSegment], room: u64) -> Vec<Vec<OldSegment>> {
    // Files much smaller than a segment all count as small.
    let size = |bytes: u64| bytes.max(room / 64);
    let mut runs: Vec<SegmentRun> = Vec::new();
    for old in old {
        let mut run = SegmentRun::of(*old);
        while let Some(left) = runs.last()
            && left.fits(&run, room)
            && size(left.bytes) <= 2 * size(run.bytes)
            && let Some(left) = runs.pop()
        {
            run = left.join(run);
        }
        runs.push(run);
    }
    let full = runs.windows(2).rposition(|pair| matches!(pair, [a, b] if !a.fits(b, room)));
    let newest = runs.split_off(full.map_or(0, |at| at + 1));
    let mut joined: Vec<SegmentRun> = Vec::new();
    for run in runs {
        match joined.pop() {
            Some(left) if left.fits(&run, room) => joined.push(left.join(run)),
            left => joined.extend(left.into_iter().chain([run])),
        }
    }
    let worth =
        |run: &SegmentRun| run.old.len() > 1 || run.old.iter().any(|o| o.fate == Fate::Shrink);
    joined.into_iter().chain(newest).filter(worth).map(|run| run.old).collect()
}

/// Neighbours that become one.
struct SegmentRun {
    old: Vec<OldSegment>,
    bytes: u64,
}

impl SegmentRun {
    fn of(old: OldSegment) -> SegmentRun {
        // A segment that may not be touched fits nowhere.
        let bytes = if old.fate == Fate::Hold { u64::MAX } else { old.bytes };
        SegmentRun { old: vec![old], bytes }
    }

    fn fits(&self, right: &SegmentRun, room: u64) -> bool {
        self.bytes.saturating_add(right.bytes) <= room
    }

    fn join(mut self, right: SegmentRun) -> SegmentRun {
        self.old.extend(right.old);
        SegmentRun { old: self.old, bytes: self.bytes + right.bytes }
    }
}

/// Merges a run; true when something has changed.
fn merge_run(shared: &OpenLog, run: &[OldSegment], room: u64) -> io::Result<bool> {
    let members: Vec<Member> =
        run.iter().map(|old| Member { number: old.number, need: old.need }).collect();
    let most = match run {
        [alone] => alone.need.worth(alone.end),
        // An estimate may be wrong; a file a little larger is no harm, one as large as the old
        // ones together is no gain.
        _ => (room + room / 4).max(run.iter().map(|old| old.end).sum::<u64>() / 2),
    };
    let merged = merge(shared, &members, most).inspect_err(|_| forget_loose(shared, run))?;
    if !merged {
        remember_loose(shared, run);
        return Ok(false);
    }
    unlink(shared)?;
    Ok(true)
}

/// They were looked at in vain: until more of them is loose, that need not be done again.
fn remember_loose(shared: &OpenLog, run: &[OldSegment]) {
    let mut state = shared.state_mut();
    let LogState { catalog, segments, .. } = &mut *state;
    for old in run {
        if let Some(segment) = segments.get_mut(&old.number) {
            segment.loose = Some(loose(catalog, &segment.index, old.need).loose);
        }
    }
}

fn forget_loose(shared: &OpenLog, run: &[OldSegment]) {
    let mut state = shared.state_mut();
    for old in run {
        if let Some(segment) = state.segments.get_mut(&old.number) {
            segment.loose = None;
        }
    }
}

/// Nobody reads these any more, in one moment.
fn let_go(shared: &OpenLog, numbers: impl Iterator<Item = u64>) {
    let mut state = shared.state_mut();
    for number in numbers {
        state.segments.remove(&number);
        state.left_over.insert(number);
    }
}

/// Notes which segments go, then unlinks them. Where that fails, they are tried again.
fn unlink(shared: &OpenLog) -> io::Result<()> {
    let numbers: Vec<u64> = shared.state().left_over.iter().copied().collect();
    if numbers.is_empty() {
        return Ok(());
    }
    let (reply, answer) = mpsc::channel();
    let asked = shared.command(Command::Drop(numbers.clone(), reply));
    if asked.is_err() || !answer.recv().unwrap_or(false) {
        return Err(io::Error::other("could not note that segments go"));
    }
    for number in numbers {
        crash_point("unlink.before");
        match shared.disk.remove(&shared.paths.segment(number)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => shared.state_mut().left_over.remove(&number),
        };
        crash_point("unlink.after");
    }
    shared.disk.sync_dir(&shared.paths.log)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn old(number: u64, bytes: u64) -> OldSegment {
        let need = EvictionCause { due: true, pressed: false };
        OldSegment { number, need, fate: Fate::Keep, bytes, end: bytes + 100 }
    }

    /// Plans and merges, in sizes only, until there is nothing to do; returns bytes copied.
    fn settle(old: &mut Vec<OldSegment>, room: u64) -> u64 {
        let mut copied = 0;
        loop {
            let runs = plan(old, room);
            if runs.is_empty() {
                return copied;
            }
            for run in runs {
                let bytes: u64 = run.iter().map(|old| old.bytes).sum();
                let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
                let (first, last) = (first.number, last.number);
                assert!(run.len() == 1 || bytes <= room, "{bytes}");
                copied += bytes;
                old.retain(|old| old.number < first || old.number >= last);
                for old in old.iter_mut().filter(|old| old.number == last) {
                    old.bytes = bytes;
                }
            }
        }
    }

    #[test]
    fn files_stay_few_and_records_are_copied_few_times() {
        let room = 64 << 20;
        for size in [200, 10_000, 1 << 20, 10 << 20, 33 << 20, 63 << 20] {
            let (mut files, mut live, mut copied) = (Vec::new(), 0, 0);
            for number in 1..3_000 {
                files.push(old(number, size));
                live += size;
                copied += settle(&mut files, room);
                let bound = 2 * live / room + 9;
                assert!(files.len() as u64 <= bound, "{size}: {} of {bound}", files.len());
            }
            // The floor: small files are copied together with up to a 64th of a segment.
            assert!(copied <= 10 * live + 3_000 * (room / 32), "{size}: {copied} of {live}");
        }
    }

    #[test]
    fn what_may_not_be_touched_stands_between_its_neighbours() {
        let mut files: Vec<OldSegment> = (1..=9).map(|number| old(number, 1_000)).collect();
        for held in files.iter_mut().filter(|old| old.number == 5) {
            held.fate = Fate::Hold;
        }
        let runs = plan(&files, 64_000);
        let numbers = |run: &Vec<OldSegment>| run.iter().map(|old| old.number).collect::<Vec<_>>();
        let runs: Vec<Vec<u64>> = runs.iter().map(numbers).collect();
        // The newest waits until what comes behind it is about as large.
        assert_eq!(runs, [vec![1, 2, 3, 4], vec![6, 7, 8]]);
    }
}
