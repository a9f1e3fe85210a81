//! One suite per contract, run on everything that implements it.
//!
//! A suite is a list of named checks. Each takes a small harness ("bring me a fresh one, and a
//! way to open it again") and answers with what is wrong, in words. Where implementations may
//! differ, the harness declares it as a feature, and the check asks for what was declared.
//!
//! Checks wait on conditions with a bound that only a hang can reach. Where a check says that
//! something does *not* happen, it looks for a short while: it can miss a fault, never invent one.

use std::time::Duration;

pub mod feed;
pub mod log;
mod reading;
pub mod sink;
pub mod source;
pub mod store;

/// Longest wait for something that must happen. Only a hang reaches it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How long a check looks for something that must not happen.
pub const QUIET: Duration = Duration::from_millis(60);

/// How the checks of one suite went.
#[derive(Debug, Default)]
pub struct Report {
    passed: Vec<&'static str>,
    failed: Vec<(&'static str, String)>,
}

impl Report {
    /// Notes the result of one check.
    pub fn add(&mut self, check: &'static str, result: Result<(), String>) {
        match result {
            Ok(()) => self.passed.push(check),
            Err(why) => self.failed.push((check, why)),
        }
    }

    /// The number of checks that passed, or every failure in words.
    pub fn finish(self, suite: &str) -> Result<usize, String> {
        if self.failed.is_empty() {
            return Ok(self.passed.len());
        }
        let total = self.passed.len() + self.failed.len();
        let mut text = format!("{suite}: {} of {total} checks failed", self.failed.len());
        for (check, why) in &self.failed {
            text.push_str(&format!("\n  {check}: {why}"));
        }
        Err(text)
    }
}

/// Runs the named checks one after another, each within a bound, and reports all of them.
macro_rules! run_checks {
    ($suite:literal, $harness:expr, [$($check:ident),* $(,)?]) => {{
        let mut report = $crate::suites::Report::default();
        $(
            let bounded = tokio::time::timeout(4 * $crate::suites::PATIENCE, $check($harness));
            let result = bounded.await.unwrap_or_else(|_| Err("did not finish".to_owned()));
            report.add(stringify!($check), result);
        )*
        report.finish($suite)
    }};
}
pub(crate) use run_checks;

/// Leaves the check with a sentence unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($words:tt)+) => {
        if !$condition {
            return Err(format!($($words)+));
        }
    };
}
pub(crate) use ensure;

/// Awaits `work` within [`PATIENCE`]; says what was waited for when it does not come.
pub(crate) async fn within<T, E: Into<potok_core::Fault>>(
    what: &str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(fault)) => Err(format!("{what}: {}", fault.into())),
        Err(_) => Err(format!("{what}: nothing within {PATIENCE:?}")),
    }
}

/// Text that goes wrong where bytes are not taken as they are.
pub(crate) const STRANGE_TEXT: &str = "п\"'\\`;--%_{}$\u{7f}\u{feff}🦀\u{202e}\t\r\n end";
