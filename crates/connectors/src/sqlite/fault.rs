//! SQLite fails in many ways; the engine needs only to know whose move it is.

use std::path::Path;

use potok_core::{Fault, Reason};
use rusqlite::{Error, ErrorCode};

/// The error is about one record: the others can go on.
pub(crate) fn is_about_the_record(error: &Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig)
    )
}

/// The error may mean that tables have changed: worth comparing them again.
pub(crate) fn may_be_the_tables(error: &Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::Unknown)
}

/// The fault of a record SQLite does not take.
pub(crate) fn refused(error: &Error) -> Fault {
    if error.sqlite_error_code() == Some(ErrorCode::TooBig) {
        return Fault::set_aside(Reason::TooLarge, "a value is larger than SQLite takes")
            .because(error)
            .code("P0312");
    }
    Fault::set_aside(Reason::Refused, "the database refused the record")
        .because(error)
        .code("P0307")
}

/// The fault of everything else. `label` names the destination, `path` its file.
pub(crate) fn sort(label: &str, path: &Path, error: &Error) -> Fault {
    let file = path.display();
    let fault = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            Fault::wait(format!("{label}: another program holds the lock on {file}"))
                .hint("it goes on by itself when the other transaction ends")
                .code("P0305")
        }
        Some(
            ErrorCode::CannotOpen
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied,
        ) => Fault::wait(format!("{label}: cannot open {file}"))
            .hint("check that the folder is there and that this user may read and write it")
            .code("P0305"),
        Some(ErrorCode::DiskFull) => Fault::wait(format!("{label}: no room to write {file}"))
            .hint("make room; it goes on by itself")
            .code("P0306"),
        Some(ErrorCode::ReadOnly) => Fault::wait(format!("{label}: {file} is read-only"))
            .hint("make file and folder writable; it goes on by itself")
            .code("P0306"),
        Some(ErrorCode::SystemIoFailure) => {
            Fault::wait(format!("{label}: the disk failed under {file}"))
                .hint("look at the disk and the system's log; it goes on by itself")
                .code("P0306")
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            Fault::fix(format!("{label}: {file} is damaged or no SQLite database"))
                .hint("put back a good file, or move this one away, then `potok resume`")
                .code("P0303")
        }
        _ => Fault::retry(format!("{label}: an attempt to write {file} failed")).code("P0311"),
    };
    fault.because(error)
}

/// The file is no longer the one that was opened.
pub(crate) fn gone(label: &str, path: &Path) -> Fault {
    Fault::wait(format!("{label}: {} was removed or replaced while in use", path.display()))
        .hint("it is opened anew; rows written before are in the old file only")
        .code("P0310")
}

#[cfg(test)]
mod tests {
    use potok_core::Move;
    use rusqlite::ffi;

    use super::*;

    fn error(code: i32) -> Error {
        Error::SqliteFailure(ffi::Error::new(code), None)
    }

    #[test]
    fn every_error_has_a_move() {
        for (code, next) in [
            (ffi::SQLITE_BUSY, Move::Wait),
            (ffi::SQLITE_BUSY_SNAPSHOT, Move::Wait),
            (ffi::SQLITE_LOCKED, Move::Wait),
            (ffi::SQLITE_FULL, Move::Wait),
            (ffi::SQLITE_READONLY, Move::Wait),
            (ffi::SQLITE_READONLY_DBMOVED, Move::Wait),
            (ffi::SQLITE_IOERR, Move::Wait),
            (ffi::SQLITE_IOERR_FSYNC, Move::Wait),
            (ffi::SQLITE_CANTOPEN, Move::Wait),
            (ffi::SQLITE_PERM, Move::Wait),
            (ffi::SQLITE_CORRUPT, Move::Fix),
            (ffi::SQLITE_NOTADB, Move::Fix),
            (ffi::SQLITE_ERROR, Move::Retry),
            (ffi::SQLITE_INTERRUPT, Move::Retry),
            (ffi::SQLITE_NOMEM, Move::Retry),
            (ffi::SQLITE_PROTOCOL, Move::Retry),
        ] {
            let error = error(code);
            assert!(!is_about_the_record(&error));
            let fault = sort("db", Path::new("x"), &error);
            assert_eq!(fault.next, next, "{error}");
            assert!(!fault.code.is_empty() && fault.cause.is_some());
        }
        for (code, reason) in [
            (ffi::SQLITE_CONSTRAINT_CHECK, Reason::Refused),
            (ffi::SQLITE_CONSTRAINT_NOTNULL, Reason::Refused),
            (ffi::SQLITE_CONSTRAINT_DATATYPE, Reason::Refused),
            (ffi::SQLITE_MISMATCH, Reason::Refused),
            (ffi::SQLITE_TOOBIG, Reason::TooLarge),
        ] {
            let error = error(code);
            assert!(is_about_the_record(&error), "{error}");
            let fault = refused(&error);
            assert_eq!((fault.next, fault.reason), (Move::SetAside, reason));
        }
    }
}
