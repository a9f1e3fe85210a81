//! Long polling: requests that wait until there is something to say.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::connection::Connection;
use crate::node::{Attachment, Node};
use crate::transport::http_side::HttpSide;

/// One answer holds whole messages up to about this.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// An ended connection can be asked this long for its last words.
const LAST_WORDS_MAX: Duration = Duration::from_secs(5);

/// The first poll is answered at once: it marks the connection as begun.
pub(crate) fn begin(attachment: Attachment) -> Response {
    tokio::spawn(keep(attachment));
    said(Vec::new())
}

/// Keeps a connection that no request holds, until it ends.
async fn keep(attachment: Attachment) {
    if let Some(http) = attachment.connection.http.as_deref() {
        http.over.notified().await;
        attachment.end(crate::connection::Ending::Broken);
        let _ = tokio::time::timeout(LAST_WORDS_MAX, http.told.notified()).await;
    }
}

/// Waits for messages, the end of the connection, a newer poll, or the end of patience.
pub(crate) async fn poll(node: &Arc<Node>, connection: &Arc<Connection>) -> Response {
    let Some(http) = connection.http.as_deref() else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let number = http.newest.fetch_add(1, Ordering::AcqRel) + 1;
    // An older poll gives way.
    connection.wake();
    let _polling = http.poll.lock().await;
    let _present = PollGuard::new(node, http);
    let waiting = std::future::poll_fn(|cx| {
        connection.register(cx.waker());
        let newer = http.newest.load(Ordering::Acquire) != number;
        let over = connection.ending().is_some();
        if newer || over || connection.has_ready() { Poll::Ready(newer) } else { Poll::Pending }
    });
    let patience = node.limits().poll_for;
    if let Ok(true) = tokio::time::timeout(patience, waiting).await {
        return StatusCode::NO_CONTENT.into_response();
    }
    let mut body = Vec::new();
    while body.len() < ANSWER_BYTES_MAX {
        let Some(encoded) = connection.take(node.now()) else { break };
        body.extend_from_slice(encoded.as_bytes());
    }
    let Some(ending) = connection.ending() else { return said(body) };
    if http.said_goodbye.swap(true, Ordering::AcqRel) {
        http.told.notify_one();
        return StatusCode::NO_CONTENT.into_response();
    }
    if let (Some((error, again)), Some(protocol)) = (ending.farewell(), connection.protocol()) {
        body.extend_from_slice(protocol.close(error, again).as_bytes());
    }
    if body.is_empty() {
        http.told.notify_one();
        return StatusCode::NO_CONTENT.into_response();
    }
    said(body)
}

fn said(body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    let octets = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, octets);
    response
}

/// Marks that a poll waits, also when its request is dropped.
struct PollGuard<'a> {
    node: &'a Node,
    http: &'a HttpSide,
}

impl<'a> PollGuard<'a> {
    fn new(node: &'a Node, http: &'a HttpSide) -> Self {
        http.polling(true, node.now());
        PollGuard { node, http }
    }
}

impl Drop for PollGuard<'_> {
    fn drop(&mut self) {
        self.http.polling(false, self.node.now());
    }
}
