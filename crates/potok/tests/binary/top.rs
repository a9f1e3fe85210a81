//! `potok top` on a screen of its own.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::process::Home;
use crate::wait;

/// A terminal that nobody sees, and the command that draws on it; killed when dropped.
struct Screen {
    ours: File,
    child: Child,
    /// What was drawn so far.
    drawn: Arc<Mutex<Vec<u8>>>,
}

fn size(columns: u16, rows: u16) -> libc::winsize {
    libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Screen {
    fn start(mut command: Command, columns: u16, rows: u16) -> Self {
        let (ours, theirs) = pair(columns, rows);
        command.stdin(Stdio::null()).stdout(theirs).stderr(Stdio::null());
        let child = command.env("TERM", "xterm").spawn().unwrap();
        // The command has the other end, and nobody else.
        drop(command);
        let mut reading = ours.try_clone().unwrap();
        let drawn = Arc::new(Mutex::new(Vec::new()));
        let all = drawn.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4_096];
            // It ends with an error when the command does.
            while let Ok(count @ 1..) = reading.read(&mut buffer) {
                all.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Screen { ours, child, drawn }
    }

    #[allow(unsafe_code, reason = "the standard library knows no terminals")]
    fn resize(&self, columns: u16, rows: u16) {
        let size = size(columns, rows);
        // SAFETY: the descriptor is open, and the size lives until the call returns.
        let done = unsafe { libc::ioctl(self.ours.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(done, 0);
    }

    /// The lines of the last whole view.
    fn view(&self) -> Vec<String> {
        let drawn = String::from_utf8_lossy(&self.drawn.lock().unwrap()).into_owned();
        let views = drawn.split("\x1b[H").filter(|view| view.ends_with("\x1b[J"));
        let last = views.last().unwrap_or_default();
        last.split("\r\n").map(plain).collect()
    }

    /// Waits for a view.
    fn until(&self, what: &str, wanted: impl Fn(&[String]) -> bool) -> Vec<String> {
        wait::until_seen(what, || {
            let view = self.view();
            if wanted(&view) { Ok(view) } else { Err(view.join("\n")) }
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Fails only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both ends of a terminal.
#[allow(unsafe_code, reason = "the standard library knows no terminals")]
fn pair(columns: u16, rows: u16) -> (File, OwnedFd) {
    let (mut ours, mut theirs) = (-1, -1);
    let mut size = size(columns, rows);
    // SAFETY: both places and the size live until the call returns; no name and no settings are asked
    // for. What it gives out is ours alone.
    unsafe {
        let none = std::ptr::null_mut();
        let settings = std::ptr::null_mut();
        let done = libc::openpty(&raw mut ours, &raw mut theirs, none, settings, &raw mut size);
        assert_eq!(done, 0, "there is a terminal");
        libc::fcntl(ours, libc::F_SETFD, libc::FD_CLOEXEC);
        (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs))
    }
}

/// A line without what only moves and paints.
fn plain(line: &str) -> String {
    let mut parts = line.split('\x1b');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let at = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        text.push_str(&part[at..]);
    }
    text
}

fn widest(view: &[String]) -> usize {
    view.iter().map(|line| line.chars().count()).max().unwrap_or(0)
}

#[test]
fn top_follows_its_screen_and_waits_for_a_process_that_is_away() {
    let home = Home::new();
    let running = home.start();
    let screen = Screen::start(home.command(["top"]), 100, 30);
    let has = |view: &[String], text: &str| view.iter().any(|line| line.contains(text));
    let view = screen.until("the overview is drawn", |view| {
        has(view, "orders") && has(view, "running") && has(view, "DEAD OPEN")
    });
    assert!(widest(&view) > 44, "{view:?}");
    screen.resize(44, 7);
    screen.until("it fits a small screen", |view| {
        has(view, "PIPELINE") && widest(view) <= 44 && view.len() <= 7
    });
    screen.resize(100, 30);
    screen.until("it takes a large one", |view| has(view, "DEAD OPEN") && widest(view) > 44);

    // It ended with the first question that nobody answered.
    running.kill();
    let view = screen.until("it says that nobody answers", |view| has(view, "trying again"));
    assert!(has(&view, "orders"), "what was seen last stays: {view:?}");
    // It holds no folder that the process needs.
    let running = home.start();
    screen.until("it goes on", |view| has(view, "running") && !has(view, "trying again"));
    // A process that hangs is as good as gone.
    running.signal("STOP");
    screen.until("it says that nobody answers", |view| has(view, "trying again"));
    running.signal("CONT");
    screen.until("it goes on", |view| has(view, "running") && !has(view, "trying again"));
}

#[test]
fn top_that_is_there_first_lets_the_process_start() {
    // It kept the folder open: nobody else could start in it.
    let home = Home::new();
    home.start().stop();
    let screen = Screen::start(home.command(["top"]), 100, 30);
    screen.until("nobody is there", |view| view.iter().any(|line| line.contains("trying again")));
    let _running = home.start();
    screen.until("it is there", |view| {
        view.iter().any(|line| line.contains("running"))
            && !view.iter().any(|line| line.contains("trying again"))
    });
}
