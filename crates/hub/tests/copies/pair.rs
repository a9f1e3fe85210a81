//! Two nodes of one hub, with clients on both.

use std::sync::Arc;
use std::time::Duration;

use potok_hub::trouble::Planted;
use potok_hub::{Answer, Directory, Hub, HubSettings, Limits, UserId};
use serde_json::json;

use crate::support::{AN_HOUR, Client, TestHub, patiently, until};

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(20);
/// Longer than any pause of these tests, except where one says otherwise.
pub const LEASE: Duration = Duration::from_secs(5);

pub fn settings(limits: Limits) -> HubSettings {
    HubSettings { limits, ..HubSettings::default() }
}

pub fn limits() -> Limits {
    Limits { lease: LEASE, linger: Duration::from_millis(300), ..Limits::default() }
}

pub fn with(planted: Option<Planted>) -> Limits {
    Limits { planted, ..limits() }
}

pub struct Pair {
    pub a: TestHub,
    pub b: TestHub,
}

impl Pair {
    pub async fn start(
        limits: &Limits,
        one: Arc<dyn Directory>,
        other: Arc<dyn Directory>,
    ) -> Self {
        let a = TestHub::among(settings(limits.clone()), one, None).await;
        let b = TestHub::among(settings(limits.clone()), other, Some(&a)).await;
        let pair = Pair { a, b };
        // A client on each is found from the other: they know each other, and listen.
        let (mut one, mut other) = (pair.a.connect("first").await, pair.b.connect("second").await);
        pair.a.acknowledged("second", &mut other).await;
        pair.b.acknowledged("first", &mut one).await;
        drop((one, other));
        for hub in [&pair.a, &pair.b] {
            until("they are gone", || hub.node.stats().connections == 0).await;
        }
        pair
    }
}

impl TestHub {
    /// Sends until the client is found and gets it, then acknowledges. Never acknowledged without.
    pub async fn acknowledged(&self, user: &str, client: &mut Client) {
        let trying = async {
            loop {
                let Ok(ask) = self.try_send(user).await else {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                };
                // What it gets is either this one or nothing.
                tokio::select! {
                    id = client.invoked() => {
                        client.complete(&id).await;
                        let answer = ask.answer().await;
                        if answer == Answer::Acknowledged {
                            return;
                        }
                    }
                    answer = ask.answer() => {
                        if answer == Answer::Acknowledged {
                            let planted = self.node.settings().limits.planted;
                            assert_eq!(planted, Some(Planted::SentIsDelivered));
                            client.invoked().await;
                            return;
                        }
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        };
        patiently("a message that is acknowledged", trying).await;
    }

    pub async fn try_send(
        &self,
        user: &str,
    ) -> Result<crate::support::Ask, potok_hub::Unavailable> {
        self.send_or_not(user, json!("hello"), AN_HOUR).await
    }

    /// How many connections a user has anywhere.
    pub async fn seen(&self, user: &str) -> usize {
        let ask = potok_hub::ConnectionAsk { user: Some(UserId::new(user)), limit: 100 };
        self.node.connections(&ask).await.total
    }
}
