//! `potok schema`: JSON Schema for editors.

use std::io::Write;

use crate::failure::Failure;
use crate::registry::registry;
use crate::terminal;

/// Print the JSON Schema of pipeline files, for editors
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok schema > pipeline.schema.json
  potok schema connections > potok.schema.json

Then begin a pipeline file with:
  # yaml-language-server: $schema=pipeline.schema.json")]
pub struct Schema {
    /// Of which file
    #[arg(default_value = "pipeline")]
    of: SchemaKind,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum SchemaKind {
    /// Pipeline files.
    Pipeline,
    /// The connections file, potok.yaml.
    Connections,
}

impl Schema {
    pub fn run(self) -> Result<(), Failure> {
        let schema = match self.of {
            SchemaKind::Pipeline => potok_config::json_schema(registry()),
            SchemaKind::Connections => potok_config::connections_schema(registry()),
        };
        let mut out = terminal::out();
        writeln!(out, "{schema:#}")?;
        out.flush()?;
        Ok(())
    }
}
