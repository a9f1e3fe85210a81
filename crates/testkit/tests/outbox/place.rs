//! A database with an outbox, its writers, and a relay on it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use potok_config::{Env, Flags, Registry, Site, load_connections};
use potok_connectors::outbox::{Outbox, OutboxSettings};
use potok_core::trouble::Plant;
use potok_core::{
    EndedOffsets, Feed, FeedCommit, Move, Partition, PipelineInfo, PostponedRecord, Progress,
    Reason, Record, SetAside, Source, SourceEvent,
};
use potok_expr::Template;
use potok_testkit::memory::MemoryLog;
use potok_testkit::services::{self, Mode, Proxy};
use serde_json::{Map, Value};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Sqlite,
    Postgres,
    Mariadb,
}

/// A session of an application.
pub enum Writer {
    Sqlite(rusqlite::Connection),
    Postgres(Box<sqlx::PgConnection>),
    Mariadb(Box<sqlx::MySqlConnection>),
}

impl Writer {
    pub async fn run(&mut self, sql: &str) {
        let safe = AssertSqlSafe(sql.to_owned());
        let done = match self {
            Writer::Sqlite(connection) => connection.execute_batch(sql).map_err(|e| e.to_string()),
            Writer::Postgres(connection) => {
                connection.execute(sqlx::raw_sql(safe)).await.map(drop).map_err(|e| e.to_string())
            }
            Writer::Mariadb(connection) => {
                connection.execute(sqlx::raw_sql(safe)).await.map(drop).map_err(|e| e.to_string())
            }
        };
        done.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }

    /// Writes a row of a key, with a payload that says so.
    pub async fn add(&mut self, id: &str, key: &str, event_type: &str) {
        let payload = format!("{{\"key\": \"{key}\",  \"id\":\"{id}\"}}");
        self.run(&format!(
            "INSERT INTO outbox (id, event_type, payload) VALUES ('{}', '{event_type}', '{payload}')",
            uuid(id),
            event_type = event_type.replace('\'', "''"),
        ))
        .await;
    }
}

impl Writer {
    fn system(&self) -> System {
        match self {
            Writer::Sqlite(_) => System::Sqlite,
            Writer::Postgres(_) => System::Postgres,
            Writer::Mariadb(_) => System::Mariadb,
        }
    }

    /// Writes so many rows of a key, numbered from behind `from`.
    pub async fn add_many(&mut self, key: &str, from: u32, count: u32) {
        self.add_numbered(&format!("'{{\"key\":\"{key}\"}}'"), from, count).await;
    }

    /// Writes so many rows, numbered from behind `from`, each of a key of its own.
    pub async fn add_each(&mut self, key: &str, from: u32, count: u32) {
        let payload = match self.system() {
            System::Mariadb => format!("concat('{{\"key\":\"{key}', n, '\"}}')"),
            System::Postgres => format!("('{{\"key\":\"{key}' || n || '\"}}')::json"),
            System::Sqlite => format!("'{{\"key\":\"{key}' || n || '\"}}'"),
        };
        self.add_numbered(&payload, from, count).await;
    }

    async fn add_numbered(&mut self, payload: &str, from: u32, count: u32) {
        let start = "00000000-0000-4000-8000-";
        let (id, numbers) = match self.system() {
            System::Postgres => (
                format!("('{start}' || lpad((n + {from})::text, 12, '0'))::uuid"),
                format!("generate_series(1, {count}) n"),
            ),
            System::Mariadb => (
                format!("concat('{start}', lpad(n + {from}, 12, '0'))"),
                format!("(SELECT seq AS n FROM seq_1_to_{count}) s"),
            ),
            System::Sqlite => (
                format!("'{start}' || printf('%012d', n + {from})"),
                format!(
                    "(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c \
                     WHERE n < {count}) SELECT n FROM c)"
                ),
            ),
        };
        let insert = format!(
            "INSERT INTO outbox (id, event_type, payload) SELECT {id}, 'A', {payload} FROM {numbers}"
        );
        self.run(&insert).await;
    }
}

/// A uuid that ends in these digits.
pub fn uuid(digits: &str) -> String {
    format!("00000000-0000-4000-8000-{digits:0>12}")
}

/// The digits of such a uuid.
pub fn digits(uuid: &str) -> String {
    let last = uuid.rsplit('-').next().unwrap_or_default();
    last.trim_start_matches('0').to_owned()
}

pub struct OutboxDatabase {
    pub system: System,
    url: String,
    /// Whom relays say they are, where that is not the owner of everything.
    user: Option<String>,
    /// What stands in front of the server, for tests that make the network's trouble.
    proxy: Option<Proxy>,
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl OutboxDatabase {
    pub fn new(system: System) -> OutboxDatabase {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("messenger.sqlite");
        let url = match system {
            System::Sqlite => format!("sqlite:{}", path.display()),
            System::Postgres => services::postgres().fresh_database(),
            System::Mariadb => services::mariadb().fresh_database(),
        };
        OutboxDatabase { system, url, user: None, proxy: None, _folder: folder, path }
    }

    /// A database of a server, which relays reach through a proxy.
    pub fn behind_proxy(system: System) -> OutboxDatabase {
        let place = OutboxDatabase::new(system);
        let port = place.server_port();
        let proxy = Proxy::start(([127, 0, 0, 1], port).into());
        OutboxDatabase { proxy: Some(proxy), ..place }
    }

    /// The same for relays of this user, whose password is its name.
    pub fn for_user(self, user: &str) -> OutboxDatabase {
        OutboxDatabase { user: Some(user.to_owned()), ..self }
    }

    fn server_port(&self) -> u16 {
        match self.system {
            System::Postgres => services::postgres().port(),
            _ => services::mariadb().port(),
        }
    }

    /// What the network does to relays.
    pub fn pass(&self, mode: Mode) {
        self.proxy.as_ref().unwrap().set(mode);
    }

    /// Where relays find it.
    fn relay_url(&self) -> String {
        if let Some(user) = &self.user {
            let (scheme, rest) = self.url.split_once("://").unwrap();
            let (_, server) = rest.split_once('@').unwrap();
            return format!("{scheme}://{user}:{user}@{server}");
        }
        match &self.proxy {
            Some(proxy) => {
                let (from, to) =
                    (format!(":{}/", self.server_port()), format!(":{}/", proxy.port()));
                self.url.replace(&from, &to)
            }
            None => self.url.clone(),
        }
    }

    /// The outbox that these settings mean, beyond table and database.
    pub fn outbox(&self, more: &str) -> Outbox {
        self.outbox_by(".key", more)
    }

    pub fn outbox_by(&self, key: &str, more: &str) -> Outbox {
        let mut registry = Registry::new();
        registry.connections(potok_connectors::sql::CONNECTIONS);
        let env = Env::of([("POTOK_DB_MESSENGER", self.relay_url())]);
        let flags = Flags { data_dir: Some(self._folder.path().into()), ..Flags::default() };
        let connections = load_connections(None, &flags, &env, &registry).unwrap();
        // What a test says of a key stands.
        let usual = "{\"outbox\": \"outbox\", \"db\": \"messenger\", \"create_tables\": true, \
                     \"backoff\": {\"first\": \"10ms\", \"max\": \"1m\"}}";
        let more = format!("{{{}}}", more.trim_start_matches(','));
        let mut keys: Map<String, Value> = serde_json::from_str(usual).unwrap();
        keys.extend(serde_json::from_str::<Map<String, Value>>(&more).unwrap());
        let settings: OutboxSettings = serde_json::from_value(keys.into()).unwrap();
        let site = Site {
            pipeline: "outbox",
            label: "outbox".to_owned(),
            connections: &connections,
            schema: None,
            once_by: Vec::new(),
            shard: None,
            order_key: Some(Template::parse(key).unwrap()),
            dead_table: None,
            file_hash: key.len() as u64,
        };
        settings.outbox(&site).unwrap()
    }

    pub async fn writer(&self) -> Writer {
        match self.system {
            System::Sqlite => {
                let connection = rusqlite::Connection::open(&self.path).unwrap();
                connection.busy_timeout(Duration::from_secs(10)).unwrap();
                Writer::Sqlite(connection)
            }
            System::Postgres => {
                Writer::Postgres(Box::new(sqlx::PgConnection::connect(&self.url).await.unwrap()))
            }
            System::Mariadb => {
                Writer::Mariadb(Box::new(sqlx::MySqlConnection::connect(&self.url).await.unwrap()))
            }
        }
    }

    /// Rows as text, joined by commas.
    pub fn query(&self, sql: &str) -> Vec<String> {
        let rows = match self.system {
            System::Sqlite => {
                let connection = rusqlite::Connection::open(&self.path).unwrap();
                let mut statement = connection.prepare(sql).unwrap();
                let columns = statement.column_count();
                let rows = statement.query_map([], |row| {
                    let cell = |at| {
                        let value: rusqlite::types::Value = row.get(at)?;
                        Ok(match value {
                            rusqlite::types::Value::Null => "NULL".to_owned(),
                            rusqlite::types::Value::Integer(n) => n.to_string(),
                            rusqlite::types::Value::Real(n) => n.to_string(),
                            rusqlite::types::Value::Text(text) => text,
                            rusqlite::types::Value::Blob(_) => "blob".to_owned(),
                        })
                    };
                    (0..columns).map(cell).collect::<Result<Vec<_>, _>>()
                });
                rows.unwrap().map(Result::unwrap).collect()
            }
            System::Postgres => services::postgres().query(&self.url, sql),
            System::Mariadb => services::mariadb().query(&self.url, sql),
        };
        rows.into_iter().map(|row| row.join(",")).collect()
    }

    /// The digits of rows that are marked, in order.
    pub fn marked(&self) -> Vec<String> {
        let yes = if self.system == System::Postgres { "processed" } else { "processed = 1" };
        let id = if self.system == System::Postgres { "id::text" } else { "id" };
        let all = self.query(&format!("SELECT {id} FROM outbox WHERE {yes} ORDER BY seq"));
        all.iter().map(|id| digits(id)).collect()
    }

    pub fn retry_count(&self, id: &str) -> String {
        self.query(&format!("SELECT retry_count FROM outbox WHERE id = '{}'", uuid(id))).join(" ")
    }

    pub async fn relay(&self, more: &str) -> Relay {
        Relay::open(self.outbox(more)).await
    }
}

pub fn info() -> PipelineInfo {
    PipelineInfo {
        pipeline: "outbox".to_owned(),
        dead_letters: "outbox-dead".to_owned(),
        resolved: "outbox-dead-resolved".to_owned(),
        replay: "outbox-replay".to_owned(),
        replays_max: 5,
        internal: None,
    }
}

/// An opened feed, with what it handed out.
pub struct Relay {
    pub outbox: Outbox,
    pub source: Box<dyn Source>,
    pub progress: Arc<dyn Progress>,
    pub nonce: u64,
    /// Offsets that are out, by the digits of their ids.
    pub out: HashMap<String, u64>,
    /// Everything it handed out, in order.
    pub seen: Vec<String>,
    pub records: Vec<Record>,
    pub attempts: HashMap<String, u32>,
}

impl Relay {
    /// Opens a feed, and waits until the table is its own.
    pub async fn open(outbox: Outbox) -> Relay {
        let mut relay = Relay::stand_by(outbox).await;
        relay.own().await;
        relay
    }

    /// Opens a feed.
    pub async fn stand_by(outbox: Outbox) -> Relay {
        let opened = outbox
            .open(&info(), Arc::new(MemoryLog::new(Arc::new(potok_core::SystemClock))))
            .await
            .unwrap();
        Relay {
            outbox,
            source: opened.source,
            progress: opened.progress,
            nonce: 0,
            out: HashMap::new(),
            seen: Vec::new(),
            records: Vec::new(),
            attempts: HashMap::new(),
        }
    }

    /// Waits until the table is its own.
    pub async fn own(&mut self) {
        loop {
            match self.event().await {
                SourceEvent::Assigned(assigned) => {
                    self.nonce = assigned[0].nonce;
                    return;
                }
                SourceEvent::Stalled(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub async fn event(&mut self) -> SourceEvent {
        let patience = if Plant::here().bug().is_some() { 4 } else { 30 };
        let until = tokio::time::Instant::now() + Duration::from_secs(patience);
        loop {
            let said = tokio::time::timeout_at(until, self.source.next()).await;
            match said.expect("it says nothing") {
                Ok(event) => return event,
                // As the engine does.
                Err(fault) if fault.next == Move::Wait => tokio::task::yield_now().await,
                Err(fault) => panic!("{fault}"),
            }
        }
    }

    fn take(&mut self, intake: SourceEvent) {
        let SourceEvent::Batch(batch) = intake else { panic!("{intake:?}") };
        assert_eq!(batch.assignment, self.nonce);
        let origins = batch.feed.as_ref().unwrap().origins.clone().unwrap();
        assert_eq!(origins.len(), batch.records.len());
        for (record, (_, attempts)) in batch.records.iter().zip(&origins) {
            let id = String::from_utf8(record.headers.get("id").unwrap().to_vec()).unwrap();
            let id = digits(&id);
            assert!(!self.out.contains_key(&id), "{id} is out already");
            self.out.insert(id.clone(), record.offset);
            self.attempts.insert(id.clone(), *attempts);
            self.seen.push(id);
            self.records.push(record.clone());
        }
    }

    /// Waits until so many more rows were handed out; which.
    pub async fn rows(&mut self, count: usize) -> Vec<String> {
        let from = self.seen.len();
        while self.seen.len() < from + count {
            let intake = self.event().await;
            self.take(intake);
        }
        self.seen[from..].to_vec()
    }

    /// Lets it look at the table several times; what came meanwhile.
    pub async fn settle(&mut self) -> Vec<String> {
        let from = self.seen.len();
        let end = tokio::time::Instant::now() + Duration::from_millis(600);
        while let Ok(intake) = tokio::time::timeout_at(end, self.source.next()).await {
            let intake = intake.unwrap();
            self.take(intake);
        }
        self.seen[from..].to_vec()
    }

    fn partition() -> Partition {
        Partition { topic: "outbox".into(), index: 0 }
    }

    pub fn ended(&self, ids: &[&str]) -> Vec<EndedOffsets> {
        let ranges = ids.iter().map(|id| {
            let offset = self.out[*id];
            offset..offset + 1
        });
        let (partition, ranges) = (Self::partition(), ranges.collect());
        vec![EndedOffsets { partition, assignment: self.nonce, ranges }]
    }

    pub async fn commit(&mut self, commit: FeedCommit) {
        self.progress.commit(&commit).await.unwrap();
    }

    /// They were published.
    pub async fn end(&mut self, ids: &[&str]) {
        let ended = self.ended(ids);
        self.commit(FeedCommit { ended, ..FeedCommit::default() }).await;
        for id in ids {
            self.out.remove(*id);
        }
    }

    /// Everything that is out was published.
    pub async fn end_all(&mut self) {
        let all: Vec<String> = self.out.keys().cloned().collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        self.end(&all).await;
    }

    pub async fn give_back(&mut self, ids: &[&str]) {
        let given_back = self.ended(ids);
        self.commit(FeedCommit { given_back, ..FeedCommit::default() }).await;
        for id in ids {
            self.out.remove(*id);
        }
    }

    pub fn failed(&self, id: &str, wait: Duration) -> PostponedRecord {
        PostponedRecord {
            partition: Self::partition(),
            assignment: self.nonce,
            offset: self.out[id],
            attempt: self.attempts[id] + 1,
            wait,
            error: format!("no topic is mapped to '{id}' WHERE it goes; --"),
        }
    }

    /// It failed.
    pub async fn put_off(&mut self, id: &str, wait: Duration) {
        let put_off = vec![self.failed(id, wait)];
        self.commit(FeedCommit { put_off, ..FeedCommit::default() }).await;
        self.out.remove(id);
    }

    pub fn given_up(&self, id: &str) -> SetAside {
        SetAside {
            partition: Self::partition(),
            assignment: self.nonce,
            offset: self.out[id],
            attempt: self.attempts[id] + 1,
            reason: Reason::NoKey,
            error: "it's \\ over".to_owned(),
        }
    }

    /// It failed for the last time.
    pub async fn set_aside(&mut self, id: &str) {
        let set_aside = vec![self.given_up(id)];
        self.commit(FeedCommit { set_aside, ..FeedCommit::default() }).await;
        self.out.remove(id);
    }
}
