//! What waits at one node for users and for other nodes is bounded in bytes, and counted.

use std::sync::Arc;

use potok_hub::{AckRule, Answer, Answers, Hub, Limits, Outgoing, Ticket, UserId};
use serde_json::json;

use crate::lines::set;
use crate::pair::{Pair, limits};
use crate::support::{AN_HOUR, Recorder, frame, patiently, until};
use crate::trouble::apart;

fn large(number: u64) -> Outgoing {
    Outgoing {
        ticket: Ticket(number),
        user: UserId::new("alice"),
        frame: frame(&json!("x".repeat(60_000))),
        ack_within: AN_HOUR,
        ack: AckRule::Any,
    }
}

/// She moves: what comes meanwhile waits, as much as would for a connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_user_who_moves_is_bounded_in_bytes() {
    let limits = Limits { linger: AN_HOUR, ..limits() };
    let (Pair { a, b }, ..) = apart(&limits).await;
    let mut alice = b.connect("alice").await;
    a.acknowledged("alice", &mut alice).await;
    drop(alice);
    until("the break is noticed", || b.node.stats().connections == 0).await;
    let recorder = Arc::new(Recorder::default());
    let batch = (0..limits.waiting as u64).map(large).collect();
    a.node.send(batch, recorder.clone()).await.unwrap();
    let room = limits.queued_bytes / large(0).frame.bytes();
    let refused = recorder.count(limits.waiting - room).await;
    assert!(refused.iter().all(|(_, answer)| *answer == Answer::NoAnswer { written: false }));
    until("the rest waits", || a.node.stats().queued_bytes == room * large(0).frame.bytes()).await;
    let mut alice = a.connect("alice").await;
    for _ in 0..room {
        let id = alice.invoked().await;
        alice.complete(&id).await;
    }
    let answers = recorder.count(limits.waiting).await;
    let acknowledged = answers.iter().filter(|(_, answer)| *answer == Answer::Acknowledged);
    assert_eq!(acknowledged.count(), room);
    until("nothing waits", || a.node.stats().queued_bytes == 0).await;
}

/// Her node stands still: what it was given is kept here until it replies, and counts. When all may
/// be no more, `send` waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_node_has_not_answered_is_counted() {
    const SENT: usize = 5;
    let bytes = large(0).frame.bytes();
    let limits = Limits { queued_bytes_total: SENT * bytes - 1, lease: AN_HOUR, ..limits() };
    let (Pair { a, b }, _, way) = apart(&limits).await;
    let mut alice = b.connect("alice").await;
    a.acknowledged("alice", &mut alice).await;
    set(&way.deaf);
    let recorder: Arc<dyn Answers> = Arc::new(Recorder::default());
    let mut sent = 0;
    while sent < SENT {
        a.node.send(vec![large(sent as u64)], recorder.clone()).await.unwrap();
        sent += 1;
        // The line has taken it; its reply is missing.
        until("it counts", || a.node.stats().queued_bytes == sent * bytes).await;
    }
    let mut more = Box::pin(a.node.send(vec![large(sent as u64)], recorder.clone()));
    assert!(futures::poll!(&mut more).is_pending());
    let tickets: Vec<_> = (0..SENT as u64).map(Ticket).collect();
    a.node.cancel(&recorder, &tickets);
    patiently("there is room", more).await.unwrap();
    until("the rest is let go", || a.node.stats().queued_bytes == bytes).await;
}
