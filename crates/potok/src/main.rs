//! The `potok` program with the connectors it comes with.

use std::process::ExitCode;

fn main() -> ExitCode {
    potok::main(potok::standard())
}
