//! A hash that means the same to every build: what is hashed here is written to disk or into the log
//! and compared by later versions. FNV-1a of 64 bits; numbers as eight bytes, the lowest first, and
//! texts behind their length, so that no two lists of parts meet.

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

#[derive(Clone, Copy)]
pub(crate) struct FixedHash(u64);

impl FixedHash {
    pub fn new() -> Self {
        FixedHash(OFFSET)
    }

    pub fn number(self, number: u64) -> Self {
        self.raw(&number.to_le_bytes())
    }

    pub fn text(self, bytes: &[u8]) -> Self {
        self.number(bytes.len() as u64).raw(bytes)
    }

    pub fn finish(self) -> u64 {
        self.0
    }

    fn raw(self, bytes: &[u8]) -> Self {
        let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
        FixedHash(bytes.iter().fold(self.0, mix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published values of FNV-1a, and one of ours that files and seals out there have.
    #[test]
    fn its_values_never_change() {
        assert_eq!(FixedHash::new().raw(b"").finish(), 0xcbf2_9ce4_8422_2325);
        assert_eq!(FixedHash::new().raw(b"a").finish(), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(FixedHash::new().raw(b"foobar").finish(), 0x8594_4171_f739_67e8);
        let parts = |a: &[u8], b: &[u8]| FixedHash::new().text(a).text(b).finish();
        assert_ne!(parts(b"ab", b"c"), parts(b"a", b"bc"));
        assert_eq!(
            FixedHash::new().text(b"orders").number(7).finish(),
            FixedHash::new().raw(b"\x06\0\0\0\0\0\0\0orders\x07\0\0\0\0\0\0\0").finish()
        );
    }
}
