//! A real database server behind a proxy, and its tables read without potok's own code.

use std::net::{Ipv4Addr, SocketAddr};

use potok_services::{Mariadb, Mode, Postgres, Proxy};
use serde_json::{Map, Value};

use crate::check::Tables;

/// One server of either kind.
enum Server {
    Postgres(Postgres),
    Mariadb(Mariadb),
}

/// A server of its own, an empty database on it, and a proxy in front.
pub struct Database {
    server: Server,
    url: String,
    pub proxy: Proxy,
}

impl Database {
    pub fn postgres() -> Self {
        let server = Postgres::start();
        let (url, port) = (server.fresh_database(), server.port());
        Self::behind_proxy(Server::Postgres(server), url, port)
    }

    pub fn mariadb() -> Self {
        let server = Mariadb::start();
        let (url, port) = (server.fresh_database(), server.port());
        Self::behind_proxy(Server::Mariadb(server), url, port)
    }

    fn behind_proxy(server: Server, url: String, port: u16) -> Self {
        let proxy = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        Database { server, url, proxy }
    }

    /// Where potok finds it: behind the proxy.
    pub fn url(&self) -> String {
        let port = match &self.server {
            Server::Postgres(server) => server.port(),
            Server::Mariadb(server) => server.port(),
        };
        self.url.replace(&format!(":{port}/"), &format!(":{}/", self.proxy.port()))
    }

    /// Where others find it.
    pub fn direct_url(&self) -> String {
        self.url.clone()
    }

    /// What passes the proxy from now on.
    pub fn pass(&self, mode: Mode) {
        self.proxy.set(mode);
    }

    pub fn freeze(&self) {
        match &self.server {
            Server::Postgres(server) => server.freeze(),
            Server::Mariadb(server) => server.freeze(),
        }
    }

    pub fn thaw(&self) {
        match &self.server {
            Server::Postgres(server) => server.thaw(),
            Server::Mariadb(server) => server.thaw(),
        }
    }

    /// SIGKILL.
    pub fn kill(&self) {
        match &self.server {
            Server::Postgres(server) => server.kill(),
            Server::Mariadb(server) => server.kill(),
        }
    }

    pub fn restart(&self) {
        match &self.server {
            Server::Postgres(server) => server.restart(),
            Server::Mariadb(server) => server.restart(),
        }
    }

    /// Makes the whole server refuse writes, or take them again.
    pub fn set_read_only(&self, read_only: bool) {
        let Server::Postgres(server) = &self.server else { panic!("only PostgreSQL is made so") };
        let value = if read_only { "on" } else { "off" };
        let set = format!("ALTER SYSTEM SET default_transaction_read_only = {value}");
        server.query(&server.admin_url(), &set);
        server.query(&server.admin_url(), "SELECT pg_reload_conf()");
    }

    pub fn query(&self, sql: &str) -> Vec<Vec<String>> {
        match &self.server {
            Server::Postgres(server) => server.query(&self.url, sql),
            Server::Mariadb(server) => server.query(&self.url, sql),
        }
    }

    /// The four tables of `orders`; empty where they are not there yet.
    pub fn tables(&self) -> Tables {
        Tables::of_rows(["orders", "deliveries", "payments", "items"].map(|table| self.rows(table)))
    }

    fn rows(&self, table: &str) -> Vec<Map<String, Value>> {
        let columns = self.columns(table);
        if columns.is_empty() {
            return Vec::new();
        }
        let order = if table == "items" { "ORDER BY element" } else { "" };
        let object = match &self.server {
            Server::Postgres(_) => "row_to_json(t)::text".to_owned(),
            Server::Mariadb(_) => {
                let fields = columns.iter().map(|column| format!("'{column}', `{column}`"));
                format!("JSON_OBJECT({})", fields.collect::<Vec<_>>().join(", "))
            }
        };
        // As hexadecimal: no client's escaping can come between.
        let hex = match &self.server {
            Server::Postgres(_) => format!("encode(convert_to({object}, 'UTF8'), 'hex')"),
            Server::Mariadb(_) => format!("HEX({object})"),
        };
        let read = |row: Vec<String>| {
            let bytes = unhex(row.first().expect("one column"));
            serde_json::from_slice(&bytes).expect("a row of JSON")
        };
        let found = self.query(&format!("SELECT {hex} FROM {table} t {order}"));
        found.into_iter().map(read).collect()
    }

    fn columns(&self, table: &str) -> Vec<String> {
        let schema = match &self.server {
            Server::Postgres(_) => "current_schema()",
            Server::Mariadb(_) => "database()",
        };
        let rows = self.query(&format!(
            "SELECT column_name FROM information_schema.columns \
             WHERE table_schema = {schema} AND table_name = '{table}'"
        ));
        rows.into_iter().flatten().collect()
    }
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a hexadecimal digit") as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}
