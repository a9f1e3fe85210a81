//! The destination: records into the tables of one MariaDB or MySQL database.

use std::str::FromStr as _;

use async_trait::async_trait;
use potok_core::{Batch, Fault, Receipt, Sink, SinkLimits};
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};

use super::client::Mysql;
use crate::sql::{
    Dialect, ServerSink, SqlSinkConfig, SqlTimeouts, Tables, bare_host, check_parameters,
    must_verify,
};

/// What an address may say besides the server and the database.
const PARAMETERS: &[&str] = &[
    "sslmode",
    "ssl-mode",
    "sslca",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "socket",
    "timezone",
    "time-zone",
    "statement-cache-capacity",
];

/// Writes records into the tables of one MariaDB or MySQL database.
pub struct MysqlSink(ServerSink<Mysql>);

impl MysqlSink {
    /// A sink for the database at `url`, `mysql://user:password@host:port/database`. Connects when
    /// it is first used; says everything that is wrong with the mapping at once.
    pub fn new(url: &str, config: SqlSinkConfig) -> Result<MysqlSink, Vec<Fault>> {
        let tables = Tables::new(&config)?;
        tables.check_names(Dialect::Mysql)?;
        let options = options(tables.label(), url).map_err(|fault| vec![fault])?;
        Ok(MysqlSink(ServerSink::new(Mysql::new(options), tables)))
    }

    /// The same sink with other bounds on time.
    #[must_use]
    pub fn with_timeouts(mut self, timeouts: SqlTimeouts) -> Self {
        self.0.set_timeouts(timeouts);
        self
    }
}

/// How to reach the database at `url`; `label` names whoever wants to.
pub(crate) fn options(label: &str, url: &str) -> Result<MySqlConnectOptions, Fault> {
    check_parameters(label, url, PARAMETERS, "P0809")?;
    // The driver knows one name for both; MariaDB's own is as good.
    let url = url.replacen("mariadb://", "mysql://", 1);
    let hint = "it looks like mysql://user:password@host:3306/database";
    let options = MySqlConnectOptions::from_str(&url).map_err(|error| {
        let what = format!("{label}: the address of the database cannot be read");
        Fault::fix(what).because(error).hint(hint).code("P0809")
    })?;
    if options.get_database().is_none() {
        let what = format!("{label}: the address names no database");
        return Err(Fault::fix(what).hint(hint).code("P0809"));
    }
    Ok(trusting(&url, options))
}

/// As the address says; where it says nothing of TLS, the server must prove who it is.
fn trusting(url: &str, options: MySqlConnectOptions) -> MySqlConnectOptions {
    let host = bare_host(options.get_host()).to_owned();
    let verifies = must_verify(url, &host, options.get_socket().is_some());
    let options = options.host(&host);
    if verifies { options.ssl_mode(MySqlSslMode::VerifyIdentity) } else { options }
}

#[async_trait]
impl Sink for MysqlSink {
    fn limits(&self) -> SinkLimits {
        ServerSink::<Mysql>::limits()
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
