//! What the system would do to a process that asks too much of it.

/// A write beyond the size that files may have (`ulimit -f`) fails like one on a full disk, instead
/// of ending the process: it is waited for until there is room.
pub fn survive_file_size() {
    #[allow(unsafe_code, reason = "the standard library cannot ignore a signal")]
    // SAFETY: no handler is installed, and nothing else in the process has one for this signal.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}
