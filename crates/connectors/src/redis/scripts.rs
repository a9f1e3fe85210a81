//! The scripts, one per operation, in `scripts/`.
//!
//! Each compares the owner first and answers without having written anything: -1 where there is no
//! owner any more, 0 where there is another. The one that names the owner is the exception. No script
//! takes a piece of its text from outside. None but `put` is refused by a server whose memory is full.

use redis::Script as Hashed;

/// A script and the name Redis knows it by.
pub(super) struct Script {
    text: String,
    hash: String,
}

impl Script {
    /// The common beginning of all scripts, then this one's body.
    fn new(own: &str) -> Self {
        Script::whole(format!("{}{own}", include_str!("scripts/owner.lua")))
    }

    /// A script that begins as it likes.
    pub fn whole(text: String) -> Self {
        let hash = Hashed::new(&text).get_hash().to_owned();
        Script { text, hash }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn hash(&self) -> &str {
        &self.hash
    }
}

/// The scripts of a keys.
pub(super) struct StoreScripts {
    pub own: Script,
    pub sweep: Script,
    pub put: Script,
    pub close: Script,
    pub load: Script,
    pub clean: Script,
}

impl StoreScripts {
    pub fn readable() -> Self {
        let names = include_str!("scripts/readable_names.lua");
        let script = |own: &str| Script::new(&format!("{names}{own}"));
        StoreScripts {
            own: own(),
            sweep: script(include_str!("scripts/readable_sweep.lua")),
            put: script(include_str!("scripts/readable_put.lua")),
            close: script(include_str!("scripts/readable_close.lua")),
            load: script(include_str!("scripts/readable_load.lua")),
            clean: script(include_str!("scripts/readable_clean.lua")),
        }
    }

    pub fn packed() -> Self {
        let names = include_str!("scripts/packed_names.lua");
        let script = |own: &str| Script::new(&format!("{names}{own}"));
        StoreScripts {
            own: own(),
            sweep: script(include_str!("scripts/packed_sweep.lua")),
            put: script(include_str!("scripts/packed_put.lua")),
            close: script(include_str!("scripts/packed_close.lua")),
            load: script(include_str!("scripts/packed_load.lua")),
            clean: script(include_str!("scripts/packed_clean.lua")),
        }
    }
}

fn own() -> Script {
    Script::whole(include_str!("scripts/own.lua").to_owned())
}
