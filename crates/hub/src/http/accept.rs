//! The listener: sockets with bounds of their own, and heads of requests that must arrive in time.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

use super::peers::{Peer, Peers};
use super::router;
use crate::node::Node;

/// Sockets that wait to be accepted; the rest of a storm.
const BACKLOG: i32 = 4_096;
/// What the kernel may hold for a client that does not read.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// What was sent must be acknowledged by the other machine within this.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);
const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// No more sockets can be opened for a moment.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// A listener with the backlog and the buffers that a hub needs.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    // Accepted sockets inherit it.
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Serves clients until `stop` is ready. Connections live on: [`Hub::drain`](crate::Hub::drain)
/// closes them.
pub async fn serve(listener: TcpListener, node: Arc<Node>, stop: impl Future<Output = ()>) {
    let peers = Peers::new(&node.settings().limits);
    let router = router(node.clone(), peers.clone());
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, address)) => {
                prepare(&stream);
                let (peers, router, node) = (peers.clone(), router.clone(), node.clone());
                tokio::spawn(async move {
                    let trusted = &node.settings().trusted_proxies;
                    if let Some(peer) = peers.admit(address, trusted).await {
                        talk(stream, peer, router, node.clone()).await;
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a client cannot be accepted");
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
            }
        }
    }
}

/// Settings without which it works too, only worse.
fn prepare(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEP_ALIVE));
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX));
}

async fn talk(stream: TcpStream, peer: Peer, router: Router, node: Arc<Node>) {
    let limits = &node.settings().limits;
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_within)
        .max_buf_size(limits.head_bytes);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        let router = router.clone();
        async move { Ok::<_, Infallible>(router.oneshot(request.map(Body::new)).await.into_response()) }
    });
    // A client that goes is no news.
    let _ = http.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
}
