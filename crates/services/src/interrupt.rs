//! Waits for Ctrl-C, so that services can be stopped in good order afterwards.

use anyhow::{Result, ensure};

/// From [`prepare`](Interrupt::prepare) on, Ctrl-C and SIGTERM are kept for
/// [`wait`](Interrupt::wait) instead of ending the process.
#[derive(Debug)]
pub struct Interrupt(libc::sigset_t);

impl Interrupt {
    /// To be called before any thread is started: threads take over what their maker keeps back.
    #[allow(unsafe_code, reason = "the standard library knows no signals")]
    pub fn prepare() -> Result<Self> {
        let mut kept = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is made by the first call before the others read it.
        let (kept, done) = unsafe {
            libc::sigemptyset(kept.as_mut_ptr());
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(kept.as_mut_ptr(), signal);
            }
            let kept = kept.assume_init();
            (kept, libc::pthread_sigmask(libc::SIG_BLOCK, &kept, std::ptr::null_mut()))
        };
        ensure!(done == 0, "signals cannot be kept back");
        Ok(Interrupt(kept))
    }

    /// Returns when one of them has come.
    #[allow(unsafe_code, reason = "the standard library knows no signals")]
    pub fn wait(&self) -> Result<()> {
        let mut signal = 0;
        // SAFETY: the set was made by `prepare`.
        let done = unsafe { libc::sigwait(&self.0, &mut signal) };
        ensure!(done == 0, "signals cannot be waited for");
        Ok(())
    }
}
