//! Seeds as people write them: what somebody asks for, and lists of those that once failed.

use std::ops::Range;

/// Reads `7`, `FROM..TO`, or several of them with commas between.
pub fn seed_ranges(text: &str) -> Result<Vec<Range<u64>>, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("no seed: `{text}`"));
    let range = |text: &str| match text.split_once("..") {
        Some((from, to)) => Ok(number(from)?..number(to)?),
        None => number(text).map(|seed| seed..seed + 1),
    };
    text.split(',').map(range).collect()
}

/// The seeds of a list: the first word of each line that is neither empty nor a comment.
pub fn listed_seeds(text: &str) -> Result<Vec<u64>, String> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let seed = |line: &str| line.split_whitespace().next().unwrap_or_default().parse::<u64>();
    lines.map(|line| seed(line).map_err(|_| format!("no seed: {line}"))).collect()
}
