//! Server-sent events: a response without end. What the client says comes in requests of its own.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures::Stream;

use crate::connection::Ending;
use crate::node::{Attachment, Node};

pub(crate) fn response(node: Arc<Node>, attachment: Attachment) -> Response {
    let events = Events { node, attachment, state: StreamState::Beginning };
    let mut response = Response::new(Body::from_stream(events));
    let mut set = |name: HeaderName, value: &'static str| {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    };
    set(header::CONTENT_TYPE, "text/event-stream");
    // Proxies would hold it back.
    set(HeaderName::from_static("x-accel-buffering"), "no");
    response
}

enum StreamState {
    Beginning,
    Open,
    Over,
}

struct Events {
    node: Arc<Node>,
    attachment: Attachment,
    state: StreamState,
}

impl Stream for Events {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let connection = &this.attachment.connection;
        match this.state {
            StreamState::Beginning => {
                this.state = StreamState::Open;
                // Makes proxies and clients see the head.
                return Poll::Ready(Some(Ok(Bytes::from_static(b":\r\n"))));
            }
            StreamState::Over => return Poll::Ready(None),
            StreamState::Open => {}
        }
        connection.register(cx.waker());
        if let Some(ending) = connection.ending() {
            this.state = StreamState::Over;
            this.attachment.end(ending);
            let mut left = Vec::new();
            if ending != Ending::Slow {
                while let Some(encoded) = connection.take(this.node.now()) {
                    event(&mut left, encoded.as_bytes());
                }
            }
            if let (Some((error, again)), Some(protocol)) =
                (ending.farewell(), connection.protocol())
            {
                event(&mut left, protocol.close(error, again).as_bytes());
            }
            return Poll::Ready((!left.is_empty()).then(|| Ok(left.into())));
        }
        match connection.take(this.node.now()) {
            Some(encoded) => {
                let mut bytes = Vec::with_capacity(encoded.as_bytes().len() + 16);
                event(&mut bytes, encoded.as_bytes());
                Poll::Ready(Some(Ok(bytes.into())))
            }
            None => Poll::Pending,
        }
    }
}

/// Messages are JSON on one line.
fn event(to: &mut Vec<u8>, message: &[u8]) {
    to.extend_from_slice(b"data: ");
    to.extend_from_slice(message);
    to.extend_from_slice(b"\r\n\r\n");
}
