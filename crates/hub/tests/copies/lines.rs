//! A directory in this process whose lines can be cut, node by node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use potok_hub::{
    Directory, Find, InProcess, Lease, Limits, NodeId, Parcels, Presence, Unavailable, UserId,
    Whereabouts,
};
use serde_json::Value;
use tokio::sync::watch;

/// The kind of parcels that carry replies.
const REPLIES: u8 = 2;

/// One node's way to the directory.
#[derive(Default)]
pub struct LinePath {
    inner: Arc<InProcess>,
    /// What is cast to the node is taken, and never read: it is frozen.
    pub deaf: Arc<AtomicBool>,
    /// Its lease is not renewed.
    pub lapsed: AtomicBool,
    /// That users have gone is not written.
    pub stale: AtomicBool,
    /// Nothing can be asked.
    pub away: AtomicBool,
    /// Where calls wait.
    pub keeping: Gate,
    pub announcing: Gate,
    pub reading: Gate,
    pub casting: Gate,
    /// How often the lease was renewed.
    pub renewed: AtomicUsize,
}

/// A place where calls wait while it is shut.
#[derive(Default)]
pub struct Gate {
    shut: watch::Sender<bool>,
    pub waiting: AtomicUsize,
}

impl Gate {
    pub fn shut(&self) {
        self.shut.send_replace(true);
    }

    pub fn open(&self) {
        self.shut.send_replace(false);
    }

    async fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let _ = self.shut.subscribe().wait_for(|shut| !shut).await;
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl LinePath {
    pub fn to(inner: &Arc<InProcess>) -> Arc<Self> {
        Arc::new(LinePath { inner: inner.clone(), ..LinePath::default() })
    }

    /// Everything is forgotten, as by FLUSHALL.
    pub fn forget(&self) {
        self.inner.forget();
    }

    fn reach(&self) -> Result<&InProcess, Unavailable> {
        if self.away.load(Ordering::Acquire) { Err(Unavailable) } else { Ok(&self.inner) }
    }
}

pub fn set(flag: &AtomicBool) {
    flag.store(true, Ordering::Release);
}

pub fn unset(flag: &AtomicBool) {
    flag.store(false, Ordering::Release);
}

struct Line {
    inner: Box<dyn Parcels>,
    deaf: Arc<AtomicBool>,
}

#[async_trait::async_trait]
impl Parcels for Line {
    async fn next(&mut self) -> Option<Bytes> {
        let parcel = self.inner.next().await;
        if self.deaf.load(Ordering::Acquire) {
            std::future::pending().await
        }
        parcel
    }
}

#[async_trait::async_trait]
impl Directory for LinePath {
    async fn renew(&self, node: NodeId, lease: Duration) -> Result<Lease, Unavailable> {
        match self.lapsed.load(Ordering::Acquire) {
            true => Err(Unavailable),
            false => {
                let lease = self.reach()?.renew(node, lease).await;
                self.renewed.fetch_add(1, Ordering::AcqRel);
                lease
            }
        }
    }

    async fn leave(&self, node: NodeId) -> Result<(), Unavailable> {
        self.reach()?.leave(node).await
    }

    async fn announce(
        &self,
        node: NodeId,
        users: &[(UserId, Presence)],
    ) -> Result<(), Unavailable> {
        self.announcing.pass().await;
        let stale = self.stale.load(Ordering::Acquire);
        let kept = |(_, presence): &&(UserId, Presence)| !stale || *presence == Presence::Here;
        let users: Vec<_> = users.iter().filter(kept).cloned().collect();
        self.reach()?.announce(node, &users).await
    }

    async fn find(&self, users: &[Find], limits: &Limits) -> Result<Vec<Whereabouts>, Unavailable> {
        if users.iter().any(|find| !find.frames.is_empty()) {
            self.keeping.pass().await;
        }
        self.reach()?.find(users, limits).await
    }

    async fn since(
        &self,
        user: &UserId,
        last: &str,
        limits: &Limits,
    ) -> Result<Option<Vec<Value>>, Unavailable> {
        self.reading.pass().await;
        self.reach()?.since(user, last, limits).await
    }

    async fn cast(&self, parcels: &[(NodeId, Bytes)]) -> Result<Vec<bool>, Unavailable> {
        if parcels.iter().any(|(_, parcel)| parcel.get(1) == Some(&REPLIES)) {
            self.casting.pass().await;
        }
        self.reach()?.cast(parcels).await
    }

    async fn listen(&self, node: NodeId) -> Result<Box<dyn Parcels>, Unavailable> {
        let inner = self.reach()?.listen(node).await?;
        Ok(Box::new(Line { inner, deaf: self.deaf.clone() }))
    }

    async fn negotiation_key(&self, proposal: [u8; 32]) -> Result<[u8; 32], Unavailable> {
        self.reach()?.negotiation_key(proposal).await
    }

    async fn deny(&self, denials: &[(UserId, SystemTime)]) -> Result<(), Unavailable> {
        self.reach()?.deny(denials).await
    }

    async fn denials(&self) -> Result<Vec<(UserId, SystemTime)>, Unavailable> {
        self.reach()?.denials().await
    }
}
