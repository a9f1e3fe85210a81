//! Hands records to the client that writes them, where they lie.
//!
//! The binding has every record's topic looked up by name, and copies that name and those of its
//! headers first. Here a topic is looked up once for all neighbours that go there.
#![allow(unsafe_code, reason = "records are handed to librdkafka where they lie")]

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use bytes::Bytes;
use potok_core::Output;
use rdkafka::ClientContext;
use rdkafka::bindings::{self as sys, rd_kafka_vtype_t as Kind, rd_kafka_vu_t as Part};
use rdkafka::client::Client;
use rdkafka::types::RDKafkaErrorCode as Code;

/// Lets the key decide.
const ANY_PARTITION: i32 = -1;
/// Most records have no more.
const HEADERS_USUAL: usize = 4;

/// Offers records to one client.
pub struct Offers<'a, C: ClientContext> {
    client: &'a Client<C>,
    /// The topic of the last record.
    topic: Option<(Arc<str>, NativeTopic)>,
}

impl<'a, C: ClientContext> Offers<'a, C> {
    pub fn to(client: &'a Client<C>) -> Self {
        Offers { client, topic: None }
    }

    /// Offers a record, whose receipt comes with `opaque`. Whatever the error, nothing was taken;
    /// with `QueueFull` it may be offered again.
    pub fn offer(&mut self, output: &Output, opaque: usize) -> Result<(), Code> {
        let topic = self.topic(&output.topic)?;
        let headers = Headers::of(output);
        let partition =
            output.partition.map_or(ANY_PARTITION, |at| i32::try_from(at).unwrap_or(i32::MAX));
        type NativeValue = sys::rd_kafka_vu_s__bindgen_ty_1;
        let part = |vtype, u: NativeValue| Part { vtype, u };
        let parts = [
            part(Kind::RD_KAFKA_VTYPE_RKT, NativeValue { rkt: topic }),
            part(Kind::RD_KAFKA_VTYPE_PARTITION, NativeValue { i32_: partition }),
            part(Kind::RD_KAFKA_VTYPE_MSGFLAGS, NativeValue { i: sys::RD_KAFKA_MSG_F_COPY }),
            part(Kind::RD_KAFKA_VTYPE_KEY, NativeValue { mem: memory(output.key.as_ref()) }),
            part(Kind::RD_KAFKA_VTYPE_VALUE, NativeValue { mem: memory(output.value.as_ref()) }),
            part(Kind::RD_KAFKA_VTYPE_OPAQUE, NativeValue { ptr: opaque as *mut c_void }),
            part(Kind::RD_KAFKA_VTYPE_HEADERS, NativeValue { headers: headers.0 }),
        ];
        // SAFETY: client, topic and headers live; key and value are copied. Only an error is ours,
        // and destroyed once.
        unsafe {
            let error =
                sys::rd_kafka_produceva(self.client.native_ptr(), parts.as_ptr(), parts.len());
            if error.is_null() {
                // The record has them now.
                std::mem::forget(headers);
                return Ok(());
            }
            let is_fatal = sys::rd_kafka_error_is_fatal(error) != 0;
            let code = Code::from(sys::rd_kafka_error_code(error));
            sys::rd_kafka_error_destroy(error);
            Err(if is_fatal { Code::Fatal } else { code })
        }
    }

    fn topic(&mut self, name: &Arc<str>) -> Result<*mut sys::rd_kafka_topic_t, Code> {
        if let Some((known, topic)) = &self.topic
            && (Arc::ptr_eq(known, name) || known == name)
        {
            return Ok(topic.0);
        }
        let topic = NativeTopic::find(self.client, name)?;
        let found = topic.0;
        self.topic = Some((name.clone(), topic));
        Ok(found)
    }
}

/// Bytes as the client wants them; nothing is not the same as none of them.
fn memory(bytes: Option<&Bytes>) -> sys::rd_kafka_vu_s__bindgen_ty_1__bindgen_ty_1 {
    let (ptr, size) = bytes.map_or((ptr::null(), 0), |bytes| (bytes.as_ptr(), bytes.len()));
    sys::rd_kafka_vu_s__bindgen_ty_1__bindgen_ty_1 { ptr: ptr.cast_mut().cast(), size }
}

/// A topic as the client knows it.
struct NativeTopic(*mut sys::rd_kafka_topic_t);

// SAFETY: librdkafka's handles may be used from any thread.
unsafe impl Send for NativeTopic {}

impl NativeTopic {
    fn find<C: ClientContext>(client: &Client<C>, name: &str) -> Result<NativeTopic, Code> {
        let name = CString::new(name).map_err(|_| Code::InvalidTopic)?;
        // SAFETY: the client lives, the name is copied, and settings are the client's own.
        unsafe {
            let topic =
                sys::rd_kafka_topic_new(client.native_ptr(), name.as_ptr(), ptr::null_mut());
            match topic.is_null() {
                true => Err(Code::from(sys::rd_kafka_last_error())),
                false => Ok(NativeTopic(topic)),
            }
        }
    }
}

impl Drop for NativeTopic {
    fn drop(&mut self) {
        // SAFETY: got in `find`, given back once, while the client lives.
        unsafe { sys::rd_kafka_topic_destroy(self.0) };
    }
}

/// The headers of a record as the client wants them; null where it has none.
struct Headers(*mut sys::rd_kafka_headers_t);

impl Headers {
    fn of(output: &Output) -> Headers {
        if output.headers.is_empty() {
            return Headers(ptr::null_mut());
        }
        // SAFETY: names and values are copied; lengths that fit into memory fit an `isize`.
        unsafe {
            let headers = Headers(sys::rd_kafka_headers_new(HEADERS_USUAL));
            for (name, value) in output.headers.iter() {
                let (at, len) = value.map_or((ptr::null(), 0), |v| (v.as_ptr(), v.len()));
                let (name, name_len) = (name.as_ptr(), name.len() as isize);
                // Fails only for lists that are in use elsewhere.
                sys::rd_kafka_header_add(headers.0, name.cast(), name_len, at.cast(), len as isize);
            }
            headers
        }
    }
}

impl Drop for Headers {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made in `of`, and no record has taken them.
            unsafe { sys::rd_kafka_headers_destroy(self.0) };
        }
    }
}
