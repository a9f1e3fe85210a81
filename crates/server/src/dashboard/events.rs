//! `GET /events?view=…`: the parts of a page that have changed, once a second at most.
//!
//! A view is made once for all who look at it, and not again before twenty times the time that took,
//! so that viewers do not load the lanes. A client that does not read is cut, and with too many
//! streams a page reloads now and then instead.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use super::{Context, View, frame, text};
use crate::access::{Role, Visitor};
use crate::patience::Connection;
use crate::request::Params;
use crate::{Admin, ApiError};

/// Streams at once.
const STREAMS_MAX: usize = 64;
/// How long a client may take nothing.
const UNREAD_MAX: Duration = Duration::from_secs(10);
/// What is kept of a view is good for so long at least, and for so many times what it took.
const FRESH: Duration = Duration::from_millis(900);
const REST: u32 = 20;
/// Views that are kept though nobody may look at them any more.
const VIEWS_MAX: usize = 256;

/// The parts of a view as they were last made.
struct RenderedView {
    at: Instant,
    took: Duration,
    now: i64,
    time: String,
    problems: usize,
    parts: BTreeMap<&'static str, String>,
}

type ViewCache = Arc<tokio::sync::Mutex<Option<Arc<RenderedView>>>>;

/// All streams.
pub(super) struct Streams {
    room: Arc<Semaphore>,
    /// By view and by what the viewer may do.
    views: Mutex<HashMap<(String, Role), ViewCache>>,
}

impl Default for Streams {
    fn default() -> Self {
        Streams { room: Arc::new(Semaphore::new(STREAMS_MAX)), views: Mutex::default() }
    }
}

impl Streams {
    fn kept(&self, view: &str, role: Role) -> ViewCache {
        let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        if views.len() >= VIEWS_MAX {
            views.retain(|_, kept| Arc::strong_count(kept) > 1);
        }
        views.entry((view.to_owned(), role)).or_default().clone()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ViewQuery {
    view: String,
}

#[derive(Serialize)]
struct Update<'a> {
    now: i64,
    time: &'a str,
    problems: usize,
    parts: BTreeMap<&'static str, String>,
}

pub(super) async fn events(
    State(admin): State<Admin>,
    connection: Option<Extension<ConnectInfo<Connection>>>,
    visitor: Visitor,
    headers: HeaderMap,
    Params(wish): Params<ViewQuery>,
) -> Result<Response, ApiError> {
    if View::parse(&wish.view).is_none() {
        return Err(ApiError::usage(format!("`{}` is no page", wish.view)));
    }
    let streams = &admin.inner.dashboard.streams;
    let Ok(room) = streams.room.clone().try_acquire_owned() else {
        let what = format!("{STREAMS_MAX} pages are followed already");
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "P1503", what)
            .hint("close some, or reload now and then"));
    };
    if let Some(Extension(ConnectInfo(connection))) = connection {
        connection.limit_writes(UNREAD_MAX);
    }
    let (session, _) = admin.inner.dashboard.keys.session(&headers);
    let is_signed_in = admin.access().is_some() && !headers.contains_key(AUTHORIZATION);
    let stream = Stream {
        is_signed_in,
        ticks: admin.sampler().ticks(),
        kept: streams.kept(&wish.view, visitor.role),
        visitor,
        view: wish.view,
        session,
        sent: BTreeMap::new(),
        admin,
        _room: room,
    };
    let events = futures::stream::unfold(stream, |mut stream| async {
        let event = stream.next().await?;
        Some((Ok::<_, Infallible>(event), stream))
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(events)).into_response())
}

struct Stream {
    admin: Admin,
    visitor: Visitor,
    view: String,
    session: String,
    /// It is the session that let them in, so that it ends with it.
    is_signed_in: bool,
    kept: ViewCache,
    ticks: watch::Receiver<u64>,
    /// What the client has: the parts before they got their tokens.
    sent: BTreeMap<&'static str, String>,
    _room: OwnedSemaphorePermit,
}

impl Stream {
    /// The next event; `None` when the process stops.
    async fn next(&mut self) -> Option<Bytes> {
        tokio::select! {
            ticked = self.ticks.changed() => ticked.ok()?,
            () = self.admin.closed() => return None,
        }
        let rendered = tokio::select! {
            rendered = self.rendered() => rendered,
            () = self.admin.closed() => return None,
        };
        let now = self.admin.engine().clock().now();
        let access = self.admin.access().filter(|_| self.is_signed_in);
        if access.is_some_and(|access| !access.is_known(&self.session)) {
            return None;
        }
        if self.visitor.expires.is_some_and(|expires| expires <= now) {
            return None;
        }
        let keys = &self.admin.inner.dashboard.keys;
        let mut parts = BTreeMap::new();
        for (id, html) in &rendered.parts {
            if self.sent.get(id) != Some(html) {
                parts.insert(*id, keys.fill(html.clone(), &self.session));
                self.sent.insert(id, html.clone());
            }
        }
        let (time, problems) = (&rendered.time, rendered.problems);
        // Serialising strings and numbers does not fail.
        let json =
            serde_json::to_string(&Update { now: now.0.max(rendered.now), time, problems, parts });
        Some(format!("data: {}\n\n", json.unwrap_or_default()).into())
    }

    async fn rendered(&self) -> Arc<RenderedView> {
        let mut kept = self.kept.lock().await;
        let is_fresh =
            |known: &&Arc<RenderedView>| known.at.elapsed() < FRESH.max(known.took * REST);
        if let Some(known) = kept.as_ref().filter(is_fresh) {
            return known.clone();
        }
        let began = Instant::now();
        let context = {
            let visitor = Visitor { name: String::new(), ..self.visitor.clone() };
            Context::of(&self.admin, self.view.clone(), None, visitor).await
        };
        let page = match View::parse(&self.view) {
            Some(view) => view.render(&context).await,
            None => Err(ApiError::usage("there is no such page")),
        };
        let mut parts = BTreeMap::new();
        // A page that has become an error stays as it was; the next one may be good again.
        if let Ok(page) = page {
            let navigation = frame::navigation(&context, page.nav);
            let live = page.parts.into_iter().chain([navigation]).filter(|part| part.live);
            parts.extend(live.map(|part| (part.id, part.html.into_string())));
        }
        let now = context.snapshot.at;
        let rendered = Arc::new(RenderedView {
            at: Instant::now(),
            took: began.elapsed(),
            now: now.0,
            time: format!("{} UTC", text::time_of(&now.to_string(), now)),
            problems: context.problems.len(),
            parts,
        });
        *kept = Some(rendered.clone());
        rendered
    }
}
