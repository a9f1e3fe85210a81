//! The scripts of the queue, one per operation, in `scripts/`.

use super::super::scripts::Script;

/// All of them.
pub(super) struct QueueScripts {
    pub peek: Script,
    pub sort: Script,
    pub visit: Script,
    pub ack: Script,
    pub renew: Script,
    pub give_back: Script,
    pub wish: Script,
    pub scan: Script,
    pub backlog: Script,
    pub groups: Script,
    pub register: Script,
}

impl QueueScripts {
    pub fn new() -> Self {
        let common = include_str!("scripts/common.lua");
        let script = |own: &str| Script::whole(format!("{common}{own}"));
        QueueScripts {
            peek: script(include_str!("scripts/peek.lua")),
            sort: script(include_str!("scripts/sort.lua")),
            visit: script(include_str!("scripts/visit.lua")),
            ack: script(include_str!("scripts/ack.lua")),
            renew: script(include_str!("scripts/renew.lua")),
            give_back: script(include_str!("scripts/give_back.lua")),
            wish: script(include_str!("scripts/wish.lua")),
            scan: script(include_str!("scripts/scan.lua")),
            backlog: script(include_str!("scripts/backlog.lua")),
            groups: script(include_str!("scripts/groups.lua")),
            register: script(include_str!("scripts/register.lua")),
        }
    }
}
