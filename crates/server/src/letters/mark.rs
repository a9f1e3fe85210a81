//! Where dead letters end at a moment: what somebody was shown and confirmed is what is done.
//!
//! Written `orders-dead:12.0.5`, a number for each partition, with `@` and the topic's id where offsets
//! are reused; of what a feed keeps, `outbox_dead:t` and the time of the newest. What is not in it is
//! not meant.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use potok_core::{Fault, LetterCount, Timestamp};

use super::select::LetterTopic;
use crate::outbox::soon;
use crate::{Admin, ApiError};

/// Kept as they are in a name, so that a shell takes it without quotes.
const NAME: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// A mark before which there is nothing.
const NOTHING: &str = "nothing";

/// Where dead letters end, by the place where they lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LetterMark(BTreeMap<String, LetterEnd>);

/// Where those of one place end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LetterEnd {
    /// Which incarnation of the topic, where that matters, and the first offset of each partition that
    /// is not meant.
    Topic(Option<u64>, Vec<u64>),
    /// When the last of them was set aside.
    Feed(Timestamp),
}

impl LetterMark {
    /// As it is now, and which feeds do not say, with why: nothing of theirs is meant.
    pub async fn now(
        admin: &Admin,
        shelves: &[Arc<LetterTopic>],
    ) -> Result<(Self, Vec<String>), ApiError> {
        let log = admin.engine().log();
        let topics = log.topics().await?;
        let mut ends = BTreeMap::new();
        for shelf in shelves.iter().filter(|shelf| shelf.kept().is_none()) {
            let place = shelf.info().dead_letters.as_str();
            if let Some(topic) = topics.iter().find(|topic| topic.topic == place) {
                let id = log.topic_id(place).await?;
                ends.insert(place.to_owned(), LetterEnd::Topic(id, topic.ends.clone()));
            }
        }
        let asked = shelves.iter().filter_map(|shelf| Some((shelf, shelf.kept()?)));
        let asked = asked.map(|(shelf, kept)| async move { (shelf, soon(kept.count()).await) });
        let mut unknown = Vec::new();
        for (shelf, counted) in futures::future::join_all(asked).await {
            match counted {
                Ok(LetterCount { newest: Some(newest), .. }) => {
                    ends.insert(shelf.info().dead_letters.clone(), LetterEnd::Feed(newest));
                }
                Ok(LetterCount { newest: None, .. }) => {}
                Err(fault) => unknown.push(not_known(&shelf.info().pipeline, &fault)),
            }
        }
        Ok((LetterMark(ends), unknown))
    }

    pub(super) fn end_of(&self, place: &str) -> Option<&LetterEnd> {
        self.0.get(place)
    }

    /// Nothing is meant.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Why nobody knows the dead letters that a feed keeps.
pub(super) fn not_known(pipeline: &str, fault: &Fault) -> String {
    format!("the dead letters of {pipeline} are not known: {fault}")
}

impl fmt::Display for LetterMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(NOTHING);
        }
        for (at, (place, end)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{}:", utf8_percent_encode(place, NAME))?;
            match end {
                LetterEnd::Feed(time) => write!(f, "t{}", time.0)?,
                LetterEnd::Topic(id, ends) => {
                    let ends: Vec<String> = ends.iter().map(u64::to_string).collect();
                    write!(f, "{}", ends.join("."))?;
                    if let Some(id) = id {
                        write!(f, "@{id:016x}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl FromStr for LetterMark {
    type Err = ApiError;

    fn from_str(text: &str) -> Result<Self, ApiError> {
        let end = |entry: &str| {
            let (place, end) = entry.split_once(':')?;
            let place = percent_decode_str(place).decode_utf8().ok()?.into_owned();
            if let Some(time) = end.strip_prefix('t') {
                return Some((place, LetterEnd::Feed(Timestamp(time.parse().ok()?))));
            }
            let (ends, id) = match end.split_once('@') {
                Some((ends, id)) => (ends, Some(u64::from_str_radix(id, 16).ok()?)),
                None => (end, None),
            };
            let ends: Option<Vec<u64>> = ends.split('.').map(|end| end.parse().ok()).collect();
            Some((place, LetterEnd::Topic(id, ends?)))
        };
        let ends: Option<BTreeMap<_, _>> = match text {
            NOTHING => Some(BTreeMap::new()),
            text => text.split(',').map(end).collect(),
        };
        ends.map(LetterMark).ok_or_else(|| {
            ApiError::usage(format!("`{text}` does not say until where"))
                .hint("take it from a dry run: `potok dead-letters replay orders --dry-run`")
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_is_written() {
        let text = "orders-dead:12.0.5,public.outbox%2C%20x:t1700,r-dead:7@00000000000000ff";
        let mark: LetterMark = text.parse().unwrap();
        assert_eq!(mark.end_of("orders-dead"), Some(&LetterEnd::Topic(None, vec![12, 0, 5])));
        assert_eq!(mark.end_of("public.outbox, x"), Some(&LetterEnd::Feed(Timestamp(1_700))));
        assert_eq!(mark.end_of("r-dead"), Some(&LetterEnd::Topic(Some(255), vec![7])));
        assert_eq!(mark.end_of("other-dead"), None);
        assert!("nothing".parse::<LetterMark>().unwrap().is_empty());
        assert_eq!(LetterMark::default().to_string(), "nothing");
        assert_eq!(mark.to_string().parse::<LetterMark>().unwrap(), mark);
        for bad in ["", "orders-dead", "orders-dead:x", "orders-dead:1@x", "outbox:tx"] {
            assert!(bad.parse::<LetterMark>().is_err(), "{bad}");
        }
    }
}
