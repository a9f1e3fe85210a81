//! Runs a command to its end.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::spawn::spawn;

/// What `command` printed; an error with what it complained about where it failed.
pub fn output(mut command: Command) -> Result<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = command.get_program().to_string_lossy().into_owned();
    let done = spawn(command)?.wait_with_output().with_context(|| format!("`{program}`"))?;
    let printed = String::from_utf8_lossy(&done.stdout).into_owned();
    if !done.status.success() {
        let complaint = String::from_utf8_lossy(&done.stderr);
        bail!("`{program}` failed ({}): {}{}", done.status, printed, complaint.trim());
    }
    Ok(printed)
}
