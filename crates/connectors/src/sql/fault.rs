//! What can be the matter with a database server, and the fault each of it is.
//!
//! Each system sorts its own errors into these; the words and the moves are the same for all.

use std::fmt;

use potok_core::{Fault, Move, Reason};

/// What is the matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SqlTrouble {
    /// It cannot be reached, or it is starting or going down.
    Away,
    /// It does not take our credentials or denies a privilege.
    NotLetIn,
    /// It speaks no TLS, and the way to it must be encrypted.
    Plain,
    /// Its certificate is signed by nobody we know, is for another name, or has run out.
    Untrusted,
    /// It takes no writes: a replica, or switched to read-only.
    ReadOnly,
    /// No room: disk, memory, connections.
    Full,
    /// It gave no answer in time.
    Silent,
    /// The connection was lost while a commit was being answered.
    CommitLost,
    /// This attempt failed: a deadlock, a lock held too long, anything not known better.
    Failed,
    /// Something it should have is not there or not as it should be.
    SetUp,
    /// A record is against the rules of a table.
    Refused,
    /// A record is larger than it takes.
    TooLarge,
}

/// How a system is called, and the pages that explain its troubles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct System {
    pub name: &'static str,
    pub away: &'static str,
    pub not_let_in: &'static str,
    pub not_trusted: &'static str,
    /// How its address says that TLS is not wanted, and where the authority is.
    pub without_tls: &'static str,
    pub authority: &'static str,
    pub read_only: &'static str,
    pub full: &'static str,
    pub silent: &'static str,
    pub commit_lost: &'static str,
    pub failed: &'static str,
    pub set_up: &'static str,
}

impl SqlTrouble {
    /// One record, or several, are the matter: the session is as good as before.
    pub fn is_about_records(self) -> bool {
        matches!(self, SqlTrouble::Refused | SqlTrouble::TooLarge)
    }

    /// The fault for the engine. `cause` is what the system said.
    pub fn fault(self, system: &System, label: &str, cause: Option<&dyn fmt::Display>) -> Fault {
        let name = system.name;
        let wait = |what: &str| Fault::wait(format!("{label}: {what}"));
        let fault = match self {
            SqlTrouble::Away => wait(&format!("{name} cannot be reached"))
                .hint("it goes on by itself when the server is back")
                .code(system.away),
            SqlTrouble::NotLetIn => wait(&format!("{name} does not let us in"))
                .hint("check user, password, database and privileges; it goes on by itself")
                .code(system.not_let_in),
            SqlTrouble::Plain => wait(&format!(
                "{name} speaks no TLS, and the way to it is not safe"
            ))
            .hint(format!(
                "set up TLS on the server; where the network between is trusted, add `{}` to \
                     the address",
                system.without_tls
            ))
            .code(system.not_trusted),
            SqlTrouble::Untrusted => wait(&format!("the certificate of {name} is not trusted"))
                .hint(format!(
                    "add `{}=FILE` with the authority that signed it to the address, and reach the \
                     server by a name that the certificate has; `{}` goes without TLS",
                    system.authority, system.without_tls
                ))
                .code(system.not_trusted),
            SqlTrouble::ReadOnly => wait(&format!("{name} takes no writes"))
                .hint("it is a replica or read-only; it goes on by itself when it takes writes")
                .code(system.read_only),
            SqlTrouble::Full => wait(&format!("{name} has no room"))
                .hint("a disk, the memory or the number of connections is at its limit")
                .code(system.full),
            SqlTrouble::Silent => wait(&format!("{name} gave no answer in time"))
                .hint("it is asked again; what it did in spite of that is found by delivery id")
                .code(system.silent),
            SqlTrouble::CommitLost => {
                wait(&format!("{name} was lost during COMMIT: the outcome is unknown"))
                    .hint("the next attempt finds by delivery id what is there")
                    .code(system.commit_lost)
            }
            SqlTrouble::Failed => {
                Fault::retry(format!("{label}: an attempt to write failed")).code(system.failed)
            }
            SqlTrouble::SetUp => Fault::fix(format!("{label}: {name} does not know a statement"))
                .hint("compare the tables with `potok ddl`, then `potok resume`")
                .code(system.set_up),
            SqlTrouble::Refused => {
                Fault::set_aside(Reason::Refused, "the database refused the record").code("P0307")
            }
            SqlTrouble::TooLarge => {
                Fault::set_aside(Reason::TooLarge, "the record is larger than the database takes")
                    .code("P0312")
            }
        };
        debug_assert!(fault.next == Move::SetAside || !fault.code.is_empty(), "pages for all");
        match cause {
            Some(cause) => fault.because(cause),
            None => fault,
        }
    }
}
