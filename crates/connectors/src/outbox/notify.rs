//! Hears of new rows at once, on PostgreSQL, where the trigger of `potok outbox ddl --notify` is there.
//!
//! Only a hint: the table is polled anyway, so a notification that is lost costs a pause and no row. A
//! task of its own listens, on a session of its own, while this process owns the table. It asks the
//! session for a sign of life all the time: a session that is gone without a word is opened again, and
//! the server closes that of a process which is frozen, because notifications that nobody fetches would
//! fill the queue of the whole cluster.

use std::sync::{Arc, Weak};
use std::time::Duration;

use potok_core::Fault;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, Error, Executor as _, Row as _};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{Instrument, info, warn};

use super::ddl::{CHANNEL, TRIGGER};
use super::relay::Relay;
use super::session::OutboxSession;
use super::shape::Shape;
use super::tenure::Tenure;
use super::{Outbox, OutboxServer, SessionPurpose};

/// How often the trigger is looked for where there is none.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// The wait after a session was lost.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Outbox {
    /// Listens for as long as the relay is there.
    pub(super) fn spawn_listener(&self, relay: &Arc<Relay>, shape: &Arc<Shape>) {
        #[allow(irrefutable_let_patterns, reason = "a build may have no other")]
        let OutboxServer::Postgres(options) = &self.server else { return };
        let listener = NotifyListener {
            label: self.label.clone(),
            relay: Arc::downgrade(relay),
            tenure: relay.tenure.clone(),
            options: options.as_ref().clone(),
            shape: shape.clone(),
            teller: self.session(SessionPurpose::Look),
            lease: self.settings.lease,
            told: None,
        };
        tokio::spawn(listener.run().in_current_span());
    }
}

struct NotifyListener {
    label: String,
    relay: Weak<Relay>,
    tenure: watch::Receiver<Tenure>,
    options: PgConnectOptions,
    shape: Arc<Shape>,
    /// Tries whether notifications arrive.
    teller: Arc<dyn OutboxSession>,
    lease: Duration,
    /// What was said last, which is not said again.
    told: Option<&'static str>,
}

impl NotifyListener {
    async fn run(mut self) {
        loop {
            let Some(relay) = self.relay.upgrade() else { return };
            let owns = relay.held().is_some();
            drop(relay);
            let wait = match owns {
                // Whoever stands by has no use for it.
                false => LOOK_EVERY,
                true => match self.connect().await {
                    Ok(Some(session)) => {
                        self.hear(session).await;
                        AGAIN_AFTER
                    }
                    Ok(None) => LOOK_EVERY,
                    Err(error) => {
                        self.tell("cannot listen for notifications, so new rows are polled", error);
                        AGAIN_AFTER
                    }
                },
            };
            let until = Instant::now() + wait;
            loop {
                tokio::select! {
                    // The lease came or went, or nobody keeps it any more.
                    changed = self.tenure.changed() => match changed {
                        Err(_) => return,
                        Ok(()) if owns => {}
                        Ok(()) => break,
                    },
                    () = sleep_until(until) => break,
                }
            }
        }
    }

    fn tell(&mut self, what: &'static str, why: impl std::fmt::Display) {
        if self.told != Some(what) {
            self.told = Some(what);
            warn!("{}: {what}: {why}", self.label);
        }
    }

    /// A session that listens; `None` where there is no trigger.
    async fn connect(&self) -> Result<Option<PgListener>, Error> {
        let (name, lease) = (self.options.get_application_name(), self.lease.as_millis());
        let options = match name {
            Some(name) => self.options.clone().application_name(&format!("{name} listener")),
            None => self.options.clone().application_name("potok listener"),
        };
        let opening = async {
            let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await?;
            let mut session = PgListener::connect_with(&pool).await?;
            session.eager_reconnect(false);
            let trigger = format!(
                "SELECT count(*)::int8 FROM pg_trigger WHERE tgrelid = to_regclass({}) \
                 AND tgname = '{TRIGGER}' AND tgenabled <> 'D'",
                self.shape.literal(&self.shape.outbox())
            );
            let found = session.fetch_one(AssertSqlSafe(trigger)).await?;
            if found.try_get::<i64, _>(0)? == 0 {
                return Ok(None);
            }
            // Servers before 14 do not know it.
            let idle = format!(
                "SELECT set_config('idle_session_timeout', '{lease}', false) \
                 WHERE current_setting('idle_session_timeout', true) IS NOT NULL"
            );
            session.execute(AssertSqlSafe(idle)).await?;
            session.listen(CHANNEL).await?;
            Ok(Some(session))
        };
        timeout(self.lease, opening).await.unwrap_or(Err(Error::PoolTimedOut))
    }

    /// Wakes the relay for each notification, until the session or the lease is lost.
    async fn hear(&mut self, mut session: PgListener) {
        let own = format!("{} by process {}", self.shape.source(), std::process::id());
        let Some(relay) = self.relay.upgrade() else { return };
        info!("{}: listens for notifications of new rows", self.label);
        relay.counters.set_listening(true);
        // What was written before this is not told of.
        relay.wake.notify_one();
        drop(relay);
        let mut is_proved = false;
        if let Err(fault) = self.try_out(&own).await {
            self.tell("cannot try whether notifications arrive", fault);
        }
        let mut ask_at = Instant::now() + self.lease / 3;
        loop {
            let heard = tokio::select! {
                heard = session.try_recv() => Some(heard),
                () = sleep_until(ask_at) => None,
            };
            // Nobody holds on to the relay meanwhile: when it is gone, the lease is let go.
            let is_alive = match heard {
                Some(_) => true,
                None => {
                    ask_at = Instant::now() + self.lease / 3;
                    let asked = timeout(self.lease / 3, session.execute("SELECT 1")).await;
                    matches!(asked, Ok(Ok(_)))
                }
            };
            let Some(relay) = self.relay.upgrade() else { return };
            match heard {
                _ if !is_alive || relay.held().is_none() => {
                    relay.counters.set_listening(false);
                    return;
                }
                Some(Ok(Some(told))) if told.payload() == own => is_proved = true,
                Some(Ok(Some(told))) if told.payload() == self.shape.source() => {
                    is_proved = true;
                    relay.wake.notify_one();
                }
                Some(Ok(Some(_))) => {}
                Some(Ok(None)) | Some(Err(_)) => {
                    relay.counters.set_listening(false);
                    let why = "the session was lost";
                    self.tell("new rows are polled until it listens again", why);
                    return;
                }
                None if !is_proved => {
                    let why = "a pooler between potok and the server? Name the server itself";
                    self.tell("no notifications arrive, so new rows are polled", why);
                    relay.counters.set_listening(false);
                }
                None => self.told = None,
            }
            if is_proved {
                relay.counters.set_listening(true);
            }
        }
    }

    async fn try_out(&self, own: &str) -> Result<(), Fault> {
        let sql = format!("SELECT pg_notify('{CHANNEL}', {})", self.shape.literal(own));
        self.teller.query(sql).await.map(drop)
    }
}
