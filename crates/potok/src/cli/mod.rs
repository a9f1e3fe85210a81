//! The commands, one file each.

mod audit;
mod changes;
mod check;
mod consumer_groups;
mod ddl;
mod dead_letters;
mod dev;
mod explain;
mod files;
mod groups;
mod hub;
mod hub_ask;
mod jobs;
mod listen;
mod logging;
mod new;
mod outbox;
mod pause;
mod read;
mod reference;
mod run;
mod sample;
mod schema;
mod send;
mod status;
mod token;
mod top;
mod trace;

use clap::{Parser, Subcommand};

use crate::failure::Failure;

/// Holds messages by key until the moment is right and delivers them, losing none.
#[derive(Parser)]
#[command(name = "potok", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  potok dev                                   try it: shipped pipelines, generated traffic
  potok check pipelines/*.yaml                look for mistakes
  potok run pipelines/orders.yaml             run a pipeline
  potok sample orders > orders.ndjson         generated records to try it with
  potok send orders < orders.ndjson           send records, one per line
  potok status                                how things stand
  potok dead-letters list orders              what was set aside, and why

Exit codes: 0 good, 1 failed, 2 wrong usage or configuration.")]
pub struct Cli {
    /// Print data as JSON, one object a line
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    logging: logging::Logging,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one of them in a process")]
enum Command {
    Dev(dev::Dev),
    Run(run::Run),
    Check(check::Check),
    Send(send::Send),
    Read(read::Read),
    Status(status::Status),
    Top(top::Top),
    Pause(pause::Pause),
    Resume(pause::Resume),
    Probe(pause::Probe),
    Changes(changes::Changes),
    Audit(audit::Audit),
    #[command(subcommand)]
    DeadLetters(dead_letters::DeadLetters),
    #[command(subcommand)]
    Jobs(jobs::Jobs),
    #[command(subcommand)]
    Groups(groups::Groups),
    Files(files::Files),
    Stuck(files::StuckFiles),
    Trace(trace::Trace),
    #[command(subcommand)]
    ConsumerGroups(consumer_groups::ConsumerGroups),
    Hub(hub::Hub),
    Listen(listen::Listen),
    #[command(subcommand)]
    Token(token::Token),
    Ddl(ddl::Ddl),
    #[command(subcommand)]
    Outbox(outbox::Outbox),
    New(new::New),
    Sample(sample::Sample),
    Explain(explain::Explain),
    Schema(schema::Schema),
    Reference(reference::Reference),
}

impl Cli {
    /// Does the command.
    pub fn run(self) -> Result<(), Failure> {
        let Cli { json, logging, command } = self;
        match command {
            // These two write their log themselves, since they know where it goes.
            Command::Dev(dev) => return dev.run(json, &logging),
            Command::Run(run) => return run.run(json, &logging),
            _ => logging.start("warn", None)?,
        }
        match command {
            Command::Dev(_) | Command::Run(_) => Ok(()),
            Command::Check(check) => check.run(json),
            Command::Send(send) => send.run(json),
            Command::Read(read) => read.run(),
            Command::Status(status) => status.run(json),
            Command::Top(top) => top.run(json),
            Command::Pause(pause) => pause.run(json),
            Command::Resume(resume) => resume.run(json),
            Command::Probe(probe) => probe.run(json),
            Command::Changes(changes) => changes.run(json),
            Command::Audit(audit) => audit.run(json),
            Command::DeadLetters(dead_letters) => dead_letters.run(json),
            Command::Jobs(jobs) => jobs.run(json),
            Command::Groups(groups) => groups.run(json),
            Command::Files(files) => files.run(json),
            Command::Stuck(stuck) => stuck.run(json),
            Command::Trace(trace) => trace.run(json),
            Command::ConsumerGroups(groups) => groups.run(json),
            Command::Hub(hub) => hub.run(json),
            Command::Listen(listen) => listen.run(json),
            Command::Token(token) => token.run(json),
            Command::Ddl(ddl) => ddl.run(json),
            Command::Outbox(outbox) => outbox.run(json),
            Command::New(new) => new.run(json),
            Command::Sample(sample) => sample.run(),
            Command::Explain(explain) => explain.run(),
            Command::Schema(schema) => schema.run(),
            Command::Reference(reference) => reference.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// clap finds clashing flags only when a command is built.
    #[test]
    fn every_command_is_well_formed_and_has_examples() {
        fn check(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "no examples for {}", command.get_name());
            command.get_subcommands().filter(|sub| sub.get_name() != "help").for_each(check);
        }
        Cli::command().debug_assert();
        check(&Cli::command());
    }
}
