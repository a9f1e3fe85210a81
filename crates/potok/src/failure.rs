//! Why a command failed, in the house form:
//!
//! ```text
//! error[P0142]: what happened
//!   cause: what lies below it
//!   hint:  what to do
//! ```

use std::fmt::Write as _;
use std::io::{self, Write as _};

use potok_config::{Problem, Problems};
use potok_core::Fault;
use serde::Deserialize;

use crate::terminal::{self, Colours};

/// The command did not do what was asked.
pub const FAILED: u8 = 1;
/// The command line or a file is wrong.
pub const USAGE: u8 = 2;

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: u8,
    errors: Vec<Error>,
    /// Problems of files, which print themselves with their place.
    problems: Vec<Problem>,
}

#[derive(Debug, Default, Deserialize)]
struct Error {
    #[serde(default)]
    code: String,
    what: String,
    cause: Option<String>,
    hint: Option<String>,
}

impl Failure {
    /// The command failed.
    pub fn new(code: &str, what: impl Into<String>) -> Self {
        let error = Error { code: code.to_owned(), what: what.into(), ..Error::default() };
        Failure { exit: FAILED, errors: vec![error], problems: Vec::new() }
    }

    /// The command line is wrong.
    pub fn usage(what: impl Into<String>) -> Self {
        Failure::new("P0501", what).of_usage()
    }

    /// The same, as a mistake on the command line.
    pub fn of_usage(self) -> Self {
        Failure { exit: USAGE, ..self }
    }

    /// Several faults at once, of the configuration.
    pub fn faults(faults: Vec<Fault>) -> Self {
        let errors = faults.into_iter().map(Error::from).collect();
        Failure { exit: USAGE, errors, problems: Vec::new() }
    }

    /// Files are wrong.
    pub fn problems(problems: impl IntoIterator<Item = Problem>) -> Self {
        Failure { exit: USAGE, errors: Vec::new(), problems: problems.into_iter().collect() }
    }

    /// What the admin API answered, from its JSON.
    pub fn answered(status: u16, body: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct ErrorAnswer {
            error: Error,
        }
        let error = serde_json::from_slice::<ErrorAnswer>(body).map_or_else(
            |_| Error {
                what: format!("the process answered with status {status}"),
                cause: Some(String::from_utf8_lossy(body).trim().to_owned()),
                ..Error::default()
            },
            |wrapped| wrapped.error,
        );
        let exit = if status == 400 { USAGE } else { FAILED };
        Failure { exit, errors: vec![error], problems: Vec::new() }
    }

    /// The reader of our output went away: nothing to say, nothing wrong.
    fn quiet() -> Self {
        Failure { exit: 0, errors: Vec::new(), problems: Vec::new() }
    }

    /// True where that is what happened.
    pub fn is(&self, code: &str) -> bool {
        self.errors.iter().any(|error| error.code == code)
    }

    /// What happened, in one line.
    pub fn what(&self) -> String {
        let said = |error: &Error| match &error.cause {
            Some(cause) => format!("{}: {cause}", error.what),
            None => error.what.clone(),
        };
        self.errors.iter().map(said).collect::<Vec<_>>().join("; ")
    }

    /// Adds what lies below it.
    pub fn because(mut self, cause: impl std::fmt::Display) -> Self {
        if let Some(error) = self.errors.last_mut() {
            error.cause = Some(cause.to_string());
        }
        self
    }

    /// Adds what to do, behind what is already said.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        if let Some(error) = self.errors.last_mut() {
            let hint = hint.into();
            error.hint = Some(match error.hint.take() {
                Some(before) => format!("{before}; {hint}"),
                None => hint,
            });
        }
        self
    }

    /// Says in which line of the input.
    pub fn at_line(mut self, line: u64) -> Self {
        if let Some(error) = self.errors.last_mut() {
            error.what = format!("line {line}: {}", error.what);
        }
        self
    }

    /// Joins the failures of several files.
    pub fn join(mut self, other: Failure) -> Self {
        self.errors.extend(other.errors);
        self.problems.extend(other.problems);
        self.exit = self.exit.max(other.exit);
        self
    }

    /// The problems with files, for `--json`.
    pub fn file_problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The other errors as JSON, for `--json`.
    pub fn json_errors(&self) -> impl Iterator<Item = serde_json::Value> {
        self.errors.iter().map(|error| {
            serde_json::json!({
                "code": error.code, "what": error.what, "cause": error.cause, "hint": error.hint,
            })
        })
    }

    /// How many errors there are, and where to read more.
    fn total(&self) -> Option<String> {
        let codes = self.problems.iter().map(|problem| problem.code);
        let mut codes = codes.chain(self.errors.iter().map(|error| error.code.as_str()));
        let code = codes.find(|code| potok_config::explain(code).is_some())?;
        let more = format!("`potok explain {code}` says more");
        let errors = self.problems.len() + self.errors.len();
        if self.problems.is_empty() && errors == 1 {
            return Some(format!("  more:  {more}"));
        }
        let mut files: Vec<&str> = self.problems.iter().map(|p| p.file.as_str()).collect();
        files.sort_unstable();
        files.dedup();
        let places = match files.len() {
            0 => String::new(),
            files => format!(" in {}", terminal::count(files as u64, "file")),
        };
        Some(format!("{}{places}; {more}", terminal::count(errors as u64, "error")))
    }

    /// Says it on stderr.
    pub fn print(&self) {
        let mut text = String::new();
        for problem in &self.problems {
            // Writing into a string does not fail.
            let _ = writeln!(text, "{}\n", painted(problem, terminal::on_stderr()));
        }
        for error in &self.errors {
            let code =
                if error.code.is_empty() { String::new() } else { format!("[{}]", error.code) };
            let label = terminal::on_stderr().red(&format!("error{code}:"));
            let _ = writeln!(text, "{label} {}", terminal::plain(&error.what));
            if let Some(cause) = &error.cause {
                let _ = writeln!(text, "  cause: {}", terminal::plain(cause));
            }
            if let Some(hint) = &error.hint {
                let _ = writeln!(text, "  hint:  {}", terminal::plain(hint));
            }
        }
        if let Some(total) = self.total() {
            let _ = writeln!(text, "{total}");
        }
        // With stderr gone there is nobody left to tell.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

/// A problem as it prints itself, with the important parts in colour.
pub fn painted(problem: &Problem, colours: Colours) -> String {
    let paint = |text: &str| match problem.severity {
        "warning" => colours.yellow(text),
        _ => colours.red(text),
    };
    let label = format!("{}[{}]:", problem.severity, problem.code);
    let line = |(at, line): (usize, &str)| {
        let marks = line.trim_start_matches([' ', '|']);
        if let (0, Some(rest)) = (at, line.strip_prefix(&label)) {
            format!("{}{}", paint(&label), colours.bold(rest))
        } else if !marks.is_empty() && marks.bytes().all(|b| b == b'^') {
            line.replace(marks, &paint(marks))
        } else if let Some(hint) = line.strip_prefix("  hint:") {
            format!("  {}{hint}", colours.green("hint:"))
        } else {
            line.to_owned()
        }
    };
    let text = problem.to_string();
    text.lines().enumerate().map(line).collect::<Vec<_>>().join("\n")
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        let Fault { code, what, cause, hint, .. } = fault;
        Error { code: code.to_owned(), what, cause, hint }
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Failure { exit: FAILED, errors: vec![fault.into()], problems: Vec::new() }
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        Failure::problems(problems)
    }
}

/// An error of stdout, the only stream whose errors are passed on without words of their own.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::quiet(),
            _ => Failure::new("P0521", "the output cannot be written").because(error),
        }
    }
}
