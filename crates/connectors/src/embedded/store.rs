//! Bodies of held records: they stay in the log and are read back by position.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use potok_core::{Fault, Partition, Position, Record, SourceBatch, Store, Timestamp};

use super::format::RecordSpan;
use super::scan::record;
use super::shared::Shared;
use super::walk::{Found, Walker};
use super::{damage, faults};

/// Keeps nothing of its own: `put` and `clean` only check who asks.
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    owners: Mutex<HashMap<Partition, u64>>,
}

impl EmbeddedStore {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        EmbeddedStore { shared, owners: Mutex::default() }
    }

    fn check(&self, partition: &Partition, nonce: u64) -> Result<(), Fault> {
        let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        match owners.get(partition) {
            Some(owner) if *owner == nonce => Ok(()),
            _ => Err(Fault::retry(format!("{partition} belongs to another owner now"))),
        }
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn own(&self, partition: &Partition, nonce: u64) -> Result<(), Fault> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners.insert(partition.clone(), nonce);
        Ok(())
    }

    async fn put(&self, batch: &SourceBatch, nonce: u64) -> Result<(), Fault> {
        self.check(&batch.partition, nonce)
    }

    async fn load(&self, positions: &[Position]) -> Result<Vec<Option<Record>>, Fault> {
        let (shared, positions) = (self.shared.clone(), positions.to_vec());
        let loading = tokio::task::spawn_blocking(move || {
            positions.iter().map(|position| load(&shared, position)).collect::<io::Result<_>>()
        });
        let loaded = loading.await.map_err(faults::reader_died)?;
        loaded.map_err(|error| faults::read_failed(&error))
    }

    async fn clean(&self, positions: &[Position], nonce: u64) -> Result<(), Fault> {
        for position in positions {
            let partition = Partition { topic: position.topic.clone(), index: position.partition };
            self.check(&partition, nonce)?;
        }
        Ok(())
    }
}

/// Reads one record back; `None` when it is not there, or not byte-exact.
fn load(shared: &Shared, position: &Position) -> io::Result<Option<Record>> {
    let Some((segment, mut walker, mut at)) = seek(shared, position)? else { return Ok(None) };
    let report =
        |from, to| shared.report(&shared.state(), damage::Found::within(segment, from, to));
    loop {
        let frame = match walker.at(at)? {
            Found::Frame(frame) => frame,
            Found::Bad(bad) => {
                report(bad.from, bad.to);
                at = bad.to;
                continue;
            }
            Found::End => return Ok(None),
        };
        at = frame.end();
        let entries = frame.entries();
        for (records, range) in frame.records(&entries) {
            let number = position.offset.checked_sub(records.first);
            let number = number.and_then(|number| u32::try_from(number).ok());
            let holds = number.filter(|number| {
                *number < records.count
                    && records.topic == &*position.topic
                    && records.partition == position.partition
            });
            let Some(number) = holds else { continue };
            if frame.header.incarnation != position.log {
                return Ok(None);
            }
            let payload = walker.bytes(range.start, records.bytes as usize)?;
            let mut span = RecordSpan::read(&payload, 0);
            for _ in 0..number {
                span = span.and_then(|span| RecordSpan::read(&payload, span.all.end));
            }
            let fitting = span.filter(|span| span.fits(&payload, number));
            if fitting.is_none() {
                report(frame.at, frame.end());
            }
            return Ok(fitting.and_then(|span| {
                // A copy: the caller keeps single records for long, not the block around them.
                let body = bytes::Bytes::copy_from_slice(
                    payload.get(span.all.clone()).unwrap_or_default(),
                );
                let time = Timestamp(frame.header.time);
                RecordSpan::read(&body, 0).map(|span| record(&body, &span, position.offset, time))
            }));
        }
    }
}

/// The segment that can hold the record, and where to start in it.
fn seek(shared: &Shared, position: &Position) -> io::Result<Option<(u64, Walker, u64)>> {
    let state = shared.state();
    for (number, segment) in &state.segments {
        let at = segment.index.seek(&position.topic, position.partition, position.offset);
        if let Some(at) = at {
            let file = match shared.open_segment(&state, *number) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    shared.report(&state, damage::Found::lost(*number));
                    return Ok(None);
                }
                opened => opened?,
            };
            return Ok(Some((*number, Walker::new(file, *number, shared.nonce, segment.end), at)));
        }
    }
    Ok(None)
}
