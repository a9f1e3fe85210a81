//! What a body holds: an array of objects, or objects one after another, mostly one to a line.
//!
//! The format is told by the content, whatever `Content-Type` says. Each record gets exactly the
//! bytes of its element, so that what arrives as an array and what arrives as lines is the same.

use std::io::Read;

use axum::body::Bytes;
use serde_json::value::RawValue;

/// What a body may hold, unpacked.
pub(super) const BYTES_MAX: usize = 16 << 20;

/// Why a body is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadBody {
    /// It is not what it should be; says where.
    Content(String),
    /// It is larger than [`BYTES_MAX`].
    TooLarge,
}

/// The body as it was before its sender packed it.
pub(super) fn unpack(encoding: Option<&str>, body: Bytes) -> Result<Bytes, BadBody> {
    match encoding.map(str::trim) {
        None | Some("" | "identity") => Ok(body),
        Some("gzip") => {
            let mut unpacked = Vec::new();
            let unpacking = flate2::read::MultiGzDecoder::new(&*body);
            let read = unpacking.take(BYTES_MAX as u64 + 1).read_to_end(&mut unpacked);
            read.map_err(|error| BadBody::Content(format!("the gzip data is broken: {error}")))?;
            if unpacked.len() > BYTES_MAX { Err(BadBody::TooLarge) } else { Ok(unpacked.into()) }
        }
        Some(other) => {
            Err(BadBody::Content(format!("`Content-Encoding: {other}` is not known; use gzip")))
        }
    }
}

/// The objects of a body, each with its exact bytes; at least one.
pub(super) fn elements(body: &Bytes) -> Result<Vec<Bytes>, BadBody> {
    let text = std::str::from_utf8(body).map_err(|error| {
        let line = line_of(body, error.valid_up_to());
        BadBody::Content(format!("line {line}: not UTF-8"))
    })?;
    // Some programs mark a text as UTF-8.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let found = match text.bytes().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'[') => of_array(body, text)?,
        Some(_) => of_lines(body, text)?,
        None => return Err(BadBody::Content("the body is empty".to_owned())),
    };
    if found.is_empty() {
        return Err(BadBody::Content("the array is empty".to_owned()));
    }
    Ok(found)
}

fn of_array(body: &Bytes, text: &str) -> Result<Vec<Bytes>, BadBody> {
    let elements: Vec<&RawValue> =
        serde_json::from_str(text).map_err(|error| of_json(&error, 0))?;
    let mut found = Vec::with_capacity(elements.len());
    for (index, element) in elements.into_iter().enumerate() {
        if !element.get().starts_with('{') {
            let what = format!("element {} of the array is not an object", index + 1);
            return Err(BadBody::Content(what));
        }
        found.push(body.slice_ref(element.get().as_bytes()));
    }
    Ok(found)
}

/// Objects one after another: mostly one to a line, so that is how a wrong one is named; but several
/// may share a line, and one may take several.
fn of_lines(body: &Bytes, text: &str) -> Result<Vec<Bytes>, BadBody> {
    let mut found = Vec::new();
    let mut bad = None;
    for (index, line) in text.lines().enumerate() {
        if let Err(error) = add_values(body, line, index, &mut found) {
            bad = Some(error);
            break;
        }
    }
    let Some(bad) = bad else { return Ok(found) };
    // Where the first line holds no whole value, the text is one or several over many lines.
    let is_by_line = !found.is_empty();
    found.clear();
    match add_values(body, text, 0, &mut found) {
        Ok(()) => Ok(found),
        Err(_) if is_by_line => Err(bad),
        Err(error) => Err(error),
    }
}

/// Adds the objects of a part of a body that stands behind so many lines.
fn add_values(
    body: &Bytes,
    part: &str,
    lines_before: usize,
    found: &mut Vec<Bytes>,
) -> Result<(), BadBody> {
    let mut values = serde_json::Deserializer::from_str(part).into_iter::<&RawValue>();
    while let Some(value) = values.next() {
        let value = value.map_err(|error| of_json(&error, lines_before))?;
        if !value.get().starts_with('{') {
            let before = values.byte_offset().saturating_sub(value.get().len());
            let line = lines_before + line_of(part.as_bytes(), before);
            return Err(BadBody::Content(format!("line {line}: not an object")));
        }
        found.push(body.slice_ref(value.get().as_bytes()));
    }
    Ok(())
}

/// Where a text is wrong that stands behind so many lines.
fn of_json(error: &serde_json::Error, lines_before: usize) -> BadBody {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    let line = lines_before + error.line();
    BadBody::Content(format!("line {line}, column {}: {what}", error.column()))
}

fn line_of(body: &[u8], offset: usize) -> usize {
    let before = body.get(..offset).unwrap_or(body);
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::Write;

    use super::*;

    fn all(text: &str) -> Vec<String> {
        let found = elements(&Bytes::copy_from_slice(text.as_bytes())).unwrap();
        found.iter().map(|element| String::from_utf8(element.to_vec()).unwrap()).collect()
    }

    fn refused(text: &[u8]) -> String {
        match elements(&Bytes::copy_from_slice(text)) {
            Err(BadBody::Content(what)) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_format_is_told_by_the_content() {
        assert_eq!(all("{\"a\" : 1}"), ["{\"a\" : 1}"]);
        assert_eq!(all(" {\n \"a\": 1\n}\n"), ["{\n \"a\": 1\n}"]);
        assert_eq!(all("{\"a\":1}\n{\"a\":2}"), ["{\"a\":1}", "{\"a\":2}"]);
        assert_eq!(all("{\"a\":1}\r\n\r\n{\"a\":2}\r\n"), ["{\"a\":1}", "{\"a\":2}"]);
        assert_eq!(all("[ {\"a\" :1} ,\n{\"a\":2e3} ]"), ["{\"a\" :1}", "{\"a\":2e3}"]);
        // Several to a line, over several lines, and marked as UTF-8.
        assert_eq!(
            all("{\"a\":1} {\"a\":2}{\"a\":3}\n{}"),
            ["{\"a\":1}", "{\"a\":2}", "{\"a\":3}", "{}"]
        );
        assert_eq!(all("{\n\"a\":1}\n{\"a\":2}"), ["{\n\"a\":1}", "{\"a\":2}"]);
        assert_eq!(all("{}\n{\n\"a\":2\n}\n"), ["{}", "{\n\"a\":2\n}"]);
        assert_eq!(all("\u{feff}{\"a\":1}"), ["{\"a\":1}"]);
        assert_eq!(all("\u{feff}[{}]"), ["{}"]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let mut lines = vec!["{\"n\":1}"; 300];
        lines[199] = "{\"n\":}";
        assert!(refused(lines.join("\n").as_bytes()).starts_with("line 200, column 6:"));
        assert_eq!(refused(b"{}\n7\n"), "line 2: not an object");
        assert_eq!(refused(b"[{}, []]"), "element 2 of the array is not an object");
        assert_eq!(refused(b"{} 7"), "line 1: not an object");
        assert_eq!(refused(b"{\n} \n7"), "line 3: not an object");
        assert!(refused(b"{} {").starts_with("line 1, column 4:"));
        assert_eq!(refused(b"[]"), "the array is empty");
        assert_eq!(refused(b" [ ] "), "the array is empty");
        assert_eq!(refused(b"\xef\xbb\xbf"), "the body is empty");
        assert!(refused(b"{}\n{\"a\":\n{}\n").starts_with("line 2, column 5:"));
        assert_eq!(refused(b"7"), "line 1: not an object");
        assert_eq!(refused(b" \n "), "the body is empty");
        assert_eq!(refused(b"{}\n\xff"), "line 2: not UTF-8");
        assert!(refused(b"{\"a\":1").starts_with("line 1, column 6: EOF"));
        assert!(refused(b"[{}] {}").contains("trailing"));
    }

    #[test]
    fn packed_bodies_are_bounded_unpacked() {
        let pack = |bytes: &[u8]| {
            let mut packed = flate2::write::GzEncoder::new(Vec::new(), Default::default());
            packed.write_all(bytes).unwrap();
            Bytes::from(packed.finish().unwrap())
        };
        assert_eq!(unpack(Some("gzip"), pack(b"{}")).unwrap(), "{}");
        assert_eq!(unpack(Some("gzip"), pack(&vec![b' '; BYTES_MAX + 1])), Err(BadBody::TooLarge));
        assert!(unpack(Some("gzip"), Bytes::from_static(b"{}")).is_err());
        assert!(unpack(Some("br"), Bytes::from_static(b"{}")).is_err());
        assert_eq!(unpack(None, Bytes::from_static(b"{}")).unwrap(), "{}");
    }
}
