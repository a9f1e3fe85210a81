//! The open dead letters as pages show them: exact counts, causes, and the newest ones.
//!
//! A page must cost the same with ten and with a million. So one task reads them all, only when
//! somebody looks and something has changed, and rests five times as long as it read; pages take what
//! it found last and say how old that is.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use potok_core::Timestamp;
use potok_flow::dead_letter::DeadLetter;
use tokio::sync::watch;
use tokio::time::Instant;

use super::filter::{Filter, LetterFilter};
use super::select::Selection;
use crate::{Admin, ApiError};

/// The newest are listed; the others are counted.
pub(crate) const NEWEST_MAX: usize = 10_000;
/// How long a page waits for a reading that has begun.
const WAIT_MAX: Duration = Duration::from_millis(1_500);
/// How long the log may take to say whether something has changed.
const ASK_MAX: Duration = Duration::from_millis(500);
/// Rest after a reading, in times of how long it took.
const REST: u32 = 5;
const ERROR_CHARS_MAX: usize = 400;
const KEY_CHARS_MAX: usize = 200;

/// A dead letter in the list.
#[derive(Clone, Debug)]
pub(crate) struct LetterEntry {
    pub id: String,
    pub pipeline: String,
    pub reason: &'static str,
    pub error: String,
    pub cause: Arc<str>,
    pub attempts: u32,
    pub time: Timestamp,
    pub key: Option<String>,
    pub bytes: usize,
}

/// How many, and since when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    pub count: u64,
    pub first: Timestamp,
    pub last: Timestamp,
}

/// What a reading found.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub at: Timestamp,
    /// Exact, by pipeline and reason.
    pub counts: BTreeMap<(String, &'static str), Tally>,
    /// Newest first.
    pub newest: Vec<LetterEntry>,
    pub total: u64,
    /// Where topics ended when it was begun.
    ends: Vec<(String, Vec<u64>)>,
}

/// What pages know of dead letters now.
pub(crate) struct BookView {
    pub contents: Option<Arc<Contents>>,
    /// Something has changed since.
    pub stale: bool,
    /// Why they cannot be read.
    pub error: Option<String>,
}

#[derive(Default)]
struct State {
    contents: Option<Arc<Contents>>,
    error: Option<String>,
    reading: bool,
    not_before: Option<Instant>,
}

/// Kept by the admin API.
pub(crate) struct Book {
    state: Mutex<State>,
    readings: watch::Sender<u64>,
}

impl Default for Book {
    fn default() -> Self {
        Book { state: Mutex::default(), readings: watch::Sender::new(0) }
    }
}

impl Book {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self, stale: bool) -> BookView {
        let state = self.state();
        BookView { contents: state.contents.clone(), stale, error: state.error.clone() }
    }
}

/// The open dead letters, as new as can be had in a moment.
pub(crate) async fn open_letters(admin: &Admin) -> BookView {
    let book = &admin.inner.book;
    let ends = tokio::time::timeout(ASK_MAX, ends(admin)).await;
    let Ok(Ok(ends)) = ends else {
        let mut shown = book.shown(true);
        shown.error.get_or_insert_with(|| "the log does not answer".to_owned());
        return shown;
    };
    let mut readings = book.readings.subscribe();
    readings.mark_unchanged();
    {
        let mut state = book.state();
        let same = |contents: &Arc<Contents>| contents.ends == ends;
        if state.contents.as_ref().is_some_and(same) {
            drop(state);
            return book.shown(false);
        }
        let rests = state.not_before.is_some_and(|at| at > Instant::now());
        if rests {
            drop(state);
            return book.shown(true);
        }
        if !state.reading {
            state.reading = true;
            tokio::spawn(read(admin.clone(), ends));
        }
    }
    let read = tokio::time::timeout(WAIT_MAX, readings.changed()).await;
    book.shown(read.is_err())
}

/// Where the topics of dead letters, and of what became of them, end.
async fn ends(admin: &Admin) -> Result<Vec<(String, Vec<u64>)>, ApiError> {
    let mut named: Vec<String> = Vec::new();
    for group in admin.engine().consumer_groups().await?.iter() {
        named.extend([group.info.dead_letters.clone(), group.info.resolved.clone()]);
    }
    let is_of_letters = |topic: &str| {
        topic.ends_with("-dead")
            || topic.ends_with("-dead-resolved")
            || named.iter().any(|named| named == topic)
    };
    let topics = admin.engine().log().topics().await?.into_iter();
    let ours = topics.filter(|topic| is_of_letters(&topic.topic));
    Ok(ours.map(|topic| (topic.topic, topic.ends)).collect())
}

async fn read(admin: Admin, ends: Vec<(String, Vec<u64>)>) {
    let began = Instant::now();
    let found = gather(&admin).await;
    let book = &admin.inner.book;
    let mut state = book.state();
    match found {
        Ok(contents) => {
            state.contents = Some(Arc::new(Contents { ends, ..contents }));
            state.error = None;
        }
        Err(error) => state.error = Some(error.body.what),
    }
    state.reading = false;
    state.not_before = Some(Instant::now() + began.elapsed() * REST);
    drop(state);
    book.readings.send_modify(|readings| *readings += 1);
}

async fn gather(admin: &Admin) -> Result<Contents, ApiError> {
    let wanted = LetterFilter::read(Filter::default(), admin.engine())?;
    let mut selection = Selection::begin(admin, wanted, None).await?;
    let mut contents = Contents { at: admin.engine().clock().now(), ..Contents::default() };
    let mut causes: BTreeMap<String, Arc<str>> = BTreeMap::new();
    // Each topic has its dead letters in order; the newest of each are enough.
    let mut newest: BTreeMap<String, VecDeque<LetterEntry>> = BTreeMap::new();
    while let Some((shelf, letters)) = selection.next(usize::MAX).await? {
        let of_topic = newest.entry(shelf.info().dead_letters.clone()).or_default();
        for letter in letters {
            contents.total += 1;
            let (pipeline, reason) = (&letter.envelope.pipeline, letter.envelope.reason.word());
            let time = letter.envelope.time;
            let tally = contents.counts.entry((pipeline.clone(), reason)).or_insert(Tally {
                count: 0,
                first: time,
                last: time,
            });
            tally.count += 1;
            (tally.first, tally.last) = (tally.first.min(time), tally.last.max(time));
            if of_topic.len() == NEWEST_MAX {
                of_topic.pop_front();
            }
            of_topic.push_back(entry(letter, &mut causes));
        }
        tokio::task::yield_now().await;
    }
    contents.newest = newest.into_values().flatten().collect();
    contents.newest.sort_by(|one, other| (other.time, &other.id).cmp(&(one.time, &one.id)));
    contents.newest.truncate(NEWEST_MAX);
    Ok(contents)
}

fn entry(letter: DeadLetter, causes: &mut BTreeMap<String, Arc<str>>) -> LetterEntry {
    let DeadLetter { id, envelope, record, .. } = letter;
    let error: String = envelope.error.chars().take(ERROR_CHARS_MAX).collect();
    let cause = cause_of(&error);
    // Causes are few, dead letters many; what does not repeat is not worth a table.
    if causes.len() > NEWEST_MAX {
        causes.clear();
    }
    let cause = causes.entry(cause.clone()).or_insert_with(|| cause.into()).clone();
    let key = record.key.as_deref().map(|key| {
        let text = String::from_utf8_lossy(key);
        text.chars().take(KEY_CHARS_MAX).collect()
    });
    LetterEntry {
        id,
        pipeline: envelope.pipeline,
        reason: envelope.reason.word(),
        error,
        cause,
        attempts: envelope.attempts,
        time: envelope.time,
        key,
        bytes: record.bytes(),
    }
}

/// True for an error of that cause.
pub(super) fn is_of(error: &str, cause: &str) -> bool {
    let error: String = error.chars().take(ERROR_CHARS_MAX).collect();
    cause_of(&error) == cause
}

/// An error without its values: those that differ only in quoted text, numbers and ids have one cause.
pub(crate) fn cause_of(error: &str) -> String {
    let mut cause = String::with_capacity(error.len());
    let mut rest = error.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' => {
                cause.push_str("\"…\"");
                let mut escaped = false;
                for c in rest.by_ref() {
                    match (escaped, c) {
                        (false, '"') => break,
                        (escaped_before, c) => escaped = !escaped_before && c == '\\',
                    }
                }
            }
            c if c.is_alphanumeric() || c == '_' => {
                let mut word = String::from(c);
                while let Some(c) = rest.peek().copied().filter(|c| is_of_word(*c)) {
                    word.push(c);
                    rest.next();
                }
                cause.push_str(if is_value(&word) { "#" } else { &word });
            }
            c => cause.push(c),
        }
    }
    cause
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// A number, or a long word with digits in it: an id.
fn is_value(word: &str) -> bool {
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    digits > 0 && (digits == word.len() || word.len() >= 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_an_error_without_its_values() {
        let same = [
            r#"/payment/currency: "rub" does not match ^[A-Z]{3}$"#,
            r#"/payment/currency: "u\"sd" does not match ^[A-Z]{9}$"#,
        ];
        let causes = same.map(cause_of);
        assert_eq!(causes[0], "/payment/currency: \"…\" does not match ^[A-Z]{#}$");
        assert_eq!(causes[0], causes[1]);
        assert_eq!(cause_of("row 17 of b563feb7b2b84b6t: x2"), "row # of #: x2");
        assert_eq!(cause_of("\"open"), "\"…\"");
    }
}
