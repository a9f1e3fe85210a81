//! Records on their way into a topic, as compact bytes.
//!
//! Repeated, little endian:
//! ```text
//! u32  key length + 1 (0 is null)      key
//! u32  headers length                  headers, in the layout of `potok_core::Headers`
//! u32  value length + 1 (0 is null)    value
//! ```
//! Content type [`FRAME_TYPE`]. Bytes behind the last whole record are an error: a request is
//! appended as a whole or not at all.

use std::sync::Arc;

use axum::body::Bytes;
use potok_core::{Headers, Output, RECORD_BYTES_MAX};

/// Content type of this form.
pub const FRAME_TYPE: &str = "application/vnd.potok.records";

/// Adds one record to a request body.
pub fn push_record(
    body: &mut Vec<u8>,
    key: Option<&[u8]>,
    headers: &Headers,
    value: Option<&[u8]>,
) {
    push_optional(body, key);
    let encoded = headers.encoded();
    body.extend_from_slice(&(encoded.len() as u32).to_le_bytes());
    body.extend_from_slice(encoded);
    push_optional(body, value);
}

fn push_optional(body: &mut Vec<u8>, bytes: Option<&[u8]>) {
    // Lengths fit: no record is larger than `RECORD_BYTES_MAX`.
    body.extend_from_slice(&bytes.map_or(0, |b| b.len() as u32 + 1).to_le_bytes());
    body.extend_from_slice(bytes.unwrap_or_default());
}

/// Reads a request body; the error says what is wrong with it.
pub(crate) fn read_records(mut body: Bytes, topic: &Arc<str>) -> Result<Vec<Output>, String> {
    let mut outputs = Vec::new();
    while !body.is_empty() {
        let record = outputs.len();
        let output = read_record(&mut body, topic)
            .ok_or_else(|| format!("record {record} is cut off or its headers are broken"))?;
        if output.bytes() > RECORD_BYTES_MAX {
            return Err(format!("record {record} has more than {RECORD_BYTES_MAX} bytes"));
        }
        outputs.push(output);
    }
    Ok(outputs)
}

fn read_record(body: &mut Bytes, topic: &Arc<str>) -> Option<Output> {
    let key = take_optional(body)?;
    let headers_len = take_len(body)?;
    let headers = Headers::from_encoded(take(body, headers_len)?);
    // Walking stops at the first broken header; then the lengths do not add up.
    let walked: usize =
        headers.iter().map(|(name, value)| 8 + name.len() + value.map_or(0, <[u8]>::len)).sum();
    if walked != headers_len {
        return None;
    }
    let value = take_optional(body)?;
    Some(Output { topic: topic.clone(), partition: None, key, headers, value })
}

fn take_optional(body: &mut Bytes) -> Option<Option<Bytes>> {
    match take_len(body)? {
        0 => Some(None),
        plus_one => take(body, plus_one - 1).map(Some),
    }
}

fn take_len(body: &mut Bytes) -> Option<usize> {
    let head = take(body, 4)?;
    let head: [u8; 4] = head.as_ref().try_into().ok()?;
    Some(u32::from_le_bytes(head) as usize)
}

fn take(body: &mut Bytes, len: usize) -> Option<Bytes> {
    (len <= body.len()).then(|| body.split_to(len))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use potok_core::HeadersBuilder;

    use super::*;

    fn body() -> Vec<u8> {
        let headers = HeadersBuilder::new().add("a", Some(b"\xff")).add("b", None).build();
        let mut body = Vec::new();
        push_record(&mut body, Some(b""), &headers, Some(b"one"));
        push_record(&mut body, None, &Headers::none(), None);
        push_record(&mut body, Some(b"\xfe"), &Headers::none(), Some(b""));
        body
    }

    #[test]
    fn records_come_out_as_they_went_in() {
        let topic: Arc<str> = "t".into();
        let outputs = read_records(Bytes::from(body()), &topic).unwrap();
        assert_eq!(outputs.len(), 3);
        assert_eq!(outputs[0].key.as_deref(), Some(&b""[..]));
        assert_eq!(outputs[0].headers.get("a"), Some(&b"\xff"[..]));
        assert_eq!((&outputs[1].key, &outputs[1].value), (&None, &None));
        assert_eq!(outputs[2].value.as_deref(), Some(&b""[..]));
    }

    #[test]
    fn a_cut_or_broken_body_is_refused_and_never_panics() {
        let (topic, whole): (Arc<str>, _) = ("t".into(), body());
        let full = read_records(Bytes::from(whole.clone()), &topic).unwrap();
        for cut in 0..whole.len() {
            // A cut between records is a smaller request; anywhere else it is refused.
            if let Ok(fewer) = read_records(Bytes::copy_from_slice(&whole[..cut]), &topic) {
                assert!(fewer.len() < full.len() && full.starts_with(&fewer));
            }
        }
        for at in 0..whole.len() {
            let mut broken = whole.clone();
            broken[at] ^= 0x80;
            // Every byte counts, and none makes it panic.
            if let Ok(records) = read_records(Bytes::from(broken), &topic) {
                assert_ne!(records, full, "byte {at}");
            }
        }
    }

    #[test]
    fn any_body_is_refused_or_says_every_byte_of_itself() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/frames");
        let (topic, whole): (Arc<str>, _) = ("t".into(), body());
        potok_fuzz::Corpus::read(folder).with([whole]).fuzz(20_000, |input| {
            let Ok(records) = read_records(Bytes::copy_from_slice(input), &topic) else { return };
            let mut again = Vec::new();
            for record in &records {
                let (key, value) = (record.key.as_deref(), record.value.as_deref());
                push_record(&mut again, key, &record.headers, value);
            }
            assert_eq!(again, input);
        });
    }
}
