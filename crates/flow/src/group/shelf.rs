//! Batches in order, found by their group's key.

use std::collections::BTreeMap;

use bytes::Bytes;
use foldhash::HashMap;

/// Keeps batches in the order in which they were put there. What was taken out leaves nothing behind.
pub(crate) struct KeyedQueue<T> {
    /// The key of each ticket.
    order: BTreeMap<u64, Bytes>,
    by_key: HashMap<Bytes, Vec<(u64, T)>>,
    tickets: u64,
}

impl<T> Default for KeyedQueue<T> {
    fn default() -> Self {
        KeyedQueue { order: BTreeMap::new(), by_key: HashMap::default(), tickets: 0 }
    }
}

impl<T> KeyedQueue<T> {
    pub fn push(&mut self, key: &Bytes, batch: T) {
        self.tickets += 1;
        self.order.insert(self.tickets, key.clone());
        self.by_key.entry(key.clone()).or_default().push((self.tickets, batch));
    }

    /// Puts one back before all others.
    pub fn push_front(&mut self, key: &Bytes, batch: T) {
        let first = self.order.first_key_value().map_or(self.tickets, |(first, _)| *first);
        let ticket = first.saturating_sub(1);
        self.order.insert(ticket, key.clone());
        self.by_key.entry(key.clone()).or_default().insert(0, (ticket, batch));
    }

    /// The first in order.
    pub fn front(&self) -> Option<&T> {
        let (ticket, key) = self.order.first_key_value()?;
        let batches = self.by_key.get(key)?;
        batches.iter().find(|(known, _)| known == ticket).map(|(_, batch)| batch)
    }

    pub fn pop_front(&mut self) -> Option<T> {
        let (ticket, key) = self.order.first_key_value()?;
        let (ticket, key) = (*ticket, key.clone());
        self.take(&key, |known, _| known == ticket)
    }

    /// The first in order that is wanted.
    pub fn first(&self, wanted: impl Fn(&T) -> bool) -> Option<&T> {
        // Those of one key lie in order.
        let firsts = self.by_key.values();
        let firsts = firsts.filter_map(|batches| batches.iter().find(|(_, batch)| wanted(batch)));
        firsts.min_by_key(|(ticket, _)| *ticket).map(|(_, batch)| batch)
    }

    /// The first of each group, in order.
    pub fn firsts(&self) -> impl Iterator<Item = &T> {
        let mut firsts: Vec<_> =
            self.by_key.values().filter_map(|batches| batches.first()).collect();
        firsts.sort_unstable_by_key(|(ticket, _)| *ticket);
        firsts.into_iter().map(|(_, batch)| batch)
    }

    /// Takes the first of that group that is wanted.
    pub fn remove(&mut self, key: &Bytes, wanted: impl Fn(&T) -> bool) -> Option<T> {
        self.take(key, |_, batch| wanted(batch))
    }

    fn take(&mut self, key: &Bytes, wanted: impl Fn(u64, &T) -> bool) -> Option<T> {
        let batches = self.by_key.get_mut(key)?;
        let at = batches.iter().position(|(ticket, batch)| wanted(*ticket, batch))?;
        let (ticket, batch) = batches.remove(at);
        if batches.is_empty() {
            self.by_key.remove(key);
        }
        self.order.remove(&ticket);
        Some(batch)
    }

    /// All of one group, oldest first.
    pub fn of(&self, key: &[u8]) -> impl Iterator<Item = &T> {
        self.by_key.get(key).into_iter().flatten().map(|(_, batch)| batch)
    }

    /// The same, to be changed.
    pub fn of_mut(&mut self, key: &Bytes) -> impl Iterator<Item = &mut T> {
        self.by_key.get_mut(key).into_iter().flatten().map(|(_, batch)| batch)
    }

    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// All, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.by_key.values().flatten().map(|(_, batch)| batch)
    }

    /// Keeps what `keep` wants.
    pub fn retain(&mut self, mut keep: impl FnMut(&mut T) -> bool) {
        let KeyedQueue { order, by_key, .. } = self;
        by_key.retain(|_, batches| {
            batches.retain_mut(|(ticket, batch)| {
                let stays = keep(batch);
                if !stays {
                    order.remove(ticket);
                }
                stays
            });
            !batches.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_has_a_first() {
        let mut shelf = KeyedQueue::default();
        for (key, number) in [("b", 1), ("a", 2), ("b", 3), ("a", 4)] {
            shelf.push(&Bytes::from_static(key.as_bytes()), number);
        }
        assert_eq!(shelf.firsts().copied().collect::<Vec<_>>(), [1, 2]);
        shelf.pop_front();
        shelf.push_front(&Bytes::from_static(b"a"), 0);
        assert_eq!(shelf.firsts().copied().collect::<Vec<_>>(), [0, 3]);
    }

    #[test]
    fn what_was_taken_out_of_turn_leaves_nothing_behind() {
        let mut shelf = KeyedQueue::default();
        let first = Bytes::from_static(b"first");
        shelf.push(&first, 0);
        for number in 1..100_000_u64 {
            let key = Bytes::from(number.to_be_bytes().to_vec());
            shelf.push(&key, number);
            assert_eq!(shelf.remove(&key, |_| true), Some(number));
        }
        assert_eq!((shelf.len(), shelf.order.len(), shelf.by_key.len()), (1, 1, 1));
        shelf.push(&first, 1);
        shelf.push(&Bytes::from_static(b"other"), 2);
        shelf.retain(|batch| *batch != 1);
        assert_eq!(shelf.front(), Some(&0));
        assert_eq!(
            (shelf.pop_front(), shelf.pop_front(), shelf.pop_front()),
            (Some(0), Some(2), None)
        );
        assert!(shelf.is_empty() && shelf.order.is_empty());
    }
}
