//! `--since`: a moment, or how long ago.

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

fn moment(text: &str) -> Option<Timestamp> {
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (date, time.strip_suffix(['Z', 'z'])?),
        None => (text, "00:00:00"),
    };
    let (date, time) = (numbers(date, '-', [4, 2, 2])?, split_time(time)?);
    let ([year, month, day], ([hour, minute, second], millis)) = (date, time);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let month_days = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=month_days).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Years are counted from March, so that the leap day comes last.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    Some(Timestamp((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000 + millis))
}

fn split_time(time: &str) -> Option<([i64; 3], i64)> {
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let clock = if clock.len() == 5 { format!("{clock}:00") } else { clock.to_owned() };
    if fraction.is_empty() || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let millis = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    Some((numbers(&clock, ':', [2, 2, 2])?, millis))
}

/// Three groups of exactly so many digits.
fn numbers(text: &str, between: char, digits: [usize; 3]) -> Option<[i64; 3]> {
    let mut parts = text.split(between);
    let mut read = |len| {
        let part = parts.next()?;
        let good = part.len() == len && part.bytes().all(|b| b.is_ascii_digit());
        if good { part.parse().ok() } else { None }
    };
    let [a, b, c] = digits;
    let found = [read(a)?, read(b)?, read(c)?];
    parts.next().is_none().then_some(found)
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
            "99999999999999999999s",
            "2026-01-01T25:00:00Z",
            "2026-01-01T00:00:00+02:00",
        ] {
            assert!(parse_since(text, Timestamp(0)).is_err(), "{text}");
        }
    }
}
