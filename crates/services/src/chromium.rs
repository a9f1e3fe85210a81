//! Chromium without a window, driven through its DevTools protocol: what a page really does, seen
//! from a test.
//!
//! A [`Page`] runs scripts in the page and hands their values back as JSON text; the test parses
//! it. The protocol's own JSON is never parsed here: values travel percent-encoded, so that nothing
//! in them has to be unescaped, and this crate stays without a JSON library.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::folder::Folder;
use crate::process::Process;
use crate::wait::{PATIENCE, until};
use crate::{lifecycle, must, ports, programs};

/// A page that does not answer for so long hangs.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// One message of the protocol; a value larger than this is a mistake of the test.
const MESSAGE_BYTES_MAX: u64 = 64 << 20;

/// One browser with a profile of its own.
#[derive(Debug)]
pub struct Chromium {
    // Dropped in this order: first the process, then its folder.
    process: Process,
    port: u16,
    folder: Folder,
}

lifecycle!(Chromium);

impl Chromium {
    #[track_caller]
    pub fn start() -> Self {
        must(Chromium::open())
    }

    pub fn open() -> Result<Self> {
        programs::chromium()?;
        ports::with_free(None, |port| {
            let folder = Folder::open("chromium", None)?;
            let process = Process::new("Chromium", folder.path(), "log", libc::SIGTERM);
            let chromium = Chromium { process, port, folder };
            chromium.launch()?;
            Ok(chromium)
        })
    }

    fn launch(&self) -> Result<()> {
        let mut command = Command::new(programs::chromium()?);
        command.arg(format!("--remote-debugging-port={}", self.port));
        command.arg(format!("--user-data-dir={}", self.folder.inner("profile")?.display()));
        command.args([
            "--headless=new",
            // Tests run as root in places, and in containers without user namespaces.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-default-apps",
            "--disable-extensions",
            "--disable-sync",
            "--no-first-run",
            "--no-proxy-server",
            "--password-store=basic",
            "--window-size=1280,900",
            "about:blank",
        ]);
        // Settings of the person who runs the tests stay out of it.
        command.env("HOME", self.folder.path()).env_remove("XDG_CONFIG_HOME");
        command.env_remove("DBUS_SESSION_BUS_ADDRESS");
        self.process.launch(command, || self.ask("GET", "/json/version").map(drop))
    }

    /// Opens a page in a tab of its own and waits until it has loaded.
    #[track_caller]
    pub fn page(&self, url: &str) -> Page {
        let mut page = must(self.tab());
        page.open(url);
        page
    }

    fn tab(&self) -> Result<Page> {
        let made = self.ask("PUT", "/json/new?about:blank")?;
        // "webSocketDebuggerUrl": "ws://127.0.0.1:9222/devtools/page/0123ABCD"
        let path = made.split_once("/devtools/page/").context("a tab has no address")?.1;
        let id = path.split('"').next().unwrap_or_default();
        let mut page = Page { socket: Socket::connect(self.port, id)?, calls: 0 };
        page.call("Page.enable", "{}")?;
        Ok(page)
    }

    fn ask(&self, method: &str, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        let host = format!("127.0.0.1:{}", self.port);
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
        let mut reader = BufReader::new(stream);
        let length = head(&mut reader, "200")?;
        let mut body = String::new();
        reader.take(length.min(MESSAGE_BYTES_MAX)).read_to_string(&mut body)?;
        Ok(body)
    }
}

/// A tab. It lives as long as its browser.
#[derive(Debug)]
pub struct Page {
    socket: Socket,
    calls: u64,
}

impl Page {
    /// Goes to an address and waits until the page has loaded.
    #[track_caller]
    pub fn open(&mut self, url: &str) {
        let went = must(self.call("Page.navigate", &format!("{{\"url\":{}}}", quoted(url))));
        if went.contains("\"errorText\"") {
            must::<(), _>(Err(format!("{url} does not open: {went}")));
        }
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'");
    }

    /// The value of an expression, as JSON text; a promise is waited for. What it throws fails the
    /// test.
    #[track_caller]
    pub fn evaluate(&mut self, expression: &str) -> String {
        must(self.value_of(expression))
    }

    /// Waits until an expression is true. It may throw meanwhile, while a page loads for instance.
    #[track_caller]
    pub fn until(&mut self, condition: &str) {
        let mut last = String::new();
        let came = until(PATIENCE, || {
            match self.value_of(&format!("Boolean({condition})")) {
                Ok(value) if value == "true" => return Some(()),
                Ok(_) => {}
                Err(error) => last = format!(": {error:#}"),
            }
            None
        });
        must(came.with_context(|| format!("not true within {PATIENCE:?}: {condition}{last}")));
    }

    /// One call of the protocol, as it is documented there; the whole answer, as JSON text.
    #[track_caller]
    pub fn command(&mut self, method: &str, parameters: &str) -> String {
        must(self.call(method, parameters))
    }

    fn value_of(&mut self, expression: &str) -> Result<String> {
        let expression = format!(
            "(async () => encodeURIComponent(JSON.stringify(await ({expression})) ?? 'null'))()"
        );
        let expression = quoted(&expression);
        let asked =
            format!("{{\"expression\":{expression},\"awaitPromise\":true,\"returnByValue\":true}}");
        let answer = self.call("Runtime.evaluate", &asked)?;
        ensure!(!answer.contains("\"exceptionDetails\""), "the page throws: {answer}");
        let (_, value) = answer.split_once("\"value\":\"").context("the page has no answer")?;
        percent_decoded(value.split('"').next().unwrap_or_default())
    }

    /// One call of the protocol; what the page tells meanwhile is passed over.
    fn call(&mut self, method: &str, parameters: &str) -> Result<String> {
        self.calls += 1;
        let id = self.calls;
        let call = format!("{{\"id\":{id},\"method\":\"{method}\",\"params\":{parameters}}}");
        self.socket.send(1, call.as_bytes())?;
        let wanted = format!("{{\"id\":{id},");
        loop {
            let message = self.socket.receive()?;
            if message.starts_with(&wanted) {
                ensure!(
                    !message.contains("{\"error\":") || message.contains("\"result\":"),
                    "{message}"
                );
                return Ok(message);
            }
        }
    }
}

/// As much of a WebSocket as one client of a well-behaved server needs.
#[derive(Debug)]
struct Socket {
    stream: BufReader<TcpStream>,
}

impl Socket {
    fn connect(port: u16, page: &str) -> Result<Self> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        write!(
            stream,
            "GET /devtools/page/{page} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n\
             Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )?;
        let mut stream = BufReader::new(stream);
        head(&mut stream, "101")?;
        Ok(Socket { stream })
    }

    fn send(&mut self, kind: u8, bytes: &[u8]) -> Result<()> {
        // Whole, and masked with zeros: a mask is for proxies, and there is none.
        let mut frame = vec![0x80 | kind];
        match bytes.len() {
            length @ ..=125 => frame.push(0x80 | length as u8),
            length => {
                frame.push(0x80 | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend([0; 4]);
        frame.extend(bytes);
        self.stream.get_mut().write_all(&frame)?;
        Ok(())
    }

    fn receive(&mut self) -> Result<String> {
        let mut message = Vec::new();
        loop {
            let [first, second] = self.bytes()?;
            let length = match second & 0x7f {
                126 => u16::from_be_bytes(self.bytes()?).into(),
                127 => u64::from_be_bytes(self.bytes()?),
                length => length.into(),
            };
            ensure!(length <= MESSAGE_BYTES_MAX, "a message of {length} bytes");
            let mut part = vec![0; length as usize];
            self.stream.read_exact(&mut part)?;
            match first & 0x0f {
                0..=2 => message.extend(part),
                8 => bail!("the page is gone"),
                9 => self.send(10, &part)?,
                _ => {}
            }
            if first & 0x80 != 0 && first & 0x0f <= 2 {
                return Ok(String::from_utf8(message)?);
            }
        }
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).context("the page does not answer")?;
        Ok(bytes)
    }
}

/// Reads the head of an answer; the length of its body.
fn head(reader: &mut impl BufRead, wanted: &str) -> Result<u64> {
    let (mut status, mut length) = (String::new(), 0);
    reader.read_line(&mut status)?;
    ensure!(status.split(' ').nth(1) == Some(wanted), "Chromium answers {status:?}");
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end();
        if line.is_empty() {
            return Ok(length);
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
}

/// As a JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c < ' ' => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn percent_decoded(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first == b'%' {
            let (digits, behind) = behind.split_at_checked(2).context("a cut escape")?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits)?, 16)?);
            rest = behind;
        } else {
            bytes.push(*first);
        }
    }
    Ok(String::from_utf8(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_survive_the_way_into_a_page_and_back() {
        assert_eq!(quoted("a\"\\\n\u{1e}ü"), "\"a\\\"\\\\\\u000a\\u001eü\"");
        assert_eq!(percent_decoded("%7B%22a%22%3A%C3%BC%7D").unwrap(), "{\"a\":ü}");
        assert!(percent_decoded("%4").is_err());
    }
}
