//! The `potok` program: reads the command line, does one command, says how it went.
//!
//! Exit codes: 0 good, 1 failed, 2 wrong usage or configuration. Data goes to stdout, everything
//! else to stderr. Whoever stops reading our output ends the command quietly.

mod cli;
mod client;
mod failure;
mod folder;
mod input;
mod limits;
mod memory;
mod owner;
mod private;
mod process;
mod terminal;
mod wire;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    limits::survive_file_size();
    let cli = cli::Cli::parse();
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.exit)
        }
    }
}
