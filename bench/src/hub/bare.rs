//! A hub without queues, windows, tokens or answers: a message is written to one socket after
//! another, and what comes back is counted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use anyhow::Result;
use futures::stream::SplitSink;
use futures::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

type Sink = SplitSink<WebSocketStream<TcpStream>, Message>;

pub struct BareHub {
    pub address: SocketAddr,
    shared: Arc<BareSockets>,
}

#[derive(Default)]
struct BareSockets {
    sinks: Mutex<Vec<Sink>>,
    answers: AtomicU64,
    /// Sockets that are still read from.
    open: AtomicUsize,
    more: Notify,
}

impl BareHub {
    pub async fn start() -> Result<Self> {
        let listener = potok_hub::listen(([127, 0, 0, 1], 0).into())?;
        let hub = BareHub { address: listener.local_addr()?, shared: Arc::default() };
        let shared = hub.shared.clone();
        tokio::spawn(accept(listener, shared));
        Ok(hub)
    }

    pub async fn wait_for(&self, count: usize) {
        loop {
            let more = self.shared.more.notified();
            if self.shared.sinks.lock().await.len() >= count {
                return;
            }
            more.await;
        }
    }

    /// Gives back all sockets, when the clients have gone.
    pub async fn wait_until_empty(&self) {
        self.shared.sinks.lock().await.clear();
        loop {
            let more = self.shared.more.notified();
            if self.shared.open.load(Ordering::Acquire) == 0 {
                return;
            }
            more.await;
        }
    }

    /// Writes to everybody; returns when all have answered.
    pub async fn send(&self, text: &str) {
        let (text, mut sinks) = (Utf8Bytes::from(text), self.shared.sinks.lock().await);
        let until = self.shared.answers.load(Ordering::Acquire) + sinks.len() as u64;
        for sink in sinks.iter_mut() {
            // One that is gone is noticed by its answer that does not come.
            let _ = sink.send(Message::Text(text.clone())).await;
        }
        loop {
            let more = self.shared.more.notified();
            if self.shared.answers.load(Ordering::Acquire) >= until {
                return;
            }
            more.await;
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<BareSockets>) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let shared = shared.clone();
        tokio::spawn(async move {
            let Ok(socket) = tokio_tungstenite::accept_async(stream).await else { return };
            let (mut sink, mut messages) = socket.split();
            // The handshake.
            if messages.next().await.is_none() {
                return;
            }
            let _ = sink.send(Message::text("{}\u{1e}")).await;
            shared.open.fetch_add(1, Ordering::AcqRel);
            shared.sinks.lock().await.push(sink);
            shared.more.notify_waiters();
            while let Some(Ok(_)) = messages.next().await {
                shared.answers.fetch_add(1, Ordering::Release);
                shared.more.notify_waiters();
            }
            shared.open.fetch_sub(1, Ordering::AcqRel);
            shared.more.notify_waiters();
        });
    }
}
