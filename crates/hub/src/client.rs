//! A client of a hub, for people at a terminal: it connects, hands over what arrives, and
//! acknowledges it.
//!
//! JSON over a WebSocket, without negotiation. What comes twice, after a reconnect, is handed over
//! once. Deliberately absent: other transports, calls of methods but `Resume`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::Uri;
use tokio_tungstenite::tungstenite::{self, Message};

use crate::tokens::tls_config;

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// A hub pings every 15 s.
const SILENT_FOR: Duration = Duration::from_secs(30);
const PING_EVERY: Duration = Duration::from_secs(10);
/// Messages that are recognised when they come again.
const REMEMBERED: usize = 1_000;

/// What happens to a client.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientEvent {
    /// Messages come from here on.
    Connected,
    Message {
        method: String,
        id: String,
        payload: Value,
    },
    /// After a reconnect: the hub cannot say what came meanwhile.
    Gap,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Disconnection {
    /// Trying again is of no use.
    #[error("{0}")]
    ForGood(String),
    /// It may work again in a moment.
    #[error("{0}")]
    ForNow(String),
}

/// A client that remembers what it has seen from one connection to the next.
pub struct Listener {
    uri: Uri,
    tls: TlsConnector,
    seen: VecDeque<String>,
}

impl Listener {
    /// Of the hub at `http://host:port/hubs/name`.
    pub fn new(url: &str) -> Result<Self, String> {
        let address = match url.split_once("://") {
            Some(("http", rest)) => format!("ws://{rest}"),
            Some(("https", rest)) => format!("wss://{rest}"),
            _ => return Err(format!("`{url}` is no address of a hub")),
        };
        let uri: Uri = address.parse().map_err(|_| format!("`{url}` is no address of a hub"))?;
        if uri.host().is_none() || !uri.path().starts_with("/hubs/") {
            return Err(format!("`{url}` is no address of a hub"));
        }
        let config: ClientConfig = tls_config()?;
        Ok(Listener { uri, tls: TlsConnector::from(Arc::new(config)), seen: VecDeque::new() })
    }

    /// Connects, and listens until the connection ends. `heard` returning `false` ends it in good
    /// order.
    pub async fn listen(
        &mut self,
        token: &str,
        mut heard: impl FnMut(ClientEvent) -> bool,
    ) -> Result<(), Disconnection> {
        let host = self.uri.host().unwrap_or_default().to_owned();
        let secure = self.uri.scheme_str() == Some("wss");
        let port = self.uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let connecting = async {
            let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            let tcp = TcpStream::connect((name.as_str(), port)).await.map_err(now)?;
            let mut request = self.uri.clone().into_client_request().map_err(now)?;
            let bearer = format!("Bearer {token}").parse();
            let bearer =
                bearer.map_err(|_| Disconnection::ForGood("the token is not text".to_owned()))?;
            request.headers_mut().insert("authorization", bearer);
            if !secure {
                let (socket, _) =
                    tokio_tungstenite::client_async(request, tcp).await.map_err(refused)?;
                return Ok(ClientSocket::Plain(Box::new(socket)));
            }
            let name = ServerName::try_from(name).map_err(now)?;
            let tls = self.tls.connect(name, tcp).await.map_err(now)?;
            let (socket, _) =
                tokio_tungstenite::client_async(request, tls).await.map_err(refused)?;
            Ok(ClientSocket::Tls(Box::new(socket)))
        };
        let connected = tokio::time::timeout(CONNECT_WITHIN, connecting).await;
        match connected
            .map_err(|_| Disconnection::ForNow("the hub does not answer".to_owned()))??
        {
            ClientSocket::Plain(mut socket) => self.talk(&mut *socket, &mut heard).await,
            ClientSocket::Tls(mut socket) => self.talk(&mut *socket, &mut heard).await,
        }
    }

    async fn talk<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        socket: &mut WebSocketStream<S>,
        heard: &mut impl FnMut(ClientEvent) -> bool,
    ) -> Result<(), Disconnection> {
        say(socket, &json!({"protocol": "json", "version": 1})).await?;
        let (mut text, mut shaken) = (String::new(), false);
        let (mut last_heard, mut next_ping) = (Instant::now(), Instant::now() + PING_EVERY);
        loop {
            while let Some((message, rest)) = text.split_once('\u{1e}') {
                let message: Value = serde_json::from_str(message).map_err(now)?;
                text = rest.to_owned();
                if !shaken {
                    shaken = true;
                    if let Some(error) = message["error"].as_str() {
                        return Err(Disconnection::ForGood(error.to_owned()));
                    }
                    if let Some(last) = self.seen.back() {
                        let resume = json!({"type": 1, "invocationId": "0", "target": "Resume", "arguments": [last]});
                        say(socket, &resume).await?;
                    }
                    if !heard(ClientEvent::Connected) {
                        return good_bye(socket).await;
                    }
                } else if !self.take(socket, &message, heard).await? {
                    return good_bye(socket).await;
                }
            }
            let until = next_ping.min(last_heard + SILENT_FOR);
            match tokio::time::timeout_at(until, socket.next()).await {
                Ok(Some(Ok(Message::Text(more)))) => {
                    last_heard = Instant::now();
                    text.push_str(more.as_str());
                }
                Ok(Some(Ok(Message::Close(_))) | None) => {
                    return Err(Disconnection::ForNow("the hub closed the connection".to_owned()));
                }
                Ok(Some(Ok(_))) => {}
                Ok(Some(Err(error))) => return Err(now(error)),
                Err(_) if last_heard.elapsed() >= SILENT_FOR => {
                    return Err(Disconnection::ForNow("the hub has gone silent".to_owned()));
                }
                Err(_) => {
                    next_ping = Instant::now() + PING_EVERY;
                    say(socket, &json!({"type": 6})).await?;
                }
            }
        }
    }

    /// Whether to go on.
    async fn take<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        socket: &mut WebSocketStream<S>,
        message: &Value,
        heard: &mut impl FnMut(ClientEvent) -> bool,
    ) -> Result<bool, Disconnection> {
        match message["type"].as_u64() {
            Some(1) => {
                let goes_on = self.hand_over(&message["target"], &message["arguments"], heard);
                if let Some(id) = message["invocationId"].as_str() {
                    // Acknowledged when it was handed over, not before.
                    say(socket, &json!({"type": 3, "invocationId": id, "result": null})).await?;
                }
                Ok(goes_on)
            }
            Some(3) => {
                let result = &message["result"];
                if result["recovered"] != true {
                    return Ok(heard(ClientEvent::Gap));
                }
                let missed = result["messages"].as_array().into_iter().flatten();
                for message in missed {
                    if !self.hand_over(&message["method"], &message["arguments"], heard) {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Some(7) => {
                let why = message["error"].as_str().unwrap_or("the hub closed the connection");
                match message["allowReconnect"] == true {
                    true => Err(Disconnection::ForNow(why.to_owned())),
                    false => Err(Disconnection::ForGood(why.to_owned())),
                }
            }
            _ => Ok(true),
        }
    }

    fn hand_over(
        &mut self,
        method: &Value,
        arguments: &Value,
        heard: &mut impl FnMut(ClientEvent) -> bool,
    ) -> bool {
        let id = arguments[1]["id"].as_str().unwrap_or_default().to_owned();
        if self.seen.contains(&id) {
            return true;
        }
        if self.seen.len() >= REMEMBERED {
            self.seen.pop_front();
        }
        self.seen.push_back(id.clone());
        let method = method.as_str().unwrap_or_default().to_owned();
        heard(ClientEvent::Message { method, id, payload: arguments[0].clone() })
    }
}

enum ClientSocket {
    Plain(Box<WebSocketStream<TcpStream>>),
    Tls(Box<WebSocketStream<tokio_rustls::client::TlsStream<TcpStream>>>),
}

async fn say<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<S>,
    message: &Value,
) -> Result<(), Disconnection> {
    socket.send(Message::text(format!("{message}\u{1e}"))).await.map_err(now)
}

async fn good_bye<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<S>,
) -> Result<(), Disconnection> {
    say(socket, &json!({"type": 7})).await?;
    let _ = socket.close(None).await;
    Ok(())
}

fn now(error: impl std::fmt::Display) -> Disconnection {
    Disconnection::ForNow(error.to_string())
}

/// What the hub says instead of an upgrade. A token that it refuses will not become better.
fn refused(error: tungstenite::Error) -> Disconnection {
    let tungstenite::Error::Http(answer) = &error else { return now(error) };
    let body = answer.body().as_deref().unwrap_or_default();
    let body: String = String::from_utf8_lossy(body).chars().take(300).collect();
    let why = format!("{}: {body}", answer.status());
    match answer.status().as_u16() {
        429 | 500.. => Disconnection::ForNow(why),
        _ => Disconnection::ForGood(why),
    }
}
