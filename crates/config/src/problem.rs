//! What is wrong with a file: one [`Problem`] per mistake, all of them at once.
//!
//! A problem names file, line and column, shows the line, and says what to do. It never shows a
//! secret: the line is rendered last, when it is known which parts of it are secret, and those
//! are replaced by `***`.

use std::fmt;
use std::ops::Range;

use serde::Serialize;

use crate::text::{SourceText, printable};

/// The codes of this crate. Each has a page in `docs/errors/`, shown by `potok explain`.
pub(crate) mod code {
    /// The file cannot be read.
    pub const UNREADABLE: &str = "P0101";
    /// The file is larger than a configuration can be.
    pub const TOO_LARGE: &str = "P0102";
    /// Not YAML.
    pub const SYNTAX: &str = "P0103";
    /// Nested too deeply.
    pub const TOO_DEEP: &str = "P0104";
    /// Too many values.
    pub const TOO_MANY: &str = "P0105";
    /// Aliases that expand too far, or into themselves.
    pub const ALIASES: &str = "P0106";
    /// A key that is there twice.
    pub const DUPLICATE_KEY: &str = "P0107";
    /// Several documents in one file.
    pub const DOCUMENTS: &str = "P0108";
    /// YAML that these files do not use: tags, keys that are not text.
    pub const UNUSED_YAML: &str = "P0109";
    /// `${…}` that is not set or not well formed.
    pub const ENVIRONMENT: &str = "P0110";
    /// A key nobody knows.
    pub const UNKNOWN_KEY: &str = "P0120";
    /// A list where text was expected, and the like.
    pub const WRONG_TYPE: &str = "P0121";
    /// A field that must be there.
    pub const MISSING: &str = "P0122";
    /// Not one of the words, or a number out of its range.
    pub const OUT_OF_RANGE: &str = "P0123";
    /// Not a duration.
    pub const DURATION: &str = "P0124";
    /// Not a size.
    pub const SIZE: &str = "P0125";
    /// Not a name.
    pub const NAME: &str = "P0126";
    /// Not a path, template or rows path.
    pub const EXPRESSION: &str = "P0127";
    /// A VRL program that does not compile.
    pub const VRL: &str = "P0128";
    /// Not an address or a connection setting.
    pub const ADDRESS: &str = "P0129";
    /// The file of `decode.schema` is missing or is not a JSON Schema.
    pub const SCHEMA_FILE: &str = "P0130";
    /// A field that the file of `decode.schema` does not name.
    pub const NOT_IN_SCHEMA: &str = "P0131";
    /// A source that reads nothing, or two things.
    pub const SOURCE: &str = "P0140";
    /// A delivery that goes nowhere, or to two places.
    pub const TARGET: &str = "P0141";
    /// A key that means nothing without another.
    pub const COMPANION: &str = "P0142";
    /// A group that may never close.
    pub const NEVER_CLOSES: &str = "P0143";
    /// `id`, `receiver`, `kind` or `shard` where nothing makes one.
    pub const NO_SUCH_WORD: &str = "P0144";
    /// A pipeline that reads what it writes.
    pub const LOOP: &str = "P0147";
    /// Fields of a value that has none (`format: raw`).
    pub const RAW: &str = "P0148";
    /// The same name for two things.
    pub const SAME_NAME: &str = "P0149";
    /// Limits that contradict each other.
    pub const CONTRADICTION: &str = "P0150";
    /// A topic of potok's own, used for something else.
    pub const OWN_TOPIC: &str = "P0151";
    /// What a connector refuses.
    pub const SETTING: &str = "P0152";
    /// An admin address others can reach.
    pub const EXPOSED: &str = "P0170";
    /// `files` or `track` without what they need.
    pub const FILES: &str = "P1408";
    /// Rows that go before their files.
    pub const ROWS_KEPT: &str = "P1411";
}

const ERROR: &str = "error";
const WARNING: &str = "warning";

/// One mistake in a file, the environment or a flag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// `error`, or `warning` for what runs and probably does not do what was meant.
    pub severity: &'static str,
    /// The code of its page, e.g. `P0120`.
    pub code: &'static str,
    /// The file; or, with line 0, what else it is about (`environment variable POTOK_LOG`).
    pub file: String,
    /// The line, from 1; 0 where there is no place in a file.
    pub line: usize,
    /// The column in characters, from 1; 0 where there is no place in a file.
    pub column: usize,
    /// How many characters of the line are meant.
    pub len: usize,
    /// What is wrong, one sentence.
    pub what: String,
    /// The offending line, secrets replaced; of a very long line the part around the place.
    pub text: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// Where in `text` the marked part begins and how long it is, in characters.
    #[serde(skip)]
    pub(crate) mark: (usize, usize),
}

impl Problem {
    /// A problem that lies in no file: `about` says where instead.
    pub(crate) fn elsewhere(
        code: &'static str,
        about: impl Into<String>,
        what: impl Into<String>,
        hint: Option<String>,
    ) -> Self {
        Problem {
            severity: ERROR,
            code,
            file: about.into(),
            line: 0,
            column: 0,
            len: 0,
            what: told(&what.into()),
            text: String::new(),
            hint: hint.as_deref().map(told),
            mark: (0, 0),
        }
    }
}

/// A longer message is cut: it may quote a value of any length.
const TOLD_CHARS_MAX: usize = 400;

/// A message as it can be printed, on one line.
fn told(message: &str) -> String {
    let mut told: String = message.chars().take(TOLD_CHARS_MAX).map(printable).collect();
    if told.len() < message.len() {
        told.push('…');
    }
    told
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]: {}", self.severity, self.code, self.what)?;
        if self.line == 0 {
            write!(f, "\n --> {}", self.file)?;
        } else {
            let number = self.line.to_string();
            let margin = " ".repeat(number.len());
            let (from, len) = self.mark;
            write!(f, "\n{margin}--> {}:{}:{}", self.file, self.line, self.column)?;
            write!(f, "\n{margin} |\n{number} | {}", self.text)?;
            write!(f, "\n{margin} | {}{}", " ".repeat(from), "^".repeat(len.max(1)))?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

/// All problems of one load, by place. Never empty where it is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One by one.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let gap = if index == 0 { "" } else { "\n\n" };
            write!(f, "{gap}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Problems(vec![problem])
    }
}

impl IntoIterator for Problems {
    type Item = Problem;
    type IntoIter = std::vec::IntoIter<Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// Problems while they are being collected: places are byte ranges, lines are rendered at the
/// end, so that a secret found late is hidden in problems found early.
#[derive(Default)]
pub(crate) struct Findings {
    found: Vec<Finding>,
    secrets: Vec<Range<usize>>,
    guess_secrets: bool,
}

struct Finding {
    code: &'static str,
    at: Range<usize>,
    what: String,
    hint: Option<String>,
}

impl Findings {
    /// Notes a problem with the bytes `at`.
    pub fn add(&mut self, code: &'static str, at: Range<usize>, what: impl Into<String>) {
        self.found.push(Finding { code, at, what: what.into(), hint: None });
    }

    /// Notes a problem and what to do about it.
    pub fn add_hint(
        &mut self,
        code: &'static str,
        at: Range<usize>,
        what: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.found.push(Finding { code, at, what: what.into(), hint: Some(hint.into()) });
    }

    /// These bytes are never shown.
    pub fn hide(&mut self, at: Range<usize>) {
        self.secrets.push(at);
    }

    /// The file could not be understood, so nobody knows which parts are secret: whatever looks
    /// like a secret is hidden.
    pub fn guess_secrets(&mut self) {
        self.guess_secrets = true;
    }

    /// True when nothing was found.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// True where any problem lies within `at`.
    pub fn has_any(&self, at: &Range<usize>) -> bool {
        self.found.iter().any(|found| at.start <= found.at.start && found.at.start < at.end.max(1))
    }

    /// True where a problem with this code lies within `at`.
    pub fn has(&self, code: &str, at: &Range<usize>) -> bool {
        self.found.iter().any(|found| {
            found.code == code && at.start <= found.at.start && found.at.start < at.end.max(1)
        })
    }

    /// Everything found, by place, as warnings.
    pub fn into_warnings(self, source: &SourceText) -> Vec<Problem> {
        let problems = self.into_problems(source).into_iter();
        problems.map(|problem| Problem { severity: WARNING, ..problem }).collect()
    }

    /// Everything found, by place.
    pub fn into_problems(mut self, source: &SourceText) -> Vec<Problem> {
        self.found
            .sort_by(|a, b| (a.at.start, a.code, &a.what).cmp(&(b.at.start, b.code, &b.what)));
        let mut problems = Vec::with_capacity(self.found.len());
        for found in self.found {
            let (line, column) = source.place(found.at.start);
            let shown = source.render(&found.at, &self.secrets, self.guess_secrets);
            problems.push(Problem {
                severity: ERROR,
                code: found.code,
                file: source.file().to_owned(),
                line,
                column,
                len: shown.len,
                what: told(&found.what),
                text: shown.text,
                hint: found.hint.as_deref().map(told),
                mark: shown.mark,
            });
        }
        // One value reached through several aliases would be reported several times.
        problems.dedup();
        problems
    }
}
