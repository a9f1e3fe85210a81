//! Kafka fails in hundreds of ways; the engine needs only to know whose move it is.

use std::sync::Arc;
use std::time::Duration;

use potok_core::{Fault, Move, RECORD_BYTES_MAX, Reason};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

/// The move for an error code. A code that is not in the table is an attempt that failed.
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
        | Code::InvalidConfig
        | Code::PolicyViolation
        | Code::FencedInstanceId
        | Code::NotConfigured => Move::Fix,

        code if is_outage(code) || is_refusal(code) || is_elsewhere(code) => Move::Wait,

        // A topic or partition just made is not known to every broker at once.
        Code::UnknownTopicOrPartition
        | Code::UnknownTopic
        | Code::UnknownPartition
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
            | Code::TransactionalIdAuthorizationFailed
            | Code::DelegationTokenAuthorizationFailed
            | Code::SecurityDisabled
            | Code::IllegalSASLState
    )
}

/// Something else has to change first: a broker has to come back, or another reader to leave.
pub fn is_elsewhere(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidReplicationFactor
            | Code::InconsistentGroupProtocol
            | Code::GroupMaxSizeReached
    )
}

/// The subject of a request: whoever has to grant a right wants to know its name.
#[derive(Clone, Copy, Default)]
pub struct Subject<'a> {
    pub group: &'a str,
    pub topics: &'a [Arc<str>],
}

impl<'a> Subject<'a> {
    pub fn topics(topics: &'a [Arc<str>]) -> Self {
        Subject { group: "", topics }
    }

    pub fn group(group: &'a str) -> Self {
        Subject { group, topics: &[] }
    }
}

/// The fault for an error; `what` says what was tried.
pub fn sorted(what: &str, code: Code, cause: impl std::fmt::Display) -> Fault {
    sorted_about(Subject::default(), what, code, cause)
}

/// The same where it is known what was asked about.
pub fn sorted_about(
    about: Subject<'_>,
    what: &str,
    code: Code,
    cause: impl std::fmt::Display,
) -> Fault {
    let fault = match next_move(code) {
        Move::Wait if is_refusal(code) => {
            Fault::wait(format!("Kafka does not let this client {what}"))
                .code("P0604")
                .needs_somebody()
                .hint(grant(code, about))
        }
        Move::Wait if is_elsewhere(code) => {
            Fault::wait(format!("Kafka will not {what} as things are"))
                .code("P0616")
                .hint(change(code))
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
    of_about(Subject::default(), what, error)
}

pub fn of_about(about: Subject<'_>, what: &str, error: &KafkaError) -> Fault {
    match error.rdkafka_error_code() {
        Some(code) => sorted_about(about, what, code, error),
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

/// The right that is missing, in the words of the tool that grants it.
fn grant(code: Code, about: Subject<'_>) -> String {
    let (operations, on, flags) = match code {
        Code::TopicAuthorizationFailed => {
            let flags = about.topics.iter().map(|topic| format!(" --topic {topic}")).collect();
            let names: Vec<&str> = about.topics.iter().map(|topic| &**topic).collect();
            let on = match names.is_empty() {
                true => "its topics".to_owned(),
                false => format!("`{}`", names.join("`, `")),
            };
            (TOPIC_RIGHTS, on, flags)
        }
        Code::GroupAuthorizationFailed => {
            let on = format!("the consumer group `{}`", about.group);
            (GROUP_RIGHTS, on, format!(" --group {}", about.group))
        }
        Code::TransactionalIdAuthorizationFailed => {
            let prefix = format!("{}-", transactional_ids(about.group));
            let on = format!("the transactional ids that begin with `{prefix}`");
            let flags = format!(" --transactional-id {prefix} --resource-pattern-type prefixed");
            (TRANSACTION_RIGHTS, on, flags)
        }
        Code::ClusterAuthorizationFailed => {
            (CLUSTER_RIGHTS, "the cluster".to_owned(), " --cluster".to_owned())
        }
        _ => {
            return "check its credentials and certificates (security.protocol, sasl.*, ssl.*)"
                .to_owned();
        }
    };
    let flags: String = flags;
    let options: String = operations.iter().map(|one| format!(" --operation {one}")).collect();
    let command = match flags.is_empty() {
        true => String::new(),
        false => format!(": `kafka-acls.sh --add --allow-principal User:NAME{options}{flags}`"),
    };
    format!("grant it {} on {on}{command}; work goes on by itself", operations.join(", "))
}

/// The operations of potok on topics, its own ones too.
const TOPIC_RIGHTS: &[&str] = &["Read", "Write", "Describe", "DescribeConfigs", "Create", "Delete"];
const GROUP_RIGHTS: &[&str] = &["Read", "Describe"];
const TRANSACTION_RIGHTS: &[&str] = &["Write", "Describe"];
const CLUSTER_RIGHTS: &[&str] = &["Create", "IdempotentWrite"];

/// Each producer of a group has a name of its own, that begins with this.
pub fn transactional_ids(group: &str) -> String {
    format!("potok-{group}")
}

/// The change that helps against an error code.
fn change(code: Code) -> &'static str {
    match code {
        Code::InvalidReplicationFactor => {
            "fewer brokers are there than copies are asked for (create_topics.replication, or the \
             brokers' default.replication.factor)"
        }
        Code::InconsistentGroupProtocol => {
            "somebody else reads this consumer group in another way; stop that reader, or give the \
             pipeline another consumer_group"
        }
        _ => "the brokers let only so many read one group (group.max.size)",
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

/// A client could not even be made: a property it does not know, a file that is not there. Where
/// others were made with the same properties it may pass: no more threads or files, a certificate
/// that is being replaced.
pub fn set_up(error: &KafkaError) -> Fault {
    let what = "the Kafka client cannot be set up";
    let fault = match error {
        KafkaError::ClientConfig(_, why, name, value) => {
            Fault::fix(what).because(format!("{why} (`{name}`, set to `{}`)", shown(name, value)))
        }
        other => Fault::wait(what).because(other),
    };
    fault.code("P0602").hint("librdkafka's CONFIGURATION.md lists every property")
}

/// The first clients could not be made: the set-up is wrong.
pub fn at_start(fault: Fault) -> Fault {
    Fault { next: Move::Fix, ..fault }
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
        .needs_somebody()
        .hint(format!("create it ({}), or allow create_topics", create.join("; ")))
}

/// A topic that was there is gone, or not every broker knows it yet.
pub fn topic_gone(topic: &str) -> Fault {
    Fault::wait(format!("Kafka does not know the topic `{topic}` just now"))
        .code("P0605")
        .hint("where somebody deleted it: create it again; work goes on by itself")
}

/// A topic of potok's own is there and would lose records or mistime them.
pub fn own_topic(topic: &str, what: &str, command: &str) -> Fault {
    Fault::wait(format!("the topic `{topic}` is set up wrongly"))
        .code("P0618")
        .because(what)
        .needs_somebody()
        .hint(format!("`{command}`; work goes on by itself"))
}

pub fn not_created(topic: &str, code: Code) -> Fault {
    let about = [Arc::from(topic)];
    let what = format!("create the topic `{topic}`");
    let fault = sorted_about(Subject::topics(&about), &what, code, code);
    match code {
        Code::InvalidReplicationFactor => fault.code("P0606"),
        code if is_refusal(code) => fault,
        _ => fault.code("P0606"),
    }
}

pub fn no_topic(topic: &str) -> Fault {
    Fault::fix(format!("there is no topic `{topic}` in Kafka"))
        .code("P0608")
        .hint("a topic comes to be with its first record: `potok send`")
}

/// Not every broker knows new partitions at once.
pub fn no_partition(topic: &str, partition: u32, partitions: u32) -> Fault {
    Fault::wait(format!("topic `{topic}` has {partitions} partitions, not a number {partition}"))
        .code("P0612")
}

pub fn group_open(group: &str) -> Fault {
    Fault::fix(format!("the group `{group}` is being read"))
        .code("P0609")
        .hint("stop the pipelines that read it first, in every process")
}

/// The client was asked for something, and says nothing.
pub fn no_answer(after: Duration) -> Fault {
    Fault::retry(format!(
        "Kafka's client has not said for {} s what became of a transaction; the group is opened anew",
        after.as_secs()
    ))
    .code("P0615")
}

/// The client was asked for so many transactions in a row, and never said anything.
pub fn never_answered(in_a_row: u32, outstanding: usize) -> Fault {
    Fault::wait(format!(
        "Kafka's client has not said of {in_a_row} transactions in a row what became of them; the group \
         is opened again after a while"
    ))
    .code("P0615")
    .hint(format!("restart potok where the cluster is well: {outstanding} of them still hold a thread"))
}

/// The one that had it is still letting go.
pub fn group_closing(group: &str) -> Fault {
    Fault::wait(format!("the group `{group}` is still being closed")).code("P0609")
}

pub fn no_group(group: &str) -> Fault {
    Fault::fix(format!("there is no group `{group}` in Kafka"))
        .code("P0610")
        .hint("`potok consumer-groups list` shows those there are")
}

/// The group was thrown out for good.
pub fn fatal(code: Code, why: &str) -> Fault {
    Fault::fix("Kafka has put this member out of its group for good")
        .code("P0613")
        .because(format!("{why} ({code})"))
        .hint("does another process use the same group.instance.id? then `potok resume`")
}

/// The polling thread is gone: a bug, or no thread could be started. The group is opened anew.
pub fn poller_died(cause: impl std::fmt::Display) -> Fault {
    Fault::retry("reading Kafka failed inside potok")
        .code("P0614")
        .because(cause)
        .hint("nothing is lost: it is started again; please report it")
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
            (Code::TransactionalIdAuthorizationFailed, Move::Wait),
            (Code::ClusterAuthorizationFailed, Move::Wait),
            (Code::InvalidReplicationFactor, Move::Wait),
            (Code::InconsistentGroupProtocol, Move::Wait),
            (Code::UnknownPartition, Move::Wait),
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
    fn whoever_grants_a_right_is_told_which() {
        let topics = [Arc::from("a"), Arc::from("b")];
        let hint = |code, about| sorted_about(about, "write", code, code).hint.unwrap_or_default();
        let about = Subject { group: "g", topics: &topics };
        assert!(hint(Code::TopicAuthorizationFailed, about).contains(" --topic a --topic b`"));
        assert!(hint(Code::GroupAuthorizationFailed, about).contains(" --group g`"));
        let ids = hint(Code::TransactionalIdAuthorizationFailed, about);
        assert!(ids.contains("--transactional-id potok-g- --resource-pattern-type prefixed"));
        assert!(hint(Code::ClusterAuthorizationFailed, about).contains(" --cluster`"));
        assert!(!hint(Code::TopicAuthorizationFailed, Subject::default()).contains("kafka-acls"));
        let refused = sorted("write", Code::TopicAuthorizationFailed, "");
        assert!(refused.needs_somebody && refused.next == Move::Wait);
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
