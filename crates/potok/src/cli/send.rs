//! `potok send`: lines of a file or of stdin become records of a topic.
//!
//! Records go out in batches, each durable before the next is sent; a pause of the input sends
//! what is there, so that `tail -f … | potok send` is live. Memory is bounded by one batch and one
//! record, however long the input. Lines are bytes: only the line break is taken off.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use potok_core::{Headers, HeadersBuilder, RECORD_BYTES_MAX};
use potok_expr::json::Parser;
use potok_expr::{Scope, Template};
use serde_json::json;

use crate::client::{Client, Target, encode};
use crate::failure::Failure;
use crate::input::{Input, Lines, TooLong, read_ahead};
use crate::terminal;

/// A batch goes out when it holds this much.
const BATCH_RECORDS_MAX: usize = 2_000;
const BATCH_BYTES_MAX: usize = 1 << 20;
/// A batch also goes out when the input pauses this long.
const PAUSE: Duration = Duration::from_millis(50);
/// Progress is shown this often, to a person.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Send records into a topic, one per line; returns when they are durable
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  potok send orders < orders.ndjson
  potok send orders --file orders.ndjson --key .order_uid
  potok send orders --header source=import --header batchId=7 < orders.ndjson
  potok send documents --framing whole --file report.pdf

Lines are bytes and are sent as they are; empty lines are skipped. Without --key records spread
over partitions, and the pipeline's `once_by` picks the lane. Works with or without a running
process; a new data folder, or a topic that nobody reads, is pointed out on stderr.")]
pub struct Send {
    /// The topic; made with its first record
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    topic: String,
    /// Read this file instead of stdin
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The key: a path such as .order_uid, or a template such as "{.shop}-{.id}"
    #[arg(long, value_name = "EXPR")]
    key: Option<String>,
    /// A header for every record; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// A record per line, or the whole input as one
    #[arg(long, default_value = "lines")]
    framing: Framing,
    /// Print nothing unless something fails
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    place: Target,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// One record per line.
    Lines,
    /// The whole input is one record.
    Whole,
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a header looks like NAME=VALUE".to_owned()),
    }
}

impl Send {
    pub fn run(self, json: bool) -> Result<(), Failure> {
        let key = self.key.as_deref().map(parse_key).transpose()?;
        let input = self.input()?;
        let headers = self.header.iter().fold(HeadersBuilder::new(), |headers, (name, value)| {
            headers.add(name, Some(value.as_bytes()))
        });
        let mut sender = Sender {
            records: Records {
                topic: self.topic.clone(),
                key,
                headers: headers.build(),
                parser: Parser::new(),
            },
            client: Some(Client::find_or_create(&self.place)?),
            place: self.place,
            quiet: self.quiet,
            unread: None,
            path: format!("/api/v1/topics/{}/records", encode(&self.topic)),
            batch: Vec::new(),
            batch_records: 0,
            sent: 0,
            progress: Progress::new(),
        };
        match self.framing {
            Framing::Lines => sender.lines(&read_ahead(input))?,
            Framing::Whole => sender.whole(input)?,
        }
        if self.quiet {
            return Ok(());
        }
        let mut out = terminal::out();
        match (json, sender.sent) {
            (true, sent) => match sender.unread {
                None => writeln!(out, "{}", json!({ "sent": sent }))?,
                Some(unread) => writeln!(out, "{}", json!({ "sent": sent, "unread": unread }))?,
            },
            (false, 1) => writeln!(out, "sent 1 record to {}", self.topic)?,
            (false, sent) => writeln!(out, "sent {sent} records to {}", self.topic)?,
        }
        out.flush()?;
        Ok(())
    }

    fn input(&self) -> Result<Input, Failure> {
        match &self.file {
            Some(path) => match File::open(path) {
                Ok(file) => Ok(Box::new(file)),
                Err(error) => {
                    let what = format!("{} cannot be read", path.display());
                    Err(Failure::new("P0523", what).because(error).of_usage())
                }
            },
            None => {
                if io::stdin().is_terminal() {
                    // A person who sees nothing happen should know why.
                    let _ = writeln!(io::stderr(), "one record per line; Ctrl-D ends");
                }
                Ok(Box::new(io::stdin()))
            }
        }
    }
}

fn parse_key(text: &str) -> Result<Template, Failure> {
    Template::parse(text).map_err(|error| {
        Failure::usage(format!("--key {text}: {}", error.message))
            .hint("a path such as .order_uid, or a template such as \"{.shop}-{.id}\"")
    })
}

/// What makes a record of a value.
struct Records {
    topic: String,
    key: Option<Template>,
    headers: Headers,
    parser: Parser,
}

impl Records {
    /// Adds the record with this value to a batch; the error says what is wrong with it.
    fn push(&mut self, batch: &mut Vec<u8>, value: &[u8]) -> Result<(), Failure> {
        let key = match &self.key {
            None => None,
            Some(template) => {
                let node = match template.needs_value() {
                    false => None,
                    true => Some(self.parser.parse(value).map_err(|error| {
                        Failure::new("P0511", "the value is not JSON, so it has no key")
                            .because(error)
                    })?),
                };
                let scope = Scope {
                    value: node,
                    key: None,
                    headers: &self.headers,
                    topic: &self.topic,
                    id: None,
                    receiver: None,
                };
                let mut key = Vec::new();
                if !template.eval(&scope, &mut key) {
                    let what = format!("there is no `{}`, or it is null", template.source());
                    return Err(Failure::new("P0511", what));
                }
                Some(key)
            }
        };
        let bytes = value.len() + self.headers.encoded().len() + key.as_ref().map_or(0, Vec::len);
        if bytes > RECORD_BYTES_MAX {
            return Err(too_large());
        }
        potok_server::push_record(batch, key.as_deref(), &self.headers, Some(value));
        Ok(())
    }
}

fn too_large() -> Failure {
    Failure::new("P0512", "the record is larger than 64 MiB").hint("larger ones cannot be taken")
}

/// Why no further line is sent.
enum Stop {
    /// This line is wrong; those before it are still to be sent.
    At(Failure),
    /// The line under way is longer than a record.
    TooLong,
    /// Sending failed.
    Done(Failure),
}

impl From<TooLong> for Stop {
    fn from(_: TooLong) -> Self {
        Stop::TooLong
    }
}

/// What the API says of an append.
#[derive(serde::Deserialize)]
struct AppendAnswer {
    unread: Option<Unread>,
}

/// A topic that nobody reads.
#[derive(serde::Deserialize, serde::Serialize)]
struct Unread {
    new_topic: bool,
    known: Vec<String>,
}

impl Unread {
    fn note(&self, topic: &str) -> String {
        let what = if self.new_topic { "is new, and nobody reads it" } else { "is read by nobody" };
        let known = match self.known.as_slice() {
            [] => "no topic is read here yet".to_owned(),
            known => format!("topics that are read here: {}", known.join(", ")),
        };
        format!("topic `{topic}` {what}; {known}")
    }
}

struct Sender {
    records: Records,
    quiet: bool,
    /// What was said of the topic when the first records came.
    unread: Option<Unread>,
    place: Target,
    client: Option<Client>,
    path: String,
    batch: Vec<u8>,
    batch_records: usize,
    sent: u64,
    progress: Progress,
}

impl Sender {
    fn lines(&mut self, pieces: &Receiver<io::Result<Vec<u8>>>) -> Result<(), Failure> {
        let mut lines = Lines::default();
        loop {
            let piece = match pieces.recv_timeout(PAUSE) {
                Err(RecvTimeoutError::Timeout) => {
                    self.rest_at_pause()?;
                    // Nothing to do until there is input, so wait for it without looking up.
                    pieces.recv().ok()
                }
                piece => piece.ok(),
            };
            match piece {
                Some(Ok(piece)) => {
                    let fed = lines.feed(&piece, |number, line| self.line(number, line));
                    fed.map_err(|stop| self.stopped(stop, lines.count))?;
                }
                Some(Err(error)) => {
                    let what = format!("the input cannot be read behind line {}", lines.count);
                    let failure = Failure::new("P0523", what).because(error);
                    return Err(self.stopped(Stop::At(failure), lines.count));
                }
                None => break,
            }
        }
        let count = lines.count;
        let last = lines.finish(|number, line| self.line(number, line));
        last.map_err(|stop| self.stopped(stop, count))?;
        self.flush()
    }

    fn line(&mut self, number: u64, value: &[u8]) -> Result<(), Stop> {
        if value.is_empty() {
            return Ok(());
        }
        if let Err(failure) = self.records.push(&mut self.batch, value) {
            return Err(Stop::At(failure.at_line(number)));
        }
        self.batch_records += 1;
        if self.batch_records >= BATCH_RECORDS_MAX || self.batch.len() >= BATCH_BYTES_MAX {
            self.flush().map_err(Stop::Done)?;
        }
        Ok(())
    }

    /// What came before a bad line is sent, nothing behind it.
    fn stopped(&mut self, stop: Stop, lines: u64) -> Failure {
        let failure = match stop {
            Stop::Done(failure) => return failure,
            Stop::At(failure) => failure,
            Stop::TooLong => too_large().at_line(lines + 1),
        };
        match self.flush() {
            Ok(()) => self.told(failure),
            Err(failure) => failure,
        }
    }

    fn whole(&mut self, input: Input) -> Result<(), Failure> {
        let mut value = Vec::new();
        let mut limited = input.take(RECORD_BYTES_MAX as u64 + 1);
        limited
            .read_to_end(&mut value)
            .map_err(|error| Failure::new("P0523", "the input cannot be read").because(error))?;
        if value.is_empty() {
            return Ok(());
        }
        self.records.push(&mut self.batch, &value)?;
        self.batch_records = 1;
        self.flush()
    }

    /// Sends what is there. A folder that this process holds itself is let go: others may want to
    /// work in it while we wait for input.
    fn rest_at_pause(&mut self) -> Result<(), Failure> {
        self.flush()?;
        if self.client.as_ref().is_some_and(Client::holds_folder) {
            self.client = None;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        if self.batch_records == 0 {
            return Ok(());
        }
        let client = match self.client.take() {
            Some(client) => client,
            None => Client::find_or_create(&self.place).map_err(|failure| self.told(failure))?,
        };
        let batch = std::mem::take(&mut self.batch);
        let posted = client.post_json(&self.path, potok_server::FRAME_TYPE, batch);
        let made_folder = client.made_folder();
        self.client = Some(client);
        let appended: AppendAnswer = posted.map_err(|failure| self.told(failure))?;
        if self.sent == 0 {
            self.notes(made_folder, appended.unread);
        }
        self.sent += self.batch_records as u64;
        self.batch_records = 0;
        self.progress.show(self.sent);
        Ok(())
    }

    /// Points out what looks like a slip. It is none to those who know: they get their answer.
    fn notes(&mut self, made_folder: bool, unread: Option<Unread>) {
        let mut notes = Vec::new();
        if made_folder && let Ok(connections) = self.place.connections() {
            let data_dir = connections.data_dir.display().to_string();
            notes.push(format!("{data_dir} is a new data folder, and no process works in it"));
        }
        notes.extend(unread.as_ref().map(|unread| unread.note(&self.records.topic)));
        self.unread = unread;
        let label = terminal::on_stderr().yellow("note:");
        for note in notes.iter().filter(|_| !self.quiet) {
            // What cannot be said is no reason to stop.
            let _ = writeln!(io::stderr(), "{label} {}", terminal::plain(note));
        }
    }

    /// A failure, with how far we came.
    fn told(&self, failure: Failure) -> Failure {
        self.progress.clear();
        failure.hint(match self.sent {
            0 => "no record was acknowledged".to_owned(),
            1 => "the first record is durable".to_owned(),
            sent => format!("the first {sent} records are durable"),
        })
    }
}

/// How far we are, on one line of a terminal that is written over.
struct Progress {
    shown: bool,
    to_person: bool,
    next: tokio::time::Instant,
}

impl Progress {
    fn new() -> Self {
        let next = tokio::time::Instant::now() + PROGRESS_EVERY;
        Progress { shown: false, to_person: io::stderr().is_terminal(), next }
    }

    fn show(&mut self, sent: u64) {
        let now = tokio::time::Instant::now();
        if self.to_person && now >= self.next {
            self.next = now + PROGRESS_EVERY;
            self.shown = true;
            // Progress that cannot be shown is no reason to stop.
            let _ = write!(io::stderr(), "\r{sent} records sent");
        }
    }

    fn clear(&self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
