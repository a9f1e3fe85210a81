//! Runs cargo, saying what it runs.

use std::process::Command;

use anyhow::{Context, Result, bail};

/// Runs one cargo command; its output is ours.
pub fn run(command: &str, args: &[&str]) -> Result<()> {
    run_with(&[], command, args)
}

/// Runs one cargo command with more in its environment.
pub fn run_with(environment: &[(&str, &str)], command: &str, args: &[&str]) -> Result<()> {
    let shown = environment
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .chain(["cargo".to_owned(), command.to_owned()])
        .chain(args.iter().map(|arg| (*arg).to_owned()))
        .collect::<Vec<_>>()
        .join(" ");
    eprintln!("xtask: {shown}");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(cargo);
    // What cargo says of xtask would reach build scripts that look at it, and crates would be compiled anew after each change between this and plain cargo.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        }) {
            cargo.env_remove(name);
        }
    }
    let status = cargo
        .arg(command)
        .args(args)
        .envs(environment.iter().copied())
        .status()
        .with_context(|| format!("`{shown}` does not start"))?;
    if !status.success() {
        bail!("`{shown}` failed");
    }
    Ok(())
}
