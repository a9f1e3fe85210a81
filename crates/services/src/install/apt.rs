//! Debian's packages.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Missing;
use crate::wait::until;
use crate::{programs, run};

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
    let why: Vec<_> = missing.iter().map(|missing| missing.why.as_str()).collect();
    let by_hand = format!(
        "the tests need services that are not here:\n  {}\ninstall them, e.g. on Debian or Ubuntu:\
         \n  apt-get update && apt-get install -y --no-install-recommends {}",
        why.join("\n  "),
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
    let installed = apt.get(&arguments);
    installed.map(drop).with_context(|| match updated {
        Ok(_) => by_hand,
        Err(error) => format!("{by_hand}\n(apt-get update: {error:#})"),
    })
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
        let words = if self.through_sudo { vec!["sudo", "-n", "env"] } else { vec!["env"] };
        let timeout = format!("DPkg::Lock::Timeout={}", LOCK_MAX.as_secs());
        let mut answer = Err(anyhow::anyhow!("apt-get was not asked"));
        // The option covers the lock of the packages, but not that of their lists.
        until(LOCK_MAX, || {
            let mut command = Command::new(words.first()?);
            command.args(words.get(1..)?);
            command.args(["DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "apt-get"]);
            command.args(["-q", "-o", &timeout]).args(arguments);
            answer = run::output(command);
            let busy = |error: &anyhow::Error| format!("{error:#}").contains("Could not get lock");
            (!answer.as_ref().is_err_and(busy)).then_some(())
        });
        answer
    }
}

/// Whether the lists have the package.
fn knows(package: &str) -> bool {
    let mut command = Command::new("apt-cache");
    command.args(["show", "--no-all-versions", package]);
    run::output(command).is_ok_and(|shown| !shown.trim().is_empty())
}
