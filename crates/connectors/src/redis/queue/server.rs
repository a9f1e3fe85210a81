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
    run_id: String,
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

/// What was known of a server at the last look.
#[derive(Default)]
pub(super) struct ServerWatch {
    run_id: String,
    is_refused: bool,
}

impl ServerWatch {
    /// What has changed since, in words.
    pub fn news(&mut self, facts: &ServerFacts, label: &str) -> Vec<String> {
        let mut news = Vec::new();
        // What is not told now is not another server's.
        if !facts.run_id.is_empty() {
            if !self.run_id.is_empty() && self.run_id != facts.run_id {
                news.push(
                    "another Redis answers: the last writes may be gone or repeated".to_owned(),
                );
            }
            facts.run_id.clone_into(&mut self.run_id);
        }
        let refused = facts.refuse(label);
        if let Err(fault) = &refused
            && !self.is_refused
        {
            news.push(format!("the settings of Redis have changed: {fault}"));
        }
        self.is_refused = refused.is_err();
        news
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn facts(run_id: &str, version: &str, eviction: &str) -> ServerFacts {
        let (run_id, version) = (run_id.to_owned(), version.to_owned());
        ServerFacts { run_id, version, eviction: eviction.to_owned(), ..ServerFacts::default() }
    }

    #[test]
    fn servers_that_are_too_old_are_refused() {
        for version in ["6.2.14", "5.0", "3"] {
            let refused = facts("a", version, "noeviction").refuse("redis").unwrap_err();
            assert_eq!(refused.code, "P1203");
            assert!(refused.to_string().contains(version), "{refused}");
        }
        for version in ["7.0.0", "7.2.4", "8.0", "10.1", ""] {
            assert!(facts("a", version, "noeviction").refuse("redis").is_ok(), "{version}");
        }
    }

    #[test]
    fn what_changes_is_said_once() {
        let mut watch = ServerWatch::default();
        let mut news = |run_id: &str, eviction: &str| {
            watch.news(&facts(run_id, "7.2.4", eviction), "redis").join("; ")
        };
        assert_eq!(news("a", "noeviction"), "");
        assert_eq!(news("", "noeviction"), "", "it only did not tell");
        assert_eq!(news("a", "noeviction"), "");
        assert!(news("b", "noeviction").contains("another Redis answers"));
        assert_eq!(news("b", "noeviction"), "");
        assert!(news("b", "allkeys-lru").contains("settings of Redis have changed"));
        assert_eq!(news("b", "allkeys-lru"), "");
        assert_eq!(news("b", "noeviction"), "");
        assert!(news("b", "allkeys-lru").contains("settings of Redis have changed"));
    }
}
