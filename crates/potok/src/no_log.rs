//! The log of a command that asks a feed alone: it has no topics and takes nothing.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Bytes;
use potok_core::{
    ConsumerGroup, ConsumerGroupSpec, Damage, Fault, Log, OpenGroups, Output, Owner, Position,
    PutOutcome, RangeSet, ReadFrom, Reader, Record, Store, StoreAddress, StoreEntry, TopicInfo,
};

pub struct NoLog;

fn absent() -> Fault {
    Fault::fix("this command works on a table, without a log")
}

#[async_trait]
impl Log for NoLog {
    async fn append(&self, _outputs: &[Output]) -> Result<Vec<Position>, Fault> {
        Err(absent())
    }

    async fn open(&self, _specs: Vec<ConsumerGroupSpec>) -> Result<OpenGroups, Fault> {
        Err(absent())
    }

    async fn read(&self, _topic: &str, _from: ReadFrom) -> Result<Box<dyn Reader>, Fault> {
        Err(absent())
    }

    async fn topics(&self) -> Result<Vec<TopicInfo>, Fault> {
        Ok(Vec::new())
    }

    async fn consumer_groups(&self) -> Result<Vec<ConsumerGroup>, Fault> {
        Ok(Vec::new())
    }

    async fn delete_consumer_group(&self, _group: &str) -> Result<(), Fault> {
        Err(absent())
    }

    fn bodies(&self) -> Arc<dyn Store> {
        Arc::new(NoLog)
    }

    fn damage(&self) -> Vec<Damage> {
        Vec::new()
    }

    fn trouble(&self) -> Option<String> {
        None
    }

    async fn ended(&self, _group: &str, _topic: &str, _: u32) -> Result<RangeSet, Fault> {
        Ok(RangeSet::default())
    }
}

#[async_trait]
impl Store for NoLog {
    async fn own(&self, _owner: &Owner) -> Result<(), Fault> {
        Err(absent())
    }

    async fn put(&self, _owner: &Owner, _held: &[StoreEntry]) -> Result<PutOutcome, Fault> {
        Err(absent())
    }

    async fn close(&self, _owner: &Owner, _groups: &[Bytes]) -> Result<(), Fault> {
        Err(absent())
    }

    async fn load(
        &self,
        _owner: &Owner,
        _places: &[StoreAddress],
    ) -> Result<Vec<Option<Record>>, Fault> {
        Err(absent())
    }

    async fn clean(&self, _owner: &Owner, _places: &[StoreAddress]) -> Result<(), Fault> {
        Err(absent())
    }
}
