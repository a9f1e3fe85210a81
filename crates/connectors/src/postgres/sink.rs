//! The destination: records into the tables of one PostgreSQL database.

use std::str::FromStr as _;

use async_trait::async_trait;
use potok_core::{Batch, Fault, Receipt, Sink, SinkLimits};
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::client::Postgres;
use crate::sql::{
    Dialect, ServerSink, SqlSinkConfig, SqlTimeouts, Tables, bare_host, check_parameters,
    must_verify,
};

/// What an address may say besides the server and the database.
const PARAMETERS: &[&str] = &[
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
    "statement-cache-capacity",
];

/// Writes records into the tables of one PostgreSQL database.
pub struct PostgresSink(ServerSink<Postgres>);

impl PostgresSink {
    /// A sink for the database at `url`, `postgres://user:password@host:port/database`. Connects
    /// when it is first used; says everything that is wrong with the mapping at once.
    pub fn new(url: &str, config: SqlSinkConfig) -> Result<PostgresSink, Vec<Fault>> {
        let tables = Tables::new(&config)?;
        tables.check_names(Dialect::Postgres)?;
        let options = options(tables.label(), url).map_err(|fault| vec![fault])?;
        Ok(PostgresSink(ServerSink::new(Postgres::new(options), tables)))
    }

    /// The same sink with other bounds on time.
    #[must_use]
    pub fn with_timeouts(mut self, timeouts: SqlTimeouts) -> Self {
        self.0.set_timeouts(timeouts);
        self
    }
}

/// How to reach the database at `url`; `label` names whoever wants to.
pub(crate) fn options(label: &str, url: &str) -> Result<PgConnectOptions, Fault> {
    check_parameters(label, url, PARAMETERS, "P0709")?;
    let options = PgConnectOptions::from_str(url).map_err(|error| {
        let what = format!("{label}: the address of the database cannot be read");
        let hint = "it looks like postgres://user:password@host:5432/database";
        Fault::fix(what).because(error).hint(hint).code("P0709")
    })?;
    Ok(trusting(url, options))
}

/// As the address says; where it says nothing of TLS, the server must prove who it is.
fn trusting(url: &str, options: PgConnectOptions) -> PgConnectOptions {
    let host = bare_host(options.get_host()).to_owned();
    match options.get_socket() {
        Some(_) => options,
        None if must_verify(url, &host, false) => {
            options.host(&host).ssl_mode(PgSslMode::VerifyFull)
        }
        None => options.host(&host),
    }
}

#[async_trait]
impl Sink for PostgresSink {
    fn limits(&self) -> SinkLimits {
        ServerSink::<Postgres>::limits()
    }

    async fn prepare(&self) -> Result<(), Fault> {
        self.0.prepare().await
    }

    async fn check(&self) -> Result<(), Fault> {
        self.0.check().await
    }

    async fn probe(&self) -> Result<(), Fault> {
        self.0.probe().await
    }

    async fn deliver(&self, batch: &Batch) -> Result<Receipt, Fault> {
        self.0.deliver(batch).await
    }
}
