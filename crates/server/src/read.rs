//! Out of a topic: records as lines of JSON, as many as the client takes.
//!
//! The stream reads the log only as fast as the client reads the stream. An error after the first
//! line can no longer change the status, so it comes as a last line `{"error": …}`.

use std::collections::VecDeque;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use potok_core::{ReadFrom, Reader, Record, SourceBatch};
use serde::Deserialize;

use crate::line::{LINES_TYPE, RecordLine, push_line};
use crate::request::Params;
use crate::{Admin, ApiError};

/// Lines of about this size are sent at once.
const CHUNK_BYTES: usize = 256 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadQuery {
    /// `start` (default), `end`, or an offset.
    from: Option<String>,
    /// Stop after so many.
    count: Option<u64>,
    /// Wait for more at the end.
    #[serde(default)]
    follow: bool,
}

pub(crate) async fn records(
    State(admin): State<Admin>,
    Path(topic): Path<String>,
    Params(wish): Params<ReadQuery>,
) -> Result<Response, ApiError> {
    let from = match wish.from.as_deref() {
        None | Some("start") => ReadFrom::Start,
        Some("end") => ReadFrom::End,
        Some(offset) => ReadFrom::Offset(offset.parse().map_err(|_| {
            ApiError::usage(format!("`from={offset}` is not `start`, `end` or an offset"))
        })?),
    };
    let log = admin.engine().log().clone();
    let mut known: Vec<String> = log.topics().await?.into_iter().map(|t| t.topic).collect();
    if !known.contains(&topic) {
        known.retain(|name| !name.starts_with("potok-"));
        return Err(ApiError::unknown_topic(&topic, &known));
    }
    let reader = log.read(&topic, from).await?;
    let lines = Lines {
        admin,
        reader,
        left: wish.count.unwrap_or(u64::MAX),
        follow: wish.follow,
        records: VecDeque::new(),
        batches: Vec::new(),
    };
    Ok(stream(lines))
}

struct Lines {
    admin: Admin,
    reader: Box<dyn Reader>,
    left: u64,
    follow: bool,
    /// Records that came among each other, in the order in which they came, and their batches.
    records: VecDeque<(usize, Record)>,
    batches: Vec<SourceBatch>,
}

fn stream(lines: Lines) -> Response {
    let chunks = futures::stream::unfold(Some(lines), |lines| async {
        let mut lines = lines?;
        match lines.next().await {
            Ok(chunk) => chunk.map(|chunk| (Ok::<_, std::io::Error>(chunk), Some(lines))),
            Err(error) => Some((Ok(Bytes::from(error.line())), None)),
        }
    });
    ([(CONTENT_TYPE, LINES_TYPE)], Body::from_stream(chunks)).into_response()
}

impl Lines {
    /// The next lines; `None` when there are no more.
    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        if self.left == 0 {
            return Ok(None);
        }
        if self.records.is_empty() && !self.read_on().await? {
            return Ok(None);
        }
        let mut chunk = Vec::new();
        while self.left > 0
            && chunk.len() < CHUNK_BYTES
            && let Some((of, record)) = self.records.pop_front()
        {
            let Some(SourceBatch { partition, .. }) = self.batches.get(of) else { continue };
            let (topic, partition) = (&partition.topic, partition.index);
            push_line(&mut chunk, &RecordLine { topic, partition, record: &record });
            self.left -= 1;
        }
        Ok(Some(chunk.into()))
    }

    /// Reads a batch, and with it those of other partitions whose records came among its own. False
    /// at the end.
    async fn read_on(&mut self) -> Result<bool, ApiError> {
        self.batches.clear();
        loop {
            let batch = tokio::select! {
                batch = self.reader.next(self.follow) => batch?,
                () = self.admin.closed() => None,
            };
            let Some(batch) = batch else { break };
            let has_more = batch.has_more();
            self.batches.push(batch);
            if !has_more {
                break;
            }
        }
        let mut records = Vec::new();
        for (of, batch) in self.batches.iter_mut().enumerate() {
            let places = batch.order.take().map(|order| order.places).unwrap_or_default();
            let places = places.into_iter().map(Some).chain(std::iter::repeat(None));
            let taken = std::mem::take(&mut batch.records).into_iter().zip(places);
            records.extend(taken.map(|(record, place)| (place, of, record)));
        }
        records.sort_by_key(|(place, ..)| *place);
        self.records = records.into_iter().map(|(_, of, record)| (of, record)).collect();
        Ok(!self.batches.is_empty())
    }
}
