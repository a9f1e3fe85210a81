//! `potok consumer-groups`: who keeps which records in the log.

use std::io::Write;

use potok_core::ConsumerGroup;

use crate::client::{Client, Target, encode};
use crate::failure::Failure;
use crate::terminal::{self, Table};

/// Consumer groups: how far each has come, and how to delete one
#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  potok consumer-groups list
  potok consumer-groups delete order-consumer")]
pub enum ConsumerGroups {
    /// Show all consumer groups and how far they have come
    #[command(after_help = "\
Examples:
  potok consumer-groups list
  potok consumer-groups list --json

A topic keeps what a group has not finished: a group that is far behind keeps the disk.")]
    List {
        #[command(flatten)]
        place: Target,
    },
    /// Delete a consumer group that nobody reads: its progress, and its hold on old records
    #[command(after_help = "\
Examples:
  potok consumer-groups delete order-consumer

Should its pipeline run again, it starts like a new one.")]
    Delete {
        /// The consumer group
        group: String,
        #[command(flatten)]
        place: Target,
    },
}

impl ConsumerGroups {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        match self {
            ConsumerGroups::List { place } => list(&place, json),
            ConsumerGroups::Delete { group, place } => delete(&place, &group, json),
        }
    }
}

fn list(place: &Target, json: bool) -> Result<(), Failure> {
    let groups: Vec<ConsumerGroup> = Client::find(place)?.get_json("/api/v1/consumer-groups")?;
    let mut out = terminal::out();
    let mut table = Table::new(&[
        "GROUP",
        "PIPELINE",
        "ACTIVE",
        "TOPIC",
        "PARTITION",
        "COMMITTED",
        "ACKED AHEAD",
        "END",
    ]);
    for group in &groups {
        if json {
            serde_json::to_writer(&mut out, group).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
        for partition in &group.partitions {
            let open = if group.open { "yes" } else { "no" };
            let words = [&group.group, &group.info.pipeline, open, &partition.topic];
            let counts = [
                u64::from(partition.partition),
                partition.committed,
                partition.acknowledged_ahead,
                partition.end,
            ];
            let words = words.into_iter().map(str::to_owned);
            table.row(words.chain(counts.iter().map(u64::to_string)));
        }
    }
    match (json, groups.is_empty()) {
        (true, _) => {}
        (false, true) => writeln!(out, "no consumer group is registered yet")?,
        (false, false) => table.print(&mut out)?,
    }
    out.flush()?;
    Ok(())
}

fn delete(place: &Target, group: &str, json: bool) -> Result<(), Failure> {
    let path = format!("/api/v1/consumer-groups/{}/delete", encode(group));
    let done: serde_json::Value =
        Client::find(place)?.post_json(&path, "application/json", Vec::new())?;
    let mut out = terminal::out();
    if json {
        writeln!(out, "{done}")?;
    } else {
        writeln!(out, "{group} is deleted")?;
    }
    out.flush()?;
    Ok(())
}
