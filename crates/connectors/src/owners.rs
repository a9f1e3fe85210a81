//! Who owns which share, for stores that keep no bodies of their own: those lie in the log.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use potok_core::{Fault, Owner};

/// The nonce of each share's owner, by pipeline and number.
#[derive(Default)]
pub(crate) struct Owners(Mutex<HashMap<(Arc<str>, u32), u64>>);

impl Owners {
    pub fn own(&self, owner: &Owner) {
        let mut owners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        owners.insert((owner.pipeline.clone(), owner.share), owner.nonce);
    }

    /// Refuses who does not own the share, or not any more.
    pub fn check(&self, owner: &Owner) -> Result<(), Fault> {
        let owners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Owner { pipeline, share, nonce } = owner;
        match owners.get(&(pipeline.clone(), *share)) {
            Some(known) if known == nonce => Ok(()),
            _ => Err(Fault::retry(format!("share {share} of {pipeline} has another owner now"))),
        }
    }
}
