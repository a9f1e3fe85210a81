//! A WebSocket: one task that reads and writes.
//!
//! Both directions are polled together. A task that awaited its writes would stop reading the
//! completions of a client whose receive window is full, and count them as missing although they
//! have long arrived.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use futures::{Sink, Stream, StreamExt};
use tokio_tungstenite::tungstenite::{self, error::ProtocolError};

use crate::connection::{Connection, Ending};
use crate::node::{Attachment, Node};
use crate::protocol::Encoded;
use crate::session::Session;
use crate::trouble::{Planted, planted};

/// Messages that are read before others get their turn.
const READS_MAX: usize = 32;
/// Messages that are written with one flush.
const WRITES_MAX: usize = 16;
/// How long the other side may take to close.
const CLOSING_MAX: Duration = Duration::from_secs(5);

/// Runs a connection to its end, on one socket after another where its client may come back.
pub(crate) async fn run(node: Arc<Node>, attachment: Attachment, mut socket: WebSocket) {
    let mut session = Session::default();
    loop {
        let ending = {
            let mut pump = Pump {
                node: &node,
                attachment: &attachment,
                socket: &mut socket,
                session: &mut session,
                flushing: false,
            };
            std::future::poll_fn(|cx| pump.poll(cx)).await
        };
        let connection = &attachment.connection;
        if ending != Ending::Broken || !connection.lose_socket(node.now()) {
            attachment.end(ending);
            let closing = close(&attachment, &mut socket, ending);
            let _ = tokio::time::timeout(CLOSING_MAX, closing).await;
            return;
        }
        match returned(connection).await {
            Ok(next) => socket = next,
            Err(ending) => return attachment.end(ending),
        }
        session.restart();
        connection.send_again(node.now());
    }
}

/// The socket that the client comes back with, or why it cannot any more.
async fn returned(connection: &Connection) -> Result<WebSocket, Ending> {
    std::future::poll_fn(|cx| {
        connection.register(cx.waker());
        if let Some(ending) = connection.ending() {
            return Poll::Ready(Err(ending));
        }
        connection.slot.take().map_or(Poll::Pending, |socket| Poll::Ready(Ok(socket)))
    })
    .await
}

struct Pump<'a> {
    node: &'a Arc<Node>,
    attachment: &'a Attachment,
    socket: &'a mut WebSocket,
    session: &'a mut Session,
    /// Whether something written is not flushed yet.
    flushing: bool,
}

impl Pump<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ending> {
        let connection = &self.attachment.connection;
        connection.register(cx.waker());
        if let Some(ending) = connection.ending() {
            return Poll::Ready(ending);
        }
        if connection.slot.is_filled() {
            // Its client has given up this socket.
            return Poll::Ready(Ending::Broken);
        }
        self.session.open_in_time(self.node, connection);
        match self.write(cx) {
            Poll::Ready(Err(())) => return Poll::Ready(Ending::Broken),
            Poll::Pending if planted(self.node.limits(), Planted::AwaitsSendInLoop) => {
                return Poll::Pending;
            }
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }
        self.read(cx)
    }

    /// Ready when there is nothing to write.
    fn write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ()>> {
        loop {
            if self.flushing {
                match Pin::new(&mut *self.socket).poll_flush(cx) {
                    Poll::Ready(Ok(())) => self.flushing = false,
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(())),
                    Poll::Pending => return Poll::Pending,
                }
            }
            for _ in 0..WRITES_MAX {
                match Pin::new(&mut *self.socket).poll_ready(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(())),
                    Poll::Pending => return Poll::Pending,
                }
                let Some(encoded) = self.attachment.connection.take(self.node.now()) else { break };
                let sent = Pin::new(&mut *self.socket).start_send(message(encoded));
                if sent.is_err() {
                    return Poll::Ready(Err(()));
                }
                self.flushing = true;
            }
            if !self.flushing {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn read(&mut self, cx: &mut Context<'_>) -> Poll<Ending> {
        for _ in 0..READS_MAX {
            let read = match Pin::new(&mut *self.socket).poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Ending::Broken),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(ending_of(error)),
                Poll::Ready(Some(Ok(message))) => message,
            };
            let bytes = match &read {
                Message::Text(text) => text.as_str().as_bytes(),
                Message::Binary(bytes) => &bytes[..],
                // Answered below us; no sign of life of the page behind it.
                Message::Ping(_) | Message::Pong(_) => continue,
                Message::Close(_) => return Poll::Ready(Ending::Broken),
            };
            let connection = &self.attachment.connection;
            if let Err(ending) = self.session.feed(self.node, connection, bytes) {
                return Poll::Ready(ending);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// A client that broke the rules would do it again where it was let come back.
fn ending_of(error: axum::Error) -> Ending {
    match error.into_inner().downcast_ref::<tungstenite::Error>() {
        Some(tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => {
            Ending::Broken
        }
        Some(
            tungstenite::Error::Capacity(_)
            | tungstenite::Error::Utf8(_)
            | tungstenite::Error::Protocol(_),
        ) => Ending::Violation,
        _ => Ending::Broken,
    }
}

fn message(encoded: Encoded) -> Message {
    match encoded {
        Encoded::Text(text) => Message::Text(text),
        Encoded::Binary(bytes) => Message::Binary(bytes),
    }
}

/// Says what is left to say, and closes.
async fn close(attachment: &Attachment, socket: &mut WebSocket, ending: Ending) {
    let connection = &attachment.connection;
    match ending {
        // Nobody takes it.
        Ending::Broken | Ending::Slow | Ending::Silent => return,
        // An answer to a handshake that was refused may be left.
        Ending::ByClient
        | Ending::Elsewhere
        | Ending::Kicked
        | Ending::Violation
        | Ending::NoHandshake => {
            while let Some(encoded) = connection.take(0) {
                if socket.send(message(encoded)).await.is_err() {
                    return;
                }
            }
        }
    }
    if let (Some((error, reconnect)), Some(protocol)) = (ending.farewell(), connection.protocol()) {
        let _ = socket.send(message(protocol.close(error, reconnect))).await;
    }
    let normal = CloseFrame { code: close_code::NORMAL, reason: Default::default() };
    if socket.send(Message::Close(Some(normal))).await.is_ok() {
        while let Some(Ok(_)) = socket.next().await {}
    }
}
