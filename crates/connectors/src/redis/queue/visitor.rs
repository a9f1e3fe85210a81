//! Looks at chats when their time has come, keeps the leases of what was claimed, and looks for
//! lists that nobody would look at.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use potok_core::Fault;
use potok_core::trouble::crash_point;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::calls::{ClaimToken, QueueCalls};
use super::claims::{Claims, QueueWorker, readable};
use super::feed::{Counters, QueueOptions};
use super::server::{self, ServerWatch};

/// How long a look is put off at most: others may have sorted, or died with claims.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// After a fault.
const AGAIN: Duration = Duration::from_millis(250);

/// How often all lists are looked for.
const SCAN_EVERY: Duration = Duration::from_secs(60);

/// For how many leases claims are kept when nobody takes what is handed out any more: what is under way
/// then ends, or is somebody else's.
const LEAVING_LEASES: u32 = 4;

/// Between two pages of a scan.
const SCAN_PACE: Duration = Duration::from_millis(5);

pub(super) struct Visitor {
    pub calls: Arc<QueueCalls>,
    pub claims: Arc<Claims>,
    pub options: Arc<QueueOptions>,
    pub counters: Arc<Counters>,
    pub next_look: UnboundedReceiver<Instant>,
    /// The name of the pipeline is where others see it.
    pub is_registered: bool,
    /// Which server, database and list it looks at: elsewhere is other data.
    pub place: Arc<str>,
}

impl Visitor {
    /// Until it is aborted.
    pub async fn run(mut self) {
        let mut known_epoch = self.seen_epoch().await;
        loop {
            let next = match self.claims.room() {
                0 => LOOK_MAX,
                room => match self.look(room, &mut known_epoch).await {
                    Ok(next) => {
                        self.claims.trouble(QueueWorker::Visitor, None);
                        next.unwrap_or(LOOK_MAX).min(LOOK_MAX)
                    }
                    Err(fault) => {
                        self.claims.trouble(QueueWorker::Visitor, Some(fault));
                        AGAIN
                    }
                },
            };
            self.wait(Instant::now() + next).await;
        }
    }

    /// Until a look is due, or something else is to be done.
    async fn wait(&mut self, mut due: Instant) {
        // Under load there are more of them than looks.
        while let Ok(sooner) = self.next_look.try_recv() {
            due = due.min(sooner);
        }
        loop {
            tokio::select! {
                () = sleep_until(due) => return,
                () = self.claims.look.notified() => return,
                sooner = self.next_look.recv() => match sooner {
                    Some(sooner) => due = due.min(sooner),
                    None => return sleep_until(due).await,
                },
            }
        }
    }

    /// The nonce of the data that was in this place when somebody here looked last.
    async fn seen_epoch(&self) -> Option<Bytes> {
        let noted = tokio::fs::read_to_string(self.options.seen.as_ref()?).await.ok()?;
        // What was cut off has no end of line, and is not known.
        let (place, epoch) = noted.strip_suffix('\n')?.split_once('\n')?;
        (*place == *self.place).then(|| Bytes::copy_from_slice(epoch.as_bytes()))
    }

    /// It is a help: what cannot be noted is not known after a restart.
    async fn note_epoch(&self, epoch: &Bytes) {
        let Some(file) = &self.options.seen else { return };
        let noted = format!("{}\n{}\n", self.place, readable(epoch));
        if let Err(error) = tokio::fs::write(file, noted).await {
            tracing::debug!(%error, "the data that Redis has was not noted");
        }
    }

    async fn look(
        &mut self,
        room: usize,
        known_epoch: &mut Option<Bytes>,
    ) -> Result<Option<Duration>, Fault> {
        let (token, asked) = (self.claims.token(), Instant::now());
        crash_point("queue.claim.before");
        // An emptied server gets an epoch that it never had.
        let visit = self.calls.visit(&token, &token, room, &token).await?;
        if !visit.claims.is_empty() {
            crash_point("queue.claim.after");
        }
        let list = &self.options.list;
        if known_epoch.as_ref().is_some_and(|known| *known != visit.epoch) {
            self.counters.add(&self.counters.emptied, 1);
            self.is_registered = false;
            tracing::warn!(
                list,
                "Redis was emptied or lost its last writes; what waited there is gone"
            );
        }
        if known_epoch.as_ref() != Some(&visit.epoch) {
            self.note_epoch(&visit.epoch).await;
        }
        *known_epoch = Some(visit.epoch);
        if visit.handed_over > 0 {
            tracing::info!(list, chats = visit.handed_over, "another program took chats");
        }
        if visit.endless > 0 {
            tracing::warn!(
                list,
                chats = visit.endless,
                "locks of chats had no end and are ours now"
            );
        }
        for key in &visit.wrong {
            tracing::warn!(
                list,
                chat = readable(key),
                "a key of this chat holds something else than a list"
            );
        }
        self.counters.add(&self.counters.handed_over, visit.handed_over);
        self.counters.add(&self.counters.adopted, visit.adopted);
        for claim in visit.claims.iter().filter(|claim| claim.takeovers > 0) {
            let takeovers = claim.takeovers;
            self.counters.add(&self.counters.taken_over, 1);
            tracing::warn!(list, chat = readable(&claim.key), takeovers, "took over a claim");
        }
        let empty = self.claims.add(visit.claims, &token, asked);
        if !self.is_registered {
            server::register(&self.calls, &self.options.pipeline, list).await?;
            self.is_registered = true;
        }
        if !empty.is_empty() && self.calls.acknowledge(&empty).await?.1 {
            return Ok(Some(Duration::ZERO));
        }
        Ok(visit.next)
    }
}

/// Renews leases until it is aborted or the feed was left long ago. What could not be renewed in time is lost.
pub(super) async fn keep(calls: Arc<QueueCalls>, claims: Arc<Claims>, lease: Duration) {
    let mut paused_since = None;
    loop {
        sleep(lease / 4).await;
        if claims.is_left_since(LEAVING_LEASES * lease) {
            return;
        }
        claims.lose_overdue();
        // What waits behind a closed gate could be delivered by another process.
        if claims.is_paused() {
            let since: Instant = *paused_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= lease {
                give_back(&calls, claims.take_ready()).await;
            }
        } else {
            paused_since = None;
        }
        let held = claims.all();
        if held.is_empty() {
            continue;
        }
        let asked = Instant::now();
        let asking: Vec<ClaimToken> = held.iter().map(|(_, held)| held.clone()).collect();
        if let Ok(Ok(ours)) = timeout(lease / 2, calls.renew(&asking)).await {
            claims.renewed(asked, &held, &ours)
        }
        claims.lose_overdue();
    }
}

/// What is not given back comes again when its lease ends.
pub(super) async fn give_back(calls: &QueueCalls, held: Vec<ClaimToken>) {
    if !held.is_empty()
        && let Err(fault) = calls.give_back(&held).await
    {
        tracing::debug!(%fault, "claims were not given back");
    }
}

/// Looks for lists that nobody will look at, at once and then from time to time, and at what the
/// server says of itself.
pub(super) async fn scan(
    calls: Arc<QueueCalls>,
    claims: Arc<Claims>,
    counters: Arc<Counters>,
    list: String,
) {
    let mut watch = ServerWatch::default();
    loop {
        let mut cursor = "0".to_owned();
        loop {
            match calls.scan(&cursor).await {
                Ok((next, entered)) => {
                    if entered > 0 {
                        counters.add(&counters.found, entered);
                        tracing::info!(
                            list,
                            chats = entered,
                            "found chats without a time to look at them"
                        );
                        claims.look.notify_one();
                    }
                    cursor = next;
                    if cursor == "0" {
                        break;
                    }
                    sleep(SCAN_PACE).await;
                }
                Err(_) => sleep(AGAIN).await,
            }
        }
        if let Ok(facts) = server::facts(&calls.client).await {
            for news in watch.news(&facts, calls.client.label()) {
                tracing::warn!(list, "{news}");
            }
        }
        sleep(SCAN_EVERY).await;
    }
}
