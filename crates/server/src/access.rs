//! Who asks, and what they may do.
//!
//! On loopback everybody is this machine's: no login, everything allowed. Where the address can be
//! reached by others, each request must show an access token ([`Gatekeeper`]), in `Authorization` or by
//! a session that began with one. A session ends when its token does, and is good for pages and for
//! looking; programs that change something send their token.
//!
//! It promises: what somebody's role does not allow is refused before anything is read of it, and no
//! token is kept, logged or shown.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use futures::future::BoxFuture;
use potok_core::Timestamp;

use crate::audit::Door;
use crate::dashboard::session_of;
use crate::{ApiError, random_name};

/// Sessions that are remembered.
const SESSIONS_MAX: usize = 10_000;

/// What somebody may do; each may do what those before may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Look at everything but payloads.
    Viewer,
    /// Change what can be undone, and see payloads.
    Operator,
    /// Drop as well.
    Admin,
}

impl Role {
    /// As the file spells it.
    pub fn word(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }
}

/// Somebody who asks.
#[derive(Clone, Debug)]
pub struct Visitor {
    /// Who, for the audit.
    pub name: String,
    /// What they may do.
    pub role: Role,
    /// When that ends.
    pub expires: Option<Timestamp>,
}

impl Visitor {
    /// A program or a person of this machine.
    pub(crate) fn local() -> Self {
        Visitor { name: "local".to_owned(), role: Role::Admin, expires: None }
    }

    pub(crate) fn may(&self, role: Role) -> bool {
        self.role >= role
    }
}

/// Why somebody is not let in. Never repeats the token.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The rule that the token breaks.
    pub why: String,
    /// What to do about it.
    pub hint: String,
    /// The token is good, its user is nobody here.
    pub is_known: bool,
}

/// Says whom a token speaks for.
pub trait Gatekeeper: Send + Sync {
    /// Called for every request with a token, and for every login.
    fn admit<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Visitor, Refusal>>;
}

/// What is asked of those who come from elsewhere.
pub(crate) struct Access {
    gatekeeper: Box<dyn Gatekeeper>,
    /// Stands for a token where somebody can read the data folder.
    key: String,
    sessions: Mutex<HashMap<String, Visitor>>,
}

impl Access {
    pub fn new(gatekeeper: Box<dyn Gatekeeper>, key: String) -> Self {
        Access { gatekeeper, key, sessions: Mutex::default() }
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Visitor>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whom a token speaks for.
    pub async fn admit(&self, token: &str, now: Timestamp) -> Result<Visitor, ApiError> {
        let refused = |refused: Refusal| {
            let (status, code) = match refused.is_known {
                true => (StatusCode::FORBIDDEN, "P1622"),
                false => (StatusCode::UNAUTHORIZED, "P1621"),
            };
            let what = "the access token is refused";
            ApiError::new(status, code, what).because(refused.why).hint(refused.hint)
        };
        let visitor = self.gatekeeper.admit(token).await.map_err(refused)?;
        match visitor.expires.is_some_and(|expires| expires <= now) {
            true => Err(nobody()),
            false => Ok(visitor),
        }
    }

    /// Begins a session; its name goes into a cookie.
    pub fn begin(&self, visitor: Visitor, now: Timestamp) -> String {
        let mut sessions = self.sessions();
        if sessions.len() >= SESSIONS_MAX {
            sessions.retain(|_, known| known.expires.is_none_or(|expires| expires > now));
        }
        if sessions.len() >= SESSIONS_MAX
            && let Some(some) = sessions.keys().next().cloned()
        {
            sessions.remove(&some);
        }
        let session = random_name();
        sessions.insert(session.clone(), visitor);
        session
    }

    pub fn end(&self, headers: &HeaderMap) {
        if let Some(session) = session_of(headers) {
            self.sessions().remove(&session);
        }
    }

    /// Who asks.
    pub async fn visitor(
        &self,
        method: Method,
        uri: Uri,
        headers: HeaderMap,
        now: Timestamp,
    ) -> Result<Visitor, ApiError> {
        if let Some(given) = headers.get(AUTHORIZATION) {
            let token = given.to_str().ok().and_then(bearer).ok_or_else(nobody)?;
            return match is_same(token, &self.key) {
                true => Ok(Visitor::local()),
                false => self.admit(token, now).await,
            };
        }
        // A page of another site cannot send the cookie, but it could make the browser send a change.
        let by_program = uri.path().starts_with("/api/") && !is_look(&method);
        let session = session_of(&headers).filter(|_| !by_program).ok_or_else(nobody)?;
        let known = self.sessions().get(&session).cloned().ok_or_else(nobody)?;
        match known.expires.is_none_or(|expires| expires > now) {
            true => Ok(known),
            false => Err(nobody()),
        }
    }
}

fn bearer(text: &str) -> Option<&str> {
    let (scheme, token) = text.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Takes as long wherever they differ.
fn is_same(one: &str, other: &str) -> bool {
    use ring::digest::{SHA256, digest};
    let (one, other) = (digest(&SHA256, one.as_bytes()), digest(&SHA256, other.as_bytes()));
    one.as_ref() == other.as_ref()
}

fn nobody() -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, "P1620", "an access token is needed here")
        .hint("sign in at /login, or send `Authorization: Bearer …`; commands take POTOK_TOKEN")
}

/// True where nothing is changed.
pub(crate) fn is_look(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// What needs no token: whether the process lives and takes records, the way in, and what pages look
/// like.
pub(crate) fn is_open(path: &str) -> bool {
    matches!(path, "/live" | "/ready" | "/login") || path.starts_with("/assets/")
}

/// A page for people: without a token it leads to the way in.
pub(crate) fn is_page(method: &Method, path: &str) -> bool {
    is_look(method) && !path.starts_with("/api/") && path != "/metrics" && path != "/events"
}

/// Refuses what a role does not allow.
pub(crate) fn check(visitor: &Visitor, method: &Method, uri: &Uri) -> Result<(), ApiError> {
    require(visitor, needed(method, uri))
}

pub(crate) fn require(visitor: &Visitor, role: Role) -> Result<(), ApiError> {
    if visitor.may(role) {
        return Ok(());
    }
    let (needed, has) = (role.word(), visitor.role.word());
    let what = format!("this needs the role {needed}, and {} is {has}", visitor.name);
    Err(ApiError::new(StatusCode::FORBIDDEN, "P1623", what)
        .hint("`auth.dashboard` in potok.yaml says who has which role"))
}

/// The role that a request needs. Whatever changes something and is not named here needs an operator.
fn needed(method: &Method, uri: &Uri) -> Role {
    let path = uri.path().trim_end_matches('/');
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let has =
        |wanted: &str| uri.query().unwrap_or_default().split('&').any(|param| param == wanted);
    match (is_look(method), parts.as_slice()) {
        // Records as they are.
        (true, ["api", "v1", "topics", _, "records"] | ["api", "v1", "trace"]) => Role::Operator,
        (true, ["api", "v1", "dead-letters"]) if !has("summary=true") => Role::Operator,
        (true, ["send"] | ["dead-letters", "replay"]) => Role::Operator,
        (true, ["dead-letters", "drop"] | ["groups", _, _, "drop"]) => Role::Admin,
        (true, _) => Role::Viewer,
        (false, ["login"] | ["act", "sign-out"]) => Role::Viewer,
        (false, ["act", "drop" | "drop-group"]) => Role::Admin,
        (false, ["api", "v1", .., "drop" | "delete" | "skip"]) => Role::Admin,
        (false, _) => Role::Operator,
    }
}

/// Who changes something, and through which door.
#[derive(Clone, Debug)]
pub(crate) struct Actor {
    pub by: String,
    pub via: Door,
}

impl Actor {
    pub fn of(visitor: &Visitor, via: Door) -> Self {
        Actor { by: visitor.name.clone(), via }
    }
}

/// Of a request to the API.
impl<S: Send + Sync> FromRequestParts<S> for Actor {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Actor::of(&visitor(&parts.extensions), Door::Api))
    }
}

/// Who asks; the guard has let them in.
pub(crate) fn visitor(extensions: &axum::http::Extensions) -> Visitor {
    extensions.get::<Visitor>().cloned().unwrap_or_else(Visitor::local)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn payloads_and_changes_need_a_role() {
        let of = |method: &str, uri: &str| {
            needed(&Method::from_bytes(method.as_bytes()).unwrap(), &uri.parse().unwrap())
        };
        for (method, uri, role) in [
            ("GET", "/", Role::Viewer),
            ("GET", "/groups/chat/k", Role::Viewer),
            ("GET", "/api/v1/status", Role::Viewer),
            ("GET", "/api/v1/dead-letters?summary=true", Role::Viewer),
            ("GET", "/api/v1/dead-letters?brief=true", Role::Operator),
            ("GET", "/api/v1/dead-letters/", Role::Operator),
            ("GET", "/api/v1/topics/orders/records", Role::Operator),
            ("GET", "/api/v1/trace?id=k", Role::Operator),
            ("GET", "/groups/chat/k/drop", Role::Admin),
            ("POST", "/act/pause", Role::Operator),
            ("POST", "/act/drop", Role::Admin),
            ("POST", "/act/sign-out", Role::Viewer),
            ("POST", "/api/v1/topics/orders/records", Role::Operator),
            ("POST", "/api/v1/dead-letters/drop", Role::Admin),
            ("POST", "/api/v1/dead-letters/drop/", Role::Admin),
            ("POST", "/api/v1/pipelines/chat/groups/k/drop", Role::Admin),
            ("POST", "/api/v1/consumer-groups/g/delete", Role::Admin),
            ("DELETE", "/api/v1/jobs/x", Role::Operator),
            ("PUT", "/api/v1/anything", Role::Operator),
        ] {
            assert_eq!(of(method, uri), role, "{method} {uri}");
        }
    }

    #[test]
    fn a_bearer_is_read_and_nothing_else() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer  abc "), Some("abc"));
        assert_eq!((bearer("Basic abc"), bearer("abc")), (None, None));
        assert!(is_same("a", "a") && !is_same("a", "b"));
    }
}
