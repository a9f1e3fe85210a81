//! potok with two connectors of one's own: `source: { spool: … }` takes files out of a folder, and
//! `deliver: [ { lines: … } ]` writes messages into a file. Everything else is potok's: YAML,
//! `check`, `reference`, `run`.

mod lines;
mod spool;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut registry = potok::standard();
    registry.sink::<lines::LinesSettings>("lines", &[]).feed::<spool::SpoolSettings>("spool");
    potok::main(registry)
}
