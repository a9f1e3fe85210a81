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

/// How many sockets a process may have that needs some files besides: as many files as the system
/// lets it open, which is made as many as it may be.
pub fn sockets() -> usize {
    /// Files, and sockets that are not clients'.
    const BESIDES: u64 = 1_000;
    let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    #[allow(unsafe_code, reason = "the standard library cannot ask for this limit")]
    // SAFETY: the calls read and write the one structure, which is ours.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut files) != 0 {
            return usize::MAX;
        }
        let more = libc::rlimit { rlim_cur: files.rlim_max, ..files };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &more) == 0 {
            files = more;
        }
    }
    let sockets = files.rlim_cur.saturating_sub(BESIDES).max(files.rlim_cur / 2);
    sockets.try_into().unwrap_or(usize::MAX)
}
