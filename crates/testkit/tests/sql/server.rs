//! Servers of one test's own, to be treated badly.

use potok_testkit::services::{Mariadb, MariadbOptions, Postgres, PostgresOptions};

use crate::place::System;

pub enum Server {
    Postgres(Postgres),
    Mariadb(Mariadb),
}

/// The same on both.
macro_rules! each {
    ($server:expr, $inner:ident => $do:expr) => {
        match $server {
            Server::Postgres($inner) => $do,
            Server::Mariadb($inner) => $do,
        }
    };
}

impl Server {
    pub fn start(system: System, settings: &[(&str, &str)], tls: bool) -> Server {
        let settings =
            settings.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        match system {
            System::Sqlite => panic!("SQLite is no server"),
            System::Postgres => {
                let options = PostgresOptions { settings, tls, ..PostgresOptions::default() };
                Server::Postgres(Postgres::start_with(&options))
            }
            System::Mariadb => {
                let options = MariadbOptions { settings, tls, ..MariadbOptions::default() };
                Server::Mariadb(Mariadb::start_with(&options))
            }
        }
    }

    pub fn url(&self) -> String {
        each!(self, server => server.url())
    }

    /// As somebody who may do everything.
    pub fn admin(&self, sql: &str) -> Vec<String> {
        let rows = match self {
            Server::Postgres(server) => server.query(&server.admin_url(), sql),
            Server::Mariadb(server) => {
                server.query(&server.url().replace("potok:potok@", "root:@"), sql)
            }
        };
        rows.into_iter().map(|row| row.join(", ")).collect()
    }

    pub fn count(&self, table: &str) -> usize {
        self.admin(&format!("SELECT count(*) FROM {table}"))[0].parse().unwrap()
    }

    pub fn kill(&self) {
        each!(self, server => server.kill());
    }

    pub fn freeze(&self) {
        each!(self, server => server.freeze());
    }

    pub fn thaw(&self) {
        each!(self, server => server.thaw());
    }

    pub fn restart(&self) {
        each!(self, server => server.restart());
    }

    /// The file of the authority a client has to trust.
    pub fn authority(&self) -> String {
        let certificate = each!(self, server => server.certificate());
        certificate.unwrap().authority.display().to_string()
    }
}
