//! What a disk says, sorted by whose move it is.

use std::io;
use std::path::Path;

use potok_core::Fault;

/// Everything passes when the disk has room and rights again; nobody has to tell potok.
pub(super) fn sort(path: &Path, error: &io::Error) -> Fault {
    let file = path.display();
    let fault = Fault::wait(format!("the file {file} cannot be written")).because(error);
    let fault = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            return fault.hint("make room; it goes on by itself").code("P1403");
        }
        io::ErrorKind::PermissionDenied
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::ReadOnlyFilesystem => fault.needs_somebody(),
        _ => fault,
    };
    fault.hint("check the folder and its rights; it goes on by itself").code("P1403")
}
