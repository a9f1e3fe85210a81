//! MariaDB and MySQL number their errors. SQLSTATE is too coarse here to decide anything alone: a
//! denied privilege, a full user quota and a misspelt statement share one.

use sqlx::Error;
use sqlx::mysql::MySqlDatabaseError;

use crate::sql::{SqlTrouble, System};

/// Their name and the pages about their troubles.
pub(crate) const SYSTEM: System = System {
    name: "MariaDB or MySQL",
    away: "P0801",
    not_let_in: "P0802",
    not_trusted: "P0811",
    without_tls: "ssl-mode=DISABLED",
    authority: "ssl-ca",
    read_only: "P0803",
    full: "P0804",
    silent: "P0805",
    commit_lost: "P0806",
    failed: "P0807",
    set_up: "P0808",
};

/// What an error means.
pub(crate) fn trouble(error: &Error) -> SqlTrouble {
    match error {
        Error::Database(error) => match error.try_downcast_ref::<MySqlDatabaseError>() {
            Some(error) => of_number(error.number(), error.code().unwrap_or_default()),
            None => SqlTrouble::Failed,
        },
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

fn of_number(number: u16, state: &str) -> SqlTrouble {
    match number {
        // Handshake, network, shutdown, a connection that was killed, a cluster not ready.
        1042 | 1043 | 1047 | 1053 | 1079 | 1152 | 1156..=1161 | 1184 | 1189 | 1190 | 1927 => {
            SqlTrouble::Away
        }
        2002 | 2003 | 2006 | 2013 | 2055 => SqlTrouble::Away,
        // Users, passwords, hosts, privileges, and a database that is not there (yet).
        1044 | 1045 | 1049 | 1129 | 1130 | 1131 | 1132 | 1133 | 1142 | 1143 | 1227 | 1251
        | 1370 | 1698 | 1820 | 1862 | 3118 | 4151 => SqlTrouble::NotLetIn,
        1036 | 1290 | 1792 | 1836 | 1874 => SqlTrouble::ReadOnly,
        // Disk, table, memory, threads, connections, prepared statements, a user's quota.
        3 | 1021 | 1026 | 1037 | 1038 | 1040 | 1041 | 1114 | 1135 | 1203 | 1226 | 1461 => {
            SqlTrouble::Full
        }
        1118 | 1153 | 2020 => SqlTrouble::TooLarge,
        // Locks, deadlocks, time limits, interruptions, statements gone stale.
        1020 | 1205 | 1213 | 1243 | 1317 | 1614 | 1615 | 1969 | 3024 => SqlTrouble::Failed,
        // A value that is null, too long, out of range, no date, no JSON; a constraint.
        1048 | 1062 | 1216 | 1217 | 1264 | 1265 | 1292 | 1300 | 1364 | 1366 | 1367 | 1406
        | 1411 | 1416 | 1425 | 1426 | 1451 | 1452 | 1526 | 1557 | 1586 | 1644 | 1690 | 1748
        | 1761 | 1762 | 1859 | 3140 | 3141 | 3819 | 3988 | 4025 => SqlTrouble::Refused,
        1005 | 1046 | 1193 | 1215 | 1273 | 1288 | 1348 | 1356 | 1471 | 1665 => SqlTrouble::SetUp,
        _ => match state.get(..2).unwrap_or_default() {
            "08" => SqlTrouble::Away,
            // 45 is what a trigger raises.
            "22" | "23" | "45" => SqlTrouble::Refused,
            "28" => SqlTrouble::NotLetIn,
            "21" | "42" => SqlTrouble::SetUp,
            _ => SqlTrouble::Failed,
        },
    }
}

#[cfg(test)]
mod tests {
    use potok_core::{Move, Reason};

    use super::*;

    #[test]
    fn every_number_has_a_move() {
        for (number, state, next) in [
            (1040, "08004", Move::Wait),
            (1044, "42000", Move::Wait),
            (1045, "28000", Move::Wait),
            (1049, "42000", Move::Wait),
            (1053, "08S01", Move::Wait),
            (1114, "HY000", Move::Wait),
            (1021, "HY000", Move::Wait),
            (1142, "42000", Move::Wait),
            (1203, "42000", Move::Wait),
            (1226, "42000", Move::Wait),
            (1290, "HY000", Move::Wait),
            (1698, "28000", Move::Wait),
            (1792, "25006", Move::Wait),
            (1836, "HY000", Move::Wait),
            (1927, "70100", Move::Wait),
            (2006, "", Move::Wait),
            (2013, "HY000", Move::Wait),
            (9999, "08S01", Move::Wait),
            (1020, "HY000", Move::Retry),
            (1205, "HY000", Move::Retry),
            (1213, "40001", Move::Retry),
            (1317, "70100", Move::Retry),
            (1969, "70100", Move::Retry),
            (1030, "HY000", Move::Retry),
            (9999, "", Move::Retry),
            (1048, "23000", Move::SetAside),
            (1062, "23000", Move::SetAside),
            (1153, "08S01", Move::SetAside),
            (1264, "22003", Move::SetAside),
            (1292, "22007", Move::SetAside),
            (1366, "22007", Move::SetAside),
            (1406, "22001", Move::SetAside),
            (1452, "23000", Move::SetAside),
            (1644, "45000", Move::SetAside),
            (3819, "HY000", Move::SetAside),
            (4025, "23000", Move::SetAside),
            (9999, "45000", Move::SetAside),
            (1046, "3D000", Move::Fix),
            (1054, "42S22", Move::Fix),
            (1064, "42000", Move::Fix),
            (1136, "21S01", Move::Fix),
            (1146, "42S02", Move::Fix),
            (1665, "HY000", Move::Fix),
        ] {
            let trouble = of_number(number, state);
            let fault = trouble.fault(&SYSTEM, "db", Some(&number));
            assert_eq!(fault.next, next, "{number}");
            assert_eq!(trouble.is_about_records(), next == Move::SetAside, "{number}");
            assert!(!fault.code.is_empty() && fault.cause.is_some(), "{number}");
        }
        let large = of_number(1153, "08S01").fault(&SYSTEM, "db", None);
        assert_eq!((large.reason, large.code), (Reason::TooLarge, "P0312"));
    }

    #[test]
    fn errors_of_the_driver_have_moves_too() {
        let io = |kind: std::io::ErrorKind| trouble(&Error::Io(kind.into()));
        assert_eq!(io(std::io::ErrorKind::ConnectionReset), SqlTrouble::Away);
        assert_eq!(io(std::io::ErrorKind::TimedOut), SqlTrouble::Silent);
        assert_eq!(io(std::io::ErrorKind::InvalidData), SqlTrouble::Untrusted);
        assert_eq!(trouble(&Error::Protocol("x".to_owned())), SqlTrouble::Away);
        assert_eq!(trouble(&Error::Tls("x".into())), SqlTrouble::Untrusted);
        let plain = Error::Tls("server does not support TLS".into());
        assert_eq!(trouble(&plain), SqlTrouble::Plain);
        assert_eq!(trouble(&Error::RowNotFound), SqlTrouble::Failed);
    }
}
