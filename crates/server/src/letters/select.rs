//! Reads the dead letters that somebody wants, page by page.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::http::StatusCode;
use potok_core::{Envelope, Feed, FeedLetter, FeedLetters, PipelineInfo, Timestamp};
use potok_flow::dead_letter::{self, DeadLetter, DeadLetterState, LetterId, LetterOutcomes, Pages};

use super::filter::{LetterFilter, LetterName};
use super::mark::{LetterEnd, LetterMark};
use crate::outbox::soon;
use crate::{Admin, ApiError};

/// Dead letters looked at together, and their bytes.
pub(super) const PAGE_LETTERS_MAX: usize = 500;
const PAGE_BYTES_MAX: usize = 8 << 20;
/// A feed does not know how large they are before it has read them.
const FEED_LETTERS_MAX: usize = 100;

/// A dead-letter topic, and the pipelines that write to it; or what a feed keeps itself.
pub(super) struct LetterTopic {
    /// Its topics.
    info: PipelineInfo,
    pipelines: Vec<PipelineInfo>,
    feed: Option<Arc<dyn Feed>>,
}

impl LetterTopic {
    /// The pipeline that a dead letter is of, if it is known here.
    pub fn pipeline_of(&self, letter: &DeadLetter) -> Option<&PipelineInfo> {
        self.pipelines.iter().find(|info| info.pipeline == letter.envelope.pipeline)
    }

    pub fn info(&self) -> &PipelineInfo {
        &self.info
    }

    /// The feed that keeps them, where it is one.
    pub fn kept(&self) -> Option<&dyn FeedLetters> {
        self.feed.as_ref()?.letters()
    }

    /// The ids of these in the feed that keeps them.
    pub fn ids_in_feed(&self, letters: &[DeadLetter]) -> Vec<String> {
        let place = format!("{}/", self.info.dead_letters);
        let id = |letter: &DeadLetter| letter.id.strip_prefix(&place).map(str::to_owned);
        letters.iter().filter_map(id).collect()
    }

    /// One that a feed keeps, like any other.
    pub fn letter(&self, kept: FeedLetter) -> DeadLetter {
        let FeedLetter { id, record, origin, reason, error, attempts, time } = kept;
        DeadLetter {
            id: format!("{}/{id}", self.info.dead_letters),
            position: origin.clone(),
            envelope: Envelope {
                pipeline: self.info.pipeline.clone(),
                origin,
                deliver: None,
                reason,
                error,
                attempts,
                time,
                replay_of: None,
                shard: None,
                piece: None,
            },
            state: DeadLetterState::Open,
            time,
            record,
        }
    }
}

/// The dead-letter topics that are here; only those of one pipeline where one is named.
pub(super) async fn shelves(
    admin: &Admin,
    only: Option<&str>,
) -> Result<Vec<LetterTopic>, ApiError> {
    let log = admin.engine().log();
    let mut shelves: Vec<LetterTopic> = Vec::new();
    for group in log.consumer_groups().await? {
        let same = |shelf: &&mut LetterTopic| shelf.info.dead_letters == group.info.dead_letters;
        match shelves.iter_mut().find(same) {
            Some(shelf) => shelf.pipelines.push(group.info),
            None => {
                let pipelines = vec![group.info.clone()];
                shelves.push(LetterTopic { info: group.info, pipelines, feed: None });
            }
        }
    }
    // A group may have been forgotten, and the log's own dead letters have none.
    for topic in log.topics().await? {
        let covered = shelves.iter().any(|shelf| shelf.info.dead_letters == topic.topic);
        if let (Some(pipeline), false) = (topic.topic.strip_suffix("-dead"), covered) {
            let info = dead_letter::info(pipeline, &topic.topic, 0);
            shelves.push(LetterTopic { info, pipelines: Vec::new(), feed: None });
        }
    }
    for (pipeline, feed) in admin.engine().feeds(None) {
        if let Some(kept) = feed.letters() {
            let info = dead_letter::info(&pipeline, kept.place(), 0);
            let pipelines = vec![info.clone()];
            shelves.push(LetterTopic { info, pipelines, feed: Some(feed) });
        }
    }
    shelves.sort_by(|a, b| a.info.dead_letters.cmp(&b.info.dead_letters));
    let Some(only) = only else { return Ok(shelves) };
    let is_of = |shelf: &LetterTopic| {
        shelf.info.pipeline == only || shelf.pipelines.iter().any(|info| info.pipeline == only)
    };
    if !shelves.iter().any(is_of)
        && admin.engine().status().await.iter().all(|status| status.pipeline != only)
    {
        let known: Vec<_> = shelves.into_iter().map(|shelf| shelf.info.pipeline).collect();
        return Err(ApiError::unknown_pipeline(only, &known));
    }
    shelves.retain(is_of);
    Ok(shelves)
}

/// What is read of a shelf.
enum LetterReader {
    All(Box<Pages>),
    /// Those of these names, each alone.
    Named(VecDeque<LetterId>, Arc<LetterOutcomes>),
    /// What a feed keeps, behind that time and id, until that time.
    Kept(Option<(Timestamp, String)>, Option<Timestamp>),
    /// Those of these ids that a feed keeps.
    KeptNamed(Vec<String>),
}

/// What is looked for, and until where.
struct LetterScope {
    admin: Admin,
    wanted: Arc<LetterFilter>,
    /// Where the list of them ends, where that is settled.
    until: Option<LetterMark>,
}

/// The dead letters wanted, in the order of the log within a topic.
pub(super) struct Selection {
    scope: LetterScope,
    shelves: VecDeque<Arc<LetterTopic>>,
    reading: Option<(Arc<LetterTopic>, LetterReader)>,
}

impl LetterScope {
    /// Reads a shelf from its beginning; `None` where nothing of it is meant.
    async fn reader_of(&self, shelf: &LetterTopic) -> Result<Option<LetterReader>, ApiError> {
        let log = self.admin.engine().log().clone();
        let place = shelf.info.dead_letters.as_str();
        if let Some(ids) = &self.wanted.ids {
            if shelf.feed.is_some() {
                let ours = ids.iter().filter_map(|id| id.kept_in(place)).map(str::to_owned);
                return Ok(Some(LetterReader::KeptNamed(ours.collect())));
            }
            let ours = ids.iter().filter_map(|id| id.in_topic(place));
            let ids: VecDeque<LetterId> = ours.cloned().collect();
            if ids.is_empty() {
                return Ok(None);
            }
            let settled = self.admin.inner.notes.of(log.as_ref(), &shelf.info).await?;
            return Ok(Some(LetterReader::Named(ids, settled)));
        }
        let end = match &self.until {
            None => None,
            Some(until) => match until.end_of(place) {
                None => return Ok(None),
                Some(end) => Some(end),
            },
        };
        if shelf.feed.is_some() {
            let until = match end {
                Some(LetterEnd::Feed(until)) => Some(*until),
                _ => None,
            };
            return Ok(Some(LetterReader::Kept(None, until)));
        }
        let pages = self.pages_of(shelf, None, end).await?;
        Ok(pages.map(|pages| LetterReader::All(Box::new(pages))))
    }

    /// Goes on in a shelf where an earlier selection stopped.
    async fn reader_from(
        &self,
        shelf: &LetterTopic,
        cursor: &str,
        offsets: &str,
    ) -> Result<Option<LetterReader>, ApiError> {
        let end = self.until.as_ref().map(|until| until.end_of(&shelf.info.dead_letters));
        if end == Some(None) {
            return Ok(None);
        }
        let end = end.flatten();
        if shelf.feed.is_some() {
            let after = offsets
                .split_once('/')
                .and_then(|(time, id)| Some((Timestamp(time.parse().ok()?), id.to_owned())))
                .ok_or_else(|| ApiError::usage(format!("`{cursor}` is not a cursor")))?;
            let until = match end {
                Some(LetterEnd::Feed(until)) => Some(*until),
                _ => None,
            };
            return Ok(Some(LetterReader::Kept(Some(after), until)));
        }
        let pages = self.pages_of(shelf, Some(offsets), end).await?;
        Ok(pages.map(|pages| LetterReader::All(Box::new(pages))))
    }

    /// A pass over a topic; `None` where it is another one by now than the one that was meant.
    async fn pages_of(
        &self,
        shelf: &LetterTopic,
        cursor: Option<&str>,
        end: Option<&LetterEnd>,
    ) -> Result<Option<Pages>, ApiError> {
        let log = self.admin.engine().log().clone();
        let (log, info) = (log.as_ref(), &shelf.info);
        let ends = match end {
            None => None,
            Some(LetterEnd::Feed(_)) => return Ok(None),
            Some(LetterEnd::Topic(id, ends)) => {
                if log.topic_id(&info.dead_letters).await? != *id {
                    return Ok(None);
                }
                Some(ends)
            }
        };
        let settled = self.admin.inner.notes.of(log, info).await?;
        let pages = Pages::open_with(log, info, settled, cursor).await;
        let mut pages = pages.map_err(|fault| match fault.code {
            "P0501" => ApiError::usage(fault.what),
            _ => fault.into(),
        })?;
        if let Some(ends) = ends {
            pages.end_at(ends);
        }
        Ok(Some(pages))
    }
}

impl Selection {
    /// Begins at the first, or where an earlier one stopped.
    pub async fn begin(
        admin: &Admin,
        wanted: LetterFilter,
        cursor: Option<&str>,
    ) -> Result<Selection, ApiError> {
        let shelves = shelves(admin, wanted.pipeline.as_deref()).await?;
        let until = wanted.until.clone();
        let mut selection = Selection {
            scope: LetterScope { admin: admin.clone(), wanted: Arc::new(wanted), until },
            shelves: shelves.into_iter().map(Arc::new).collect(),
            reading: None,
        };
        selection.check_names().await?;
        if let Some(cursor) = cursor {
            let (topic, offsets) = cursor
                .split_once(':')
                .ok_or_else(|| ApiError::usage(format!("`{cursor}` is not a cursor")))?;
            while let Some(shelf) = selection.shelves.pop_front() {
                if shelf.info.dead_letters == topic {
                    let reader = selection.scope.reader_from(&shelf, cursor, offsets).await?;
                    selection.reading = reader.map(|reader| (shelf, reader));
                    break;
                }
            }
        }
        Ok(selection)
    }

    /// Settles where it ends: what is set aside from now on is left to others. Which feeds do not say
    /// what they have, and are left alone.
    pub async fn settle_end(&mut self) -> Result<Vec<String>, ApiError> {
        if self.scope.until.is_some() || self.scope.wanted.ids.is_some() {
            return Ok(Vec::new());
        }
        let shelves: Vec<Arc<LetterTopic>> = self.shelves.iter().cloned().collect();
        let (until, unknown) = LetterMark::now(&self.scope.admin, &shelves).await?;
        if let (true, Some(first)) = (until.is_empty(), unknown.first()) {
            return Err(potok_core::Fault::wait(first).code("P1331").into());
        }
        self.scope.until = Some(until);
        Ok(unknown)
    }

    /// Where it ends, where that is settled.
    pub fn until(&self) -> Option<&LetterMark> {
        self.scope.until.as_ref()
    }

    /// Says which of those named are not there, before anything is done with the others.
    async fn check_names(&mut self) -> Result<(), ApiError> {
        let wanted = self.scope.wanted.clone();
        let Some(ids) = &wanted.ids else { return Ok(()) };
        let mut missing: Vec<&LetterName> = ids.iter().collect();
        let log = self.scope.admin.engine().log().clone();
        for shelf in &self.shelves {
            let place = shelf.info.dead_letters.as_str();
            if let Some(kept) = shelf.kept() {
                let ours = ids.iter().filter_map(|id| id.kept_in(place)).map(str::to_owned);
                let found = soon(kept.find(&ours.collect::<Vec<_>>())).await?;
                let found = found.into_iter().map(|kept| shelf.letter(kept)).collect();
                let found = shelf.ids_in_feed(&filter(wanted.clone(), found).await?);
                let is_found = |id: &str| found.iter().any(|found| found == id);
                missing.retain(|missing| !missing.kept_in(place).is_some_and(is_found));
                continue;
            }
            let ours: Vec<LetterId> =
                ids.iter().filter_map(|id| id.in_topic(place)).cloned().collect();
            if ours.is_empty() {
                continue;
            }
            let settled = self.scope.admin.inner.notes.of(log.as_ref(), &shelf.info).await?;
            for id in ours {
                let found = dead_letter::find(
                    log.as_ref(),
                    &shelf.info,
                    &settled,
                    std::slice::from_ref(&id),
                )
                .await?;
                if filter(wanted.clone(), found).await?.is_empty() {
                    continue;
                }
                missing.retain(|missing| missing.in_topic(place) != Some(&id));
            }
        }
        let Some(missing) = missing.first() else { return Ok(()) };
        let what = format!("there is no open dead letter `{missing}`");
        Err(ApiError::new(StatusCode::NOT_FOUND, "P0514", what)
            .hint("`potok dead-letters list --all` shows those replayed and dropped too"))
    }

    /// The next of them, up to `most`; none at the end.
    pub async fn next(
        &mut self,
        most: usize,
    ) -> Result<Option<(Arc<LetterTopic>, Vec<DeadLetter>)>, ApiError> {
        loop {
            let Some(page) = self.page(most.min(PAGE_LETTERS_MAX)).await? else {
                return Ok(None);
            };
            let (shelf, letters) = page;
            let letters = filter(self.scope.wanted.clone(), letters).await?;
            if !letters.is_empty() {
                return Ok(Some((shelf, letters)));
            }
        }
    }

    /// Where a later selection goes on; `None` at the end.
    pub fn cursor(&self) -> Option<String> {
        match &self.reading {
            Some((shelf, LetterReader::All(pages))) => {
                Some(format!("{}:{}", shelf.info.dead_letters, pages.cursor()))
            }
            Some((shelf, LetterReader::Kept(Some((time, id)), _))) => {
                Some(format!("{}:{}/{id}", shelf.info.dead_letters, time.0))
            }
            _ => None,
        }
    }

    /// The next dead letters there are, wanted or not.
    async fn page(
        &mut self,
        most: usize,
    ) -> Result<Option<(Arc<LetterTopic>, Vec<DeadLetter>)>, ApiError> {
        let log = self.scope.admin.engine().log().clone();
        loop {
            let Some((shelf, reading)) = &mut self.reading else {
                let Some(shelf) = self.shelves.pop_front() else { return Ok(None) };
                let reader = self.scope.reader_of(&shelf).await?;
                self.reading = reader.map(|reader| (shelf, reader));
                continue;
            };
            if let Some(kept) = shelf.kept() {
                let most = most.min(FEED_LETTERS_MAX);
                let found = match reading {
                    LetterReader::Kept(after, until) => {
                        let from = after.as_ref().map(|(time, id)| (*time, id.as_str()));
                        let mut found = soon(kept.list(from, most)).await?;
                        found.retain(|one| until.is_none_or(|until| one.time <= until));
                        *after = found.last().map(|last| (last.time, last.id.clone()));
                        found
                    }
                    LetterReader::KeptNamed(ids) => {
                        let rest = ids.split_off(ids.len().min(most));
                        soon(kept.find(&std::mem::replace(ids, rest))).await?
                    }
                    LetterReader::All(_) | LetterReader::Named(..) => Vec::new(),
                };
                if found.is_empty() {
                    self.reading = None;
                    continue;
                }
                let found = found.into_iter().map(|kept| shelf.letter(kept)).collect();
                return Ok(Some((shelf.clone(), found)));
            }
            let mut letters = Vec::new();
            let mut bytes = 0;
            while letters.len() < most && bytes < PAGE_BYTES_MAX {
                let letter = match reading {
                    LetterReader::All(pages) => pages.next().await?,
                    LetterReader::Kept(..) | LetterReader::KeptNamed(_) => None,
                    LetterReader::Named(ids, settled) => match ids.pop_front() {
                        None => None,
                        Some(id) => {
                            let ids = [id];
                            let found =
                                dead_letter::find(log.as_ref(), &shelf.info, settled, &ids).await?;
                            match found.into_iter().next() {
                                Some(letter) => Some(letter),
                                None => continue,
                            }
                        }
                    },
                };
                let Some(letter) = letter else { break };
                bytes += letter.record.bytes();
                letters.push(letter);
            }
            if letters.is_empty() {
                self.reading = None;
                continue;
            }
            return Ok(Some((shelf.clone(), letters)));
        }
    }
}

async fn filter(
    wanted: Arc<LetterFilter>,
    letters: Vec<DeadLetter>,
) -> Result<Vec<DeadLetter>, ApiError> {
    // Predicates are somebody's programs: they run where they hold up nothing else.
    let matching = tokio::task::spawn_blocking(move || {
        let keep = |letter: DeadLetter| match wanted.matches(&letter) {
            Ok(matches) => matches.then_some(Ok(letter)),
            Err(error) => Some(Err(error)),
        };
        letters.into_iter().filter_map(keep).collect::<Result<Vec<_>, _>>()
    });
    matching.await.map_err(|error| ApiError::usage("the filter died").because(error))?
}
