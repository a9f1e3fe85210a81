//! The webhook as a destination, against a real server that is slow, wrong, broken or gone.

use std::time::Duration;

use bytes::Bytes;
use potok_connectors::webhook::WebhookSink;
use potok_core::{
    Batch, DeliveryId, Fault, Headers, Message, Move, Outcome, Position, Reason, Sink, Timestamp,
};

use crate::server::{ReceivedRequest, Reply, Server};

fn message(offset: u64, value: &str) -> Message {
    let position = Position { log: 7, topic: "orders".into(), partition: 3, offset };
    let value = Bytes::copy_from_slice(value.as_bytes());
    Message {
        id: DeliveryId { position, deliver: 1, element: 0 },
        key: None,
        headers: Headers::none(),
        source: value.clone(),
        value,
        once: None,
        time: Timestamp(0),
    }
}

fn batch(values: &[&str]) -> Batch {
    Batch { messages: values.iter().zip(0..).map(|(value, n)| message(n, value)).collect() }
}

fn sink(server: &Server) -> WebhookSink {
    WebhookSink::new(&server.url, Duration::from_secs(20)).unwrap()
}

/// What came of one message.
async fn fault_of(
    reply: impl Fn(usize, &ReceivedRequest) -> Reply + Send + Sync + 'static,
) -> Fault {
    let server = Server::start(reply).await;
    let sink = WebhookSink::new(&server.url, Duration::from_millis(300)).unwrap();
    fault(&sink).await
}

async fn fault(sink: &WebhookSink) -> Fault {
    let receipt = sink.deliver(&batch(&["{}"])).await.unwrap();
    let Some(Outcome::Failed(fault)) = receipt.outcomes(1).next() else { panic!("it failed") };
    assert!(!format!("{fault:?} {fault}").contains("canary"), "{fault:?}");
    assert!(!fault.to_string().contains("127.0.0.1"), "{fault}");
    fault
}

#[tokio::test]
async fn a_message_is_posted_as_it_is_under_its_id() {
    let server = Server::start(|_, _| Reply::Status(202, "thanks".to_owned())).await;
    let headers = [("X-Source".to_owned(), "shop".to_owned())];
    let sink = sink(&server).with_headers(headers).with_secret("s3cret");
    let value = "{ \"big\": 12345678901234567890,\n \"z\":1 }";
    let receipt = sink.deliver(&batch(&[value])).await.unwrap();
    assert!(matches!(receipt.outcomes(1).next(), Some(Outcome::Delivered)));
    let asked = &server.asked()[0];
    assert_eq!((asked.method.as_str(), asked.path.as_str()), ("POST", "/canary-path?token=canary"));
    assert_eq!(asked.body, value.as_bytes());
    assert_eq!(asked.header("content-type"), Some("application/json"));
    assert_eq!(asked.header("x-source"), Some("shop"));
    assert_eq!(asked.header("idempotency-key"), Some("orders/3/0@0000000000000007/1/0"));
    assert!(asked.header("x-hub-signature-256").unwrap().starts_with("sha256="));
    sink.deliver(&batch(&[value])).await.unwrap();
    let again = &server.asked()[1];
    assert_eq!(again.header("idempotency-key"), asked.header("idempotency-key"));
    assert_eq!(again.header("x-hub-signature-256"), asked.header("x-hub-signature-256"));
}

#[tokio::test]
async fn every_status_is_somebodys_move() {
    for (status, expected) in [
        (401, Move::Wait),
        (403, Move::Wait),
        (429, Move::Wait),
        (503, Move::Wait),
        (408, Move::Retry),
        (500, Move::Retry),
        (502, Move::Retry),
        (504, Move::Retry),
        (400, Move::SetAside),
        (404, Move::SetAside),
        (409, Move::SetAside),
        (422, Move::SetAside),
        (300, Move::Fix),
    ] {
        let fault = fault_of(move |_, _| Reply::Status(status, "because".to_owned())).await;
        assert_eq!(fault.next, expected, "{status}: {fault}");
        let cause = fault.cause.unwrap_or_default();
        assert!(cause.contains(&status.to_string()) && cause.contains("because"), "{cause}");
        if expected == Move::SetAside {
            assert_eq!(fault.reason, Reason::Refused);
        }
    }
}

#[tokio::test]
async fn what_is_no_answer_is_tried_again_and_nobody_there_is_waited_for() {
    for reply in [|| Reply::Nothing, || Reply::Silence] {
        let fault = fault_of(move |_, _| reply()).await;
        assert_eq!(fault.next, Move::Retry, "{fault}");
    }
    // A status is an answer, whatever becomes of the rest of it.
    let server = Server::start(|_, _| Reply::Broken).await;
    let receipt = sink(&server).deliver(&batch(&["{}"])).await.unwrap();
    assert!(matches!(receipt.outcomes(1).next(), Some(Outcome::Delivered)));
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/canary", nobody.local_addr().unwrap());
    drop(nobody);
    let sink = WebhookSink::new(&url, Duration::from_secs(20)).unwrap();
    assert_eq!(fault(&sink).await.next, Move::Wait);
    assert_eq!(sink.probe().await.unwrap_err().next, Move::Wait);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let other = Server::start(|_, _| Reply::Status(200, String::new())).await;
    let to = other.url.clone();
    let fault = fault_of(move |_, _| Reply::Redirect(to.clone())).await;
    assert_eq!(fault.next, Move::Fix, "{fault}");
    assert!(other.asked().is_empty());
}

#[tokio::test]
async fn one_that_is_refused_takes_no_other_with_it() {
    let server = Server::start(|_, asked| match asked.body.as_slice() {
        b"bad" => Reply::Status(422, "bad".to_owned()),
        b"away" => Reply::Status(503, String::new()),
        _ => Reply::Status(200, String::new()),
    })
    .await;
    let receipt = sink(&server).deliver(&batch(&["1", "bad", "2", "away"])).await.unwrap();
    let words: Vec<String> = receipt
        .outcomes(4)
        .map(|outcome| match outcome {
            Outcome::Failed(fault) => format!("{:?}", fault.next),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(words, ["Delivered", "SetAside", "Delivered", "Wait"]);
}

#[tokio::test]
async fn a_probe_posts_nothing_and_takes_any_answer_for_life() {
    for (status, is_there) in [(200, true), (404, true), (405, true), (401, true), (503, false)] {
        let server = Server::start(move |_, _| Reply::Status(status, String::new())).await;
        assert_eq!(sink(&server).probe().await.is_ok(), is_there, "{status}");
        assert!(server.asked().iter().all(|asked| asked.method != "POST"));
    }
}
