//! `potok new`: a pipeline file to start from.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use potok_config::{Env, load_pipeline};
use serde_json::json;

use crate::failure::Failure;
use crate::registry::registry;
use crate::terminal;

/// Write a commented pipeline file to start from
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok new payments                          writes payments.yaml
  potok new payments --dir pipelines && potok run pipelines/payments.yaml")]
pub struct New {
    /// Name of the pipeline, and of the file
    name: String,
    /// Folder to write it into [default: the current one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl New {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        if self.name.contains(['/', '\\']) || self.name.starts_with('.') {
            return Err(Failure::usage(format!("`{}` is no name for a pipeline", self.name))
                .hint("letters, digits and dashes; --dir says where the file goes"));
        }
        let file = format!("{}.yaml", self.name);
        let path = match &self.dir {
            Some(dir) => dir.join(file),
            None => PathBuf::from(file),
        };
        let cannot = |error: std::io::Error| {
            let failure = Failure::new("P0522", format!("{} cannot be written", path.display()));
            match error.kind() {
                ErrorKind::AlreadyExists => failure.because("there is such a file already"),
                _ => failure.because(error),
            }
        };
        let mut file =
            OpenOptions::new().write(true).create_new(true).open(&path).map_err(cannot)?;
        file.write_all(starter(&self.name).as_bytes()).map_err(cannot)?;
        if let Err(problems) = load_pipeline(&path, &Env::default(), registry()) {
            // The name is all that can be wrong with it; leave nothing behind that does not work.
            let _ = std::fs::remove_file(&path);
            return Err(problems.into());
        }
        let mut out = terminal::out();
        if json {
            writeln!(out, "{}", json!({ "file": path, "pipeline": self.name }))?;
        } else {
            let file = path.display();
            writeln!(out, "wrote {file}")?;
            writeln!(out, "check it   potok check {file}")?;
            writeln!(out, "run it     potok run {file}")?;
            writeln!(out, "feed it    echo '{{\"id\":1}}' | potok send {}", self.name)?;
            writeln!(out, "look       potok read {}-out", self.name)?;
        }
        out.flush()?;
        Ok(())
    }
}

fn starter(name: &str) -> String {
    STARTER.replace("NAME", name)
}

const STARTER: &str = r#"# A pipeline: source -> decode -> process -> deliver.
# `potok reference` explains every key, `potok check` finds every mistake.
name: NAME

# Target records come from. Feed it with `potok send NAME`.
source: { topic: NAME }

# Every record must be JSON. A schema refuses what does not fit; refused records become dead
# letters (`potok dead-letters list NAME`), and nothing else stops.
decode:
  format: json
  # schema: schemas/NAME.json

# Steps in VRL: the event is `.`, `abort` filters it.
process:
  - stage: tidy
    vrl: |
      if is_null(.id) { abort }
      .seen = true
    on_error: dead_letter     # or pass: the original goes on; or stop

# Target events go. A record has ended when every entry here has.
deliver:
  - topic: NAME-out
    key: .id                  # records of one key stay in order
  # - db: NAME                # SQLite in the data folder, until potok.yaml says otherwise
  #   table: events
  #   once_by: .id            # a second one with the same id is a repeat, not an error
  #   create_tables: true     # needs a schema under `decode`

# retry:       { attempts: 5, first: 50ms, max: 5s }
# gate:        { probe_every: 2s }
# dead_letter: { topic: NAME-dead }
"#;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    #[test]
    fn the_starter_is_a_good_pipeline() {
        let folder = tempfile::tempdir().unwrap();
        let new = New { name: "my-events".to_owned(), dir: Some(folder.path().to_owned()) };
        new.run(true).unwrap_or_else(|failure| panic!("{failure:?}"));
        let file = folder.path().join("my-events.yaml");
        let loaded = crate::wire::load(std::slice::from_ref(&file)).unwrap();
        assert_eq!(loaded[0].topics(), ["my-events"]);

        let again = New { name: "my-events".to_owned(), dir: Some(folder.path().to_owned()) };
        assert!(again.run(true).is_err(), "never over a file that is there");
        let bad = New { name: "../x".to_owned(), dir: Some(folder.path().to_owned()) };
        assert_eq!(bad.run(true).err().map(|failure| failure.exit), Some(2));
    }
}
