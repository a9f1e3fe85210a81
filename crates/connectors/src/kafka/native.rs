//! Calls that the Rust binding does not wrap: topic ids, offsets of many partitions at once, a
//! group's commits with their metadata as bytes; and what it wraps badly: flush.
//!
//! Questions to the cluster are each one call of librdkafka's admin interface on a queue of its
//! own, and block until the answer or the time is over. Nothing here keeps a pointer beyond the
//! call.
#![allow(unsafe_code, reason = "librdkafka's admin calls have no safe wrapper for these")]

use std::collections::{BTreeSet, HashMap};
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use potok_core::Partition;
use rdkafka::bindings::{self as sys, rd_kafka_admin_op_t as Op};
use rdkafka::client::Client;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{ClientContext, Offset, TopicPartitionList};

/// Waits until every record that was offered has its receipt. The binding's own flush looks now and
/// then, up to 100 ms late, and in between the client waits for more to come before it sends.
pub fn flush<C: ClientContext>(client: &Client<C>, wait: Duration) -> Result<(), KafkaError> {
    // SAFETY: the client lives; receipts are taken from its queue by a thread of the producer's.
    match Code::from(unsafe { sys::rd_kafka_flush(client.native_ptr(), millis(wait)) }) {
        Code::NoError => Ok(()),
        code => Err(KafkaError::Flush(code)),
    }
}

fn millis(wait: Duration) -> c_int {
    c_int::try_from(wait.as_millis()).unwrap_or(c_int::MAX)
}

/// The facts about a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its id, folded into a number: a topic created anew has another.
    pub id: u64,
    /// How many partitions it has.
    pub partitions: u32,
}

/// The commit of a group for a partition.
#[derive(Clone, Debug)]
pub struct CommittedOffset {
    pub offset: u64,
    pub metadata: Vec<u8>,
}

/// Which end of a partition.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// The first record kept.
    Earliest,
    /// Behind the last record that may be read: transactions before it have ended.
    Stable,
    /// Behind the last record.
    High,
}

type AdminResult<T> = Result<T, Code>;

/// How much longer than us the client waits for a coordinator: longer than anybody holds on to it.
const COORDINATOR_GRACE: Duration = Duration::from_secs(600);

/// How long a member waits for its own commits. While a transaction of the group is open the client
/// asks again and again by itself.
const OWN_COMMITS_MAX: Duration = Duration::from_secs(1);

/// How much longer than the client we wait for its answer.
const ANSWER_GRACE: Duration = Duration::from_secs(1);

/// One admin call: the queue its answer comes by, its options, and the answer.
struct AdminCall {
    queue: *mut sys::rd_kafka_queue_t,
    options: *mut sys::rd_kafka_AdminOptions_t,
    event: *mut sys::rd_kafka_event_t,
    wait: Duration,
}

impl AdminCall {
    fn new<C: ClientContext>(client: &Client<C>, op: Op, wait: Duration) -> AdminCall {
        Self::given_up_after(client, op, wait, wait + ANSWER_GRACE)
    }

    /// A call for the coordinator of a group. Where the client gives such a call up while there is no
    /// coordinator, librdkafka 2.12 uses it after it has freed it, and dies, as soon as there is one.
    /// So we give it up, and whoever is told `OperationTimedOut` lets go of the client soon, before it
    /// does the same.
    fn to_coordinator<C: ClientContext>(client: &Client<C>, op: Op, wait: Duration) -> AdminCall {
        Self::given_up_after(client, op, wait + COORDINATOR_GRACE, wait)
    }

    /// By the client, and by us.
    fn given_up_after<C: ClientContext>(
        client: &Client<C>,
        op: Op,
        by_client: Duration,
        wait: Duration,
    ) -> AdminCall {
        // SAFETY: the client outlives this call, and what is made here is destroyed in `drop`.
        unsafe {
            let options = sys::rd_kafka_AdminOptions_new(client.native_ptr(), op);
            // A time out of range would be refused and leaves the default.
            let (time, error, size) = (millis(by_client), ptr::null_mut(), 0);
            sys::rd_kafka_AdminOptions_set_request_timeout(options, time, error, size);
            let queue = sys::rd_kafka_queue_new(client.native_ptr());
            AdminCall { queue, options, event: ptr::null_mut(), wait }
        }
    }

    /// Waits for the answer and says whether the call as a whole went well.
    fn answer(&mut self) -> AdminResult<*mut sys::rd_kafka_event_t> {
        // SAFETY: queue and event are ours; a null event means that the time is over.
        unsafe {
            self.event = sys::rd_kafka_queue_poll(self.queue, millis(self.wait));
            if self.event.is_null() {
                return Err(Code::OperationTimedOut);
            }
            good(sys::rd_kafka_event_error(self.event))?;
        }
        Ok(self.event)
    }
}

impl Drop for AdminCall {
    fn drop(&mut self) {
        // SAFETY: each was made by `new` or `answer`, and is destroyed once.
        unsafe {
            if !self.event.is_null() {
                sys::rd_kafka_event_destroy(self.event);
            }
            sys::rd_kafka_AdminOptions_destroy(self.options);
            sys::rd_kafka_queue_destroy(self.queue);
        }
    }
}

fn good(error: sys::rd_kafka_resp_err_t) -> AdminResult<()> {
    match Code::from(error) {
        Code::NoError => Ok(()),
        code => Err(code),
    }
}

/// The code of an error object; null is none.
///
/// # Safety
/// `error` is null or an error that lives for the call.
unsafe fn error_of(error: *const sys::rd_kafka_error_t) -> AdminResult<()> {
    if error.is_null() {
        return Ok(());
    }
    good(unsafe { sys::rd_kafka_error_code(error) })
}

/// # Safety
/// `text` is null or ends with a NUL, and lives for the call.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The pointers of an answer's array.
///
/// # Safety
/// `items` points to `count` pointers that live for `'a`, or `count` is 0.
unsafe fn items<'a, T>(items: *mut *const T, count: usize) -> &'a [*const T] {
    if items.is_null() || count == 0 {
        return &[];
    }
    unsafe { std::slice::from_raw_parts(items.cast_const(), count) }
}

/// Tells a client of these servers again. librdkafka 2.12 forgets the servers that it began with once a
/// broker has named others, and those as well when a broker names none: a cluster whose brokers all stood
/// still does. Then it asks nobody any more.
pub fn add_brokers<C: ClientContext>(client: &Client<C>, servers: &CStr) {
    // SAFETY: both live for the call.
    unsafe { sys::rd_kafka_brokers_add(client.native_ptr(), servers.as_ptr()) };
}

/// Ids and partitions of those of the topics that exist.
pub fn describe_topics<C: ClientContext>(
    client: &Client<C>,
    topics: &[Arc<str>],
    wait: Duration,
) -> AdminResult<HashMap<Arc<str>, Facts>> {
    // Asking for one topic twice is an error to librdkafka.
    let names: BTreeSet<CString> =
        topics.iter().filter_map(|topic| CString::new(topic.as_bytes()).ok()).collect();
    if names.is_empty() {
        return Ok(HashMap::new());
    }
    let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let mut call = AdminCall::new(client, Op::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS, wait);
    // SAFETY: names and options live for the call; librdkafka copies the names.
    unsafe {
        let wanted =
            sys::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
        sys::rd_kafka_DescribeTopics(client.native_ptr(), wanted, call.options, call.queue);
        sys::rd_kafka_TopicCollection_destroy(wanted);
    }
    let event = call.answer()?;
    let mut found = HashMap::new();
    // SAFETY: everything read here belongs to the event, which lives until `call` is dropped.
    unsafe {
        let result = sys::rd_kafka_event_DescribeTopics_result(event);
        let mut count = 0;
        let topics = sys::rd_kafka_DescribeTopics_result_topics(result, &mut count);
        for &topic in items(topics, count) {
            match error_of(sys::rd_kafka_TopicDescription_error(topic)) {
                Ok(()) => {}
                Err(Code::UnknownTopicOrPartition | Code::UnknownTopic) => continue,
                Err(code) => return Err(code),
            }
            let id = sys::rd_kafka_TopicDescription_topic_id(topic);
            let mut partitions = 0;
            sys::rd_kafka_TopicDescription_partitions(topic, &mut partitions);
            let facts = Facts { id: folded(id), partitions: partitions as u32 };
            found.insert(text(sys::rd_kafka_TopicDescription_name(topic)).into(), facts);
        }
    }
    Ok(found)
}

/// # Safety
/// `id` is null or lives for the call.
unsafe fn folded(id: *const sys::rd_kafka_Uuid_t) -> u64 {
    if id.is_null() {
        return 0;
    }
    let (most, least) = unsafe {
        (
            sys::rd_kafka_Uuid_most_significant_bits(id),
            sys::rd_kafka_Uuid_least_significant_bits(id),
        )
    };
    fold(most.cast_unsigned(), least.cast_unsigned())
}

/// A topic's id as one number.
pub fn fold(most: u64, least: u64) -> u64 {
    most ^ least.rotate_left(17)
}

fn list_of(partitions: &[Partition]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for Partition { topic, index } in partitions {
        list.add_partition(topic, *index as i32);
    }
    list
}

/// An end of each partition. Those without a leader, or gone, are left out.
pub fn edges<C: ClientContext>(
    client: &Client<C>,
    partitions: &[Partition],
    edge: Edge,
    wait: Duration,
) -> AdminResult<HashMap<Partition, u64>> {
    if partitions.is_empty() {
        return Ok(HashMap::new());
    }
    let mut list = list_of(partitions);
    let spec = match edge {
        Edge::Earliest => Offset::Beginning,
        Edge::Stable | Edge::High => Offset::End,
    };
    // The numbers of these two are those of the call: -2 the earliest, -1 the latest.
    list.set_all_offsets(spec).map_err(|_| Code::InvalidArgument)?;
    let mut call = AdminCall::new(client, Op::RD_KAFKA_ADMIN_OP_LISTOFFSETS, wait);
    // SAFETY: list and options live for the call; librdkafka copies the list.
    unsafe {
        use sys::rd_kafka_IsolationLevel_t as Isolation;
        let isolation = match edge {
            Edge::High => Isolation::RD_KAFKA_ISOLATION_LEVEL_READ_UNCOMMITTED,
            _ => Isolation::RD_KAFKA_ISOLATION_LEVEL_READ_COMMITTED,
        };
        let error = sys::rd_kafka_AdminOptions_set_isolation_level(call.options, isolation);
        if !error.is_null() {
            sys::rd_kafka_error_destroy(error);
        }
        sys::rd_kafka_ListOffsets(client.native_ptr(), list.ptr(), call.options, call.queue);
    }
    let event = call.answer()?;
    let mut found = HashMap::new();
    let mut failed = None;
    // SAFETY: everything read here belongs to the event, which lives until `call` is dropped.
    unsafe {
        let result = sys::rd_kafka_event_ListOffsets_result(event);
        let mut count = 0;
        let infos = sys::rd_kafka_ListOffsets_result_infos(result, &mut count);
        for &info in items(infos, count) {
            let place = sys::rd_kafka_ListOffsetsResultInfo_topic_partition(info);
            if let Err(code) = good((*place).err) {
                failed = Some(code);
                continue;
            }
            if let (Some(partition), Ok(offset)) = (place_of(place), u64::try_from((*place).offset))
            {
                found.insert(partition, offset);
            }
        }
    }
    match failed {
        Some(code) if found.is_empty() => Err(code),
        _ => Ok(found),
    }
}

/// An end of every partition. A topic just made has partitions without a leader for a moment:
/// leaving them out would leave out their records.
pub fn every_edge<C: ClientContext>(
    client: &Client<C>,
    partitions: &[Partition],
    edge: Edge,
    wait: Duration,
) -> AdminResult<HashMap<Partition, u64>> {
    let found = edges(client, partitions, edge, wait)?;
    match partitions.iter().all(|partition| found.contains_key(partition)) {
        true => Ok(found),
        false => Err(Code::LeaderNotAvailable),
    }
}

/// # Safety
/// `place` points to a topic partition that lives for the call.
pub unsafe fn place_of(place: *const sys::rd_kafka_topic_partition_t) -> Option<Partition> {
    let place = unsafe { place.as_ref() }?;
    let index = u32::try_from(place.partition).ok()?;
    Some(Partition { topic: unsafe { text(place.topic) }.into(), index })
}

/// The commits of this client's group for some partitions, asked the way its members ask.
/// Where that cannot be said soon, a transaction may be open: nobody is away because of it.
pub fn committed_by_own<C: ClientContext>(
    client: &Client<C>,
    partitions: &[Partition],
) -> AdminResult<HashMap<Partition, CommittedOffset>> {
    if partitions.is_empty() {
        return Ok(HashMap::new());
    }
    let list = list_of(partitions);
    // SAFETY: client and list live for the call, which fills the list in.
    unsafe {
        let wait = millis(OWN_COMMITS_MAX);
        match good(sys::rd_kafka_committed(client.native_ptr(), list.ptr(), wait)) {
            Ok(()) => committed_in(list.ptr()),
            Err(Code::OperationTimedOut) => Err(Code::UnstableOffsetCommit),
            Err(code) => Err(code),
        }
    }
}

/// Everything a group has committed, asked by whoever is not a member (see
/// [`AdminCall::to_coordinator`]).
pub fn committed<C: ClientContext>(
    client: &Client<C>,
    group: &str,
    wait: Duration,
) -> AdminResult<HashMap<Partition, CommittedOffset>> {
    let group = CString::new(group).map_err(|_| Code::InvalidGroupId)?;
    let op = Op::RD_KAFKA_ADMIN_OP_LISTCONSUMERGROUPOFFSETS;
    let mut call = AdminCall::to_coordinator(client, op, wait);
    // SAFETY: group and options live for the call; a null list means all partitions.
    unsafe {
        let error = sys::rd_kafka_AdminOptions_set_require_stable_offsets(call.options, 1);
        if !error.is_null() {
            sys::rd_kafka_error_destroy(error);
        }
        let mut wanted = sys::rd_kafka_ListConsumerGroupOffsets_new(group.as_ptr(), ptr::null());
        sys::rd_kafka_ListConsumerGroupOffsets(
            client.native_ptr(),
            &mut wanted,
            1,
            call.options,
            call.queue,
        );
        sys::rd_kafka_ListConsumerGroupOffsets_destroy(wanted);
    }
    let event = call.answer()?;
    let mut found = HashMap::new();
    // SAFETY: everything read here belongs to the event, which lives until `call` is dropped.
    unsafe {
        let result = sys::rd_kafka_event_ListConsumerGroupOffsets_result(event);
        let mut count = 0;
        let groups = sys::rd_kafka_ListConsumerGroupOffsets_result_groups(result, &mut count);
        for &group in items(groups, count) {
            match error_of(sys::rd_kafka_group_result_error(group)) {
                Ok(()) => {}
                Err(Code::GroupIdNotFound) => continue,
                Err(code) => return Err(code),
            }
            found.extend(committed_in(sys::rd_kafka_group_result_partitions(group))?);
        }
    }
    Ok(found)
}

/// The commits in a list; other tools may have written the metadata, so it is bytes.
///
/// # Safety
/// `list` is null or a list that lives for the call.
unsafe fn committed_in(
    list: *const sys::rd_kafka_topic_partition_list_t,
) -> AdminResult<HashMap<Partition, CommittedOffset>> {
    let mut found = HashMap::new();
    for place in unsafe { places(list) } {
        good(place.err)?;
        let (partition, metadata) = unsafe {
            (place_of(place), bytes_of(place.metadata.cast(), place.metadata_size).to_vec())
        };
        if let (Some(partition), Ok(offset)) = (partition, u64::try_from(place.offset)) {
            found.insert(partition, CommittedOffset { offset, metadata });
        }
    }
    Ok(found)
}

/// # Safety
/// `bytes` is null or points to `len` bytes that live for `'a`.
pub unsafe fn bytes_of<'a>(bytes: *const u8, len: usize) -> &'a [u8] {
    if bytes.is_null() {
        return &[];
    }
    unsafe { std::slice::from_raw_parts(bytes, len) }
}

/// The elements of a list.
///
/// # Safety
/// `list` is null or a list that lives for `'a`.
pub unsafe fn places<'a>(
    list: *const sys::rd_kafka_topic_partition_list_t,
) -> &'a [sys::rd_kafka_topic_partition_t] {
    let Some(list) = (unsafe { list.as_ref() }) else { return &[] };
    let Ok(count) = usize::try_from(list.cnt) else { return &[] };
    if count == 0 || list.elems.is_null() {
        return &[];
    }
    unsafe { std::slice::from_raw_parts(list.elems, count) }
}

/// Commits for a group that nobody reads. While somebody does, the broker refuses.
pub fn commit_idle<C: ClientContext>(
    client: &Client<C>,
    group: &str,
    list: &TopicPartitionList,
    wait: Duration,
) -> AdminResult<()> {
    let group = CString::new(group).map_err(|_| Code::InvalidGroupId)?;
    let op = Op::RD_KAFKA_ADMIN_OP_ALTERCONSUMERGROUPOFFSETS;
    let mut call = AdminCall::to_coordinator(client, op, wait);
    // SAFETY: group, list and options live for the call; librdkafka copies the list.
    unsafe {
        let mut wanted =
            sys::rd_kafka_AlterConsumerGroupOffsets_new(group.as_ptr(), list.ptr().cast_const());
        sys::rd_kafka_AlterConsumerGroupOffsets(
            client.native_ptr(),
            &mut wanted,
            1,
            call.options,
            call.queue,
        );
        sys::rd_kafka_AlterConsumerGroupOffsets_destroy(wanted);
    }
    let event = call.answer()?;
    // SAFETY: everything read here belongs to the event, which lives until `call` is dropped.
    unsafe {
        let result = sys::rd_kafka_event_AlterConsumerGroupOffsets_result(event);
        let mut count = 0;
        let groups = sys::rd_kafka_AlterConsumerGroupOffsets_result_groups(result, &mut count);
        for &group in items(groups, count) {
            error_of(sys::rd_kafka_group_result_error(group))?;
            for place in places(sys::rd_kafka_group_result_partitions(group)) {
                good(place.err)?;
            }
        }
    }
    Ok(())
}

/// Forgets what a group that nobody reads has committed. One that there is not is forgotten.
pub fn delete_group<C: ClientContext>(
    client: &Client<C>,
    group: &str,
    wait: Duration,
) -> AdminResult<()> {
    let group = CString::new(group).map_err(|_| Code::InvalidGroupId)?;
    let mut call = AdminCall::to_coordinator(client, Op::RD_KAFKA_ADMIN_OP_DELETEGROUPS, wait);
    // SAFETY: group and options live for the call; librdkafka copies the name.
    unsafe {
        let mut wanted = sys::rd_kafka_DeleteGroup_new(group.as_ptr());
        sys::rd_kafka_DeleteGroups(client.native_ptr(), &mut wanted, 1, call.options, call.queue);
        sys::rd_kafka_DeleteGroup_destroy(wanted);
    }
    let event = call.answer()?;
    // SAFETY: everything read here belongs to the event, which lives until `call` is dropped.
    unsafe {
        let result = sys::rd_kafka_event_DeleteGroups_result(event);
        let mut count = 0;
        for &group in items(sys::rd_kafka_DeleteGroups_result_groups(result, &mut count), count) {
            match error_of(sys::rd_kafka_group_result_error(group)) {
                Ok(()) | Err(Code::GroupIdNotFound) => {}
                Err(code) => return Err(code),
            }
        }
    }
    Ok(())
}

/// Deletes all records before the offsets of the list.
pub fn delete_before<C: ClientContext>(
    client: &Client<C>,
    list: &TopicPartitionList,
    wait: Duration,
) -> AdminResult<()> {
    if list.count() == 0 {
        return Ok(());
    }
    let mut call = AdminCall::new(client, Op::RD_KAFKA_ADMIN_OP_DELETERECORDS, wait);
    // SAFETY: list and options live for the call; librdkafka copies the list.
    unsafe {
        let mut wanted = sys::rd_kafka_DeleteRecords_new(list.ptr().cast_const());
        sys::rd_kafka_DeleteRecords(client.native_ptr(), &mut wanted, 1, call.options, call.queue);
        sys::rd_kafka_DeleteRecords_destroy(wanted);
    }
    let event = call.answer()?;
    // SAFETY: everything read here belongs to the event, which lives until `call` is dropped.
    unsafe {
        let result = sys::rd_kafka_event_DeleteRecords_result(event);
        for place in places(sys::rd_kafka_DeleteRecords_result_offsets(result)) {
            good(place.err)?;
        }
    }
    Ok(())
}

/// Names of the groups that somebody reads now.
pub fn read_groups<C: ClientContext>(
    client: &Client<C>,
    wait: Duration,
) -> AdminResult<Vec<String>> {
    use sys::rd_kafka_consumer_group_state_t as State;
    let mut call = AdminCall::new(client, Op::RD_KAFKA_ADMIN_OP_LISTCONSUMERGROUPS, wait);
    // SAFETY: options and queue live for the call.
    unsafe { sys::rd_kafka_ListConsumerGroups(client.native_ptr(), call.options, call.queue) };
    let event = call.answer()?;
    let mut found = Vec::new();
    // SAFETY: everything read here belongs to the event, which lives until `call` is dropped.
    unsafe {
        let result = sys::rd_kafka_event_ListConsumerGroups_result(event);
        let mut count = 0;
        let groups = sys::rd_kafka_ListConsumerGroups_result_valid(result, &mut count);
        for &group in items(groups, count) {
            let idle = [
                State::RD_KAFKA_CONSUMER_GROUP_STATE_EMPTY,
                State::RD_KAFKA_CONSUMER_GROUP_STATE_DEAD,
            ];
            if !idle.contains(&sys::rd_kafka_ConsumerGroupListing_state(group)) {
                found.push(text(sys::rd_kafka_ConsumerGroupListing_group_id(group)));
            }
        }
    }
    Ok(found)
}
