//! What `potok.yaml` says of the store.

use potok_config::{Connections, KeyStyle as KeySetting, StoreConnection};
use potok_core::Fault;

use super::{KeyStyle, RedisStore};

/// The store of held records; `None` where they lie in the log.
pub fn store(connections: &Connections) -> Result<Option<RedisStore>, Fault> {
    let StoreConnection::Redis { url, keys } = &connections.store else { return Ok(None) };
    let keys = match keys {
        KeySetting::Readable => KeyStyle::Readable,
        KeySetting::Packed => KeyStyle::Packed,
    };
    RedisStore::new(url.expose(), keys).map(Some)
}
