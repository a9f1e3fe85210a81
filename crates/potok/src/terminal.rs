//! What goes to the screen: tables, a little colour where a person looks, and text that cannot
//! play tricks on a terminal.

use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

/// Buffered stdout.
pub type Stdout = BufWriter<StdoutLock<'static>>;

/// Where data goes. Written through a buffer: flush when somebody waits for it.
pub fn out() -> Stdout {
    BufWriter::with_capacity(64 << 10, io::stdout().lock())
}

/// Colours, or none.
#[derive(Clone, Copy)]
pub struct Colours(bool);

/// Columns and rows of the screen behind stdout; `None` where nobody looks.
pub fn screen() -> Option<(usize, usize)> {
    let (columns, rows) = terminal_size::terminal_size_of(io::stdout())?;
    Some((usize::from(columns.0), usize::from(rows.0)))
}

/// True when a person looks at stdout.
pub fn is_screen() -> bool {
    io::stdout().is_terminal()
}

/// Colours for stdout.
pub fn on_stdout() -> Colours {
    Colours(io::stdout().is_terminal() && wanted())
}

/// Colours for stderr.
pub fn on_stderr() -> Colours {
    Colours(io::stderr().is_terminal() && wanted())
}

fn wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

impl Colours {
    fn paint(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// For what is wrong.
    pub fn red(self, text: &str) -> String {
        self.paint("1;31", text)
    }

    /// For what waits.
    pub fn yellow(self, text: &str) -> String {
        self.paint("33", text)
    }

    /// For what works.
    pub fn green(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// For headings.
    pub fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }
}

/// Text from outside without control characters: they could move the cursor or fake output.
pub fn plain(text: &str) -> Cow<'_, str> {
    let tricky = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(tricky) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if tricky(c) { clean.extend(c.escape_default()) } else { clean.push(c) }
    }
    Cow::Owned(clean)
}

/// One line of at most `chars_max` characters.
pub fn short(text: &str, chars_max: usize) -> String {
    let line = plain(text).replace(['\n', '\t'], " ");
    match line.char_indices().nth(chars_max) {
        Some((at, _)) => format!("{}…", line.get(..at).unwrap_or_default()),
        None => line,
    }
}

/// What stands between two columns.
const GAP: &str = "  ";

/// Columns as wide as their widest cell. Numbers stand right.
pub struct Table<'a> {
    heads: Vec<&'a str>,
    rows: Vec<Vec<String>>,
    /// How wide the columns of pages printed before were.
    widths: Vec<usize>,
}

impl<'a> Table<'a> {
    /// With these headings.
    pub fn new(heads: &[&'a str]) -> Self {
        Table { heads: heads.to_vec(), rows: Vec::new(), widths: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| plain(&cell).into_owned()).collect());
    }

    /// The lines, headings first. `colour` may paint a cell, given its column and text.
    pub fn lines(
        &self,
        colours: Colours,
        colour: impl Fn(usize, &str) -> Option<String>,
    ) -> Vec<String> {
        let widths = self.widths();
        let width = |column: usize| widths.get(column).copied().unwrap_or(0);
        let right = |column: usize| {
            let mut cells = self.rows.iter().filter_map(|row| row.get(column)).peekable();
            cells.peek().is_some()
                && cells.all(|cell| {
                    cell == "-"
                        || cell.starts_with(|c: char| c.is_ascii_digit())
                            && !cell.contains(['-', '/', ':'])
                })
        };
        let place = |column: usize, text: &str, painted: String| {
            let space = " ".repeat(width(column).saturating_sub(text.chars().count()));
            if right(column) { format!("{space}{painted}") } else { format!("{painted}{space}") }
        };
        let line = |cells: Vec<String>| cells.join(GAP).trim_end().to_owned();
        let heads = self.heads.iter().enumerate();
        let mut lines = vec![line(heads.map(|(at, h)| place(at, h, colours.bold(h))).collect())];
        for row in &self.rows {
            let cells = row.iter().enumerate();
            let paint = |at: usize, text: &str| colour(at, text).unwrap_or_else(|| text.to_owned());
            lines.push(line(cells.map(|(at, text)| place(at, text, paint(at, text))).collect()));
        }
        lines
    }

    /// The lines within `columns` characters: what does not fit beside the first column goes into
    /// further tables below, each with that column. `None` is as wide as it comes.
    pub fn lines_within(
        &self,
        columns: Option<usize>,
        colours: Colours,
        colour: impl Fn(usize, &str) -> Option<String>,
    ) -> Vec<String> {
        let widths = self.widths();
        let width = |column: usize| widths.get(column).copied().unwrap_or(0);
        let columns = columns.unwrap_or(usize::MAX);
        let mut parts: Vec<Vec<usize>> = Vec::new();
        let mut taken = usize::MAX;
        for column in 1..self.heads.len() {
            let more = GAP.len() + width(column);
            match parts.last_mut() {
                Some(part) if taken.saturating_add(more) <= columns => {
                    part.push(column);
                    taken += more;
                }
                _ => {
                    parts.push(vec![0, column]);
                    taken = width(0) + more;
                }
            }
        }
        let mut lines = Vec::new();
        for part in parts {
            let heads: Vec<_> = part.iter().filter_map(|at| self.heads.get(*at).copied()).collect();
            let mut table = Table::new(&heads);
            for row in &self.rows {
                table.row(part.iter().filter_map(|at| row.get(*at).cloned()));
            }
            let paint = |at: usize, text: &str| colour(part.get(at).copied().unwrap_or(at), text);
            lines.extend(table.lines(colours, paint));
        }
        lines
    }

    fn widths(&self) -> Vec<usize> {
        let width = |(column, head): (usize, &&str)| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let before = self.widths.get(column).copied().unwrap_or(0);
            cells.map(|cell| cell.chars().count()).fold(before.max(head.len()), usize::max)
        };
        self.heads.iter().enumerate().map(width).collect()
    }

    /// How many rows it has.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Prints the rows so far and lets go of them: a table of any length in bounded memory. Later
    /// pages are at least as wide.
    pub fn print_page(&mut self, out: &mut impl Write) -> io::Result<()> {
        let is_first = self.widths.is_empty();
        for line in self.lines(on_stdout(), |_, _| None).iter().skip(usize::from(!is_first)) {
            writeln!(out, "{line}")?;
        }
        self.widths = self.widths();
        self.rows.clear();
        Ok(())
    }

    /// Prints it.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        for line in self.lines(on_stdout(), |_, _| None) {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }
}

/// How many characters of a line are seen: colours take no room.
pub fn seen(line: &str) -> usize {
    let mut parts = line.split('\x1b');
    let first = parts.next().map_or(0, |part| part.chars().count());
    let coloured = parts.map(|part| part.split_once('m').map_or(part, |(_, text)| text));
    first + coloured.map(|part| part.chars().count()).sum::<usize>()
}

/// How many rows of a screen lines take.
pub fn rows(lines: &[String], columns: usize) -> usize {
    lines.iter().map(|line| seen(line).div_ceil(columns.max(1)).max(1)).sum()
}

/// A number with its noun: 1 record, 2 records.
pub fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Milliseconds as people say them.
pub fn span(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis}ms"),
        1_000..60_000 => format!("{}.{}s", millis / 1_000, millis % 1_000 / 100),
        60_000..3_600_000 => format!("{}m{:02}s", millis / 60_000, millis / 1_000 % 60),
        _ => format!("{}h{:02}m", millis / 3_600_000, millis / 60_000 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up_and_numbers_stand_right() {
        let mut table = Table::new(&["NAME", "COUNT"]);
        table.row(["orders".to_owned(), "7".to_owned()]);
        table.row(["ä".to_owned(), "12345".to_owned()]);
        let lines = table.lines(Colours(false), |_, _| None);
        assert_eq!(lines, ["NAME    COUNT", "orders      7", "ä       12345"]);
    }

    #[test]
    fn a_table_that_is_too_wide_goes_on_below() {
        let mut table = Table::new(&["PIPELINE", "LAG", "RECEIVED", "DELIVERED"]);
        table.row(["em-processor".to_owned(), "2949".to_owned(), "7".to_owned(), "5".to_owned()]);
        let plain = |columns| table.lines_within(columns, Colours(false), |_, _| None);
        assert_eq!(plain(None), table.lines(Colours(false), |_, _| None));
        assert_eq!(
            plain(Some(30)),
            [
                "PIPELINE       LAG  RECEIVED",
                "em-processor  2949         7",
                "PIPELINE      DELIVERED",
                "em-processor          5"
            ]
        );
        let painted = |at: usize, text: &str| (at == 3).then(|| format!("\x1b[32m{text}\x1b[0m"));
        let lines = table.lines_within(Some(30), Colours(true), painted);
        assert!(lines[3].contains("\x1b[32m5\x1b[0m"), "{lines:?}");
        assert!(lines.iter().all(|line| seen(line) <= 30), "{lines:?}");
        assert_eq!(rows(&["x".repeat(31), String::new()], 30), 3);
    }

    #[test]
    fn text_from_outside_cannot_move_the_cursor() {
        assert_eq!(plain("a\x1b[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(short("one\ntwo three", 7), "one two…");
        assert_eq!(short("é", 7), "é");
    }

    #[test]
    fn spans_read_well() {
        assert_eq!(span(999), "999ms");
        assert_eq!(span(1_250), "1.2s");
        assert_eq!(span(61_000), "1m01s");
        assert_eq!(span(7_260_000), "2h01m");
    }
}
