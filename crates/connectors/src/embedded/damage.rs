//! Bytes that could not be read: copied aside, noted, and made a dead letter, never erased.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use potok_core::{
    Damage, Envelope, Fault, Headers, Output, Position, RECORD_BYTES_MAX, Reason, Timestamp,
};

use super::disk::{Disk, DiskFile, read_up_to, write_all};
use super::draft::{Draft, Route, Urgency};
use super::format::{DamageNote, Entry};
use super::shared::Paths;

/// Where the log's own dead letters go: raw bytes that are no records any more.
pub const DEAD_TOPIC: &str = "potok-dead";
/// The topic in the origin of such a dead letter; partition and offset are segment and file
/// offset.
pub const ORIGIN_TOPIC: &str = "potok-log";
/// Copied at once.
const CHUNK: usize = 1 << 20;

/// Damage that has just been found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamageReport {
    pub segment: u64,
    /// First bad byte.
    pub from: u64,
    /// Behind the last.
    pub to: u64,
    /// Nothing good lies behind, in the newest segment.
    pub tail: bool,
    /// Offsets that the bytes had ended count as open already.
    pub settled: bool,
}

impl DamageReport {
    /// Bytes between good ones, or what lies behind them in an old segment. What they had ended
    /// is still counted as ended: only the next opening can tell what that was.
    pub fn within(segment: u64, from: u64, to: u64) -> Self {
        DamageReport { segment, from, to, tail: false, settled: false }
    }

    /// A whole segment that is not there any more.
    pub fn lost(segment: u64) -> Self {
        DamageReport::within(segment, 0, 0)
    }

    fn is_missing(&self) -> bool {
        self.from == self.to
    }

    fn note(&self, noticed: Timestamp, kept_in: String) -> DamageNote {
        DamageNote {
            segment: self.segment,
            from: self.from,
            to: self.to,
            noticed: noticed.0,
            tail: self.tail,
            settled: self.settled,
            kept_in,
        }
    }
}

/// A note as tools show it.
pub fn damage(note: &DamageNote) -> Damage {
    Damage {
        file: format!("log/{}", Paths::segment_name(note.segment)),
        from: note.from,
        to: note.to,
        noticed: Timestamp(note.noticed),
        tail: note.tail,
        kept_in: note.kept_in.clone(),
    }
}

/// Copies the bytes aside, durably, and makes the draft that notes them and their dead letter.
pub fn keep(
    disk: &dyn Disk,
    paths: &Paths,
    nonce: u64,
    found: &DamageReport,
    now: Timestamp,
    route: impl FnMut(&Arc<str>) -> Result<Arc<Route>, Fault>,
) -> io::Result<Draft> {
    let (kept_in, raw) = match disk.open(&paths.segment(found.segment)) {
        Ok(file) => copy_aside(disk, paths, file.as_ref(), found)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => (String::new(), Vec::new()),
        Err(error) => return Err(error),
    };
    let dead_letter = dead_letter(nonce, found, &kept_in, raw, now);
    let entry = Entry::Damaged(found.note(now, kept_in));
    let (mut draft, _) = Draft::new(&[dead_letter], route, &[entry]).map_err(io::Error::other)?;
    // A full disk must not keep damage from being noted.
    draft.urgency = Urgency::Ledger;
    Ok(draft)
}

/// Returns the copy's name relative to the data folder, and as many of the bytes as a dead letter
/// takes.
fn copy_aside(
    disk: &dyn Disk,
    paths: &Paths,
    file: &dyn DiskFile,
    found: &DamageReport,
) -> io::Result<(String, Vec<u8>)> {
    let to = found.to.min(file.len()?);
    if to <= found.from {
        // The file is shorter than it should be: there is nothing to keep.
        return Ok((String::new(), Vec::new()));
    }
    disk.create_dir(&paths.damaged)?;
    let name = free_name(disk, &paths.damaged, found)?;
    let path = paths.damaged.join(&name);
    let copy = || -> io::Result<Vec<u8>> {
        let target = disk.create(&path)?;
        let mut raw = Vec::new();
        let mut at = found.from;
        while at < to {
            let some = usize::try_from(to - at).unwrap_or(CHUNK).min(CHUNK);
            let bytes = read_up_to(file, at, some)?;
            if bytes.is_empty() {
                break;
            }
            write_all(target.as_ref(), &bytes, at - found.from)?;
            at += bytes.len() as u64;
            let room = RECORD_BYTES_MAX.saturating_sub(raw.len());
            raw.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
        }
        target.sync()?;
        disk.sync_dir(&paths.damaged)?;
        disk.sync_dir(&paths.dir)?;
        Ok(raw)
    };
    let raw = copy().inspect_err(|_| {
        // A half-made copy is worth nothing: the bytes are still where they were.
        let _ = disk.remove(&path);
    })?;
    Ok((format!("damaged/{name}"), raw))
}

/// A name no earlier copy has: the same bytes may be copied again after a crash.
fn free_name(disk: &dyn Disk, dir: &Path, found: &DamageReport) -> io::Result<String> {
    let taken = disk.list(dir)?;
    let plain = format!("{:020}-{}", found.segment, found.from);
    let names = (0_u64..).map(|turn| match turn {
        0 => format!("{plain}.bin"),
        _ => format!("{plain}.{turn}.bin"),
    });
    Ok(names.into_iter().find(|name| !taken.contains(name)).unwrap_or(plain))
}

fn dead_letter(
    nonce: u64,
    found: &DamageReport,
    kept_in: &str,
    raw: Vec<u8>,
    now: Timestamp,
) -> Output {
    let file = Paths::segment_name(found.segment);
    let what = match (kept_in.is_empty(), found.tail) {
        _ if found.is_missing() => format!("log/{file} is missing"),
        (true, _) => format!("bytes {}..{} of log/{file} are missing", found.from, found.to),
        (_, true) => format!(
            "the end of log/{file} from byte {} on is no whole frame; kept in {kept_in}",
            found.from
        ),
        _ => format!(
            "bytes {}..{} of log/{file} are damaged; kept in {kept_in}",
            found.from, found.to
        ),
    };
    let envelope = Envelope {
        pipeline: "potok".to_owned(),
        origin: Position {
            log: nonce,
            topic: ORIGIN_TOPIC.into(),
            partition: u32::try_from(found.segment).unwrap_or(u32::MAX),
            offset: found.from,
        },
        deliver: None,
        reason: Reason::Damaged,
        error: what,
        attempts: 1,
        time: now,
        replay_of: None,
        shard: None,
        piece: None,
    };
    Output {
        topic: DEAD_TOPIC.into(),
        partition: Some(0),
        key: None,
        headers: envelope.headers(&Headers::none()),
        value: Some(Bytes::from(raw)),
    }
}
