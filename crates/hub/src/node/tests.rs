//! What time and other nodes bring to connections.

use super::*;
use crate::protocol::Protocol;

pub(crate) struct Gatekeeper;

#[async_trait]
impl Authority for Gatekeeper {
    async fn verify(&self, _: &str) -> Result<Person, Refusal> {
        Err(Refusal::Missing)
    }
}

fn origin(number: u8) -> Origin {
    Origin {
        id: [number; 16],
        user: UserId::new("alice"),
        address: std::net::Ipv4Addr::LOCALHOST.into(),
        agent: "".into(),
        transport: crate::Transport::WebSockets,
        returns: false,
        opened: wall_now(),
    }
}

fn person(seconds: u64) -> Person {
    let expires = wall_now() + Duration::from_secs(seconds);
    Person { user: UserId::new("alice"), expires, issued: None }
}

/// A connection that has shaken hands.
pub(crate) fn attached(node: &Arc<Node>, user: &str) -> Attachment {
    let origin = Origin { id: random::bytes(), user: UserId::new(user), ..origin(0) };
    let attachment = node.attach(origin, &person(300)).unwrap();
    attachment.connection.speak(Protocol::Json, Protocol::Json.ping(), node.now());
    node.open(&attachment.connection);
    attachment
}

/// How many of ten thousand connections whose tokens expire together are closed in each second.
async fn closed_by_second(expiry_grace: (Duration, Duration)) -> Vec<(u64, usize)> {
    const CLIENTS: u32 = 10_000;
    let connections_per_user = CLIENTS as usize;
    let limits = Limits { expiry_grace, connections_per_user, ..Limits::default() };
    let settings = HubSettings { limits, ..HubSettings::default() };
    let node = Node::start(settings, Arc::new(Gatekeeper), Methods::new());
    let token = person(300);
    let attachments: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&number.to_be_bytes());
            let attachment = node.attach(Origin { id, ..origin(0) }, &token).unwrap();
            let now = node.now();
            attachment.connection.speak(Protocol::Json, Protocol::Json.ping(), now);
            attachment
        })
        .collect();
    let (mut closed, mut before, started) = (Vec::new(), 0, Instant::now());
    while before < attachments.len() {
        tokio::time::sleep(TICK).await;
        // As a transport does it: everything is taken.
        let taken = |connection: &Connection| while connection.take(node.now()).is_some() {};
        attachments.iter().for_each(|attachment| taken(&attachment.connection));
        let ended =
            |attachment: &&Attachment| attachment.connection.ending() == Some(Ending::Elsewhere);
        let now = attachments.iter().filter(ended).count();
        if now > before {
            closed.push((started.elapsed().as_secs(), now - before));
        }
        before = now;
    }
    closed
}

/// Clients that fetched their tokens together must not come back together for ever.
#[tokio::test(start_paused = true)]
async fn equal_tokens_end_at_different_times() {
    let closed = closed_by_second(Limits::default().expiry_grace).await;
    let (first, last) = (closed.first().unwrap().0, closed.last().unwrap().0);
    assert!(first >= 309 && last - first >= 40, "{closed:?}");
    let most = closed.iter().map(|(_, count)| *count).max().unwrap();
    assert!(most < 500, "{closed:?}");
    let naive = closed_by_second((Duration::ZERO, Duration::ZERO)).await;
    assert!(naive.len() <= 2, "the naive version is seen: {naive:?}");
}

#[tokio::test]
async fn no_connection_lives_for_ever_and_no_token_shortens_its_life() {
    let node = Node::start(HubSettings::default(), Arc::new(Gatekeeper), Methods::new());
    let attachment = node.attach(origin(1), &person(1 << 31)).unwrap();
    let until = attachment.connection.expires();
    assert!(until < 24 * 60 * 60 + 100);
    node.extend(&attachment.connection, &person(300));
    assert_eq!(attachment.connection.expires(), until);
}

#[tokio::test]
async fn a_connection_is_attached_once_and_leaves_nothing_behind() {
    let node = Node::start(HubSettings::default(), Arc::new(Gatekeeper), Methods::new());
    let person = Person { user: UserId::new("alice"), expires: wall_now(), issued: None };
    let attachment = node.attach(origin(1), &person).unwrap();
    assert_eq!(node.attach(origin(1), &person).err(), Some(Unattached::Taken));
    assert_eq!(node.stats().connections, 1);
    drop(attachment);
    assert_eq!(node.stats().connections, 0);
    assert!(node.live().is_empty());
    assert!(node.attach(origin(1), &person).is_ok());
}

/// Answers that a broken connection never took must not stop those who send, some day.
#[tokio::test]
async fn what_a_connection_never_wrote_is_not_queued_for_ever() {
    let node = Node::start(HubSettings::default(), Arc::new(Gatekeeper), Methods::new());
    for returns in [false, true] {
        let origin = Origin { returns, ..origin(1) };
        let attachment = node.attach(origin, &person(300)).unwrap();
        let connection = attachment.connection.clone();
        let now = node.now();
        connection.speak(Protocol::Json, Protocol::Json.ping(), now);
        if returns {
            connection.number_messages();
        }
        let answer = Ok(Value::from("x".repeat(10_000)));
        connection.reply(Protocol::Json.completion("1", &answer), now);
        assert!(node.stats().queued_bytes > 10_000);
        attachment.end(Ending::Broken);
        connection.control(Protocol::Json.ping(), now);
        drop((attachment, connection));
        assert_eq!(node.stats().queued_bytes, 0);
    }
}

/// Who was away for nearly as long as they may be has had no chance to say something.
#[tokio::test]
async fn who_is_back_is_not_silent() {
    let limits = Limits::default();
    let node = Node::start(HubSettings::default(), Arc::new(Gatekeeper), Methods::new());
    let attachment = attached(&node, "alice");
    let connection = &attachment.connection;
    connection.number_messages();
    connection.hear(100);
    assert!(connection.lose_socket(116));
    connection.send_again(130);
    connection.tick(&limits, 130);
    assert_eq!(connection.ending(), None);
    while connection.take(130).is_some() {}
    connection.tick(&limits, 160);
    assert_eq!(connection.ending(), Some(Ending::Silent));
}

/// A transport may read the handshake when its connection is over already.
#[tokio::test]
async fn a_connection_that_is_over_is_not_opened() {
    let limits = Limits { linger: Duration::ZERO, ..Limits::default() };
    let settings = HubSettings { limits, ..HubSettings::default() };
    let node = Node::start(settings, Arc::new(Gatekeeper), Methods::new());
    for ending in [Ending::Broken, Ending::ByClient, Ending::Kicked] {
        let attachment = node.attach(origin(1), &person(300)).unwrap();
        let connection = attachment.connection.clone();
        attachment.end(ending);
        drop(attachment);
        connection.speak(Protocol::Json, Protocol::Json.ping(), node.now());
        node.open(&connection);
        assert_eq!((node.stats().users, node.stats().connections), (0, 0), "{ending:?}");
        assert!(node.users().connections(&UserId::new("alice")).is_empty());
    }
}
