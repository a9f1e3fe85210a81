//! From bytes to events.

use crate::{Fault, Record};

/// The result of decoding one record.
#[derive(Clone, Debug)]
pub enum DecodeResult {
    /// The value is good as it is.
    AsIs,
    /// Not readable, or against the schema: a dead letter.
    Bad(Fault),
}

/// Checks and reads the values of records, batch by batch.
pub trait Decoder: Send + Sync {
    /// Says of each record, in order, what it is. Called once per record and assignment, in the
    /// record's lane; must not block, and must survive any bytes. A panic counts as a crash of
    /// that record.
    fn decode(&self, records: &[&Record]) -> Vec<DecodeResult>;
}
