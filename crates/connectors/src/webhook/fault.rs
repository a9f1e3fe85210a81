//! Whose move it is when a webhook says no, or nothing.

use std::time::Duration;

use hyper::StatusCode;
use potok_core::{Fault, Reason};

use super::answer::{SHOWN_CHARS_MAX, unfitting};

/// Nobody is there.
pub(super) fn away(cause: String) -> Fault {
    Fault::wait("the webhook cannot be reached").because(cause).code("P1001")
}

/// No answer in time.
pub(super) fn silent(timeout: Duration) -> Fault {
    Fault::retry("the webhook did not answer in time")
        .because(format!("nothing within {timeout:?}"))
        .code("P1002")
        .hint("if it needs longer, give it another `timeout`")
}

/// The connection ended before the answer did.
pub(super) fn broken(cause: String) -> Fault {
    Fault::retry("the call of the webhook broke off").because(cause).code("P1002")
}

/// A call of the stage was refused as a whole.
pub(super) fn refused_stage(status: StatusCode, said: &str) -> Fault {
    let fault = match status.as_u16() {
        401 | 403 => Fault::wait("the webhook does not let potok in")
            .code("P1001")
            .hint("check the credentials in its address"),
        429 | 502 | 503 | 504 => Fault::wait("the webhook takes no calls just now").code("P1001"),
        408 | 500..=599 => Fault::retry("the webhook failed").code("P1002"),
        400..=499 => Fault::set_aside(Reason::Stage, "the webhook refused the event").code("P1003"),
        300..=399 => Fault::fix("the webhook leads to another address, and is not followed")
            .code("P1005")
            .hint("give the stage the address it leads to, then start again"),
        _ => unfitting("a webhook answers with the status 200"),
    };
    fault.because(answered(status, said))
}

/// A status and the beginning of what came with it.
pub(super) fn answered(status: StatusCode, said: &str) -> String {
    let said: String = said.trim().chars().take(SHOWN_CHARS_MAX).collect();
    let dash = if said.is_empty() { "" } else { ": " };
    format!("status {}{dash}{said}", status.as_u16())
}

pub(super) fn too_long(max: usize) -> Fault {
    unfitting(format!("the answer of the webhook is longer than {} MiB", max >> 20))
}

/// An error with what is behind it: the first line alone says little.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
