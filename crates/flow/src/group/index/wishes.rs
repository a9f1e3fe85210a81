//! What people ask of open groups.
//!
//! A command is for the groups that were open when it was given. It is carried out a moment later, after a
//! start when everything is read again: what has opened under the key by then is another group.

use super::Index;

/// A command of a person for an open group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Close,
    /// Close it now and set its records aside.
    Drop,
}

impl Index {
    /// Notes a command for the open groups of a key, or for those of them that are of these generations;
    /// false where there is none.
    pub fn wish(&mut self, key: &[u8], only: Option<&[u64]>, wish: Command) -> bool {
        let open = self.open_of(key).into_iter();
        let open = open.filter_map(|name| Some((name.clone(), self.open.get(name)?.name)));
        let is_meant = |generation: u64| only.is_none_or(|only| only.contains(&generation));
        let meant = open.filter(|(_, generation)| is_meant(*generation));
        let meant: Vec<_> = meant.map(|(name, generation)| (name, generation, wish)).collect();
        let is_any = !meant.is_empty();
        self.wishes.extend(meant);
        is_any
    }

    /// Carries out what was asked.
    pub(super) fn obey(&mut self) {
        for (name, generation, wish) in std::mem::take(&mut self.wishes) {
            if self.open.get(&name).is_some_and(|group| group.name == generation) {
                self.freeze(&name, wish.reason());
            }
        }
    }
}
