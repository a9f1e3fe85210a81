//! Takes the pictures of the documents: tests take all, documents have those that they name.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::{cargo, services};

/// Where the tests put them, and where documents have theirs.
const TAKEN: [&str; 3] = ["target", "tmp", "dashboard"];
const KEPT: &str = "docs/images";

/// Runs the tests that take them, and takes over those that there are already.
pub fn run() -> Result<()> {
    services::install_all()?;
    let tests =
        ["--workspace", "--test", "screens", "--test", "pages", "--", "every_screen", "the_way_in"];
    cargo::run("test", &tests)?;
    let mut count = 0;
    for entry in std::fs::read_dir(KEPT).context(KEPT)? {
        let kept = entry?.path();
        let taken = TAKEN.iter().collect::<PathBuf>().join(kept.file_name().unwrap_or_default());
        if taken.is_file() {
            std::fs::copy(&taken, &kept).with_context(|| format!("{}", kept.display()))?;
            count += 1;
        }
    }
    eprintln!("xtask: {count} pictures in {KEPT} are new");
    Ok(())
}
