//! How commands ask: over HTTP where a process works in the data folder, else by opening the
//! folder and calling the same router right here.

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, BodyDataStream, Bytes, to_bytes};
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Request, Response, Uri};
use futures::StreamExt;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use potok_config::{Connections, Flags};
use potok_core::{Clock, Feed, SystemClock};
use potok_flow::Engine;
use potok_hub::tokens::tls_config;
use potok_server::{Admin, Identity};
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;
use tokio::time::Instant;
use tower::ServiceExt;

use crate::failure::Failure;
use crate::folder::{self, Folder, FolderBusy};
use crate::no_log::NoLog;
use crate::owner::Owner;
use crate::terminal::{self, plain};
use crate::wire;

/// How long a folder may be busy (another command at work, a process just starting) before we
/// give up, and how often we look.
const BUSY_MAX: Duration = Duration::from_secs(5);
const BUSY_LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a process may take to say who it is.
const INFO_TIMEOUT: Duration = Duration::from_secs(5);

/// In the head of an answer: what whoever asked should know besides.
const WARNING: &str = "potok-warning";

/// Which data folder, or which process.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Target {
    /// Data folder [default: ./potok-data, or what potok.yaml or POTOK_DATA_DIR says]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Admin address of the process to ask, e.g. 127.0.0.1:7600 or https://potok.example.com; found
    /// through the data folder where not given
    #[arg(long, value_name = "HOST:PORT")]
    pub admin: Option<String>,
    /// Send the access token to another machine without TLS: whoever is on the way can read it
    #[arg(long, requires = "admin")]
    pub insecure: bool,
    /// Connections file [default: ./potok.yaml if there is one]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl Target {
    /// The connections these flags, the environment and the file lead to.
    pub fn connections(&self) -> Result<Connections, Failure> {
        let flags = Flags { data_dir: self.data_dir.clone(), ..Flags::default() };
        wire::connections(self.config.as_deref(), &flags)
    }
}

/// Answers requests of the admin API.
pub struct Client {
    via: Connection,
    /// The data folder was not there before.
    new_folder: bool,
}

enum Connection {
    Process(HttpProcess),
    Folder { runtime: Arc<Runtime>, router: Router, _folder: Option<Folder> },
}

/// What a process says of itself.
#[derive(serde::Deserialize)]
struct Info {
    data_dir: String,
    nonce: String,
    pid: u32,
    #[serde(default)]
    pipelines: Vec<String>,
}

impl Client {
    /// Asks the process that works in the folder; opens the folder where there is none.
    pub fn find(wanted: &Target) -> Result<Client, Failure> {
        Self::find_or(wanted, false)
    }

    /// The same; a folder that does not exist is made.
    pub fn find_or_create(wanted: &Target) -> Result<Client, Failure> {
        Self::find_or(wanted, true)
    }

    /// Asks a running process, if there is one.
    pub fn find_process(wanted: &Target) -> Result<Option<Client>, Failure> {
        if wanted.admin.is_some() {
            return Self::find(wanted).map(Some);
        }
        Ok(Self::of_owner(&wanted.connections()?.data_dir))
    }

    fn find_or(wanted: &Target, create: bool) -> Result<Client, Failure> {
        if let Some(address) = &wanted.admin {
            return Self::at(address, wanted);
        }
        let connections = wanted.connections()?;
        let data_dir = &connections.data_dir;
        if !create && folder::kafka(&connections).is_none() && !data_dir.is_dir() {
            return Err(Failure::new(
                "P0509",
                format!("there is no data folder {}", data_dir.display()),
            )
            .hint("name it with --data-dir, or start with `potok run FILE` or `potok dev`"));
        }
        let new_folder = folder::kafka(&connections).is_none() && !data_dir.is_dir();
        let patient_until = Instant::now() + BUSY_MAX;
        loop {
            if let Some(client) = Self::of_owner(data_dir) {
                return Ok(client);
            }
            match Self::open(&connections)? {
                Ok(client) => return Ok(Client { new_folder, ..client }),
                Err(FolderBusy) if Instant::now() < patient_until => {
                    std::thread::sleep(BUSY_LOOK_EVERY)
                }
                Err(FolderBusy) => return Err(busy(data_dir)),
            }
        }
    }

    /// The process at an address named by hand.
    fn at(address: &str, wanted: &Target) -> Result<Client, Failure> {
        let mut process = HttpProcess::new(address)?;
        process.token = token();
        if process.token.is_some() && !process.is_private() && !wanted.insecure {
            let what = format!("the access token would go to {address} in clear");
            return Err(Failure::new("P0530", what).hint(
                "name its https:// address, or go through a tunnel to a loopback address; \
                 --insecure sends it all the same",
            ));
        }
        let data_dir = wanted.data_dir.as_deref();
        let info = info(&process).map_err(|cause| {
            Failure::new("P0510", format!("no potok process answers at {address}"))
                .because(cause)
                .hint("leave --admin away to find it through the data folder")
        })?;
        if let Some(data_dir) = data_dir
            && folder::absolute(data_dir) != Path::new(&info.data_dir)
        {
            let what = format!(
                "the process at {address} (pid {}) works in {}, not in {}",
                info.pid,
                info.data_dir,
                data_dir.display()
            );
            return Err(Failure::new("P0510", what).hint("give --admin or --data-dir, not both"));
        }
        Ok(Client { via: Connection::Process(process), new_folder: false })
    }

    /// The process that claims the folder, if it is alive and the claim is its own.
    pub fn of_owner(data_dir: &Path) -> Option<Client> {
        let owner = Owner::read(data_dir)?;
        let mut process = HttpProcess::new(&owner.address.to_string()).ok()?;
        // It is of this machine: what is sent to it stays here.
        process.token = token().or_else(|| owner.key.clone());
        let info = info(&process).ok()?;
        let same =
            info.nonce == owner.nonce && folder::absolute(data_dir) == Path::new(&info.data_dir);
        same.then_some(Client { via: Connection::Process(process), new_folder: false })
    }

    fn open(connections: &Connections) -> Result<Result<Client, FolderBusy>, Failure> {
        let runtime = Arc::new(folder::runtime()?);
        let folder = match runtime.block_on(Folder::open(connections))? {
            Ok(folder) => folder,
            Err(FolderBusy) => return Ok(Err(FolderBusy)),
        };
        // No pipelines: the engine only lends its log and clock.
        let engine = runtime.block_on(async { folder.engine(None) });
        let router = potok_server::router(Admin::new(engine, folder.identity(String::new(), None)));
        let via = Connection::Folder { runtime, router, _folder: Some(folder) };
        Ok(Ok(Client { via, new_folder: false }))
    }

    /// Asks the process that runs the pipeline; where none does, its feed is asked right here, and no
    /// data folder is needed.
    pub fn of_feed(
        wanted: &Target,
        pipeline: &str,
        feed: Arc<dyn Feed>,
    ) -> Result<Client, Failure> {
        if let Some(client) = Self::find_process(wanted)? {
            let info: Info = client.get_json("/api/v1/info")?;
            if wanted.admin.is_some() || info.pipelines.iter().any(|known| known == pipeline) {
                return Ok(client);
            }
        }
        let runtime = Arc::new(folder::runtime()?);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let log = Arc::new(NoLog);
        let engine = runtime.block_on(async { Engine::new(log, clock, None) });
        engine.know_feed(pipeline, feed);
        let identity = Identity {
            version: env!("CARGO_PKG_VERSION"),
            data_dir: String::new(),
            pid: std::process::id(),
            nonce: String::new(),
            address: None,
        };
        let router = potok_server::router(Admin::new(engine, identity));
        let via = Connection::Folder { runtime, router, _folder: None };
        Ok(Client { via, new_folder: false })
    }

    /// True when the data folder was made by this command.
    pub fn made_folder(&self) -> bool {
        self.new_folder
    }

    /// True when the folder is open in this process, which keeps all others out.
    pub fn holds_folder(&self) -> bool {
        matches!(self.via, Connection::Folder { .. })
    }

    /// A GET; the answer's body comes as it is written.
    pub fn get(&self, path: &str) -> Result<Answer, Failure> {
        self.call("GET", path, "", Vec::new())
    }

    /// A GET for one JSON value.
    pub fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        read_json(self.get(path)?)
    }

    /// The same, where a process that does not answer within a moment is as good as gone.
    pub fn look_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        read_json(self.call_within("GET", path, "", Vec::new(), Some(INFO_TIMEOUT))?)
    }

    pub fn post(&self, path: &str, kind: &str, body: Vec<u8>) -> Result<Answer, Failure> {
        self.call("POST", path, kind, body)
    }

    /// A POST for one JSON value.
    pub fn post_json<T: DeserializeOwned>(
        &self,
        path: &str,
        kind: &str,
        body: Vec<u8>,
    ) -> Result<T, Failure> {
        read_json(self.post(path, kind, body)?)
    }

    /// A DELETE that answers with one JSON value.
    pub fn delete_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        read_json(self.call("DELETE", path, "", Vec::new())?)
    }

    fn call(&self, method: &str, path: &str, kind: &str, body: Vec<u8>) -> Result<Answer, Failure> {
        self.call_within(method, path, kind, body, None)
    }

    fn call_within(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: Vec<u8>,
        max: Option<Duration>,
    ) -> Result<Answer, Failure> {
        let request = request(method, path, kind, body)
            .map_err(|error| Failure::usage("that cannot be asked").because(error))?;
        let (runtime, answer) = match &self.via {
            Connection::Process(process) => {
                let place = format!("at {}", process.address);
                (&process.runtime, process.call(request, max).map_err(|cause| lost(&place, cause))?)
            }
            Connection::Folder { runtime, router, .. } => {
                // The router has no error of its own; every failure is an answer.
                let Ok(answer) = runtime.block_on(router.clone().oneshot(request));
                (runtime, answer)
            }
        };
        let status = answer.status().as_u16();
        if let Some(warning) = answer.headers().get(WARNING).and_then(|text| text.to_str().ok()) {
            eprintln!("{} {}", terminal::on_stderr().yellow("warning:"), plain(warning));
        }
        let chunks = answer.into_body().into_data_stream();
        let body = BodyReader { runtime: runtime.clone(), chunks, chunk: Bytes::new() };
        let mut reader = BufReader::new(body);
        if status < 400 {
            return Ok(reader);
        }
        let mut text = Vec::new();
        // An error whose text is cut off is an error all the same.
        let _ = reader.read_to_end(&mut text);
        Err(Failure::answered(status, &text))
    }
}

/// The body of an answer, read as it arrives.
pub type Answer = BufReader<BodyReader>;

/// A body read like a file.
pub struct BodyReader {
    runtime: Arc<Runtime>,
    chunks: BodyDataStream,
    chunk: Bytes,
}

impl Read for BodyReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match self.runtime.block_on(self.chunks.next()) {
                Some(Ok(chunk)) => self.chunk = chunk,
                Some(Err(error)) => return Err(io::Error::other(root_cause(&error))),
                None => return Ok(0),
            }
        }
        let len = self.chunk.len().min(into.len());
        let part = self.chunk.split_to(len);
        if let Some(room) = into.get_mut(..len) {
            room.copy_from_slice(&part);
        }
        Ok(len)
    }
}

/// A process that answers over HTTP. No proxy, whatever the environment says, and no redirects.
pub struct HttpProcess {
    runtime: Arc<Runtime>,
    http: Transport,
    /// As in an address: host and port.
    address: String,
    /// Shown where the process asks for one.
    token: Option<String>,
}

/// How requests travel.
enum Transport {
    Plain(HttpClient<HttpConnector, Body>),
    Tls(HttpClient<HttpsConnector<HttpConnector>, Body>),
}

impl Transport {
    /// For addresses that begin with `https://` where `tls` is set, else with `http://`.
    fn new(tls: bool) -> Result<Self, String> {
        let mut tcp = HttpConnector::new();
        tcp.set_connect_timeout(Some(INFO_TIMEOUT));
        if !tls {
            return Ok(Transport::Plain(HttpClient::builder(TokioExecutor::new()).build(tcp)));
        }
        tcp.enforce_http(false);
        let https = HttpsConnectorBuilder::new().with_tls_config(tls_config()?).https_only();
        let https = https.enable_http1().wrap_connector(tcp);
        Ok(Transport::Tls(HttpClient::builder(TokioExecutor::new()).build(https)))
    }
}

impl HttpProcess {
    /// The process at `host:port`, `http://…` or `https://…`; nothing is sent yet, and no token later.
    pub fn new(address: &str) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime
            .map_err(|error| Failure::new("P0524", "no threads can be started").because(error))?;
        let address = address.trim_end_matches('/');
        let (tls, address) = match address.strip_prefix("https://") {
            Some(address) => (true, address),
            None => (false, address.strip_prefix("http://").unwrap_or(address)),
        };
        let http = Transport::new(tls)
            .map_err(|why| Failure::new("P0510", "TLS cannot be used").because(why))?;
        let (runtime, address) = (Arc::new(runtime), address.to_owned());
        Ok(HttpProcess { runtime, http, address, token: None })
    }

    /// True where nobody else reads what is sent: with TLS, or on this machine.
    fn is_private(&self) -> bool {
        let Ok(authority) = self.address.parse::<Authority>() else { return false };
        let host = authority.host().trim_matches(['[', ']']);
        let is_here = host.eq_ignore_ascii_case("localhost")
            || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
        is_here || matches!(self.http, Transport::Tls(_))
    }

    fn call(
        &self,
        request: Request<Body>,
        max: Option<Duration>,
    ) -> Result<Response<Body>, String> {
        let Some(max) = max else { return self.runtime.block_on(self.send(request)) };
        // The timer belongs to the runtime, so it is made inside.
        let limited = async { tokio::time::timeout(max, self.send(request)).await };
        self.runtime
            .block_on(limited)
            .unwrap_or_else(|_| Err(format!("no answer within {} s", max.as_secs())))
    }

    async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, String> {
        let scheme = if matches!(self.http, Transport::Tls(_)) { "https" } else { "http" };
        let url = format!("{scheme}://{}{}", self.address, request.uri());
        *request.uri_mut() = Uri::try_from(url).map_err(|error| error.to_string())?;
        if let Some(token) = &self.token {
            let bearer = HeaderValue::try_from(format!("Bearer {token}"));
            request.headers_mut().insert(AUTHORIZATION, bearer.map_err(|error| error.to_string())?);
        }
        let answer = match &self.http {
            Transport::Plain(http) => http.request(request).await,
            Transport::Tls(https) => https.request(request).await,
        };
        let answer = answer.map_err(|error| root_cause(&error))?;
        Ok(answer.map(Body::new))
    }

    /// Asks for one JSON value, which has to be there within so much time.
    pub fn ask<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        within: Duration,
    ) -> Result<T, String> {
        let exchange = async {
            let request = request(method, path, "", Vec::new()).map_err(|e| e.to_string())?;
            let answer = self.send(request).await?;
            let (status, body) = (answer.status(), answer.into_body());
            let text = to_bytes(body, usize::MAX).await.map_err(|error| root_cause(&error))?;
            match status.is_success() {
                true => Ok(text),
                false => Err(format!("it answers with status {}", status.as_u16())),
            }
        };
        // The timer belongs to the runtime, so it is made inside.
        let limited = async { tokio::time::timeout(within, exchange).await };
        let text = self
            .runtime
            .block_on(limited)
            .unwrap_or_else(|_| Err(format!("no answer within {} s", within.as_secs())))?;
        serde_json::from_slice(&text).map_err(|_| "something else listens there".to_owned())
    }
}

/// The access token of whoever calls, for processes that ask for one.
fn token() -> Option<String> {
    std::env::var("POTOK_TOKEN").ok().map(|token| token.trim().to_owned()).filter(|t| !t.is_empty())
}

fn request(
    method: &str,
    path: &str,
    kind: &str,
    body: Vec<u8>,
) -> Result<Request<Body>, axum::http::Error> {
    let mut request =
        Request::builder().method(method).uri(path).header(CONTENT_LENGTH, body.len());
    if !kind.is_empty() {
        request = request.header(CONTENT_TYPE, kind);
    }
    request.body(Body::from(body))
}

/// The innermost error; those around it only say that a request failed.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

fn info(process: &HttpProcess) -> Result<Info, String> {
    process.ask("GET", "/api/v1/info", INFO_TIMEOUT)
}

fn read_json<T: DeserializeOwned>(mut body: Answer) -> Result<T, Failure> {
    let mut text = Vec::new();
    body.read_to_end(&mut text).map_err(|error| lost("", error))?;
    serde_json::from_slice(&text).map_err(|error| {
        Failure::new("P0513", "the process answered with something else than expected")
            .because(error)
            .hint("is it another version? `potok --version` and its /api/v1/info tell")
    })
}

/// The connection broke before the whole answer was there.
pub fn lost(place: &str, cause: impl std::fmt::Display) -> Failure {
    let what = format!("the potok process {place} went away before it had answered");
    Failure::new("P0513", what.replace("  ", " ")).because(cause)
}

/// The folder is locked, and whoever holds it does not answer.
pub fn busy(data_dir: &Path) -> Failure {
    let what = format!("another process works in {} and cannot be asked", data_dir.display());
    let failure = Failure::new("P0508", what);
    match Owner::read(data_dir) {
        Some(owner) => failure.hint(format!(
            "pid {} said it would answer at {}; is it stopped, or just starting?",
            owner.pid, owner.address
        )),
        None => {
            failure.hint("a command that writes or reads there directly? try again in a moment")
        }
    }
}

/// Reads lines of JSON until the end; a line `{"error": …}` is why there is no more.
pub fn for_each_line(
    mut body: Answer,
    mut visit: impl FnMut(&[u8], bool) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = body.read_until(b'\n', &mut line).map_err(|error| lost("", error))?;
        if read == 0 {
            return Ok(());
        }
        if line.starts_with(b"{\"error\":") {
            return Err(Failure::answered(500, &line));
        }
        // Whoever writes on flushes when nothing more has arrived.
        visit(&line, !body.buffer().is_empty())?;
    }
}

/// All but what RFC 3986 calls unreserved.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Makes a text fit for a path or a query of a URL.
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_token_goes_in_clear_to_this_machine_only() {
        let is_private = |address: &str| HttpProcess::new(address).unwrap().is_private();
        for here in
            ["127.0.0.1:7600", "http://localhost:7600/", "[::1]:7600", "https://potok.example"]
        {
            assert!(is_private(here), "{here}");
        }
        let elsewhere = [
            "potok.example:7600",
            "10.0.0.7:7600",
            "http://localhost.evil.example",
            "localhost:7600@evil.example:80",
        ];
        for elsewhere in elsewhere {
            assert!(!is_private(elsewhere), "{elsewhere}");
        }
    }
}
