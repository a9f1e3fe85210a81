//! Hostile bytes on stable Rust: inputs of a corpus, and inputs made of them.
//!
//! A target is a plain test. It names the folder with its corpus and says what must hold for any
//! bytes; [`Corpus::fuzz`] gives it every file of the folder, then as many changed ones as asked:
//! flipped, cut, repeated, joined, with bytes that often hurt. The same seed makes the same inputs
//! everywhere, so what fails once fails again. `cargo xtask soak` sets `POTOK_SOAK` and gets a
//! hundred times as many; `POTOK_FUZZ_SEED` makes other ones.
//!
//! What was found goes into the corpus as a file: small, and named by what is in it.
//! Deliberately absent: coverage. The targets are small, and their corpora say what matters.
#![deny(missing_docs)]
#![allow(clippy::panic, reason = "only tests use this, and a target that fails must")]

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

/// How many times longer the long version is.
const SOAK: u64 = 100;
/// Inputs grow no larger: what is wrong shows in small ones.
const BYTES_MAX: usize = 64 << 10;
/// So many bytes of an input that failed are shown.
const SHOWN_MAX: usize = 2_048;

/// Bytes that often hurt: ends, signs, lengths, quotes, and what looks like one of them.
const HURTS: &[&[u8]] = &[
    b"\0",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\r\n",
    b"\n",
    b"\"",
    b"\\",
    b"\\u",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"-",
    b"- ",
    b": ",
    b"#",
    b"&a",
    b"*a",
    b"!",
    b"${",
    b"}}",
    b"'",
    b"0",
    b"1",
    b"-0",
    b"1e9",
    b"1e999",
    b"0x1",
    b"null",
    b"true",
    b"9223372036854775808",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\xf0\x9f\x98\x80",
    b"\x00\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\x01\x00\x00\x00",
    b"\x00\x00\x00\x80",
    b"\xff\xff\xff\x7f",
];

/// Numbers that look random and are the same everywhere.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// Those of a seed.
    pub fn new(seed: u64) -> Self {
        Chance(seed)
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// A number below `below`; 0 where there is none.
    pub fn below(&mut self, below: usize) -> usize {
        (self.bits() % (below.max(1) as u64)) as usize
    }

    /// A place and a length within so many bytes.
    fn range(&mut self, len: usize) -> std::ops::Range<usize> {
        let from = self.below(len + 1);
        from..from + self.below((len - from).min(64) + 1)
    }

    fn one_of<'a>(&mut self, all: &[&'a [u8]]) -> &'a [u8] {
        all.get(self.below(all.len())).copied().unwrap_or_default()
    }
}

/// How many inputs to make: the long version where it is asked for.
pub fn rounds(short: u64) -> u64 {
    if std::env::var_os("POTOK_SOAK").is_some() { short * SOAK } else { short }
}

/// The seed inputs are made of.
pub fn seed() -> u64 {
    std::env::var("POTOK_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// Inputs that say what matters to a target.
#[derive(Debug)]
pub struct Corpus {
    inputs: Vec<(String, Vec<u8>)>,
}

impl Corpus {
    /// The files of a folder.
    #[track_caller]
    pub fn read(folder: &str) -> Corpus {
        let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
        let read = |path: &Path| {
            std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let files =
            entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file());
        let mut inputs: Vec<_> =
            files.map(|path| (path.display().to_string(), read(&path))).collect();
        assert!(!inputs.is_empty(), "{folder} is empty");
        // The system's order is not everywhere the same.
        inputs.sort();
        Corpus { inputs }
    }

    /// The same with more inputs, which a test makes.
    #[must_use]
    pub fn with(mut self, more: impl IntoIterator<Item = Vec<u8>>) -> Corpus {
        let named = more.into_iter().enumerate();
        self.inputs.extend(named.map(|(number, input)| (format!("made {number}"), input)));
        self
    }

    /// Gives every input to `check`, then so many changed ones. `check` fails by panicking; the
    /// input is shown then.
    pub fn fuzz(&self, rounds_short: u64, mut check: impl FnMut(&[u8])) {
        for (name, input) in &self.inputs {
            show_if_it_fails(name, input, &mut check);
        }
        let seed = seed();
        for round in 0..rounds(rounds_short) {
            let input = self.made(&mut Chance::new(seed.wrapping_mul(1 << 40).wrapping_add(round)));
            show_if_it_fails(&format!("round {round} of seed {seed}"), &input, &mut check);
        }
    }

    /// A changed input.
    pub fn made(&self, chance: &mut Chance) -> Vec<u8> {
        let mut input = self.any(chance).to_vec();
        for _ in 0..1 + chance.below(8) {
            self.change(&mut input, chance);
            input.truncate(BYTES_MAX);
        }
        input
    }

    fn any(&self, chance: &mut Chance) -> &[u8] {
        self.inputs.get(chance.below(self.inputs.len())).map_or(&[], |(_, input)| input)
    }

    fn change(&self, input: &mut Vec<u8>, chance: &mut Chance) {
        let range = chance.range(input.len());
        match chance.below(9) {
            0 => flip(input, chance),
            1 => drop(input.splice(range, std::iter::empty())),
            2 => {
                let again: Vec<u8> = input.get(range.clone()).unwrap_or_default().to_vec();
                let many = again.repeat(1 + chance.below(4));
                drop(input.splice(range.end..range.end, many));
            }
            3 => drop(input.splice(range.start..range.start, chance.one_of(HURTS).iter().copied())),
            4 => drop(input.splice(range, chance.one_of(HURTS).iter().copied())),
            5 => input.truncate(range.start),
            6 => {
                let other = self.any(chance);
                let from = chance.below(other.len() + 1);
                input.truncate(range.start);
                input.extend_from_slice(other.get(from..).unwrap_or_default());
            }
            7 => {
                let other = self.any(chance);
                let part = chance.range(other.len());
                let part = other.get(part).unwrap_or_default().to_vec();
                drop(input.splice(range, part));
            }
            _ => {
                for byte in input.get_mut(range).unwrap_or_default() {
                    *byte = chance.bits() as u8;
                }
            }
        }
    }
}

/// Changes one bit.
pub fn flip(input: &mut [u8], chance: &mut Chance) {
    let at = chance.below(input.len());
    if let Some(byte) = input.get_mut(at) {
        *byte ^= 1 << chance.below(8);
    }
}

fn show_if_it_fails(name: &str, input: &[u8], check: &mut impl FnMut(&[u8])) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(input))) {
        let shown = input.get(..input.len().min(SHOWN_MAX)).unwrap_or_default();
        let mut hex = String::new();
        for byte in shown {
            // Writing to a String does not fail.
            let _ = write!(hex, "{byte:02x}");
        }
        eprintln!("failed on {name}, {} bytes:\n{}\n{hex}", input.len(), shown.escape_ascii());
        resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus() -> Corpus {
        Corpus { inputs: Vec::new() }.with([b"one".to_vec(), b"{\"two\": [1, 2]}".to_vec()])
    }

    #[test]
    fn the_same_seed_makes_the_same_inputs_and_they_differ() {
        let made = |round| corpus().made(&mut Chance::new(round));
        let all: std::collections::BTreeSet<_> = (0..1_000).map(made).collect();
        assert!(all.len() > 600, "{}", all.len());
        assert_eq!(made(7), made(7));
    }

    #[test]
    fn what_fails_is_passed_on() {
        let fails = || corpus().fuzz(10, |input| assert_ne!(input, b"one"));
        assert!(catch_unwind(AssertUnwindSafe(fails)).is_err());
    }
}
