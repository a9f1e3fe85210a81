//! PostgreSQL names its errors by SQLSTATE: five characters, the first two of which are a class.

use sqlx::Error;

use crate::sql::{SqlTrouble, System};

/// Its name and the pages about its troubles.
pub(crate) const SYSTEM: System = System {
    name: "PostgreSQL",
    away: "P0701",
    not_let_in: "P0702",
    not_trusted: "P0710",
    without_tls: "sslmode=disable",
    authority: "sslrootcert",
    read_only: "P0703",
    full: "P0704",
    silent: "P0705",
    commit_lost: "P0706",
    failed: "P0707",
    set_up: "P0708",
};

/// What an error means.
pub(crate) fn trouble(error: &Error) -> SqlTrouble {
    match error {
        Error::Database(error) => error.code().map_or(SqlTrouble::Failed, |code| of_state(&code)),
        Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => SqlTrouble::Silent,
        // A certificate that is not trusted comes as data that is not valid.
        Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            SqlTrouble::Untrusted
        }
        // The driver says "protocol" when a connection ends in the middle of an answer.
        Error::Io(_) | Error::Protocol(_) | Error::WorkerCrashed => SqlTrouble::Away,
        Error::Tls(error) if error.to_string().contains("not support TLS") => SqlTrouble::Plain,
        Error::Tls(_) => SqlTrouble::Untrusted,
        Error::Configuration(_) => SqlTrouble::NotLetIn,
        Error::Encode(_) => SqlTrouble::TooLarge,
        _ => SqlTrouble::Failed,
    }
}

fn of_state(state: &str) -> SqlTrouble {
    match (state.get(..2).unwrap_or_default(), state) {
        (_, "25006") => SqlTrouble::ReadOnly,
        // Not in this database, or not for this user: both are cured while one waits.
        (_, "42501" | "3D000") | ("28", _) => SqlTrouble::NotLetIn,
        (_, "57014" | "55P03" | "55006") => SqlTrouble::Failed,
        ("53", _) => SqlTrouble::Full,
        ("08" | "57", _) => SqlTrouble::Away,
        // Data, constraints, views with a check, and what triggers raise.
        ("22" | "23" | "44" | "P0", _) => SqlTrouble::Refused,
        ("54", _) => SqlTrouble::TooLarge,
        ("42" | "3F" | "55", _) => SqlTrouble::SetUp,
        // Deadlock, serialisation, plans gone stale, the server's own failures, all the rest.
        _ => SqlTrouble::Failed,
    }
}

#[cfg(test)]
mod tests {
    use potok_core::{Move, Reason};

    use super::*;

    #[test]
    fn every_state_has_a_move() {
        for (state, next) in [
            ("08000", Move::Wait),
            ("08006", Move::Wait),
            ("08P01", Move::Wait),
            ("25006", Move::Wait),
            ("28000", Move::Wait),
            ("28P01", Move::Wait),
            ("3D000", Move::Wait),
            ("42501", Move::Wait),
            ("53100", Move::Wait),
            ("53200", Move::Wait),
            ("53300", Move::Wait),
            ("53400", Move::Wait),
            ("57P01", Move::Wait),
            ("57P02", Move::Wait),
            ("57P03", Move::Wait),
            ("57P05", Move::Wait),
            ("0A000", Move::Retry),
            ("25P02", Move::Retry),
            ("25P03", Move::Retry),
            ("26000", Move::Retry),
            ("40001", Move::Retry),
            ("40P01", Move::Retry),
            ("55006", Move::Retry),
            ("55P03", Move::Retry),
            ("57014", Move::Retry),
            ("58030", Move::Retry),
            ("XX000", Move::Retry),
            ("", Move::Retry),
            ("22001", Move::SetAside),
            ("22003", Move::SetAside),
            ("22007", Move::SetAside),
            ("22021", Move::SetAside),
            ("22P02", Move::SetAside),
            ("22P05", Move::SetAside),
            ("23502", Move::SetAside),
            ("23503", Move::SetAside),
            ("23505", Move::SetAside),
            ("23514", Move::SetAside),
            ("44000", Move::SetAside),
            ("54000", Move::SetAside),
            ("54001", Move::SetAside),
            // In two halves, because the word looks like one of our own codes.
            (concat!("P", "0001"), Move::SetAside),
            ("3F000", Move::Fix),
            ("42601", Move::Fix),
            ("42703", Move::Fix),
            ("42804", Move::Fix),
            ("42P01", Move::Fix),
            ("55000", Move::Fix),
        ] {
            let trouble = of_state(state);
            let fault = trouble.fault(&SYSTEM, "db", Some(&state));
            assert_eq!(fault.next, next, "{state}");
            assert_eq!(trouble.is_about_records(), next == Move::SetAside, "{state}");
            assert!(!fault.code.is_empty() && fault.cause.is_some(), "{state}");
        }
        let large = of_state("54000").fault(&SYSTEM, "db", None);
        assert_eq!((large.reason, large.code), (Reason::TooLarge, "P0312"));
    }

    #[test]
    fn errors_of_the_driver_have_moves_too() {
        let io = |kind: std::io::ErrorKind| trouble(&Error::Io(kind.into()));
        assert_eq!(io(std::io::ErrorKind::ConnectionRefused), SqlTrouble::Away);
        assert_eq!(io(std::io::ErrorKind::UnexpectedEof), SqlTrouble::Away);
        assert_eq!(io(std::io::ErrorKind::TimedOut), SqlTrouble::Silent);
        assert_eq!(io(std::io::ErrorKind::InvalidData), SqlTrouble::Untrusted);
        assert_eq!(trouble(&Error::Protocol("x".to_owned())), SqlTrouble::Away);
        assert_eq!(trouble(&Error::Tls("x".into())), SqlTrouble::Untrusted);
        let plain = Error::Tls("server does not support TLS".into());
        assert_eq!(trouble(&plain), SqlTrouble::Plain);
        assert_eq!(trouble(&Error::Encode("x".into())), SqlTrouble::TooLarge);
        assert_eq!(trouble(&Error::RowNotFound), SqlTrouble::Failed);
    }
}
