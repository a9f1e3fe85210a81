//! What VRL says, in words of the person who wrote the program: where, what is wrong, and every way out.
//!
//! VRL spreads its advice over labels and notes meant to be drawn around the source. Here they become
//! one sentence and one hint, without the part that repeats the source or links to pages, without
//! guesses that are far off, and without errors that only follow from another one.

use vrl::compiler::{ExpressionError, Function};
use vrl::diagnostic::{Diagnostic, DiagnosticList, Label, Note};

use crate::ExprError;

/// Codes of VRL's diagnostics, as its documentation has them.
mod code {
    pub const FALLIBLE_EXPRESSION: usize = 100;
    pub const FALLIBLE_ASSIGNMENT: usize = 103;
    pub const UNDEFINED_FUNCTION: usize = 105;
    pub const FALLIBLE_ARGUMENT: usize = 630;
    pub const UNDEFINED_VARIABLE: usize = 701;
}

/// Longer parts of a program are not repeated in a hint.
const REPEATED_BYTES_MAX: usize = 60;

/// Everything that is wrong with a program, causes only.
pub(super) fn refusals(
    source: &str,
    problems: &DiagnosticList,
    functions: &[Box<dyn Function>],
) -> Vec<ExprError> {
    let problems: Vec<&Diagnostic> =
        problems.iter().filter(|problem| problem.is_problem()).collect();
    let is_cause = |problem: &&&Diagnostic| !follows(source, problem, &problems);
    let causes = problems.iter().filter(is_cause);
    causes.map(|problem| refusal(source, problem, functions)).collect()
}

/// True for an error that is gone with another one: the failure of a call that does not exist, the
/// variable that was to hold its result.
fn follows(source: &str, problem: &Diagnostic, all: &[&Diagnostic]) -> bool {
    let at = place(source, problem);
    let others = || all.iter().filter(|other| !std::ptr::eq(**other, problem));
    match problem.code {
        code::FALLIBLE_EXPRESSION => others().any(|other| {
            let inner = place(source, other);
            other.code != code::FALLIBLE_EXPRESSION && at.0 <= inner.0 && inner.1 <= at.1
        }),
        code::UNDEFINED_VARIABLE => {
            let name = source.get(at.0..at.1).unwrap_or_default();
            let is_set = |line: &str| {
                let rest = line.trim_start().strip_prefix(name);
                rest.is_some_and(|rest| rest.trim_start().starts_with(['=', ',']))
            };
            !name.is_empty()
                && source.get(..at.0).is_some_and(|before| before.lines().any(is_set))
                && others().any(|other| other.code != code::UNDEFINED_VARIABLE)
        }
        _ => false,
    }
}

fn place(source: &str, problem: &Diagnostic) -> (usize, usize) {
    let label = problem.labels.iter().find(|label| label.primary).or(problem.labels.first());
    label.map_or((0, source.len()), |label| {
        (label.span.start().min(source.len()), label.span.end().min(source.len()))
    })
}

fn refusal(source: &str, problem: &Diagnostic, functions: &[Box<dyn Function>]) -> ExprError {
    let (start, end) = place(source, problem);
    let text = source.get(start..end).unwrap_or_default();
    let (message, hint) = match problem.code {
        code::FALLIBLE_EXPRESSION | code::FALLIBLE_ARGUMENT => {
            let message = format!("{}: this can fail, and nothing says what then", problem.message);
            (message, ways_out("", text))
        }
        code::FALLIBLE_ASSIGNMENT => {
            let message = format!("{}: this can fail, and nothing says what then", problem.message);
            (message, ways_out(target(source, start), text))
        }
        code::UNDEFINED_FUNCTION => {
            let names = functions.iter().map(|function| function.identifier());
            let hint = match nearest(text, names.filter(|name| !name.contains(' '))) {
                Some(name) => format!("did you mean `{name}`?"),
                None => "the functions of VRL are listed at https://vector.dev/docs/reference/vrl/functions".to_owned(),
            };
            (format!("{} `{text}`", problem.message), hint)
        }
        _ => said(source, problem),
    };
    let hint = Some(hint).filter(|hint| !hint.is_empty());
    ExprError { at: start, len: end.saturating_sub(start), message, hint }
}

/// What the expression that begins there is assigned to.
fn target(source: &str, start: usize) -> &str {
    let before = source.get(..start).unwrap_or_default();
    let from = before.rfind(['\n', ';', '{']).map_or(0, |at| at + 1);
    let target = before.get(from..).unwrap_or_default().trim();
    target.strip_suffix('=').unwrap_or_default().trim_end_matches('|').trim_end()
}

/// Every way to say what happens when an expression fails.
fn ways_out(target: &str, text: &str) -> String {
    let assign = if target.is_empty() { String::new() } else { format!("{target} = ") };
    let short = text.len() <= REPEATED_BYTES_MAX && !text.contains('\n');
    let called = text.split_once('(').map(|(name, _)| name).filter(|name| is_name(name));
    let mut ways = Vec::new();
    if let Some(name) = called {
        let rest = if short { text.get(name.len()..).unwrap_or_default() } else { "(…)" };
        ways.push(format!("`{assign}{name}!{rest}` to let the record fail"));
        let call = if short { text.to_owned() } else { format!("{name}(…)") };
        ways.push(format!("`{assign}{call} ?? {}` to go on with a default", default_of(name)));
    } else {
        let is_text = text.contains('"');
        if short && let Some(sure) = sure_of_types(text, is_text) {
            ways.push(format!("`{assign}{sure}` to let the record fail"));
        }
        let whole = if short { text } else { "…" };
        let default = if is_text { "\"\"" } else { "0" };
        ways.push(format!("`{assign}({whole}) ?? {default}` to go on with a default"));
    }
    if !target.is_empty() {
        let whole = if short { text } else { "…" };
        ways.push(format!("`{target}, err = {whole}` to look at the error"));
    }
    ways.join(", or ")
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// What one would probably go on with.
fn default_of(function: &str) -> &'static str {
    match function {
        "to_int" | "int" | "parse_int" | "length" | "abs" | "ceil" | "floor" | "round" | "mod" => {
            "0"
        }
        "to_float" | "float" | "parse_float" => "0.0",
        "to_bool" | "bool" | "contains" | "starts_with" | "ends_with" | "match" | "includes" => {
            "false"
        }
        "to_string" | "string" | "upcase" | "downcase" | "trim" | "strip_whitespace"
        | "replace" | "slice" | "join" | "truncate" | "encode_base64" | "decode_base64" => "\"\"",
        "split" | "array" | "push" | "append" => "[]",
        "object" | "merge" => "{}",
        _ => "null",
    }
}

/// The same expression with every path of it made a number, or a text.
fn sure_of_types(text: &str, is_text: bool) -> Option<String> {
    let function = if is_text { "string!" } else { "to_float!" };
    let (mut sure, mut rest, mut any) = (String::new(), text, false);
    while let Some(at) = rest.find(['.', '"']) {
        let (before, from) = rest.split_at(at);
        sure.push_str(before);
        // A literal is copied as it is; so is the point of a number.
        if from.starts_with('"') {
            let end = from.get(1..)?.find('"')? + 2;
            sure.push_str(from.get(..end)?);
            rest = from.get(end..)?;
            continue;
        }
        let is_path =
            !before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == ')' || c == ']');
        let len = from.find(|c: char| !(c.is_ascii_alphanumeric() || "._[]@".contains(c)));
        let (path, behind) = from.split_at(len.unwrap_or(from.len()));
        any |= is_path;
        sure.push_str(&if is_path { format!("{function}({path})") } else { path.to_owned() });
        rest = behind;
    }
    sure.push_str(rest);
    any.then_some(sure)
}

/// The message with what stands at the place itself, and the rest as a hint.
fn said(source: &str, problem: &Diagnostic) -> (String, String) {
    let mut message = problem.message.clone();
    let mut hints: Vec<String> = Vec::new();
    let (start, end) = place(source, problem);
    let text = source.get(start..end).unwrap_or_default();
    for Label { message: label, primary, .. } in &problem.labels {
        let guess = label.strip_prefix("did you mean \"").and_then(|rest| rest.strip_suffix("\"?"));
        match guess {
            Some(guess) if is_near(text, guess) => hints.push(format!("did you mean `{guess}`?")),
            Some(_) => {}
            None if label.is_empty() || message.contains(label.as_str()) => {}
            None if *primary => message.push_str(&format!(": {label}")),
            None => hints.push(label.clone()),
        }
    }
    if text == "%" {
        hints.push("VRL has no `%` operator; the remainder is `mod(a, b)`".to_owned());
    }
    for note in &problem.notes {
        // The others are links to VRL's pages, the same under every message.
        let (Note::Hint(line)
        | Note::Example(line)
        | Note::Basic(line)
        | Note::UserErrorMessage(line)) = note
        else {
            continue;
        };
        let line = line.trim_end();
        match (line.strip_prefix("try: "), line.strip_prefix("    "), hints.last_mut()) {
            (Some(title), ..) => hints.push(format!("{title}:")),
            (None, Some(code), Some(last)) => last.push_str(&format!(" `{code}`")),
            (None, ..) if line.trim().is_empty() => {}
            (None, ..) => hints.push(line.trim().to_owned()),
        }
    }
    (message, hints.join("; "))
}

fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.map(|known| (strsim::damerau_levenshtein(word, known), known));
    let (_, nearest) = scored.min_by_key(|(distance, _)| *distance)?;
    is_near(word, nearest).then_some(nearest)
}

/// Close enough to be a slip of the keyboard.
fn is_near(word: &str, known: &str) -> bool {
    let word: String = word.chars().take(64).collect();
    strsim::damerau_levenshtein(&word, known) <= word.chars().count().div_ceil(4)
}

/// What went wrong in a run, and the byte of the program at which, where VRL knows.
pub(super) fn failure(source: &str, error: &ExpressionError) -> (String, Option<usize>) {
    let ExpressionError::Error { message, labels, .. } = error else {
        return (error.to_string(), None);
    };
    // The first call that the error came out of said what it was; those around only repeat it.
    let Some(label) = labels.first() else { return (message.clone(), None) };
    let start = label.span.start().min(source.len());
    let call = source.get(start..label.span.end().min(source.len())).unwrap_or_default();
    let name = call.split_once('(').map(|(name, _)| name.trim_end_matches('!'));
    let what = match name.filter(|name| is_name(name)) {
        Some(name) => format!("`{name}` failed: {}", label.message),
        None => label.message.clone(),
    };
    (what, Some(start))
}
