//! The connectors of this program, known to every command.

use std::sync::OnceLock;

use potok_config::Registry;

static REGISTRY: OnceLock<Registry> = OnceLock::new();

/// Those that potok comes with.
pub fn standard() -> Registry {
    potok_connectors::registry()
}

/// Sets them, before any command runs. The first call counts.
pub(crate) fn install(registry: Registry) {
    // A second registry in one process would be a program that starts itself twice.
    let _ = REGISTRY.set(registry);
}

/// Those that were installed.
pub(crate) fn registry() -> &'static Registry {
    REGISTRY.get_or_init(standard)
}
