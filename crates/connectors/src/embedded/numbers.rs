//! Numbers and texts as they lie in the log, little-endian.

/// Reads little-endian numbers and texts off the front of a slice.
pub struct Cut<'a>(pub &'a [u8]);

impl<'a> Cut<'a> {
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn text(&mut self) -> Option<&'a str> {
        let len = self.u16()?;
        std::str::from_utf8(self.take(usize::from(len))?).ok()
    }

    pub fn pairs(&mut self) -> Option<Vec<(u64, u64)>> {
        let count = self.u32()? as usize;
        // Checked before anything is reserved for it.
        let bytes = self.take(count.checked_mul(16)?)?;
        let mut cut = Cut(bytes);
        (0..count).map(|_| Some((cut.u64()?, cut.u64()?))).collect()
    }
}

pub fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Names are checked before they come here (`NAME_BYTES_MAX`), so a length always fits.
pub fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

pub fn put_pairs(out: &mut Vec<u8>, pairs: impl ExactSizeIterator<Item = (u64, u64)>) {
    put_u32(out, pairs.len() as u32);
    for (left, right) in pairs {
        put_u64(out, left);
        put_u64(out, right);
    }
}
