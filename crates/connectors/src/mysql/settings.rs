//! What `potok.yaml` says of a MariaDB or MySQL database.

use std::sync::Arc;

use potok_config::is_url;

use crate::sql::{Database, Dialect};

use super::MysqlSink;

/// MariaDB and MySQL as one of the databases of `db`.
pub(crate) const DATABASE: Database = Database {
    forms: &["mysql://…"],
    takes: |text| is_url(text, &["mysql", "mariadb"]),
    dialect: Dialect::Mysql,
    open: |place, config| Ok(Arc::new(MysqlSink::new(place.text(), config)?)),
};
