//! The `potok` program as a library: reads the command line, does one command, says how it went.
//!
//! A program of your own that has further connectors is these lines:
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     let mut registry = potok::standard();
//!     // registry.sink::<MySettings>("my_sink", &[]);
//!     potok::main(registry)
//! }
//! ```
//!
//! Exit codes: 0 good, 1 failed, 2 wrong usage or configuration. Data goes to stdout, everything
//! else to stderr. Whoever stops reading our output ends the command quietly.

mod cli;
mod client;
mod failure;
mod folder;
mod gatekeeper;
mod input;
mod limits;
mod listener;
mod memory;
mod no_log;
mod owner;
mod private;
mod process;
mod registry;
mod terminal;
mod wire;

use std::process::ExitCode;

use clap::Parser;

pub use potok_config::Registry;
pub use registry::standard;

/// Does the command that the command line asks for, with these connectors.
pub fn main(registry: Registry) -> ExitCode {
    limits::survive_file_size();
    registry::install(registry);
    let cli = cli::Cli::parse();
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.exit)
        }
    }
}
