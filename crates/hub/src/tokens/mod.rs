//! Who somebody is: access tokens of an OpenID provider such as Keycloak, or of the development
//! issuer.
//!
//! One verifier for both. The algorithm comes from the key, never from the token; everything a token
//! must say is listed in [`rules`]. Tokens are never logged, and no error repeats one.

pub mod development;
mod fetch;
pub use fetch::tls_config;
pub mod issuer;
mod keys;
mod remembered;
pub mod rules;
mod signature;

use std::time::SystemTime;

use async_trait::async_trait;

use crate::contract::UserId;

/// Whom a token speaks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    pub user: UserId,
    pub expires: SystemTime,
    pub issued: Option<SystemTime>,
}

/// Who can say whom a token speaks for.
#[async_trait]
pub trait Authority: Send + Sync {
    /// Called for every request of a client. May ask the issuer for its keys, at most once in ten
    /// seconds, and then takes at most five.
    async fn verify(&self, token: &str) -> Result<Person, Refusal>;

    /// How often keys were asked for.
    fn fetches(&self) -> u64 {
        0
    }

    /// How many of them failed.
    fn failed_fetches(&self) -> u64 {
        0
    }

    /// Whether its tokens are only for clients on this machine.
    fn is_for_development(&self) -> bool {
        false
    }

    /// Why it cannot verify anything yet.
    fn not_ready(&self) -> Option<String> {
        None
    }
}

/// Why a token does not count, by the first rule that it breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("there is no token")]
    Missing,
    #[error("it is not a signed token: {0}")]
    Malformed(&'static str),
    #[error("its header has `{0}`, which changes what must be checked")]
    Header(&'static str),
    #[error("the issuer has no key of the id that signed it")]
    UnknownKey,
    #[error("its algorithm is not the one of the key")]
    Algorithm,
    #[error("its signature is wrong")]
    Signature,
    #[error("its issuer is `{found}`, not `{wanted}`")]
    Issuer { found: String, wanted: String },
    #[error("its audience is {found}, without `{wanted}`")]
    Audience { found: String, wanted: String },
    #[error("it does not say when it expires")]
    NoExpiry,
    #[error("it expired {seconds} s ago")]
    Expired { seconds: u64 },
    #[error("it counts only in {seconds} s")]
    NotYet { seconds: u64 },
    #[error("it is a token of type `{0}`, not an access token")]
    Kind(String),
    #[error("it is bound to a key of its client (`cnf`), which is not checked here")]
    Bound,
    #[error("it was made for the client `{0}`, which may not connect")]
    Client(String),
    #[error("its user lacks the role `{0}`")]
    Role(String),
    #[error("it has no text in the claim `{0}`, which names the user")]
    NoUser(String),
    #[error("its user was disconnected after it was issued")]
    Denied,
    #[error("the issuer's keys are not there yet")]
    NoKeys,
}

impl Refusal {
    /// As metrics call it.
    pub fn name(&self) -> &'static str {
        match self {
            Refusal::Missing => "missing",
            Refusal::Malformed(_) => "malformed",
            Refusal::Header(_) => "header",
            Refusal::UnknownKey => "unknown_key",
            Refusal::Algorithm => "algorithm",
            Refusal::Signature => "signature",
            Refusal::Issuer { .. } => "issuer",
            Refusal::Audience { .. } => "audience",
            Refusal::NoExpiry => "no_expiry",
            Refusal::Expired { .. } => "expired",
            Refusal::NotYet { .. } => "not_yet",
            Refusal::Kind(_) => "kind",
            Refusal::Bound => "bound",
            Refusal::Client(_) => "client",
            Refusal::Role(_) => "role",
            Refusal::NoUser(_) => "no_user",
            Refusal::Denied => "denied",
            Refusal::NoKeys => "no_keys",
        }
    }

    /// What the person who runs the hub can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Refusal::Audience { .. } => {
                "Keycloak names the API in `aud` only where the client has a mapper of type \
                 \"Audience\": add one to the client or to one of its scopes"
            }
            Refusal::NoUser(_) => {
                "Keycloak puts `sub` into tokens by the client scope `basic`; lightweight tokens \
                 have none"
            }
            Refusal::Issuer { .. } => {
                "both must be equal to the letter, with host, port and realm; Keycloak takes its \
                 host name from the setting `hostname`"
            }
            Refusal::Kind(_) => "send the access token, not the ID token or the refresh token",
            Refusal::Expired { .. } => "fetch a new one; Keycloak's live for five minutes",
            Refusal::Role(_) => "give the user the role, or change `roles` of the hub",
            Refusal::UnknownKey => {
                "it may be of another realm, or its key was removed; keys are asked for again at \
                 most every 10 s"
            }
            Refusal::NoKeys => "is the issuer running, and reachable from here?",
            _ => "fetch a new token from the issuer",
        }
    }
}
