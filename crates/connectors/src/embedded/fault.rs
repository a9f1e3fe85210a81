//! The faults of the log, each with the code of its page under `docs/errors/`.

use std::io;
use std::path::Path;

use potok_core::{Fault, RECORD_BYTES_MAX, Reason};
use tokio::task::JoinError;

use super::disk::is_full;
use super::format::NAME_BYTES_MAX;

pub(super) fn in_use(dir: &Path, owner: &str) -> Fault {
    let owner = owner.trim();
    let whose = if owner.is_empty() { String::new() } else { format!(" (process {owner})") };
    Fault::fix(format!("the data folder {} is in use by another process{whose}", dir.display()))
        .code("P0201")
        .hint("stop that process, or choose another folder with --data-dir")
}

pub(super) fn unusable(dir: &Path, error: &io::Error) -> Fault {
    Fault::fix(format!("the data folder {} cannot be used", dir.display()))
        .code("P0202")
        .because(error)
        .hint("check that it exists, is writable for this user and lies on a local disk")
}

/// A write that failed: the disk is full, or broken.
pub(super) fn write_failed(error: &io::Error) -> Fault {
    if is_full(error) {
        return Fault::wait("the disk of the data folder is full; nothing was written")
            .code("P0203")
            .because(error)
            .hint("free some space; work goes on by itself");
    }
    Fault::wait("the disk refused a write; the log goes on in a new segment")
        .code("P0204")
        .because(error)
        .hint("check the disk and its cables (dmesg, smartctl)")
}

pub(super) fn no_reserve() -> Fault {
    Fault::wait("the disk of the data folder is full; what room there is serves to finish work")
        .code("P0203")
        .hint("free some space; work goes on by itself")
}

pub(super) fn read_failed(error: &io::Error) -> Fault {
    Fault::wait("the disk could not be read")
        .code("P0204")
        .because(error)
        .hint("check the disk and its cables (dmesg, smartctl)")
}

pub(super) fn too_large(bytes: usize) -> Fault {
    Fault::set_aside(
        Reason::TooLarge,
        format!("a record of {bytes} bytes is larger than {RECORD_BYTES_MAX}"),
    )
    .code("P0205")
}

pub(super) fn transaction_too_large() -> Fault {
    Fault::set_aside(Reason::TooLarge, "the records are too many for one transaction")
        .code("P0205")
        .hint("append them in several calls")
}

/// A name goes into file formats, URLs and terminals: it must be printable and short.
pub(super) fn check_name(what: &str, name: &str) -> Result<(), Fault> {
    let bad = if name.is_empty() {
        "is empty"
    } else if name.len() > NAME_BYTES_MAX {
        "is longer than 249 bytes"
    } else if name.chars().any(|char| char.is_whitespace() || char.is_control() || char == '/') {
        "has spaces, slashes or control characters"
    } else {
        return Ok(());
    };
    Err(Fault::fix(format!("the {what} name {name:?} {bad}"))
        .code("P0206")
        .hint("use up to 249 bytes of printable characters without spaces and slashes"))
}

pub(super) fn no_partition(topic: &str, partition: u32, partitions: usize) -> Fault {
    Fault::fix(format!("topic `{topic}` has {partitions} partitions, not a number {partition}"))
        .code("P0206")
}

pub(super) fn no_topic(topic: &str) -> Fault {
    Fault::fix(format!("there is no topic `{topic}`"))
        .code("P0207")
        .hint("a topic comes to be with its first record: `potok send`")
}

pub(super) fn group_open(group: &str) -> Fault {
    Fault::fix(format!("the group `{group}` is being read already"))
        .code("P0208")
        .hint("two pipelines cannot share a consumer group; stop the one that reads it first")
}

/// One opening cannot hand out a record in two groups: both would be told apart by nothing.
pub(super) fn read_twice(topic: &str, group: &str) -> Fault {
    Fault::fix(format!("topic `{topic}` is read in group `{group}` and in another of its pipeline"))
        .code("P0408")
        .hint("read a topic in one consumer group; a second pipeline may read it in another")
}

pub(super) fn no_group(group: &str) -> Fault {
    Fault::fix(format!("there is no group `{group}`"))
        .code("P0209")
        .hint("`potok consumer-groups list` shows those there are")
}

pub(super) fn closed() -> Fault {
    Fault::wait("the log is closed").code("P0210").hint("restart the process")
}

/// Reading on a thread of its own did not come to its end. A panic goes on where records were asked
/// for: that part dies, and the engine starts it again from the log.
pub(super) fn cut_short(error: JoinError) -> Fault {
    match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => closed(),
    }
}

/// A thread that the log cannot be without panicked: a bug. The process ends.
pub(super) fn died(thread: &str) -> Fault {
    Fault::fix(format!("{thread} died inside potok; the process ends"))
        .code("P0210")
        .hint("start it again, or let a supervisor do so; nothing is lost; please report it")
}

pub(super) fn newer(file: &str, version: u8) -> Fault {
    Fault::fix(format!("{file} was written by a newer potok (format {version})"))
        .code("P0211")
        .hint("run that version, or choose another folder with --data-dir")
}
