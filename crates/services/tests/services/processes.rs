//! What the operating system says of processes.

use std::fs;
use std::path::{Path, PathBuf};

/// All processes that work inside `folder`.
pub fn inside(folder: &Path) -> Vec<u32> {
    let listed = fs::read_dir("/proc").unwrap().flatten();
    let numbers = listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|pid| place(*pid).is_some_and(|place| place.starts_with(folder))).collect()
}

fn place(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/cwd")).ok()
}

/// Whether a process of that number is alive; a zombie is not.
pub fn alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Whether it stands still.
pub fn stopped(pid: u32) -> bool {
    state(pid) == Some('T')
}

fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}
