//! Who asks, and what they may do.
//!
//! On loopback everybody is this machine's: no login, everything allowed. Where the address can be
//! reached by others, each request must show an access token ([`Gatekeeper`]), in `Authorization` or by
//! a session that began with one. A session ends when its token does, and is good for pages and for
//! looking; programs that change something send their token.
//!
//! It promises: what somebody's role does not allow is refused before anything is read of it, and no
//! token is kept, logged or shown.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{ConnectInfo, FromRequestParts, Query};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, Method, StatusCode, Uri};
use futures::future::BoxFuture;
use percent_encoding::percent_decode_str;
use potok_core::Timestamp;
use tokio::sync::Semaphore;

use crate::audit::{Door, NoteLoss};
use crate::dashboard::session_of;
use crate::patience::Connection;
use crate::{ApiError, random_name};

/// Sessions that are remembered, and of one person.
const SESSIONS_MAX: usize = 10_000;
const SESSIONS_EACH_MAX: usize = 50;

/// Longer tokens do not even fit into a request of usual servers.
const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Tokens that are looked at at once, and how long one may take: who shows them is not known yet.
const TOKENS_AT_ONCE: usize = 32;
const TOKEN_TIME_MAX: Duration = Duration::from_secs(10);
/// Forms of people who are not signed in that are read at once, and how long one may take.
const FORMS_AT_ONCE: usize = 16;
const FORM_TIME_MAX: Duration = Duration::from_secs(10);

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
    tokens: Semaphore,
    forms: Semaphore,
}

impl Access {
    pub fn new(gatekeeper: Box<dyn Gatekeeper>, key: String) -> Self {
        Access {
            gatekeeper,
            key,
            sessions: Mutex::default(),
            tokens: Semaphore::new(TOKENS_AT_ONCE),
            forms: Semaphore::new(FORMS_AT_ONCE),
        }
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
        if token.len() > TOKEN_BYTES_MAX {
            let why = format!("it is longer than {TOKEN_BYTES_MAX} bytes");
            let hint = "is it an access token?".to_owned();
            return Err(refused(Refusal { why, hint, is_known: false }));
        }
        let asked = async {
            let _room = self.tokens.acquire().await;
            self.gatekeeper.admit(token).await
        };
        let asked = tokio::time::timeout(TOKEN_TIME_MAX, asked).await.map_err(|_| busy())?;
        let visitor = asked.map_err(refused)?;
        match visitor.expires.is_some_and(|expires| expires <= now) {
            true => Err(nobody()),
            false => Ok(visitor),
        }
    }

    /// Reads a form of somebody who is not signed in: one of a few at once, within some time.
    pub async fn read_form<T>(
        &self,
        read: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let Ok(_room) = self.forms.try_acquire() else { return Err(busy()) };
        tokio::time::timeout(FORM_TIME_MAX, read).await.map_err(|_| busy())?
    }

    /// Begins a session; its name goes into a cookie.
    pub fn begin(&self, visitor: Visitor, now: Timestamp) -> String {
        let mut sessions = self.sessions();
        if sessions.len() >= SESSIONS_MAX {
            sessions.retain(|_, known| known.expires.is_none_or(|expires| expires > now));
        }
        // Whoever signs in again and again pushes out nobody else.
        let own = sessions.iter().filter(|(_, known)| known.name == visitor.name);
        let own: Vec<String> = own.map(|(session, _)| session.clone()).collect();
        let over = match own.as_slice() {
            [first, ..] if own.len() >= SESSIONS_EACH_MAX => Some(first.clone()),
            _ if sessions.len() >= SESSIONS_MAX => sessions.keys().next().cloned(),
            _ => None,
        };
        if let Some(over) = over {
            sessions.remove(&over);
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

    /// True until somebody signs out of it.
    pub fn is_known(&self, session: &str) -> bool {
        self.sessions().contains_key(session)
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

fn busy() -> ApiError {
    let what = "signing in takes too long now, or too many do it at once";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "P1624", what).hint("try again in a moment")
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
    // As handlers read it: `/act/dro%70` drops, too.
    let decoded = |part| percent_decode_str(part).decode_utf8_lossy();
    let path = uri.path().trim_end_matches('/');
    let parts: Vec<Cow<'_, str>> = path.split('/').skip(1).map(decoded).collect();
    let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    match (is_look(method), parts.as_slice()) {
        // Records as they are.
        (true, ["api", "v1", "topics", _, "records"] | ["api", "v1", "trace"]) => Role::Operator,
        (true, ["api", "v1", "dead-letters"]) if !is_summary(uri) => Role::Operator,
        (true, ["send"] | ["dead-letters", "replay"]) => Role::Operator,
        (true, ["dead-letters", "drop"] | ["groups", _, _, "drop"]) => Role::Admin,
        (true, _) => Role::Viewer,
        (false, ["login"] | ["act", "sign-out"]) => Role::Viewer,
        (false, ["act", what]) => action_role(what),
        (false, ["api", "v1", .., "drop" | "delete" | "skip"]) => Role::Admin,
        (false, _) => Role::Operator,
    }
}

/// The role that an action of the dashboard needs.
pub(crate) fn action_role(what: &str) -> Role {
    match what {
        "sign-out" => Role::Viewer,
        "drop" | "drop-group" => Role::Admin,
        _ => Role::Operator,
    }
}

/// True for counts of dead letters by what viewers see of them anyway. A predicate on records would
/// answer questions about payloads, one bit at a time.
fn is_summary(uri: &Uri) -> bool {
    let Ok(Query(params)) = Query::<Vec<(String, String)>>::try_from_uri(uri) else { return false };
    let is_plain = |name: &str| ["summary", "pipeline", "reason", "since", "all"].contains(&name);
    params.iter().all(|(name, _)| is_plain(name))
        && params.iter().any(|(name, value)| name == "summary" && value == "true")
}

/// Who changes something, from where, and through which door.
#[derive(Clone, Debug)]
pub(crate) struct Actor {
    pub by: String,
    pub from: Option<IpAddr>,
    pub via: Door,
    /// Whom to tell where what they do cannot be noted.
    pub loss: NoteLoss,
}

impl Actor {
    pub fn of(visitor: &Visitor, extensions: &Extensions, via: Door) -> Self {
        let connection = extensions.get::<ConnectInfo<Connection>>();
        let from = connection.and_then(|ConnectInfo(connection)| connection.peer());
        let loss = extensions.get::<NoteLoss>().cloned().unwrap_or_default();
        Actor { by: visitor.name.clone(), from, via, loss }
    }
}

/// Of a request to the API.
impl<S: Send + Sync> FromRequestParts<S> for Actor {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let visitor = Visitor::from_request_parts(parts, state).await?;
        Ok(Actor::of(&visitor, &parts.extensions, Door::Api))
    }
}

/// Whom the guard has let in. Where it has let in nobody, nobody is asked for.
impl<S: Send + Sync> FromRequestParts<S> for Visitor {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Visitor>().cloned().ok_or_else(nobody)
    }
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
            ("GET", "/api/v1/dead-letters?pipeline=a%20b&summary=true", Role::Viewer),
            ("GET", "/api/v1/dead-letters?brief=true", Role::Operator),
            ("GET", "/api/v1/dead-letters?summary=true&where=.card==1", Role::Operator),
            ("GET", "/api/v1/dead-letters?summary=true&%77here=.card==1", Role::Operator),
            ("GET", "/api/v1/dead-letters?brief=summary=true", Role::Operator),
            ("GET", "/api/v1/dead-letters/", Role::Operator),
            ("GET", "/api/v1/topics/orders/records", Role::Operator),
            ("GET", "/api/v1/trace?id=k", Role::Operator),
            ("GET", "/groups/chat/k/drop", Role::Admin),
            ("POST", "/act/pause", Role::Operator),
            ("POST", "/act/drop", Role::Admin),
            ("POST", "/act/dro%70", Role::Admin),
            ("POST", "/act/%64rop-group", Role::Admin),
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
    fn who_signs_in_often_pushes_out_nobody_else() {
        struct Nobody;
        impl Gatekeeper for Nobody {
            fn admit<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Visitor, Refusal>> {
                Box::pin(std::future::pending())
            }
        }
        let access = Access::new(Box::new(Nobody), String::new());
        let named = |name: &str| Visitor { name: name.to_owned(), ..Visitor::local() };
        let quiet = access.begin(named("quiet"), Timestamp(0));
        let all: Vec<String> = (0..60).map(|_| access.begin(named("busy"), Timestamp(0))).collect();
        assert!(access.is_known(&quiet));
        assert_eq!(all.iter().filter(|session| access.is_known(session)).count(), 50);
        assert!(all.last().is_some_and(|newest| access.is_known(newest)));
    }

    #[test]
    fn a_bearer_is_read_and_nothing_else() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer  abc "), Some("abc"));
        assert_eq!((bearer("Basic abc"), bearer("abc")), (None, None));
        assert!(is_same("a", "a") && !is_same("a", "b"));
    }
}
