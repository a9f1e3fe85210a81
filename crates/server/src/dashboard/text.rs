//! Numbers, times and other people's text, as a page shows them.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use potok_core::Timestamp;

pub(super) use crate::problems::grouped as number;

/// What stands where nothing is known.
pub(super) const UNKNOWN: &str = "–";
/// Kept as they are in a part of an address.
const PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A part of an address.
pub(super) fn part(text: &str) -> String {
    utf8_percent_encode(text, PART).to_string()
}

/// An address with those parameters that say something.
pub(super) fn address(path: &str, params: &[(&str, &str)]) -> String {
    let said = params.iter().filter(|(_, value)| !value.is_empty());
    let said: Vec<String> = said.map(|(name, value)| format!("{name}={}", part(value))).collect();
    match said.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{}", said.join("&")),
    }
}

/// How many a second.
pub(super) fn rate(rate: Option<f64>) -> String {
    match rate {
        None => UNKNOWN.to_owned(),
        Some(rate) if rate > 0.0 && rate < 9.95 => format!("{rate:.1}"),
        Some(rate) => number(rate.round().max(0.0) as u64),
    }
}

/// A number, where it is known.
pub(super) fn known(count: Option<u64>) -> String {
    count.map_or_else(|| UNKNOWN.to_owned(), number)
}

pub(super) fn bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut size, mut unit) = (bytes as f64, 0);
    while size >= 1_024.0 && unit + 1 < units.len() {
        size /= 1_024.0;
        unit += 1;
    }
    let unit_name = units.get(unit).copied().unwrap_or_default();
    match unit {
        0 => format!("{bytes} B"),
        _ if size < 10.0 => format!("{size:.1} {unit_name}"),
        _ => format!("{size:.0} {unit_name}"),
    }
}

/// How long, in milliseconds; the script writes it the same way.
pub(super) fn span(millis: u64) -> String {
    let seconds = millis / 1_000;
    match seconds {
        0..10 => format!("{:.1} s", millis as f64 / 1_000.0),
        10..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3_600, seconds / 60 % 60),
    }
}

/// The time of day of a moment in RFC 3339, with its date where that is another day than now.
pub(super) fn time_of(moment: &str, now: Timestamp) -> String {
    let today = now.to_string();
    let (Some((date, time)), Some((current, _))) = (moment.split_once('T'), today.split_once('T'))
    else {
        return moment.to_owned();
    };
    let time = time.split('.').next().unwrap_or(time).trim_end_matches('Z');
    if date == current { time.to_owned() } else { format!("{date} {time}") }
}

/// The time of day to the millisecond.
pub(super) fn exact_time_of(moment: &str) -> String {
    match moment.split_once('T') {
        Some((_, time)) => time.trim_end_matches('Z').to_owned(),
        None => moment.to_owned(),
    }
}

/// Records and groups that a pipeline holds, or that a feed of it holds in groups.
pub(super) fn held(status: &potok_flow::Status) -> (u64, u64) {
    let feeds = status.feeds.iter().filter_map(|feed| Some((feed.waiting?, feed.groups?)));
    feeds.fold((status.held_records, status.open_groups), |(records, groups), of| {
        (records + of.0, groups + of.1)
    })
}

/// Dead letters that are open; not known where a pipeline that runs here does not know its own.
pub(super) fn open_letters(all: &[potok_flow::Status]) -> Option<u64> {
    let counts = all.iter().filter(|of| of.since.is_some() || of.dead_letters_open.is_some());
    let counts: Vec<Option<u64>> = counts.map(|status| status.dead_letters_open).collect();
    if counts.is_empty() { None } else { counts.into_iter().sum() }
}

/// A word for one or many.
pub(super) fn count(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", number(count), if count == 1 { one } else { many })
}

/// Other people's text: at most so many characters, and nothing in it that hides or turns around what
/// stands beside it. Markup is not its concern: whoever writes it into a page escapes it.
pub(super) fn clean(text: &str, chars_max: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(chars_max));
    for (at, c) in text.chars().enumerate() {
        if at == chars_max {
            shown.push('…');
            break;
        }
        match c {
            '\n' | '\t' => shown.push(c),
            c if is_tricky(c) => shown.push_str(&format!("⟨U+{:04X}⟩", u32::from(c))),
            c => shown.push(c),
        }
    }
    shown
}

/// The same of bytes; those that are not UTF-8 as hexadecimal digits. False where there is more.
pub(super) fn clean_bytes(bytes: &[u8], bytes_max: usize) -> (String, bool) {
    let some = bytes.get(..bytes_max).unwrap_or(bytes);
    let whole = some.len() == bytes.len();
    let text = match std::str::from_utf8(some) {
        Ok(text) => Some(text),
        // A character may have been cut in two.
        Err(error) if !whole && some.len() - error.valid_up_to() < 4 => {
            some.get(..error.valid_up_to()).and_then(|some| std::str::from_utf8(some).ok())
        }
        Err(_) => None,
    };
    let shown = match text {
        Some(text) => clean(text, usize::MAX),
        None => {
            let lines: Vec<String> = some
                .chunks(32)
                .map(|line| line.iter().map(|byte| format!("{byte:02x} ")).collect::<String>())
                .collect();
            lines.join("\n")
        }
    };
    (shown, whole)
}

/// A JSON value laid out for people; `None` where it is none, or a long one.
pub(super) fn laid_out(bytes: &[u8], bytes_max: usize) -> Option<String> {
    if bytes.len() > bytes_max {
        return None;
    }
    let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    let text = serde_json::to_string_pretty(&value).ok()?;
    Some(clean(&text, usize::MAX))
}

/// A command as a shell takes it, word by word: copied and run, it does what the page does.
pub(super) struct ShellCommand(String);

impl ShellCommand {
    pub fn new(command: &str) -> Self {
        ShellCommand(command.to_owned())
    }

    /// Adds a word, where it says something.
    pub fn word(self, word: &str) -> Self {
        match word {
            "" => self,
            word => self.put(word),
        }
    }

    /// Adds words of other people, which may look like flags.
    pub fn names(self, words: &[&str]) -> Self {
        let dashes = if words.iter().any(|word| word.starts_with('-')) { "--" } else { "" };
        words.iter().fold(self.word(dashes), |command, word| command.put(word))
    }

    /// Adds a flag with its value, where it says something.
    pub fn flag(self, name: &str, value: &str) -> Self {
        match value {
            "" => self,
            // Else it would be another flag.
            value if value.starts_with('-') => {
                ShellCommand(format!("{} {name}={}", self.0, quoted(value)))
            }
            value => self.word(name).put(value),
        }
    }

    fn put(self, word: &str) -> Self {
        ShellCommand(format!("{} {}", self.0, quoted(word)))
    }

    pub fn text(self) -> String {
        self.0
    }
}

/// A word as a shell reads it; what hides or turns is written out.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._/:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    if !word.chars().any(is_tricky) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let mut text = String::from("$'");
    for c in word.chars() {
        match c {
            '\'' | '\\' => text.extend(['\\', c]),
            c if is_tricky(c) => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    text.push_str(&format!("\\x{byte:02x}"));
                }
            }
            c => text.push(c),
        }
    }
    text.push('\'');
    text
}

/// Control characters, and what turns the direction of text around or cannot be seen.
fn is_tricky(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hides_is_shown() {
        let text = "a\u{202e}b\u{0}c\u{200b}d<script>";
        assert_eq!(clean(text, 100), "a⟨U+202E⟩b⟨U+0000⟩c⟨U+200B⟩d<script>");
        assert_eq!(clean("abcdef", 3), "abc…");
        assert_eq!(clean("a\nb", 9), "a\nb");
    }

    #[test]
    fn bytes_that_are_no_text_are_digits_and_cuts_are_told() {
        assert_eq!(clean_bytes(b"\xff\x00", 10), ("ff 00 ".to_owned(), true));
        assert_eq!(clean_bytes("äö".as_bytes(), 3), ("ä".to_owned(), false));
    }

    #[test]
    fn a_command_can_be_copied_and_run() {
        let command = ShellCommand::new("potok dead-letters drop").word("orders").word("");
        let command = command.flag("--reason", "").flag("--cause", "it's \"…\"; rm -rf $HOME");
        let said = r#"potok dead-letters drop orders --cause 'it'\''s "…"; rm -rf $HOME'"#;
        assert_eq!(command.text(), said);
        let tricky = ShellCommand::new("x").names(&["-a", "b\u{202e}'\n"]).flag("--y", "-z");
        assert_eq!(tricky.text(), r"x -- -a $'b\xe2\x80\xae\'\x0a' --y=-z");
    }

    #[test]
    fn what_one_pipeline_does_not_know_is_not_zero() {
        let of = |since: Option<&str>, open| potok_flow::Status {
            since: since.map(str::to_owned),
            dead_letters_open: open,
            ..potok_flow::Status::unknown("orders", potok_flow::State::Running)
        };
        assert_eq!(open_letters(&[of(Some("now"), Some(2)), of(Some("now"), None)]), None);
        assert_eq!(open_letters(&[of(Some("now"), Some(2)), of(None, None)]), Some(2));
        assert_eq!(open_letters(&[]), None);
    }

    #[test]
    fn numbers_and_spans_read_well() {
        assert_eq!(rate(Some(0.42)), "0.4");
        assert_eq!(rate(Some(1_240.4)), "1,240");
        assert_eq!((rate(None), rate(Some(0.0))), ("–".to_owned(), "0".to_owned()));
        let spans = [900, 12_000, 252_000, 22_320_000].map(span);
        assert_eq!(spans, ["0.9 s", "12 s", "4 min 12 s", "6 h 12 min"]);
        assert_eq!([bytes(12), bytes(7_578), bytes(3 << 30)], ["12 B", "7.4 KiB", "3.0 GiB"]);
        assert_eq!(address("/groups", &[("a", "b c"), ("d", "")]), "/groups?a=b%20c");
    }
}
