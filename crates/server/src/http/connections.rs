//! Connections of strangers: so many, each with so much time for its headers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_util::task::TaskTracker;

use crate::patience::PatientStream;

/// What strangers may use.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Connections open at once; further ones wait to be accepted.
    pub connections: usize,
    /// Time to send the headers of a request, and to begin with the next one.
    pub header_time: Duration,
    /// Bytes of headers that one connection may have in memory.
    pub header_bytes: usize,
    /// How long an answer may wait for a client that does not read. Only for [`serve_http`].
    pub write_time: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        HttpLimits {
            connections: 1_024,
            header_time: Duration::from_secs(10),
            header_bytes: 64 << 10,
            write_time: Duration::from_secs(30),
        }
    }
}

/// Accepting fails when descriptors run out: that passes.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves until `closing` is true, then lets the requests under way finish. Who does not read what is answered is
/// cut off: connections are few, and one of them would be his for ever.
pub async fn serve_http(
    listener: TcpListener,
    router: Router,
    limits: HttpLimits,
    closing: watch::Receiver<bool>,
) -> io::Result<()> {
    serve_each(listener, limits, closing, move |stream, peer| {
        let (stream, connection) = PatientStream::of(stream, peer);
        connection.limit_writes(limits.write_time);
        (stream, router.clone())
    })
    .await
}

/// The same, with what `prepare` makes of each connection.
pub(crate) async fn serve_each<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    listener: TcpListener,
    limits: HttpLimits,
    mut closing: watch::Receiver<bool>,
    prepare: impl Fn(TcpStream, SocketAddr) -> (S, Router),
) -> io::Result<()> {
    let room = Arc::new(Semaphore::new(limits.connections));
    let connections = TaskTracker::new();
    loop {
        let accept = async {
            // The semaphore is never closed.
            let permit = room.clone().acquire_owned().await.ok();
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            accepted = accept => accepted,
            _ = closing.wait_for(|closing| *closing) => break,
        };
        let (stream, router) = match accepted {
            Ok((stream, peer)) => prepare(stream, peer),
            Err(error) => {
                tracing::warn!(%error, "no HTTP connection can be accepted; trying again");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router);
        let mut closing = closing.clone();
        connections.spawn(async move {
            let _permit = permit;
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new())
                .header_read_timeout(limits.header_time)
                .max_buf_size(limits.header_bytes)
                .half_close(false);
            let connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
            let mut connection = std::pin::pin!(connection);
            let close = async move {
                // An error means that the listener is gone, which is as closed as can be.
                let _ = closing.wait_for(|closing| *closing).await;
            };
            let ended = tokio::select! {
                ended = &mut connection => ended,
                () = close => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            // Whoever hangs up or speaks no HTTP has said all there is to say.
            if let Err(error) = ended {
                tracing::debug!(%error, "an HTTP connection ended");
            }
        });
    }
    connections.close();
    connections.wait().await;
    Ok(())
}
