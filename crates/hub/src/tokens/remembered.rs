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

    /// `version` is that of the keys it was verified with, which may have changed since.
    pub fn remember(&self, token: &str, person: &Person, version: u64, now: SystemTime) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if version < state.version {
            return;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::UserId;

    /// A key that is removed while a token is verified with it must not live on here.
    #[test]
    fn what_older_keys_verified_is_not_remembered() {
        let (cache, now) = (TokenCache::default(), SystemTime::UNIX_EPOCH);
        let expires = now + Duration::from_secs(60);
        let person = Person { user: UserId::new("alice"), expires, issued: None };
        let find = |token, version| cache.find(token, version, now, Duration::ZERO).is_some();
        cache.remember("one", &person, 2, now);
        assert!(find("one", 2) && !find("one", 3));
        cache.remember("late", &person, 1, now);
        assert!(find("one", 2) && !find("late", 2) && !find("late", 1));
        cache.remember("newer", &person, 3, now);
        assert!(find("newer", 3) && !find("one", 3));
    }
}
