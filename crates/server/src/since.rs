//! `--since`: a moment, or how long ago.

use chrono::DateTime;
use potok_core::Timestamp;

/// Reads `2026-11-15T23:59:59Z`, `2026-11-15` (UTC), or a span such as `90s`, `10m`, `2h`, `7d`
/// before `now`.
pub fn parse_since(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let text = text.trim();
    moment(text).or_else(|| Some(Timestamp(now.0.saturating_sub(span(text)?)))).ok_or_else(|| {
        format!("`{text}` is neither a moment such as 2026-11-15T23:59:59Z nor a span such as 10m")
    })
}

fn span(text: &str) -> Option<i64> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at(unit_at);
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    digits.parse::<i64>().ok()?.checked_mul(millis)
}

/// RFC 3339 in UTC, where the time of day or its seconds may be left out.
fn moment(text: &str) -> Option<Timestamp> {
    let full = match text.split_once(['T', ' ']) {
        None => format!("{text}T00:00:00Z"),
        Some((date, time)) => match time.strip_suffix(['Z', 'z'])? {
            minutes if minutes.len() == "23:59".len() => format!("{date}T{minutes}:00Z"),
            seconds => format!("{date}T{seconds}Z"),
        },
    };
    let moment = DateTime::parse_from_rfc3339(&full).ok()?;
    Some(Timestamp(moment.timestamp_millis()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn moments_read_back_as_they_print() {
        let mut millis = -62_000_000_000_i64;
        while millis < 4_200_000_000_000 {
            let time = Timestamp(millis);
            assert_eq!(parse_since(&time.to_string(), Timestamp(0)), Ok(time));
            millis += 86_399_999 * 13;
        }
        assert_eq!(parse_since("1970-01-02", Timestamp(0)), Ok(Timestamp(86_400_000)));
        assert_eq!(parse_since("1970-01-01T00:01Z", Timestamp(0)), Ok(Timestamp(60_000)));
    }

    #[test]
    fn spans_count_back_from_now() {
        let now = Timestamp(1_000_000_000);
        assert_eq!(parse_since("10m", now), Ok(Timestamp(now.0 - 600_000)));
        assert_eq!(parse_since("2d", now), Ok(Timestamp(now.0 - 172_800_000)));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "10",
            "m",
            "ten minutes",
            "2026-13-01",
            "2026-02-29",
            "2026-1-1",
            "2026-01-01T",
            "2026-01-01 00:00 Z",
            "2026-01-01T00:00:00+00:00Z",
            "99999999999999999999s",
            "2026-01-01T25:00:00Z",
            "2026-01-01T00:00:00+02:00",
        ] {
            assert!(parse_since(text, Timestamp(0)).is_err(), "{text}");
        }
    }
}
