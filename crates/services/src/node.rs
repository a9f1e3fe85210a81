//! Node with the stock SignalR clients: scripts that speak to a hub as a page does.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};

use crate::spawn::spawn;
use crate::{cache, must, programs};

/// A script that runs. Dropping it kills it.
#[derive(Debug)]
pub struct NodeScript {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl NodeScript {
    /// Starts a script; it can `require` the clients by their names. What it complains about goes
    /// where the test's complaints go.
    #[track_caller]
    pub fn start(script: &Path, arguments: &[&str]) -> Self {
        must(NodeScript::open(script, arguments))
    }

    fn open(script: &Path, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(programs::node()?);
        command.arg(script).args(arguments).env("NODE_PATH", cache::signalr()?);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = spawn(command)?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("a script has an output")?;
        Ok(NodeScript { child, input, output: BufReader::new(output) })
    }

    /// Its next line; `None` when it has ended.
    #[track_caller]
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        must(self.output.read_line(&mut line));
        (!line.is_empty()).then(|| line.trim_end().to_owned())
    }

    /// Tells it something, as a line of its input.
    #[track_caller]
    pub fn say(&mut self, line: &str) {
        let input = must(self.input.as_mut().context("the script's input is closed"));
        must(writeln!(input, "{line}").and_then(|()| input.flush()));
    }
}

/// The stock clients as pages load them: SignalR, and its MessagePack protocol.
#[track_caller]
pub fn signalr_for_pages() -> (String, String) {
    let read = |path: &str| -> Result<String> {
        let path = cache::signalr()?.join("@microsoft").join(path);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let msgpack = "signalr-protocol-msgpack/dist/browser/signalr-protocol-msgpack.js";
    (must(read("signalr/dist/browser/signalr.js")), must(read(msgpack)))
}

impl Drop for NodeScript {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
