//! Leases: what a feed hands out is its receiver's for as long as the feed renews it.
//!
//! Whoever is frozen past a lease wakes up with records that another has by now. So each call asks first.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Whether a batch is still its receiver's.
pub trait LeaseCheck: Send + Sync {
    /// False as soon as another may have it, by the monotonic clock and not only when the feed was told
    /// so. Cheap: asked before each call.
    fn is_held(&self) -> bool;

    /// How long a batch may wait for a destination that is away before it is given back: another
    /// process may reach it.
    fn lasts(&self) -> Duration;
}

/// The lease of a batch.
#[derive(Clone)]
pub struct Lease(pub Arc<dyn LeaseCheck>);

impl Lease {
    /// See [`LeaseCheck::is_held`].
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }

    /// See [`LeaseCheck::lasts`].
    pub fn lasts(&self) -> Duration {
        self.0.lasts()
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("is_held", &self.is_held()).finish_non_exhaustive()
    }
}

impl PartialEq for Lease {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Lease {}
