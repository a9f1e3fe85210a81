//! A TCP proxy that makes the trouble a network makes.
//!
//! What it has read it delivers in order or not at all: a connection from which bytes vanished is
//! never continued behind the gap, but closed at the next change of mode, as a client would find it
//! after a real partition. A change of mode holds for open connections too; bytes that were
//! already on their way out may still arrive just after it.
//!
//! One thread reads and one writes in each direction, with a bounded queue between them, so that
//! a delay costs time and not throughput.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::wait::{now, until};
use crate::{must, ports};

const CHUNK_BYTES: usize = 16 * 1024;
/// Chunks on the way in one direction: what a held connection swallows before its sender notices.
const CHUNKS_MAX: usize = 64;
const CONNECT_MAX: Duration = Duration::from_secs(10);
const LISTEN_MAX: Duration = Duration::from_secs(10);

/// What happens to what passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Everything passes.
    Pass,
    /// Everything passes, this much later.
    Delay(Duration),
    /// All connections are closed and new ones refused.
    Cut,
    /// Connections are accepted and stay open, but nothing passes. What was sent meanwhile passes
    /// when the mode ends.
    BlackHole,
    /// Requests pass, answers vanish, connections stay open.
    DropReplies,
}

/// Stands in front of one address.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

impl Proxy {
    /// A proxy on a free port in front of `target`, which need not run yet.
    #[track_caller]
    pub fn start(target: SocketAddr) -> Self {
        must(Proxy::open(target))
    }

    pub fn open(target: SocketAddr) -> Result<Self> {
        let (port, listener) = ports::free_listener()?;
        let shared = Arc::new(Shared::default());
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accepting.accept(listener, port, target));
        Ok(Proxy { port, shared })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Changes the mode, for open connections too.
    #[track_caller]
    pub fn set(&self, mode: Mode) {
        let mut state = self.shared.state();
        if state.mode != mode {
            state.mode = mode;
            // Behind a gap nothing may follow.
            let close = |connection: &Connection| mode == Mode::Cut || connection.gap;
            state.close(close);
        }
        self.shared.changed.notify_all();
        drop(state);
        if mode == Mode::Cut {
            self.wake();
        }
        let listening = mode != Mode::Cut;
        let agreed =
            until(LISTEN_MAX, || (self.shared.state().listening == listening).then_some(()));
        must(agreed.ok_or(format!("port {} cannot be listened on again", self.port)));
    }

    /// Closes all open connections; new ones are welcome.
    pub fn close_all(&self) {
        self.shared.state().close(|_| true);
        self.shared.changed.notify_all();
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.shared.state().connections.len()
    }

    /// A thread that waits for a connection wakes up for nothing else.
    fn wake(&self) {
        drop(TcpStream::connect(self.address()));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.ended = true;
        state.close(|_| true);
        self.shared.changed.notify_all();
        drop(state);
        self.wake();
    }
}

#[derive(Debug)]
struct State {
    mode: Mode,
    listening: bool,
    ended: bool,
    connections: HashMap<u64, Connection>,
    opened: u64,
}

#[derive(Debug)]
struct Connection {
    ends: Vec<TcpStream>,
    /// Something that should have passed has vanished.
    gap: bool,
}

impl State {
    fn close(&mut self, which: impl Fn(&Connection) -> bool) {
        self.connections.retain(|_, connection| {
            let close = which(connection);
            if close {
                connection.ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
            }
            !close
        });
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Default for Shared {
    fn default() -> Self {
        let state = State {
            mode: Mode::Pass,
            listening: true,
            ended: false,
            connections: HashMap::new(),
            opened: 0,
        };
        Shared { state: Mutex::new(state), changed: Condvar::new() }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Requests,
    Replies,
}

/// Bytes with the moment they were read; none when the sender has finished.
type Chunk = (Instant, Vec<u8>);

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, bound: Duration) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, bound);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Accepts until the end; gives the port up while connections are refused.
    fn accept(self: &Arc<Self>, listener: TcpListener, port: u16, target: SocketAddr) {
        let mut listener = Some(listener);
        loop {
            let accepted = listener.as_ref().and_then(|listener| listener.accept().ok());
            let mut state = self.state();
            if state.ended {
                return;
            }
            if state.mode == Mode::Cut {
                listener = None;
                state.listening = false;
                drop(self.wait(state, Duration::from_secs(1)));
                continue;
            }
            drop(state);
            if listener.is_none() {
                listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok();
                let mut state = self.state();
                state.listening = listener.is_some();
                if listener.is_none() {
                    drop(self.wait(state, Duration::from_millis(50)));
                }
                continue;
            }
            if let Some((client, _)) = accepted {
                let shared = Arc::clone(self);
                thread::spawn(move || shared.serve(client, target));
            }
        }
    }

    /// One connection, from its opening to its end.
    fn serve(self: &Arc<Self>, client: TcpStream, target: SocketAddr) {
        let Ok(kept) = client.try_clone() else { return };
        let number = {
            let mut state = self.state();
            if state.mode == Mode::Cut || state.ended {
                return;
            }
            state.opened += 1;
            let number = state.opened;
            state.connections.insert(number, Connection { ends: vec![kept], gap: false });
            number
        };
        if let Some(server) = self.connect(number, target) {
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let both = [
                (client.try_clone(), server.try_clone(), Direction::Requests),
                (server.try_clone(), client.try_clone(), Direction::Replies),
            ];
            let both = both.map(|(from, to, direction)| {
                let shared = Arc::clone(self);
                let (from, to) = (from.ok()?, to.ok()?);
                Some(thread::spawn(move || shared.carry(number, from, to, direction)))
            });
            both.into_iter().flatten().for_each(|thread| drop(thread.join()));
        }
        drop(client.shutdown(Shutdown::Both));
        self.state().connections.remove(&number);
    }

    /// Connects to the target, as soon as anything passes.
    fn connect(&self, number: u64, target: SocketAddr) -> Option<TcpStream> {
        let mut state = self.state();
        while state.mode == Mode::BlackHole && state.connections.contains_key(&number) {
            state = self.wait(state, Duration::from_secs(1));
        }
        drop(state);
        let server = TcpStream::connect_timeout(&target, CONNECT_MAX).ok()?;
        // Closed meanwhile: then nobody would close this end.
        let mut state = self.state();
        state.connections.get_mut(&number)?.ends.push(server.try_clone().ok()?);
        Some(server)
    }

    /// Carries one direction until its sender finishes or the connection is closed.
    fn carry(&self, number: u64, from: TcpStream, to: TcpStream, direction: Direction) {
        let (chunks, queue) = sync_channel(CHUNKS_MAX);
        let reader = thread::spawn(move || read(from, &chunks));
        self.write(number, to, &queue, direction);
        // A reader that waits for room has none to wait for any more.
        drop(queue);
        drop(reader.join());
    }

    fn write(&self, number: u64, mut to: TcpStream, queue: &Receiver<Chunk>, way: Direction) {
        while let Ok((at, bytes)) = queue.recv() {
            match self.verdict(number, at, way) {
                Verdict::Pass if bytes.is_empty() => {
                    drop(to.shutdown(Shutdown::Write));
                    return;
                }
                Verdict::Pass if to.write_all(&bytes).is_ok() => {}
                Verdict::Vanish if bytes.is_empty() => {
                    // That the server has finished is an answer too.
                    self.wait_closed(number);
                    return;
                }
                Verdict::Vanish => {}
                Verdict::Pass | Verdict::Close => break,
            }
        }
        if let Some(connection) = self.state().connections.get(&number) {
            connection.ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
        }
    }

    fn wait_closed(&self, number: u64) {
        let mut state = self.state();
        while state.connections.contains_key(&number) {
            state = self.wait(state, Duration::from_secs(1));
        }
    }

    /// What becomes of a chunk, said when its moment has come.
    fn verdict(&self, number: u64, at: Instant, direction: Direction) -> Verdict {
        let mut state = self.state();
        loop {
            let mode = state.mode;
            let Some(connection) = state.connections.get_mut(&number) else {
                return Verdict::Close;
            };
            let bound = match mode {
                Mode::Pass => return Verdict::Pass,
                Mode::Cut => return Verdict::Close,
                Mode::DropReplies if direction == Direction::Requests => return Verdict::Pass,
                Mode::DropReplies => {
                    connection.gap = true;
                    return Verdict::Vanish;
                }
                Mode::BlackHole => Duration::from_secs(1),
                Mode::Delay(delay) => match (at + delay).checked_duration_since(now()) {
                    None | Some(Duration::ZERO) => return Verdict::Pass,
                    Some(left) => left,
                },
            };
            state = self.wait(state, bound);
        }
    }
}

enum Verdict {
    Pass,
    Vanish,
    Close,
}

/// Reads until the sender finishes, which is a chunk without bytes.
fn read(mut from: TcpStream, chunks: &SyncSender<Chunk>) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let count = from.read(&mut buffer).unwrap_or(0);
        let bytes = buffer.get(..count).unwrap_or_default().to_vec();
        if chunks.send((now(), bytes)).is_err() || count == 0 {
            return;
        }
    }
}
