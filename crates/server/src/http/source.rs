//! HTTP sources: a POST appends to a topic and is answered when that is durable.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use potok_core::{Clock, Fault, Log, Output};
use potok_expr::Template;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::auth::{self, HttpAuth};
use super::body::{BYTES_MAX, BadBody, unpack};
use super::each::EachStep;
use super::records::{COST_MAX, RecordCount};
use super::requests::{AcceptedRequest, Requests};
use crate::{ApiError, error, request};

/// Where other programs send records of a pipeline.
#[derive(Clone)]
pub struct HttpSource {
    /// Whose records these are.
    pub pipeline: String,
    /// The path of the address, such as `/events`.
    pub path: String,
    /// The topic they are appended to.
    pub topic: Arc<str>,
    /// The key of each record; without it records have none.
    pub key: Option<Template>,
    /// The arrays whose elements are records, each with what lies around it; empty where an object is one.
    pub each: Vec<EachStep>,
    /// How senders prove who they are; without it everybody may send.
    pub auth: Option<HttpAuth>,
    /// What a sender has to know that asks by GET whether this is the right address; without it nobody is
    /// answered.
    pub verify: Option<String>,
}

/// Bytes of bodies in memory at once, as they came and unpacked.
const BODIES_BYTES_MAX: usize = 128 << 20;
/// What the records made of them may cost at once. Those of one body always fit.
const RECORDS_COST_MAX: usize = 144 << 20;
const _: () = assert!(COST_MAX < RECORDS_COST_MAX);
/// Both budgets are counted in units of this size.
const ROOM_UNIT: usize = 4 << 10;
/// How long a request waits for room before its sender is asked to come back.
const ROOM_WAIT: Duration = Duration::from_secs(5);
/// A body that has not arrived by then gives its room back.
const ARRIVAL_MAX: Duration = Duration::from_secs(30);
/// How long a sender is kept waiting for the log.
const DURABLE_MAX: Duration = Duration::from_secs(30);
/// When to come back, in seconds.
const COME_BACK: &str = "1";
/// Characters of an `Idempotency-Key`.
const KEY_CHARS_MAX: usize = 255;

/// All HTTP sources of a process. Cheap to clone.
#[derive(Clone)]
pub struct HttpSources {
    inner: Arc<SourcesInner>,
}

struct SourcesInner {
    log: Arc<dyn Log>,
    clock: Arc<dyn Clock>,
    sources: Vec<Arc<Route>>,
    requests: Requests,
    bodies: Arc<Semaphore>,
    /// Who has room for a body may wait for room here, and nobody the other way round: so nobody waits in a
    /// circle.
    records: Arc<Semaphore>,
}

struct Route {
    source: HttpSource,
    /// Requests by their status.
    answers: [AtomicU64; STATUSES.len()],
    records: AtomicU64,
}

/// Every status that a source answers with.
const STATUSES: [StatusCode; 10] = [
    StatusCode::OK,
    StatusCode::BAD_REQUEST,
    StatusCode::UNAUTHORIZED,
    StatusCode::FORBIDDEN,
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::UNPROCESSABLE_ENTITY,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::INTERNAL_SERVER_ERROR,
    StatusCode::SERVICE_UNAVAILABLE,
];

/// What has come through one source since the process started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSourceCounts {
    /// Whose it is.
    pub pipeline: String,
    pub path: String,
    /// Records that were taken.
    pub records: u64,
    /// Requests by their status, as far as there were any.
    pub requests: BTreeMap<u16, u64>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct AcceptAnswer {
    /// How many records are durable.
    accepted: usize,
    /// They were already there: this is a repeat under the same `Idempotency-Key`.
    repeated: bool,
}

impl HttpSources {
    /// Sources that append to `log`. Reads which requests were taken before.
    pub async fn open(
        log: Arc<dyn Log>,
        clock: Arc<dyn Clock>,
        sources: Vec<HttpSource>,
    ) -> Result<Self, Fault> {
        let requests = Requests::read(&*log, clock.now()).await?;
        let route =
            |source| Arc::new(Route { source, answers: Default::default(), records: 0.into() });
        let sources = sources.into_iter().map(route).collect();
        let room = |bytes: usize| Arc::new(Semaphore::new(bytes / ROOM_UNIT));
        let (bodies, records) = (room(BODIES_BYTES_MAX), room(RECORDS_COST_MAX));
        let inner = SourcesInner { log, clock, sources, requests, bodies, records };
        Ok(HttpSources { inner: Arc::new(inner) })
    }

    /// Their routes. Paths come from files: they are compared as they are, none is a pattern.
    pub fn router(&self) -> Router {
        Router::new().fallback(route).with_state(self.clone())
    }

    /// What has come through each.
    pub fn counts(&self) -> Vec<HttpSourceCounts> {
        let counts = |route: &Arc<Route>| {
            let answers = STATUSES.iter().zip(&route.answers);
            let answers = answers.map(|(status, n)| (status.as_u16(), n.load(Ordering::Relaxed)));
            HttpSourceCounts {
                pipeline: route.source.pipeline.clone(),
                path: route.source.path.clone(),
                records: route.records.load(Ordering::Relaxed),
                requests: answers.filter(|(_, count)| *count > 0).collect(),
            }
        };
        self.inner.sources.iter().map(counts).collect()
    }
}

async fn route(
    State(sources): State<HttpSources>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let is_it = |route: &&Arc<Route>| route.source.path == uri.path();
    let Some(route) = sources.inner.sources.iter().find(is_it).cloned() else {
        return error::not_found(uri).await.into_response();
    };
    if let (&Method::GET, Some(token)) = (&method, &route.source.verify) {
        return verified(token, &uri);
    }
    if method != Method::POST {
        return error::not_allowed(method, uri).await.into_response();
    }
    take(sources.inner, route, &headers, body).await
}

/// The answer to whoever asks whether this is the right address.
fn verified(token: &str, uri: &Uri) -> Response {
    match auth::challenge(token, uri) {
        // Text, whatever it looks like.
        Some(challenge) => ([(X_CONTENT_TYPE_OPTIONS, "nosniff")], challenge).into_response(),
        None => {
            let what = "the request does not prove who sent it";
            ApiError::new(StatusCode::FORBIDDEN, "P0541", what)
                .hint("send hub.mode=subscribe, hub.challenge and the token that `verify` has")
                .into_response()
        }
    }
}

async fn take(
    inner: Arc<SourcesInner>,
    route: Arc<Route>,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    let answer = match inner.take(route.clone(), headers, body).await {
        Ok(accepted) => {
            if !accepted.repeated {
                route.records.fetch_add(accepted.accepted as u64, Ordering::Relaxed);
            }
            Json(accepted).into_response()
        }
        Err(error) => {
            let come_back = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
            let come_back = come_back.contains(&error.status);
            let mut response = error.into_response();
            if come_back {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(COME_BACK));
            }
            response
        }
    };
    if let Some(at) = STATUSES.iter().position(|status| *status == answer.status())
        && let Some(counter) = route.answers.get(at)
    {
        counter.fetch_add(1, Ordering::Relaxed);
    }
    answer
}

impl SourcesInner {
    async fn take(
        self: Arc<Self>,
        route: Arc<Route>,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<AcceptAnswer, ApiError> {
        let source = &route.source;
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let other_site = matches!(text("sec-fetch-site"), Some("cross-site" | "same-site"));
        if source.auth.is_none() && other_site {
            let what = "a request from a page of another site is refused";
            return Err(ApiError::new(StatusCode::FORBIDDEN, "P0541", what)
                .hint("set `auth` in the source to take requests from pages"));
        }
        let idempotency_key = match text("idempotency-key") {
            Some(key) if key.is_empty() || key.len() > KEY_CHARS_MAX => {
                let what = format!("an Idempotency-Key has 1 to {KEY_CHARS_MAX} characters");
                return Err(ApiError::new(StatusCode::BAD_REQUEST, "P0540", what));
            }
            key => key.map(str::to_owned),
        };
        if source.auth.as_ref().is_some_and(|auth| auth.refuses_unseen(headers)) {
            return Err(unproven());
        }
        let (body, mut room) = self.body(headers, body).await?;
        if source.auth.as_ref().is_some_and(|auth| !auth.accepts(headers, &body)) {
            return Err(unproven());
        }
        let body = unpack(text(CONTENT_ENCODING.as_str()), body).map_err(refused)?;
        give_back(&mut room, body.len());
        let count = RecordCount::of(&body, &source.each).map_err(refused)?;
        let records_room = room_of(&self.records, count.cost()).await?;
        let outputs = count.outputs(&body, source).map_err(refused)?;
        // Goes on when the sender hangs up: what was begun is finished and remembered. What waits
        // for the log keeps its room, so that senders who come again cannot fill the memory.
        let taking = tokio::spawn(async move {
            let _room = (room, records_room);
            self.append(&route.source, idempotency_key, &body, outputs).await
        });
        match tokio::time::timeout(DURABLE_MAX, taking).await {
            Ok(Ok(taken)) => taken,
            Ok(Err(panicked)) => {
                let what = "taking the records failed";
                Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "P0544", what)
                    .because(panicked))
            }
            Err(_) => {
                let what = "the log has not taken the records yet, and still may";
                Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "P0544", what)
                    .hint("send them again, with the same Idempotency-Key to have them once"))
            }
        }
    }

    async fn body(
        &self,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<(Bytes, OwnedSemaphorePermit), ApiError> {
        let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        let length = length.and_then(|text| text.parse::<usize>().ok()).unwrap_or(BYTES_MAX);
        if length > BYTES_MAX {
            return Err(refused(BadBody::too_large()));
        }
        // How large it is unpacked nobody knows yet.
        let packed = headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity");
        let unpacked = if packed { BYTES_MAX } else { 0 };
        let room = room_of(&self.bodies, length + unpacked).await?;
        let arrival = tokio::time::timeout(ARRIVAL_MAX, request::whole(body, BYTES_MAX));
        let body = arrival.await.map_err(|_| {
            let what = "the body of the request did not arrive in time";
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "P0540", what)
        })?;
        let body = body.map_err(|error| match error.status {
            StatusCode::PAYLOAD_TOO_LARGE => refused(BadBody::too_large()),
            _ => error,
        })?;
        Ok((body, room))
    }

    /// Appends what a request brought, once for each `Idempotency-Key`. A repeat has the same body, however it
    /// was packed this time.
    async fn append(
        &self,
        source: &HttpSource,
        idempotency_key: Option<String>,
        body: &Bytes,
        mut outputs: Vec<Output>,
    ) -> Result<AcceptAnswer, ApiError> {
        let accepted = outputs.len();
        let Some(key) = idempotency_key else {
            self.append_all(&outputs).await?;
            return Ok(AcceptAnswer { accepted, repeated: false });
        };
        let now = self.clock.now();
        self.requests.forget_old(now);
        let turn = self.requests.turn(&source.path, &key, now);
        let mut known = turn.lock().await;
        let hash = Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
        let request =
            AcceptedRequest { path: source.path.clone(), key, body: hash, records: accepted };
        if let Some(known) = &*known {
            if known.body == request.body {
                return Ok(AcceptAnswer { accepted: known.records, repeated: true });
            }
            let what = format!("another body was taken under the Idempotency-Key `{}`", known.key);
            return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "P0543", what)
                .hint("a key belongs to one request: use a new one for other records"));
        }
        if !self.log.is_shared() {
            outputs.push(request.output()?);
        }
        if let Err(error) = self.append_all(&outputs).await {
            drop(known);
            drop(turn);
            self.requests.forget(&request.path, &request.key);
            return Err(error);
        }
        *known = Some(request);
        Ok(AcceptAnswer { accepted, repeated: false })
    }

    async fn append_all(&self, outputs: &[Output]) -> Result<(), ApiError> {
        if outputs.is_empty() {
            return Ok(());
        }
        self.log.append(outputs).await.map(drop).map_err(|fault| {
            let status = ApiError::from(fault.clone()).status;
            let refused = status == StatusCode::PAYLOAD_TOO_LARGE;
            let status = if refused { status } else { StatusCode::SERVICE_UNAVAILABLE };
            let what = match self.log.is_shared() {
                // Each record is by itself there.
                true => "the log did not take all of the records, and may have taken some",
                false => "the log did not take the records",
            };
            let mut error = ApiError::new(status, "P0544", what);
            error.body.hint = fault.hint.as_ref().map(ToString::to_string);
            error.because(fault)
        })
    }
}

/// Room for so many bytes; who finds none is asked to come back.
async fn room_of(budget: &Arc<Semaphore>, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
    let room = budget.clone().acquire_many_owned(units(bytes));
    match tokio::time::timeout(ROOM_WAIT, room).await {
        Ok(Ok(room)) => Ok(room),
        _ => {
            let what = "too many requests are under way";
            Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "P0542", what))
        }
    }
}

/// What so many bytes take of a budget.
fn units(bytes: usize) -> u32 {
    u32::try_from(bytes / ROOM_UNIT + 1).unwrap_or(u32::MAX)
}

/// Gives back what is more than so many bytes take.
fn give_back(room: &mut OwnedSemaphorePermit, bytes: usize) {
    let needed = usize::try_from(units(bytes)).unwrap_or(usize::MAX);
    drop(room.split(room.num_permits().saturating_sub(needed)));
}

fn unproven() -> ApiError {
    let what = "the request does not prove who sent it";
    ApiError::new(StatusCode::UNAUTHORIZED, "P0541", what)
        .hint("send the secret or the signature that `auth` of the source asks for")
}

fn refused(bad: BadBody) -> ApiError {
    match bad {
        BadBody::TooMuch(what) => ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "P0505", what)
            .hint("send fewer records per request"),
        BadBody::Content(cause) => {
            let what = "the body cannot be read; nothing of it was taken";
            ApiError::new(StatusCode::BAD_REQUEST, "P0540", what)
                .because(cause)
                .hint("send an array of JSON objects, or objects one after another, such as one to a line")
        }
    }
}
