//! A look at VRL source before VRL sees it.
//!
//! VRL compiles and runs by recursion, so a text that nests deeply enough would overflow the
//! stack and take the process with it. Calls are worse: each level asks for the types of its
//! arguments several times, so the time to compile multiplies from level to level. This counts,
//! without parsing, how deep the syntax tree can become at most, and refuses what is deeper than
//! the programs people write. It never says that a program is right: that is the compiler's part.

use crate::ExprError;

/// The longest source accepted.
pub(crate) const SOURCE_BYTES_MAX: usize = 64 * 1024;
/// The deepest tree accepted, in steps. A path segment, a literal, a keyword or a `!` costs one.
const STEPS_MAX: usize = 640;
/// A chain of operators costs more: the time to compile it grows with the cube of its length.
const STEPS_PER_OPERATOR: usize = 2;
/// Each level of brackets takes several calls to compile and to run.
const STEPS_PER_BRACKET: usize = 10;
/// The arguments of a call, or the block of a closure, cost most: ten levels are the limit.
const STEPS_PER_CALL: usize = 63;

pub(crate) fn check(source: &str) -> Result<(), ExprError> {
    if source.len() > SOURCE_BYTES_MAX {
        let message = format!("a program may have at most {SOURCE_BYTES_MAX} bytes");
        return Err(ExprError::new(0, source.len(), message));
    }
    let mut depth = Depth::default();
    let mut tokens = Tokens { bytes: source.as_bytes(), at: 0 };
    let mut goes_on = true;
    while let Some((at, token)) = tokens.next() {
        match token {
            NestingToken::Open => depth.open(STEPS_PER_BRACKET),
            NestingToken::OpenCall => depth.open(STEPS_PER_CALL),
            NestingToken::Close => depth.close(),
            NestingToken::Operator => depth.here += STEPS_PER_OPERATOR,
            NestingToken::Prefix | NestingToken::Keyword | NestingToken::Text => depth.here += 1,
            NestingToken::Separator => depth.here = 0,
            // A line ends the expression, unless it ends in something that wants an operand.
            NestingToken::Newline if !goes_on => depth.here = 0,
            NestingToken::Newline => continue,
            NestingToken::Word => {}
        }
        goes_on = matches!(
            token,
            NestingToken::Open
                | NestingToken::OpenCall
                | NestingToken::Operator
                | NestingToken::Prefix
                | NestingToken::Keyword
        );
        if depth.outer + depth.here > STEPS_MAX {
            return Err(ExprError::new(at, 1, "the program is nested too deeply here"));
        }
    }
    Ok(())
}

/// Steps on the way from the root to where we are.
#[derive(Default)]
struct Depth {
    /// For each open bracket the steps outside it, and those inside the bracket around it.
    enclosing: Vec<(usize, usize)>,
    outer: usize,
    here: usize,
}

impl Depth {
    fn open(&mut self, cost: usize) {
        self.enclosing.push((self.outer, self.here));
        self.outer += self.here + cost;
        self.here = 0;
    }

    fn close(&mut self) {
        if let Some((outer, here)) = self.enclosing.pop() {
            self.outer = outer;
            // The closed group is an operand, or an index in a path: one step more.
            self.here = here + 1;
        }
    }
}

#[derive(Clone, Copy)]
enum NestingToken {
    Open,
    OpenCall,
    Close,
    Operator,
    Prefix,
    Keyword,
    Text,
    Word,
    Separator,
    Newline,
}

struct Tokens<'s> {
    bytes: &'s [u8],
    at: usize,
}

impl Tokens<'_> {
    fn next(&mut self) -> Option<(usize, NestingToken)> {
        loop {
            let start = self.at;
            let byte = *self.bytes.get(start)?;
            self.at += 1;
            let token = match byte {
                b' ' | b'\t' | b'\r' => continue,
                b'#' => {
                    self.skip_while(|b| b != b'\n');
                    continue;
                }
                b'\n' => NestingToken::Newline,
                b'(' if self.before(start).is_some_and(|b| is_word(b) || b == b'!') => {
                    NestingToken::OpenCall
                }
                b'{' if self.before(start) == Some(b'|') => NestingToken::OpenCall,
                b'(' | b'[' | b'{' => NestingToken::Open,
                b')' | b']' | b'}' => NestingToken::Close,
                b',' | b';' => NestingToken::Separator,
                b'"' => self.text(b'"'),
                b'r' | b's' | b't' if self.bytes.get(self.at) == Some(&b'\'') => {
                    self.at += 1;
                    self.text(b'\'')
                }
                b if is_word(b) => {
                    self.skip_while(is_word);
                    match self.bytes.get(start..self.at) {
                        Some(b"if" | b"else" | b"return" | b"abort") => NestingToken::Keyword,
                        _ => NestingToken::Word,
                    }
                }
                b if is_symbol(b) => {
                    self.skip_while(is_symbol);
                    NestingToken::Operator
                }
                // What can be heaped up, like `!` and `.`, counts one by one.
                _ => NestingToken::Prefix,
            };
            return Some((start, token));
        }
    }

    /// The last byte before `at` that is no blank.
    fn before(&self, at: usize) -> Option<u8> {
        self.bytes.get(..at)?.iter().rev().find(|b| !b.is_ascii_whitespace()).copied()
    }

    fn skip_while(&mut self, belongs: impl Fn(u8) -> bool) {
        while self.bytes.get(self.at).is_some_and(|&b| belongs(b)) {
            self.at += 1;
        }
    }

    /// The rest of a literal up to its closing quote.
    fn text(&mut self, quote: u8) -> NestingToken {
        while let Some(&byte) = self.bytes.get(self.at) {
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == quote {
                break;
            }
        }
        NestingToken::Text
    }
}

fn is_symbol(byte: u8) -> bool {
    matches!(byte, b'=' | b'<' | b'>' | b'|' | b'&' | b'?' | b'+' | b'-' | b'*' | b'/')
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'@' || byte >= 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_programs_are_refused() {
        let many = |part: &str| part.repeat(5_000);
        for (name, source) in [
            ("parentheses", many("(")),
            ("arrays", many("[")),
            ("blocks", many("{ ")),
            ("sums", format!("1{}", many(" + 1"))),
            ("sums over lines", format!("1{}", many(" +\n1"))),
            ("nots", format!("{}true", many("!"))),
            ("paths", many(".a")),
            ("quoted paths", many("\"a\"")),
            ("indexes", format!(".a{}", many("[0]"))),
            ("else", format!("if a {{ b }}{}", many(" else if a { b }"))),
            ("returns", many("return ")),
            ("mixed", many("a + f(1, ")),
            ("calls", "f(".repeat(11)),
            ("calls that may fail", "f!(".repeat(11)),
            ("closures", "f(1) -> |a, b| {\n".repeat(11)),
        ] {
            assert!(check(&source).is_err(), "{name}");
        }
        assert!(check(&" ".repeat(SOURCE_BYTES_MAX)).is_ok());
        assert!(check(&" ".repeat(SOURCE_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn long_but_flat_programs_pass() {
        for (name, source) in [
            ("statements", ".a = 1 + 2\n".repeat(2_000)),
            ("semicolons", ".a = -1; ".repeat(2_000)),
            ("elements", format!("[{}]", "-1.5, ".repeat(2_000))),
            ("brackets inside literals", "s'((((' r'[[[[' \"((((\" # ((((\n".repeat(1_000)),
            ("alternatives", format!(".a == \"x\"{}", " ||\n.a == \"x\"".repeat(100))),
            ("nested calls", "f(".repeat(10)),
            ("calls", "for_each([1]) -> |_i, v| { log(v) }\n".repeat(500)),
        ] {
            assert_eq!(check(&source), Ok(()), "{name}");
        }
    }
}
