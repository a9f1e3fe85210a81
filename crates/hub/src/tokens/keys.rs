//! The keys of an issuer: found by discovery, asked for again in time, and never more often than a
//! stranger's tokens could wish.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::fetch::Fetcher;
use super::rules::AuthSettings;
use super::{Refusal, provider};

/// Where the issuer does not answer, its last keys count this long.
const KEEP_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a client may wait for keys.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// RSA keys with fewer bytes are not used.
const RSA_BYTES_MIN: usize = 256;

#[derive(Clone)]
pub struct Key {
    pub algorithm: Algorithm,
    pub key: DecodingKey,
}

pub struct Keys {
    issuer: String,
    jwks_url: Option<String>,
    ask_every: Duration,
    refresh_every: Duration,
    fetcher: Fetcher,
    state: Mutex<State>,
    /// Held by whoever asks the issuer; the others wait for what it learns.
    asking: tokio::sync::Mutex<()>,
    pub fetches: AtomicU64,
}

#[derive(Default)]
struct State {
    keys: HashMap<String, Key>,
    asked: Option<Instant>,
    answered: Option<Instant>,
    /// Rises when keys change.
    version: u64,
    trouble: Option<String>,
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
        provider::install();
        Ok(Keys {
            issuer: settings.issuer.clone(),
            jwks_url: settings.jwks_url.clone(),
            ask_every: settings.ask_keys_every,
            refresh_every: settings.refresh_keys_every,
            fetcher: Fetcher::new()?,
            state: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
            fetches: AtomicU64::new(0),
        })
    }

    /// The key of that id. Asks the issuer where it is unknown, unless that was done just now.
    pub async fn find(&self, id: &str) -> Result<Key, Refusal> {
        if let Some(key) = self.known(id) {
            return Ok(key);
        }
        let _ = tokio::time::timeout(WAIT_MAX, self.ask()).await;
        let is_empty = self.state().keys.is_empty();
        self.known(id).ok_or(if is_empty { Refusal::NoKeys } else { Refusal::UnknownKey })
    }

    pub fn version(&self) -> u64 {
        self.state().version
    }

    /// Why there are no keys.
    pub fn trouble(&self) -> Option<String> {
        let state = self.state();
        match state.keys.is_empty() {
            false => None,
            true => {
                Some(state.trouble.clone().unwrap_or("the issuer was not asked yet".to_owned()))
            }
        }
    }

    fn known(&self, id: &str) -> Option<Key> {
        let state = self.state();
        let fresh = state.answered.is_some_and(|answered| answered.elapsed() < KEEP_MAX);
        state.keys.get(id).filter(|_| fresh).cloned()
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A key that may verify signatures, under its id. Secrets and keys for encryption may not.
fn usable(key: Value) -> Option<(String, Key)> {
    let jwk: Jwk = serde_json::from_value(key).ok()?;
    let common = &jwk.common;
    if common.public_key_use.as_ref().is_some_and(|other| *other != PublicKeyUse::Signature) {
        return None;
    }
    let algorithm = match (&jwk.algorithm, common.key_algorithm) {
        (AlgorithmParameters::RSA(_), Some(KeyAlgorithm::RS256) | None) => Algorithm::RS256,
        (AlgorithmParameters::RSA(_), Some(KeyAlgorithm::RS384)) => Algorithm::RS384,
        (AlgorithmParameters::RSA(_), Some(KeyAlgorithm::RS512)) => Algorithm::RS512,
        (AlgorithmParameters::RSA(_), Some(KeyAlgorithm::PS256)) => Algorithm::PS256,
        (AlgorithmParameters::RSA(_), Some(KeyAlgorithm::PS384)) => Algorithm::PS384,
        (AlgorithmParameters::RSA(_), Some(KeyAlgorithm::PS512)) => Algorithm::PS512,
        (AlgorithmParameters::EllipticCurve(key), Some(KeyAlgorithm::ES256) | None)
            if key.curve == EllipticCurve::P256 =>
        {
            Algorithm::ES256
        }
        (AlgorithmParameters::EllipticCurve(key), Some(KeyAlgorithm::ES384) | None)
            if key.curve == EllipticCurve::P384 =>
        {
            Algorithm::ES384
        }
        (AlgorithmParameters::OctetKeyPair(key), Some(KeyAlgorithm::EdDSA) | None)
            if key.curve == EllipticCurve::Ed25519 =>
        {
            Algorithm::EdDSA
        }
        _ => return None,
    };
    let id = common.key_id.clone()?;
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    if let jsonwebtoken::DecodingKeyKind::RsaModulusExponent { n, .. } = key.kind()
        && n.len() < RSA_BYTES_MIN
    {
        return None;
    }
    Some((id, Key { algorithm, key }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_public_keys_for_signatures_are_used() {
        let point = "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4";
        let other = "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM";
        let good = json!({"kty": "EC", "crv": "P-256", "kid": "a", "x": point, "y": other});
        assert_eq!(usable(good.clone()).unwrap().1.algorithm, Algorithm::ES256);
        for (field, value) in [("use", "enc"), ("alg", "ES384"), ("alg", "RSA-OAEP")] {
            let mut bad = good.clone();
            bad[field] = value.into();
            assert!(usable(bad).is_none(), "{field}");
        }
        let mut nameless = good;
        nameless.as_object_mut().unwrap().remove("kid");
        assert!(usable(nameless).is_none());
        assert!(usable(json!({"kty": "oct", "kid": "a", "k": "c2VjcmV0"})).is_none());
        assert!(
            usable(json!({"kty": "oct", "kid": "a", "alg": "HS256", "k": "c2VjcmV0"})).is_none()
        );
        assert!(usable(json!({"kty": "RSA", "kid": "a", "n": "c2hvcnQ", "e": "AQAB"})).is_none());
        assert!(usable(json!({"kty": "new", "kid": "a"})).is_none());
    }
}
