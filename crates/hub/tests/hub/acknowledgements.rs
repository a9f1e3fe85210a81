//! What counts as an acknowledgement, whose, and how often.

use std::sync::Arc;
use std::time::Duration;

use potok_hub::trouble::Planted;
use potok_hub::{AckRule, Answer, Frame, FrameError, Hub, Limits, Outgoing, Ticket, UserId};
use serde_json::json;

use crate::support::{AN_HOUR, Client, NO_RESULT, Recorder, TestHub, frame, until};

const SOON: Duration = Duration::from_millis(50);

#[tokio::test]
async fn a_handler_that_returns_nothing_acknowledges() {
    let hub = TestHub::start().await;
    let mut client = hub.connect("alice").await;
    for completion in [
        json!({"type": 3, "error": NO_RESULT}),
        json!({"type": 3, "error": "Client provided multiple results."}),
        json!({"type": 3}),
        json!({"type": 3, "result": null}),
        json!({"type": 3, "result": {"seen": true}}),
    ] {
        let ask = hub.send("alice", json!({"text": "hi"})).await;
        let message = client.hear().await;
        assert_eq!(message["arguments"], json!([{"text": "hi"}, {"id": "m-1"}]));
        assert!(ask.is_open());
        let mut completion = completion;
        completion["invocationId"] = message["invocationId"].clone();
        client.say(completion.clone()).await;
        assert_eq!(ask.answer().await, Answer::Acknowledged, "{completion}");
    }
}

async fn sent_to_a_void_handler(planted: Option<Planted>) -> Answer {
    let hub = TestHub::planted(planted).await;
    let mut client = hub.connect("alice").await;
    let ask = hub.send("alice", json!(1)).await;
    let id = client.invoked().await;
    client.complete(&id).await;
    ask.answer().await
}

#[tokio::test]
async fn the_words_of_a_void_handler_are_no_failure() {
    assert_eq!(sent_to_a_void_handler(None).await, Answer::Acknowledged);
    let naive = sent_to_a_void_handler(Some(Planted::ErrorIsNotDelivered)).await;
    assert_ne!(naive, Answer::Acknowledged, "the naive version is seen");
}

#[tokio::test]
async fn a_handler_that_throws_does_not_acknowledge() {
    let hub = TestHub::start().await;
    let mut client = hub.connect("alice").await;
    let ask = hub.send("alice", json!(1)).await;
    let id = client.invoked().await;
    client.say(json!({"type": 3, "invocationId": id, "error": "Error: no"})).await;
    // At once, not at the deadline: nobody is left who could answer.
    assert_eq!(ask.answer().await, Answer::NoAnswer { written: true });
    assert_eq!(hub.node.stats().threw, 1);
}

#[tokio::test]
async fn the_strict_rule_takes_only_a_result() {
    let hub = TestHub::start().await;
    let mut client = hub.connect("alice").await;
    for (completion, answer) in [
        (json!({"type": 3, "error": NO_RESULT}), Answer::NoAnswer { written: true }),
        (json!({"type": 3}), Answer::NoAnswer { written: true }),
        (json!({"type": 3, "result": 1}), Answer::Acknowledged),
    ] {
        let ask = hub.send_frame("alice", &frame(&json!(1)), AN_HOUR, AckRule::Result).await;
        let mut completion = completion;
        completion["invocationId"] = client.invoked().await;
        client.say(completion).await;
        assert_eq!(ask.answer().await, answer);
    }
}

#[tokio::test]
async fn nobody_acknowledges_for_somebody_else() {
    let hub = TestHub::start().await;
    let (mut alice, mut bob) = (hub.connect("alice").await, hub.connect("bob").await);
    // One frame for both: they share its id.
    let shared = frame(&json!({"text": "for both"}));
    let to_alice = hub.send_frame("alice", &shared, AN_HOUR, AckRule::Any).await;
    let to_bob = hub.send_frame("bob", &shared, AN_HOUR, AckRule::Any).await;
    let id = bob.invoked().await;
    assert_eq!(alice.invoked().await, id);
    bob.complete(&id).await;
    assert_eq!(to_bob.answer().await, Answer::Acknowledged);
    bob.complete(&id).await;
    bob.complete(&json!("0")).await;
    until("both are counted", || hub.node.stats().unknown == 2).await;
    assert!(to_alice.is_open());
    alice.complete(&id).await;
    assert_eq!(to_alice.answer().await, Answer::Acknowledged);
}

/// Whether what alice got is still open when bob has completed it twice.
async fn completed_by_another(planted: Option<Planted>) -> bool {
    let hub = TestHub::planted(planted).await;
    let (mut alice, mut bob) = (hub.connect("alice").await, hub.connect("bob").await);
    let shared = frame(&json!(1));
    let to_alice = hub.send_frame("alice", &shared, AN_HOUR, AckRule::Any).await;
    let _to_bob = hub.send_frame("bob", &shared, AN_HOUR, AckRule::Any).await;
    let id = bob.invoked().await;
    alice.invoked().await;
    bob.complete(&id).await;
    bob.complete(&id).await;
    let stats = || hub.node.stats();
    until("both are counted", || stats().unknown + stats().acknowledged == 2).await;
    to_alice.is_open()
}

#[tokio::test]
async fn an_id_alone_acknowledges_nothing() {
    assert!(completed_by_another(None).await);
    let naive = completed_by_another(Some(Planted::MatchById)).await;
    assert!(!naive, "the naive version is seen");
}

/// Whether a message is still open when an earlier one was completed again, late.
async fn completed_late(planted: Option<Planted>) -> bool {
    let hub = TestHub::planted(planted).await;
    let mut client = hub.connect("alice").await;
    let first = hub.send_within("alice", json!(1), SOON).await;
    let id = client.invoked().await;
    assert_eq!(first.answer().await, Answer::NoAnswer { written: true });
    client.complete(&id).await;
    until("a late completion", || hub.node.stats().late == 1).await;
    let second = hub.send("alice", json!(2)).await;
    client.invoked().await;
    client.complete(&id).await;
    let stats = || hub.node.stats();
    until("it is counted", || stats().unknown + stats().acknowledged == 1).await;
    second.is_open()
}

#[tokio::test]
async fn a_late_completion_says_nothing_of_another_message() {
    assert!(completed_late(None).await);
    assert!(!completed_late(Some(Planted::SlotReused)).await, "the naive version is seen");
}

/// A member of a conversation that pings and never completes: how many of its messages are open
/// when each of the others' is acknowledged.
async fn sent_with_a_silent_member(planted: Option<Planted>) -> usize {
    let hub = TestHub::planted(planted).await;
    let (mut alice, mut silent) = (hub.connect("alice").await, hub.connect("silent").await);
    let missed = hub.send_within("silent", json!(0), SOON).await;
    missed.answer().await;
    let mut open = Vec::new();
    for number in 0..120 {
        silent.say(json!({"type": 6})).await;
        open.push(hub.send("silent", json!(number)).await);
        let ask = hub.send("alice", json!(number)).await;
        let id = alice.invoked().await;
        alice.complete(&id).await;
        assert_eq!(ask.answer().await, Answer::Acknowledged);
    }
    open.iter().filter(|ask| ask.is_open()).count()
}

#[tokio::test]
async fn a_silent_member_is_waited_for_once_and_holds_up_nobody() {
    assert_eq!(sent_with_a_silent_member(None).await, 0);
    let naive = sent_with_a_silent_member(Some(Planted::WaitsEachTime)).await;
    assert_eq!(naive, 120, "the naive version is seen");
}

#[tokio::test]
async fn any_connection_of_the_user_acknowledges_and_all_get_the_message() {
    let hub = TestHub::start().await;
    let (mut phone, mut browser) = (hub.connect("alice").await, hub.connect("alice").await);
    let ask = hub.send("alice", json!(1)).await;
    let id = phone.invoked().await;
    assert_eq!(browser.invoked().await, id);
    phone.say(json!({"type": 3, "invocationId": id, "error": "Error: no"})).await;
    browser.complete(&id).await;
    assert_eq!(ask.answer().await, Answer::Acknowledged);
}

#[tokio::test]
async fn a_connection_that_does_not_answer_is_waited_for_once() {
    let hub = TestHub::start().await;
    let mut client = hub.connect("alice").await;
    let missed = hub.send_within("alice", json!(1), SOON).await;
    assert_eq!(missed.answer().await, Answer::NoAnswer { written: true });
    // Still sent to, but not waited for: this would take an hour.
    let unwaited = hub.send("alice", json!(2)).await;
    assert_eq!(unwaited.answer().await, Answer::NoAnswer { written: true });
    let first = client.invoked().await;
    client.invoked().await;
    // Late, and not counted again; but it is heard from, and waited for from now on.
    client.complete(&first).await;
    until("a late completion", || hub.node.stats().late == 1).await;
    let waited = hub.send("alice", json!(3)).await;
    assert!(waited.is_open());
    let third = client.invoked().await;
    client.complete(&third).await;
    assert_eq!(waited.answer().await, Answer::Acknowledged);
    assert_eq!(missed.recorder.answers.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn one_miss_frees_everything_else_that_waits_for_the_connection() {
    let hub = TestHub::start().await;
    let _client = hub.connect("alice").await;
    let patient = hub.send("alice", json!(1)).await;
    let missed = hub.send_within("alice", json!(2), SOON).await;
    assert_eq!(missed.answer().await, Answer::NoAnswer { written: true });
    assert_eq!(patient.answer().await, Answer::NoAnswer { written: true });
}

#[tokio::test]
async fn a_user_without_a_connection_is_nobody() {
    let hub = TestHub::start().await;
    assert_eq!(hub.send("alice", json!(1)).await.answer().await, Answer::Nobody);
    // Not before the handshake either.
    let mut client = hub.attach(&hub.token("alice")).await;
    assert_eq!(hub.send("alice", json!(1)).await.answer().await, Answer::Nobody);
    client.shake_hands().await;
    assert!(hub.send("alice", json!(1)).await.is_open());
}

#[tokio::test]
async fn what_a_closed_connection_owed_is_unanswered() {
    let hub = TestHub::start().await;
    let mut client = hub.connect("alice").await;
    let ask = hub.send("alice", json!(1)).await;
    client.invoked().await;
    drop(client);
    assert_eq!(ask.answer().await, Answer::NoAnswer { written: true });
}

#[tokio::test]
async fn a_user_whose_connection_broke_gets_what_came_meanwhile() {
    let hub = TestHub::start().await;
    let client = hub.connect("alice").await;
    drop(client);
    until("the break is noticed", || hub.node.stats().connections == 0).await;
    let first = hub.send("alice", json!("first")).await;
    let second = hub.send("alice", json!("second")).await;
    assert!(first.is_open() && second.is_open());
    let mut client = hub.connect("alice").await;
    for (ask, text) in [(first, "first"), (second, "second")] {
        let message = client.hear().await;
        assert_eq!(message["arguments"][0], text);
        client.complete(&message["invocationId"]).await;
        assert_eq!(ask.answer().await, Answer::Acknowledged);
    }
    // One that does not come back is nobody, and one that said goodbye is nobody at once.
    drop(client);
    until("the break is noticed", || hub.node.stats().connections == 0).await;
    assert_eq!(hub.send("alice", json!(1)).await.answer().await, Answer::Nobody);
    let mut client = hub.connect("alice").await;
    client.say(json!({"type": 7})).await;
    assert_eq!(client.heard().await, None);
    let ask = hub.send("alice", json!(1)).await;
    assert!(!ask.is_open(), "answered before `send` returned");
    assert_eq!(ask.answer().await, Answer::Nobody);
}

#[tokio::test]
async fn a_cancelled_ticket_is_never_answered() {
    let hub = TestHub::start().await;
    let mut client = hub.connect("alice").await;
    let recorder = Arc::new(Recorder::default());
    let outgoing = |number| Outgoing {
        ticket: Ticket(number),
        user: UserId::new("alice"),
        frame: frame(&json!(number)),
        ack_within: AN_HOUR,
        ack: AckRule::Any,
    };
    hub.node.send(vec![outgoing(1), outgoing(2)], recorder.clone()).await.unwrap();
    let answers: Arc<dyn potok_hub::Answers> = recorder.clone();
    hub.node.cancel(&answers, &[Ticket(1)]);
    for _ in 0..2 {
        let id = client.invoked().await;
        client.complete(&id).await;
    }
    assert_eq!(recorder.count(1).await, [(Ticket(2), Answer::Acknowledged)]);
    drop(client);
    until("the client is gone", || hub.node.stats().connections == 0).await;
    assert_eq!(recorder.count(1).await.len(), 1);
}

#[tokio::test]
async fn messages_reach_a_connection_in_the_order_of_the_calls() {
    let hub = TestHub::start().await;
    let mut client = hub.connect("alice").await;
    let recorder = Arc::new(Recorder::default());
    // More than the window takes at once.
    let batch = (0..200).map(|number| Outgoing {
        ticket: Ticket(number),
        user: UserId::new("alice"),
        frame: frame(&json!(number)),
        ack_within: AN_HOUR,
        ack: AckRule::Any,
    });
    hub.node.send(batch.collect(), recorder.clone()).await.unwrap();
    for number in 0..200 {
        let message = client.hear().await;
        assert_eq!(message["arguments"][0], number);
        client.complete(&message["invocationId"]).await;
    }
    let answers = recorder.count(200).await;
    assert!(answers.iter().all(|(_, answer)| *answer == Answer::Acknowledged));
}

#[tokio::test]
async fn what_clients_say_is_counted_by_kind() {
    let hub = TestHub::start().await;
    let mut client = hub.connect("alice").await;
    let multiple = "Client provided multiple results.";
    let said =
        [json!({"result": 1}), json!({}), json!({"error": NO_RESULT}), json!({"error": multiple})];
    for mut completion in said {
        let ask = hub.send("alice", json!(1)).await;
        completion["type"] = 3.into();
        completion["invocationId"] = client.invoked().await;
        client.say(completion).await;
        assert_eq!(ask.answer().await, Answer::Acknowledged);
    }
    let ask = hub.send_within("alice", json!(1), SOON).await;
    assert_eq!(ask.answer().await, Answer::NoAnswer { written: true });
    assert!(
        Client::open(&format!("ws://{}/hubs/notifications", hub.address), "a.b.c").await.is_err()
    );
    let metrics = hub.node.metrics();
    for line in [
        "completions_total{hub=\"notifications\",kind=\"result\"} 1",
        "completions_total{hub=\"notifications\",kind=\"void\"} 1",
        "completions_total{hub=\"notifications\",kind=\"no_result\"} 1",
        "completions_total{hub=\"notifications\",kind=\"multiple\"} 1",
        "answers_total{hub=\"notifications\",kind=\"acknowledged\"} 4",
        "mute_connections{hub=\"notifications\"} 1",
        "token_refusals_total{hub=\"notifications\",reason=\"malformed\"} 1",
        "connects_total{hub=\"notifications\",result=\"accepted\"} 1",
    ] {
        assert!(metrics.contains(&format!("potok_hub_{line}\n")), "{line}\n{metrics}");
    }
}

/// A client that does not know what an answer is goes at its first message: that can be seen.
#[tokio::test]
async fn clients_that_go_when_they_are_asked_are_counted() {
    let hub = TestHub::limited(Limits { linger: Duration::ZERO, ..Limits::default() }).await;
    let counted = |count: u32| {
        let line = format!("potok_hub_closed_on_id_total{{hub=\"notifications\"}} {count}\n");
        hub.node.metrics().contains(&line)
    };
    let gone = || hub.node.stats().connections == 0;
    // Who was asked nothing, and who has answered, went for other reasons.
    drop(hub.connect("alice").await);
    until("it is gone", gone).await;
    let mut client = hub.connect("alice").await;
    let ask = hub.send("alice", json!(1)).await;
    let id = client.invoked().await;
    client.complete(&id).await;
    assert_eq!(ask.answer().await, Answer::Acknowledged);
    drop(client);
    until("it is gone", gone).await;
    assert!(counted(0), "{}", hub.node.metrics());
    // On a machine that is busy a second may pass in between.
    for _ in 0..5 {
        let mut client = hub.connect("alice").await;
        let ask = hub.send("alice", json!(1)).await;
        client.invoked().await;
        drop(client);
        assert_eq!(ask.answer().await, Answer::NoAnswer { written: true });
        until("it is gone", gone).await;
        if !counted(0) {
            return;
        }
    }
    panic!("none was counted: {}", hub.node.metrics());
}

/// What waited for somebody who had just left, by what became of it.
#[tokio::test]
async fn what_waited_for_a_user_is_counted_by_its_end() {
    let hub =
        TestHub::limited(Limits { linger: Duration::from_secs(2), ..Limits::default() }).await;
    let gone = || hub.node.stats().connections == 0;
    let counted = |outcome: &str, count: u32| {
        let line = format!("linger_total{{hub=\"notifications\",outcome=\"{outcome}\"}} {count}\n");
        assert!(hub.node.metrics().contains(&line), "{line}{}", hub.node.metrics());
    };
    let mut found = 0;
    while found == 0 {
        drop(hub.connect("alice").await);
        until("it is gone", gone).await;
        let ask = hub.send("alice", json!(1)).await;
        let mut client = hub.connect("alice").await;
        tokio::select! {
            id = client.invoked() => {
                client.complete(&id).await;
                assert_eq!(ask.answer().await, Answer::Acknowledged);
                found += 1;
            }
            // She took too long.
            answer = ask.answer() => assert_eq!(answer, Answer::Nobody),
        }
        drop(client);
        until("it is gone", gone).await;
    }
    counted("found", 1);
    let before = hub.node.stats().nobody;
    drop(hub.connect("bob").await);
    until("it is gone", gone).await;
    assert_eq!(hub.send("bob", json!(1)).await.answer().await, Answer::Nobody);
    assert_eq!(hub.node.stats().nobody, before + 1);
    assert!(!hub.node.metrics().contains("outcome=\"nobody\"} 0\n"));
}

/// Whoever writes a chat message must not be able to speak for the hub to all who get it.
#[tokio::test]
async fn a_payload_cannot_carry_messages_of_its_own() {
    let hub = TestHub::start().await;
    let mut client = hub.connect("alice").await;
    let forged = "1]}\u{1e}{\"type\":7,\"error\":\"forged\"}\u{1e}";
    let refused = Frame::new("notify", "m", forged.as_bytes(), 1_000).map(|_| ());
    assert_eq!(refused, Err(FrameError::NotJson));
    // As a text it is escaped, and is only a text.
    let quoted = json!(forged).to_string();
    let frame = Frame::new("notify", "m", quoted.as_bytes(), 1_000).unwrap();
    let ask = hub.send_frame("alice", &frame, AN_HOUR, AckRule::Any).await;
    let message = client.hear().await;
    assert_eq!(message["arguments"][0], forged);
    client.complete(&message["invocationId"]).await;
    assert_eq!(ask.answer().await, Answer::Acknowledged);
    let naive = Frame::unchecked("notify", "m", forged);
    hub.send_frame("alice", &naive, AN_HOUR, AckRule::Any).await;
    // What is cut off by it is a message too, which ends early.
    assert_eq!(client.hear().await["arguments"], json!([1]));
    let heard = client.hear().await;
    assert_eq!(heard, json!({"type": 7, "error": "forged"}), "the naive version is seen");
}
