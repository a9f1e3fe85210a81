//! The proxy's modes, on a server that echoes lines.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use potok_services::{Mode, Proxy};

use crate::wait::until;

/// Long enough for an answer that comes at all.
const SHORT: Duration = Duration::from_millis(300);

/// Echoes each line; tells what it got.
fn echo() -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (got, lines) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, got) = (stream.unwrap(), got.clone());
            std::thread::spawn(move || {
                for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                    let Ok(line) = line else { return };
                    let _ = got.send(line.clone());
                    if stream.write_all(format!("{line}\n").as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, lines)
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(proxy: &Proxy) -> Self {
        Client(BufReader::new(TcpStream::connect(proxy.address()).unwrap()))
    }

    fn send(&mut self, line: &str) {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn answer(&mut self) -> String {
        self.0.get_mut().set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Open, and silent.
    fn hears_nothing(&mut self) {
        self.0.get_mut().set_read_timeout(Some(SHORT)).unwrap();
        let heard = self.0.get_mut().read(&mut [0]);
        let error = heard.expect_err("the connection is open and silent");
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    }

    /// Closed, by either end of a connection.
    fn is_closed(&mut self) {
        self.0.get_mut().set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        match self.0.get_mut().read(&mut [0]) {
            Ok(count) => assert_eq!(count, 0, "something arrived"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
}

#[test]
fn passes_and_delays() {
    let (target, lines) = echo();
    let proxy = Proxy::start(target);
    let mut client = Client::connect(&proxy);
    client.send("a");
    assert_eq!(client.answer(), "a");
    proxy.set(Mode::Delay(Duration::from_secs(3600)));
    client.send("b");
    client.hears_nothing();
    // Shorter now, for what is on its way too.
    proxy.set(Mode::Delay(Duration::from_millis(1)));
    assert_eq!(client.answer(), "b");
    assert_eq!(lines.iter().take(2).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(proxy.connections(), 1);
    drop(client);
    until("the connection is forgotten", || (proxy.connections() == 0).then_some(()));
}

#[test]
fn cuts_what_is_open_and_refuses_what_is_new() {
    let (target, _lines) = echo();
    let proxy = Proxy::start(target);
    let mut client = Client::connect(&proxy);
    client.send("a");
    assert_eq!(client.answer(), "a");
    for _ in 0..20 {
        proxy.set(Mode::Cut);
        client.is_closed();
        let refused = TcpStream::connect(proxy.address()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        proxy.set(Mode::Pass);
        client = Client::connect(&proxy);
        client.send("b");
        assert_eq!(client.answer(), "b");
    }
    proxy.close_all();
    client.is_closed();
    client = Client::connect(&proxy);
    client.send("c");
    assert_eq!(client.answer(), "c");
}

#[test]
fn a_black_hole_holds_everything_and_loses_nothing() {
    let (target, lines) = echo();
    let proxy = Proxy::start(target);
    let mut old = Client::connect(&proxy);
    old.send("a");
    assert_eq!(old.answer(), "a");
    proxy.set(Mode::BlackHole);
    let mut new = Client::connect(&proxy);
    old.send("b");
    new.send("c");
    old.hears_nothing();
    new.hears_nothing();
    assert_eq!(lines.try_iter().collect::<Vec<_>>(), ["a"]);
    proxy.set(Mode::Pass);
    assert_eq!(old.answer(), "b");
    assert_eq!(new.answer(), "c");
}

#[test]
fn dropped_replies_leave_the_request_done_and_the_connection_open() {
    let (target, lines) = echo();
    let proxy = Proxy::start(target);
    let mut client = Client::connect(&proxy);
    let mut idle = Client::connect(&proxy);
    client.send("a");
    assert_eq!(client.answer(), "a");
    proxy.set(Mode::DropReplies);
    client.send("b");
    assert_eq!(lines.iter().take(2).collect::<Vec<_>>(), ["a", "b"]);
    client.hears_nothing();
    // Nothing follows behind the gap; who missed nothing goes on.
    proxy.set(Mode::Pass);
    client.is_closed();
    idle.send("c");
    assert_eq!(idle.answer(), "c");
}

#[test]
fn much_passes_in_order() {
    let (target, _lines) = echo();
    let proxy = Proxy::start(target);
    proxy.set(Mode::Delay(Duration::from_millis(5)));
    let mut client = Client::connect(&proxy);
    let mut sender = client.0.get_ref().try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        for number in 0..200_000 {
            sender.write_all(format!("{number}\n").as_bytes()).unwrap();
        }
    });
    for number in 0..200_000 {
        assert_eq!(client.answer(), number.to_string());
    }
    writing.join().unwrap();
}

/// A target that is away looks like one: the connection ends.
#[test]
fn without_a_target_connections_end() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = Proxy::start(gone);
    Client::connect(&proxy).is_closed();
    let address = proxy.address();
    drop(proxy);
    until("nobody listens any more", || TcpStream::connect(address).is_err().then_some(()));
}
