//! A destination in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use potok_core::{Batch, DeliveryId, Fault, Message, Outcome, Receipt, Sink, SinkLimits};
use tokio::sync::watch;

use super::lock;

/// Takes everything once, by id. Clones are the same sink.
#[derive(Clone)]
pub struct MemorySink(Arc<SharedSink>);

struct SharedSink {
    keeps: bool,
    state: Mutex<SinkState>,
    /// How many were delivered, for those who wait.
    count: watch::Sender<u64>,
}

#[derive(Default)]
struct SinkState {
    taken: Vec<StreamOffsets>,
    delivered: Vec<Message>,
    outage: Option<Fault>,
}

/// A set of offsets, as blocks of 4,096 bits: one look per offset, whatever their order.
#[derive(Default)]
struct Offsets(BTreeMap<u64, [u64; 64]>);

impl Offsets {
    /// Adds an offset; false when it was there already.
    fn add(&mut self, offset: u64) -> bool {
        let words = self.0.entry(offset >> 12).or_insert([0; 64]);
        let Some(word) = words.get_mut((offset >> 6 & 63) as usize) else { return false };
        let before = *word;
        *word |= 1 << (offset & 63);
        *word != before
    }
}

/// The offsets taken of one stream of names. A sink sees few streams (a partition each), so they
/// are found by looking through them, the last one first.
struct StreamOffsets {
    id: DeliveryId,
    offsets: Offsets,
}

impl Default for MemorySink {
    fn default() -> Self {
        Self::new()
    }
}

impl MemorySink {
    /// Keeps what is delivered.
    pub fn new() -> Self {
        Self::build(true)
    }

    /// Keeps only which names were delivered, and how many.
    pub fn counting() -> Self {
        Self::build(false)
    }

    fn build(keeps: bool) -> Self {
        MemorySink(Arc::new(SharedSink {
            keeps,
            state: Mutex::default(),
            count: watch::Sender::new(0),
        }))
    }

    /// What was delivered, in order of delivery; empty for [`MemorySink::counting`].
    pub fn delivered(&self) -> Vec<Message> {
        lock(&self.0.state).delivered.clone()
    }

    /// How many messages were delivered; repeats do not count.
    pub fn count(&self) -> u64 {
        *self.0.count.borrow()
    }

    /// Waits until at least `count` messages were delivered.
    pub async fn reached(&self, count: u64) {
        let mut counts = self.0.count.subscribe();
        // The sender lives as long as this sink.
        let _ = counts.wait_for(|now| *now >= count).await;
    }

    /// While set, every call is answered with this fault.
    pub fn set_outage(&self, fault: Option<Fault>) {
        lock(&self.0.state).outage = fault;
    }

    fn check(&self) -> Result<(), Fault> {
        lock(&self.0.state).outage.clone().map_or(Ok(()), Err)
    }
}

impl SinkState {
    /// Notes the id; false when it was there already.
    fn take(&mut self, id: &DeliveryId) -> bool {
        let same = |taken: &StreamOffsets| {
            let (known, new) = (&taken.id.position, &id.position);
            known.partition == new.partition
                && known.log == new.log
                && (taken.id.deliver, taken.id.element) == (id.deliver, id.element)
                && known.topic == new.topic
        };
        let taken = match self.taken.iter().rposition(same) {
            Some(index) => self.taken.get_mut(index),
            None => {
                self.taken.push(StreamOffsets { id: id.clone(), offsets: Offsets::default() });
                self.taken.last_mut()
            }
        };
        taken.is_some_and(|taken| taken.offsets.add(id.position.offset))
    }
}

#[async_trait]
impl Sink for MemorySink {
    fn limits(&self) -> SinkLimits {
        SinkLimits::default()
    }

    async fn prepare(&self) -> Result<(), Fault> {
        self.check()
    }

    async fn probe(&self) -> Result<(), Fault> {
        self.check()
    }

    async fn deliver(&self, batch: &Batch) -> Result<Receipt, Fault> {
        let mut receipt = Receipt::delivered();
        let mut new = 0;
        let mut state = lock(&self.0.state);
        if let Some(fault) = &state.outage {
            return Err(fault.clone());
        }
        for (index, message) in batch.messages.iter().enumerate() {
            if !state.take(&message.id) {
                receipt.set(index, Outcome::Duplicate);
                continue;
            }
            new += 1;
            if self.0.keeps {
                state.delivered.push(message.clone());
            }
        }
        drop(state);
        self.0.count.send_modify(|count| *count += new);
        Ok(receipt)
    }
}
