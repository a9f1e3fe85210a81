//! What `potok.yaml` says of a MariaDB or MySQL database.

use std::sync::Arc;

use potok_config::is_url;

use crate::sql::{DatabaseSystem, Dialect, SqlTracker};

use super::MysqlSink;
use super::client::Mysql;
use super::sink::options;
use super::track::MysqlTracking;

/// MariaDB and MySQL as one of the databases of `db`.
pub(crate) const DATABASE: DatabaseSystem = DatabaseSystem {
    forms: &["mysql://…"],
    takes: |text| is_url(text, &["mysql", "mariadb"]),
    dialect: Dialect::Mysql,
    open: |place, config| Ok(Arc::new(MysqlSink::new(place.text(), config)?)),
    track: Some(|place, config| {
        let server = Mysql::new(options(&config.label, place.text())?);
        let database = MysqlTracking::new(&config.label, server);
        Ok(Arc::new(SqlTracker::new(database, config)))
    }),
};
