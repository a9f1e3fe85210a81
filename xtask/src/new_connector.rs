//! `cargo xtask new-connector NAME`: a connector to begin with, in the shape that all have.
//!
//! The files it writes lie in `xtask/template`, where a test of the connectors compiles and runs
//! them. The one thing left to do by hand is the line in the registry.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Where connectors are.
const CONNECTORS: &str = "crates/connectors/src";

const TEMPLATE: [(&str, &str); 5] = [
    ("mod.rs", include_str!("../template/mod.rs")),
    ("settings.rs", include_str!("../template/settings.rs")),
    ("client.rs", include_str!("../template/client.rs")),
    ("sink.rs", include_str!("../template/sink.rs")),
    ("fault.rs", include_str!("../template/fault.rs")),
];

/// Writes the folder and its `mod` line, and says what is left to do.
pub fn run(name: &str) -> Result<()> {
    let folder = Path::new(CONNECTORS).join(name);
    let library = Path::new(CONNECTORS).join("lib.rs");
    let text = fs::read_to_string(&library)?;
    let text = with_module(&text, name)?;
    write(&folder, name)?;
    fs::write(&library, text)?;
    println!("wrote {} and its module in {}", folder.display(), library.display());
    println!("\nregister it, in `CONNECTORS` of {}:\n\n    {name}::register,\n", library.display());
    println!("then: keys and checks in settings.rs, calls in client.rs, moves in fault.rs;");
    println!("a test that runs the suite of sinks (crates/testkit/src/suites/sink.rs) on the real");
    println!("service; `cargo xtask docs` for the reference.");
    Ok(())
}

/// Writes the files of a connector into a folder that does not exist yet.
fn write(folder: &Path, name: &str) -> Result<()> {
    if !is_name(name) {
        bail!("`{name}` is no name for a module: small letters, digits and `_`, a letter first");
    }
    fs::create_dir(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    for (file, text) in TEMPLATE {
        fs::write(folder.join(file), filled(text, name))?;
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// A file of the template under another name.
fn filled(text: &str, name: &str) -> String {
    let words = name.split('_').filter_map(|word| {
        let first = word.get(..1)?.to_ascii_uppercase();
        Some(format!("{first}{}", word.get(1..)?))
    });
    let camel: String = words.collect();
    text.replace("SAMPLE", &name.to_ascii_uppercase())
        .replace("Sample", &camel)
        .replace("sample", name)
}

/// The root of the crate with one module more, in the order of the alphabet.
fn with_module(text: &str, name: &str) -> Result<String> {
    let line = format!("pub mod {name};");
    if text.lines().any(|known| known == line) {
        bail!("there is a connector `{name}` already");
    }
    let lines: Vec<&str> = text.lines().collect();
    let is_module = |line: &&str| line.starts_with("pub mod ") || line.starts_with("mod ");
    let module = |line: &str| line.trim_start_matches("pub ").trim_start_matches("mod ").to_owned();
    let last = lines.iter().rposition(is_module).context("lib.rs has no modules")?;
    let behind = lines.iter().position(|known| is_module(known) && module(known) > module(&line));
    let mut at = behind.unwrap_or(last + 1);
    // The condition of a module stays with it.
    while at > 0
        && behind.is_some()
        && lines.get(at - 1).is_some_and(|above| above.starts_with("#["))
    {
        at -= 1;
    }
    let mut lines: Vec<String> = lines.into_iter().map(str::to_owned).collect();
    lines.insert(at, line);
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connector_is_written_under_its_name() {
        let folder = std::env::temp_dir().join(format!("potok-xtask-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        write(&folder, "message_queue").unwrap();
        for (file, _) in TEMPLATE {
            let text = fs::read_to_string(folder.join(file)).unwrap();
            assert!(text.starts_with("//! "), "{file}");
            assert!(!text.to_lowercase().contains("sample"), "{file}: {text}");
        }
        let settings = fs::read_to_string(folder.join("settings.rs")).unwrap();
        for words in ["struct MessageQueueSettings", "POTOK_MESSAGE_QUEUE_", "\"message_queue\""] {
            assert!(settings.contains(words), "{words}");
        }
        assert!(write(&folder, "message_queue").is_err(), "it is there already");
        fs::remove_dir_all(&folder).unwrap();
        assert!(write(&folder, "Message-Queue").is_err());
    }

    #[test]
    fn its_module_stands_in_order() {
        let text = "//! x\n\npub mod embedded;\n#[cfg(a)]\npub mod kafka;\nmod owners;\n\nuse b;\n";
        let with = |name: &str| with_module(text, name).unwrap();
        assert!(
            with("hbase").contains("pub mod embedded;\npub mod hbase;\n#[cfg(a)]\npub mod kafka;")
        );
        assert!(with("zookeeper").contains("mod owners;\npub mod zookeeper;\n\nuse b;"));
        assert!(with("aerospike").contains("\npub mod aerospike;\npub mod embedded;"));
        assert!(with_module(text, "kafka").is_err());
    }
}
