//! Topics that potok keeps for itself, known by their names.
//!
//! ```text
//! potok-<pipeline>       records on their way through groups, and notes about them
//! potok-groups           which consumer groups are potok's (Kafka)
//! potok-audit            what people have done, and when
//! <pipeline>-dead        dead letters, unless the pipeline names another topic for them
//! …-dead-resolved        what became of dead letters
//! <pipeline>-replay      dead letters on their way back into their pipeline
//! ```
//! A record of anybody else would be swallowed or mistaken for one of potok's, so only potok
//! writes there. Reading is free: dead letters may well be the source of another pipeline.

use crate::Fault;

/// The purpose of a topic of this name, if it is one of potok's own.
pub fn own_topic(topic: &str) -> Option<&'static str> {
    let purposes = [
        (topic.starts_with("potok-"), "potok's own notes"),
        (topic.ends_with("-dead-resolved"), "what became of dead letters"),
        (topic.ends_with("-dead"), "dead letters"),
        (topic.ends_with("-replay"), "dead letters on their way back"),
    ];
    purposes.iter().find(|(is_it, _)| *is_it).map(|(_, purpose)| *purpose)
}

/// True for a name of a pipeline whose topics would be some that potok has already.
pub fn is_own_pipeline(name: &str) -> bool {
    // Damaged bytes of the embedded log are dead letters of `potok`.
    name.starts_with("potok-")
        || ["potok", "groups", "audit", "dead", "dead-resolved", "replay"].contains(&name)
}

/// Why nobody writes to that topic by hand.
pub fn not_by_hand(topic: &str, purpose: &str) -> Fault {
    Fault::fix(format!("`{topic}` is a topic of potok's own: it holds {purpose}"))
        .code("P0151")
        .hint("send to a topic that a pipeline reads; `potok dead-letters replay` sends again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_topics_are_known_by_their_names() {
        for own in ["potok-groups", "potok-orders", "orders-dead", "x-dead-resolved", "x-replay"] {
            assert!(own_topic(own).is_some(), "{own}");
        }
        for free in ["orders", "dead", "potok", "deadly", "replay", "orders-deadline"] {
            assert_eq!(own_topic(free), None, "{free}");
        }
        assert!(
            is_own_pipeline("groups") && is_own_pipeline("potok-x") && is_own_pipeline("potok")
        );
        assert!(!is_own_pipeline("orders") && !is_own_pipeline("group"));
    }
}
