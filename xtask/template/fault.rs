//! Whose move it is when Sample says no, or nothing. When in doubt whether a record is bad or the
//! server is: the server.

use std::io::{Error, ErrorKind};

use potok_core::Fault;

pub(super) fn sorted(error: Error) -> Fault {
    match error.kind() {
        ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable | ErrorKind::NotFound => {
            Fault::wait("Sample cannot be reached").because(error)
        }
        _ => Fault::retry("the call of Sample broke off").because(error),
    }
}
