//! Input of any length, cut into lines.
//!
//! Lines are bytes; only the line break is taken off. Memory is bounded by a few pieces and one
//! line, and a line may not be longer than a record.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, sync_channel};

use potok_core::RECORD_BYTES_MAX;

/// Bytes read at once, and how many such pieces may wait.
const PIECE_BYTES: usize = 256 << 10;
const PIECES_MAX: usize = 4;

/// Where records come from.
pub type Input = Box<dyn Read + Send>;

/// Reads on a thread of its own, so that a pause of the input can be told from its end.
pub fn read_ahead(mut input: Input) -> Receiver<io::Result<Vec<u8>>> {
    let (pieces, receiver) = sync_channel(PIECES_MAX);
    std::thread::spawn(move || {
        loop {
            let mut piece = vec![0; PIECE_BYTES];
            let read = match input.read(&mut piece) {
                Ok(0) => return,
                Ok(len) => {
                    piece.truncate(len);
                    Ok(piece)
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let failed = read.is_err();
            // The receiver may have given up already, for a reason of its own.
            if pieces.send(read).is_err() || failed {
                return;
            }
        }
    });
    receiver
}

/// Cuts pieces into lines, across their borders.
#[derive(Debug, Default)]
pub struct Lines {
    /// Lines seen so far, empty ones included.
    pub count: u64,
    rest: Vec<u8>,
}

/// The line under way is longer than a record may be.
#[derive(Debug)]
pub struct TooLong;

impl Lines {
    /// Hands every line that ends in `piece` to `visit`, with its number from 1 on.
    pub fn feed<E: From<TooLong>>(
        &mut self,
        piece: &[u8],
        mut visit: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut parts = piece.split(|&byte| byte == b'\n');
        let mut part = parts.next().unwrap_or_default();
        for next in parts {
            self.count += 1;
            if self.rest.is_empty() {
                visit(self.count, part)?;
            } else {
                self.rest.extend_from_slice(part);
                visit(self.count, &self.rest)?;
                self.rest.clear();
            }
            part = next;
        }
        self.rest.extend_from_slice(part);
        if self.rest.len() > RECORD_BYTES_MAX { Err(TooLong.into()) } else { Ok(()) }
    }

    /// The last line, where it has no line break.
    pub fn finish<E>(self, visit: impl FnOnce(u64, &[u8]) -> Result<(), E>) -> Result<(), E> {
        if self.rest.is_empty() { Ok(()) } else { visit(self.count + 1, &self.rest) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    impl From<TooLong> for String {
        fn from(_: TooLong) -> Self {
            "too long".to_owned()
        }
    }

    fn cut(pieces: &[&[u8]]) -> Vec<(u64, Vec<u8>)> {
        let (mut lines, mut seen) = (Lines::default(), Vec::new());
        let mut visit = |number, line: &[u8]| -> Result<(), String> {
            seen.push((number, line.to_vec()));
            Ok(())
        };
        for piece in pieces {
            lines.feed(piece, &mut visit).unwrap();
        }
        lines.finish(&mut visit).unwrap();
        seen
    }

    #[test]
    fn lines_are_the_same_wherever_the_pieces_end() {
        let text = b"one\n\ntwo\r\n\xff\0three\n\nlast";
        let whole = cut(&[text]);
        let values: Vec<&[u8]> = whole.iter().map(|(_, line)| line.as_slice()).collect();
        assert_eq!(values, [&b"one"[..], b"", b"two\r", b"\xff\0three", b"", b"last"]);
        assert_eq!(whole.last().map(|(number, _)| *number), Some(6));
        for first in 0..text.len() {
            for second in first..text.len() {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(cut(&pieces), whole, "cut at {first} and {second}");
            }
        }
        assert_eq!(cut(&[b"ends\n"]), [(1, b"ends".to_vec())]);
        assert_eq!(cut(&[b""]), []);
    }

    #[test]
    fn a_line_without_end_is_refused_before_it_fills_memory() {
        let (mut lines, piece) = (Lines::default(), vec![b'a'; 1 << 20]);
        let fed = (0..65).find_map(|_| lines.feed(&piece, |_, _| Err("a line".to_owned())).err());
        assert_eq!(fed.as_deref(), Some("too long"));
    }

    #[test]
    fn any_input_comes_out_as_it_went_in() {
        let corpus = potok_fuzz::Corpus::read(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/lines"));
        let mut chance = potok_fuzz::Chance::new(potok_fuzz::seed());
        corpus.fuzz(5_000, |input| {
            let middle = chance.below(input.len() + 1);
            let (left, right) = input.split_at(middle);
            let lines = cut(&[left, right]);
            let mut again: Vec<u8> =
                lines.iter().map(|(_, line)| line.as_slice()).collect::<Vec<_>>().join(&b'\n');
            if input.last() == Some(&b'\n') {
                again.push(b'\n');
            }
            assert_eq!(again, input, "cut at {middle}");
            let numbers: Vec<u64> = lines.iter().map(|(number, _)| *number).collect();
            assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "{numbers:?}");
        });
    }
}
