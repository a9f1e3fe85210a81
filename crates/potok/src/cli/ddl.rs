//! `potok ddl`: the statements that make a pipeline's tables.

use std::io::Write;
use std::path::PathBuf;

use serde_json::json;

use crate::client::Target;
use crate::failure::Failure;
use crate::{terminal, wire};

/// Print the SQL statements that make the tables of pipelines
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok ddl pipelines/orders.yaml
  potok ddl pipelines/orders.yaml | sqlite3 orders.sqlite

With `create_tables: true` a pipeline runs them itself. Tables come from the schema under
`decode`; without one nothing is known of their columns.")]
pub struct Ddl {
    /// Pipeline files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Connections file [default: ./potok.yaml if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Ddl {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        let pipelines = wire::load(&self.files)?;
        let connections = Target { config: self.config, ..Target::default() }.connections()?;
        let mut out = terminal::out();
        for pipeline in &pipelines {
            for statement in wire::ddl(pipeline, &connections)? {
                if json {
                    let name = pipeline.name.to_string();
                    writeln!(out, "{}", json!({ "pipeline": name, "statement": statement }))?;
                } else {
                    writeln!(out, "{statement};")?;
                }
            }
        }
        out.flush()?;
        Ok(())
    }
}
