//! A list as a destination.

use std::time::Duration;

use bytes::Bytes;
use potok_connectors::redis::RedisListSink;
use potok_core::{
    Batch, DeliveryId, Headers, Message, Outcome, Position, Receipt, Sink, Timestamp,
};

use crate::rig::{Other, server};

fn batch(offset: u64) -> Batch {
    let position = Position { log: 1, topic: "t".into(), partition: 0, offset };
    let value = Bytes::from(format!("{{\"n\":{offset}}}"));
    let message = Message {
        id: DeliveryId { position, deliver: 0, element: 0 },
        key: None,
        headers: Headers::none(),
        source: value.clone(),
        value,
        once: None,
        time: Timestamp(0),
    };
    Batch { messages: vec![message] }
}

/// Something else has the name of the list; when that is gone the message is pushed, once.
#[test]
pub fn a_list_that_was_none_gets_its_message_once_it_is_one() {
    let redis = server(&[]);
    let mut other = Other::new(&redis);
    let sink = RedisListSink::new(&redis.url(), "queue:done", Duration::from_secs(3_600)).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let deliver = || runtime.block_on(sink.deliver(&batch(7)));
    let outcomes = |receipt: Receipt| receipt.outcomes(1).collect::<Vec<Outcome>>();
    let _: String = other.ask(&["SET", "queue:done", "no list"]);
    assert!(deliver().is_err());
    let _: i64 = other.ask(&["DEL", "queue:done"]);
    assert!(matches!(outcomes(deliver().unwrap())[..], [_]));
    assert!(matches!(outcomes(deliver().unwrap())[..], [Outcome::Duplicate]));
    let entries: Vec<String> = other.ask(&["LRANGE", "queue:done", "0", "-1"]);
    assert_eq!(entries, ["{\"n\":7}"]);
    // It is known for as long as was said.
    let markers: Vec<String> = other.ask(&["KEYS", "potok:id:*"]);
    let [marker] = markers.as_slice() else { panic!("{markers:?}") };
    let left: i64 = other.ask(&["TTL", marker]);
    assert!(left > 3_000 && left <= 3_600, "{left}");
}
