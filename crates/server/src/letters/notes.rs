//! What became of dead letters, followed: whoever asks for one of them reads only what is new since
//! somebody asked before, however many are settled.

use std::collections::HashMap;
use std::sync::Arc;

use potok_core::{Fault, Log, PipelineInfo};
use potok_flow::dead_letter::{LetterNotes, LetterOutcomes};
use tokio::sync::Mutex;

/// The notes of one topic, and which incarnation of it they are of.
type FollowedNotes = Arc<Mutex<Option<(Option<u64>, LetterNotes)>>>;

/// By the topic of the notes.
#[derive(Default)]
pub(crate) struct NotesByTopic(Mutex<HashMap<String, FollowedNotes>>);

impl NotesByTopic {
    /// What became of the dead letters of a topic by now.
    pub async fn of(
        &self,
        log: &dyn Log,
        info: &PipelineInfo,
    ) -> Result<Arc<LetterOutcomes>, Fault> {
        let followed = self.0.lock().await.entry(info.resolved.clone()).or_default().clone();
        let mut followed = followed.lock().await;
        let id = log.topic_id(&info.resolved).await?;
        // In another topic of the same name nothing is known.
        if followed.as_ref().is_some_and(|(of, _)| *of != id) {
            *followed = None;
        }
        // Whoever waits no longer leaves what was read by then to the next one who asks.
        let (_, notes) = followed.get_or_insert_with(|| (id, LetterNotes::new(log, info)));
        let settled = notes.catch_up(log).await;
        if settled.is_err() {
            // Nobody knows what was read.
            *followed = None;
        }
        settled
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use potok_core::{Headers, Output, SystemClock};
    use potok_flow::dead_letter;
    use potok_testkit::memory::MemoryLog;

    use super::*;

    #[tokio::test]
    async fn a_second_look_reads_only_what_is_new() {
        // Each look at one dead letter read the notes about all that were ever settled, twice.
        let log = MemoryLog::new(Arc::new(SystemClock));
        let info = dead_letter::info("orders", "orders-dead", 5);
        let notes = NotesByTopic::default();
        let first = notes.of(&log, &info).await.unwrap();
        let again = notes.of(&log, &info).await.unwrap();
        assert!(Arc::ptr_eq(&first, &again), "nothing is read anew");
        let value = Some(bytes::Bytes::from_static(b"{}"));
        let (topic, headers) = (info.resolved.as_str().into(), Headers::none());
        let note = Output { topic, partition: None, key: None, headers, value };
        log.append(&[note]).await.unwrap();
        let news = notes.of(&log, &info).await.unwrap();
        assert!(!Arc::ptr_eq(&first, &news), "who has what was known before keeps it");
        assert!(Arc::ptr_eq(&news, &notes.of(&log, &info).await.unwrap()));
    }
}
