//! What a body becomes: its records, counted before they are made.
//!
//! A small body can be very many records, and a small object with `each` very large ones. So what they cost is
//! known, and room for it taken, before there is any of them.

use axum::body::Bytes;
use potok_core::{Headers, Output};
use potok_expr::json::Parser;
use potok_expr::{Scope, Template};

use super::HttpSource;
use super::body::{BYTES_MAX, BadBody, Layout, look_over, text};
use super::each::{EachStep, each_part, measured};

/// How many records a body may bring. Each costs far more than the three bytes that it may have.
const RECORDS_MAX: usize = 200_000;
/// What a record costs beside its bytes until it is durable: what it is made into, its key, and its place in
/// the log.
const RECORD_COST: usize = 256;
/// What the records may hold that `each` makes of a body. A single object never comes to more: it stays whole
/// then.
const MADE_BYTES_MAX: usize = 2 * BYTES_MAX;
/// What the records of one body cost at most.
pub(super) const COST_MAX: usize = RECORDS_MAX * RECORD_COST + 2 * MADE_BYTES_MAX + BYTES_MAX;

/// What the records of a body come to.
pub(super) struct RecordCount {
    layout: Layout,
    sum: Sum,
}

#[derive(Default)]
struct Sum {
    records: usize,
    /// Of objects that are one record: a part of the body, which the log copies.
    whole_bytes: usize,
    /// Of records that `each` makes, which are copied twice.
    made_bytes: usize,
}

impl Sum {
    fn add(&mut self, object: &str, each: &[EachStep]) -> Result<(), BadBody> {
        match as_several(object, each) {
            Some(measure) => {
                self.records += measure.records;
                self.made_bytes += measure.bytes;
            }
            None => {
                self.records += 1;
                self.whole_bytes += object.len();
            }
        }
        if self.records > RECORDS_MAX {
            return Err(BadBody::TooMuch(format!("a body may bring {RECORDS_MAX} records")));
        }
        if self.made_bytes > MADE_BYTES_MAX {
            let what = "the records that `each` makes of a body may hold";
            return Err(BadBody::TooMuch(format!("{what} {} MiB", MADE_BYTES_MAX >> 20)));
        }
        Ok(())
    }
}

fn as_several(object: &str, each: &[EachStep]) -> Option<super::each::Measure> {
    if each.is_empty() { None } else { measured(object, each) }
}

impl RecordCount {
    /// Counts the records of an unpacked body.
    pub fn of(body: &Bytes, each: &[EachStep]) -> Result<Self, BadBody> {
        let add = |sum: &mut Sum, object: &str| sum.add(object, each);
        let (layout, sum) = look_over(text(body)?, add)?;
        Ok(RecordCount { layout, sum })
    }

    /// What they cost in memory until they are durable, beside the body.
    pub fn cost(&self) -> usize {
        let Sum { records, whole_bytes, made_bytes } = self.sum;
        records * RECORD_COST + whole_bytes + 2 * made_bytes
    }

    /// Makes the records of the body that was counted.
    pub fn outputs(&self, body: &Bytes, source: &HttpSource) -> Result<Vec<Output>, BadBody> {
        let mut outputs = Vec::with_capacity(self.sum.records);
        let mut parser = Parser::new();
        let mut add = |value: Bytes| {
            let key = source.key.as_ref().and_then(|key| key_of(key, source, &value, &mut parser));
            outputs.push(Output {
                topic: source.topic.clone(),
                partition: None,
                key,
                headers: Headers::none(),
                value: Some(value),
            });
        };
        self.layout.each_object(text(body)?, &mut |object| {
            match as_several(object, &source.each) {
                Some(_) => each_part(object, &source.each, &mut add),
                None => add(body.slice_ref(object.as_bytes())),
            }
            Ok(())
        })?;
        Ok(outputs)
    }
}

fn key_of(
    key: &Template,
    source: &HttpSource,
    value: &Bytes,
    parser: &mut Parser,
) -> Option<Bytes> {
    key.eval_bytes(&Scope {
        value: parser.parse(value).ok(),
        key: None,
        headers: &Headers::none(),
        topic: &source.topic,
        id: None,
        receiver: None,
    })
}
