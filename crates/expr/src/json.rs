//! JSON, checked whole and read in place.
//!
//! [`Parser::parse`] goes over the bytes once and leaves a tape: one small entry per value, no
//! tree, no copies. [`Node`] is a place in that tape; it walks from sibling to sibling and reads
//! strings and numbers from the source when asked.
//!
//! Stricter than RFC 8259 demands, because two readers must never disagree about a record:
//! duplicate keys in one object, lone surrogates, numbers too large for `f64` and nesting deeper
//! than [`DEPTH_MAX`] are refused. Not here: writing JSON, and changing it.
//!
//! Tape layout. Each value is one [`TapeToken`] of two words; its kind is the source byte at `start`.
//!
//! ```text
//! scalar, key   start: first byte   link: byte behind the last, high bit set where a string has escapes
//! [ or {        start: the bracket  link: index of the closing token
//! ] or }        start: the bracket  link: index of the opening token
//! object        {  key value  key value  …  }
//! ```

mod node;
mod parser;
#[cfg(test)]
mod tests;

pub use node::{Kind, Node};
pub use parser::Parser;

/// The deepest nesting accepted.
pub const DEPTH_MAX: usize = 128;

/// Inputs must be shorter than this, so that offsets and the escape mark share a word.
const BYTES_MAX: usize = 1 << 31;
const ESCAPED: u32 = 1 << 31;

/// Why bytes are not the JSON we accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} (byte {at})")]
pub struct JsonError {
    /// Offset of the offending byte; the length of the input where it ends too early.
    pub at: usize,
    /// What is wrong there.
    pub message: String,
}

#[derive(Clone, Copy, Debug)]
struct TapeToken {
    start: u32,
    link: u32,
}
