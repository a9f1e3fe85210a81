//! Decides each connection setting: flag, else environment, else file, else default.

use std::path::{Path, PathBuf};

use crate::check::conform;
use crate::connections::{
    Connections, ConnectionsFile, DB_VARIABLE, DbKey, DbSet, DbSetting, DbText, Flags,
    LogConnection, LogSetting, LogText, StoreConnection, StoreSetting, StoreText, db_variable,
};
use crate::document::Document;
use crate::env::Env;
use crate::load::finish;
use crate::problem::{Findings, Problem, Problems, code};
use crate::schema;
use crate::secret::ConnectionUrl;
use crate::shapes::OrderedMap;
use crate::values::{Address, DbName, Written};

/// The file that is read where none is named.
const FILE_DEFAULT: &str = "potok.yaml";

/// Loads the connections: `path` where one is named, else `./potok.yaml` where there is one, else
/// the defaults. Problems of file, environment and flags come all at once.
pub fn load_connections(
    path: Option<&Path>,
    flags: &Flags,
    env: &Env,
) -> Result<Connections, Problems> {
    let default = Path::new(FILE_DEFAULT);
    let path = path.or_else(|| default.exists().then_some(default));
    let mut problems = Vec::new();
    let (file, document) = match path.map(|path| read_file(path, env)) {
        Some(Ok((file, document))) => (file, Some(document)),
        Some(Err(found)) => {
            problems.extend(found);
            (ConnectionsFile::default(), None)
        }
        None => (ConnectionsFile::default(), None),
    };
    let mut decide = Decide { env, problems };
    let connections = decide.all(file, document.as_ref(), flags);
    if decide.problems.is_empty() { Ok(connections) } else { Err(Problems(decide.problems)) }
}

fn read_file(path: &Path, env: &Env) -> Result<(ConnectionsFile, Document), Problems> {
    let mut findings = Findings::default();
    let document = Document::open(path, env, &mut findings)?;
    let json = conform(&document.root, &document.source, schema::connections(), &mut findings);
    same_variable(&document, &mut findings);
    exposed(&document, &mut findings);
    Ok((finish(json, &document, findings)?, document))
}

/// Two databases whose variable is the same could not be told apart.
fn same_variable(document: &Document, findings: &mut Findings) {
    let dbs = document.root.get("db").map(|db| db.entries()).unwrap_or_default();
    for (index, later) in dbs.iter().enumerate() {
        let variable = db_variable(&later.key);
        let same = dbs.iter().take(index).find(|earlier| db_variable(&earlier.key) == variable);
        if let Some(earlier) = same {
            let what = format!("`{}` and `{}` are both {variable}", earlier.key, later.key);
            let hint = "names must differ in letters and digits";
            findings.add_hint(code::SAME_NAME, later.key_at.clone(), what, hint);
        }
    }
}

const EXPOSED_WHAT: &str = "others could reach the admin API, and it does not ask who they are";
const EXPOSED_HINT: &str = "use a loopback address such as `127.0.0.1:7600`";

fn exposed(document: &Document, findings: &mut Findings) {
    let Some(admin) = document.root.get("admin") else { return };
    let address = admin.text().and_then(|text| Address::read(text).ok());
    if address.is_some_and(|address| !address.is_loopback()) {
        findings.add_hint(code::EXPOSED, admin.at.clone(), EXPOSED_WHAT, EXPOSED_HINT);
    }
}

struct Decide<'a> {
    env: &'a Env,
    problems: Vec<Problem>,
}

/// A setting from a flag or the environment, and which.
struct Override<T> {
    value: T,
    about: String,
}

impl Decide<'_> {
    fn all(
        &mut self,
        file: ConnectionsFile,
        document: Option<&Document>,
        flags: &Flags,
    ) -> Connections {
        let base = document.map(|document| document.base_dir.clone()).unwrap_or_default();
        let data_dir = flags
            .data_dir
            .clone()
            .or_else(|| self.env.given("POTOK_DATA_DIR").map(PathBuf::from))
            .or_else(|| file.data_dir.as_ref().map(|dir| base.join(dir)))
            .unwrap_or_else(|| PathBuf::from("./potok-data"));
        let admin = self.setting::<Address>(&flags.admin, "--admin", "POTOK_ADMIN");
        if let Some(admin) = &admin
            && !admin.value.is_loopback()
        {
            let hint = Some(EXPOSED_HINT.to_owned());
            self.problems.push(Problem::elsewhere(code::EXPOSED, &admin.about, EXPOSED_WHAT, hint));
        }
        let http = self.setting::<Address>(&flags.http, "--http", "POTOK_HTTP");
        let log = self.log(&flags.log, file.log);
        let store = self.store(&flags.store, file.store);
        let dbs = self.dbs(flags, &file.db, &base);
        let address = |given: Option<Override<Address>>, file: Option<Address>, port: u16| {
            given.map(|given| given.value).or(file).unwrap_or_else(|| Address::loopback(port))
        };
        Connections {
            data_dir,
            admin: address(admin, file.admin, 7600),
            http: address(http, file.http, 7601),
            log,
            store,
            retention: file.retention,
            partitions: file.partitions,
            drain_max: file.drain_max,
            dbs,
        }
    }

    /// What a flag, else a variable sets. A wrong value is a problem and sets nothing.
    fn setting<T: Written>(
        &mut self,
        flag: &Option<String>,
        flag_name: &str,
        variable: &str,
    ) -> Option<Override<T>> {
        let (text, about) = match flag {
            Some(text) => (text.as_str(), format!("flag {flag_name}")),
            None => (self.env.given(variable)?, format!("environment variable {variable}")),
        };
        self.read(text, about)
    }

    fn read<T: Written>(&mut self, text: &str, about: String) -> Option<Override<T>> {
        match T::read(text) {
            Ok(value) => Some(Override { value, about }),
            Err(wrong) => {
                for wrong in wrong {
                    let problem = Problem::elsewhere(wrong.code, &about, wrong.what, wrong.hint);
                    self.problems.push(problem);
                }
                None
            }
        }
    }

    fn log(&mut self, flag: &Option<String>, file: Option<LogSetting>) -> LogConnection {
        let given = self.setting::<LogText>(flag, "--log", "POTOK_LOG");
        match (given, file) {
            (Some(given), _) => given.value.0,
            (None, Some(LogSetting::Text(text))) => text.0,
            (None, Some(LogSetting::Map(kafka))) => LogConnection::Kafka {
                servers: ConnectionUrl::new(with_scheme("kafka://", kafka.kafka.expose())),
                properties: kafka.properties,
                create_topics: kafka.create_topics.shape(),
            },
            (None, None) => LogConnection::Embedded,
        }
    }

    fn store(&mut self, flag: &Option<String>, file: Option<StoreSetting>) -> StoreConnection {
        let given = self.setting::<StoreText>(flag, "--store", "POTOK_STORE");
        match (given, file) {
            (Some(given), _) => given.value.0,
            (None, Some(StoreSetting::Text(text))) => text.0,
            (None, Some(StoreSetting::Map(redis))) => StoreConnection::Redis {
                url: ConnectionUrl::new(with_scheme("redis://", redis.redis.expose())),
                keys: redis.keys,
            },
            (None, None) => StoreConnection::Embedded,
        }
    }

    /// All databases that are set, those that win first.
    fn dbs(&mut self, flags: &Flags, file: &OrderedMap<DbText>, base: &Path) -> Vec<DbSet> {
        let mut dbs = Vec::new();
        for (name, text) in &flags.db {
            let about = format!("flag --db {name}");
            self.read::<DbName>(name, about.clone());
            if let Some(given) = self.read::<DbText>(text, about) {
                dbs.push(DbSet { key: DbKey::Name(name.clone()), setting: given.value.0 });
            }
        }
        for (variable, text) in
            self.env.all_given().filter(|(name, _)| name.starts_with(DB_VARIABLE))
        {
            let about = format!("environment variable {variable}");
            if let Some(given) = self.read::<DbText>(text, about) {
                dbs.push(DbSet { key: DbKey::Variable(variable.into()), setting: given.value.0 });
            }
        }
        for (name, text) in file.iter() {
            let setting = match &text.0 {
                DbSetting::Sqlite(Some(file)) => DbSetting::Sqlite(Some(base.join(file))),
                other => other.clone(),
            };
            let variable = db_variable(name);
            let overridden = dbs.iter().any(|set| match &set.key {
                DbKey::Name(set) => set == name,
                DbKey::Variable(set) => *set == variable,
            });
            if !overridden {
                dbs.push(DbSet { key: DbKey::Name(name.to_owned()), setting });
            }
        }
        dbs
    }
}

/// `h1:9092` in a map means the same as `kafka://h1:9092` in one line.
fn with_scheme(scheme: &str, text: &str) -> String {
    if text.contains("://") { text.to_owned() } else { format!("{scheme}{text}") }
}
