//! Methods that clients call, and how handshakes and messages may arrive.

use potok_hub::Hub;
use serde_json::json;

use crate::support::TestHub;

#[tokio::test]
async fn calls_are_answered_in_the_words_of_the_original() {
    let hub = TestHub::start().await;
    let mut client = hub.connect("alice").await;
    let expected = [
        (
            json!({"target": "Echo", "arguments": [5]}),
            json!({"result": {"user": "alice", "value": 5}}),
        ),
        (json!({"target": "ECHO", "arguments": ["refuse"]}), json!({"error": "not today"})),
        (
            json!({"target": "echo", "arguments": ["panic"]}),
            json!({"error": "An unexpected error occurred invoking 'echo' on the server."}),
        ),
        (
            json!({"target": "echo", "arguments": []}),
            json!({"error": "Failed to invoke 'echo' due to an error on the server."}),
        ),
        (json!({"target": "nope", "arguments": []}), json!({"error": "Unknown hub method 'nope'"})),
        (
            json!({"target": "echo", "arguments": [1], "streamIds": ["s"]}),
            json!({"error": "Streams are not supported by this hub."}),
        ),
    ];
    for (number, (mut call, mut answer)) in expected.into_iter().enumerate() {
        // Without an id nothing is answered, not even an error.
        call["type"] = 1.into();
        client.say(call.clone()).await;
        call["invocationId"] = number.to_string().into();
        client.say(call).await;
        answer["type"] = 3.into();
        answer["invocationId"] = number.to_string().into();
        assert_eq!(client.hear().await, answer);
    }
    client.say(json!({"type": 4, "invocationId": "s", "target": "echo", "arguments": []})).await;
    let refused = client.hear().await;
    assert!(refused["error"].as_str().unwrap().contains("no streams"), "{refused}");
}

#[tokio::test]
async fn messages_may_share_frames_and_span_them() {
    let hub = TestHub::start().await;
    let mut client = hub.attach(&hub.token("alice")).await;
    let call = |id| {
        format!(
            "{}\u{1e}",
            json!({"type": 1, "target": "echo", "arguments": [1], "invocationId": id})
        )
    };
    client
        .write(&format!("{{\"protocol\":\"json\",\"version\":1}}\u{1e}{}{}", call("a"), call("b")))
        .await;
    assert_eq!(client.hear().await, json!({}));
    assert_eq!(client.hear().await["invocationId"], "a");
    assert_eq!(client.hear().await["invocationId"], "b");
    let spread = call("c");
    for part in spread.as_bytes().chunks(7) {
        client.write(std::str::from_utf8(part).unwrap()).await;
    }
    assert_eq!(client.hear().await["invocationId"], "c");
}

#[tokio::test]
async fn a_handshake_that_cannot_be_is_refused_with_a_reason() {
    let hub = TestHub::start().await;
    for (handshake, word) in [
        (json!({"protocol": "protobuf", "version": 1}), "not supported"),
        (json!({"protocol": "json", "version": 9}), "version 9"),
        (json!({"hello": 1}), "unexpected error"),
    ] {
        let mut client = hub.attach(&hub.token("alice")).await;
        client.say(handshake).await;
        let answer = client.hear().await;
        assert!(answer["error"].as_str().unwrap().contains(word), "{answer}");
        assert_eq!(client.heard().await, None);
    }
}

/// Parsed, a call is many times as large as its bytes.
#[tokio::test]
async fn calls_that_wait_are_bounded_in_bytes() {
    let hub = TestHub::start().await;
    let mut client = hub.connect("alice").await;
    let call = |bytes| {
        let arguments = ["x".repeat(bytes)];
        json!({"type": 1, "target": "stall", "arguments": arguments, "invocationId": "s"})
    };
    for bytes in [1, 30_000, 30_000] {
        client.say(call(bytes)).await;
    }
    // They wait behind the first, and do no harm.
    client.say(json!({"type": 6})).await;
    assert_eq!(hub.node.stats().connections, 1);
    client.say(call(30_000)).await;
    let closed = client.hear().await;
    assert_eq!((&closed["type"], closed["error"].is_string()), (&json!(7), true), "{closed}");
}
