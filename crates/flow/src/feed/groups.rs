//! Groups that wait in feeds, for people: they are shown and closed like those that are held here.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use potok_core::{CloseReason, Fault, FeedGroup, FeedGroups, Timestamp};

use crate::engine::Engine;
use crate::group::{GroupView, KindView};

/// A feed that does not answer is left out.
const ANSWER_MAX: Duration = Duration::from_secs(5);

impl Engine {
    /// The feeds with groups of all pipelines, or of one of them.
    fn feeds_with_groups(&self, pipeline: Option<&str>) -> Vec<(String, Arc<dyn FeedGroups>)> {
        let pipelines = self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted =
            pipelines.iter().filter(|(name, _)| pipeline.is_none_or(|wanted| wanted == *name));
        let feeds = wanted.flat_map(|(name, handle)| {
            handle.feed_groups.iter().map(|groups| (name.clone(), groups.clone()))
        });
        feeds.collect()
    }

    /// Groups that wait in feeds, behind the first `skip`, those that close first in front; and how
    /// many there are.
    pub async fn feed_groups(
        &self,
        pipeline: Option<&str>,
        mut skip: u64,
        most: usize,
    ) -> Result<(u64, Vec<GroupView>), Fault> {
        let (mut all, mut views) = (0, Vec::new());
        for (name, feed) in self.feeds_with_groups(pipeline) {
            let room = most.saturating_sub(views.len());
            let (total, groups) = soon(feed.list(skip, room)).await?;
            skip = skip.saturating_sub(total);
            all += total;
            views.extend(groups.into_iter().map(|group| view(&name, group)));
        }
        Ok((all, views))
    }

    /// Groups of one key that wait in feeds.
    pub async fn feed_groups_of(
        &self,
        pipeline: Option<&str>,
        key: &str,
    ) -> Result<Vec<GroupView>, Fault> {
        let mut views = Vec::new();
        for (name, feed) in self.feeds_with_groups(pipeline) {
            let groups = soon(feed.of_key(key.as_bytes())).await?;
            views.extend(groups.into_iter().map(|group| view(&name, group)));
        }
        Ok(views)
    }

    /// Closes the open group of that key in a feed of the pipeline; false where there is none.
    pub async fn close_feed_group(
        &self,
        pipeline: &str,
        key: &str,
        reason: CloseReason,
    ) -> Result<bool, Fault> {
        for (_, feed) in self.feeds_with_groups(Some(pipeline)) {
            if soon(feed.close(key.as_bytes(), reason)).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

async fn soon<T>(answer: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let answer = tokio::time::timeout(ANSWER_MAX, answer).await;
    answer.unwrap_or_else(|_| Err(Fault::wait("a feed does not answer").code("P1212")))
}

fn view(pipeline: &str, group: FeedGroup) -> GroupView {
    let text = |time: Option<Timestamp>| time.map(|time| time.to_string());
    let kind = KindView { records: group.records, ids: group.records };
    GroupView {
        pipeline: pipeline.to_owned(),
        id: String::from_utf8_lossy(&group.key).into_owned(),
        generation: group.generation,
        state: if group.is_delivering { "delivering" } else { "open" },
        kinds: BTreeMap::from([("record".to_owned(), kind)]),
        duplicates: 0,
        bytes: 0,
        opened: text(group.opened).unwrap_or_default(),
        due: text(group.due),
        reason: group.reason.map(CloseReason::as_str),
        owner: group.owner,
        attempts: group.attempts,
    }
}
