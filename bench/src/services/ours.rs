//! potok on the services: its pipeline files and its variables.

use std::cell::Cell;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use potok_services::Kafka;

use super::topic::Topic;
use crate::measure::Process;
use crate::potok::{Running, Start, ask_with, root};

/// The program, and where it finds things.
pub struct PotokProgram<'a> {
    program: &'a Path,
    pub kafka: &'a Kafka,
    scratch: &'a Path,
    runs: Cell<u64>,
}

impl<'a> PotokProgram<'a> {
    pub fn new(program: &'a Path, kafka: &'a Kafka, scratch: &'a Path) -> Self {
        PotokProgram { program, kafka, scratch, runs: Cell::new(0) }
    }

    /// A number for each run: its names must be new, or it would go on where another stopped.
    pub fn next(&self) -> u64 {
        self.runs.set(self.runs.get() + 1);
        self.runs.get()
    }

    /// CPU seconds of Kafka so far, and of another server.
    pub fn servers(&self, other: Option<u32>) -> Result<f64> {
        let other = other.map(|pid| Process::of(pid).family_cpu()).transpose()?;
        Ok(Process::of(self.kafka.pid()).cpu()? + other.unwrap_or_default())
    }

    /// The statements that make the tables of `orders` in this database.
    pub fn ddl(&self, url: &str) -> Result<String> {
        let file = root().join("pipelines/orders.yaml");
        ask_with(self.program, [Path::new("ddl"), &file], &[("POTOK_DB_ORDERS", url)])
    }

    /// `pipelines/orders.yaml` as it is, but for a consumer group that has read nothing yet.
    pub fn orders(&self, url: &str) -> Result<Running> {
        let text = fs::read_to_string(root().join("pipelines/orders.yaml"))?;
        let (group, schema) = ("order-consumer", "schemas/order.json");
        ensure!(text.contains(group) && text.contains(schema), "orders.yaml has changed");
        let schema_path = root().join("pipelines").join(schema);
        let text = text
            .replace(group, &format!("order-consumer-{}", self.next()))
            .replace(schema, schema_path.to_str().context("a path that is text")?);
        self.start("orders", &text, "", &[("POTOK_DB_ORDERS", url)])
    }

    /// A pipeline from one topic into another.
    pub fn between(&self, from: &Topic<'_>, to: &Topic<'_>, steps: &str) -> Result<Running> {
        let name = format!("bench-{}", self.next());
        let text = format!(
            "name: {name}\nsource: {{ topic: {} }}\n{steps}\ndeliver: [{{ topic: {} }}]\n",
            from.name, to.name
        );
        self.start(&name, &text, "", &[])
    }

    /// Starts a pipeline with its log in Kafka and whatever else `connections` says.
    pub fn start(
        &self,
        name: &str,
        text: &str,
        connections: &str,
        variables: &[(&str, &str)],
    ) -> Result<Running> {
        let folder = self.scratch.join(format!("run-{}", self.runs.get()));
        fs::create_dir_all(&folder)?;
        let (file, config) = (folder.join("pipeline.yaml"), folder.join("potok.yaml"));
        fs::write(&file, text)?;
        fs::write(&config, format!("log: kafka://{}\n{connections}", self.kafka.servers()))?;
        let start = Start { pipeline: name, file: &file, config: Some(&config), variables };
        Running::start_with(self.program, &folder.join("data"), start)
    }
}
