//! Redis as a store, in both layouts, on a real server.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use potok_connectors::redis::{KeyStyle, RedisStore};
use potok_core::Store;
use potok_testkit::services;
use potok_testkit::suites::store::{self, Look, StoreFeatures, StoreHarness};

use super::passed;

/// Each keys in a database of its own.
struct RedisStores(KeyStyle);

impl RedisStores {
    fn url(&self) -> String {
        let db = if self.0 == KeyStyle::Readable { 1 } else { 2 };
        format!("{}/{db}", services::redis().url())
    }

    fn open(&self) -> Result<Arc<dyn Store>, String> {
        let store = RedisStore::new(&self.url(), self.0).map_err(|fault| fault.to_string())?;
        Ok(Arc::new(store))
    }

    fn connect(&self) -> redis::Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    fn flush(&self) {
        redis::cmd("FLUSHDB").exec(&mut self.connect()).unwrap();
    }
}

#[async_trait]
impl StoreHarness for RedisStores {
    fn features(&self) -> StoreFeatures {
        let shown = self.0 == KeyStyle::Readable;
        StoreFeatures { durable: true, of_log: false, shown }
    }

    async fn fresh(&self) -> Result<Arc<dyn Store>, String> {
        self.flush();
        self.open()
    }

    async fn reopen(&self, store: Arc<dyn Store>) -> Result<Arc<dyn Store>, String> {
        drop(store);
        self.open()
    }

    async fn look(&self, group: &Bytes) -> Result<Option<Look>, String> {
        let mut redis = self.connect();
        let key = |prefix: &str| [prefix.as_bytes(), group].concat();
        let mut member = |set: &str| -> bool {
            redis::cmd("SISMEMBER").arg(set).arg(&group[..]).query(&mut redis).unwrap()
        };
        let (open, closed) = (member("active:batches"), member("ready:batches"));
        let start: Option<String> =
            redis::cmd("GET").arg(key("batch:start:")).query(&mut redis).unwrap();
        let mut look = Look { closed, records: Default::default() };
        for kind in ["record", "event", "mention"] {
            let set = key(&format!("batch:{kind}s:"));
            let ids: Vec<Vec<u8>> = redis::cmd("SMEMBERS").arg(set).query(&mut redis).unwrap();
            for id in ids {
                let data = [&key(&format!("data:{kind}:")), &b":"[..], &id].concat();
                let value: Option<Vec<u8>> = redis::cmd("GET").arg(data).query(&mut redis).unwrap();
                let value = value.ok_or("an id without data")?;
                look.records.insert((kind.to_owned(), id.into(), value.into()));
            }
        }
        match (open || closed, start) {
            (true, Some(start)) if open != closed && start == "1742742900123" => Ok(Some(look)),
            (false, None) if look.records.is_empty() => Ok(None),
            (_, start) => Err(format!("{open}, {closed}, {start:?}, {look:?}")),
        }
    }

    async fn wipe(&self) -> Result<bool, String> {
        self.flush();
        Ok(true)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_store_readable() {
    passed(store::run_all(&RedisStores(KeyStyle::Readable)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_store_packed() {
    passed(store::run_all(&RedisStores(KeyStyle::Packed)).await);
}
