//! Chance that comes from a seed and from nothing else.

/// A small generator of numbers; the same seed gives the same numbers for ever.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Self {
        Chance(seed ^ 0x5eed_0000_0000_0001)
    }

    /// Another generator whose numbers have nothing to do with the further ones of this.
    pub fn fork(&mut self) -> Self {
        Chance(self.next())
    }

    /// The next 64 bits (SplitMix64).
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is at least 1.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// A number from `from` to `to`, both included.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from) + 1)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len() as u64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_everything_and_numbers_stay_in_range() {
        let (mut a, mut b) = (Chance::new(7), Chance::new(7));
        let mut seen = [0_u32; 5];
        for _ in 0..5_000 {
            let n = a.between(3, 7);
            assert_eq!(n, b.between(3, 7));
            seen[(n - 3) as usize] += 1;
        }
        assert!(seen.iter().all(|&times| times > 800), "{seen:?}");
        assert_ne!(Chance::new(1).next(), Chance::new(2).next());
    }
}
