//! Random bytes, for ids that nobody may guess and for spreading what would happen at once.

use ring::rand::{SecureRandom, SystemRandom};

/// Falls back to the hasher's seed where the system has no random bytes to give, which Linux does
/// not know.
pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if SystemRandom::new().fill(&mut bytes).is_err() {
        use std::hash::{BuildHasher, RandomState};
        for (place, byte) in bytes.iter_mut().enumerate() {
            *byte = RandomState::new().hash_one(place) as u8;
        }
    }
    bytes
}

pub(crate) fn u64() -> u64 {
    u64::from_le_bytes(bytes())
}

/// Below `bound`; 0 where that is 0.
pub(crate) fn below(bound: u64) -> u64 {
    u64().checked_rem(bound).unwrap_or_default()
}
