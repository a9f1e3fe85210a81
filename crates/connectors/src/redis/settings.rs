//! What `potok.yaml` says of the store.

use potok_config::{Connections, Layout as LayoutSetting, StoreConnection};
use potok_core::Fault;

use super::{Layout, RedisStore};

/// The store of held records; `None` where they lie in the log.
pub fn store(connections: &Connections) -> Result<Option<RedisStore>, Fault> {
    let StoreConnection::Redis { url, layout } = &connections.store else { return Ok(None) };
    let layout = match layout {
        LayoutSetting::Documented => Layout::Documented,
        LayoutSetting::Compact => Layout::Compact,
    };
    RedisStore::new(url.expose(), layout).map(Some)
}
