//! Tokens of an OpenID provider, checked with its published keys.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;

use super::keys::Keys;
use super::remembered::TokenCache;
use super::rules::{AuthSettings, Token};
use super::signature::Key;
use super::{Authority, Person, Refusal};
use crate::node::wall_now;

pub struct Issuer {
    settings: AuthSettings,
    keys: Arc<Keys>,
    remembered: TokenCache,
}

impl Issuer {
    /// Starts asking for its keys; nothing is verified before the first answer.
    pub fn start(settings: AuthSettings) -> Result<Arc<Self>, String> {
        let issuer = Issuer::new(settings)?;
        issuer.keys.refresh();
        Ok(Arc::new(issuer))
    }

    /// The same, for a single question: keys are fetched with the first token.
    pub fn new(settings: AuthSettings) -> Result<Self, String> {
        let keys = Arc::new(Keys::new(&settings)?);
        Ok(Issuer { settings, keys, remembered: TokenCache::default() })
    }
}

#[async_trait]
impl Authority for Issuer {
    async fn verify(&self, token: &str) -> Result<Person, Refusal> {
        let parsed = Token::parse(token)?;
        let (version, leeway) = (self.keys.version(), self.settings.leeway);
        if let Some(person) = self.remembered.find(token, version, wall_now(), leeway) {
            return Ok(person);
        }
        let (key, version) = self.keys.find(&parsed.key_id).await?;
        let person = verify(&parsed, &key, &self.settings)?;
        self.remembered.remember(token, &person, version, wall_now());
        Ok(person)
    }

    fn fetches(&self) -> u64 {
        self.keys.fetches.load(Ordering::Relaxed)
    }

    fn failed_fetches(&self) -> u64 {
        self.keys.failed_fetches.load(Ordering::Relaxed)
    }

    fn not_ready(&self) -> Option<String> {
        self.keys.trouble()
    }
}

/// Whether the key signed the token, and whether the token says what it must.
pub(super) fn verify(
    token: &Token<'_>,
    key: &Key,
    settings: &AuthSettings,
) -> Result<Person, Refusal> {
    if token.algorithm != key.algorithm {
        return Err(Refusal::Algorithm);
    }
    if !key.verifies(token.message, token.signature) {
        return Err(Refusal::Signature);
    }
    token.judge(settings, wall_now())
}
