//! Starts processes that cannot outlive us.
//!
//! Three nets, each for what the one before misses:
//! - Dropping a service kills it.
//! - The kernel kills every child when we end without dropping anything, even by SIGKILL
//!   (`PR_SET_PDEATHSIG`). It does so when the *thread* that forked ends, so all forking happens on
//!   one thread that lives as long as the process.
//! - A guard, a shell at the other end of a pipe, sees the pipe close, kills the services that
//!   still work inside our folders (children of children, frozen ones too), and removes the scratch
//!   folders. It looks at programs as well as folders: somebody may be looking around there.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result};

type Order = (Command, Sender<io::Result<Child>>);

/// Starts `command` as a child that dies with this process.
pub fn spawn(mut command: Command) -> Result<Child> {
    let program = command.get_program().to_string_lossy().into_owned();
    dies_with_us(&mut command);
    fork(command).with_context(|| format!("`{program}` does not start"))
}

/// Sends the command to the one thread that forks.
fn fork(command: Command) -> io::Result<Child> {
    static FORKING: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let orders = FORKING.get_or_init(|| {
        let (sender, orders) = channel::<Order>();
        // Never joined: it ends with the process.
        std::thread::spawn(move || {
            for (mut command, answer) in orders {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (answer, child) = channel();
    let gone = |_| io::Error::other("the thread that forks is gone");
    let sent = orders.lock().unwrap_or_else(PoisonError::into_inner).send((command, answer));
    sent.map_err(|_| io::Error::other("the thread that forks is gone"))?;
    child.recv().map_err(gone)?
}

#[allow(unsafe_code, reason = "the standard library cannot tie a child's life to ours")]
fn dies_with_us(command: &mut Command) {
    let us = std::process::id();
    // SAFETY: all calls are async-signal-safe and nothing is allocated. They run after a change
    // of user, which would clear the setting.
    unsafe {
        command.pre_exec(move || {
            #[cfg(target_os = "linux")]
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            if libc::getppid().unsigned_abs() != us {
                // We died between the fork and the line above.
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            // Signals that we keep back it must hear.
            let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
            Ok(())
        });
    }
}

const GUARD: &str = r#"
trap '' HUP INT QUIT TERM PIPE
while IFS= read -r line; do set -- "$@" "$line"; done
for line; do
    folder=${line#* }
    # Where a service was dropped, its folder is gone and so is the service.
    [ -d "$folder" ] || continue
    find /proc -mindepth 2 -maxdepth 2 -name cwd \
        \( -lname "$folder" -o -lname "$folder/*" \) 2>/dev/null |
        while IFS= read -r link; do
            process=${link%/cwd}
            case $(readlink "$process/exe") in
                */postgres* | */mariadbd* | */redis-server* | */java* | */chrom*)
                    kill -9 "${process#/proc/}" ;;
            esac
        done
    case $line in "scratch "*) rm -rf -- "$folder" ;; esac
done
"#;

/// From now on no service that works inside `folder` survives us; a scratch folder goes too.
pub fn guard(folder: &Path, scratch: bool) -> Result<()> {
    static GUARD_INPUT: OnceLock<Mutex<Option<ChildStdin>>> = OnceLock::new();
    let input = GUARD_INPUT.get_or_init(|| {
        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "potok-services-guard"]).current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Mutex::new(fork(command).ok().and_then(|mut child| child.stdin.take()))
    });
    let mut input = input.lock().unwrap_or_else(PoisonError::into_inner);
    let input = input.as_mut().context("`sh` does not start")?;
    let kind = if scratch { "scratch" } else { "kept" };
    writeln!(input, "{kind} {}", folder.display()).context("the guard of the services is gone")
}
