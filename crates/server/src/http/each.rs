//! Several records of one object: messengers send what several people wrote in one body.
//!
//! For each element of the arrays that a path names there is a record: the object with only that element
//! in them. What lies around goes with each, byte for byte. So a small object can ask for very much: what its
//! records hold is counted first, and only what is within bounds is made.

use std::ops::ControlFlow;

use axum::body::Bytes;

use super::raw;

/// An object may grow so much: what lies around an element comes with each.
const GROWS_MAX: usize = 4 << 20;

/// A step on the way to the elements: a field, and whether its elements are meant.
pub type EachStep = (String, bool);

/// What the records of an object come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Measure {
    pub records: usize,
    /// Their values together.
    pub bytes: usize,
}

/// What stands before and behind a value, from the outermost one inwards.
type Around<'a> = Vec<(&'a str, &'a str)>;

/// What is called for each element with what is around it, until there is enough.
type Show<'s, 'a> = &'s mut dyn FnMut(&[(&'a str, &'a str)], &'a str) -> ControlFlow<()>;

/// The records that an object becomes; `None` where it is one as it is. That is one without such arrays, and one
/// whose records together were much larger than it is.
pub(super) fn measured(object: &str, path: &[EachStep]) -> Option<Measure> {
    let bytes_max = GROWS_MAX.max(2 * object.len());
    let mut measure = Measure { records: 0, bytes: 0 };
    // Where it stops in between, there is too much.
    let _ = walk(object, path, &mut Vec::new(), &mut |around, element| {
        measure.records += 1;
        measure.bytes += len(around, element);
        if measure.bytes > bytes_max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    (measure.records > 1 && measure.bytes <= bytes_max).then_some(measure)
}

/// Makes the records of an object that was measured.
pub(super) fn each_part(object: &str, path: &[EachStep], mut take: impl FnMut(Bytes)) {
    // Nothing stops it.
    let _ = walk(object, path, &mut Vec::new(), &mut |around, element| {
        let mut part = String::with_capacity(len(around, element));
        around.iter().for_each(|(before, _)| part.push_str(before));
        part.push_str(element);
        around.iter().rev().for_each(|(_, behind)| part.push_str(behind));
        take(Bytes::from(part));
        ControlFlow::Continue(())
    });
}

fn len(around: &[(&str, &str)], element: &str) -> usize {
    around.iter().map(|(before, behind)| before.len() + behind.len()).sum::<usize>() + element.len()
}

/// Shows each element that the path leads to, with what is around it; false where it leads nowhere.
fn walk<'a>(
    value: &'a str,
    path: &[EachStep],
    around: &mut Around<'a>,
    show: Show<'_, 'a>,
) -> ControlFlow<(), bool> {
    let Some(((name, is_array), rest)) = path.split_first() else {
        show(around, value)?;
        return ControlFlow::Continue(true);
    };
    let Some(field) = raw::field(value, name) else { return ControlFlow::Continue(false) };
    around.push(beside(value, field));
    let is_found = match is_array {
        true => walk_elements(field, rest, around, show),
        false => walk(field, rest, around, show),
    };
    around.pop();
    is_found
}

/// Shows each element of an array, or what the rest of the path leads to in it; false where there is none.
fn walk_elements<'a>(
    array: &'a str,
    rest: &[EachStep],
    around: &mut Around<'a>,
    show: Show<'_, 'a>,
) -> ControlFlow<(), bool> {
    let (mut has_any, mut went) = (false, ControlFlow::Continue(()));
    around.push(("[", "]"));
    let read = raw::each_element(array, |element| {
        has_any = true;
        went = match walk(element, rest, around, show) {
            ControlFlow::Continue(true) => ControlFlow::Continue(()),
            ControlFlow::Continue(false) => show(around, element),
            ControlFlow::Break(()) => ControlFlow::Break(()),
        };
        went
    });
    around.pop();
    went?;
    ControlFlow::Continue(has_any && read.is_ok())
}

/// What stands before and behind a part of a text.
fn beside<'a>(text: &'a str, part: &'a str) -> (&'a str, &'a str) {
    let from = part.as_ptr().addr().saturating_sub(text.as_ptr().addr());
    let (before, behind) = (text.get(..from), text.get(from + part.len()..));
    (before.unwrap_or_default(), behind.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> Vec<EachStep> {
        [("a", true), ("b", false), ("c", true)].map(|(name, each)| (name.to_owned(), each)).into()
    }

    fn split(text: &str) -> Vec<String> {
        let Some(measure) = measured(text, &path()) else { return vec![text.to_owned()] };
        let mut parts = Vec::new();
        each_part(text, &path(), |part| parts.push(part));
        let bytes = parts.iter().map(Bytes::len).sum();
        assert_eq!(measure, Measure { records: parts.len(), bytes }, "as it was measured");
        parts.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect()
    }

    #[test]
    fn each_element_goes_with_what_lies_around_it() {
        let text = r#"{"y":{}, "a":[{"b":{"c":[1,12345678901234567890.10],"d":"x"}},{"b":{"c":[{"e":"\u00e4"}]}},{"f":0}],"z": null}"#;
        assert_eq!(
            split(text),
            [
                r#"{"y":{}, "a":[{"b":{"c":[1],"d":"x"}}],"z": null}"#,
                r#"{"y":{}, "a":[{"b":{"c":[12345678901234567890.10],"d":"x"}}],"z": null}"#,
                r#"{"y":{}, "a":[{"b":{"c":[{"e":"\u00e4"}]}}],"z": null}"#,
                r#"{"y":{}, "a":[{"f":0}],"z": null}"#,
            ]
        );
    }

    #[test]
    fn what_has_no_such_arrays_is_one_record_as_it_is() {
        for text in [
            "{}",
            "{ \"a\" : 1 }",
            r#"{"a":[]}"#,
            r#"{"a":{"b":{"c":[1,2]}}}"#,
            r#"{"a":[{"b":{"c":[1]}}]}"#,
            r#"{"a":[{"b":{"c":[]}}]}"#,
            // Which of them is meant nobody knows: whoever decodes it says so.
            r#"{"a":[1,2],"a":[3,4]}"#,
        ] {
            assert_eq!(split(text), [text]);
        }
    }

    #[test]
    fn what_would_grow_too_much_stays_whole() {
        let elements = vec!["1"; 5_000].join(",");
        let text =
            format!(r#"{{"a":[{{"b":{{"c":[{elements}],"d":"{}"}}}}]}}"#, "x".repeat(10_000));
        assert_eq!(split(&text), [text]);
    }

    /// Made before they were counted, the records of these would be terabytes, or as many at an inner level.
    #[test]
    fn what_is_small_and_asks_for_terabytes_is_counted_and_not_made() {
        let (elements, large) = (vec!["1"; 1_000_000].join(","), "x".repeat(8 << 20));
        for text in [
            format!(r#"{{"a":[{elements}],"x":"{large}"}}"#),
            format!(r#"{{"a":[{{"b":{{"c":[{elements}],"d":"{large}"}}}}]}}"#),
        ] {
            assert_eq!(measured(&text, &path()), None);
        }
    }
}
