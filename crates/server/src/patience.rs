//! Connections that may be cut when their client does not read.
//!
//! A stream of events has no end, so a client that never reads would keep its connection and what is
//! buffered for it for ever. Whoever serves such a stream asks for a limit on how long a write may
//! wait. Other answers have none: `potok read` into a pager may stand still for hours.
//!
//! And how long people wait for a log that may be away ([`soon`]).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use potok_core::Fault;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::ApiError;

/// How long a page waits for the log, besides what it shows anyway: nobody looks at nothing for longer
/// than two seconds.
pub(crate) const ANSWER_MAX: Duration = Duration::from_millis(1_400);

/// An answer of the log, or that there is none.
pub(crate) async fn soon<T>(
    max: Duration,
    asked: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    tokio::time::timeout(max, asked).await.unwrap_or_else(|_| Err(silent()))
}

/// The log does not answer.
pub(crate) fn silent() -> ApiError {
    let fault = Fault::wait("the log does not answer, or has much to read");
    ApiError::from(fault).hint("try again in a moment; /ready and `potok status` say how it is")
}

/// A connection, for its handlers.
#[derive(Clone, Default)]
pub(crate) struct Connection {
    /// Milliseconds that a write may wait; 0 for ever.
    write_max: Arc<AtomicU64>,
    peer: Option<IpAddr>,
}

impl Connection {
    /// Where the other end is; of a proxy where there is one.
    pub fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// From now on it is cut when the client takes nothing for so long.
    pub fn limit_writes(&self, max: Duration) {
        let millis = u64::try_from(max.as_millis()).unwrap_or(u64::MAX);
        self.write_max.store(millis, Ordering::Relaxed);
    }
}

/// A stream that fails when its client takes nothing for too long.
pub(crate) struct PatientStream {
    stream: TcpStream,
    connection: Connection,
    /// Runs while a write waits.
    waits: Option<Pin<Box<Sleep>>>,
}

impl PatientStream {
    /// A connection that was accepted, and what its handlers know of it.
    pub fn of(stream: TcpStream, peer: SocketAddr) -> (Self, Connection) {
        let connection = Connection { peer: Some(peer.ip()), ..Connection::default() };
        (PatientStream { stream, connection: connection.clone(), waits: None }, connection)
    }

    /// What a write that waits comes to.
    fn waited(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let max = self.connection.write_max.load(Ordering::Relaxed);
        if max == 0 {
            return Poll::Pending;
        }
        let new = || Box::pin(tokio::time::sleep(Duration::from_millis(max)));
        let waits = self.waits.get_or_insert_with(new);
        ready!(waits.as_mut().poll(cx));
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "the client does not read"))
    }

    fn checked<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match written {
            Poll::Ready(written) => {
                self.waits = None;
                Poll::Ready(written)
            }
            Poll::Pending => self.waited(cx).map(Err),
        }
    }
}

impl AsyncRead for PatientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for PatientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.checked(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.checked(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_client_that_never_reads_is_cut_where_that_was_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _client = TcpStream::connect(address).await.unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        let (mut stream, connection) = PatientStream::of(stream, peer);
        connection.limit_writes(Duration::from_millis(50));
        let chunk = vec![0; 1 << 20];
        let cut = loop {
            if let Err(error) = stream.write_all(&chunk).await {
                break error;
            }
        };
        assert_eq!(cut.kind(), io::ErrorKind::TimedOut);
    }
}
