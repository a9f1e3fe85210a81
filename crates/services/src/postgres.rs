//! PostgreSQL: one server with the database `potok` of the ordinary user `potok`.
//!
//! It refuses to run as root: then it runs as the user `postgres` that its package makes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};

use crate::certificate::Certificate;
use crate::folder::Folder;
use crate::process::Process;
use crate::{lifecycle, must, ports, programs, run};

/// Between values and between rows: bytes that no text of a test contains.
const VALUES: &str = "\u{1f}";
const ROWS: &str = "\u{1e}";

#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    /// More settings, as after `-c`.
    pub settings: Vec<(String, String)>,
    /// Whether it speaks TLS too; see [`Postgres::certificate`].
    pub tls: bool,
    /// Where its data is kept; without it, in a scratch folder.
    pub data: Option<PathBuf>,
    /// Its port; without it, a free one.
    pub port: Option<u16>,
}

#[derive(Debug)]
pub struct Postgres {
    // Dropped in this order: first the process, then its folder.
    process: Process,
    port: u16,
    programs: PathBuf,
    account: Option<Account>,
    settings: Vec<(String, String)>,
    certificate: Option<Certificate>,
    databases: AtomicUsize,
    folder: Folder,
}

lifecycle!(Postgres);

impl Postgres {
    #[track_caller]
    pub fn start() -> Self {
        Postgres::start_with(&PostgresOptions::default())
    }

    #[track_caller]
    pub fn start_with(options: &PostgresOptions) -> Self {
        must(Postgres::open(options))
    }

    pub fn open(options: &PostgresOptions) -> Result<Self> {
        let programs = programs::postgres_folder()?;
        let account = Account::needed()?;
        ports::with_free(options.port, |port| {
            let folder = Folder::open("postgres", options.data.as_deref())?;
            let certificate = options.tls.then(|| Certificate::make(&folder)).transpose()?;
            // SIGINT: connections are closed at once, and what is committed is written.
            let process = Process::new("PostgreSQL", folder.path(), "log", libc::SIGINT);
            let postgres = Postgres {
                process,
                port,
                programs: programs.clone(),
                account,
                settings: options.settings.clone(),
                certificate,
                databases: AtomicUsize::new(0),
                folder,
            };
            let new = postgres.initialise()?;
            postgres.launch()?;
            if new {
                postgres.create_user()?;
            }
            Ok(postgres)
        })
    }

    /// The database `potok`, as the ordinary user `potok`.
    pub fn url(&self) -> String {
        self.database_url("potok")
    }

    /// The same as the superuser, who may do everything.
    pub fn admin_url(&self) -> String {
        format!("postgres://postgres:postgres@127.0.0.1:{}/potok", self.port)
    }

    /// A new empty database of the user `potok`.
    #[track_caller]
    pub fn fresh_database(&self) -> String {
        loop {
            let name = format!("fresh_{}", self.databases.fetch_add(1, Ordering::Relaxed) + 1);
            // On kept data, earlier runs have made some.
            let known = format!("SELECT 1 FROM pg_database WHERE datname = '{name}'");
            if self.query(&self.url(), &known).is_empty() {
                self.query(&self.url(), &format!("CREATE DATABASE {name}"));
                return self.database_url(&name);
            }
        }
    }

    /// The rows of `sql`, every value as text, NULL as `NULL`.
    #[track_caller]
    pub fn query(&self, url: &str, sql: &str) -> Vec<Vec<String>> {
        must(self.psql(url, sql))
    }

    /// What a client has to trust where it speaks TLS.
    pub fn certificate(&self) -> Option<&Certificate> {
        self.certificate.as_ref()
    }

    fn database_url(&self, database: &str) -> String {
        format!("postgres://potok:potok@127.0.0.1:{}/{database}", self.port)
    }

    fn psql(&self, url: &str, sql: &str) -> Result<Vec<Vec<String>>> {
        let mut command = Command::new(self.programs.join("psql"));
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-P", "null=NULL"]);
        command.args(["-F", VALUES, "-R", ROWS, "-d", url, "-c", sql]);
        // Settings of whoever runs the tests would win over ours.
        let theirs = std::env::vars_os().map(|(name, _)| name);
        for name in theirs.filter(|name| name.to_string_lossy().starts_with("PG")) {
            command.env_remove(name);
        }
        command.env("PGCONNECT_TIMEOUT", "10").env("PGCLIENTENCODING", "UTF8");
        let printed = run::output(command)?;
        let printed = printed.strip_suffix('\n').unwrap_or(&printed);
        let rows = printed.split(ROWS).filter(|_| !printed.is_empty());
        Ok(rows.map(|row| row.split(VALUES).map(str::to_owned).collect()).collect())
    }

    /// Makes the data folder; false where it is there already.
    fn initialise(&self) -> Result<bool> {
        let data = self.folder.join("data");
        let new = !data.join("PG_VERSION").is_file();
        if new {
            fs::create_dir_all(&data)?;
            fs::set_permissions(&data, fs::Permissions::from_mode(0o700))?;
            self.give(&data)?;
            let secret = self.folder.write("superuser", "postgres")?;
            let mut command = self.program("initdb");
            command.arg("-D").arg(&data).args(["-U", "postgres", "-A", "scram-sha-256"]);
            command.arg(format!("--pwfile={}", secret.display()));
            command.args(["-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]);
            command.current_dir(self.folder.path());
            run::output(command).with_context(|| {
                let place = self.folder.path().display();
                format!("PostgreSQL cannot use {place}: every folder above must be open to it")
            })?;
        }
        if let Some(certificate) = &self.certificate {
            // It refuses a key that others can read.
            fs::set_permissions(&certificate.key, fs::Permissions::from_mode(0o600))?;
            self.give(&certificate.key)?;
        }
        Ok(new)
    }

    fn give(&self, path: &Path) -> Result<()> {
        match &self.account {
            None => Ok(()),
            Some(account) => Ok(chown(path, Some(account.user), Some(account.group))?),
        }
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        if let Some(account) = &self.account {
            command.uid(account.user).gid(account.group);
        }
        // Settings of whoever runs the tests must not move its port or its language.
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("LC_ALL", "C.UTF-8");
        command
    }

    fn launch(&self) -> Result<()> {
        let mut command = self.program("postgres");
        command.arg("-D").arg(self.folder.join("data")).arg("-p").arg(self.port.to_string());
        // No Unix socket: its path would have to be short.
        let mut settings = vec![
            ("listen_addresses", "127.0.0.1".to_owned()),
            ("unix_socket_directories", String::new()),
            ("shared_buffers", "32MB".to_owned()),
        ];
        if let Some(certificate) = &self.certificate {
            settings.push(("ssl", "on".to_owned()));
            settings.push(("ssl_cert_file", certificate.certificate.display().to_string()));
            settings.push(("ssl_key_file", certificate.key.display().to_string()));
        }
        let more = self.settings.iter().map(|(name, value)| (name.as_str(), value.clone()));
        for (name, value) in settings.into_iter().chain(more) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let admin = format!("postgres://postgres:postgres@127.0.0.1:{}/postgres", self.port);
        self.process.launch(command, || self.psql(&admin, "SELECT 1").map(drop))
    }

    fn create_user(&self) -> Result<()> {
        let admin = format!("postgres://postgres:postgres@127.0.0.1:{}/postgres", self.port);
        self.psql(&admin, "CREATE ROLE potok LOGIN CREATEDB PASSWORD 'potok'")?;
        self.psql(&admin, "CREATE DATABASE potok OWNER potok")?;
        Ok(())
    }
}

/// The user that runs it where we are root.
#[derive(Clone, Copy, Debug)]
struct Account {
    user: u32,
    group: u32,
}

impl Account {
    fn needed() -> Result<Option<Self>> {
        if id(&["-u"])? != 0 {
            return Ok(None);
        }
        let user = id(&["-u", "postgres"]).context(
            "PostgreSQL refuses to run as root, and there is no user `postgres`: its Debian \
             package makes one; apt-get install postgresql",
        )?;
        let group = id(&["-g", "postgres"])?;
        ensure!(user != 0, "the user `postgres` is root");
        Ok(Some(Account { user, group }))
    }
}

/// What `id` says: the standard library knows nobody.
fn id(arguments: &[&str]) -> Result<u32> {
    let mut command = Command::new("id");
    command.args(arguments);
    run::output(command)?.trim().parse().context("`id` gives no number")
}
