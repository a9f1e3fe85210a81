//! What `potok.yaml` says of a PostgreSQL database.

use std::sync::Arc;

use potok_config::is_url;

use crate::sql::{DatabaseSystem, Dialect};

use super::PostgresSink;

/// PostgreSQL as one of the databases of `db`.
pub(crate) const DATABASE: DatabaseSystem = DatabaseSystem {
    forms: &["postgres://…"],
    takes: |text| is_url(text, &["postgres", "postgresql"]),
    dialect: Dialect::Postgres,
    open: |place, config| Ok(Arc::new(PostgresSink::new(place.text(), config)?)),
    track: None,
};
