//! Kafka fails in hundreds of ways; the engine needs only to know whose move it is.

use potok_core::{Fault, Move, RECORD_BYTES_MAX, Reason};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

/// Whose move an error code is. Everything that is not in the table is an attempt that failed.
///
/// Refused access waits as an absent broker does: somebody grants it, and work goes on by itself.
pub fn next_move(code: Code) -> Move {
    match code {
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidMessageSize
        | Code::InvalidRecord
        | Code::InvalidMessage
        | Code::InvalidTimestamp => Move::SetAside,

        Code::UnsupportedSASLMechanism
        | Code::UnsupportedVersion
        | Code::UnsupportedFeature
        | Code::UnsupportedCompressionType
        | Code::InvalidArgument
        | Code::InvalidTopic
        | Code::InvalidGroupId
        | Code::InvalidSessionTimeout
        | Code::InvalidPartitions
        | Code::InvalidReplicationFactor
        | Code::InvalidConfig
        | Code::PolicyViolation
        | Code::InconsistentGroupProtocol
        | Code::FencedInstanceId
        | Code::GroupMaxSizeReached
        | Code::UnknownPartition
        | Code::NotConfigured => Move::Fix,

        code if is_outage(code) || is_refusal(code) => Move::Wait,

        Code::UnknownTopicOrPartition
        | Code::UnknownTopic
        | Code::KafkaStorageError
        | Code::ThrottlingQuotaExceeded => Move::Wait,

        _ => Move::Retry,
    }
}

/// The cluster, or the part of it that is needed, cannot be reached just now.
pub fn is_outage(code: Code) -> bool {
    matches!(
        code,
        Code::AllBrokersDown
            | Code::BrokerTransportFailure
            | Code::Resolve
            | Code::OperationTimedOut
            | Code::TimedOutQueue
            | Code::MessageTimedOut
            | Code::RequestTimedOut
            | Code::NetworkException
            | Code::BrokerNotAvailable
            | Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::ReplicaNotAvailable
            | Code::NotEnoughReplicas
            | Code::NotEnoughReplicasAfterAppend
            | Code::CoordinatorLoadInProgress
            | Code::CoordinatorNotAvailable
            | Code::NotCoordinator
            | Code::NotController
            | Code::WaitingForCoordinator
            | Code::FencedLeaderEpoch
            | Code::UnknownLeaderEpoch
            | Code::OffsetNotAvailable
            | Code::UnknownBroker
            | Code::WaitCache
    )
}

/// The cluster answers, and does not let us.
pub fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::Authentication
            | Code::SaslAuthenticationFailed
            | Code::SSL
            | Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::SecurityDisabled
            | Code::IllegalSASLState
    )
}

/// What an error means, `what` saying what was tried.
pub fn sorted(what: &str, code: Code, cause: impl std::fmt::Display) -> Fault {
    let fault = match next_move(code) {
        Move::Wait if is_refusal(code) => {
            Fault::wait(format!("Kafka does not let this client {what}"))
                .code("P0604")
                .hint(grant(code))
        }
        Move::Wait => Fault::wait(format!("Kafka cannot {what} just now")).code("P0601"),
        Move::Retry => Fault::retry(format!("Kafka could not {what}")).code("P0615"),
        Move::SetAside => {
            Fault::set_aside(reason(code), format!("Kafka will not {what}")).code("P0607")
        }
        Move::Fix => Fault::fix(format!("Kafka will not {what}")).code("P0602"),
    };
    fault.because(cause)
}

/// The same for what the client library gives back.
pub fn of(what: &str, error: &KafkaError) -> Fault {
    match error.rdkafka_error_code() {
        Some(code) => sorted(what, code, error),
        None => Fault::retry(format!("Kafka could not {what}")).code("P0615").because(error),
    }
}

fn reason(code: Code) -> Reason {
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            Reason::TooLarge
        }
        _ => Reason::Refused,
    }
}

/// What to do about a refusal.
fn grant(code: Code) -> &'static str {
    match code {
        Code::TopicAuthorizationFailed => {
            "grant it Read, Write and Describe on its topics, and Create where it makes them; \
             work goes on by itself"
        }
        Code::GroupAuthorizationFailed => {
            "grant it Read, Describe and Delete on its consumer group; work goes on by itself"
        }
        Code::ClusterAuthorizationFailed => {
            "grant it Create and IdempotentWrite on the cluster; work goes on by itself"
        }
        _ => "check its credentials and certificates (security.protocol, sasl.*, ssl.*)",
    }
}

/// Why a record was not taken.
pub fn refused(topic: &str, bytes: usize, code: Code) -> Fault {
    let what = format!("Kafka does not take a record of {bytes} bytes for `{topic}`");
    let fault = Fault::set_aside(reason(code), what).code("P0607").because(code);
    match reason(code) {
        Reason::TooLarge => fault.hint("raise the topic's max.message.bytes, or send less"),
        _ => fault,
    }
}

pub fn too_large(topic: &str, bytes: usize) -> Fault {
    let what = format!("a record of {bytes} bytes for `{topic}`");
    Fault::set_aside(Reason::TooLarge, what)
        .code("P0607")
        .because(format!("at most {RECORD_BYTES_MAX} bytes are taken"))
}

pub fn no_servers() -> Fault {
    Fault::fix("the address of Kafka is empty")
        .code("P0602")
        .hint("name at least one broker: kafka://host:9092")
}

/// A client could not even be made: a property it does not know, a file that is not there.
pub fn set_up(error: &KafkaError) -> Fault {
    let fault = Fault::fix("the Kafka client cannot be set up").code("P0602");
    match error {
        KafkaError::ClientConfig(_, why, name, value) => {
            fault.because(format!("{why} (`{name}`, set to `{}`)", shown(name, value)))
        }
        other => fault.because(other),
    }
    .hint("librdkafka's CONFIGURATION.md lists every property")
}

/// Properties may be secrets.
fn shown<'a>(name: &str, value: &'a str) -> &'a str {
    let secret = ["password", "secret", "key", "token", "jaas", "sasl."];
    if secret.iter().any(|word| name.contains(word)) { "…" } else { value }
}

pub fn property_is_ours(name: &str, why: &str) -> Fault {
    Fault::fix(format!("the Kafka property `{name}` cannot be set"))
        .code("P0603")
        .because(why)
        .hint("leave it away")
}

pub fn no_partitions() -> Fault {
    Fault::fix("new topics need at least one partition and one replica").code("P0602")
}

/// Nobody made the topic, and we are told not to.
pub fn topic_missing(topics: &[&str]) -> Fault {
    let names = topics.join("`, `");
    let create: Vec<String> =
        topics.iter().map(|t| format!("kafka-topics.sh --create --topic {t}")).collect();
    Fault::wait(format!("there is no topic `{names}` in Kafka, and potok may not create it"))
        .code("P0605")
        .hint(format!("create it ({}), or allow create_topics", create.join("; ")))
}

pub fn not_created(topic: &str, code: Code) -> Fault {
    let fault = sorted(&format!("create the topic `{topic}`"), code, code);
    match code {
        Code::InvalidReplicationFactor => fault
            .code("P0606")
            .hint("create_topics.replication asks for more copies than there are brokers"),
        code if is_refusal(code) => fault,
        _ => fault.code("P0606"),
    }
}

pub fn no_topic(topic: &str) -> Fault {
    Fault::fix(format!("there is no topic `{topic}` in Kafka"))
        .code("P0608")
        .hint("a topic comes to be with its first record: `potok send`")
}

pub fn no_partition(topic: &str, partition: u32, partitions: u32) -> Fault {
    Fault::fix(format!("topic `{topic}` has {partitions} partitions, not a number {partition}"))
        .code("P0612")
}

pub fn group_open(group: &str) -> Fault {
    Fault::fix(format!("the group `{group}` is being read"))
        .code("P0609")
        .hint("stop the pipelines that read it first, in every process")
}

/// The one that had it is still letting go.
pub fn group_closing(group: &str) -> Fault {
    Fault::wait(format!("the group `{group}` is still being closed")).code("P0609")
}

pub fn no_group(group: &str) -> Fault {
    Fault::fix(format!("there is no group `{group}` in Kafka"))
        .code("P0610")
        .hint("`potok groups list` shows those there are")
}

/// The group was thrown out for good.
pub fn fatal(code: Code, why: &str) -> Fault {
    Fault::fix("Kafka has put this member out of its group for good")
        .code("P0613")
        .because(format!("{why} ({code})"))
        .hint("does another process use the same group.instance.id? then `potok resume`")
}

/// The polling thread is gone: a bug, or no thread could be started.
pub fn poller_died(cause: impl std::fmt::Display) -> Fault {
    Fault::fix("reading Kafka failed inside potok")
        .code("P0614")
        .because(cause)
        .hint("resume the pipeline; nothing is lost; please report it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_is_somebodys_move() {
        let table = [
            (Code::AllBrokersDown, Move::Wait),
            (Code::BrokerTransportFailure, Move::Wait),
            (Code::OperationTimedOut, Move::Wait),
            (Code::LeaderNotAvailable, Move::Wait),
            (Code::NotLeaderForPartition, Move::Wait),
            (Code::NotEnoughReplicas, Move::Wait),
            (Code::CoordinatorNotAvailable, Move::Wait),
            (Code::SaslAuthenticationFailed, Move::Wait),
            (Code::TopicAuthorizationFailed, Move::Wait),
            (Code::GroupAuthorizationFailed, Move::Wait),
            (Code::UnknownTopicOrPartition, Move::Wait),
            (Code::KafkaStorageError, Move::Wait),
            (Code::MessageSizeTooLarge, Move::SetAside),
            (Code::InvalidRecord, Move::SetAside),
            (Code::InvalidReplicationFactor, Move::Fix),
            (Code::InvalidTopic, Move::Fix),
            (Code::FencedInstanceId, Move::Fix),
            (Code::UnsupportedSASLMechanism, Move::Fix),
            (Code::RebalanceInProgress, Move::Retry),
            (Code::OutOfOrderSequenceNumber, Move::Retry),
            (Code::Unknown, Move::Retry),
        ];
        for (code, expected) in table {
            assert_eq!(next_move(code), expected, "{code:?}");
            assert_eq!(sorted("write", code, code).next, expected, "{code:?}");
        }
    }

    #[test]
    fn too_large_is_told_apart_from_refused() {
        assert_eq!(refused("t", 5, Code::MessageSizeTooLarge).reason, Reason::TooLarge);
        assert_eq!(refused("t", 5, Code::InvalidRecord).reason, Reason::Refused);
    }

    #[test]
    fn secrets_do_not_print() {
        let error = KafkaError::ClientConfig(
            rdkafka::types::RDKafkaConfRes::RD_KAFKA_CONF_INVALID,
            "bad".into(),
            "sasl.password".into(),
            "hunter2".into(),
        );
        assert!(!set_up(&error).to_string().contains("hunter2"));
    }
}
