//! What a body holds: an array of objects, or objects one after another, mostly one to a line.
//!
//! The format is told by the content, whatever `Content-Type` says. Each object is shown with exactly the
//! bytes of its element, so that what arrives as an array and what arrives as lines is the same. Nothing that was
//! shown is kept: objects can be told to be too many before there is anything of them in memory but the body.

use std::io::Read;
use std::ops::ControlFlow;

use axum::body::Bytes;
use serde_json::value::RawValue;

use super::raw;

/// What a body may hold, unpacked.
pub(super) const BYTES_MAX: usize = 16 << 20;

/// Why a body is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadBody {
    /// It is not what it should be; says where.
    Content(String),
    /// It is more than one request may bring; says of what.
    TooMuch(String),
}

impl BadBody {
    /// It is larger than [`BYTES_MAX`].
    pub fn too_large() -> Self {
        BadBody::TooMuch(format!("a body may hold {} MiB, unpacked", BYTES_MAX >> 20))
    }
}

/// The body as it was before its sender packed it.
pub(super) fn unpack(encoding: Option<&str>, body: Bytes) -> Result<Bytes, BadBody> {
    match encoding.map(str::trim) {
        None | Some("") => Ok(body),
        Some(name) if name.eq_ignore_ascii_case("identity") => Ok(body),
        Some(name) if name.eq_ignore_ascii_case("gzip") => {
            let mut unpacked = Vec::new();
            let unpacking = flate2::read::MultiGzDecoder::new(&*body);
            let read = unpacking.take(BYTES_MAX as u64 + 1).read_to_end(&mut unpacked);
            read.map_err(|error| BadBody::Content(format!("the gzip data is broken: {error}")))?;
            if unpacked.len() > BYTES_MAX {
                return Err(BadBody::too_large());
            }
            // The records keep it for as long as they are in memory.
            unpacked.shrink_to_fit();
            Ok(unpacked.into())
        }
        Some(other) => {
            Err(BadBody::Content(format!("`Content-Encoding: {other}` is not known; use gzip")))
        }
    }
}

/// How the objects of a body stand in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// In an array.
    Array,
    /// On lines of their own, or several on one.
    Lines,
    /// One after another, over any number of lines.
    Values,
}

/// What is called for each object, until it refuses the body.
type Visit<'v, 't> = &'v mut dyn FnMut(&'t str) -> Result<(), BadBody>;

/// A body as text.
pub(super) fn text(body: &Bytes) -> Result<&str, BadBody> {
    let text = std::str::from_utf8(body).map_err(|error| {
        let line = line_of(body, error.valid_up_to());
        BadBody::Content(format!("line {line}: not UTF-8"))
    })?;
    // Some programs mark a text as UTF-8.
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// Looks at a whole body: how its objects stand in it, and what `add` makes of them; there is at least one.
pub(super) fn look_over<T: Default>(
    text: &str,
    mut add: impl FnMut(&mut T, &str) -> Result<(), BadBody>,
) -> Result<(Layout, T), BadBody> {
    let mut look = |layout: Layout| {
        let (mut sum, mut is_empty) = (T::default(), true);
        let read = layout.each_object(text, &mut |object| {
            is_empty = false;
            add(&mut sum, object)
        });
        (read, is_empty, sum)
    };
    let first = text.bytes().find(|byte| !byte.is_ascii_whitespace());
    let layout = match first {
        Some(b'[') => Layout::Array,
        Some(_) => Layout::Lines,
        None => return Err(BadBody::Content("the body is empty".to_owned())),
    };
    match look(layout) {
        (Ok(()), true, _) => Err(BadBody::Content("the array is empty".to_owned())),
        (Ok(()), false, sum) => Ok((layout, sum)),
        // Where the first line holds no whole value, the text is one or several over many lines.
        (Err(BadBody::Content(by_line)), is_empty, _) if layout == Layout::Lines => {
            match look(Layout::Values) {
                (Ok(()), _, sum) => Ok((Layout::Values, sum)),
                (Err(BadBody::Content(_)), ..) if !is_empty => Err(BadBody::Content(by_line)),
                (Err(error), ..) => Err(error),
            }
        }
        (Err(error), ..) => Err(error),
    }
}

impl Layout {
    /// Shows each object of a text that stands like this, with its exact bytes.
    pub fn each_object<'t>(self, text: &'t str, visit: Visit<'_, 't>) -> Result<(), BadBody> {
        match self {
            Layout::Array => of_array(text, visit),
            Layout::Lines => {
                let mut lines = text.lines().enumerate();
                lines.try_for_each(|(index, line)| of_values(line, index, visit))
            }
            Layout::Values => of_values(text, 0, visit),
        }
    }
}

fn of_array<'t>(text: &'t str, visit: Visit<'_, 't>) -> Result<(), BadBody> {
    let (mut count, mut bad) = (0_usize, None);
    let read = raw::each_element(text, |element| {
        count += 1;
        let visited = match element.starts_with('{') {
            true => visit(element),
            false => {
                Err(BadBody::Content(format!("element {count} of the array is not an object")))
            }
        };
        bad = visited.err();
        if bad.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match bad {
        Some(bad) => Err(bad),
        None => read.map_err(|error| of_json(&error, 0)),
    }
}

/// Shows the objects of a part of a body that stands behind so many lines.
fn of_values<'t>(part: &'t str, lines_before: usize, visit: Visit<'_, 't>) -> Result<(), BadBody> {
    let mut values = serde_json::Deserializer::from_str(part).into_iter::<&RawValue>();
    while let Some(value) = values.next() {
        let value = value.map_err(|error| of_json(&error, lines_before))?;
        if !value.get().starts_with('{') {
            let before = values.byte_offset().saturating_sub(value.get().len());
            let line = lines_before + line_of(part.as_bytes(), before);
            return Err(BadBody::Content(format!("line {line}: not an object")));
        }
        visit(value.get())?;
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

    fn elements(body: &[u8]) -> Result<Vec<String>, BadBody> {
        let body = Bytes::copy_from_slice(body);
        let text = text(&body)?;
        let (layout, found) = look_over(text, |found: &mut Vec<String>, object| {
            found.push(object.to_owned());
            Ok(())
        })?;
        let mut again = Vec::new();
        layout.each_object(text, &mut |object| {
            again.push(object.to_owned());
            Ok(())
        })?;
        assert_eq!(found, again, "as they were looked at");
        Ok(found)
    }

    fn all(text: &str) -> Vec<String> {
        elements(text.as_bytes()).unwrap()
    }

    fn refused(text: &[u8]) -> String {
        match elements(text) {
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

    /// Whoever counts them sees no more of the body than he wants to.
    #[test]
    fn a_body_that_was_refused_is_not_looked_at_further() {
        for text in ["{}{}\n{} x", "[{},{},{}, x", "{\n}{}{} x", "{}\n{}\n{}\nx"] {
            let mut count = 0;
            let looked = look_over(text, |(), _| {
                count += 1;
                if count < 3 { Ok(()) } else { Err(BadBody::too_large()) }
            });
            assert_eq!((looked, count), (Err(BadBody::too_large()), 3), "{text}");
        }
    }

    #[test]
    fn packed_bodies_are_bounded_unpacked() {
        let pack = |bytes: &[u8]| {
            let mut packed = flate2::write::GzEncoder::new(Vec::new(), Default::default());
            packed.write_all(bytes).unwrap();
            Bytes::from(packed.finish().unwrap())
        };
        assert_eq!(unpack(Some("gzip"), pack(b"{}")).unwrap(), "{}");
        assert_eq!(unpack(Some(" GZIP"), pack(b"{}")).unwrap(), "{}");
        assert_eq!(
            unpack(Some("gzip"), pack(&vec![b' '; BYTES_MAX + 1])),
            Err(BadBody::too_large())
        );
        assert!(unpack(Some("gzip"), Bytes::from_static(b"{}")).is_err());
        assert!(unpack(Some("br"), Bytes::from_static(b"{}")).is_err());
        assert_eq!(unpack(None, Bytes::from_static(b"{}")).unwrap(), "{}");
    }
}
