//! The settings that potok's own topics must have. Topics that potok makes have them; those that
//! somebody else has made, or changed since, are looked at whenever a group is opened.

use std::collections::HashMap;
use std::sync::Arc;

use potok_core::{Fault, PipelineInfo};
use rdkafka::admin::{AdminOptions, OwnedResourceSpecifier, ResourceSpecifier};

use super::topics::{TopicKind, Topics};
use super::{fault, lock, registry};

/// Bytes of a batch besides what its records hold.
const BATCH_BYTES: usize = 200;

type Settings = HashMap<String, String>;

/// A setting that should be another.
#[derive(Debug, PartialEq, Eq)]
struct WrongSetting {
    setting: &'static str,
    should: String,
    why: &'static str,
    /// Records would be lost or mistimed; otherwise somebody may want it so.
    is_harmful: bool,
}

/// The wrong settings of a topic for that purpose, where sources take records of so many bytes.
fn wrongs(kind: TopicKind, settings: &Settings, source_bytes: u64) -> Vec<WrongSetting> {
    let is = |setting: &str| settings.get(setting).map(String::as_str);
    let number = |setting: &str| is(setting).and_then(|text| text.parse::<i64>().ok());
    let compacts = is("cleanup.policy").is_some_and(|policy| policy.contains("compact"));
    let mut wrongs = Vec::new();
    let mut add = |setting, should: &str, why, is_harmful| {
        wrongs.push(WrongSetting { setting, should: should.to_owned(), why, is_harmful });
    };
    if kind == TopicKind::Registry {
        if is("cleanup.policy").is_some_and(|policy| policy != "compact") {
            add("cleanup.policy", "compact", "what groups are for would be forgotten", false);
        }
        return wrongs;
    }
    if kind == TopicKind::Records {
        return wrongs;
    }
    if compacts {
        add("cleanup.policy", "delete", "records that share a key would be deleted", true);
    }
    let is_internal = kind == TopicKind::Internal;
    let expires = match is_internal {
        true => "records of open groups would be deleted",
        false => "dead letters would be deleted unseen",
    };
    for setting in ["retention.ms", "retention.bytes"] {
        if number(setting).is_some_and(|keeps| keeps >= 0) {
            add(setting, "-1", expires, is_internal);
        }
    }
    if is_internal && is("message.timestamp.type").is_some_and(|kind| kind != "LogAppendTime") {
        let why = "windows would go by the clocks of processes";
        add("message.timestamp.type", "LogAppendTime", why, true);
    }
    let takes = number("max.message.bytes").and_then(|bytes| u64::try_from(bytes).ok());
    if kind != TopicKind::Resolved && takes.is_some_and(|takes| takes < source_bytes) {
        let why = "it takes less than the sources: larger records become dead letters, in pieces";
        add("max.message.bytes", &(source_bytes + (1 << 20)).to_string(), why, false);
    }
    wrongs
}

impl Topics {
    /// Looks at a pipeline's own topics, as far as they are there and may be looked at. Returns
    /// what to warn of; what would do harm is a fault, until somebody has changed it.
    pub async fn check_own(
        &self,
        info: &PipelineInfo,
        sources: &[Arc<str>],
    ) -> Result<Vec<String>, Fault> {
        self.register(info);
        let own = [&info.dead_letters, &info.resolved, &info.replay];
        let own = own.into_iter().chain(&info.internal).map(|topic| Arc::from(topic.as_str()));
        let own: Vec<Arc<str>> = own.chain([Arc::from(registry::TOPIC)]).collect();
        let mut all: Vec<&Arc<str>> = own.iter().chain(sources).collect();
        // Asking for one twice is an error.
        all.sort();
        all.dedup();
        let Some(settings) = self.settings(&all).await else { return Ok(Vec::new()) };
        let is_source = |topic: &&Arc<str>| !own.contains(topic);
        let takes = |topic: &Arc<str>| -> Option<u64> {
            settings.get(topic)?.get("max.message.bytes")?.parse().ok()
        };
        let source_bytes = sources.iter().filter(is_source).filter_map(takes).max().unwrap_or(0);
        let taken = own.iter().filter_map(|topic| Some((topic.clone(), takes(topic)? as usize)));
        lock(&self.limits).extend(taken);
        let mut warnings = Vec::new();
        for topic in &own {
            let (Some(settings), Some(kind)) = (settings.get(topic), self.kind(topic)) else {
                continue;
            };
            let wrongs = wrongs(kind, settings, source_bytes);
            let harmful = wrongs.iter().any(|wrong| wrong.is_harmful);
            let told: Vec<&WrongSetting> =
                wrongs.iter().filter(|wrong| wrong.is_harmful == harmful).collect();
            if told.is_empty() {
                continue;
            }
            let what = |wrong: &&WrongSetting| {
                let WrongSetting { setting, why, .. } = wrong;
                format!(
                    "`{setting}` is {}: {why}",
                    settings.get(*setting).map_or("", String::as_str)
                )
            };
            let what = told.iter().map(what).collect::<Vec<_>>().join("; ");
            let should = |wrong: &&WrongSetting| format!("{}={}", wrong.setting, wrong.should);
            let change = told.iter().map(should).collect::<Vec<_>>().join(",");
            let command = format!(
                "kafka-configs.sh --bootstrap-server {} --alter --entity-type topics --entity-name \
                 {topic} --add-config {change}",
                self.servers()
            );
            if harmful {
                return Err(fault::own_topic(topic, &what, &command));
            }
            warnings.push(format!("topic `{topic}`: {what} (`{command}`)"));
        }
        Ok(warnings)
    }

    /// How many bytes a record for a topic of potok's own may have, as far as is known.
    pub fn takes(&self, topic: &str) -> Option<usize> {
        lock(&self.limits).get(topic).map(|bytes| bytes.saturating_sub(BATCH_BYTES))
    }

    fn kind(&self, topic: &str) -> Option<TopicKind> {
        lock(&self.kinds).get(topic).copied()
    }

    /// How topics are set up; `None` where nobody says, or may not say.
    async fn settings(&self, topics: &[&Arc<str>]) -> Option<HashMap<Arc<str>, Settings>> {
        let asked: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
        let options = AdminOptions::new().request_timeout(Some(self.patience()));
        let described = match self.admin.describe_configs(&asked, &options).await {
            Ok(described) => described,
            Err(error) => {
                tracing::debug!(%error, "how topics are set up cannot be asked");
                return None;
            }
        };
        let mut found = HashMap::new();
        for resource in described.into_iter().flatten() {
            let OwnedResourceSpecifier::Topic(topic) = resource.specifier else { continue };
            let setting = |entry: rdkafka::admin::ConfigEntry| Some((entry.name, entry.value?));
            let settings = resource.entries.into_iter().filter_map(setting).collect();
            found.insert(Arc::from(topic), settings);
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(
        kind: TopicKind,
        settings: &[(&str, &str)],
        source_bytes: u64,
    ) -> Vec<(&'static str, bool)> {
        let settings = settings.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        let wrongs = wrongs(kind, &settings, source_bytes);
        wrongs.into_iter().map(|wrong| (wrong.setting, wrong.is_harmful)).collect()
    }

    #[test]
    fn what_would_lose_records_is_told_apart_from_what_may_be_meant() {
        let good = [
            ("cleanup.policy", "delete"),
            ("retention.ms", "-1"),
            ("retention.bytes", "-1"),
            ("message.timestamp.type", "LogAppendTime"),
            ("max.message.bytes", "69206016"),
        ];
        for kind in [TopicKind::Internal, TopicKind::DeadLetters, TopicKind::Resolved] {
            assert_eq!(told(kind, &good, 1_048_588), []);
            assert_eq!(told(kind, &[("cleanup.policy", "compact")], 0), [("cleanup.policy", true)]);
            assert_eq!(told(kind, &[], 1), [], "what is not known is not wrong");
        }
        let week = [("retention.ms", "604800000"), ("cleanup.policy", "compact,delete")];
        let both = [("cleanup.policy", true), ("retention.ms", true)];
        assert_eq!(told(TopicKind::Internal, &week, 0), both);
        assert_eq!(told(TopicKind::DeadLetters, &week[..1], 0), [("retention.ms", false)]);
        let by_sender = [("message.timestamp.type", "CreateTime")];
        assert_eq!(told(TopicKind::Internal, &by_sender, 0), [("message.timestamp.type", true)]);
        assert_eq!(told(TopicKind::DeadLetters, &by_sender, 0), []);
        let small = [("max.message.bytes", "1000")];
        assert_eq!(told(TopicKind::Internal, &small, 1_001), [("max.message.bytes", false)]);
        assert_eq!(told(TopicKind::Internal, &small, 1_000), []);
        assert_eq!(told(TopicKind::Registry, &[("cleanup.policy", "compact")], 0), []);
        assert_eq!(told(TopicKind::Registry, &week[..1], 0), []);
        assert_eq!(
            told(TopicKind::Registry, &[("cleanup.policy", "delete")], 0),
            [("cleanup.policy", false)]
        );
    }
}
