//! Batches in order, found by their group's key.

use std::collections::VecDeque;

use bytes::Bytes;
use foldhash::HashMap;

/// Keeps batches in the order in which they were put there.
pub(crate) struct Shelf<T> {
    /// Keys and tickets; may name what was taken out of turn.
    order: VecDeque<(Bytes, u64)>,
    by_key: HashMap<Bytes, Vec<(u64, T)>>,
    tickets: u64,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Shelf { order: VecDeque::new(), by_key: HashMap::default(), tickets: 0 }
    }
}

impl<T> Shelf<T> {
    pub fn push(&mut self, key: &Bytes, batch: T) {
        self.tickets += 1;
        self.order.push_back((key.clone(), self.tickets));
        self.by_key.entry(key.clone()).or_default().push((self.tickets, batch));
    }

    /// The first in order.
    pub fn front(&mut self) -> Option<&T> {
        while let Some((key, ticket)) = self.order.front() {
            let is_there = |(known, _): &(u64, T)| known == ticket;
            if self.by_key.get(key).is_some_and(|batches| batches.iter().any(is_there)) {
                break;
            }
            self.order.pop_front();
        }
        let (key, ticket) = self.order.front()?;
        let batches = self.by_key.get(key)?;
        batches.iter().find(|(known, _)| known == ticket).map(|(_, batch)| batch)
    }

    pub fn pop_front(&mut self) -> Option<T> {
        self.front()?;
        let (key, ticket) = self.order.pop_front()?;
        self.take(&key, |known, _| known == ticket)
    }

    /// Takes the first of that group that is wanted.
    pub fn remove(&mut self, key: &Bytes, wanted: impl Fn(&T) -> bool) -> Option<T> {
        self.take(key, |_, batch| wanted(batch))
    }

    fn take(&mut self, key: &Bytes, wanted: impl Fn(u64, &T) -> bool) -> Option<T> {
        let batches = self.by_key.get_mut(key)?;
        let at = batches.iter().position(|(ticket, batch)| wanted(*ticket, batch))?;
        let (_, batch) = batches.remove(at);
        if batches.is_empty() {
            self.by_key.remove(key);
        }
        Some(batch)
    }

    /// All of one group, oldest first.
    pub fn of_mut(&mut self, key: &Bytes) -> impl Iterator<Item = &mut T> {
        self.by_key.get_mut(key).into_iter().flatten().map(|(_, batch)| batch)
    }

    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// All, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.by_key.values().flatten().map(|(_, batch)| batch)
    }

    /// Keeps what `keep` wants.
    pub fn retain(&mut self, mut keep: impl FnMut(&mut T) -> bool) {
        self.by_key.retain(|_, batches| {
            batches.retain_mut(|(_, batch)| keep(batch));
            !batches.is_empty()
        });
    }
}
