//! Bodies of held records: they stay in the log and are read back by position.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::{Fault, Held, Owner, Place, Position, Record, Store, Timestamp};

use super::format::{RecordSpan, RecordsEntry};
use super::scan::record;
use super::shared::Shared;
use super::walk::{Found, Walker};
use super::{damage, faults};

/// Keeps nothing of its own: what writes elsewhere only checks here who asks.
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    /// By pipeline and share.
    owners: Mutex<HashMap<(Arc<str>, u32), u64>>,
}

impl EmbeddedStore {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        EmbeddedStore { shared, owners: Mutex::default() }
    }

    fn check(&self, owner: &Owner) -> Result<(), Fault> {
        let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let Owner { pipeline, share, nonce } = owner;
        match owners.get(&(pipeline.clone(), *share)) {
            Some(known) if known == nonce => Ok(()),
            _ => Err(Fault::retry(format!("share {share} of {pipeline} has another owner now"))),
        }
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    fn is_the_log(&self) -> bool {
        true
    }

    async fn own(&self, owner: &Owner) -> Result<(), Fault> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners.insert((owner.pipeline.clone(), owner.share), owner.nonce);
        Ok(())
    }

    async fn put(&self, owner: &Owner, _: &[Held]) -> Result<(), Fault> {
        self.check(owner)
    }

    async fn close(&self, owner: &Owner, _: &[Bytes]) -> Result<(), Fault> {
        self.check(owner)
    }

    async fn load(&self, _: &Owner, places: &[Place]) -> Result<Vec<Option<Record>>, Fault> {
        let shared = self.shared.clone();
        let positions: Vec<_> = places.iter().map(|place| place.position.clone()).collect();
        let loading = tokio::task::spawn_blocking(move || load(&shared, &positions));
        let loaded = loading.await.map_err(faults::reader_died)?;
        loaded.map_err(|error| faults::read_failed(&error))
    }

    async fn clean(&self, owner: &Owner, _: &[Place]) -> Result<(), Fault> {
        self.check(owner)
    }
}

/// Reads records back, in the order asked for; `None` for one that is not there, or not byte-exact.
fn load(shared: &Shared, positions: &[Position]) -> io::Result<Vec<Option<Record>>> {
    // In the order of the log, so that neighbours are read together.
    let mut order: Vec<usize> = (0..positions.len()).collect();
    order.sort_by_key(|at| positions.get(*at).map(|p| (&p.topic, p.partition, p.offset)));
    let mut loaded: Vec<Option<Record>> = positions.iter().map(|_| None).collect();
    let mut reading: Option<Reading> = None;
    for at in order {
        let Some(position) = positions.get(at) else { continue };
        if reading.as_ref().is_none_or(|reading| !reading.reaches(position)) {
            reading = Reading::find(shared, position, reading)?;
        }
        let record = reading.as_mut().and_then(|reading| reading.take(shared, position));
        if let Some(place) = loaded.get_mut(at) {
            *place = record;
        }
    }
    Ok(loaded)
}

/// The records of one partition in one frame, read from the front.
struct Reading {
    segment: u64,
    walker: Walker,
    topic: Arc<str>,
    partition: u32,
    incarnation: u64,
    time: Timestamp,
    /// Where the frame lies.
    frame: std::ops::Range<u64>,
    first: u64,
    count: u32,
    payload: Bytes,
    /// The number of the next record, and where it begins.
    number: u32,
    at: usize,
}

impl Reading {
    /// True when the record lies here, and not before what was read already.
    fn reaches(&self, position: &Position) -> bool {
        let next = self.first + u64::from(self.number);
        (&*self.topic, self.partition) == (&*position.topic, position.partition)
            && (next..self.first + u64::from(self.count)).contains(&position.offset)
    }

    /// The frame that holds the record; goes on from `before` where that is on the way.
    fn find(
        shared: &Shared,
        position: &Position,
        before: Option<Reading>,
    ) -> io::Result<Option<Reading>> {
        let Some((segment, mut at)) = seek(shared, position) else { return Ok(None) };
        let mut walker = match before {
            Some(before) if before.segment == segment => {
                if (&*before.topic, before.partition) == (&*position.topic, position.partition) {
                    at = at.max(before.frame.end);
                }
                before.walker
            }
            _ => match open(shared, segment)? {
                Some(walker) => walker,
                None => return Ok(None),
            },
        };
        loop {
            let frame = match walker.at(at)? {
                Found::Frame(frame) => frame,
                Found::Bad(bad) => {
                    let found = damage::Found::within(segment, bad.from, bad.to);
                    shared.report(&shared.state(), found);
                    at = bad.to;
                    continue;
                }
                Found::End => return Ok(None),
            };
            at = frame.end();
            let entries = frame.entries();
            let holds = |records: &RecordsEntry<'_>| {
                (records.topic, records.partition) == (&*position.topic, position.partition)
                    && (records.first..records.first + u64::from(records.count))
                        .contains(&position.offset)
            };
            let found = frame.records(&entries).find(|(records, _)| holds(records));
            let Some((records, range)) = found else { continue };
            let payload = walker.bytes(range.start, records.bytes as usize)?;
            return Ok(Some(Reading {
                segment,
                topic: position.topic.clone(),
                partition: position.partition,
                incarnation: frame.header.incarnation,
                time: Timestamp(frame.header.time),
                frame: frame.at..frame.end(),
                first: records.first,
                count: records.count,
                payload,
                number: 0,
                at: 0,
                walker,
            }));
        }
    }

    fn take(&mut self, shared: &Shared, position: &Position) -> Option<Record> {
        let number = u32::try_from(position.offset.checked_sub(self.first)?).ok()?;
        let mut span = RecordSpan::read(&self.payload, self.at)?;
        while self.number < number {
            self.at = span.all.end;
            self.number += 1;
            span = RecordSpan::read(&self.payload, self.at)?;
        }
        if self.incarnation != position.log {
            return None;
        }
        if !span.fits(&self.payload, number) {
            let found = damage::Found::within(self.segment, self.frame.start, self.frame.end);
            shared.report(&shared.state(), found);
            return None;
        }
        // A copy: the caller may keep single records for long, not the block around them.
        let body = Bytes::copy_from_slice(self.payload.get(span.all)?);
        RecordSpan::read(&body, 0).map(|span| record(&body, &span, position.offset, self.time))
    }
}

/// The segment that can hold the record, and where to start in it.
fn seek(shared: &Shared, position: &Position) -> Option<(u64, u64)> {
    let state = shared.state();
    state.segments.iter().find_map(|(number, segment)| {
        let at = segment.index.seek(&position.topic, position.partition, position.offset)?;
        Some((*number, at))
    })
}

fn open(shared: &Shared, segment: u64) -> io::Result<Option<Walker>> {
    let state = shared.state();
    let Some(known) = state.segments.get(&segment) else { return Ok(None) };
    match shared.open_segment(&state, segment) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            shared.report(&state, damage::Found::lost(segment));
            Ok(None)
        }
        Err(error) => Err(error),
        Ok(file) => Ok(Some(Walker::new(file, segment, shared.nonce, known.end))),
    }
}
