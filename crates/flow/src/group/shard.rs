//! Which shard a record belongs to.
//!
//! A shard is told by one value of the record, so that other programs find the same one: of a whole
//! number, however long, its remainder, which is never negative; of other text the remainder of the
//! first eight bytes of its SHA-256, as one big-endian number. `7`, `7.0` and `"7"` are the same
//! number: one shop has one shard.
//!
//! Where groups are sharded, a group's key is `shard/shards`, such as `1/2`. It is written with the
//! seal, so a sealed group stays where it was when the number of shards changes. The shard is also
//! the lane, for records, seals and members that a seal names: shards fail and recover apart.

use bytes::Bytes;
use potok_core::trouble::{Bug, planted};
use potok_core::{Fault, Headers, HeadersBuilder, Reason};
use potok_expr::ValuePath;
use potok_expr::json::{Kind, Node, Parser};
use sha2::{Digest, Sha256};

use crate::source::hash_of;

/// Says which shard a record belongs to, for stages and destinations.
const HEADER: &str = "potok-shard";

/// Says how often a number may be multiplied by ten before it is no number that anybody means.
const EXPONENT_MAX: usize = 400;

/// How records are spread over shards.
#[derive(Clone, Debug)]
pub struct ShardPlan {
    /// Where a record has the value that tells its shard.
    pub by: ValuePath,
    /// How many shards there are.
    pub of: u32,
}

impl ShardPlan {
    /// The key of the group that a record belongs to; a fault where nothing tells its shard.
    pub(crate) fn key(&self, value: Option<Node<'_>>) -> Result<Bytes, Fault> {
        let of = self.of.max(1);
        let found = value.and_then(|value| self.by.find(value));
        let shard = found.ok_or("missing").and_then(|found| shard_of(found, of));
        let shard = shard.map_err(|what| {
            let what = format!("shard.by `{}` is {what}", self.by.source());
            Fault::set_aside(Reason::NoKey, what)
        })?;
        Ok(format!("{shard}/{of}").into())
    }

    /// The naive way to a sealed record's shard; see [`Bug::ShardByNow`].
    pub(crate) fn of_value(&self, value: Option<&[u8]>) -> Option<u32> {
        let mut parser = Parser::new();
        self.key(parser.parse(value?).ok()).ok().and_then(|key| shard_in(&key))
    }
}

/// The shard of a group's key.
pub(crate) fn shard_in(key: &[u8]) -> Option<u32> {
    let (shard, of) = std::str::from_utf8(key).ok()?.split_once('/')?;
    let (shard, of): (u32, u32) = (shard.parse().ok()?, of.parse().ok()?);
    (shard < of).then_some(shard)
}

/// The hash that decides the lane of a group where groups are sharded: the lane is the shard.
pub(crate) fn lane_of(key: &[u8]) -> u64 {
    if planted(Bug::ShardsShareLane) {
        return 0;
    }
    shard_in(key).map_or_else(|| hash_of(key), u64::from)
}

/// The headers of a record, with its shard where it has one.
pub(crate) fn with_shard(headers: &Headers, shard: Option<u32>) -> Headers {
    let Some(shard) = shard else { return headers.clone() };
    let shard = shard.to_string();
    HeadersBuilder::new().add_all(headers).add(HEADER, Some(shard.as_bytes())).build()
}

fn shard_of(value: Node<'_>, of: u32) -> Result<u32, &'static str> {
    match value.kind() {
        Kind::Number => {
            let written = String::from_utf8_lossy(value.raw());
            remainder(&written, of).ok_or("no whole number")
        }
        Kind::String => {
            let text = value.text().unwrap_or_default();
            if text.is_empty() {
                return Err("empty");
            }
            let whole = is_whole(&text).then(|| remainder(&text, of)).flatten();
            Ok(whole.unwrap_or_else(|| hashed(text.as_bytes(), of)))
        }
        Kind::Null => Err("null"),
        Kind::Bool => Err("neither a number nor text"),
        Kind::Array | Kind::Object => Err("neither a number nor text"),
    }
}

/// True for text that is a whole number as it would be written: `7` and `-7`, not `07` or `7.0`.
fn is_whole(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    plain && (digits == "0" && text == "0" || !digits.starts_with('0'))
}

/// The remainder of a number in JSON syntax; `None` where it is not whole.
fn remainder(written: &str, of: u32) -> Option<u32> {
    let (negative, rest) = match written.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, written),
    };
    let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).collect();
    if digits.iter().all(|digit| *digit == b'0') {
        return Some(0);
    }
    // So many digits stand behind the point.
    let exponent: i64 = exponent.parse().ok()?;
    let behind = i64::try_from(fraction.len()).ok()?.checked_sub(exponent)?;
    if behind > 0 {
        let point = digits.len().saturating_sub(usize::try_from(behind).ok()?);
        if digits.drain(point..).any(|digit| digit != b'0') {
            return None;
        }
    } else {
        let zeros = usize::try_from(behind.unsigned_abs()).ok()?;
        digits.extend(std::iter::repeat_n(b'0', Some(zeros).filter(|z| *z <= EXPONENT_MAX)?));
    }
    let of = u64::from(of);
    let value = digits.iter().fold(0, |value, digit| (value * 10 + u64::from(digit - b'0')) % of);
    let value = if negative { (of - value) % of } else { value };
    u32::try_from(value).ok()
}

fn hashed(text: &[u8], of: u32) -> u32 {
    let digest = Sha256::digest(text);
    let first = digest.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    u32::try_from(first % u64::from(of)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn key(value: &str, of: u32) -> Result<String, Reason> {
        let plan = ShardPlan { by: ValuePath::parse(".s").unwrap(), of };
        let text = format!("{{\"s\":{value}}}");
        let mut parser = Parser::new();
        let key = plan.key(parser.parse(text.as_bytes()).ok());
        key.map(|key| String::from_utf8(key.to_vec()).unwrap()).map_err(|fault| fault.reason)
    }

    #[test]
    fn numbers_go_by_their_remainder_which_is_never_negative() {
        for (value, of, wanted) in [
            ("0", 2, "0/2"),
            ("-0", 2, "0/2"),
            ("7", 2, "1/2"),
            ("7.0", 2, "1/2"),
            ("7e0", 2, "1/2"),
            ("0.7e1", 2, "1/2"),
            ("70e-1", 2, "1/2"),
            ("1e3", 7, "6/7"),
            ("\"7\"", 2, "1/2"),
            ("-3", 2, "1/2"),
            ("-3", 4, "1/4"),
            ("\"-3\"", 4, "1/4"),
            ("18446744073709551617", 2, "1/2"),
            ("100000000000000000000000000000000000003", 4, "3/4"),
            ("5", 1, "0/1"),
        ] {
            assert_eq!(key(value, of).unwrap(), wanted, "{value} of {of}");
        }
    }

    /// `SELECT CAST(CONV(LEFT(SHA2('abc', 256), 16), 16, 10) AS UNSIGNED) % 1000` says the same.
    #[test]
    fn other_text_goes_by_a_hash_that_anybody_can_compute() {
        assert_eq!(
            key("\"abc\"", 1_000).unwrap(),
            format!("{}/1000", 0xba78_16bf_8f01_cfea_u64 % 1_000)
        );
        // Not written as a number would be.
        assert_ne!(key("\"007\"", 1_000), key("7", 1_000));
    }

    #[test]
    fn what_tells_no_shard_is_set_aside() {
        for value in ["1.5", "7e-1", "1e999999999", "null", "true", "[7]", "{\"a\":7}", "\"\""] {
            assert_eq!(key(value, 2), Err(Reason::NoKey), "{value}");
        }
        let plan = ShardPlan { by: ValuePath::parse(".s").unwrap(), of: 2 };
        let fault = plan.key(Parser::new().parse(b"{}").ok()).unwrap_err();
        assert_eq!(fault.what, "shard.by `.s` is missing");
    }

    #[test]
    fn the_lane_is_the_shard() {
        assert_eq!((shard_in(b"1/2"), lane_of(b"1/2")), (Some(1), 1));
        assert_eq!((shard_in(b"3/4"), lane_of(b"3/4")), (Some(3), 3));
        for other in [&b"2/2"[..], b"", b"a", b"a/b", b"\xff/1"] {
            assert_eq!((shard_in(other), lane_of(other)), (None, hash_of(other)));
        }
    }
}
