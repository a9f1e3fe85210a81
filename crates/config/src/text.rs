//! The bytes of one file, with the way from a byte to line and column and back to a line one can
//! show.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use crate::problem::{Problem, code};

/// No configuration is larger; a larger file is refused by its length, unread.
pub(crate) const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// A longer line is shown in part.
const SHOWN_CHARS_MAX: usize = 160;

/// One file that was read.
pub(crate) struct SourceText {
    file: String,
    text: String,
    /// The byte at which each line begins.
    lines: Vec<usize>,
    /// The byte at which each character begins; `None` while every character is one byte.
    chars: Option<Vec<usize>>,
}

/// The source is never printed whole: it may hold secrets.
impl std::fmt::Debug for SourceText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceText").field("file", &self.file).finish_non_exhaustive()
    }
}

/// A line as a problem shows it.
pub(crate) struct MarkedLine {
    pub text: String,
    /// Begin and length of the marked part of `text`, in characters.
    pub mark: (usize, usize),
    /// Length of the marked part in the file, in characters.
    pub len: usize,
}

impl SourceText {
    /// Reads a file, at most [`FILE_BYTES_MAX`] of it.
    pub fn read(path: &Path) -> Result<Self, Problem> {
        let file = path.display().to_string();
        let bytes = match read_bounded(path) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                return Err(Problem::elsewhere(
                    code::TOO_LARGE,
                    file,
                    format!("the file is larger than {} MiB", FILE_BYTES_MAX >> 20),
                    Some("a configuration is small: is this the right file?".into()),
                ));
            }
            Err(error) => {
                let what = format!("the file cannot be read: {error}");
                return Err(Problem::elsewhere(code::UNREADABLE, file, what, None));
            }
        };
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self::new(file, text)),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                let line = 1 + error.as_bytes().iter().take(at).filter(|b| **b == b'\n').count();
                Err(Problem::elsewhere(
                    code::UNREADABLE,
                    file,
                    format!("the file is not UTF-8: line {line}, byte {at}"),
                    Some("save it as UTF-8 text".into()),
                ))
            }
        }
    }

    /// Takes text as if read from `file`.
    pub fn new(file: impl Into<String>, text: impl Into<String>) -> Self {
        let text = text.into();
        // A byte order mark is no content, and would shift the columns of line 1.
        let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
        let bytes = text.as_bytes();
        let mut lines = vec![0];
        for (at, byte) in bytes.iter().enumerate() {
            let lone_return = *byte == b'\r' && bytes.get(at + 1) != Some(&b'\n');
            if *byte == b'\n' || lone_return {
                lines.push(at + 1);
            }
        }
        let chars = (!text.is_ascii()).then(|| text.char_indices().map(|(at, _)| at).collect());
        SourceText { file: file.into(), text, lines, chars }
    }

    pub fn file(&self) -> &str {
        &self.file
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// The byte at which a character begins; the end of the text where there is none.
    pub fn byte_of_char(&self, index: usize) -> usize {
        let byte = match &self.chars {
            None => index,
            Some(chars) => chars.get(index).copied().unwrap_or(self.text.len()),
        };
        byte.min(self.text.len())
    }

    /// Line and column of a byte, both from 1, columns in characters.
    pub fn place(&self, byte: usize) -> (usize, usize) {
        let byte = byte.min(self.text.len());
        let (line, start) = self.line_of(byte);
        (line, self.char_of_byte(byte) - self.char_of_byte(start) + 1)
    }

    /// How many characters begin before a byte.
    fn char_of_byte(&self, byte: usize) -> usize {
        self.chars.as_ref().map_or(byte, |chars| chars.partition_point(|at| *at < byte))
    }

    /// The number of the line in which a byte lies, and where that line begins.
    fn line_of(&self, byte: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|start| *start <= byte).max(1);
        (line, self.lines.get(line - 1).copied().unwrap_or(0))
    }

    /// The bytes of the line in which a byte lies, without its end.
    fn line_around(&self, byte: usize) -> Range<usize> {
        let (line, start) = self.line_of(byte);
        let next = self.lines.get(line).copied().unwrap_or(self.text.len());
        let text = self.text.get(start..next).unwrap_or_default();
        start..start + text.trim_end_matches(['\n', '\r']).len()
    }

    /// The line of a problem with `at` marked and everything secret replaced.
    pub fn render(&self, at: &Range<usize>, secrets: &[Range<usize>], guess: bool) -> MarkedLine {
        let line = self.line_around(at.start);
        let text = self.text.get(line.clone()).unwrap_or_default();
        let guessed = if guess { looks_secret(text) } else { Vec::new() };
        let guessed = guessed.into_iter().map(|r| line.start + r.start..line.start + r.end);

        // Of a long line only the part around the mark is worked on: there may be many problems.
        let mark = self.char_of_byte(at.start);
        let first = mark.saturating_sub(SHOWN_CHARS_MAX / 2).max(self.char_of_byte(line.start));
        let window = self.byte_of_char(first)
            ..self.byte_of_char(first + SHOWN_CHARS_MAX).clamp(line.start, line.end);
        let hidden: Vec<Range<usize>> = secrets
            .iter()
            .cloned()
            .chain(guessed)
            .filter(|secret| secret.start < window.end && window.start < secret.end)
            .collect();

        let mut shown = String::new();
        let (mut from, mut to, mut was_hidden) = (None, 0, false);
        if window.start > line.start {
            shown.push('…');
        }
        let part = self.text.get(window.clone()).unwrap_or_default();
        for (byte, c) in part.char_indices().map(|(offset, c)| (window.start + offset, c)) {
            let is_hidden = hidden.iter().any(|range| range.contains(&byte));
            if byte >= at.start {
                from.get_or_insert(shown.chars().count());
            }
            match (is_hidden, was_hidden) {
                (true, false) => shown.push_str("***"),
                (true, true) => {}
                (false, _) => shown.push(printable(c)),
            }
            was_hidden = is_hidden;
            if at.contains(&byte) {
                to = shown.chars().count();
            }
        }
        if window.end < line.end {
            shown.push('…');
        }
        let from = from.unwrap_or(shown.chars().count());
        let end = at.end.min(line.end).max(at.start);
        let len = self.char_of_byte(end) - self.char_of_byte(at.start);
        MarkedLine { text: shown, mark: (from, to.saturating_sub(from).max(1)), len: len.max(1) }
    }
}

/// Reads at most [`FILE_BYTES_MAX`]; `None` where there is more. The length is asked first, so a
/// huge file costs nothing; reading is bounded too, for what has no length (a pipe, a device).
pub(crate) fn read_bounded(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    if length > FILE_BYTES_MAX {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= FILE_BYTES_MAX).then_some(bytes))
}

/// Control characters would move the terminal's cursor, or worse.
pub(crate) fn printable(c: char) -> char {
    match c {
        '\t' | '\n' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

/// Words that speak of secrets.
const SECRET_WORDS: [&str; 7] =
    ["password", "passwd", "secret", "token", "credential", "api_key", "apikey"];

/// True for a key that speaks of secrets.
pub(crate) fn names_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| key.contains(word))
}

/// What in a line may be secret, where the structure of the file is not known: URLs behind their
/// scheme, and everything behind a word that speaks of secrets.
fn looks_secret(line: &str) -> Vec<Range<usize>> {
    let lower = line.to_ascii_lowercase();
    let word = SECRET_WORDS.iter().filter_map(|word| lower.find(word)).min().map(|at| {
        let rest = line.get(at..).unwrap_or_default();
        let skip = rest.find([':', '=']).map_or(0, |colon| colon + 1);
        at + skip..line.len()
    });
    let urls = line.match_indices("://").map(|(at, scheme)| {
        let from = at + scheme.len();
        let rest = line.get(from..).unwrap_or_default();
        let len = rest.find(['"', '\'', ' ', '\t', '}']).unwrap_or(rest.len());
        from..from + len
    });
    word.into_iter().chain(urls).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init)]
    use super::*;

    #[test]
    fn places_count_characters_and_lines() {
        let source = SourceText::new("f", "ä: ö\r\nb: c\n");
        assert_eq!(source.place(0), (1, 1));
        assert_eq!(source.place(source.byte_of_char(3)), (1, 4));
        assert_eq!(source.place(source.byte_of_char(6)), (2, 1));
        assert_eq!(source.place(999), (3, 1));
    }

    #[test]
    fn secrets_are_cut_out_of_the_line_and_the_mark_moves_along() {
        let source = SourceText::new("f", "a: topsecret, b: c");
        let shown = source.render(&(14..15), &[3..12], false);
        assert_eq!(shown.text, "a: ***, b: c");
        assert_eq!(shown.mark, (8, 1));
    }

    #[test]
    fn long_lines_are_shown_around_the_mark() {
        let source = SourceText::new("f", format!("{}X{}", "a".repeat(5000), "b".repeat(5000)));
        let shown = source.render(&(5000..5001), &[], false);
        assert!(shown.text.chars().count() <= SHOWN_CHARS_MAX + 2);
        assert_eq!(shown.text.chars().nth(shown.mark.0), Some('X'));
    }

    #[test]
    fn an_unreadable_line_hides_what_may_be_secret() {
        for line in ["url: postgres://u:canary@h/d", "sasl.password: \"canary", "a: {token: canary"]
        {
            let source = SourceText::new("f", line);
            let shown = source.render(&(0..1), &[], true);
            assert!(!shown.text.contains("canary"), "{}", shown.text);
        }
    }
}
