//! HTTP sources: what the listener is to take, and for which topics.

use potok_config::{Connections, Input, LoadedFile, LogConnection, Pipeline, Problem};
use potok_expr::Template;
use potok_server::{HttpAuth, HttpSource};

/// The HTTP sources of all pipelines.
pub fn http_sources(pipelines: &[LoadedFile<Pipeline>]) -> Vec<HttpSource> {
    let mut sources = Vec::new();
    for pipeline in pipelines {
        for input in pipeline.inputs() {
            let Input::Topics { topics, http: Some(http), .. } = input else { continue };
            let auth = http.auth.as_ref().and_then(|auth| {
                let header = auth.header.clone();
                let exposed = |secret: &potok_config::Secret| secret.expose().to_owned();
                match (&auth.secret, &auth.hmac) {
                    (Some(secret), _) => Some(HttpAuth::Secret { header, secret: exposed(secret) }),
                    (None, Some(key)) => Some(HttpAuth::Signature { header, secret: exposed(key) }),
                    (None, None) => None,
                }
            });
            let verify = http.auth.as_ref().and_then(|auth| auth.verify.as_ref());
            let verify = verify.map(|token| token.expose().to_owned());
            let verify = verify.filter(|token| !token.is_empty());
            let key = http.key.as_ref().map(|key| key.template().clone());
            let key = key.or_else(|| shard_key(pipeline));
            sources.extend(topics.iter().map(|topic| HttpSource {
                pipeline: pipeline.name.to_string(),
                path: http.path.to_string(),
                topic: topic.as_str().into(),
                key: key.clone(),
                each: http.each.as_ref().map_or_else(Vec::new, |each| each.steps().to_vec()),
                auth: auth.clone(),
                verify: verify.clone(),
            }));
        }
    }
    sources
}

/// Where nobody names a key, the value that tells the shard: what belongs to one of them is in one
/// partition and keeps its order.
fn shard_key(pipeline: &Pipeline) -> Option<Template> {
    let shard = pipeline.group.as_ref()?.shard.as_ref()?;
    Template::parse(shard.by.path().source()).ok()
}

/// Warnings for HTTP sources that may take a repeat of a request twice: on a log that several processes share, each
/// of them knows only the `Idempotency-Key`s that it took itself, and no delivery leaves out what comes again.
pub fn unseen_repeats(pipeline: &LoadedFile<Pipeline>, connections: &Connections) -> Vec<Problem> {
    let is_shared = !matches!(connections.log, LogConnection::Embedded);
    if !is_shared || pipeline.deliver.iter().any(|deliver| !deliver.once_by.is_empty()) {
        return Vec::new();
    }
    let warning = |(index, input): (usize, &Input)| {
        let Input::Topics { http: Some(http), .. } = input else { return None };
        let what = format!(
            "a request to `{}` that is repeated at another process, or after a restart, is taken again: on Kafka each \
             knows only the Idempotency-Keys that it took itself",
            http.path
        );
        let hint = "with `once_by` in the delivery the second is a duplicate";
        let mut problem =
            pipeline.problem_of("source", index, &["http"], "P0546", &what, Some(hint));
        problem.severity = "warning";
        Some(problem)
    };
    pipeline.inputs().enumerate().filter_map(warning).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::path::Path;

    use potok_config::{Env, Flags, load_connections};
    use potok_core::Headers;
    use potok_expr::Scope;
    use potok_expr::json::Parser;

    use super::*;
    use crate::registry::registry;

    fn loaded(folder: &Path, text: &str) -> LoadedFile<Pipeline> {
        let file = folder.join("p.yaml");
        fs::write(&file, text).unwrap();
        let mut loaded = crate::wire::load(&[file]).unwrap_or_else(|f| unreachable!("{f:?}"));
        loaded.remove(0)
    }

    fn connections(folder: &Path, text: &str) -> Connections {
        let file = folder.join("potok.yaml");
        fs::write(&file, text).unwrap();
        load_connections(Some(&file), &Flags::default(), &Env::default(), registry()).unwrap()
    }

    fn key_of(pipeline: LoadedFile<Pipeline>, value: &[u8]) -> Option<String> {
        let sources = http_sources(&[pipeline]);
        let mut parser = Parser::new();
        let key = sources[0].key.as_ref()?.eval_bytes(&Scope {
            value: parser.parse(value).ok(),
            key: None,
            headers: &Headers::none(),
            topic: &sources[0].topic,
            id: None,
            receiver: None,
        });
        key.map(|key| String::from_utf8(key.to_vec()).unwrap())
    }

    /// Otherwise the events of a shop would be in all partitions, and overtake each other on their way into a group.
    #[test]
    fn the_key_is_what_tells_the_shard_where_nobody_names_another() {
        let folder = tempfile::tempdir().unwrap();
        let text = |key: &str, group: &str| {
            format!(
                "name: p\nsource: {{ http: /in, topic: in{key} }}\n{group}deliver: [{{ topic: out }}]\n"
            )
        };
        let group = "group: { shard: { by: .shop.id, of: 2 }, close: { every: 10s } }\n";
        let value = br#"{"shop":{"id":7},"user":"u"}"#;
        let key = |key: &str, group: &str| key_of(loaded(folder.path(), &text(key, group)), value);
        assert_eq!(key("", group).as_deref(), Some("7"));
        assert_eq!(key(", key: .user", group).as_deref(), Some("u"));
        assert_eq!(key("", ""), None);
    }

    #[test]
    fn a_repeat_that_kafka_would_take_twice_is_warned_of() {
        let folder = tempfile::tempdir().unwrap();
        let text = |deliver: &str| format!("name: p\nsource:\n  http: /in\n  topic: in\n{deliver}");
        let once = "deliver: [{ db: d, table: t, once_by: .id }]\n";
        let topic = "deliver: [{ topic: out }]\n";
        let kafka = connections(folder.path(), "log: kafka://127.0.0.1:9\n");
        let warnings = unseen_repeats(&loaded(folder.path(), &text(topic)), &kafka);
        let shown: Vec<_> = warnings.iter().map(|w| (w.severity, w.code, w.line)).collect();
        assert_eq!(shown, [("warning", "P0546", 3)]);
        assert!(warnings[0].what.contains("`/in`"), "{}", warnings[0].what);
        assert_eq!(unseen_repeats(&loaded(folder.path(), &text(once)), &kafka), []);
        let read = "name: p\nsource: { topic: in }\ndeliver: [{ topic: out }]\n";
        assert_eq!(unseen_repeats(&loaded(folder.path(), read), &kafka), []);
        let embedded = connections(folder.path(), "log: embedded\n");
        assert_eq!(unseen_repeats(&loaded(folder.path(), &text(topic)), &embedded), []);
    }
}
