//! A hub on loopback, clients that do what they are told, and a recorder of answers.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use potok_hub::tokens::development::{self, DevelopmentIssuer};
use potok_hub::trouble::Planted;
use potok_hub::{
    AckRule, Answer, Answers, CallError, Caller, Directory, Frame, Hub, HubSettings, Limits,
    Method, Node, Outgoing, Ticket, UserId,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// Only a failure ever waits this long.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Never reached by a test that passes.
pub const AN_HOUR: Duration = Duration::from_secs(3600);
/// What the stock client says where a handler returns nothing.
pub const NO_RESULT: &str = "Client didn't provide a result.";

pub async fn patiently<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {PATIENCE:?} in vain: {what}"),
    }
}

/// Asks again and again until something is true.
pub async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let waiting = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    patiently(what, waiting).await;
}

pub struct TestHub {
    pub node: Arc<Node>,
    pub address: SocketAddr,
    pub issuer: Arc<DevelopmentIssuer>,
    _folder: tempfile::TempDir,
}

struct Echo;

#[async_trait::async_trait]
impl Method for Echo {
    async fn call(&self, caller: Caller, mut arguments: Vec<Value>) -> Result<Value, CallError> {
        match arguments.pop() {
            Some(Value::String(text)) if text == "panic" => panic!("on purpose"),
            Some(Value::String(text)) if text == "refuse" => {
                Err(CallError::Refused("not today".to_owned()))
            }
            Some(value) => Ok(json!({"user": caller.user.as_str(), "value": value})),
            None => Err(CallError::Arguments),
        }
    }
}

/// Never returns.
struct Stall;

#[async_trait::async_trait]
impl Method for Stall {
    async fn call(&self, _: Caller, _: Vec<Value>) -> Result<Value, CallError> {
        std::future::pending().await
    }
}

impl TestHub {
    pub async fn start() -> Self {
        TestHub::with(HubSettings::default()).await
    }

    /// With a naive version in it, or none.
    pub async fn planted(planted: Option<Planted>) -> Self {
        TestHub::limited(Limits { planted, ..Limits::default() }).await
    }

    pub async fn limited(limits: Limits) -> Self {
        TestHub::with(HubSettings { limits, ..HubSettings::default() }).await
    }

    pub async fn with(settings: HubSettings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let issuer = DevelopmentIssuer::open(folder.path()).unwrap();
        TestHub::of(settings, issuer, folder, None).await
    }

    /// A node of a hub that has several.
    pub async fn among(
        settings: HubSettings,
        directory: Arc<dyn Directory>,
        other: Option<&TestHub>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let issuer = match other {
            Some(other) => other.issuer.clone(),
            None => DevelopmentIssuer::open(folder.path()).unwrap(),
        };
        TestHub::of(settings, issuer, folder, Some(directory)).await
    }

    /// On a listener of the test's own.
    pub async fn on(settings: HubSettings, listener: TcpListener) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let issuer = DevelopmentIssuer::open(folder.path()).unwrap();
        TestHub::listening(settings, issuer, folder, None, listener).await
    }

    /// Another process of the same hub, as far as tokens go.
    pub async fn beside(&self, settings: HubSettings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        TestHub::of(settings, self.issuer.clone(), folder, None).await
    }

    async fn of(
        settings: HubSettings,
        issuer: Arc<DevelopmentIssuer>,
        folder: tempfile::TempDir,
        directory: Option<Arc<dyn Directory>>,
    ) -> Self {
        let listener = potok_hub::listen(([127, 0, 0, 1], 0).into()).unwrap();
        TestHub::listening(settings, issuer, folder, directory, listener).await
    }

    async fn listening(
        settings: HubSettings,
        issuer: Arc<DevelopmentIssuer>,
        folder: tempfile::TempDir,
        directory: Option<Arc<dyn Directory>>,
        listener: TcpListener,
    ) -> Self {
        let methods: [(_, Arc<dyn Method>); 2] =
            [("echo".to_owned(), Arc::new(Echo)), ("stall".to_owned(), Arc::new(Stall))];
        let methods = HashMap::from(methods);
        let node = match directory {
            None => Node::start(settings, issuer.clone(), methods),
            Some(directory) => Node::start_among(settings, issuer.clone(), methods, directory),
        };
        let address = listener.local_addr().unwrap();
        tokio::spawn(potok_hub::serve(listener, node.clone(), std::future::pending()));
        TestHub { node, address, issuer, _folder: folder }
    }

    pub fn token(&self, user: &str) -> String {
        self.issuer.mint(user, Duration::from_secs(600), development::now()).unwrap()
    }

    /// A client that has shaken hands.
    pub async fn connect(&self, user: &str) -> Client {
        let mut client = self.attach(&self.token(user)).await;
        client.shake_hands().await;
        client
    }

    /// A client before its handshake, without negotiation.
    pub async fn attach(&self, token: &str) -> Client {
        let url = format!("ws://{}/hubs/notifications", self.address);
        Client::open(&url, token).await.unwrap()
    }

    pub async fn send(&self, user: &str, payload: Value) -> Ask {
        self.send_within(user, payload, AN_HOUR).await
    }

    pub async fn send_within(&self, user: &str, payload: Value, within: Duration) -> Ask {
        let frame = frame(&payload);
        self.send_frame(user, &frame, within, AckRule::Any).await
    }

    /// Where the hub may refuse it.
    pub async fn send_or_not(
        &self,
        user: &str,
        payload: Value,
        ack_within: Duration,
    ) -> Result<Ask, potok_hub::Unavailable> {
        let recorder = Arc::new(Recorder::default());
        let (user, frame) = (UserId::new(user), frame(&payload));
        let outgoing = Outgoing { ticket: Ticket(7), user, frame, ack_within, ack: AckRule::Any };
        self.node.send(vec![outgoing], recorder.clone()).await?;
        Ok(Ask { recorder, ticket: Ticket(7) })
    }

    pub async fn send_frame(
        &self,
        user: &str,
        frame: &Arc<Frame>,
        ack_within: Duration,
        ack: AckRule,
    ) -> Ask {
        let recorder = Arc::new(Recorder::default());
        let (user, frame) = (UserId::new(user), frame.clone());
        let outgoing = Outgoing { ticket: Ticket(7), user, frame, ack_within, ack };
        self.node.send(vec![outgoing], recorder.clone()).await.unwrap();
        Ask { recorder, ticket: Ticket(7) }
    }
}

impl TestHub {
    pub async fn negotiate(&self, token: &str) -> Value {
        let path = "/hubs/notifications/negotiate?negotiateVersion=1";
        let bearer = format!("Bearer {token}");
        ask(self, "POST", path, &[("authorization", &bearer)]).await.json()
    }
}

pub fn frame(payload: &Value) -> Arc<Frame> {
    Frame::new("notify", "m-1", payload.to_string().as_bytes(), 64 << 10).unwrap()
}

/// Everything that was answered, in order.
#[derive(Default)]
pub struct Recorder {
    pub answers: Mutex<Vec<(Ticket, Answer)>>,
    more: Notify,
}

impl Answers for Recorder {
    fn settle(&self, answers: &[(Ticket, Answer)]) {
        self.answers.lock().unwrap().extend_from_slice(answers);
        self.more.notify_waiters();
    }
}

impl Recorder {
    pub async fn count(&self, at_least: usize) -> Vec<(Ticket, Answer)> {
        let waiting = async {
            loop {
                let more = self.more.notified();
                let answers = self.answers.lock().unwrap().clone();
                if answers.len() >= at_least {
                    return answers;
                }
                more.await;
            }
        };
        patiently("answers", waiting).await
    }
}

/// A message that was sent.
pub struct Ask {
    pub recorder: Arc<Recorder>,
    ticket: Ticket,
}

impl Ask {
    pub async fn answer(&self) -> Answer {
        let answers = self.recorder.count(1).await;
        assert_eq!(answers.len(), 1, "answered once: {answers:?}");
        assert_eq!(answers[0].0, self.ticket);
        answers[0].1
    }

    pub fn is_open(&self) -> bool {
        self.recorder.answers.lock().unwrap().is_empty()
    }
}

/// A client that speaks JSON over a WebSocket.
pub struct Client {
    pub socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    text: String,
}

type Refused = tokio_tungstenite::tungstenite::Error;

impl Client {
    pub async fn open(url: &str, token: &str) -> Result<Self, Refused> {
        let mut request = url.into_client_request().unwrap();
        let bearer = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert("authorization", bearer);
        let (socket, _) = tokio_tungstenite::connect_async(request).await?;
        Ok(Client { socket, text: String::new() })
    }

    pub async fn shake_hands(&mut self) {
        self.say(json!({"protocol": "json", "version": 1})).await;
        assert_eq!(self.hear().await, json!({}));
    }

    pub async fn say(&mut self, message: Value) {
        self.write(&format!("{message}\u{1e}")).await;
    }

    pub async fn write(&mut self, text: &str) {
        self.socket.send(Message::text(text)).await.unwrap();
    }

    pub async fn complete(&mut self, id: &Value) {
        self.say(json!({"error": NO_RESULT, "invocationId": id, "type": 3})).await;
    }

    /// The next message that is no ping.
    pub async fn hear(&mut self) -> Value {
        self.heard().await.expect("the hub closed the connection")
    }

    /// The same; `None` at the end.
    pub async fn heard(&mut self) -> Option<Value> {
        loop {
            if let Some((message, rest)) = self.text.split_once('\u{1e}') {
                let message: Value = serde_json::from_str(message).unwrap();
                self.text = rest.to_owned();
                if message["type"] != 6 {
                    return Some(message);
                }
                continue;
            }
            match patiently("a message", self.socket.next()).await {
                Some(Ok(Message::Text(text))) => self.text.push_str(text.as_str()),
                Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                Some(Ok(_)) => {}
            }
        }
    }

    /// The next message, which must be an invocation: its id.
    pub async fn invoked(&mut self) -> Value {
        let message = self.hear().await;
        assert_eq!(message["type"], 1, "{message}");
        message["invocationId"].clone()
    }
}

/// An answer over HTTP: its status, its head and its body.
pub struct HttpReply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl HttpReply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (other, value) = line.split_once(": ")?;
            other.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// One request, byte for byte.
pub async fn ask(hub: &TestHub, method: &str, path: &str, headers: &[(&str, &str)]) -> HttpReply {
    ask_at(hub.address, method, path, headers).await
}

pub async fn ask_at(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> HttpReply {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let mut request =
        format!("{method} {path} HTTP/1.1\r\nHost: hub.example\r\nConnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("Content-Length: 0\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    patiently("an answer", socket.read_to_string(&mut answer)).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    HttpReply { status, head: head.to_owned(), body: body.to_owned() }
}

/// A way to a hub that can be snapped: connections break, new ones pass at once.
pub struct Relay {
    pub address: SocketAddr,
    snaps: tokio::sync::watch::Sender<()>,
}

impl Relay {
    pub async fn to(target: SocketAddr) -> Self {
        let snaps = tokio::sync::watch::Sender::new(());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let snapping = snaps.subscribe();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut snapping = snapping.clone();
                snapping.mark_unchanged();
                tokio::spawn(async move {
                    let Ok(mut hub) = TcpStream::connect(target).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut hub) => {}
                        _ = snapping.changed() => {}
                    }
                });
            }
        });
        Relay { address, snaps }
    }

    pub fn snap(&self) {
        self.snaps.send_replace(());
    }
}
