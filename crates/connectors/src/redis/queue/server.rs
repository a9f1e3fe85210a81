//! Whether a Redis server can be the log of chats, and whether it is somebody else's already.

use potok_core::Fault;
use redis::Value;

use super::super::client::RedisClient;
use super::calls::QueueCalls;

/// The pipeline whose chats lie in this database, and its list.
const REGISTERED: &str = "potok:list:pipeline";

/// What a server says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerFacts {
    pub run_id: String,
    version: String,
    is_cluster: bool,
    /// These are empty where it does not tell.
    eviction: String,
    aof: String,
    fsync: String,
}

/// Asks the server.
pub(super) async fn facts(client: &RedisClient) -> Result<ServerFacts, Fault> {
    client.ping().await?;
    let mut facts = ServerFacts::default();
    for section in ["server", "memory", "persistence"] {
        let info = client.info(section).await.unwrap_or_default();
        for (name, value) in info.lines().filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            match name {
                "run_id" => value.clone_into(&mut facts.run_id),
                "redis_version" => value.clone_into(&mut facts.version),
                "redis_mode" => facts.is_cluster = value == "cluster",
                "maxmemory_policy" => value.clone_into(&mut facts.eviction),
                "aof_enabled" => value.clone_into(&mut facts.aof),
                _ => {}
            }
        }
    }
    let asked = client.command(redis::cmd("CONFIG").arg("GET").arg("appendfsync")).await;
    if let Ok(Value::Array(pair)) = asked
        && let Some(Value::BulkString(value)) = pair.into_iter().nth(1)
    {
        facts.fsync = String::from_utf8_lossy(&value).into_owned();
    }
    Ok(facts)
}

impl ServerFacts {
    /// Refuses a server that would lose messages or cannot do what is asked of it.
    pub fn refuse(&self, label: &str) -> Result<(), Fault> {
        let fix = |what: String, code, hint: &str| Err(Fault::fix(what).code(code).hint(hint));
        if self.is_cluster {
            return cluster(label);
        }
        let major = self.version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major.is_some_and(|major| major < 7) {
            let what = format!("{label} is version {}; the queue needs 7.0", self.version);
            return fix(what, "P1203", "use Redis 7.0 or newer");
        }
        if self.eviction.starts_with("allkeys") {
            let what = format!("{label} throws messages away when its memory is full");
            let hint = "set `maxmemory-policy noeviction` there, then `potok resume`";
            return fix(what, "P1204", hint);
        }
        Ok(())
    }

    /// What somebody should know, and is no reason not to start.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.eviction.starts_with("volatile") {
            warnings.push(format!(
                "Redis throws locks away when its memory is full (`maxmemory-policy {}`): set \
                 `noeviction`",
                self.eviction
            ));
        }
        let unseen = |what: &str, command: &str| {
            format!("what Redis does cannot be seen (`{command}` is not allowed here): {what}")
        };
        if self.aof.is_empty() || self.eviction.is_empty() {
            let what = "it needs `maxmemory-policy noeviction`, `appendonly yes` and `appendfsync \
                        always`, or messages may be lost; version 7.0 or newer, and no cluster";
            warnings.push(unseen(what, "INFO"));
        } else if self.aof != "1" {
            warnings.push(
                "Redis has no append-only file: what waits there is lost when it restarts; set \
                 `appendonly yes` and `appendfsync always`"
                    .to_owned(),
            );
        } else if self.fsync.is_empty() {
            let what = "without `appendfsync always` the last second of messages may be lost";
            warnings.push(unseen(what, "CONFIG GET"));
        } else if self.fsync != "always" {
            warnings.push(format!(
                "Redis syncs its append-only file `{}`: the last second of messages may be lost \
                 or repeated when its machine dies; `appendfsync always` is safe",
                self.fsync
            ));
        }
        warnings
    }
}

/// The documented keys lie in many slots.
pub(in super::super) fn cluster<T>(label: &str) -> Result<T, Fault> {
    Err(Fault::fix(format!("{label} is a cluster, which cannot hold the queue"))
        .hint("use a single server, with sentinels if you like")
        .code("P1202"))
}

/// Puts the pipeline's name where others see it: the documented keys carry none, so a database has
/// room for one pipeline and one list.
pub(super) async fn register(calls: &QueueCalls, pipeline: &str, list: &str) -> Result<(), Fault> {
    let own = format!("{pipeline} {list}");
    let other = calls.register(REGISTERED, &own).await?;
    if other == own {
        return Ok(());
    }
    let (pipeline, list) = other.split_once(' ').unwrap_or((&other, "?"));
    let label = calls.client.label();
    Err(Fault::fix(format!(
        "{label} already has the chats of the pipeline `{pipeline}` and its list `{list}`"
    ))
    .hint(format!(
        "use another database (`redis://…/1`); where that pipeline was renamed and runs no more, \
         `redis-cli DEL {REGISTERED}`, then `potok resume`"
    ))
    .code("P1205"))
}
