//! Lists the pages of `docs/errors`, so that adding a page is all one has to do.

use std::error::Error;
use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let pages = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../docs/errors");
    println!("cargo::rerun-if-changed={}", pages.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(&pages)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
    files.sort();
    let mut list = String::from("[\n");
    for file in &files {
        let code = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        writeln!(list, "    ({code:?}, include_str!({file:?})),")?;
    }
    list.push_str("]\n");
    fs::write(Path::new(&env::var("OUT_DIR")?).join("pages.rs"), list)?;
    Ok(())
}
