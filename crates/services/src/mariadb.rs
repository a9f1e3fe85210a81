//! MariaDB: one server with the database `potok` of the user `potok`.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;

use crate::certificate::Certificate;
use crate::folder::Folder;
use crate::process::Process;
use crate::{lifecycle, must, ports, programs, run, url};

/// Run at every start, so written to be repeatable; one statement a line.
const INIT: &str = "\
CREATE DATABASE IF NOT EXISTS potok CHARACTER SET utf8mb4;
CREATE USER IF NOT EXISTS 'potok'@'%' IDENTIFIED BY 'potok';
GRANT ALL ON *.* TO 'potok'@'%';
";

#[derive(Clone, Debug, Default)]
pub struct MariadbOptions {
    /// More settings, as on its command line without the dashes.
    pub settings: Vec<(String, String)>,
    /// Whether it speaks TLS too; see [`Mariadb::certificate`].
    pub tls: bool,
    /// Where its data is kept; without it, in a scratch folder.
    pub data: Option<PathBuf>,
    /// Its port; without it, a free one.
    pub port: Option<u16>,
}

#[derive(Debug)]
pub struct Mariadb {
    // Dropped in this order: first the process, then its folder.
    process: Process,
    port: u16,
    settings: Vec<(String, String)>,
    certificate: Option<Certificate>,
    databases: AtomicUsize,
    folder: Folder,
}

lifecycle!(Mariadb);

impl Mariadb {
    #[track_caller]
    pub fn start() -> Self {
        Mariadb::start_with(&MariadbOptions::default())
    }

    #[track_caller]
    pub fn start_with(options: &MariadbOptions) -> Self {
        must(Mariadb::open(options))
    }

    pub fn open(options: &MariadbOptions) -> Result<Self> {
        programs::mariadbd()?;
        ports::with_free(options.port, |port| {
            let folder = Folder::open("mariadb", options.data.as_deref())?;
            let certificate = options.tls.then(|| Certificate::make(&folder)).transpose()?;
            let process = Process::new("MariaDB", folder.path(), "log", libc::SIGTERM);
            let settings = options.settings.clone();
            let databases = AtomicUsize::new(0);
            let mariadb = Mariadb { process, port, settings, certificate, databases, folder };
            mariadb.initialise()?;
            mariadb.launch()?;
            Ok(mariadb)
        })
    }

    /// The database `potok`.
    pub fn url(&self) -> String {
        self.database_url("potok")
    }

    /// A new empty database.
    #[track_caller]
    pub fn fresh_database(&self) -> String {
        loop {
            let name = format!("fresh_{}", self.databases.fetch_add(1, Ordering::Relaxed) + 1);
            // On kept data, earlier runs have made some.
            if self.query(&self.url(), &format!("SHOW DATABASES LIKE '{name}'")).is_empty() {
                let create = format!("CREATE DATABASE {name} CHARACTER SET utf8mb4");
                self.query(&self.url(), &create);
                return self.database_url(&name);
            }
        }
    }

    /// The rows of `sql`, every value as text, NULL as `NULL`.
    #[track_caller]
    pub fn query(&self, url: &str, sql: &str) -> Vec<Vec<String>> {
        must(self.client(url, sql))
    }

    /// What a client has to trust where it speaks TLS.
    pub fn certificate(&self) -> Option<&Certificate> {
        self.certificate.as_ref()
    }

    fn database_url(&self, database: &str) -> String {
        format!("mysql://potok:potok@127.0.0.1:{}/{database}", self.port)
    }

    fn client(&self, url: &str, sql: &str) -> Result<Vec<Vec<String>>> {
        let to = url::parts(url)?;
        let mut command = Command::new(programs::mariadb()?);
        command.args(["--no-defaults", "--batch", "--skip-column-names", "--protocol=tcp"]);
        command.args(["--default-character-set=utf8mb4", "--connect-timeout=10"]);
        command.args(["-h", to.host, "-P", to.port, "-u", to.user, "-D", to.database, "-e", sql]);
        command.env("MYSQL_PWD", to.password);
        let printed = run::output(command)?;
        let rows = printed.lines();
        Ok(rows.map(|row| row.split('\t').map(unescaped).collect()).collect())
    }

    fn initialise(&self) -> Result<()> {
        self.folder.write("init.sql", INIT)?;
        let temporary = self.folder.inner("tmp")?;
        if self.folder.join("data/mysql").is_dir() {
            return Ok(());
        }
        let mut command = Command::new(programs::mariadb_install_db()?);
        command.args(["--no-defaults", "--auth-root-authentication-method=normal"]);
        command.arg("--skip-test-db");
        command.arg(format!("--datadir={}", self.folder.inner("data")?.display()));
        command.args(as_root()?).current_dir(self.folder.path());
        // A server that starts removes the temporary tables of all others in that folder.
        command.env("TMPDIR", temporary);
        run::output(command).map(drop)
    }

    fn launch(&self) -> Result<()> {
        let mut command = Command::new(programs::mariadbd()?);
        command.arg("--no-defaults").args(as_root()?);
        let path = |name: &str| self.folder.join(name).display().to_string();
        let mut settings = vec![
            ("datadir", path("data")),
            ("tmpdir", path("tmp")),
            ("pid-file", path("pid")),
            ("init-file", path("init.sql")),
            // Inside the data folder, and short: a socket's path may not be long.
            ("socket", "socket".to_owned()),
            ("bind-address", "127.0.0.1".to_owned()),
            ("port", self.port.to_string()),
            ("local-infile", "1".to_owned()),
            ("character-set-server", "utf8mb4".to_owned()),
            ("innodb-buffer-pool-size", "64M".to_owned()),
            ("innodb-log-file-size", "32M".to_owned()),
            ("performance-schema", "OFF".to_owned()),
        ];
        if let Some(certificate) = &self.certificate {
            settings.push(("ssl-cert", certificate.certificate.display().to_string()));
            settings.push(("ssl-key", certificate.key.display().to_string()));
        }
        command.arg("--skip-name-resolve");
        let more = self.settings.iter().map(|(name, value)| (name.as_str(), value.clone()));
        for (name, value) in settings.into_iter().chain(more) {
            command.arg(format!("--{name}={value}"));
        }
        self.process.launch(command, || self.client(&self.url(), "SELECT 1").map(drop))
    }
}

/// It runs as root only when it is told so.
fn as_root() -> Result<Option<&'static str>> {
    let mut command = Command::new("id");
    command.arg("-u");
    Ok((run::output(command)?.trim() == "0").then_some("--user=root"))
}

/// Undoes what the client does to values that would break its lines.
fn unescaped(value: &str) -> String {
    let mut plain = String::with_capacity(value.len());
    let mut letters = value.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some('n') => plain.push('\n'),
                Some('t') => plain.push('\t'),
                Some('0') => plain.push('\0'),
                Some(other) => plain.push(other),
                None => plain.push('\\'),
            },
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_as_they_were() {
        assert_eq!(unescaped(r"a\tb\nc\\d\0"), "a\tb\nc\\d\0");
    }
}
