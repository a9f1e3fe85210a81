//! Debian's packages.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::programs::{self, Missing};
use crate::run;
use crate::wait::until;

/// How long another program may be installing.
const LOCK_MAX: Duration = Duration::from_secs(300);
/// Releases differ in the Javas they have; any of these will do.
const JAVAS: [&str; 3] =
    ["openjdk-17-jdk-headless", "openjdk-21-jdk-headless", "openjdk-25-jdk-headless"];

/// Installs the packages where we may; otherwise fails with what to type.
pub fn install(missing: &[Missing], say: &dyn Fn(&str)) -> Result<()> {
    let mut packages: Vec<&str> = missing.iter().map(|missing| missing.package).collect();
    packages.sort_unstable();
    packages.dedup();
    let mut what: Vec<_> = missing.iter().map(|missing| missing.what.as_str()).collect();
    what.sort_unstable();
    what.dedup();
    let by_hand = format!(
        "not on this machine: {}. Install what has them, on Debian or Ubuntu:\n  \
         apt-get update && apt-get install -y --no-install-recommends {}",
        what.join(", "),
        packages.join(" ")
    );
    let Some(apt) = Apt::find() else { bail!(by_hand) };
    say(&format!("installing {} (apt-get, a minute or two)", packages.join(", ")));
    // A list that is a little old may still do.
    let updated = apt.get(&["update"]);
    for package in &mut packages {
        if JAVAS.contains(package) {
            *package = JAVAS.into_iter().find(|java| knows(java)).unwrap_or(package);
        }
    }
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(packages);
    let failures = [updated.err(), apt.get(&arguments).err()];
    let [update, Some(install)] = failures else { return Ok(()) };
    let update = update.map(|error| format!("{error:#}\n")).unwrap_or_default();
    bail!("{by_hand}\nHere that fails: {update}{install:#}")
}

/// `apt-get` with the right to install.
struct Apt {
    through_sudo: bool,
}

impl Apt {
    fn find() -> Option<Self> {
        programs::find("apt-get")?;
        let quiet = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(arguments);
            run::output(command).ok()
        };
        if quiet("id", &["-u"])?.trim() == "0" {
            return Some(Apt { through_sudo: false });
        }
        // Without a question: nobody may be there to answer.
        quiet("sudo", &["-n", "true"]).map(|_| Apt { through_sudo: true })
    }

    fn get(&self, arguments: &[&str]) -> Result<String> {
        let timeout = format!("DPkg::Lock::Timeout={}", LOCK_MAX.as_secs());
        let asked = || {
            let mut command = Command::new(if self.through_sudo { "sudo" } else { "env" });
            command.args(["-n", "env"].iter().filter(|_| self.through_sudo));
            command.args(["DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "apt-get"]);
            command.args(["-q", "-o", &timeout]).args(arguments);
            run::output(command)
        };
        // The option covers the lock of the packages, but not that of their lists.
        let busy = |error: &anyhow::Error| format!("{error:#}").contains("Could not get lock");
        let answered = until(LOCK_MAX, || {
            let answer = asked();
            (!answer.as_ref().is_err_and(busy)).then_some(answer)
        });
        answered.unwrap_or_else(asked)
    }
}

/// Whether the lists have the package.
fn knows(package: &str) -> bool {
    let mut command = Command::new("apt-cache");
    command.args(["show", "--no-all-versions", package]);
    run::output(command).is_ok_and(|shown| !shown.trim().is_empty())
}
