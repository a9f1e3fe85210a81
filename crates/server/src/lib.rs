//! The admin API: health, metrics, and everything the command line asks of a process.
//!
//! It promises: a request is answered from the log and the engine as they are now, an append is
//! durable before its answer, every error is JSON of one shape ([`error`]), and nothing but
//! programs on this machine, or those who show an access token, get an answer ([`guard`]). The command line calls the same router
//! inside its own process when no other process owns the data folder, so there is one code path.
//!
//! People see the same on the pages of [`dashboard`], which call the functions behind the API.
//!
//! Deliberately absent: TLS, which belongs in front of it; and who issues tokens ([`Gatekeeper`]).

mod access;
mod append;
mod audit;
mod dashboard;
mod decisions;
mod error;
mod files;
mod frame;
mod groups;
mod guard;
mod health;
mod http;
mod jobs;
mod letters;
mod line;
mod metrics;
mod outbox;
mod patience;
mod pipelines;
mod problems;
mod rates;
mod read;
mod request;
mod sampler;
mod since;
mod trace;
mod tracked;
mod workers;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use axum::{Extension, Router};
use potok_core::Fault;
use potok_flow::Engine;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Semaphore, watch};
use tokio_util::task::AbortOnDropHandle;

use files::PipelineFiles;

pub use access::{Gatekeeper, Refusal, Role, Visitor};
pub use error::ApiError;
pub use frame::{FRAME_TYPE, push_record};
pub use http::{HttpAuth, HttpLimits, HttpSource, HttpSourceCounts, HttpSources, serve_http};
pub use line::LINES_TYPE;
pub use since::parse_since;

/// Bytes of request bodies held at once; further appends wait, unread, until there is room.
const BODIES_BYTES_MAX: usize = 256 << 20;

/// Bytes of headers of a request: commands name many dead letters in an address.
const HEADER_BYTES_MAX: usize = 256 << 10;
/// How long a replay or drop that is to stop may take for what it has in hand.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Who answers: lets a client check that it talks to the owner of its data folder.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Identity {
    /// Version of potok.
    pub version: &'static str,
    /// The data folder, as an absolute path.
    pub data_dir: String,
    /// Process id.
    pub pid: u32,
    /// Chosen anew at each start, also written into `admin.json`.
    pub nonce: String,
    /// Where it listens; `None` when called inside the process, which needs no guard.
    pub address: Option<SocketAddr>,
}

/// What the handlers share. Cheap to clone.
#[derive(Clone)]
pub struct Admin {
    inner: Arc<AdminInner>,
}

struct AdminInner {
    engine: Engine,
    identity: Identity,
    closing: watch::Sender<bool>,
    /// Replays and drops end; nothing new of the kind begins.
    stopping: watch::Sender<bool>,
    bodies: Semaphore,
    /// Held while dead letters are replayed or dropped.
    letters: Arc<Mutex<()>>,
    files: PipelineFiles,
    http: OnceLock<(SocketAddr, HttpSources)>,
    /// What is asked of those who come from elsewhere; nothing on loopback.
    access: OnceLock<access::Access>,
    sampler: sampler::Sampler,
    book: letters::book::Book,
    notes: letters::notes::NotesByTopic,
    jobs: jobs::Jobs,
    dashboard: dashboard::Shared,
}

impl Admin {
    /// Answers for `engine`.
    pub fn new(engine: Engine, identity: Identity) -> Self {
        Self::of_files(engine, identity, [])
    }

    /// The same for pipelines that were started from these files.
    pub fn of_files(
        engine: Engine,
        identity: Identity,
        files: impl IntoIterator<Item = (String, Vec<PathBuf>)>,
    ) -> Self {
        let bodies = Semaphore::new(BODIES_BYTES_MAX / append::BODY_UNIT);
        let inner = AdminInner {
            engine,
            identity,
            closing: watch::Sender::new(false),
            stopping: watch::Sender::new(false),
            bodies,
            letters: Arc::default(),
            files: PipelineFiles::new(files),
            http: OnceLock::new(),
            access: OnceLock::new(),
            sampler: sampler::Sampler::default(),
            book: letters::book::Book::default(),
            notes: letters::notes::NotesByTopic::default(),
            jobs: jobs::Jobs::default(),
            dashboard: dashboard::Shared::default(),
        };
        Admin { inner: Arc::new(inner) }
    }

    /// Tells of these HTTP sources as well: where they listen, and what comes through them.
    pub fn serves(&self, address: SocketAddr, sources: HttpSources) {
        // Set once, when the process starts.
        let _ = self.inner.http.set((address, sources));
    }

    /// From now on everybody must show a token that the gatekeeper takes, or this key.
    pub fn demand_tokens(&self, gatekeeper: Box<dyn Gatekeeper>, key: String) {
        // Set once, before anything is served.
        let _ = self.inner.access.set(access::Access::new(gatekeeper, key));
    }

    pub(crate) fn access(&self) -> Option<&access::Access> {
        self.inner.access.get()
    }

    pub(crate) fn http(&self) -> Option<&(SocketAddr, HttpSources)> {
        self.inner.http.get()
    }

    /// Ends streams that follow a topic, so that the server can finish.
    pub fn close(&self) {
        self.inner.closing.send_replace(true);
    }

    /// Ends a replay or drop of dead letters that is under way: it stops after what it has in hand, and
    /// how many it handled is noted. To be called while the log still takes notes.
    pub async fn stop_jobs(&self) {
        self.inner.stopping.send_replace(true);
        // It has this until it is noted.
        if tokio::time::timeout(STOP_MAX, self.inner.letters.lock()).await.is_err() {
            tracing::warn!("a replay or drop of dead letters did not stop in time");
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.inner.stopping.borrow()
    }

    /// Waits until [`Admin::stop_jobs`].
    pub(crate) async fn stopping(&self) {
        let mut stopping = self.inner.stopping.subscribe();
        // An error means that the server is gone, which is as stopped as can be.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    }

    fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    fn bodies(&self) -> &Semaphore {
        &self.inner.bodies
    }

    /// Waits until [`Admin::close`].
    fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut closing = self.inner.closing.subscribe();
        async move {
            // An error means that the server is gone, which is as closed as can be.
            let _ = closing.wait_for(|closing| *closing).await;
        }
    }
}

/// Every route.
pub fn router(admin: Admin) -> Router {
    let api = Router::new()
        .route("/info", get(pipelines::info))
        .route("/status", get(pipelines::status))
        .route("/pipelines/{pipeline}/pause", post(pipelines::pause))
        .route("/pipelines/{pipeline}/resume", post(pipelines::resume))
        .route("/pipelines/{pipeline}/probe", post(pipelines::probe))
        .route("/pipelines/{pipeline}/set-aside", post(decisions::set_aside))
        .route("/problems", get(problems::list))
        .route("/rates", get(rates::rates))
        .route("/changes", get(rates::changes))
        .route("/audit", get(audit::list))
        .route("/jobs", get(jobs::list))
        .route("/jobs/{id}", get(jobs::show).delete(jobs::stop))
        .route("/groups", get(groups::list))
        .route("/pipelines/{pipeline}/groups/{id}/close", post(groups::close))
        .route("/pipelines/{pipeline}/groups/{id}/drop", post(groups::drop))
        .route("/consumer-groups", get(pipelines::consumer_groups))
        .route("/consumer-groups/{group}/delete", post(pipelines::delete_consumer_group))
        .route("/topics", get(pipelines::topics))
        .route("/topics/{topic}/records", get(read::records).post(append::records))
        .route("/files", get(tracked::files))
        .route("/files/{name}/retry", post(tracked::retry))
        .route("/stuck", get(tracked::stuck))
        .route("/pipeline/queues/{stage}", get(workers::queue))
        .route("/pipeline/files/{filename}", get(workers::file))
        .route("/pipeline/metrics/summary", get(workers::summary))
        .route("/pipeline/stuck", get(workers::stuck))
        .route("/pipeline/{stage}/{step}", post(workers::refuse))
        .route("/outbox", get(outbox::list))
        .route("/outbox/retry", post(outbox::retry))
        .route("/outbox/skip", post(outbox::skip))
        .route("/trace", get(trace::trace))
        .route("/dead-letters", get(letters::list))
        .route("/dead-letters/replay", post(letters::replay))
        .route("/dead-letters/drop", post(letters::drop))
        .fallback(error::not_found)
        .method_not_allowed_fallback(error::not_allowed);
    Router::new()
        .route("/live", get(health::live))
        .route("/ready", get(health::ready))
        .route("/metrics", get(metrics::metrics))
        .nest("/api/v1", api)
        .merge(dashboard::routes())
        .fallback(error::not_found)
        .method_not_allowed_fallback(error::not_allowed)
        .layer(axum::middleware::from_fn_with_state(admin.clone(), guard::guard))
        .layer(axum::middleware::map_response(guard::sealed))
        .with_state(admin)
}

/// Listens for the admin API. Addresses that others can reach are taken only where tokens are asked
/// for ([`Admin::demand_tokens`]). Port 0 picks one.
pub async fn bind(address: SocketAddr, demands_tokens: bool) -> Result<TcpListener, Fault> {
    if !address.ip().is_loopback() && !demands_tokens {
        return Err(Fault::fix(format!("the admin address {address} is not a loopback address"))
            .code("P0506")
            .hint(
                "others could reach it: set `auth` with issuer and audience, or use 127.0.0.1:7600",
            ));
    }
    TcpListener::bind(address).await.map_err(|error| {
        Fault::fix(format!("the admin address {address} cannot be listened on"))
            .because(error)
            .code("P0507")
            .hint("choose another with --admin, or `--admin 127.0.0.1:0` to have one picked")
    })
}

/// Serves until [`Admin::close`], then finishes the requests under way.
pub async fn serve(listener: TcpListener, admin: Admin) -> std::io::Result<()> {
    let closing = admin.inner.closing.subscribe();
    let _sampling = AbortOnDropHandle::new(tokio::spawn(admin.clone().sample()));
    let router = router(admin);
    let limits = HttpLimits { header_bytes: HEADER_BYTES_MAX, ..HttpLimits::default() };
    http::serve_each(listener, limits, closing, move |stream, peer| {
        let (stream, connection) = patience::PatientStream::of(stream, peer);
        (stream, router.clone().layer(Extension(ConnectInfo(connection))))
    })
    .await
}

/// A name that nobody guesses.
pub(crate) fn random_name() -> String {
    use ring::rand::SecureRandom;
    let mut bytes = [0_u8; 12];
    // The system's generator does not fail once it has begun; zeros would only make names alike.
    let _ = ring::rand::SystemRandom::new().fill(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
