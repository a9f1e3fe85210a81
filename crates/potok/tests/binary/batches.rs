//! Batches of news records: what was sent, and what must have come out of em-processor.

use std::collections::{HashMap, HashSet};

use potok_traffic::gdelt::{EVENTS, Kind, MENTIONS, Sent};
use serde_json::Value;

use crate::check::{Letter, bytes};
use crate::process::Running;

const OUTPUTS: [&str; 2] = ["processor-event", "processor-mention"];

/// What was sent, and which of it was acknowledged.
#[derive(Default)]
pub struct Records {
    pub sent: Vec<(Sent, bool)>,
    /// Something was sent without a key: what then arrives in the same moment in two partitions
    /// has no order, and either of two records of one id may take the place of the other.
    pub unordered: bool,
}

impl Records {
    /// Sends records of one batch, topic by topic; false when something was not acknowledged.
    pub fn send(&mut self, running: &Running, records: Vec<Sent>) -> bool {
        let mut all = true;
        for topic in [EVENTS, MENTIONS] {
            let of_topic: Vec<&Sent> = records.iter().filter(|sent| sent.topic == topic).collect();
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
            let ran = running.run(args, &lines);
            let acknowledged = ran.code == Some(0);
            all &= acknowledged;
            self.sent.extend(of_topic.into_iter().map(|sent| (sent.clone(), acknowledged)));
        }
        all
    }

    /// Compares with what came out; empty when the promise was kept.
    fn problems(&self, delivered: &[Delivered], letters: &[Letter]) -> Vec<String> {
        let mut problems = Vec::new();
        let mut times: HashMap<&Delivered, usize> = HashMap::new();
        delivered.iter().for_each(|one| *times.entry(one).or_default() += 1);
        let twice = times.iter().filter(|(_, times)| **times > 1);
        problems.extend(twice.map(|(one, times)| format!("{one:?} came out {times} times")));
        let mut known = HashSet::new();
        let mut lost = 0;
        for (at, (sent, acknowledged)) in self.sent.iter().enumerate() {
            match sent.what {
                Kind::Spoiled(how) if !how.is_delivered() => {
                    let count = letters.iter().filter(|letter| letter.value == sent.value).count();
                    if count > 1 || (*acknowledged && count == 0) {
                        problems.push(format!("{how:?} has {count} dead letters"));
                    }
                }
                _ => {
                    let one = Delivered::of_sent(sent);
                    let is_there = times.contains_key(&one);
                    let same_id = |(other, _): &(Sent, bool)| {
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

    pub fn assert_kept(&self, running: &Running) {
        let status = running.drained();
        let count = |field: &str| status[field].as_u64().unwrap();
        let ended = ["delivered", "filtered", "suppressed", "dead_lettered"].map(count);
        assert_eq!(count("received"), ended.iter().sum::<u64>(), "{status}");
        let letters = running.run(["dead-letters", "list", "em-processor", "--json"], b"").good();
        let problems = self.problems(&delivered(running), &Letter::all(&letters));
        assert!(problems.is_empty(), "{problems:#?}\n{}", running.journal());
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
    fn of_sent(sent: &Sent) -> Self {
        let value: Value = serde_json::from_slice(&sent.value).unwrap();
        Delivered {
            topic: if sent.topic == EVENTS { OUTPUTS[0] } else { OUTPUTS[1] },
            key: sent.id.clone().unwrap(),
            batch: sent.batch_id.clone(),
            sentence: value["SentenceId"].as_i64(),
        }
    }
}

/// Everything on the two output topics.
pub fn delivered(running: &Running) -> Vec<Delivered> {
    let mut all = Vec::new();
    for topic in OUTPUTS {
        for line in running.run(["read", topic], b"").lines() {
            let value: Value = serde_json::from_slice(&bytes(&line, "value").unwrap()).unwrap();
            let headers = line["headers"].as_array().unwrap();
            let batch = headers.iter().find(|header| header[0] == "batchId").unwrap();
            all.push(Delivered {
                topic,
                key: line["key"].as_str().unwrap().to_owned(),
                batch: batch[1].as_str().unwrap().to_owned(),
                sentence: value["SentenceId"].as_i64(),
            });
        }
    }
    all
}
