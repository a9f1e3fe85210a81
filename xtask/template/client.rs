//! The connection to a Sample server: one call is one attempt, bounded in time.

use std::io::{Error, ErrorKind};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

pub(super) struct Client {
    address: String,
    timeout: Duration,
}

impl Client {
    pub fn new(url: &str, timeout: Duration) -> Self {
        let address = url.split_once("://").map_or(url, |(_, address)| address);
        Client { address: address.to_owned(), timeout }
    }

    /// Connects, and sends these bytes.
    pub async fn send(&self, bytes: &[u8]) -> Result<(), Error> {
        let sent = async {
            let mut stream = TcpStream::connect(&self.address).await?;
            stream.write_all(bytes).await?;
            stream.shutdown().await
        };
        let sent = tokio::time::timeout(self.timeout, sent).await;
        sent.unwrap_or_else(|_| Err(Error::from(ErrorKind::TimedOut)))
    }
}
