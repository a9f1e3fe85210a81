//! Tokens that were verified a moment ago: a client shows the same one at negotiation and again when
//! it attaches, and a storm of clients must not cost two signatures each.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use ring::digest::{SHA256, digest};

use super::Person;

const TOKENS_MAX: usize = 10_000;

#[derive(Default)]
pub struct TokenCache {
    state: Mutex<VerifiedTokens>,
}

#[derive(Default)]
struct VerifiedTokens {
    /// By what the token hashes to: the tokens themselves are not kept.
    people: HashMap<[u8; 32], Person>,
    /// The keys they were verified with.
    version: u64,
}

impl TokenCache {
    /// Whom a token was verified for, with keys that have not changed since.
    pub fn find(
        &self,
        token: &str,
        version: u64,
        now: SystemTime,
        leeway: Duration,
    ) -> Option<Person> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let person = state.people.get(&hash(token)).filter(|_| state.version == version)?;
        let past = now.duration_since(person.expires).unwrap_or_default();
        (past < leeway || past.is_zero()).then(|| person.clone())
    }

    pub fn remember(&self, token: &str, person: &Person, version: u64, now: SystemTime) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.version != version {
            *state = VerifiedTokens { people: HashMap::new(), version };
        }
        if state.people.len() >= TOKENS_MAX {
            state.people.retain(|_, person| person.expires > now);
        }
        if state.people.len() >= TOKENS_MAX {
            state.people.clear();
        }
        state.people.insert(hash(token), person.clone());
    }
}

fn hash(token: &str) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    hash
}
