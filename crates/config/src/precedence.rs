//! Decides each connection setting: flag where there is one, else environment, else file, else
//! default.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::auth::{Auth, AuthSetting, WebAddress};
use crate::check::conform;
use crate::connections::{
    Connections, ConnectionsFile, Flags, Location, LogConnection, LogSetting, LogText,
    NamedSetting, QueueConnection, QueueSetting, QueueText, RedisQueueSetting, SettingName,
    StoreConnection, StoreSetting, StoreText, variable,
};
use crate::connector::ConnectionKind;
use crate::document::Document;
use crate::env::Env;
use crate::load::finish;
use crate::problem::{Findings, Problem, Problems, code};
use crate::registry::Registry;
use crate::secret::{ConnectionUrl, Secret};
use crate::values::{Address, TextError, TextValue, check_connection};

/// The file that is read where none is named.
const FILE_DEFAULT: &str = "potok.yaml";

/// Loads the connections: `path` where one is named, else `./potok.yaml` where there is one, else
/// the defaults. Problems of file, environment and flags come all at once.
pub fn load_connections(
    path: Option<&Path>,
    flags: &Flags,
    env: &Env,
    registry: &Registry,
) -> Result<Connections, Problems> {
    let default = Path::new(FILE_DEFAULT);
    let path = path.or_else(|| default.exists().then_some(default));
    let mut problems = Vec::new();
    let (file, named) = match path.map(|path| read_file(path, env, registry)) {
        Some(Ok(read)) => read,
        Some(Err(found)) => {
            problems.extend(found);
            Default::default()
        }
        None => Default::default(),
    };
    let base_dir = path.and_then(Path::parent).map(Path::to_path_buf).unwrap_or_default();
    let mut decide = Decide { env, problems };
    let named = decide.named(registry, named);
    let connections = decide.all(file, named, &base_dir, flags);
    if decide.problems.is_empty() { Ok(connections) } else { Err(Problems(decide.problems)) }
}

/// The file, and the named connections in it.
fn read_file(
    path: &Path,
    env: &Env,
    registry: &Registry,
) -> Result<(ConnectionsFile, Vec<NamedSetting>), Problems> {
    let mut findings = Findings::default();
    let document = Document::open(path, env, &mut findings)?;
    let schema = registry.connections_schema();
    let mut json = conform(&document.root, &document.source, schema, registry, &mut findings);
    let mut named = Vec::new();
    for kind in &registry.connections {
        same_variable(&document, kind, &mut findings);
        let texts = json.as_object_mut().and_then(|json| json.remove(kind.key));
        for (name, text) in texts.iter().filter_map(Json::as_object).flatten() {
            let location = Location {
                text: Secret::new(text.as_str().unwrap_or_default()),
                base_dir: document.base_dir.clone(),
            };
            let name = SettingName::Name(name.clone());
            named.push(NamedSetting { kind: kind.key, name, location });
        }
    }
    exposed(&document, env, &mut findings);
    Ok((finish(json, &document, findings)?, named))
}

/// Two connections whose variable is the same could not be told apart.
fn same_variable(document: &Document, kind: &ConnectionKind, findings: &mut Findings) {
    let all = document.root.get(kind.key).map(|all| all.entries()).unwrap_or_default();
    for (index, later) in all.iter().enumerate() {
        let same = variable(kind, &later.key);
        let earlier = all.iter().take(index).find(|earlier| variable(kind, &earlier.key) == same);
        if let Some(earlier) = earlier {
            let what = format!("`{}` and `{}` are both {same}", earlier.key, later.key);
            let hint = "names must differ in letters and digits";
            findings.add_hint(code::SAME_NAME, later.key_at.clone(), what, hint);
        }
    }
}

const EXPOSED_WHAT: &str = "others could reach the admin API, and it does not ask who they are";
const EXPOSED_HINT: &str =
    "use a loopback address such as `127.0.0.1:7600`, or set `auth` with issuer and audience";

fn exposed(document: &Document, env: &Env, findings: &mut Findings) {
    let auth = document.root.get("auth");
    let has_issuer = auth.is_some_and(|auth| auth.get("issuer").is_some());
    if has_issuer || env.given("POTOK_AUTH_ISSUER").is_some() {
        return;
    }
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
        named: Vec<NamedSetting>,
        base_dir: &Path,
        flags: &Flags,
    ) -> Connections {
        let data_dir = flags
            .data_dir
            .clone()
            .or_else(|| self.env.given("POTOK_DATA_DIR").map(PathBuf::from))
            .or_else(|| file.data_dir.as_ref().map(|dir| base_dir.join(dir)))
            .unwrap_or_else(|| PathBuf::from("./potok-data"));
        let admin = self.setting::<Address>(&flags.admin, "--admin", "POTOK_ADMIN");
        let auth = self.auth(file.auth);
        if let Some(admin) = &admin
            && !admin.value.is_loopback()
            && auth.issuer.is_none()
        {
            let hint = Some(EXPOSED_HINT.to_owned());
            self.problems.push(Problem::elsewhere(code::EXPOSED, &admin.about, EXPOSED_WHAT, hint));
        }
        let http = self.setting::<Address>(&flags.http, "--http", "POTOK_HTTP");
        let log = self.log(file.log);
        let store = self.store(file.store);
        let queue = self.queue(file.queue);
        let address = |given: Option<Override<Address>>, file: Option<Address>, port: u16| {
            given.map(|given| given.value).or(file).unwrap_or_else(|| Address::loopback(port))
        };
        Connections {
            data_dir,
            admin: address(admin, file.admin, 7600),
            http: address(http, file.http, 7601),
            log,
            store,
            queue,
            auth,
            retention: file.retention,
            partitions: file.partitions,
            drain_max: file.drain_max,
            named,
        }
    }

    /// What a flag, else a variable sets. A wrong value is a problem and sets nothing.
    fn setting<T: TextValue>(
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

    /// What a variable sets.
    fn variable<T: TextValue>(&mut self, variable: &str) -> Option<Override<T>> {
        self.setting(&None, "", variable)
    }

    fn read<T: TextValue>(&mut self, text: &str, about: String) -> Option<Override<T>> {
        match T::read(text) {
            Ok(value) => Some(Override { value, about }),
            Err(wrong) => {
                self.refuse(wrong, &about);
                None
            }
        }
    }

    fn refuse(&mut self, wrong: Vec<TextError>, about: &str) {
        for wrong in wrong {
            self.problems.push(Problem::elsewhere(wrong.code, about, wrong.what, wrong.hint));
        }
    }

    fn log(&mut self, file: Option<LogSetting>) -> LogConnection {
        let given = self.variable::<LogText>("POTOK_LOG");
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

    fn store(&mut self, file: Option<StoreSetting>) -> StoreConnection {
        let given = self.variable::<StoreText>("POTOK_STORE");
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

    fn queue(&mut self, file: Option<QueueSetting>) -> QueueConnection {
        let given = self.variable::<QueueText>("POTOK_QUEUE");
        match (given, file) {
            // What the file says besides the address holds for the address of the variable too.
            (
                Some(Override { value: QueueText(QueueConnection::Redis { url, .. }), .. }),
                Some(QueueSetting::Map(map)),
            ) => {
                let RedisQueueSetting { lease, waiting_max, .. } = map;
                QueueConnection::Redis { url, lease, waiting_max }
            }
            (Some(given), _) => given.value.0,
            (None, Some(QueueSetting::Text(text))) => text.0,
            (None, Some(QueueSetting::Map(map))) => QueueConnection::Redis {
                url: ConnectionUrl::new(with_scheme("redis://", map.redis.expose())),
                lease: map.lease,
                waiting_max: map.waiting_max,
            },
            (None, None) => QueueConnection::Embedded,
        }
    }

    fn auth(&mut self, file: AuthSetting) -> Auth {
        let issuer = self.variable::<WebAddress>("POTOK_AUTH_ISSUER").map(|given| given.value);
        let audience = self.env.given("POTOK_AUTH_AUDIENCE").map(str::to_owned);
        Auth::decide(file.clone(), issuer, audience).unwrap_or_else(|alone| {
            let (missing, variable) = match alone {
                "issuer" => ("audience", "POTOK_AUTH_AUDIENCE"),
                _ => ("issuer", "POTOK_AUTH_ISSUER"),
            };
            let what = format!("`{alone}` without `{missing}`: a token is checked by both");
            let hint = Some(format!("set auth.{missing}, or {variable}"));
            self.problems.push(Problem::elsewhere(code::COMPANION, "setting auth", what, hint));
            let without = AuthSetting { issuer: None, audience: None, ..file };
            Auth::decide(without, None, None).unwrap_or_default()
        })
    }

    /// All named connections that are set: those of the environment win over those of the file.
    fn named(&mut self, registry: &Registry, file: Vec<NamedSetting>) -> Vec<NamedSetting> {
        let mut named = Vec::new();
        for kind in &registry.connections {
            let of_kind = |name: &str| name.starts_with(kind.variable);
            for (name, text) in self.env.all_given().filter(|(name, _)| of_kind(name)) {
                let wrong = check_connection(kind, text);
                if !wrong.is_empty() {
                    self.refuse(wrong, &format!("environment variable {name}"));
                    continue;
                }
                let location = Location { text: Secret::new(text), base_dir: PathBuf::new() };
                let name = SettingName::Variable(name.to_owned());
                named.push(NamedSetting { kind: kind.key, name, location });
            }
        }
        named.extend(file);
        named
    }
}

/// `h1:9092` in a map means the same as `kafka://h1:9092` in one line.
fn with_scheme(scheme: &str, text: &str) -> String {
    if text.contains("://") { text.to_owned() } else { format!("{scheme}{text}") }
}
