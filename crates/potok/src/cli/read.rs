//! `potok read`: records of a topic as lines of JSON.

use std::io::Write;
use std::time::Duration;

use potok_core::TopicInfo;

use crate::client::{Client, Target, encode, for_each_line};
use crate::failure::Failure;
use crate::terminal;

/// How often to look whether a process has started, for `--follow`.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Print the records of a topic, one JSON object a line
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok read orders --count 10
  potok read orders --from end --follow       new ones as they come
  potok read orders --from 1000               from offset 1000 of every partition

A line: {\"topic\",\"partition\",\"offset\",\"time\",\"key\",\"headers\":[[\"name\",\"value\"|null],…],\"value\"}.
What is not UTF-8 stands under key_base64 or value_base64 instead, a header's value as
{\"base64\":\"…\"} in its place. Without --follow it stops at the end.")]
pub struct Read {
    /// The topic
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    topic: String,
    /// Where to start: start, end, or an offset of every partition
    #[arg(long, default_value = "start", value_name = "start|end|OFFSET", value_parser = from)]
    from: String,
    /// Stop after so many records
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Wait for more at the end
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    place: Target,
}

fn from(text: &str) -> Result<String, String> {
    match text {
        "start" | "end" => Ok(text.to_owned()),
        offset if offset.parse::<u64>().is_ok() => Ok(offset.to_owned()),
        _ => Err("it is `start`, `end` or an offset".to_owned()),
    }
}

impl Read {
    pub fn run(self) -> Result<(), Failure> {
        let (client, from) = match self.follow {
            true => self.wait()?,
            false => (Client::find(&self.place)?, self.from.as_str()),
        };
        let mut path = format!("/api/v1/topics/{}/records?from={from}", encode(&self.topic));
        if let Some(count) = self.count {
            path.push_str(&format!("&count={count}"));
        }
        if self.follow {
            path.push_str("&follow=true");
        }
        let mut out = terminal::out();
        for_each_line(client.get(&path)?, |line, more| {
            out.write_all(line)?;
            if !more {
                out.flush()?;
            }
            Ok(())
        })?;
        out.flush()?;
        Ok(())
    }

    /// To follow, somebody must be able to write: while this command held the folder, nobody could.
    /// So this waits for a process, and for the topic, all of whose records are then new.
    fn wait(&self) -> Result<(Client, &str), Failure> {
        let mut told = "";
        let mut tell = |what: &'static str| {
            if std::mem::replace(&mut told, what) != what {
                // A person who sees nothing happen should know why.
                let _ = writeln!(std::io::stderr(), "{what}");
            }
            std::thread::sleep(LOOK_EVERY);
        };
        let client = loop {
            match Client::find_process(&self.place)? {
                Some(client) => break client,
                None => tell("no process works in the data folder yet; waiting for `potok run`"),
            }
        };
        let mut from = self.from.as_str();
        loop {
            let topics: Vec<TopicInfo> = client.get_json("/api/v1/topics")?;
            if topics.iter().any(|known| known.topic == self.topic) {
                return Ok((client, from));
            }
            from = "start";
            tell("nothing was sent to this topic yet; waiting");
        }
    }
}
