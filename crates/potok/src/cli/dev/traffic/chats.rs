//! Generated messages of chats, for the list that `chat` reads.

use potok_core::{Headers, Output};
use potok_traffic::chat;

use super::{Traffic, TrafficSite};

/// The list, which is a topic of the embedded log.
const LIST: &str = "queue:incoming";

/// What makes the next message.
pub(super) fn traffic(site: &TrafficSite<'_>) -> Traffic {
    let mut messages = chat::ChatGenerator::new(site.now);
    Traffic::Records(Box::new(move || {
        let message = messages.next_message();
        Output {
            topic: LIST.into(),
            partition: None,
            key: message.chat.map(|chat| chat.into_bytes().into()),
            headers: Headers::none(),
            value: Some(message.bytes.into()),
        }
    }))
}
