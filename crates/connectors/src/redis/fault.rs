//! The faults of Redis: whose move each error is.
//!
//! Redis begins its errors with a word; within a script older servers put it into the middle of a
//! sentence. What is not known is an attempt that failed.

use potok_core::Fault;
use redis::{ErrorKind, RedisError};

/// The kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RedisTrouble {
    /// It cannot be reached.
    Away,
    /// It does not take our credentials or denies a command.
    NotLetIn,
    /// It takes no writes: a replica.
    ReadOnly,
    /// Its memory is at its limit: it takes nothing more, and gives away what it has.
    NoMemory,
    /// No room elsewhere: disk, connections, replicas.
    Full,
    /// It gave no answer in time.
    Silent,
    /// It is there, but not ready: loading, busy with a script, a cluster without all its parts.
    NotReady,
    /// It does not know the script; it is sent along with the next call.
    NoScript,
    /// A key that is ours holds something else.
    WrongType,
    /// It cannot do what is asked of it.
    Unable,
    /// This attempt failed.
    Failed,
}

/// The meaning of an error.
pub(super) fn trouble(error: &RedisError) -> RedisTrouble {
    match error.kind() {
        ErrorKind::Io if error.is_timeout() => RedisTrouble::Silent,
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => RedisTrouble::Away,
        // A sentinel that knows no such server: set up wrongly, or not yet.
        ErrorKind::MasterNameNotFoundBySentinel => RedisTrouble::Away,
        ErrorKind::AuthenticationFailed => {
            // The word is the server's where it said one; the driver has its own otherwise.
            let said = error.detail().and_then(word);
            said.unwrap_or(RedisTrouble::NotLetIn)
        }
        ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported => RedisTrouble::Unable,
        _ => {
            let code = error.code().and_then(of_word);
            let said = code.or_else(|| error.detail().and_then(word));
            said.unwrap_or(RedisTrouble::Failed)
        }
    }
}

/// The first word that says something.
fn word(text: &str) -> Option<RedisTrouble> {
    let lower = text.to_ascii_lowercase();
    if lower.contains("unknown command") || lower.contains("unknown redis command") {
        return Some(RedisTrouble::Unable);
    }
    if lower.contains("authentication required") {
        return Some(RedisTrouble::NotLetIn);
    }
    if lower.contains("max number of clients") {
        return Some(RedisTrouble::Full);
    }
    if lower.contains("db index is out of range") {
        return Some(RedisTrouble::Unable);
    }
    text.split(|c: char| !c.is_ascii_alphanumeric()).find_map(of_word)
}

fn of_word(word: &str) -> Option<RedisTrouble> {
    let trouble = match word {
        "NOAUTH" | "WRONGPASS" | "NOPERM" => RedisTrouble::NotLetIn,
        "READONLY" => RedisTrouble::ReadOnly,
        "OOM" => RedisTrouble::NoMemory,
        "MISCONF" | "NOREPLICAS" => RedisTrouble::Full,
        "LOADING" | "BUSY" | "CLUSTERDOWN" | "MASTERDOWN" | "TRYAGAIN" | "UNKILLABLE" | "MOVED"
        | "ASK" => RedisTrouble::NotReady,
        "NOSCRIPT" => RedisTrouble::NoScript,
        "WRONGTYPE" => RedisTrouble::WrongType,
        "CROSSSLOT" | "NOPROTO" => RedisTrouble::Unable,
        _ => return None,
    };
    Some(trouble)
}

/// A call that did not succeed.
pub(super) struct Failure {
    pub trouble: RedisTrouble,
    /// The same for the engine.
    pub fault: Fault,
}

impl Failure {
    pub fn of(label: &str, error: &RedisError) -> Self {
        let trouble = trouble(error);
        Failure { trouble, fault: trouble.fault(label).because(error) }
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        failure.fault
    }
}

impl RedisTrouble {
    /// The connection may lead to the wrong server, or nowhere: the next call opens another.
    pub fn ends_connection(self) -> bool {
        !matches!(self, RedisTrouble::NoScript | RedisTrouble::WrongType)
    }

    pub fn fault(self, label: &str) -> Fault {
        let wait = |what: &str| Fault::wait(format!("{label} {what}"));
        let fix = |what: &str| Fault::fix(format!("{label} {what}"));
        match self {
            RedisTrouble::Away => wait("cannot be reached")
                .hint("it goes on by itself when the server is back")
                .code("P0901"),
            RedisTrouble::NotLetIn => fix("does not let us in")
                .hint("check user, password and the user's rights, then `potok resume`")
                .code("P0902"),
            RedisTrouble::ReadOnly => wait("takes no writes: it is a replica")
                .hint("it goes on by itself when a primary answers at this address")
                .code("P0903"),
            RedisTrouble::NoMemory => wait("has no room: its memory is at its limit")
                .hint("what is sent makes room; groups that do not fit are read from the log, a queue waits")
                .code("P0904"),
            RedisTrouble::Full => wait("has no room")
                .hint("its disk, its replicas or its number of connections is at its limit")
                .code("P0904"),
            RedisTrouble::Silent => wait("gave no answer in time")
                .hint("it is asked again; what it did in spite of that does no harm")
                .code("P0905"),
            RedisTrouble::NotReady => wait("is not ready")
                .hint("it loads its data, runs a script or lacks a part of its cluster")
                .code("P0906"),
            RedisTrouble::WrongType => fix("has a key of ours that holds something else")
                .hint("another program uses the same name: rename its key, or use another database")
                .code("P0908"),
            RedisTrouble::Unable => fix("cannot do what is asked of it")
                .hint("see which version and which commands it allows, then `potok resume`")
                .code("P0910"),
            RedisTrouble::NoScript | RedisTrouble::Failed => {
                Fault::retry(format!("an attempt to use {label} failed")).code("P0911")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use potok_core::Move;

    use super::*;

    #[test]
    fn every_word_has_a_move() {
        for (text, next) in [
            ("READONLY You can't write against a read only replica.", Move::Wait),
            ("LOADING Redis is loading the dataset in memory", Move::Wait),
            ("MISCONF Redis is configured to save RDB snapshots", Move::Wait),
            ("OOM command not allowed when used memory > 'maxmemory'.", Move::Wait),
            ("BUSY Redis is busy running a script.", Move::Wait),
            ("CLUSTERDOWN The cluster is down", Move::Wait),
            ("MASTERDOWN Link with MASTER is down", Move::Wait),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Move::Wait),
            ("ERR max number of clients reached", Move::Wait),
            ("NOREPLICAS Not enough good replicas to write.", Move::Wait),
            ("NOAUTH Authentication required.", Move::Fix),
            ("WRONGPASS invalid username-password pair or user is disabled.", Move::Fix),
            ("NOPERM this user has no permissions to run the 'evalsha' command", Move::Fix),
            ("ERR unknown command 'EVALSHA', with args beginning with:", Move::Fix),
            ("ERR Error running script (call to f_1): @user_script:3: -OOM command", Move::Wait),
            ("ERR user_script:3: WRONGTYPE of `active:batches` script: 1", Move::Fix),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Move::Fix),
            ("CROSSSLOT Keys in request don't hash to the same slot", Move::Fix),
            ("ERR something new", Move::Retry),
        ] {
            let (code, detail) = text.split_once(' ').unwrap_or((text, ""));
            let trouble = of_word(code).or_else(|| word(detail)).unwrap_or(RedisTrouble::Failed);
            let fault = trouble.fault("Redis");
            assert_eq!(fault.next, next, "{text}");
            assert!(!fault.code.is_empty(), "{text}");
        }
    }

    #[test]
    fn errors_of_the_driver_have_moves_too() {
        let io = |kind: std::io::ErrorKind| trouble(&RedisError::from(std::io::Error::from(kind)));
        assert_eq!(io(std::io::ErrorKind::ConnectionRefused), RedisTrouble::Away);
        assert_eq!(io(std::io::ErrorKind::UnexpectedEof), RedisTrouble::Away);
        assert_eq!(io(std::io::ErrorKind::TimedOut), RedisTrouble::Silent);
        let of = |kind| trouble(&RedisError::from((kind, "words")));
        assert_eq!(of(ErrorKind::AuthenticationFailed), RedisTrouble::NotLetIn);
        assert_eq!(of(ErrorKind::ClusterConnectionNotFound), RedisTrouble::Away);
        assert_eq!(of(ErrorKind::Parse), RedisTrouble::Failed);
    }
}
