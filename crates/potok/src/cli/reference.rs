//! `potok reference`: the reference pages, from the same structs that read the files.

use std::io::Write;
use std::path::PathBuf;

use crate::failure::Failure;
use crate::registry::registry;
use crate::terminal;

/// Print the reference of every key in pipeline files and potok.yaml
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok reference | less
  potok reference --out docs/reference        one file per page")]
pub struct Reference {
    /// Write the pages into this folder instead
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Reference {
    pub fn run(self) -> Result<(), Failure> {
        let mut out = terminal::out();
        for (index, (name, page)) in potok_config::reference(registry()).into_iter().enumerate() {
            match &self.out {
                Some(folder) => {
                    let path = folder.join(name);
                    let written =
                        std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, page));
                    written.map_err(|error| {
                        Failure::new("P0522", format!("{} cannot be written", path.display()))
                            .because(error)
                    })?;
                    writeln!(out, "{}", path.display())?;
                }
                None => {
                    let between = if index == 0 { "" } else { "\n" };
                    write!(out, "{between}{page}")?;
                }
            }
        }
        out.flush()?;
        Ok(())
    }
}
