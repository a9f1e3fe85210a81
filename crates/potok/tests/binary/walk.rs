//! A walk through a guide: every command of its `sh` blocks, in order, each in a real shell.
//!
//! Nothing is left out. What cannot run as it stands is named word for word, with what is run
//! instead; a walk that does not meet it fails. So a guide that has changed is noticed.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::process::{Running, pipelines, run, without_settings};
use crate::wait;

/// Instead of a command that has been done already.
pub const DONE: &str = ":";
/// Instead of a command that others would feel too: ends what `potok run` started here.
pub const KILL: &str = "kill -9 $RUNNING";

/// Code of other programs, which no shell runs.
const SHOWN: [&str; 5] = ["```sql", "```rust", "```java", "```csharp", "```go"];

/// The text of a guide.
pub struct Guide(String);

impl Guide {
    pub fn read(name: &str) -> Self {
        let guides = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides");
        Guide(fs::read_to_string(guides.join(name)).unwrap())
    }

    #[allow(dead_code, reason = "for the tests on real services")]
    /// The same with an address of the test's own in the place of one that the guide names.
    pub fn with(self, named: &str, own: &str) -> Self {
        assert!(self.0.contains(named), "the guide does not name {named}");
        Guide(self.0.replace(named, own))
    }

    #[allow(dead_code, reason = "for the tests on real services")]
    /// The first block of code in that language.
    pub fn shown(&self, language: &str) -> String {
        let lines = self.0.lines().skip_while(|line| *line != format!("```{language}"));
        let lines = lines.skip(1).take_while(|line| *line != "```");
        lines.collect::<Vec<_>>().join("\n")
    }

    /// The commands, by section: `## 1.` is the first.
    pub fn sections(&self) -> Vec<Vec<&str>> {
        let mut sections: Vec<Vec<&str>> = Vec::new();
        let (mut inside, mut is_shown) = (false, false);
        for line in self.0.lines() {
            match line {
                "```" if is_shown => is_shown = false,
                _ if is_shown => {}
                _ if SHOWN.contains(&line) => is_shown = true,
                "```" if inside => inside = false,
                _ if inside => sections.last_mut().expect("a section").push(line),
                "```sh" => inside = true,
                _ if line.starts_with("```") => panic!("who runs this? {line}"),
                _ if line.starts_with("## ") => {
                    sections.push(Vec::new());
                    assert!(line.starts_with(&format!("## {}.", sections.len())), "{line}");
                }
                _ => {}
            }
        }
        sections
    }
}

/// Somebody who follows a guide, in a folder of their own with the shipped pipelines in it.
pub struct Walk {
    folder: TempDir,
    /// What is still to be run.
    left: VecDeque<String>,
    /// The command that was run last, as it stands in the guide.
    pub last: String,
    /// What is run instead of commands that are still to come.
    instead: HashMap<&'static str, &'static str>,
    /// What every shell is told first.
    known: String,
    running: Option<Running>,
    follower: Option<Running>,
}

impl Walk {
    pub fn through(
        guide: &Guide,
        sections: RangeInclusive<usize>,
        instead: &[(&'static str, &'static str)],
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(pipelines(), folder.path().join("pipelines")).unwrap();
        let commands = sections.flat_map(|number| guide.sections()[number - 1].clone());
        Walk {
            folder,
            left: commands.map(str::to_owned).collect(),
            last: String::new(),
            instead: instead.iter().copied().collect(),
            known: String::new(),
            running: None,
            follower: None,
        }
    }

    /// Tells every shell from here on something first.
    pub fn know(&mut self, line: &str) {
        self.known += line;
        self.known += "\n";
    }

    /// Runs what comes next in the guide, up to and with the first command that starts like this;
    /// returns what that one printed.
    pub fn to(&mut self, start: &str) -> String {
        loop {
            let Some(line) = self.left.pop_front() else { panic!("the guide ends before {start}") };
            let printed = self.step(&line);
            self.last = line;
            if self.last.starts_with(start) {
                return printed;
            }
        }
    }

    /// Fails unless everything was run, and everything that is run instead had its turn.
    pub fn finish(self) {
        assert!(self.left.is_empty(), "not run: {:?}", self.left);
        assert!(self.instead.is_empty(), "not in the guide: {:?}", self.instead);
    }

    fn step(&mut self, line: &str) -> String {
        let command = line.split("  #").next().unwrap_or_default().trim_end();
        let line = self.instead.remove(command).unwrap_or(line);
        if line.contains("potok run ") {
            assert!(self.running.is_none(), "nobody has stopped the one before `{line}`");
            self.running = Some(self.start(line));
            return String::new();
        }
        if line.contains(" --follow") {
            self.follower = Some(self.spawn(line, "follower.log"));
            return String::new();
        }
        let printed = self.run(line);
        if line.starts_with("export ") {
            self.know(line);
        }
        printed
    }

    /// Runs a command to its end, which must be a good one; returns what it printed.
    pub fn run(&self, line: &str) -> String {
        let ran = run(self.shell(line), b"");
        let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert_eq!(ran.code, Some(0), "`{line}` printed:\n{printed}{}", ran.stderr);
        printed
    }

    /// Waits until a command prints something; before, it may fail.
    pub fn until(&self, line: &str, printed: &str) {
        wait::until(&format!("`{line}` prints {printed}"), || {
            let ran = run(self.shell(line), b"");
            String::from_utf8_lossy(&ran.stdout).contains(printed).then_some(())
        });
    }

    /// Starts what goes on until Ctrl-C, and waits until it is ready.
    pub fn start(&self, line: &str) -> Running {
        let data = line.split_whitespace().skip_while(|word| *word != "--data-dir").nth(1);
        let data = data.unwrap_or("potok-data");
        let running = self.spawn(line, &format!("{data}.log"));
        let ready = running.listening(&self.folder.path().join(data)).and_then(Running::ready);
        ready.unwrap_or_else(|end| panic!("`{line}` ended at start: {end}"))
    }

    fn spawn(&self, line: &str, journal: &str) -> Running {
        // It takes the place of its shell, so that signals reach it.
        let command = self.shell(&format!("potok() {{ exec potok \"$@\"; }}\n{line}"));
        Running::spawn(command, self.folder.path().join(journal))
    }

    /// What `potok run` started last.
    pub fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }

    /// The same, to be ended.
    pub fn take(&mut self) -> Running {
        self.running.take().expect("it runs")
    }

    /// What `--follow` started.
    pub fn follower(&mut self) -> Running {
        self.follower.take().expect("it runs")
    }

    fn shell(&self, line: &str) -> Command {
        let binaries = Path::new(env!("CARGO_BIN_EXE_potok")).parent().unwrap();
        let path = std::env::var_os("PATH").unwrap();
        let path = [binaries.to_owned()].into_iter().chain(std::env::split_paths(&path));
        let mut command = without_settings("bash");
        command.args(["-euo", "pipefail", "-c", &format!("{}{line}", self.known)]);
        command.current_dir(self.folder.path()).env("PATH", std::env::join_paths(path).unwrap());
        // The ports of the default may belong to others.
        command.env("POTOK_ADMIN", "127.0.0.1:0").env("POTOK_HTTP", "127.0.0.1:0");
        if let Some(running) = &self.running {
            command.env("RUNNING", running.pid().to_string());
        }
        command
    }
}
