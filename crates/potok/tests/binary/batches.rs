//! Batches of news records: what was sent, and what must have come out of em-processor.

use std::collections::{BTreeSet, HashMap, HashSet};

use potok_traffic::gdelt::{EVENTS, GdeltKind, MENTIONS, SentRecord};
use serde_json::Value;

use crate::check::{Letter, bytes};
use crate::process::{ProcessOutput, Running};

const OUTPUTS: [&str; 2] = ["processor-event", "processor-mention"];

/// What was sent, and which of it was acknowledged.
#[derive(Default)]
pub struct Records {
    pub sent: Vec<(SentRecord, bool)>,
    /// Something was sent without a key: what then arrives in the same moment in two partitions
    /// has no order, and either of two records of one id may take the place of the other.
    pub unordered: bool,
    /// The log is one where a record may come out again under the same name.
    pub repeatable: bool,
}

impl Records {
    /// Sends records of one batch, topic by topic; false when something was not acknowledged.
    pub fn send(&mut self, running: &Running, records: Vec<SentRecord>) -> bool {
        self.send_by(|args, lines| running.run(args, lines), records)
    }

    /// The same by whoever runs commands.
    pub fn send_by(
        &mut self,
        run: impl Fn(&[&str], &[u8]) -> ProcessOutput,
        records: Vec<SentRecord>,
    ) -> bool {
        let mut all = true;
        for topic in [EVENTS, MENTIONS] {
            let of_topic: Vec<&SentRecord> =
                records.iter().filter(|sent| sent.topic == topic).collect();
            let Some(first) = of_topic.first() else { continue };
            let header = format!("batchId={}", first.batch_id);
            let lines: Vec<u8> =
                of_topic.iter().flat_map(|sent| [&sent.value[..], b"\n"].concat()).collect();
            let mut args = vec!["send", topic, "--header", &header];
            if of_topic.iter().all(|sent| sent.id.is_some()) {
                // As the adapter does; records of one id then arrive in one order.
                args.extend(["--key", ".GlobalEventId"]);
            } else {
                self.unordered = true;
            }
            let ran = run(&args, &lines);
            let acknowledged = ran.code == Some(0);
            all &= acknowledged;
            self.sent.extend(of_topic.into_iter().map(|sent| (sent.clone(), acknowledged)));
        }
        all
    }

    /// Compares with what came out; empty when the promise was kept.
    fn problems(&self, outputs: &[Output], letters: &[Letter]) -> Vec<String> {
        let mut problems = Vec::new();
        let mut times: HashMap<&Delivered, Vec<&str>> = HashMap::new();
        outputs.iter().for_each(|one| times.entry(&one.what).or_default().push(&one.name));
        for (one, names) in times.iter().filter(|(_, names)| names.len() > 1) {
            let same = names.windows(2).all(|two| two[0] == two[1]);
            if !self.repeatable || !same {
                problems.push(format!("{one:?} came out as {names:?}"));
            }
        }
        let mut known = HashSet::new();
        let mut lost = 0;
        for (at, (sent, acknowledged)) in self.sent.iter().enumerate() {
            match sent.what {
                GdeltKind::Spoiled(how) if !how.is_delivered() => {
                    let count = letters.iter().filter(|letter| letter.value == sent.value).count();
                    // Of several with the same bytes each has its own.
                    let alike = self.sent.iter().filter(|(other, _)| other.value == sent.value);
                    if count > alike.count() || (*acknowledged && count == 0) {
                        problems.push(format!("{how:?} has {count} dead letters"));
                    }
                }
                _ => {
                    let one = Delivered::of_sent(sent);
                    let is_there = times.contains_key(&one);
                    let same_id = |(other, _): &(SentRecord, bool)| {
                        (other.topic, &other.batch_id, &other.id)
                            == (sent.topic, &sent.batch_id, &sent.id)
                    };
                    let replaced = self.sent.iter().skip(at + 1).any(same_id);
                    let stands_in = || {
                        let others = self.sent.iter().filter(|other| same_id(other));
                        let others = others.map(|(other, _)| Delivered::of_sent(other));
                        self.unordered && others.into_iter().any(|one| times.contains_key(&one))
                    };
                    if *acknowledged && !is_there && !replaced && !stands_in() {
                        lost += 1;
                        if lost <= 5 {
                            problems.push(format!("{one:?} was acknowledged and is lost"));
                        }
                    }
                    known.insert(one);
                }
            }
        }
        if lost > 5 {
            problems.push(format!("{lost} are lost in all"));
        }
        let strangers = times.keys().filter(|one| !known.contains(*one));
        problems.extend(strangers.map(|one| format!("{one:?} came out, but nobody sent it")));
        problems
    }

    /// Fails unless the promise was kept; returns how many records came out again.
    pub fn assert_kept(&self, running: &Running) -> usize {
        let status = running.drained();
        let count = |field: &str| status[field].as_u64().unwrap();
        let ended = ["delivered", "filtered", "duplicates", "dead_lettered"].map(count);
        assert_eq!(count("received"), ended.iter().sum::<u64>(), "{status}");
        let letters = running.run(["dead-letters", "list", "em-processor", "--json"], b"").good();
        let outputs = outputs(running);
        let delivered = count("delivered") as usize;
        assert!(delivered <= outputs.len(), "{} came out: {status}", outputs.len());
        let problems = self.problems(&outputs, &Letter::all(&letters));
        assert!(problems.is_empty(), "{problems:#?}\n{}", running.journal());
        outputs.len() - outputs.iter().map(|one| &one.what).collect::<HashSet<_>>().len()
    }
}

/// One record that came out, by what makes it unlike all others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Delivered {
    pub topic: &'static str,
    pub key: String,
    pub batch: String,
    sentence: Option<i64>,
}

impl Delivered {
    fn of_sent(sent: &SentRecord) -> Self {
        let value: Value = serde_json::from_slice(&sent.value).unwrap();
        Delivered {
            topic: if sent.topic == EVENTS { OUTPUTS[0] } else { OUTPUTS[1] },
            key: sent.id.clone().unwrap(),
            batch: sent.batch_id.clone(),
            sentence: value["SentenceId"].as_i64(),
        }
    }
}

/// The same with its name, which is the same when it comes out again, and its place.
pub struct Output {
    pub what: Delivered,
    name: String,
    #[allow(dead_code, reason = "for the tests on real services")]
    pub partition: u64,
    #[allow(dead_code, reason = "for the tests on real services")]
    pub offset: u64,
}

/// Everything on the two output topics.
pub fn delivered(running: &Running) -> Vec<Delivered> {
    outputs(running).into_iter().map(|one| one.what).collect()
}

/// The same with names and places.
pub fn outputs(running: &Running) -> Vec<Output> {
    let mut all = Vec::new();
    for topic in OUTPUTS {
        let read = running.run(["read", topic], b"");
        // Nothing has come out yet. What could not be read is something else.
        let read = if read.stderr.contains("P0503") { read } else { read.good() };
        for line in read.lines() {
            let value: Value = serde_json::from_slice(&bytes(&line, "value").unwrap()).unwrap();
            let headers = line["headers"].as_array().unwrap();
            let header = |name: &str| {
                let header = headers.iter().find(|header| header[0] == name).unwrap();
                header[1].as_str().unwrap().to_owned()
            };
            let what = Delivered {
                topic,
                key: line["key"].as_str().unwrap().to_owned(),
                batch: header("batchId"),
                sentence: value["SentenceId"].as_i64(),
            };
            let place = |name: &str| line[name].as_u64().unwrap();
            let (partition, offset) = (place("partition"), place("offset"));
            all.push(Output { what, name: header("potok-id"), partition, offset });
        }
    }
    all
}

/// The keys under which something of a batch came out.
pub fn came_out(running: &Running, batch: &str) -> BTreeSet<String> {
    delivered(running).into_iter().filter(|one| one.batch == batch).map(|one| one.key).collect()
}

/// A record of `potok sample`.
pub struct Sampled {
    /// The key under which it must come out; nothing where it is spoiled.
    pub id: Option<String>,
    pub is_neutral: bool,
}

/// What `potok sample` printed.
pub fn sampled(lines: &str) -> Vec<Sampled> {
    let read = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap_or_default();
        let event = value["GlobalEventId"].as_u64();
        let id = event.map(|event| match value["MentionIdentifier"].as_str() {
            Some(article) => format!("{event}_{article}"),
            None => event.to_string(),
        });
        let tone = value["AvgTone"].as_f64().or(value["MentionDocTone"].as_f64());
        Sampled { id, is_neutral: tone.is_some_and(|tone| tone.abs() <= 1.0) }
    };
    lines.lines().map(read).collect()
}
