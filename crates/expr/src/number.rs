//! Numbers as written, compared with numbers as machines hold them.
//!
//! A record's number must leave potok meaning what it meant on arrival. So a conversion is made
//! only where the decimal written down survives it; the rest is the caller's to refuse.

/// `±digits × 10^exponent`, the last digit not 0 (zero itself has exponent 0).
#[derive(Debug, PartialEq, Eq)]
struct Decimal {
    negative: bool,
    digits: u64,
    exponent: i64,
}

/// More significant digits than this fit neither an `i64` nor what a float prints.
const DIGITS_MAX: u32 = 19;

impl Decimal {
    /// Reads a number in JSON syntax; `None` where it has too many significant digits.
    fn read(text: &str) -> Option<Decimal> {
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        // Zeros count only once another digit follows them.
        let (mut digits, mut count, mut zeros) = (0u64, 0u32, 0u32);
        for digit in whole.bytes().chain(fraction.bytes()).map(|b| b.wrapping_sub(b'0')) {
            if digit == 0 {
                zeros = zeros.saturating_add(u32::from(digits != 0));
                continue;
            }
            count = count.saturating_add(zeros).saturating_add(1);
            if count > DIGITS_MAX {
                return None;
            }
            digits = digits * 10u64.pow(zeros + 1) + u64::from(digit);
            zeros = 0;
        }
        if digits == 0 {
            return Some(Decimal { negative, digits, exponent: 0 });
        }
        let exponent = read_exponent(exponent)
            .saturating_sub(i64::try_from(fraction.len()).unwrap_or(i64::MAX))
            .saturating_add(i64::from(zeros));
        Some(Decimal { negative, digits, exponent })
    }
}

/// An exponent beyond all reason stays beyond all reason.
fn read_exponent(text: &str) -> i64 {
    let far = if text.starts_with('-') { i64::MIN / 2 } else { i64::MAX / 2 };
    text.parse::<i64>().map_or(far, |e| e.clamp(i64::MIN / 2, i64::MAX / 2))
}

/// The number's value where it is a whole number that fits.
pub(crate) fn exact_i64(text: &str) -> Option<i64> {
    if let Ok(value) = text.parse() {
        return Some(value);
    }
    let decimal = Decimal::read(text)?;
    let scale = 10i128.checked_pow(u32::try_from(decimal.exponent).ok()?)?;
    let value = i128::from(decimal.digits).checked_mul(scale)?;
    i64::try_from(if decimal.negative { -value } else { value }).ok()
}

/// The number as a float, where printing that float gives the same decimal back.
pub(crate) fn exact_f64(text: &str) -> Option<f64> {
    let value: f64 = text.parse().ok()?;
    let same = Decimal::read(text)? == Decimal::read(&format!("{value:e}"))?;
    (same && value.is_finite()).then_some(value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn whole_numbers_are_exact_or_none() {
        for (text, want) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("-0.0", Some(0)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("1.0", Some(1)),
            ("1e2", Some(100)),
            ("1.50e1", Some(15)),
            ("100e-2", Some(1)),
            ("1.5", None),
            ("1e-1", None),
            ("1e19", None),
            ("1e99999999999999999999", None),
            ("0e99999999999999999999", Some(0)),
            ("1.00000000000000000000000000000001", None),
            ("9007199254740993.0", Some(9_007_199_254_740_993)),
        ] {
            assert_eq!(exact_i64(text), want, "{text}");
        }
    }

    #[test]
    fn floats_keep_the_decimal_or_are_refused() {
        for text in ["0.1", "-0.0", "1.10", "1e20", "123456.789e3", "5e-324", "1e308", "0.30"] {
            assert_eq!(exact_f64(text), Some(text.parse().unwrap()), "{text}");
        }
        for text in [
            "18446744073709551616",
            "9007199254740993.0",
            "0.1234567890123456789",
            "1e-400",
            "0.1000000000000000055511151231257827",
        ] {
            assert_eq!(exact_f64(text), None, "{text}");
        }
    }
}
