//! The outputs of a record in the log: deliveries to topics, dead letters, notes.
//!
//! A log may refuse a single output for ever (too large for its topic). A delivery then becomes a
//! dead letter of its record, and a dead letter goes in pieces; nothing is written shorter, and
//! nothing waits for what will never be taken.

use std::sync::Arc;

use bytes::Bytes;
use potok_core::{
    Clock, Envelope, Fault, Headers, Output, PackedRecord, Piece, Position, Reason, Record,
    ShardPlace,
};

use crate::notices::Notices;
use crate::origin::OwnTopics;
use crate::work::InFlightBatch;

/// A longer error text is cut in the dead letter; the log has it whole.
const ERROR_BYTES_MAX: usize = 2_000;
/// A dead letter is not cut into smaller pieces than this.
const PIECE_BYTES_MIN: usize = 512;

/// The purpose of an output.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// A delivery by that entry.
    Delivery(u32),
    /// A dead letter, or a piece of one.
    DeadLetter,
    /// The outcome of a dead letter.
    Resolution,
    /// Which records make up a batch.
    Seal,
    /// A feed's progress, which it keeps in the log.
    FeedNote,
}

/// An output, and for which record of its batch it is.
pub(crate) struct Outgoing {
    pub index: u32,
    pub purpose: Purpose,
    pub output: Output,
}

/// Makes the dead letters of a pipeline.
pub(crate) struct DeadLetterWriter {
    pub pipeline: String,
    pub topic: Arc<str>,
    pub own: OwnTopics,
    pub clock: Arc<dyn Clock>,
    pub notices: Arc<Notices>,
}

/// The subject of a dead letter.
pub(crate) struct Sender<'a> {
    pub origin: Position,
    pub key: Option<Bytes>,
    pub headers: &'a Headers,
    pub attempts: u32,
    /// The dead letter that is being replayed.
    pub replay_of: Option<String>,
    /// Where its group was.
    pub shard: Option<ShardPlace>,
    pub record: Option<&'a Record>,
}

impl DeadLetterWriter {
    pub fn letter(&self, sender: &Sender<'_>, deliver: Option<u32>, fault: &Fault) -> Output {
        let envelope = Envelope {
            pipeline: self.pipeline.clone(),
            origin: sender.origin.clone(),
            deliver,
            reason: fault.reason,
            error: shortened(fault),
            attempts: sender.attempts,
            time: self.clock.now(),
            replay_of: sender.replay_of.clone(),
            shard: sender.shard.clone(),
            piece: None,
        };
        Output {
            topic: self.topic.clone(),
            partition: None,
            key: sender.key.clone(),
            headers: envelope.headers(sender.headers),
            value: sender.record.and_then(|record| record.value.clone()),
        }
    }

    /// The dead letter of a record whose delivery the log refused, found again in its batch.
    pub fn instead_of(
        &self,
        taken: &InFlightBatch,
        index: u32,
        deliver: u32,
        fault: &Fault,
    ) -> Output {
        let batch = &taken.batch;
        let record = batch.records.get(index as usize);
        let way = self.own.way(&batch.partition.topic);
        let origin = record.map(|record| self.own.origin(batch, index as usize, record, way));
        let sender = match &origin {
            Some(origin) => Sender {
                origin: origin.position.clone(),
                key: origin.key.clone(),
                headers: &origin.headers,
                attempts: origin.attempts(),
                replay_of: origin.replay_of(),
                shard: origin.replay().and_then(|replay| replay.shard.clone()),
                record,
            },
            // An output is always of a record of its batch.
            None => Sender {
                origin: Position {
                    log: batch.log,
                    topic: batch.partition.topic.clone(),
                    partition: batch.partition.index,
                    offset: batch.first,
                },
                key: None,
                headers: &Headers::none(),
                attempts: 1,
                replay_of: None,
                shard: None,
                record: None,
            },
        };
        let reason = match fault.reason {
            Reason::TooLarge => Reason::TooLarge,
            _ => Reason::Refused,
        };
        self.letter(&sender, Some(deliver), &Fault { reason, ..fault.clone() })
    }
}

/// Why a record is set aside that another one stands for, which is set aside for that fault.
pub(crate) fn of_leader(fault: &Fault) -> Fault {
    let what = format!("a later record with its id was set aside: {}", fault.what);
    Fault { what, ..fault.clone() }
}

/// Cuts a dead letter, or a piece of one, into four. `None` when that will not help. Each piece has the
/// key and the headers, unless those are large: then they are cut with the value.
pub(crate) fn pieces(letter: &Output) -> Option<Vec<Output>> {
    let (envelope, own) = Envelope::split(&letter.headers)?;
    let beside = letter.key.as_ref().map_or(0, Bytes::len) + own.encoded().len();
    if envelope.piece.is_none() && beside > PIECE_BYTES_MIN {
        let (key, value) = (letter.key.clone(), letter.value.clone());
        let body = PackedRecord { key, headers: own, value }.pack();
        let piece = Some(Piece { from: 0, of: body.len() as u64, packed: true });
        let headers = Envelope { piece, ..envelope }.headers(&Headers::none());
        return pieces(&Output { key: None, headers, value: Some(body), ..letter.clone() });
    }
    let value = letter.value.as_ref().filter(|value| value.len() > PIECE_BYTES_MIN)?;
    let Piece { from: start, of, packed } =
        envelope.piece.unwrap_or(Piece { from: 0, of: value.len() as u64, packed: false });
    let size = value.len().div_ceil(4).max(PIECE_BYTES_MIN);
    let cut = |from: usize| {
        let piece = Some(Piece { from: start + from as u64, of, packed });
        let envelope = Envelope { piece, ..envelope.clone() };
        Output {
            headers: envelope.headers(&own),
            value: Some(value.slice(from..value.len().min(from + size))),
            ..letter.clone()
        }
    };
    Some((0..value.len()).step_by(size).map(cut).collect())
}

pub(crate) fn shortened(fault: &Fault) -> String {
    let mut text = fault.to_string();
    if text.len() > ERROR_BYTES_MAX {
        let mut end = ERROR_BYTES_MAX;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}
