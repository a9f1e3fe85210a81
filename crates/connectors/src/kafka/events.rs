//! The events of a consumer's queue, one by one.
//!
//! The binding's own polling does not say of which topic an end of partition is, allocates for
//! each record and panics on header names that are not UTF-8; so the queue is read here.
#![allow(unsafe_code, reason = "librdkafka's events are read where they lie")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::{BufMut, BytesMut};
use potok_core::Partition;
use rdkafka::TopicPartitionList;
use rdkafka::bindings as sys;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::native::{bytes_of, fold, place_of, places};
use super::settings::{Listener, tell};

/// A consumer and its queue. The queue goes first when both are dropped.
pub struct Queue {
    queue: *mut sys::rd_kafka_queue_t,
    consumer: Arc<BaseConsumer<Listener>>,
}

// SAFETY: librdkafka's handles may be used from any thread; the consumer is Send itself.
unsafe impl Send for Queue {}

/// Something happened.
pub enum Event {
    /// A record came.
    Record(RawRecord),
    /// There is nothing behind this offset just now.
    End(Partition, u64),
    /// Something is wrong, with a partition or as a whole.
    Trouble { code: Code, why: String, fatal: bool, at: Option<Partition> },
    /// The group gives us partitions, or takes them.
    Rebalance { assigned: bool, partitions: Vec<Partition> },
    /// A commit was answered: what failed, and whose parts failed.
    Committed { code: Code, failed: Vec<(Partition, Code)>, all: Vec<Partition> },
    /// The client fetches the topic under this id from now on: it comes before every record that
    /// was fetched under it. Brokers without ids of topics are not heard of here.
    Fetches { topic: String, id: u64 },
    /// Nothing that concerns us.
    Other,
}

impl Queue {
    /// Takes over the polling of a consumer.
    pub fn new(consumer: impl Into<Arc<BaseConsumer<Listener>>>) -> Option<Queue> {
        let consumer = consumer.into();
        // SAFETY: the consumer lives as long as the queue, see the order of fields and `drop`.
        let queue = unsafe { sys::rd_kafka_queue_get_consumer(consumer.client().native_ptr()) };
        (!queue.is_null()).then_some(Queue { queue, consumer })
    }

    /// The consumer, for everything but polling.
    pub fn consumer(&self) -> &BaseConsumer<Listener> {
        &self.consumer
    }

    /// The next event; `None` when nothing came in time.
    pub fn poll(&self, wait: Duration) -> Option<Event> {
        let wait = c_int::try_from(wait.as_millis()).unwrap_or(c_int::MAX);
        // SAFETY: the queue is ours; the event is destroyed when `NativeEvent` is dropped.
        let event = unsafe { NativeEvent::new(sys::rd_kafka_queue_poll(self.queue, wait)) }?;
        // SAFETY: the event lives until the end of this call, or inside the record it becomes.
        unsafe {
            match sys::rd_kafka_event_type(event.0) {
                sys::RD_KAFKA_EVENT_FETCH => {
                    let message = sys::rd_kafka_event_message_next(event.0);
                    let record = RawRecord { message, _event: event };
                    Some(if message.is_null() { Event::Other } else { Event::Record(record) })
                }
                sys::RD_KAFKA_EVENT_ERROR => Some(self.trouble(&event)),
                sys::RD_KAFKA_EVENT_REBALANCE => {
                    let code = Code::from(sys::rd_kafka_event_error(event.0));
                    let list = sys::rd_kafka_event_topic_partition_list(event.0);
                    let partitions = places(list).iter().filter_map(|p| place_of(p)).collect();
                    let assigned = code == Code::AssignPartitions;
                    Some(Event::Rebalance { assigned, partitions })
                }
                sys::RD_KAFKA_EVENT_OFFSET_COMMIT => {
                    let code = Code::from(sys::rd_kafka_event_error(event.0));
                    let list = places(sys::rd_kafka_event_topic_partition_list(event.0));
                    let all: Vec<_> = list.iter().filter_map(|p| place_of(p)).collect();
                    let failed = list
                        .iter()
                        .filter(|place| Code::from(place.err) != Code::NoError)
                        .filter_map(|place| Some((place_of(place)?, Code::from(place.err))))
                        .collect();
                    Some(Event::Committed { code, failed, all })
                }
                sys::RD_KAFKA_EVENT_LOG => Some(self.log(&event)),
                _ => Some(Event::Other),
            }
        }
    }

    /// Commits, and has the answer come as an event: what the binding sends without waiting has no
    /// answer, and who does not hear that it failed does not try again.
    pub fn commit(&self, places: &TopicPartitionList) -> Result<(), Code> {
        // SAFETY: client, list and queue live for the call; the list is copied; nobody is called.
        let code = unsafe {
            sys::rd_kafka_commit_queue(
                self.consumer.client().native_ptr(),
                places.ptr(),
                self.queue,
                None,
                ptr::null_mut(),
            )
        };
        match Code::from(code) {
            Code::NoError => Ok(()),
            code => Err(code),
        }
    }

    /// # Safety
    /// `event` is an error event.
    unsafe fn trouble(&self, event: &NativeEvent) -> Event {
        unsafe {
            let code = Code::from(sys::rd_kafka_event_error(event.0));
            let place = sys::rd_kafka_event_topic_partition(event.0);
            let at = place_of(place);
            let offset = place.as_ref().map_or(-1, |place| place.offset);
            if !place.is_null() {
                sys::rd_kafka_topic_partition_destroy(place);
            }
            if let (Code::PartitionEOF, Some(at), Ok(offset)) = (code, &at, u64::try_from(offset)) {
                return Event::End(at.clone(), offset);
            }
            let why = text(sys::rd_kafka_event_error_string(event.0));
            let fatal = sys::rd_kafka_event_error_is_fatal(event.0) != 0;
            Event::Trouble { code, why, fatal, at }
        }
    }

    /// # Safety
    /// `event` is a log event.
    unsafe fn log(&self, event: &NativeEvent) -> Event {
        let (mut facility, mut message, mut level) = (ptr::null(), ptr::null(), 0);
        let known = unsafe {
            sys::rd_kafka_event_log(event.0, &mut facility, &mut message, &mut level) == 0
        };
        if !known {
            return Event::Other;
        }
        let (facility, message) = unsafe { (text(facility), text(message)) };
        let level = match level {
            0..=2 => RDKafkaLogLevel::Critical,
            3 => RDKafkaLogLevel::Error,
            4 => RDKafkaLogLevel::Warning,
            _ => return fetches(&message).unwrap_or(Event::Other),
        };
        tell(level, &facility, &message);
        Event::Other
    }

    /// Where a partition ends as far as the client has noticed; asks nobody.
    pub fn known_end(&self, partition: &Partition) -> Option<u64> {
        let topic = std::ffi::CString::new(partition.topic.as_bytes()).ok()?;
        let (mut low, mut high) = (-1, -1);
        // SAFETY: all pointers live for the call.
        let error = unsafe {
            sys::rd_kafka_get_watermark_offsets(
                self.consumer.client().native_ptr(),
                topic.as_ptr(),
                partition.index as i32,
                &mut low,
                &mut high,
            )
        };
        (Code::from(error) == Code::NoError).then(|| u64::try_from(high).ok()).flatten()
    }
}

/// What librdkafka says when it has learnt another id of a topic, and before it asks for anything
/// under that id. It has no event for this, and does not go back to the start by itself.
fn fetches(message: &str) -> Option<Event> {
    let (before, ids) = message.split_once(" changed id from ")?;
    let topic = before.rsplit_once("Topic ").map_or(before, |(_, topic)| topic);
    let (_, id) = ids.split_once(" to ")?;
    let id = STANDARD_NO_PAD.decode(id.trim()).ok()?;
    let id = u128::from_be_bytes(id.try_into().ok()?);
    let folded = fold((id >> 64) as u64, id as u64);
    (id != 0).then(|| Event::Fetches { topic: topic.to_owned(), id: folded })
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: got in `new`, given back once, before the consumer is dropped.
        unsafe { sys::rd_kafka_queue_destroy(self.queue) };
    }
}

/// # Safety
/// `text` is null or ends with a NUL, and lives for the call.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
}

struct NativeEvent(*mut sys::rd_kafka_event_t);

impl NativeEvent {
    fn new(event: *mut sys::rd_kafka_event_t) -> Option<NativeEvent> {
        (!event.is_null()).then_some(NativeEvent(event))
    }
}

impl Drop for NativeEvent {
    fn drop(&mut self) {
        // SAFETY: got from the queue, destroyed once.
        unsafe { sys::rd_kafka_event_destroy(self.0) };
    }
}

/// A record where librdkafka keeps it.
pub struct RawRecord {
    message: *const sys::rd_kafka_message_t,
    _event: NativeEvent,
}

/// Where the parts of a record were put.
pub struct RecordParts {
    pub offset: u64,
    pub time: i64,
    pub key: Option<usize>,
    pub headers: usize,
    pub value: Option<usize>,
}

impl RawRecord {
    /// Names topic and partition for as long as the consumer lives: cheaper than the topic's name.
    pub fn place(&self) -> (usize, u32) {
        // SAFETY: the message lives as long as the event that this holds.
        let message = unsafe { &*self.message };
        (message.rkt as usize, u32::try_from(message.partition).unwrap_or(u32::MAX))
    }

    /// The topic's name.
    pub fn topic(&self) -> String {
        // SAFETY: as above; the topic handle lives as long as the message.
        unsafe { text(sys::rd_kafka_topic_name((*self.message).rkt)) }
    }

    pub fn offset(&self) -> u64 {
        // SAFETY: the message lives as long as the event that this holds.
        u64::try_from(unsafe { (*self.message).offset }).unwrap_or_default()
    }

    /// Copies key, headers (in the layout of `potok_core::Headers`) and value behind what is in
    /// `buffer`, in that order, and says how long each is.
    pub fn put(&self, buffer: &mut BytesMut) -> RecordParts {
        // SAFETY: message, key, value and headers live as long as the event that this holds.
        unsafe {
            let message = &*self.message;
            let mut kind = sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
            let time = sys::rd_kafka_message_timestamp(self.message, &mut kind);
            let key = put_bytes(buffer, message.key, message.key_len);
            let headers = self.put_headers(buffer);
            let value = put_bytes(buffer, message.payload, message.len);
            RecordParts { offset: self.offset(), time: time.max(0), key, headers, value }
        }
    }

    /// # Safety
    /// The message lives.
    unsafe fn put_headers(&self, buffer: &mut BytesMut) -> usize {
        let before = buffer.len();
        let mut headers = ptr::null_mut();
        let error = unsafe { sys::rd_kafka_message_headers(self.message, &mut headers) };
        if Code::from(error) != Code::NoError {
            return 0;
        }
        for index in 0.. {
            let (mut name, mut value, mut len) = (ptr::null(), ptr::null(), 0);
            let error = unsafe {
                sys::rd_kafka_header_get_all(headers, index, &mut name, &mut value, &mut len)
            };
            if Code::from(error) != Code::NoError || name.is_null() {
                break;
            }
            // The protocol says UTF-8; a client that does not care must not stop the others.
            let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
            buffer.put_u32_le(name.len() as u32);
            buffer.put_slice(name.as_bytes());
            buffer.put_u32_le(if value.is_null() { 0 } else { len as u32 + 1 });
            buffer.put_slice(unsafe { bytes_of(value.cast(), len) });
        }
        buffer.len() - before
    }
}

/// # Safety
/// `bytes` is null or points to `len` bytes.
unsafe fn put_bytes(buffer: &mut BytesMut, bytes: *const c_void, len: usize) -> Option<usize> {
    if bytes.is_null() {
        return None;
    }
    buffer.put_slice(unsafe { bytes_of(bytes.cast(), len) });
    Some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_a_topic_is_fetched_under_is_read_from_what_the_client_says() {
        let id = 0x0102_0304_0506_0708_f1f2_f3f4_f5f6_f7f8_u128;
        let said = STANDARD_NO_PAD.encode(id.to_be_bytes());
        let none = STANDARD_NO_PAD.encode([0; 16]);
        let line = format!("[thrd:main]: Topic or-ders.v1 changed id from {none} to {said}");
        let Some(Event::Fetches { topic, id: folded }) = fetches(&line) else {
            panic!("not understood: {line}");
        };
        assert_eq!(topic, "or-ders.v1");
        assert_eq!(folded, fold((id >> 64) as u64, id as u64));
        assert!(fetches("[thrd:main]: Topic orders [0] Leader 1 Epoch 3").is_none());
        let nameless = format!("[thrd:main]: Topic orders changed id from {said} to {none}");
        assert!(fetches(&nameless).is_none(), "brokers without ids");
    }
}
