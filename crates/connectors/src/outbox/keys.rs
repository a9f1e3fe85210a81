//! What a row is ordered by, and what its deliveries are named after.

use std::sync::Arc;

use bytes::Bytes;
use potok_core::{Position, Record};
use potok_expr::json::Parser;
use potok_expr::{Scope, Template};
use sha2::{Digest as _, Sha256};

use super::table::OutboxRow;

/// Finds the key of a row, as the pipeline does.
pub(super) struct RowKeys {
    pub template: Option<Template>,
    pub parser: Parser,
}

impl RowKeys {
    /// Without a key that can be read, a row has a key of its own: its id.
    pub fn of(&mut self, row: &OutboxRow, record: &Record, topic: &str) -> Bytes {
        let own = || Bytes::copy_from_slice(row.id.as_bytes());
        let Some(template) = &self.template else { return own() };
        let value = record.value.as_deref().filter(|_| template.needs_value());
        let scope = Scope {
            value: value.and_then(|value| self.parser.parse(value).ok()),
            key: record.key.as_deref(),
            headers: &record.headers,
            topic,
            id: None,
            receiver: None,
        };
        template.eval_bytes(&scope).unwrap_or_else(own)
    }
}

/// What deliveries of a row are named after: nothing but its id.
pub(super) fn position(topic: &Arc<str>, id: &str) -> Position {
    let hash = Sha256::digest(id.as_bytes());
    let part = |at: usize| {
        let bytes = hash.get(at..at + 8).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
        u64::from_be_bytes(bytes.unwrap_or_default())
    };
    Position { log: part(0), topic: topic.clone(), partition: 0, offset: part(8) }
}
