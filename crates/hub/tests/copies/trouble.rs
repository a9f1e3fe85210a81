//! Nodes that die, freeze or are not believed; each with the naive version that gets it wrong.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use potok_hub::tokens::development;
use potok_hub::trouble::Planted;
use potok_hub::{Answer, Hub, InProcess, Limits, UserId};
use serde_json::json;

use crate::lines::{LinePath, set, unset};
use crate::pair::{Pair, limits, settings, with};
use crate::support::{AN_HOUR, Client, TestHub};

/// Two nodes, each with its own way to the directory.
pub async fn apart(limits: &Limits) -> (Pair, Arc<LinePath>, Arc<LinePath>) {
    let inner = Arc::new(InProcess::new());
    let (one, other) = (LinePath::to(&inner), LinePath::to(&inner));
    (Pair::start(limits, one.clone(), other.clone()).await, one, other)
}

/// A node that stands still: what is sent to it is taken by the line, and nobody says more. When its
/// lease is over that is the answer, long before the message's own time.
async fn sent_to_a_frozen_node(planted: Option<Planted>) -> Answer {
    // Long enough to send one message in.
    let limits = Limits { lease: Duration::from_secs(3), ..with(planted) };
    let (Pair { a, b }, own, way) = apart(&limits).await;
    let mut alice = b.connect("alice").await;
    a.acknowledged("alice", &mut alice).await;
    set(&way.deaf);
    set(&way.lapsed);
    let before = own.renewed.load(Ordering::Acquire);
    let answer = a.send_within("alice", json!(1), AN_HOUR).await.answer().await;
    // The lease is five renewals; the news of its end is believed at the second look.
    let renewals = own.renewed.load(Ordering::Acquire) - before;
    assert!(renewals <= 5 + 3, "answered after {renewals} renewals");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_to_a_node_that_died_is_not_answered_and_never_acknowledged() {
    assert_eq!(sent_to_a_frozen_node(None).await, Answer::NoAnswer { written: true });
    let naive = sent_to_a_frozen_node(Some(Planted::SentIsDelivered)).await;
    assert_eq!(naive, Answer::Acknowledged, "the naive version is seen");
}

/// The directory still says that alice is with B, where bob has come in her place.
async fn sent_to_a_place_that_another_has_now(planted: Option<Planted>) -> (Answer, bool) {
    let (Pair { a, b }, _, way) = apart(&with(planted)).await;
    let mut alice = b.connect("alice").await;
    a.acknowledged("alice", &mut alice).await;
    set(&way.stale);
    drop(alice);
    crate::support::until("she is gone", || b.node.stats().connections == 0).await;
    let mut bob = b.connect("bob").await;
    a.acknowledged("bob", &mut bob).await;
    let ask = a.send("alice", json!("for alice alone")).await;
    tokio::select! {
        answer = ask.answer() => (answer, false),
        message = bob.hear() => {
            assert_eq!(message["arguments"][0], "for alice alone");
            (Answer::NoAnswer { written: true }, true)
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_reaches_a_person_it_is_not_addressed_to() {
    let (answer, seen) = sent_to_a_place_that_another_has_now(None).await;
    assert_eq!((answer, seen), (Answer::Nobody, false));
    let naive = sent_to_a_place_that_another_has_now(Some(Planted::RouteByConnection)).await;
    assert!(naive.1, "the naive version is seen");
}

/// The directory cannot be asked: the message is refused, nobody is said to be away.
async fn sent_while_the_directory_is_away(planted: Option<Planted>) -> Option<Answer> {
    let (Pair { a, b }, way, _) = apart(&with(planted)).await;
    let mut alice = b.connect("alice").await;
    a.acknowledged("alice", &mut alice).await;
    set(&way.away);
    match a.try_send("alice").await {
        Ok(ask) => Some(ask.answer().await),
        Err(_) => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_is_away_knows_not_nobody() {
    assert_eq!(sent_while_the_directory_is_away(None).await, None);
    let naive = sent_while_the_directory_is_away(Some(Planted::AwayIsNobody)).await;
    assert_eq!(naive, Some(Answer::Nobody), "the naive version is seen");
}

/// A client moves from one node to the other: what comes meanwhile waits for it.
async fn sent_while_a_client_moves(planted: Option<Planted>) -> Answer {
    let limits = Limits { linger: Duration::from_secs(20), ..with(planted) };
    let (Pair { a, b }, ..) = apart(&limits).await;
    let mut alice = b.connect("alice").await;
    a.acknowledged("alice", &mut alice).await;
    drop(alice);
    let gone = async {
        while a.seen("alice").await > 0 {
            tokio::task::yield_now().await;
        }
    };
    crate::support::patiently("she is gone", gone).await;
    let ask = a.send("alice", json!("first")).await;
    let second = a.send("alice", json!("second")).await;
    if planted.is_some() {
        return ask.answer().await;
    }
    let mut alice = a.connect("alice").await;
    let mut heard = Vec::new();
    for _ in 0..2 {
        let message = alice.hear().await;
        heard.push(message["arguments"][0].clone());
        alice.complete(&message["invocationId"]).await;
    }
    // One that was on its way to where she had been may come last: whoever wants order waits for
    // the answer before sending the next.
    heard.sort_by_key(ToString::to_string);
    assert_eq!(heard, [json!("first"), json!("second")]);
    for ask in [ask, second] {
        assert_eq!(ask.answer().await, Answer::Acknowledged);
    }
    Answer::Acknowledged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_back_elsewhere_in_a_moment_was_never_away() {
    assert_eq!(sent_while_a_client_moves(None).await, Answer::Acknowledged);
    let naive = sent_while_a_client_moves(Some(Planted::NobodyAtOnce)).await;
    assert_eq!(naive, Answer::Nobody, "the naive version is seen");
}

/// A reply that was lost with the line: nobody may say that there was none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_may_be_lost_is_no_missing_answer() {
    let limits = Limits { lease: Duration::from_secs(1), ..limits() };
    let (Pair { a, b }, way, _) = apart(&limits).await;
    let mut alice = b.connect("alice").await;
    a.acknowledged("alice", &mut alice).await;
    let ask = a.send_within("alice", json!(1), Duration::from_secs(1)).await;
    alice.invoked().await;
    set(&way.deaf);
    set(&way.away);
    assert_eq!(ask.answer().await, Answer::Unavailable);
}

/// A node that stops has its clients' answers sent before it leaves: acknowledged is acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stops_says_first_what_was_acknowledged() {
    let limits = Limits { notice: Duration::ZERO, ..limits() };
    let (Pair { a, b }, way_a, way_b) = apart(&limits).await;
    let mut alice = b.connect("alice").await;
    a.acknowledged("alice", &mut alice).await;
    let ask = a.send("alice", json!(1)).await;
    let id = alice.invoked().await;
    way_b.casting.shut();
    let node = b.node.clone();
    let stopping = tokio::spawn(async move { node.drain(Duration::ZERO).await });
    alice.complete(&id).await;
    assert_eq!(alice.hear().await["allowReconnect"], true);
    let waiting = || way_b.casting.waiting.load(Ordering::Acquire) > 0;
    crate::support::until("the reply waits", waiting).await;
    // Looked at once more by the other, who must not miss a node that is there.
    let before = way_a.renewed.load(Ordering::Acquire);
    let looked = || way_a.renewed.load(Ordering::Acquire) > before;
    crate::support::until("the other has looked", looked).await;
    way_b.casting.open();
    assert_eq!(ask.answer().await, Answer::Acknowledged);
    crate::support::patiently("it stops", stopping).await.unwrap();
}

/// What was asked of a hub that stops is answered when it has stopped, wherever it was sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stops_leaves_nothing_unanswered() {
    let limits = Limits { notice: Duration::ZERO, farewell: Duration::ZERO, ..limits() };
    let (Pair { a, b }, ..) = apart(&limits).await;
    let mut alice = b.connect("alice").await;
    a.acknowledged("alice", &mut alice).await;
    let ask = a.send("alice", json!(1)).await;
    alice.invoked().await;
    crate::support::patiently("it stops", a.node.drain(Duration::ZERO)).await;
    assert!(!ask.is_open());
    assert_eq!(ask.answer().await, Answer::Unavailable);
}

/// A message whose user was still looked for when the hub stopped is refused, and sent to nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_asked_before_a_node_stopped_is_not_sent_by_it_afterwards() {
    let limits = Limits { notice: Duration::ZERO, ..limits() };
    let (Pair { a, b: _b }, way, _) = apart(&limits).await;
    way.keeping.shut();
    let mut sending = std::pin::pin!(a.try_send("alice"));
    tokio::select! {
        _ = &mut sending => panic!("she was not looked for"),
        () = crate::support::until("it waits", || way.keeping.waiting.load(Ordering::Acquire) > 0) => {}
    }
    crate::support::patiently("it stops", a.node.drain(Duration::ZERO)).await;
    way.keeping.open();
    assert!(sending.await.is_err());
}

/// Everything is forgotten: whoever is here is known again within the lease, in which each node
/// renews five times. Counted in renewals, so that a busy machine does not matter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn presence_is_right_again_within_the_lease() {
    let (Pair { a, b }, _, way) = apart(&limits()).await;
    let mut alice = b.connect("alice").await;
    a.acknowledged("alice", &mut alice).await;
    for _ in 0..3 {
        let before = way.renewed.load(Ordering::Acquire);
        way.forget();
        a.acknowledged("alice", &mut alice).await;
        let renewals = way.renewed.load(Ordering::Acquire) - before;
        assert!(renewals <= 5, "known again after {renewals} renewals");
    }
}

/// Told to go at one node, she comes to another with the token she has, which is cut off and has not
/// heard. Where it hears, she goes; who has shown a newer token by then stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_told_to_go_goes_wherever_that_is_heard_late() {
    let (Pair { a, b }, _, way) = apart(&limits()).await;
    let token = a.token("alice");
    set(&way.deaf);
    set(&way.away);
    let told = development::now();
    a.node.disconnect(&UserId::new("alice"), Some(told)).await.unwrap();
    let mut old = b.attach(&token).await;
    old.shake_hands().await;
    let mut newer = b.attach(&token).await;
    newer.shake_hands().await;
    let fresh = told + Duration::from_secs(2);
    let fresh = b.issuer.mint("alice", Duration::from_secs(600), fresh).unwrap();
    let refresh =
        json!({"type": 1, "target": "Refresh", "arguments": [fresh], "invocationId": "r"});
    newer.say(refresh).await;
    assert!(newer.hear().await["result"].is_u64());
    assert_eq!(b.node.stats().users, 1);
    unset(&way.deaf);
    unset(&way.away);
    assert_eq!(crate::support::patiently("a farewell", old.hear()).await, json!({"type": 7}));
    assert_eq!(old.heard().await, None);
    a.acknowledged("alice", &mut newer).await;
}

/// Whether who was told to go at one node gets in at each of them with the token she has.
async fn come_back(planted: Option<Planted>) -> [bool; 2] {
    let (Pair { a, b }, ..) = apart(&with(planted)).await;
    let token = a.token("alice");
    let mut alice = b.attach(&token).await;
    alice.shake_hands().await;
    a.acknowledged("alice", &mut alice).await;
    let told = a.node.disconnect(&UserId::new("alice"), Some(development::now())).await;
    assert_eq!((told, alice.hear().await), (Ok(1), json!({"type": 7})));
    let mut opened = [false; 2];
    for (hub, opened) in [&a, &b].into_iter().zip(&mut opened) {
        let url = format!("ws://{}/hubs/notifications", hub.address);
        *opened = Client::open(&url, &token).await.is_ok();
    }
    opened
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_told_to_go_comes_back_nowhere() {
    assert_eq!(come_back(None).await, [false; 2]);
    let naive = come_back(Some(Planted::KickOnly)).await;
    assert_eq!(naive, [true; 2], "the naive version is seen");
}

/// Everything was forgotten, and a node begins that does not know it: who is with others is not away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_begins_after_everything_was_forgotten_knows_not_nobody() {
    let inner = Arc::new(InProcess::new());
    let (one, other) = (LinePath::to(&inner), LinePath::to(&inner));
    let limits = Limits { lease: AN_HOUR, ..limits() };
    let Pair { a, b } = Pair::start(&limits, one, other.clone()).await;
    let mut alice = b.connect("alice").await;
    a.acknowledged("alice", &mut alice).await;
    set(&other.away);
    inner.forget();
    let newcomer = TestHub::among(settings(limits), inner, Some(&a)).await;
    let answered = async {
        loop {
            if let Ok(ask) = newcomer.try_send("alice").await {
                return ask.answer().await;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert_eq!(crate::support::patiently("an answer", answered).await, Answer::Unavailable);
    unset(&other.away);
    newcomer.acknowledged("alice", &mut alice).await;
}
