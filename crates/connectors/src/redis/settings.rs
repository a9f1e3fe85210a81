//! The settings of the store and the queue in `potok.yaml`.

use potok_config::{
    Close, Connections, Group, KeyStyle as KeySetting, QueueConnection, QuietBy, StoreConnection,
};
use potok_core::Fault;

use super::queue::{QueueOptions, RedisQueue};
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

/// The queue that a list is, for a pipeline with this `group`; `None` where lists are topics.
pub fn queue(
    connections: &Connections,
    pipeline: &str,
    list: &str,
    group: Option<&Group>,
) -> Result<Option<RedisQueue>, Fault> {
    let QueueConnection::Redis { url, lease, waiting_max } = &connections.queue else {
        return Ok(None);
    };
    let refuse = |what: &str| {
        let what = format!("pipeline `{pipeline}`: {what}");
        Err(Fault::fix(what).code("P1208").hint(
            "a list in Redis is grouped by `by` and closes by `quiet`, `max_age`, `max_count` and \
             `max_bytes`; for more, read a topic",
        ))
    };
    let Some(group) = group else {
        return refuse("a list in Redis needs `group`");
    };
    let Some(by) = &group.by else {
        return refuse("a list in Redis needs `group.by`");
    };
    let Close { after_first, quiet, quiet_by, every, when, max_age, max_count, max_bytes } =
        &group.close;
    let others = [
        ("shard", group.shard.is_some()),
        ("id", group.id.is_some()),
        ("kinds", group.kinds.iter().next().is_some()),
        ("close.after_first", after_first.is_some()),
        ("close.every", every.is_some()),
        ("close.when", when.is_some()),
    ];
    if let Some((key, _)) = others.iter().find(|(_, is_there)| *is_there) {
        return refuse(&format!("`group.{key}` does not go with a list in Redis"));
    }
    let Some(max_age) = max_age else {
        return refuse("a list in Redis needs `group.close.max_age`");
    };
    if lease.as_millis() < 1_000 {
        let fault = Fault::fix("`queue.lease` is shorter than a second").code("P1209");
        return Err(fault.hint("half a minute is usual"));
    }
    let options = QueueOptions {
        pipeline: pipeline.to_owned(),
        list: list.to_owned(),
        by: by.template().clone(),
        quiet: quiet.map_or(**max_age, |quiet| *quiet),
        quiet_by: quiet_by.as_ref().map(QuietBy::period_by),
        max_age: **max_age,
        max_count: *max_count,
        max_bytes: max_bytes.map(|size| size.bytes()),
        lease: **lease,
        waiting_max: u64::from(*waiting_max),
        seen: Some(connections.data_dir.join("redis-queue")),
    };
    RedisQueue::new(url.expose(), options).map(Some)
}
