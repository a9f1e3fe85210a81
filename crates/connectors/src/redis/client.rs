//! The connection to Redis. One call is one attempt, and every attempt ends in time.
//!
//! A connection lives until something goes wrong on it; the next call opens another, and asks the
//! sentinels again which server is the primary. Where a connection turns out to have died while it
//! was unused, the call is made on a new one: everything asked for here may be asked twice.

use std::fmt::Display;
use std::time::Duration;

use potok_core::Fault;
use redis::aio::MultiplexedConnection;
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{Arg, AsyncConnectionConfig, Cmd, RedisError, RedisResult, RedisWrite, TlsMode, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::address::{RedisAddress, RedisTopology};
use super::fault::{self, Failure, RedisTrouble};
use super::scripts::Script;

/// How long Redis may take. What takes longer is given up.
#[derive(Clone, Copy, Debug)]
pub struct RedisTimeouts {
    /// For a new connection, including the sentinels' answer.
    pub connect: Duration,
    /// For the answer to one call.
    pub call: Duration,
}

impl Default for RedisTimeouts {
    fn default() -> Self {
        RedisTimeouts { connect: Duration::from_secs(5), call: Duration::from_secs(10) }
    }
}

/// How to get a connection.
enum Connector {
    Server(redis::Client),
    // The driver remembers which sentinel answered.
    Sentinel(Mutex<SentinelClient>),
    Cluster(ClusterClient),
}

#[derive(Clone)]
enum Connection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    async fn ask(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        match self {
            Connection::One(connection) => cmd.query_async(connection).await,
            Connection::Cluster(connection) => cmd.query_async(connection).await,
        }
    }
}

/// The connection in use, and which one it is.
#[derive(Default)]
struct CurrentConnection {
    number: u64,
    connection: Option<Connection>,
}

/// Redis as one asks it.
pub(super) struct RedisClient {
    label: String,
    way: Connector,
    timeouts: RedisTimeouts,
    open: Mutex<CurrentConnection>,
}

impl RedisClient {
    /// Connects to nothing yet.
    pub fn new(address: RedisAddress, timeouts: RedisTimeouts) -> Result<Self, Fault> {
        let label = address.label();
        let way = way(address, timeouts).map_err(|error| {
            // Its words may hold a part of the address.
            let what = format!("the address of {label} is wrong ({})", error.category());
            Fault::fix(what).code("P0909")
        })?;
        Ok(RedisClient { label, way, timeouts, open: Mutex::default() })
    }

    /// How Redis is called in messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// True where keys have to be in one slot.
    pub fn is_cluster(&self) -> bool {
        matches!(self.way, Connector::Cluster(_))
    }

    /// Whether it answers, and lets us in.
    pub async fn ping(&self) -> Result<(), Fault> {
        self.ask(&redis::cmd("PING")).await.map(|_| ()).map_err(|error| self.fault(&error))
    }

    /// The server's INFO; `None` where it does not answer, or several would.
    pub async fn info(&self, section: &str) -> Option<String> {
        match self.ask(redis::cmd("INFO").arg(section)).await.ok()? {
            Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
            Value::VerbatimString { text, .. } => Some(text),
            _ => None,
        }
    }

    /// Whether a key is there.
    pub async fn has(&self, key: &str) -> Result<bool, Fault> {
        let answer = self.ask(redis::cmd("EXISTS").arg(key)).await;
        answer.map(|count| count != Value::Int(0)).map_err(|error| self.fault(&error))
    }

    /// Removes a key.
    pub async fn remove(&self, key: &str) -> Result<(), Fault> {
        let answer = self.ask(redis::cmd("DEL").arg(key)).await;
        answer.map(|_| ()).map_err(|error| self.fault(&error))
    }

    /// Any command.
    pub async fn command(&self, cmd: &Cmd) -> Result<Value, Failure> {
        self.ask(cmd).await.map_err(|error| Failure::of(&self.label, &error))
    }

    /// Runs a script. One that Redis does not know is sent along at once.
    pub async fn run(&self, call: &ScriptCall<'_>) -> Result<Value, Failure> {
        let failure = |error| Failure::of(&self.label, &error);
        match self.ask(&call.cmd).await {
            Err(error) if fault::trouble(&error) == RedisTrouble::NoScript => {}
            answer => return answer.map_err(failure),
        }
        self.ask(&call.with_text()).await.map_err(failure)
    }

    fn fault(&self, error: &RedisError) -> Fault {
        Failure::of(&self.label, error).fault
    }

    async fn ask(&self, cmd: &Cmd) -> RedisResult<Value> {
        let all = self.timeouts.connect + self.timeouts.call;
        timeout(all, self.attempt(cmd)).await.unwrap_or_else(|_| Err(too_late()))
    }

    async fn attempt(&self, cmd: &Cmd) -> RedisResult<Value> {
        loop {
            let (number, mut connection, is_new) = self.connection().await?;
            let bounded = timeout(self.timeouts.call, connection.ask(cmd)).await;
            let answer = bounded.unwrap_or_else(|_| Err(too_late()));
            let Err(error) = &answer else { return answer };
            if !fault::trouble(error).ends_connection() {
                return answer;
            }
            self.forget(number).await;
            let had_died = !is_new && error.is_connection_dropped();
            if !had_died {
                return answer;
            }
        }
    }

    /// The connection in use, or a new one.
    async fn connection(&self) -> RedisResult<(u64, Connection, bool)> {
        let mut open = self.open.lock().await;
        if let Some(connection) = &open.connection {
            return Ok((open.number, connection.clone(), false));
        }
        let connecting = timeout(self.timeouts.connect, self.connect()).await;
        let connection = connecting.unwrap_or_else(|_| Err(too_late()))?;
        open.number += 1;
        open.connection = Some(connection.clone());
        Ok((open.number, connection, true))
    }

    async fn forget(&self, number: u64) {
        let mut open = self.open.lock().await;
        if open.number == number {
            open.connection = None;
        }
    }

    async fn connect(&self) -> RedisResult<Connection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeouts.connect))
            .set_response_timeout(Some(self.timeouts.call));
        match &self.way {
            Connector::Server(client) => {
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                connection.await.map(Connection::One)
            }
            Connector::Sentinel(client) => {
                let mut client = client.lock().await;
                let connection = client.get_async_connection_with_config(&config);
                connection.await.map(Connection::One)
            }
            Connector::Cluster(client) => {
                client.get_async_connection().await.map(Connection::Cluster)
            }
        }
    }
}

fn too_late() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

fn way(address: RedisAddress, timeouts: RedisTimeouts) -> RedisResult<Connector> {
    let RedisAddress { kind, hosts, tls, certificates } = address;
    let first = hosts.first().cloned();
    let missing = || RedisError::from((redis::ErrorKind::InvalidClientConfig, "no host"));
    let settings = first.as_ref().map(|info| info.redis_settings().clone()).ok_or_else(missing)?;
    match kind {
        RedisTopology::Server => {
            let info = first.ok_or_else(missing)?;
            let client = match certificates {
                Some(certificates) => redis::Client::build_with_tls(info, certificates),
                None => redis::Client::open(info),
            };
            client.map(Connector::Server)
        }
        RedisTopology::Sentinel { name } => {
            let addresses = hosts.iter().map(|info| info.addr().clone());
            let server = SentinelServerType::Master;
            let mut builder = SentinelClientBuilder::new(addresses, name, server)?
                .set_client_to_redis_db(settings.db());
            if let Some(user) = settings.username() {
                builder = builder.set_client_to_redis_username(user);
            }
            if let Some(password) = settings.password() {
                builder = builder.set_client_to_redis_password(password);
            }
            if tls {
                builder = builder
                    .set_client_to_redis_tls_mode(TlsMode::Secure)
                    .set_client_to_sentinel_tls_mode(TlsMode::Secure);
            }
            if let Some(certificates) = certificates {
                builder = builder
                    .set_client_to_redis_certificates(certificates.clone())
                    .set_client_to_sentinel_certificates(certificates);
            }
            builder.build().map(|client| Connector::Sentinel(Mutex::new(client)))
        }
        RedisTopology::Cluster => {
            // A redirection is a repeat for the driver; waiting is the engine's.
            let mut builder = ClusterClientBuilder::new(hosts)
                .retries(2)
                .min_retry_wait(1)
                .max_retry_wait(20)
                .connection_timeout(timeouts.connect)
                .response_timeout(timeouts.call);
            if let Some(certificates) = certificates {
                builder = builder.certs(certificates);
            }
            builder.build().map(Connector::Cluster)
        }
    }
}

/// A script with what it is given: its key, then any bytes. Each is copied to where it is sent
/// from, and nowhere else.
pub(super) struct ScriptCall<'a> {
    script: &'a Script,
    cmd: Cmd,
}

impl<'a> ScriptCall<'a> {
    pub fn new(script: &'a Script, key: impl Display) -> Self {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(script.hash()).arg(1).write_arg_fmt(key);
        ScriptCall { script, cmd }
    }

    pub fn push(&mut self, arg: &[u8]) {
        self.cmd.write_arg(arg);
    }

    /// One that has to be written out.
    pub fn show(&mut self, arg: impl Display) {
        self.cmd.write_arg_fmt(arg);
    }

    /// The same for a server that does not know the script.
    fn with_text(&self) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(self.script.text());
        // Behind the command and the name of the script.
        for arg in self.cmd.args_iter().skip(2) {
            if let Arg::Simple(bytes) = arg {
                cmd.arg(bytes);
            }
        }
        cmd
    }
}
