//! Records of one partition on their way into a batch: copied once, into one block of bytes.

use bytes::BytesMut;
use potok_core::{Headers, Partition, Record, SourceBatch, Timestamp};

use super::events::{RawRecord, RecordParts};

/// A batch is handed over when it has this many records or bytes.
const RECORDS_MAX: usize = 1_024;
const BYTES_MAX: usize = 1 << 20;

/// Collects records and gaps that follow each other.
pub struct Builder {
    first: u64,
    next: u64,
    buffer: BytesMut,
    placed: Vec<RecordParts>,
}

impl Builder {
    /// Begins at this offset, with room for as much as the batch before had.
    pub fn new(first: u64, (records, bytes): (usize, usize)) -> Self {
        let (buffer, placed) = (BytesMut::with_capacity(bytes), Vec::with_capacity(records));
        Builder { first, next: first, buffer, placed }
    }

    /// How many records and bytes are in it.
    pub fn size(&self) -> (usize, usize) {
        (self.placed.len(), self.buffer.len())
    }

    /// The offset behind what is in it.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Adds a record; one from before the beginning is left out.
    pub fn add(&mut self, record: &RawRecord) {
        let offset = record.offset();
        if offset < self.next {
            return;
        }
        self.placed.push(record.put(&mut self.buffer));
        self.next = offset + 1;
    }

    /// There is no record up to this offset.
    pub fn skip_to(&mut self, offset: u64) {
        self.next = self.next.max(offset);
    }

    /// True when it should be handed over.
    pub fn is_full(&self) -> bool {
        self.placed.len() >= RECORDS_MAX || self.buffer.len() >= BYTES_MAX
    }

    /// True when it stands for nothing.
    pub fn is_empty(&self) -> bool {
        self.next == self.first
    }

    /// The batch.
    pub fn build(self, partition: Partition, log: u64, assignment: u64) -> SourceBatch {
        let mut bytes = self.buffer.freeze();
        let record = |placed: RecordParts| {
            let key = placed.key.map(|len| bytes.split_to(len));
            let headers = Headers::from_encoded(bytes.split_to(placed.headers));
            let value = placed.value.map(|len| bytes.split_to(len));
            Record { offset: placed.offset, time: Timestamp(placed.time), key, headers, value }
        };
        let records = self.placed.into_iter().map(record).collect();
        let (first, next) = (self.first, self.next);
        SourceBatch { partition, log, assignment, first, next, records, order: None, feed: None }
    }
}
