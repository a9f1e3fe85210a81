//! A small generator of pseudo-random numbers.
//!
//! Good enough to spread test data and to pick moments for trouble; not for secrets.

/// A stream of numbers that its seed decides (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Starts the stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Random { state: seed }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// A number in `0..below`; 0 when there is none. The bias for huge bounds does not matter here.
    pub fn below(&mut self, below: u64) -> u64 {
        self.bits() % below.max(1)
    }

    /// A number in `from..=to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from) + 1)
    }

    /// True in `share` of a thousand cases.
    pub fn per_mille(&mut self, share: u32) -> bool {
        self.below(1_000) < u64::from(share)
    }

    /// One of a list of words; the empty word from an empty list.
    pub fn word(&mut self, words: &[&'static str]) -> &'static str {
        words.get(self.below(words.len() as u64) as usize).copied().unwrap_or_default()
    }
}

/// Scatters 64 bits so that neighbours look unrelated. One to one: different numbers stay
/// different.
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_the_stream() {
        let stream = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.bits()).collect::<Vec<_>>()
        };
        assert_eq!(stream(7), stream(7));
        assert_ne!(stream(7), stream(8));
    }

    #[test]
    fn numbers_stay_in_their_bounds() {
        let mut random = Random::new(1);
        for _ in 0..10_000 {
            assert!(random.below(3) < 3);
            assert!((5..=9).contains(&random.between(5, 9)));
        }
        assert_eq!(random.below(0), 0);
        assert_eq!(random.word(&[]), "");
        assert!(!random.per_mille(0));
        assert!(random.per_mille(1_000));
    }
}
