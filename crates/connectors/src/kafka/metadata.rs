//! The metadata of a commit: acknowledged offsets beyond the committed one.
//!
//! ```text
//! "potok1:" base64( crc32 u32 | topic id u64 | group u64 | position varint | runs )
//! runs:     gap varint, length varint; repeated, ascending, the first gap counted from position
//! ```
//! All little endian; the CRC covers everything behind it. The text is plain ASCII, because other
//! clients expect UTF-8. It holds the runs nearest to the position, cut at [`TEXT_MAX`]; what does
//! not fit is read again and recognised as a duplicate by its delivery id.
//!
//! Text of another form, or of another topic id, group or position, is not ours and counts for
//! nothing: a group may be shared with, or set back by, other tools.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use potok_core::RangeSet;

/// The longest text; brokers take 4,096 bytes by default.
const TEXT_MAX: usize = 3_072;
const PREFIX: &str = "potok1:";
const FIXED: usize = 4 + 8 + 8;

/// How much of it is written; a broker that takes less gets less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Room {
    /// As much as fits into [`TEXT_MAX`].
    #[default]
    Full,
    /// The topic id alone, no runs.
    Bare,
    /// Nothing.
    None,
}

impl Room {
    /// One step less.
    pub fn less(self) -> Room {
        match self {
            Room::Full => Room::Bare,
            _ => Room::None,
        }
    }
}

/// The content of a commit beside its offset.
#[derive(Debug, PartialEq, Eq)]
pub enum CommitMetadata {
    /// Written by this group under this topic id.
    Ours {
        /// The topic's id then.
        log: u64,
        /// The acknowledged offsets beyond the position.
        ended: RangeSet,
    },
    /// Empty, unreadable, or somebody else's.
    Foreign,
}

/// The text for a commit of `position`.
pub fn encode(log: u64, group: u64, position: u64, ended: &RangeSet, room: Room) -> String {
    if room == Room::None {
        return String::new();
    }
    let bytes_max = (TEXT_MAX - PREFIX.len()) / 4 * 3;
    let mut bytes = vec![0; 4];
    bytes.extend_from_slice(&log.to_le_bytes());
    bytes.extend_from_slice(&group.to_le_bytes());
    put_varint(&mut bytes, position);
    let mut last = position;
    for range in ended.iter().filter(|range| range.end > position) {
        if room == Room::Bare {
            break;
        }
        let (start, len) = (range.start.max(position), bytes.len());
        put_varint(&mut bytes, start - last);
        put_varint(&mut bytes, range.end - start);
        if bytes.len() > bytes_max {
            bytes.truncate(len);
            break;
        }
        last = range.end;
    }
    let crc = bytes.get(4..).map_or(0, crc32fast::hash);
    if let Some(head) = bytes.first_chunk_mut::<4>() {
        *head = crc.to_le_bytes();
    }
    let mut text = PREFIX.to_owned();
    STANDARD_NO_PAD.encode_string(&bytes, &mut text);
    text
}

/// Reads what [`encode`] wrote for a commit of `position`.
pub fn decode(text: &[u8], group: u64, position: u64) -> CommitMetadata {
    parse(text, group, position).unwrap_or(CommitMetadata::Foreign)
}

fn parse(text: &[u8], group: u64, position: u64) -> Option<CommitMetadata> {
    let bytes = STANDARD_NO_PAD.decode(text.strip_prefix(PREFIX.as_bytes())?).ok()?;
    if bytes.len() < FIXED {
        return None;
    }
    let (crc, content) = bytes.split_first_chunk::<4>()?;
    if crc32fast::hash(content) != u32::from_le_bytes(*crc) {
        return None;
    }
    let (log, content) = content.split_first_chunk::<8>()?;
    let (whose, mut rest) = content.split_first_chunk::<8>()?;
    if u64::from_le_bytes(*whose) != group || take_varint(&mut rest)? != position {
        return None;
    }
    let (mut ended, mut last) = (RangeSet::new(), position);
    while !rest.is_empty() {
        let start = last.checked_add(take_varint(&mut rest)?)?;
        let end = start.checked_add(take_varint(&mut rest)?)?;
        ended.insert(start..end);
        last = end;
    }
    Some(CommitMetadata::Ours { log: u64::from_le_bytes(*log), ended })
}

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, tail) = rest.split_first()?;
        *rest = tail;
        let part = u64::from(byte & 0x7f);
        if part << shift >> shift != part {
            return None;
        }
        value |= part << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(state: &mut u64) -> u64 {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 31
    }

    #[test]
    fn comes_back_as_written() {
        let mut state = 7;
        for _ in 0..2_000 {
            let position = random(&mut state) % (1 << (random(&mut state) % 33));
            let mut ended = RangeSet::new();
            for _ in 0..random(&mut state) % 40 {
                let start = position + 1 + random(&mut state) % 500;
                ended.insert(start..start + 1 + random(&mut state) % 20);
            }
            let text = encode(5, 6, position, &ended, Room::Full);
            assert!(text.len() <= TEXT_MAX && text.is_ascii());
            assert_eq!(
                decode(text.as_bytes(), 6, position),
                CommitMetadata::Ours { log: 5, ended }
            );
        }
        let ended = RangeSet::from_iter([u64::MAX - 1..u64::MAX]);
        let text = encode(u64::MAX, 0, 0, &ended, Room::Full);
        assert_eq!(decode(text.as_bytes(), 0, 0), CommitMetadata::Ours { log: u64::MAX, ended });
    }

    #[test]
    fn keeps_the_nearest_runs_when_there_are_too_many() {
        let ended: RangeSet = (0..5_000).map(|n| 100 + 3 * n..101 + 3 * n).collect();
        let text = encode(1, 2, 90, &ended, Room::Full);
        assert!(text.len() <= TEXT_MAX, "{} bytes", text.len());
        let CommitMetadata::Ours { ended: kept, .. } = decode(text.as_bytes(), 2, 90) else {
            unreachable!("just written")
        };
        let kept: Vec<_> = kept.iter().collect();
        assert!(kept.len() > 1_000, "{} runs", kept.len());
        assert!(kept.iter().zip(ended.iter()).all(|(kept, all)| *kept == all));
    }

    #[test]
    fn anything_else_is_foreign() {
        let ended = RangeSet::from_iter([5..9, 12..13]);
        let text = encode(1, 2, 3, &ended, Room::Full);
        assert_eq!(decode(text.as_bytes(), 9, 3), CommitMetadata::Foreign, "another group");
        assert_eq!(decode(text.as_bytes(), 2, 4), CommitMetadata::Foreign, "another position");
        assert_eq!(decode(b"", 2, 3), CommitMetadata::Foreign);
        assert_eq!(decode("наше".as_bytes(), 2, 3), CommitMetadata::Foreign);
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1;
            }
            assert_eq!(decode(&bytes, 2, 3), CommitMetadata::Foreign, "byte {at}");
            assert_eq!(
                decode(&text.as_bytes()[..at], 2, 3),
                CommitMetadata::Foreign,
                "cut at {at}"
            );
        }
        let mut state = 1;
        for _ in 0..20_000 {
            let len = random(&mut state) % 60;
            let mut noise: Vec<u8> = (0..len).map(|_| random(&mut state) as u8).collect();
            assert_eq!(decode(&noise, 2, 3), CommitMetadata::Foreign);
            noise.splice(0..0, PREFIX.bytes());
            assert_eq!(decode(&noise, 2, 3), CommitMetadata::Foreign);
        }
    }

    #[test]
    fn less_room_keeps_the_topic_id_and_then_nothing() {
        let ended = RangeSet::from_iter([5..9]);
        let bare = encode(1, 2, 3, &ended, Room::Full.less());
        assert_eq!(
            decode(bare.as_bytes(), 2, 3),
            CommitMetadata::Ours { log: 1, ended: RangeSet::new() }
        );
        assert_eq!(encode(1, 2, 3, &ended, Room::Bare.less()), "");
    }

    #[test]
    fn any_metadata_is_ours_or_foreign() {
        let (log, group, position) = (7, 8, 1_000);
        let sets: [&[(u64, u64)]; 4] = [
            &[],
            &[(1_001, 1_002)],
            &[(1_010, 2_000), (2_001, u64::MAX)],
            &[(5, 9), (1_000, 1_003)],
        ];
        let texts = sets.map(|ranges| {
            let ended: RangeSet = ranges.iter().map(|(from, to)| *from..*to).collect();
            encode(log, group, position, &ended, Room::Full).into_bytes()
        });
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/metadata");
        potok_fuzz::Corpus::read(folder).with(texts).fuzz(20_000, |input| {
            for asked in [position, 0, u64::MAX] {
                if let CommitMetadata::Ours { log: found, ended } = decode(input, group, asked) {
                    assert_eq!((found, asked), (log, position));
                    // Its content can be written, and read again.
                    let again = encode(log, group, position, &ended, Room::Full);
                    let same = CommitMetadata::Ours { log, ended };
                    assert_eq!(decode(again.as_bytes(), group, position), same);
                }
            }
        });
    }
}
