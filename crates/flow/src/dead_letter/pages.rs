//! Reads dead letters one by one, whatever their number.
//!
//! In memory are a batch of the log, what became of dead letters as ranges ([`LetterOutcomes`]), and as
//! ranges too which were seen, so that the same one is shown once. A body that lies in pieces is put
//! together in memory.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use potok_core::{
    Envelope, Fault, Log, PackedRecord, Partition, Piece, PipelineInfo, Position, ReadFrom, Reader,
    Record, SourceBatch,
};

use super::settled::{Keys, LetterNotes};
use super::{DeadLetter, DeadLetterState, LetterKey, LetterOutcomes, id_of};

/// Reads a topic again and again from where it stopped. One that nobody has written to yet is
/// empty, not wrong.
pub(crate) struct Tail {
    topic: Arc<str>,
    from: ReadFrom,
    reader: Option<Box<dyn Reader>>,
    /// By partition: behind what was read.
    next: Vec<u64>,
}

impl Tail {
    pub fn new(topic: &str) -> Self {
        Tail::from(topic, ReadFrom::Start)
    }

    pub fn from(topic: &str, from: ReadFrom) -> Self {
        Tail { topic: topic.into(), from, reader: None, next: Vec::new() }
    }

    /// The next records; `None` where there are no more for now. After a fault it goes on where it
    /// was.
    pub async fn next(&mut self, log: &dyn Log) -> Result<Option<SourceBatch>, Fault> {
        self.open(log).await?;
        let Some(reader) = &mut self.reader else { return Ok(None) };
        match reader.next(false).await {
            Ok(batch) => {
                batch.iter().for_each(|batch| passed(&mut self.next, batch));
                Ok(batch)
            }
            Err(fault) => {
                // Whether that reader can go on is not known.
                self.reader = None;
                if !self.next.is_empty() {
                    self.from = ReadFrom::Offsets(self.next.as_slice().into());
                }
                Err(fault)
            }
        }
    }

    /// Begins, where the topic is there; else with the first record that is written.
    pub async fn open(&mut self, log: &dyn Log) -> Result<(), Fault> {
        if self.reader.is_some() {
            return Ok(());
        }
        let topics = log.topics().await?;
        let Some(known) = topics.iter().find(|known| *known.topic == *self.topic) else {
            self.from = ReadFrom::Start;
            return Ok(());
        };
        self.reader = Some(log.read(&self.topic, self.from.clone()).await?);
        if self.next.is_empty() {
            let start = |(index, end): (u32, &u64)| self.from.offset(index, *end);
            self.next = (0..).zip(&known.ends).map(start).collect();
        }
        Ok(())
    }
}

/// Notes how far a partition was read.
fn passed(next: &mut Vec<u64>, batch: &SourceBatch) {
    let index = batch.partition.index as usize;
    if next.len() <= index {
        next.resize(index + 1, 0);
    }
    if let Some(next) = next.get_mut(index) {
        *next = batch.next.max(*next);
    }
}

/// The name of a dead letter, as people give it: `orders-dead/0/17`, or with the first digits of
/// the topic's id `orders-dead/0/17@9c41d2f0`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LetterId {
    pub topic: Arc<str>,
    partition: u32,
    offset: u64,
    /// How the sixteen hexadecimal digits of the incarnation begin.
    log: String,
}

impl FromStr for LetterId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (place, log) = text.rsplit_once('@').unwrap_or((text, ""));
        let parse = || {
            let (place, offset) = place.rsplit_once('/')?;
            let (topic, partition) = place.rsplit_once('/')?;
            Some((topic, partition.parse().ok()?, offset.parse().ok()?))
        };
        let is_hex = log.len() <= 16 && log.chars().all(|digit| digit.is_ascii_hexdigit());
        match parse().filter(|_| is_hex) {
            Some((topic, partition, offset)) => {
                Ok(LetterId { topic: topic.into(), partition, offset, log: log.to_lowercase() })
            }
            None => Err(format!(
                "`{text}` is not the id of a dead letter; one looks like `orders-dead/0/17`"
            )),
        }
    }
}

impl fmt::Display for LetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.topic, self.partition, self.offset)?;
        match self.log.as_str() {
            "" => Ok(()),
            log => write!(f, "@{log}"),
        }
    }
}

impl LetterId {
    /// True when it names this place.
    pub fn is(&self, position: &Position) -> bool {
        (self.partition, self.offset) == (position.partition, position.offset)
            && self.topic == position.topic
            && format!("{:016x}", position.log).starts_with(&self.log)
    }
}

/// A batch that is being taken apart.
struct CurrentBatch {
    log: u64,
    partition: Partition,
    records: VecDeque<Record>,
    next: u64,
}

/// A pass over the dead letters of a topic, of all pipelines that share it.
pub struct Pages {
    reader: Option<Box<dyn Reader>>,
    settled: Arc<LetterOutcomes>,
    current: Option<CurrentBatch>,
    /// By partition: the first offset not looked at.
    next: Vec<u64>,
    /// By partition: where it ended when the pass began. What comes later is left to the next one.
    ends: Vec<u64>,
    seen: Keys,
    partials: HashMap<LetterKey, PartialLetter>,
    /// Bodies in pieces are put together; else only their size is known.
    keeps_bodies: bool,
}

impl Pages {
    /// Begins a pass: at the oldest dead letter, or where an earlier one stopped.
    pub async fn open(
        log: &dyn Log,
        info: &PipelineInfo,
        cursor: Option<&str>,
    ) -> Result<Pages, Fault> {
        let settled = LetterNotes::new(log, info).catch_up(log).await?;
        Pages::open_with(log, info, settled, cursor).await
    }

    /// The same, with what is known of dead letters.
    pub async fn open_with(
        log: &dyn Log,
        info: &PipelineInfo,
        settled: Arc<LetterOutcomes>,
        cursor: Option<&str>,
    ) -> Result<Pages, Fault> {
        let offsets = match cursor {
            None => Vec::new(),
            Some(cursor) => read_cursor(cursor)
                .ok_or_else(|| Fault::fix(format!("`{cursor}` is not a cursor")).code("P0501"))?,
        };
        let from = ReadFrom::Offsets(offsets.into());
        Pages::open_at(log, &info.dead_letters, settled, from).await
    }

    /// Begins a pass somewhere, with what is known of dead letters.
    async fn open_at(
        log: &dyn Log,
        topic: &str,
        settled: Arc<LetterOutcomes>,
        from: ReadFrom,
    ) -> Result<Pages, Fault> {
        let topics = log.topics().await?;
        let (reader, ends) = match topics.into_iter().find(|known| known.topic == topic) {
            // A topic that nobody has written to yet is empty, not wrong.
            None => (None, Vec::new()),
            Some(known) => (Some(log.read(topic, from.clone()).await?), known.ends),
        };
        let next = (0..).zip(&ends).map(|(partition, end)| from.offset(partition, *end)).collect();
        Ok(Pages {
            reader,
            settled,
            current: None,
            next,
            ends,
            seen: Keys::default(),
            partials: HashMap::new(),
            keeps_bodies: true,
        })
    }

    /// Ends the pass, by partition, no later than there: what lies behind is left to others.
    pub fn end_at(&mut self, ends: &[u64]) {
        for (at, end) in self.ends.iter_mut().enumerate() {
            *end = ends.get(at).copied().unwrap_or_default().min(*end);
        }
    }

    /// A pass that reads nothing itself and lasts: it keeps no bodies, since a piece may never come.
    pub(super) fn empty(log: &dyn Log) -> Self {
        Pages {
            reader: None,
            settled: Arc::new(LetterOutcomes::new(log)),
            current: None,
            next: Vec::new(),
            ends: Vec::new(),
            seen: Keys::default(),
            partials: HashMap::new(),
            keeps_bodies: false,
        }
    }

    /// What is known of dead letters, to add to; whoever else has it keeps what was known.
    pub(super) fn settled(&mut self) -> &mut LetterOutcomes {
        Arc::make_mut(&mut self.settled)
    }

    /// The dead letters that end in a batch, as [`Pages::next`] tells them.
    pub(super) fn take_batch(&mut self, batch: SourceBatch) -> Vec<DeadLetter> {
        let SourceBatch { log, partition, records, .. } = batch;
        let take = |record: Record| {
            let topic = partition.topic.clone();
            let position =
                Position { log, topic, partition: partition.index, offset: record.offset };
            self.take(position, record)
        };
        records.into_iter().filter_map(take).collect()
    }

    /// The next dead letter, in the order of the log, whatever became of it. Repeats of one outcome
    /// (same pipeline, origin, attempt and deliver entry) are one, the first; so are the pieces of one body,
    /// once all are there.
    pub async fn next(&mut self) -> Result<Option<DeadLetter>, Fault> {
        loop {
            while let Some((position, record)) = self.next_record() {
                if let Some(letter) = self.take(position, record) {
                    return Ok(Some(letter));
                }
            }
            let Some(reader) = self.reader.as_mut().filter(|_| !is_past(&self.next, &self.ends))
            else {
                return Ok(None);
            };
            let Some(batch) = reader.next(false).await? else { return Ok(None) };
            let SourceBatch { log, partition, next, mut records, .. } = batch;
            let end = self.ends.get(partition.index as usize).copied().unwrap_or_default();
            records.retain(|record| record.offset < end);
            self.current = Some(CurrentBatch { log, partition, records: records.into(), next });
        }
    }

    /// Where a later pass goes on. What a body in pieces began with is read again.
    pub fn cursor(&self) -> String {
        let mut next = self.next.clone();
        for position in self.partials.values().flat_map(|partial| &partial.positions) {
            if let Some(next) = next.get_mut(position.partition as usize) {
                *next = position.offset.min(*next);
            }
        }
        let offsets: Vec<String> = next.iter().map(u64::to_string).collect();
        offsets.join(".")
    }

    fn next_record(&mut self) -> Option<(Position, Record)> {
        let current = self.current.as_mut()?;
        let CurrentBatch { log, partition, .. } = &*current;
        let (log, topic, index) = (*log, partition.topic.clone(), partition.index);
        let record = current.records.pop_front();
        let passed = record.as_ref().map_or(current.next, |record| record.offset + 1);
        if self.next.len() <= index as usize {
            self.next.resize(index as usize + 1, 0);
        }
        if let Some(next) = self.next.get_mut(index as usize) {
            *next = passed.max(*next);
        }
        let Some(record) = record else {
            self.current = None;
            return None;
        };
        Some((Position { log, topic, partition: index, offset: record.offset }, record))
    }

    fn take(&mut self, position: Position, record: Record) -> Option<DeadLetter> {
        let (envelope, headers) = Envelope::split(&record.headers)?;
        if self.settled.is_repeat(&position) {
            return None;
        }
        let key = LetterKey::of(&envelope);
        let state = self.settled.state(&position, record.time, &key);
        let record = Record { headers, ..record };
        let Some(piece) = envelope.piece else {
            return self.seen.insert(&key).then(|| self.letter(position, envelope, state, record));
        };
        let envelope = Envelope { piece: None, ..envelope };
        let partial = self.partials.entry(key.clone()).or_insert_with(|| PartialLetter {
            positions: Vec::new(),
            state,
            envelope,
            record: Record { value: None, ..record.clone() },
            pieces: BTreeMap::new(),
        });
        partial.state = partial.state.max(state);
        partial.positions.push(position);
        let body = partial.add(piece, record.value, self.keeps_bodies)?;
        let PartialLetter { positions, state, envelope, record, .. } =
            self.partials.remove(&key)?;
        let record = match PackedRecord::unpack(body.clone()).filter(|_| piece.packed) {
            _ if !self.keeps_bodies => record,
            Some(PackedRecord { key, headers, value }) => Record { key, headers, value, ..record },
            None => Record { value: Some(body), ..record },
        };
        let whole = Piece { from: 0, ..piece };
        let envelope = Envelope { piece: (!self.keeps_bodies).then_some(whole), ..envelope };
        // Pieces lie in several partitions, which are read in any order.
        let first = positions.into_iter().min()?;
        self.seen.insert(&key).then(|| self.letter(first, envelope, state, record))
    }

    fn letter(
        &self,
        position: Position,
        envelope: Envelope,
        state: DeadLetterState,
        record: Record,
    ) -> DeadLetter {
        let id = id_of(&position, self.settled.reuses_offsets());
        DeadLetter { id, position, envelope, state, time: record.time, record }
    }
}

/// True when nothing below the ends is left to look at.
fn is_past(next: &[u64], ends: &[u64]) -> bool {
    ends.iter().enumerate().all(|(at, end)| next.get(at).is_some_and(|next| next >= end))
}

fn read_cursor(cursor: &str) -> Option<Vec<u64>> {
    cursor.split('.').map(|offset| offset.parse().ok()).collect()
}

/// The dead letters of these names, each read alone. Those that are not there are left out.
pub async fn find(
    log: &dyn Log,
    info: &PipelineInfo,
    settled: &Arc<LetterOutcomes>,
    ids: &[LetterId],
) -> Result<Vec<DeadLetter>, Fault> {
    let topic = &info.dead_letters;
    let mut found = Vec::new();
    for id in ids {
        let from = ReadFrom::Place { partition: id.partition, offset: id.offset };
        let mut pages = Pages::open_at(log, topic, settled.clone(), from).await?;
        let letter = pages.next().await?.filter(|letter| id.is(&letter.position));
        // A body in pieces may lie in several partitions.
        let letter = match letter {
            None if !pages.partials.is_empty() => {
                let mut all = Pages::open_at(log, topic, settled.clone(), ReadFrom::Start).await?;
                loop {
                    match all.next().await? {
                        Some(letter) if !id.is(&letter.position) => {}
                        found => break found,
                    }
                }
            }
            letter => letter,
        };
        found.extend(letter);
    }
    Ok(found)
}

/// A body in pieces, as far as they were found.
struct PartialLetter {
    positions: Vec<Position>,
    state: DeadLetterState,
    envelope: Envelope,
    record: Record,
    /// Lengths of parts of the body by where they begin, and the parts where they are kept.
    pieces: BTreeMap<u64, (u64, Bytes)>,
}

impl PartialLetter {
    /// Adds a piece; returns the body once it is whole, or nothing of it where it is not kept.
    fn add(&mut self, piece: Piece, value: Option<Bytes>, keeps: bool) -> Option<Bytes> {
        // The same part may come again, cut otherwise: the longest counts.
        let (known, part) = self.pieces.entry(piece.from).or_default();
        let value = value.unwrap_or_default();
        if value.len() as u64 > *known {
            *known = value.len() as u64;
            *part = if keeps { value } else { Bytes::new() };
        }
        let mut covered = 0;
        for (from, (length, _)) in &self.pieces {
            if *from > covered {
                return None;
            }
            covered = covered.max(from + length);
        }
        if covered != piece.of {
            return None;
        }
        let mut body = Vec::new();
        for (from, (_, bytes)) in std::mem::take(&mut self.pieces) {
            let known = body.len().saturating_sub(from as usize);
            body.extend_from_slice(bytes.get(known..).unwrap_or_default());
        }
        Some(body.into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use potok_core::Output;

    use super::*;
    use crate::outgoing::pieces;

    /// A pass that is handed its batches.
    fn pages() -> Pages {
        Pages {
            reader: None,
            settled: Arc::new(LetterOutcomes::of(false)),
            current: None,
            next: Vec::new(),
            ends: Vec::new(),
            seen: Keys::default(),
            partials: HashMap::new(),
            keeps_bodies: true,
        }
    }

    fn partial() -> PartialLetter {
        let headers = potok_core::Headers::none();
        let origin: Position = "orders/0/1@0000000000000001".parse().unwrap();
        PartialLetter {
            positions: Vec::new(),
            state: DeadLetterState::Open,
            envelope: Envelope {
                pipeline: "orders".to_owned(),
                origin,
                deliver: None,
                reason: potok_core::Reason::TooLarge,
                error: String::new(),
                attempts: 1,
                time: potok_core::Timestamp(0),
                replay_of: None,
                shard: None,
                piece: None,
            },
            record: Record {
                offset: 0,
                time: potok_core::Timestamp(0),
                key: None,
                headers,
                value: None,
            },
            pieces: BTreeMap::new(),
        }
    }

    #[test]
    fn a_pass_that_lasts_keeps_no_bodies_in_pieces() {
        for keeps in [true, false] {
            let mut partial = partial();
            let part = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
            assert_eq!(
                partial.add(Piece { from: 3, of: 6, packed: false }, part("def"), keeps),
                None
            );
            let kept: usize = partial.pieces.values().map(|(_, part)| part.len()).sum();
            assert_eq!(kept, if keeps { 3 } else { 0 });
            let whole = partial.add(Piece { from: 0, of: 6, packed: false }, part("abc"), keeps);
            assert_eq!(whole, part(if keeps { "abcdef" } else { "" }));
        }
    }

    /// A dead letter of which the topic takes only small pieces is read whole again, however large its
    /// key and its headers are.
    #[test]
    fn a_dead_letter_is_cut_until_it_fits_and_read_as_it_was() {
        const TAKES: usize = 1_500;
        let large = |byte: u8| Bytes::from(vec![byte; 9_000]);
        let headers = potok_core::HeadersBuilder::new().add("h", Some(&large(b'h'))).build();
        let none = potok_core::Headers::none();
        for (key, headers, value) in [
            (Some(large(b'k')), none.clone(), Some(Bytes::from_static(b"small"))),
            (Some(large(b'k')), headers.clone(), None),
            (None, headers, Some(large(b'v'))),
            (Some(Bytes::from_static(b"key")), none, Some(large(b'v'))),
        ] {
            let envelope = partial().envelope;
            let letter = Output {
                topic: "orders-dead".into(),
                partition: None,
                key: key.clone(),
                headers: envelope.headers(&headers),
                value: value.clone(),
            };
            let (mut fit, mut left) = (Vec::new(), vec![letter]);
            while let Some(next) = left.pop() {
                match next.bytes() > TAKES {
                    true => left.extend(pieces(&next).expect("it can be cut")),
                    false => fit.push(next),
                }
            }
            assert!(fit.len() > 2, "{} pieces", fit.len());
            let record = |(offset, output): (u64, Output)| {
                let Output { key, headers, value, .. } = output;
                Record { offset, time: potok_core::Timestamp(0), key, headers, value }
            };
            let batch = SourceBatch {
                partition: Partition { topic: "orders-dead".into(), index: 0 },
                log: 1,
                assignment: 0,
                first: 0,
                next: fit.len() as u64,
                records: (0..).zip(fit).map(record).collect(),
                order: None,
                feed: None,
            };
            let mut pages = pages();
            let letters = pages.take_batch(batch);
            let [DeadLetter { record, envelope: read, .. }] = &letters[..] else {
                panic!("{} dead letters", letters.len());
            };
            assert_eq!((&record.key, &record.value), (&key, &value));
            assert_eq!((&record.headers, read), (&headers, &envelope));
        }
    }

    #[test]
    fn an_id_names_a_place_with_or_without_the_topics_id() {
        let position: Position = "orders-dead/0/17@9c41d2f000000001".parse().unwrap();
        for id in ["orders-dead/0/17", "orders-dead/0/17@9c41d2f0", "orders-dead/0/17@9C41"] {
            assert!(id.parse::<LetterId>().unwrap().is(&position), "{id}");
        }
        for id in ["orders-dead/0/18", "orders-dead/1/17", "x/0/17", "orders-dead/0/17@9c42"] {
            assert!(!id.parse::<LetterId>().unwrap().is(&position), "{id}");
        }
        for id in ["orders-dead", "orders-dead/0", "orders-dead/x/1", "orders-dead/0/17@xyz"] {
            assert!(id.parse::<LetterId>().is_err(), "{id}");
        }
        assert!(id_of(&position, true).parse::<LetterId>().unwrap().is(&position));
    }
}
