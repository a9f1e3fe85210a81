//! Buffers that files are read into, used again when the last record in them is gone.
//!
//! Fresh memory has to be cleared by the kernel page by page, which costs more than reading a
//! cached file into it. A few buffers are kept; however many readers there are, they hold no more
//! than that when nobody holds a record.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::disk::DiskFile;

/// How much is read at once.
pub const BLOCK_BYTES: usize = 1 << 20;
/// How many buffers wait to be used again.
const FREE_MAX: usize = 4;

/// Buffers of [`BLOCK_BYTES`] that are free now.
#[derive(Debug, Default)]
pub struct Blocks(Mutex<Vec<Box<[u8]>>>);

/// A buffer in use.
struct Block {
    buffer: Box<[u8]>,
    len: usize,
    home: Arc<Blocks>,
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self.buffer.get(..self.len).unwrap_or_default()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        let mut free = self.home.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.len() == BLOCK_BYTES && free.len() < FREE_MAX {
            free.push(buffer);
        }
    }
}

impl Blocks {
    /// Reads `len` bytes of the file, or as many as there are.
    pub fn read(self: &Arc<Self>, file: &dyn DiskFile, at: u64, len: usize) -> io::Result<Bytes> {
        let mut buffer = self.take(len);
        let wanted = buffer.get_mut(..len).ok_or(io::ErrorKind::InvalidInput)?;
        let len = file.read_at(wanted, at)?;
        Ok(Bytes::from_owner(Block { buffer, len, home: self.clone() }))
    }

    /// A buffer of at least `len` bytes. What is short gets one of its own size: the end of a file
    /// that is read with every new record must not cost a whole block each time.
    fn take(&self, len: usize) -> Box<[u8]> {
        let is_common = (BLOCK_BYTES / 4..=BLOCK_BYTES).contains(&len);
        let free = || self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let fresh = || vec![0; if is_common { BLOCK_BYTES } else { len }].into_boxed_slice();
        is_common.then(free).flatten().unwrap_or_else(fresh)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::disk::{Disk, RealDisk, write_all};
    use super::*;

    #[test]
    fn a_buffer_comes_back_when_its_last_slice_goes() {
        let folder = tempfile::tempdir().unwrap();
        let file = RealDisk.create(&folder.path().join("file")).unwrap();
        let content: Vec<u8> = (0..BLOCK_BYTES + 5).map(|at| (at % 251) as u8).collect();
        write_all(file.as_ref(), &content, 0).unwrap();
        let blocks = Arc::new(Blocks::default());
        let free = || blocks.0.lock().unwrap().len();
        for len in [10, BLOCK_BYTES / 2, BLOCK_BYTES, BLOCK_BYTES + 5] {
            let read = blocks.read(file.as_ref(), 0, len).unwrap();
            assert_eq!(read, content[..len]);
            let slice = read.slice(3..7);
            drop(read);
            assert_eq!(slice, content[3..7]);
        }
        assert_eq!(free(), 1, "one of a common size was used again");
        let held: Vec<Bytes> =
            (0..9).map(|_| blocks.read(file.as_ref(), 0, BLOCK_BYTES).unwrap()).collect();
        assert_eq!(free(), 0);
        drop(held);
        assert_eq!(free(), FREE_MAX);
        let end = blocks.read(file.as_ref(), BLOCK_BYTES as u64, BLOCK_BYTES).unwrap();
        assert_eq!(end, content[BLOCK_BYTES..], "fewer at the end of the file");
    }
}
