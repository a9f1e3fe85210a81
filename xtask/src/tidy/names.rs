//! Names of types: one meaning for each name of a crate, and a noun. Doc comments that only repeat
//! the name below them.

use std::collections::BTreeMap;
use std::path::Path;

use super::Files;

/// Participles, pronouns and question words: they do not say what a type is.
const NO_NOUNS: [&str; 28] = [
    "Said", "Found", "Taken", "Made", "Where", "Which", "What", "Who", "How", "Wish", "There",
    "Ran", "Heard", "Left", "Live", "Lot", "Lots", "Strays", "Told", "Asked", "Way", "Place",
    "Thing", "Stuff", "Seen", "Shown", "Wanted", "Kept",
];

/// Words of a doc comment that add nothing to the name below it.
const FILLERS: [&str; 13] =
    ["the", "a", "an", "its", "of", "this", "that", "which", "does", "it", "now", "done", "them"];

/// What declares a type.
const DECLARES: [&str; 4] = ["struct", "enum", "trait", "type"];

/// The sources of a crate are one scope, and each test program is one.
pub fn types(files: &Files, problems: &mut Vec<String>) {
    let mut known: BTreeMap<(String, String), String> = BTreeMap::new();
    for (path, text) in files.rust() {
        for (line, name) in declared_types(text) {
            let here = format!("{}:{line}", path.display());
            if NO_NOUNS.contains(&name.as_str()) {
                problems.push(format!("{here}: `{name}` does not say what the type is"));
            }
            let scope = scope_of(path);
            if let Some(first) = known.get(&(scope.clone(), name.clone())) {
                problems.push(format!("{here}: `{name}` is the name of another type: {first}"));
            } else {
                known.insert((scope, name), here);
            }
        }
    }
}

/// A doc comment says more than the name of what it is about.
pub fn doc_comments(files: &Files, problems: &mut Vec<String>) {
    for (path, text) in files.rust() {
        for (line, comment) in empty_comments(text) {
            let shown = path.display();
            problems.push(format!("{shown}:{line}: `{comment}` says nothing; what is it for?"));
        }
    }
}

/// The folder whose files must not declare a name twice: `src` of a crate, or its test program.
fn scope_of(path: &Path) -> String {
    let parts: Vec<_> = path.components().map(|part| part.as_os_str().to_string_lossy()).collect();
    let folder = parts.len().saturating_sub(1);
    let length = match parts.iter().position(|part| part == "src" || part == "tests") {
        Some(at) if parts[at] == "src" => at + 1,
        Some(at) => at + 2,
        None => folder,
    };
    parts[..length].join("/")
}

/// The types a file declares, each with its line. Types that belong to a trait or its
/// implementations are not names of their own.
fn declared_types(text: &str) -> Vec<(usize, String)> {
    let mut types = Vec::new();
    // What each open brace belongs to: true where it is a trait or an implementation.
    let mut open = Vec::new();
    let mut next_is_trait = false;
    let mut last = String::new();
    for (line, word) in words(text) {
        match word.as_str() {
            "{" => open.push(std::mem::take(&mut next_is_trait)),
            "}" => drop(open.pop()),
            ";" => next_is_trait = false,
            // `impl` within a signature is a type, not an implementation.
            "impl" if starts_item(&last) => next_is_trait = true,
            name if DECLARES.contains(&last.as_str()) && is_name(name) => {
                let associated = last == "type" && open.last() == Some(&true);
                if !associated {
                    types.push((line, name.to_owned()));
                }
                next_is_trait = last == "trait";
            }
            _ => {}
        }
        last = word;
    }
    types
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase())
}

/// True where an item may begin behind this word.
fn starts_item(last: &str) -> bool {
    matches!(last, "" | ";" | "{" | "}" | "]" | "unsafe")
}

/// The words and signs of a source, without comments and literals, each with its line from 1.
pub fn words(text: &str) -> Vec<(usize, String)> {
    let mut words = Vec::new();
    let mut line = 1;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = literal(rest) {
            length
        } else if first.is_ascii_alphanumeric() || first == '_' {
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            words.push((line, rest[..length].to_owned()));
            length
        } else {
            if !first.is_whitespace() {
                words.push((line, first.to_string()));
            }
            first.len_utf8()
        };
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    words
}

/// The length of the text or character literal that `rest` begins with, if it begins with one.
fn literal(rest: &str) -> Option<usize> {
    let text = rest.trim_start_matches(['b', 'c']);
    let prefix = rest.len() - text.len();
    if let Some(raw) = text.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let body = prefix + 1 + hashes + 1;
            return Some(rest[body..].find(&end).map_or(rest.len(), |at| body + at + end.len()));
        }
    }
    if prefix > 1 {
        return None;
    }
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        // A lifetime is a quote that nothing closes.
        if quote == '\'' && at > 1 && c != '\'' && text.as_bytes()[1] != b'\\' {
            let second = text[1..].chars().next()?;
            if at > second.len_utf8() {
                return None;
            }
        }
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(prefix + at + 1),
            _ => {}
        }
    }
    None
}

/// Doc comments of one line that repeat the name below, each with its line.
fn empty_comments(text: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut empty = Vec::new();
    for (index, comment) in lines.iter().enumerate() {
        let Some(said) = comment.strip_prefix("/// ") else { continue };
        let is_doc = |line: Option<&&str>| line.is_some_and(|line| line.starts_with("///"));
        let alone = !is_doc(lines.get(index + 1))
            && !is_doc(index.checked_sub(1).and_then(|before| lines.get(before)));
        // Help of the command line has no full stop; a sign or a number is an example.
        let plain = |c: char| c.is_ascii_alphabetic() || " .".contains(c);
        if !alone || !said.ends_with('.') || !said.chars().all(plain) {
            continue;
        }
        let below = lines[index + 1..].iter().find(|line| !line.starts_with("#["));
        let comment_words = without_fillers(said.split(['.', ' ']).map(str::to_lowercase));
        let name_words = without_fillers(name_words(below.unwrap_or(&"")).into_iter());
        if comment_words.is_empty() || comment_words == name_words {
            empty.push((index + 1, (*comment).to_owned()));
        }
    }
    empty
}

fn without_fillers(words: impl Iterator<Item = String>) -> Vec<String> {
    words.filter(|word| !word.is_empty() && !FILLERS.contains(&word.as_str())).collect()
}

/// The words of the name that a line declares: `pub fn next_order(…` gives `next`, `order`.
fn name_words(line: &str) -> Vec<String> {
    let keywords = ["async", "const", "unsafe", "fn", "static", "mod", "struct", "enum", "trait"];
    let name = line
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .find(|word| {
            !word.is_empty()
                && !matches!(*word, "pub" | "crate" | "super" | "in" | "type")
                && !keywords.contains(word)
        })
        .unwrap_or_default();
    let mut words = vec![String::new()];
    let mut small = false;
    for c in name.chars() {
        if c == '_' || (c.is_ascii_uppercase() && small) {
            words.push(String::new());
        }
        small = c.is_ascii_lowercase();
        if let (Some(word), true) = (words.last_mut(), c != '_') {
            word.extend(c.to_lowercase());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        declared_types(text).into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn types_are_found_wherever_they_are_declared() {
        let text = "pub struct A<'a>(&'a str);\npub(crate) enum B { C, D }\ntrait E { type F; }\n\
                    type G = u8;\nfn f() { struct H; }\nmod tests { type I = u8; }";
        assert_eq!(names(text), ["A", "B", "E", "G", "H", "I"]);
    }

    #[test]
    fn types_of_implementations_do_not_count() {
        let text = "impl<T> X for Y<T> where T: Z { type Error = u8; fn f() { struct H; } }\n\
                    fn f() -> impl X { type Local = u8; }";
        assert_eq!(names(text), ["H", "Local"]);
    }

    #[test]
    fn comments_and_literals_declare_nothing() {
        let text = "// struct A\n/* enum B */ const X: &str = \"struct C\\\" {\"; \
                    const Y: char = '\"'; const Z: char = '{'; const Q: u8 = b'\\''; \
                    const R: &str = r#\"enum D \" {\"#; struct E;";
        assert_eq!(names(text), ["E"]);
        assert_eq!(declared_types("\n// a\nstruct A;"), [(3, "A".to_owned())]);
    }

    #[test]
    fn a_scope_is_a_crate_or_a_test_program() {
        for (path, scope) in [
            ("crates/flow/src/lane.rs", "crates/flow/src"),
            ("crates/flow/src/group/mod.rs", "crates/flow/src"),
            ("crates/flow/tests/engine.rs", "crates/flow/tests/engine.rs"),
            ("crates/hub/tests/copies/lines.rs", "crates/hub/tests/copies"),
            ("xtask/template/mod.rs", "xtask/template"),
        ] {
            assert_eq!(scope_of(Path::new(path)), scope);
        }
    }

    #[test]
    fn comments_that_repeat_the_name_are_found() {
        let empty = |text| !empty_comments(text).is_empty();
        assert!(empty("/// Does it.\npub fn run(self) {}"));
        assert!(empty("/// The topic.\npub topic: String,"));
        assert!(empty("/// The next order.\n#[must_use]\npub fn next_order(&self) {}"));
        assert!(empty("/// A held record.\npub(crate) struct HeldRecord {"));
        assert!(!empty("/// The topic, empty for all.\npub topic: String,"));
        assert!(!empty("/// The topic.\n/// Empty for all.\npub topic: String,"));
        assert!(!empty("/// The topic\ntopic: String,"));
        assert!(!empty("/// Where it lies.\npub offset: u64,"));
    }
}
