//! `potok explain`: the page of an error code.

use std::io::Write;

use crate::failure::Failure;
use crate::terminal;

/// Explain an error code: what it means and what to do
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok explain P0508
  potok explain                               all codes")]
pub struct Explain {
    /// The code, as in error[P0508]
    code: Option<String>,
}

impl Explain {
    pub fn run(self) -> Result<(), Failure> {
        let mut out = terminal::out();
        match self.code {
            Some(code) => {
                let page = potok_config::explain(&code).ok_or_else(|| {
                    Failure::new("P0501", format!("there is no page for `{code}`"))
                        .hint("`potok explain` lists all codes")
                })?;
                writeln!(out, "{}", page.trim_end())?;
            }
            None => {
                for code in potok_config::explain_codes() {
                    let page = potok_config::explain(code).unwrap_or_default();
                    let title =
                        page.lines().next().unwrap_or_default().trim_start_matches('#').trim();
                    match title.starts_with(code) {
                        true => writeln!(out, "{title}")?,
                        false => writeln!(out, "{code}: {title}")?,
                    }
                }
            }
        }
        out.flush()?;
        Ok(())
    }
}
