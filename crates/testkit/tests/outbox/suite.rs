//! The suite of feeds on the outbox, on every database.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use potok_connectors::memory::MemoryLog;
use potok_core::{Feed, Log, Record, SystemClock};
use potok_testkit::suites::feed::{self, FeedHarness};
use serde_json::Value;

use crate::place::{Place, System};

struct Outboxes {
    system: System,
    /// The database of the last fresh one, and how many rows were written there.
    last: Mutex<Option<(Arc<Place>, u32)>>,
}

impl Outboxes {
    fn place(&self) -> Result<Arc<Place>, String> {
        let last = self.last.lock().unwrap();
        last.as_ref().map(|(place, _)| place.clone()).ok_or_else(|| "nothing is fresh".to_owned())
    }

    fn number(&self) -> u32 {
        let mut last = self.last.lock().unwrap();
        let (_, number) = last.as_mut().expect("something is fresh");
        *number += 1;
        *number
    }
}

fn field(json: &[u8], name: &str) -> String {
    let value: Value = serde_json::from_slice(json).unwrap();
    value[name].as_str().unwrap().to_owned()
}

#[async_trait]
impl FeedHarness for Outboxes {
    async fn fresh(&self) -> Result<Arc<dyn Feed>, String> {
        let place = Arc::new(Place::new(self.system));
        *self.last.lock().unwrap() = Some((place.clone(), 0));
        // The application writes before potok is there for the first time.
        drop(place.relay("").await);
        Ok(Arc::new(place.outbox("")))
    }

    async fn another(&self) -> Result<Arc<dyn Feed>, String> {
        Ok(Arc::new(self.place()?.outbox("")))
    }

    async fn fill(&self, records: &[(&str, &str)]) -> Result<(), String> {
        let mut writer = self.place()?.writer().await;
        for (key, value) in records {
            let id = crate::place::uuid(&self.number().to_string());
            let sql = format!(
                "INSERT INTO outbox (id, event_type, payload) VALUES \
                 ('{id}', 'A', '{{\"key\": \"{key}\", \"value\": \"{value}\"}}')"
            );
            writer.run(&sql).await;
        }
        Ok(())
    }

    async fn set_aside(&self) -> Result<Vec<String>, String> {
        let rows = self.place()?.query("SELECT payload FROM outbox_dead ORDER BY seq");
        Ok(rows.iter().map(|payload| field(payload.as_bytes(), "value")).collect())
    }

    fn value_of(&self, record: &Record) -> String {
        field(record.value.as_deref().unwrap(), "value")
    }

    async fn log(&self) -> Result<Arc<dyn Log>, String> {
        Ok(Arc::new(MemoryLog::new(Arc::new(SystemClock))))
    }

    /// One process has the table, for as long as it renews its lease; `lease.rs` tries what becomes of
    /// one that has lost it.
    fn is_fenced(&self) -> bool {
        false
    }
}

async fn it_is_a_feed(system: System) {
    let harness = Outboxes { system, last: Mutex::default() };
    let passed = feed::run_all(&harness).await.unwrap_or_else(|failures| panic!("{failures}"));
    assert_eq!(passed, 15);
}

on_all!(it_is_a_feed);
