//! deliver: from events to destinations, by the table of moves.
//!
//! | fault | attempts left | attempts used up |
//! |---|---|---|
//! | Wait | again, with backoff | the gate closes; never a dead letter |
//! | Retry | again, with backoff | if others get through: split down to single records, and what fails again and again between others' successes is set aside (`suspect.rs`); otherwise the gate closes, and a person may decide (`decide.rs`) |
//! | SetAside | – | dead letter at once; a batch is split until the record is found |
//! | Fix | – | the pipeline stops and says what to do |
//!
//! Deliveries to topics of the log are not calls: they become part of the transaction that ends
//! the record (see `ledger.rs`).

mod decide;
mod gate;
mod leases;
mod messages;
mod settle;
mod suspect;
mod witness;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use potok_core::{Clock, Fault, Move, Sink, SinkLimits};
use tracing::Span;

use crate::lane::{Cycle, Lane};
use crate::plan::{DeliverPlan, Target};
use crate::status::DestinationStatus;
use crate::work::Stop;
pub(crate) use decide::Decisions;
pub use decide::UndecidedRecord;
pub(crate) use gate::Gate;
pub(crate) use leases::may_call;
#[allow(unused_imports, reason = "only a planted bug asks for it")]
pub(crate) use messages::counted_name;
pub(crate) use messages::{ID_HEADER, address};

/// How long a probe may take.
const PROBE_MAX: Duration = Duration::from_secs(10);

/// A deliver entry of a running pipeline.
pub(crate) struct Destination {
    pub label: String,
    /// `None` for topics of the log, which are written with the ledger.
    pub sink: Option<Arc<dyn Sink>>,
    pub limits: SinkLimits,
    pub gate: Arc<Gate>,
    /// It has the records of one shard: whatever is wrong with it, the others go on.
    pub apart: bool,
    /// Which one.
    pub shard: Option<u32>,
    /// It is of a shard that is not counted any more: nobody asks for it before something is there
    /// that was sealed for it.
    pub on_demand: bool,
    /// What is said about it names it and its pipeline.
    pub span: Span,
}

impl Destination {
    /// `shards` is how many there are, `pipeline` the span of its pipeline.
    pub fn new(deliver: &DeliverPlan, shards: Option<u32>, pipeline: &Span) -> Self {
        let (label, shard) = (deliver.label.clone(), deliver.shard);
        let sink = match &deliver.target {
            Target::Sink(sink) => Some(sink.clone()),
            Target::Topic(_) => None,
        };
        let limits = sink.as_ref().map(|sink| sink.limits()).unwrap_or_default();
        let span = tracing::error_span!(parent: pipeline, "deliver", destination = %label);
        let gate = Arc::new(Gate::new(span.clone()));
        let on_demand = shard.zip(shards).is_some_and(|(shard, shards)| shard >= shards);
        Destination { label, sink, limits, gate, apart: shard.is_some(), shard, on_demand, span }
    }

    /// How it stands, if it lies outside the log.
    pub fn status(&self) -> Option<DestinationStatus> {
        let gate = self.gate.status();
        self.sink.as_ref().map(|_| DestinationStatus {
            destination: self.label.clone(),
            up: gate.state == "open",
            gate,
            delivered: self.gate.delivered(),
            calls: self.gate.calls(),
            failed_calls: self.gate.failed_calls(),
            busy: self.gate.busy(),
        })
    }

    /// True once it has been prepared, or nobody needs it.
    pub fn is_ready(&self) -> bool {
        self.gate.is_ready() || (self.on_demand && !self.gate.is_wanted())
    }

    /// Prepares the destination of a run that begins, and later asks it behind a closed gate
    /// whether it is back, for ever. Ends only with a fault that somebody must fix.
    pub async fn watch(&self, probe_every: Duration, clock: &dyn Clock) -> Result<(), Fault> {
        let Some(sink) = &self.sink else {
            self.gate.open();
            return std::future::pending().await;
        };
        if self.on_demand {
            self.gate.wanted().await;
        }
        loop {
            self.gate.closed().await;
            let prepared = self.gate.is_ready();
            if prepared {
                self.gate.pause(probe_every).await;
            }
            let ask = async {
                if prepared {
                    sink.probe().await?;
                }
                sink.prepare().await
            };
            match tokio::time::timeout(PROBE_MAX, ask).await {
                // Nothing has failed there yet: no trial needed.
                Ok(Ok(())) if !prepared => self.gate.open(),
                Ok(Ok(())) => {
                    self.gate.half_open();
                    self.gate.tried().await;
                }
                Ok(Err(fault)) if fault.next == Move::Fix && !self.apart => return Err(fault),
                Ok(Err(fault)) => self.gate.close(&fault, clock.now()),
                Err(_) => self.gate.close(&Fault::wait("the probe got no answer"), clock.now()),
            }
            if !self.gate.is_ready() {
                self.gate.pause(probe_every).await;
            }
        }
    }
}

impl Lane {
    /// Takes the records of the cycle to the deliver entries, one entry after another.
    pub(crate) async fn deliver(&mut self, cycle: &mut Cycle) -> Result<(), Stop> {
        for index in 0..self.plan.delivers.len() {
            self.deliver_items(cycle, 0, index).await?;
        }
        Ok(())
    }

    /// Waits, unless asked to stop.
    pub(crate) async fn wait(&mut self, duration: Duration) -> Result<(), Stop> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        tokio::select! {
            biased;
            () = self.stopping.wait_for(|stopping| stopping) => Err(Stop::Asked),
            () = tokio::time::sleep(duration) => Ok(()),
        }
    }
}
