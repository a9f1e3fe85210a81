//! The keys of connectors in a pipeline file: taken out of what was checked, read into the structs
//! of their connectors, and checked by those.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};

use crate::connector::EntryCheck;
use crate::deliver::{Target, TopicSettings};
use crate::document::Document;
use crate::pipeline::Pipeline;
use crate::problem::{Findings, code};
use crate::process::{StageWork, VrlSettings};
use crate::registry::{ConnectorEntry, Registry};
use crate::source::{HttpSource, Input, ListSource, TopicSource, TopicsSource};
use crate::tree::Node;
use crate::variants::{self, Section};

/// What the entries of a file are, in their order; `None` where something is wrong with one.
pub(crate) struct Settings {
    inputs: Vec<Option<Input>>,
    works: Vec<Option<StageWork>>,
    targets: Vec<Option<Target>>,
}

impl Settings {
    /// Takes the keys of connectors out of `json`, so that only common keys are left.
    pub fn take(
        document: &Document,
        json: &mut Json,
        registry: &Registry,
        findings: &mut Findings,
    ) -> Self {
        let mut reader = Reader { document, json, registry, findings };
        Settings {
            inputs: reader.section(Section::Source, Reader::input),
            works: reader.section(Section::Process, Reader::work),
            targets: reader.section(Section::Deliver, Reader::target),
        }
    }

    /// Gives them to the pipeline that was read from the rest.
    pub fn put_into(self, pipeline: &mut Pipeline) {
        for (source, input) in pipeline.source.iter_mut().zip(self.inputs) {
            source.input = input;
        }
        for (stage, work) in pipeline.process.iter_mut().zip(self.works) {
            stage.work = work;
        }
        for (deliver, target) in pipeline.deliver.iter_mut().zip(self.targets) {
            deliver.target = target;
        }
    }
}

struct Reader<'a> {
    document: &'a Document,
    json: &'a mut Json,
    registry: &'a Registry,
    findings: &'a mut Findings,
}

/// What an entry of one kind is: its key, and the values of the keys that are its own.
type KindValues<'k> = (&'k str, Json);

impl<'a> Reader<'a> {
    fn section<T>(
        &mut self,
        section: Section,
        read: fn(&mut Self, KindValues<'_>, &'a Node) -> Option<T>,
    ) -> Vec<Option<T>> {
        let nodes = self.document.root.get(section.key()).map(Node::one_or_many);
        let nodes: &'a [Node] = nodes.unwrap_or_default();
        let schema = self.registry.pipeline_schema();
        let kinds = section.kinds(schema);
        let mut read_all = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            let own = self.take_own(section, index, schema);
            let named = variants::named(node, &kinds);
            let is_good = !self.findings.has_any(&node.at);
            read_all.push(match (named.as_slice(), own) {
                ([kind], Some(own)) if is_good => {
                    let key = variants::key_of(kind).unwrap_or_default();
                    read(self, (key, Json::Object(own)), node)
                }
                // The rules say what is wrong with it, or the walk has said it.
                _ => None,
            });
        }
        read_all
    }

    /// Takes the keys of an entry that are not common to all kinds.
    fn take_own(
        &mut self,
        section: Section,
        index: usize,
        schema: &Json,
    ) -> Option<Map<String, Json>> {
        let entry = match self.json.get_mut(section.key())? {
            Json::Array(entries) => entries.get_mut(index)?,
            one => one,
        };
        let all = std::mem::take(entry.as_object_mut()?);
        let is_common = |key: &str| section.is_common(schema, key);
        let (common, own) = all.into_iter().partition(|(key, _)| is_common(key));
        *entry = Json::Object(common);
        Some(own)
    }

    fn input(&mut self, (key, own): KindValues<'_>, node: &'a Node) -> Option<Input> {
        match key {
            "http" => self.http(own, node).map(Input::from),
            "topic" => self.read::<TopicSource>(own, node).map(Input::from),
            "topics" => self.read::<TopicsSource>(own, node).map(Input::from),
            "list" => self.read::<ListSource>(own, node).map(Input::from),
            key => {
                let settings = self.registered(&self.registry.feeds, key, own, node)?;
                settings.check(&mut self.check(node));
                Some(Input::Feed(settings))
            }
        }
    }

    fn http(&mut self, own: Json, node: &'a Node) -> Option<HttpSource> {
        let source = self.read::<HttpSource>(own, node)?;
        let proofs = source.auth.as_ref().map(|auth| (auth.secret.is_some(), auth.hmac.is_some()));
        if matches!(proofs, Some((false, false) | (true, true))) {
            let at = node.get("auth").map_or(node.at.clone(), |auth| auth.at.clone());
            let what = "`auth` needs either `secret` or `hmac`";
            let hint = "`secret` for a header that has a fixed value, `hmac` for a signature";
            self.findings.add_hint(code::COMPANION, at, what, hint);
            return None;
        }
        Some(source)
    }

    fn work(&mut self, (key, own): KindValues<'_>, node: &'a Node) -> Option<StageWork> {
        if key == "vrl" {
            let settings = self.read::<VrlSettings>(own, node)?;
            return Some(StageWork::Vrl(settings.vrl));
        }
        let settings = self.registered(&self.registry.stages, key, own, node)?;
        settings.check(&mut self.check(node));
        Some(StageWork::Connector(settings))
    }

    fn target(&mut self, (key, own): KindValues<'_>, node: &'a Node) -> Option<Target> {
        if key == "topic" {
            let settings = self.read::<TopicSettings>(own, node)?;
            return Some(Target::Topic(settings.topic));
        }
        let settings = self.registered(&self.registry.sinks, key, own, node)?;
        settings.check(&mut self.check(node));
        Some(Target::Connector(settings))
    }

    fn check(&mut self, node: &'a Node) -> EntryCheck<'_> {
        EntryCheck { root: &self.document.root, node, findings: self.findings }
    }

    fn registered<S: ?Sized>(
        &mut self,
        kinds: &'a [ConnectorEntry<S>],
        key: &str,
        own: Json,
        node: &Node,
    ) -> Option<std::sync::Arc<S>> {
        let kind = kinds.iter().find(|kind| kind.key == key)?;
        let read = (kind.read)(own);
        self.read_or_refuse(read, node)
    }

    fn read<T: DeserializeOwned>(&mut self, own: Json, node: &Node) -> Option<T> {
        let read = serde_json::from_value(own);
        self.read_or_refuse(read, node)
    }

    /// What a struct says about a value it refuses is not shown: the value may be a secret.
    fn read_or_refuse<T>(&mut self, read: Result<T, serde_json::Error>, node: &Node) -> Option<T> {
        let at = node.at.start..node.at.start + 1;
        let what = "a value of this entry has a form that its connector does not take";
        read.map_err(|_| self.findings.add(code::SETTING, at, what)).ok()
    }
}
