//! Any bytes, as they are.

use potok_core::{DecodeResult, Decoder, Record};

/// Takes every value as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct RawDecoder;

impl Decoder for RawDecoder {
    fn decode(&self, records: &[&Record]) -> Vec<DecodeResult> {
        records.iter().map(|_| DecodeResult::AsIs).collect()
    }
}
