//! The keys of an issuer: found by discovery, asked for again in time, and never more often than a
//! stranger's tokens could wish.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::Refusal;
use super::fetch::Fetcher;
use super::rules::AuthSettings;
use super::signature::{Key, PublishedKey};

/// Where the issuer does not answer, its last keys count this long.
const KEEP_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a client may wait for keys.
const WAIT_MAX: Duration = Duration::from_secs(5);

pub struct Keys {
    issuer: String,
    jwks_url: Option<String>,
    ask_every: Duration,
    refresh_every: Duration,
    fetcher: Fetcher,
    state: Mutex<KeyCache>,
    /// Held by whoever asks the issuer; the others wait for what it learns.
    asking: tokio::sync::Mutex<()>,
    pub fetches: AtomicU64,
    /// Those of them that failed.
    pub failed_fetches: AtomicU64,
}

#[derive(Default)]
struct KeyCache {
    keys: HashMap<String, Key>,
    asked: Option<Instant>,
    answered: Option<Instant>,
    /// Rises when keys change.
    version: u64,
    trouble: Option<String>,
}

impl KeyCache {
    /// Some that still count.
    fn has_keys(&self) -> bool {
        let fresh = self.answered.is_some_and(|answered| answered.elapsed() < KEEP_MAX);
        fresh && !self.keys.is_empty()
    }
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

impl Keys {
    pub fn new(settings: &AuthSettings) -> Result<Self, String> {
        Ok(Keys {
            issuer: settings.issuer.clone(),
            jwks_url: settings.jwks_url.clone(),
            ask_every: settings.ask_keys_every,
            refresh_every: settings.refresh_keys_every,
            fetcher: Fetcher::new()?,
            state: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
            fetches: AtomicU64::new(0),
            failed_fetches: AtomicU64::new(0),
        })
    }

    /// The key of that id, and the version of the keys it is one of. Asks the issuer where it is
    /// unknown, unless that was done just now.
    pub async fn find(self: &Arc<Self>, id: &str) -> Result<(Key, u64), Refusal> {
        if let Some(key) = self.known(id) {
            return Ok(key);
        }
        // A task of its own: whoever hangs up now must not take the answer from all others.
        let keys = self.clone();
        let asking = tokio::spawn(async move { keys.ask().await });
        let _ = tokio::time::timeout(WAIT_MAX, asking).await;
        let has_keys = self.state().has_keys();
        self.known(id).ok_or(if has_keys { Refusal::UnknownKey } else { Refusal::NoKeys })
    }

    pub fn version(&self) -> u64 {
        self.state().version
    }

    /// Why there are no keys.
    pub fn trouble(&self) -> Option<String> {
        let state = self.state();
        match state.has_keys() {
            true => None,
            false => {
                Some(state.trouble.clone().unwrap_or("the issuer was not asked yet".to_owned()))
            }
        }
    }

    fn known(&self, id: &str) -> Option<(Key, u64)> {
        let state = self.state();
        let key = state.keys.get(id).filter(|_| state.has_keys())?;
        Some((key.clone(), state.version))
    }

    /// Asks the issuer, one at a time and not too often.
    pub async fn ask(&self) {
        let _asking = self.asking.lock().await;
        {
            let mut state = self.state();
            if state.asked.is_some_and(|asked| asked.elapsed() < self.ask_every) {
                return;
            }
            state.asked = Some(Instant::now());
        }
        self.fetches.fetch_add(1, Ordering::Relaxed);
        match self.fetch().await {
            Ok(keys) => {
                let mut state = self.state();
                state.keys = keys;
                state.version += 1;
                state.answered = Some(Instant::now());
                state.trouble = None;
            }
            Err(trouble) => {
                self.failed_fetches.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(issuer = self.issuer, %trouble, "the issuer's keys cannot be fetched");
                self.state().trouble = Some(trouble);
            }
        }
    }

    async fn fetch(&self) -> Result<HashMap<String, Key>, String> {
        let url = match &self.jwks_url {
            Some(url) => url.clone(),
            None => {
                let issuer = self.issuer.trim_end_matches('/');
                let url = format!("{issuer}/.well-known/openid-configuration");
                let discovery: Discovery = self.fetcher.get(&url).await?;
                if discovery.issuer != self.issuer {
                    let (said, wanted) = (discovery.issuer, &self.issuer);
                    return Err(format!("the issuer calls itself `{said}`, not `{wanted}`"));
                }
                discovery.jwks_uri
            }
        };
        let set: KeySet = self.fetcher.get(&url).await?;
        let keys: HashMap<_, _> = set.keys.into_iter().filter_map(usable).collect();
        if keys.is_empty() { Err(format!("`{url}` has no key for signatures")) } else { Ok(keys) }
    }

    /// Asks again from time to time, as long as somebody uses the keys.
    pub fn refresh(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                let Some(keys) = weak.upgrade() else { return };
                keys.ask().await;
                // Soon again where there are none; with some chance, so that copies do not ask
                // together.
                let pause = match keys.trouble() {
                    Some(_) => keys.ask_every,
                    None => {
                        let spread = keys.refresh_every.as_millis() as u64 / 10;
                        keys.refresh_every - Duration::from_millis(crate::random::below(spread))
                    }
                };
                drop(keys);
                tokio::time::sleep(pause).await;
            }
        });
    }

    fn state(&self) -> MutexGuard<'_, KeyCache> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keys of kinds that nobody here knows are left out, not held against the others.
fn usable(key: Value) -> Option<(String, Key)> {
    serde_json::from_value::<PublishedKey>(key).ok()?.usable()
}
