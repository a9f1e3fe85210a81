//! Progress on its way into the group.

use potok_core::Partition;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::time::Instant;

use super::super::lock;
use super::super::progress::Commit;
use super::{Poller, offset_of};

impl Poller {
    pub(super) fn commit_soon(&mut self) {
        let commits = lock(&self.progress).take_changed(self.group_hash, None);
        self.committed_at = Instant::now();
        if commits.is_empty() {
            return;
        }
        match self.queue.commit(&commit_list(&commits)) {
            Ok(()) => self.committing = true,
            Err(code) => {
                tracing::debug!(%code, "progress could not be committed; trying again");
                self.again(&commits);
            }
        }
    }

    /// Commits and waits for the answer. Where it fails, the last moments will be read again.
    pub(super) fn commit_now(&mut self, only: Option<&[u64]>) {
        let commits = lock(&self.progress).take_changed(self.group_hash, only);
        if commits.is_empty() {
            return;
        }
        let committed = self.queue.consumer().commit(&commit_list(&commits), CommitMode::Sync);
        if let Err(error) = committed {
            if error.rdkafka_error_code() == Some(Code::OffsetMetadataTooLarge) {
                lock(&self.progress).shrink();
                return self.commit_now(only);
            }
            tracing::debug!(%error, "progress could not be committed");
            self.again(&commits);
        }
    }

    pub(super) fn again(&self, commits: &[Commit]) {
        let mut progress = lock(&self.progress);
        commits.iter().for_each(|commit| progress.again(&commit.partition));
    }

    pub(super) fn committed(
        &mut self,
        code: Code,
        failed: &[(Partition, Code)],
        all: &[Partition],
    ) {
        self.committing = false;
        let too_large = |code: Code| code == Code::OffsetMetadataTooLarge;
        if too_large(code) || failed.iter().any(|(_, code)| too_large(*code)) {
            lock(&self.progress).shrink();
            return;
        }
        if code == Code::NoError && failed.is_empty() {
            return;
        }
        // A rebalance is on its way, or the coordinator moved: whoever still has the partition
        // then commits again.
        tracing::debug!(%code, "progress could not be committed; trying again");
        let mut progress = lock(&self.progress);
        if failed.is_empty() {
            all.iter().for_each(|partition| progress.again(partition));
        }
        failed.iter().for_each(|(partition, _)| progress.again(partition));
    }
}

fn commit_list(commits: &[Commit]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(commits.len());
    for Commit { partition, position, metadata } in commits {
        let mut place = list.add_partition(&partition.topic, partition.index as i32);
        // An offset that fits an `i64` is taken.
        let _ = place.set_offset(offset_of(*position));
        if !metadata.is_empty() {
            place.set_metadata(metadata);
        }
    }
    list
}
