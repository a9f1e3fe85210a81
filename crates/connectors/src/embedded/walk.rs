//! Walks the frames of a segment, and over what is none.
//!
//! The one place that decides what is a frame and what is damage: recovery, readers and retention
//! all see a segment through it. Headers and tables are checked here; payloads are fetched and
//! checked only by those who want them, so that skipping other topics costs little.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::block::{BLOCK_BYTES, Blocks};
use super::disk::DiskFile;
use super::format::{
    Entry, FRAME_HEADER, FRAME_MAGIC, FrameHeader, FrameKind, RecordsEntry, entries,
};

/// A frame whose header and table fit.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Where it starts.
    pub at: u64,
    pub header: FrameHeader,
    table: Bytes,
}

impl Frame {
    /// Behind its last byte.
    pub fn end(&self) -> u64 {
        self.at + self.header.len()
    }

    pub fn entries(&self) -> Vec<Entry<'_>> {
        // The walker has read the table once already, so this does not fail.
        entries(&self.table).unwrap_or_default()
    }

    /// Its records entries, with where their bytes lie in the file.
    pub fn records<'a>(
        &self,
        entries: &'a [Entry<'a>],
    ) -> impl Iterator<Item = (&'a RecordsEntry<'a>, Range<u64>)> {
        let mut at = self.at + FRAME_HEADER as u64 + u64::from(self.header.table);
        entries.iter().filter_map(move |entry| match entry {
            Entry::Records(records) => {
                let from = at;
                at += u64::from(records.bytes);
                Some((records, from..at))
            }
            _ => None,
        })
    }
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadBytes {
    /// First of them.
    pub from: u64,
    /// Behind the last: the next frame, or the end.
    pub to: u64,
    /// The kind of frame, where its header is still good.
    pub kind: Option<FrameKind>,
}

/// The finding at a place.
#[derive(Debug)]
pub enum Step {
    Frame(Frame),
    /// Damage.
    Bad(BadBytes),
    End,
}

/// Reads one segment.
pub struct Walker {
    file: Arc<dyn DiskFile>,
    segment: u64,
    nonce: u64,
    limit: u64,
    blocks: Arc<Blocks>,
    ahead: usize,
    block: Bytes,
    block_at: u64,
    fetched: u64,
}

impl Walker {
    /// Walks the segment `segment` of the folder `nonce` up to `limit`.
    pub fn new(file: Arc<dyn DiskFile>, segment: u64, nonce: u64, limit: u64) -> Self {
        Walker {
            file,
            segment,
            nonce,
            limit,
            blocks: Arc::default(),
            ahead: BLOCK_BYTES,
            block: Bytes::new(),
            block_at: 0,
            fetched: 0,
        }
    }

    /// Lets it read into these buffers.
    pub fn into_blocks(self, blocks: Arc<Blocks>) -> Self {
        Walker { blocks, ..self }
    }

    /// How much it reads at once from now on; no more than is asked for where that is more.
    pub fn read_ahead(&mut self, bytes: usize) {
        self.ahead = bytes;
    }

    /// Where it stops.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Lets it go further: more has been synced.
    pub fn extend(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// How many bytes were read so far; tells how much memory slices of blocks hold.
    pub fn fetched(&self) -> u64 {
        self.fetched
    }

    /// The finding at `at`, which is the start of a frame or of damage.
    pub fn at(&mut self, at: u64) -> io::Result<Step> {
        if at >= self.limit {
            return Ok(Step::End);
        }
        let Some(header) = self.header(at)? else {
            let to = self.search(at + 1)?;
            return Ok(Step::Bad(BadBytes { from: at, to, kind: None }));
        };
        let end = (at + header.len()).min(self.limit);
        let bad = BadBytes { from: at, to: end, kind: Some(header.kind) };
        if at + header.len() > self.limit {
            return Ok(Step::Bad(bad));
        }
        let table = self.bytes(at + FRAME_HEADER as u64, header.table as usize)?;
        if crc32fast::hash(&table) != header.table_crc || !table_fits(&header, &table) {
            return Ok(Step::Bad(bad));
        }
        Ok(Step::Frame(Frame { at, header, table }))
    }

    /// True when everything behind the frame's table fits.
    pub fn payload_fits(&mut self, frame: &Frame) -> io::Result<bool> {
        if frame.header.kind == FrameKind::Footer {
            let at = frame.at + FRAME_HEADER as u64 + u64::from(frame.header.table);
            return Ok(*self.bytes(at, frame.header.payload as usize)? == frame.at.to_le_bytes());
        }
        let entries = frame.entries();
        for (records, range) in frame.records(&entries) {
            let payload = self.bytes(range.start, records.bytes as usize)?;
            if crc32fast::hash(&payload) != records.crc {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The frame header at `at`, if there is one of this folder.
    fn header(&mut self, at: u64) -> io::Result<Option<FrameHeader>> {
        let bytes = self.bytes(at, FRAME_HEADER)?;
        let header = FrameHeader::decode(&bytes, self.segment, at);
        Ok(header.filter(|header| header.nonce == self.nonce))
    }

    /// The next place from `from` on where a frame header fits; the limit when there is none.
    fn search(&mut self, mut from: u64) -> io::Result<u64> {
        while from < self.limit {
            let block = self.bytes(from, BLOCK_BYTES)?;
            if block.len() < FRAME_MAGIC.len() {
                break;
            }
            for (at, window) in (from..).zip(block.windows(FRAME_MAGIC.len())) {
                if window == FRAME_MAGIC && self.header(at)?.is_some() {
                    return Ok(at);
                }
            }
            // The magic may lie across the edge of two blocks.
            from += (block.len() - FRAME_MAGIC.len() + 1) as u64;
        }
        Ok(self.limit)
    }

    /// Bytes of the file, fewer only at the limit or where the file is shorter than that.
    pub fn bytes(&mut self, at: u64, len: usize) -> io::Result<Bytes> {
        let len = len.min(usize::try_from(self.limit.saturating_sub(at)).unwrap_or(usize::MAX));
        let inside = at.checked_sub(self.block_at).and_then(|skip| usize::try_from(skip).ok());
        if let Some(skip) = inside
            && skip + len <= self.block.len()
        {
            return Ok(self.block.slice(skip..skip + len));
        }
        let rest = usize::try_from(self.limit.saturating_sub(at)).unwrap_or(usize::MAX);
        // Let go of first, so that it can be the one that is read into.
        self.block = Bytes::new();
        self.block = self.blocks.read(self.file.as_ref(), at, rest.min(self.ahead).max(len))?;
        self.fetched += self.block.len() as u64;
        self.block_at = at;
        Ok(self.block.slice(..len.min(self.block.len())))
    }
}

/// True when the table is made of entries and its records fill the payload exactly.
fn table_fits(header: &FrameHeader, table: &[u8]) -> bool {
    let Some(entries) = entries(table) else { return false };
    let records: u64 = entries
        .iter()
        .map(|entry| match entry {
            Entry::Records(records) => u64::from(records.bytes),
            _ => 0,
        })
        .sum();
    match header.kind {
        FrameKind::Footer => records == 0,
        FrameKind::Transaction | FrameKind::Checkpoint => records == u64::from(header.payload),
    }
}
