//! What a lane holds, for people to see.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use potok_core::Timestamp;

use super::{Entry, Index, bytes_of};

/// A batch as people see it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct BatchView {
    /// Whose it is.
    pub pipeline: String,
    /// The group's key.
    pub id: String,
    /// Names this generation of the group.
    pub generation: String,
    /// `open`, `closed`, `sealed` or `sending`.
    pub state: &'static str,
    /// Records and distinct ids by kind; one kind `record` where the pipeline names none.
    pub kinds: BTreeMap<String, KindView>,
    /// Records whose id another record of the batch has too.
    pub repeats: u64,
    /// Bytes held.
    pub bytes: u64,
    /// When its first record arrived.
    pub opened: String,
    /// When it closes.
    pub due: Option<String>,
    /// Who works on it.
    pub owner: String,
    /// How often it was tried to send it, so far.
    pub attempts: u64,
}

/// One kind in a [`BatchView`].
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct KindView {
    /// Records.
    pub records: u64,
    /// Distinct ids.
    pub ids: u64,
}

impl Index {
    /// Everything held, for people to see.
    pub fn views(
        &self,
        pipeline: &str,
        kinds: &[Arc<str>],
        owner: &str,
        wall_ahead: i64,
        attempts: u64,
    ) -> Vec<BatchView> {
        let view = |key: &Bytes, name: u64, state, opened: Timestamp, due: Option<i64>, entries| {
            let (kinds, repeats) = counts(kinds, entries);
            BatchView {
                pipeline: pipeline.to_owned(),
                id: String::from_utf8_lossy(key).into_owned(),
                generation: format!("{name:016x}"),
                state,
                kinds,
                repeats,
                bytes: bytes_of(entries),
                opened: opened.to_string(),
                due: due.map(|due| Timestamp(due.saturating_add(wall_ahead)).to_string()),
                owner: owner.to_owned(),
                attempts: if state == "sending" { attempts } else { 0 },
            }
        };
        let mut views = Vec::new();
        let sending = self.sending.iter().map(|sealed| ("sending", sealed));
        let waiting = self.sealed.iter().map(|sealed| ("sealed", sealed));
        views.extend(sending.chain(waiting).map(|(state, sealed)| {
            let name = sealed.generation.name;
            view(&sealed.key, name, state, sealed.opened, sealed.due, &sealed.entries)
        }));
        views.extend(self.frozen.iter().chain(self.sealing.iter()).map(|frozen| {
            let (name, due) = (frozen.generation.name, Some(frozen.due));
            view(&frozen.name.key, name, "closed", frozen.opened, due, &frozen.entries)
        }));
        let mut open: Vec<_> = self.open.iter().collect();
        open.sort_by(|a, b| (a.1.due, a.0).cmp(&(b.1.due, b.0)));
        views.extend(open.into_iter().map(|(name, group)| {
            let due = Some(group.due).filter(|due| *due < i64::MAX);
            view(&name.key, group.name, "open", group.opened, due, &group.entries)
        }));
        views
    }
}

fn counts(names: &[Arc<str>], entries: &[Entry]) -> (BTreeMap<String, KindView>, u64) {
    let mut kinds: BTreeMap<String, KindView> = BTreeMap::new();
    let mut seen = HashSet::new();
    let mut repeats = 0;
    for entry in entries {
        let name = entry.kind.and_then(|kind| names.get(usize::from(kind)));
        let kind = kinds.entry(name.map_or("record", |name| name).to_owned()).or_default();
        kind.records += 1;
        let is_new = entry.id.as_ref().is_none_or(|id| seen.insert((entry.kind, id)));
        kind.ids += u64::from(is_new);
        repeats += u64::from(!is_new);
    }
    (kinds, repeats)
}
