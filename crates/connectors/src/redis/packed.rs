//! The packed keys: few keys, packed values, for a single server or a cluster.
//!
//! ```text
//! potok:{<pipeline>:<share>}:owner          nonce of the owner, number of its last write
//! potok:{<pipeline>:<share>}:groups         hash: group → `open` or `closed`
//! potok:{<pipeline>:<share>}:held:<group>   hash: b<position> → records that were put together
//!                                                 i<position> → offsets of those that are held
//! ```
//!
//! Records that were put together are a piece, named by the position that they are with: `offset (20
//! digits) log (16 hex digits) partition (10 digits) topic`. A piece is, for each record, `offset u64
//! · length u32 · packed · value`; packed is what `pack.rs` draws, the length that of both. Offsets
//! in the list have 8 bytes each; a piece of one record needs no list. All numbers are little endian.
//!
//! Pieces are never changed, only added and removed; of one that is needed no more in part, offsets
//! leave its list. The braces keep a share in one slot of a cluster; shares spread over it. No key has
//! a time to live.
//!
//! Recovery: a share is emptied when it is taken, and put again from the log.

use std::fmt::{self, Display};

use bytes::Bytes;
use potok_core::{Owner, Position, Record, StoreAddress, StoreEntry};
use redis::Value;

use super::client::ScriptCall;
use super::pack::{pack, unpack};
use super::store::{PositionKey, text};

/// The key that names the owner of a share.
pub(super) fn owner_key(owner: &Owner) -> String {
    format!("{}owner", Prefix(owner))
}

/// The prefix of a share's keys.
struct Prefix<'a>(&'a Owner);

impl Display for Prefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "potok:{{{}:{}}}:", self.0.pipeline, self.0.share)
    }
}

/// The arguments of the scripts besides the owner.
pub(super) fn begin(call: &mut ScriptCall<'_>, owner: &Owner) {
    call.show(Prefix(owner));
}

/// Sorts the records of one piece together, otherwise in order.
pub(super) fn gathered<T>(items: &[T], place: impl Fn(&T) -> &StoreAddress) -> Vec<&T> {
    let mut gathered: Vec<&T> = items.iter().collect();
    gathered.sort_by(|one, two| piece_of(place(one)).cmp(&piece_of(place(two))));
    gathered
}

/// Runs of records of the same piece.
pub(super) fn pieces<T>(items: &[T], place: impl Fn(&T) -> &StoreAddress) -> Vec<&[T]> {
    items.chunk_by(|one, two| piece_of(place(one)) == piece_of(place(two))).collect()
}

fn piece_of(place: &StoreAddress) -> (&Bytes, u64, &str, u32, u64) {
    let Position { log, topic, partition, .. } = &place.position;
    (&place.group, place.with, topic, *partition, *log)
}

/// The groups come first: all of them are known before anything is held.
pub(super) fn put(call: &mut ScriptCall<'_>, pieces: &[&[&StoreEntry]]) {
    let groups = || of_one_group(pieces, |held| &held.place);
    call.show(groups().count());
    for (group, pieces) in groups() {
        call.push(group);
        let fields = |piece: &&[&StoreEntry]| if piece.len() > 1 { 2 } else { 1 };
        call.show(pieces.iter().map(fields).sum::<usize>());
    }
    let (mut offsets, mut records) = (Vec::new(), Vec::new());
    for piece in pieces {
        let Some(StoreEntry { place, .. }) = piece.first() else { continue };
        offsets.clear();
        records.clear();
        for StoreEntry { record, .. } in *piece {
            offsets.extend(record.offset.to_le_bytes());
            put_record(&mut records, record);
        }
        if piece.len() > 1 {
            call.show(format_args!("i{}", PieceName(place)));
            call.push(&offsets);
        }
        call.show(format_args!("b{}", PieceName(place)));
        call.push(&records);
    }
}

fn put_record(records: &mut Vec<u8>, record: &Record) {
    records.extend(record.offset.to_le_bytes());
    let length_at = records.len();
    records.extend([0; 4]);
    pack(records, record);
    records.extend_from_slice(record.value.as_deref().unwrap_or_default());
    let length = (records.len() - length_at - 4) as u32;
    if let Some(place) = records.get_mut(length_at..length_at + 4) {
        place.copy_from_slice(&length.to_le_bytes());
    }
}

/// The pieces that follow each other and are of the same group.
fn of_one_group<'a, T>(
    pieces: &'a [&'a [T]],
    place: impl Fn(&T) -> &StoreAddress + Copy,
) -> impl Iterator<Item = (&'a Bytes, &'a [&'a [T]])> {
    let group = move |piece: &&'a [T]| piece.first().map(|one| &place(one).group);
    let runs = pieces.chunk_by(move |one, two| group(one) == group(two));
    runs.filter_map(move |run| Some((group(run.first()?)?, run)))
}

/// The name of a piece.
struct PieceName<'a>(&'a StoreAddress);

impl Display for PieceName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoreAddress { position, with, .. } = self.0;
        PositionKey(&Position { offset: *with, ..position.clone() }).fmt(f)
    }
}

pub(super) fn load(call: &mut ScriptCall<'_>, pieces: &[&[StoreAddress]]) {
    for (group, pieces) in of_one_group(pieces, |place| place) {
        call.push(group);
        call.show(pieces.len());
        for place in pieces.iter().filter_map(|piece| piece.first()) {
            call.show(PieceName(place));
        }
    }
}

pub(super) fn clean(call: &mut ScriptCall<'_>, pieces: &[&[&StoreAddress]]) {
    let mut offsets = Vec::new();
    for (group, pieces) in of_one_group(pieces, |place| place) {
        call.push(group);
        call.show(pieces.len());
        for piece in pieces {
            let Some(first) = piece.first() else { continue };
            offsets.clear();
            offsets.extend(piece.iter().flat_map(|place| place.position.offset.to_le_bytes()));
            call.show(PieceName(first));
            call.push(&offsets);
        }
    }
}

/// The records of a piece that were asked for, from what Redis has of it: the list of those that are
/// held, if it has one, and all of them.
pub(super) fn found(places: &[StoreAddress], list: Value, records: Value) -> Vec<Option<Record>> {
    let (list, records) = (text(list), text(records).unwrap_or_default());
    let is_held = |offset: u64| match &list {
        Some(list) => list.chunks_exact(8).any(|one| one == offset.to_le_bytes()),
        None => true,
    };
    let all: Vec<(u64, Bytes)> = records_of(&records).collect();
    let find = |place: &StoreAddress| {
        let offset = place.position.offset;
        let (_, packed) = all.iter().find(|(at, _)| *at == offset && is_held(offset))?;
        unpack(packed, None, offset)
    };
    places.iter().map(find).collect()
}

/// The offset of each record of a piece and what lies there; ends where it is none.
fn records_of(piece: &Bytes) -> impl Iterator<Item = (u64, Bytes)> {
    let mut rest: &[u8] = piece;
    std::iter::from_fn(move || {
        let (offset, behind) = rest.split_first_chunk()?;
        let (length, behind) = behind.split_first_chunk()?;
        let (record, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = behind;
        Some((u64::from_le_bytes(*offset), piece.slice_ref(record)))
    })
}
