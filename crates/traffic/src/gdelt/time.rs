//! Times as batch ids have them: 14 digits, UTC, and back.

use chrono::{DateTime, Datelike, NaiveDateTime, Utc};

const FORMAT: &str = "%Y%m%d%H%M%S";
/// Seconds of a day.
pub(super) const DAY: u64 = 86_400;
/// Seconds of a quarter of an hour.
pub(super) const QUARTER: u64 = 900;

/// Seconds since the beginning of 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Time(pub u64);

impl Time {
    /// Reads `20250323151500`. Nothing unless there is such a time, of 1970 or later.
    pub fn of_id(id: &str) -> Option<Time> {
        if id.len() != 14 || !id.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let read = NaiveDateTime::parse_from_str(id, FORMAT).ok()?;
        let time = Time(u64::try_from(read.and_utc().timestamp()).ok()?);
        // A leap second comes out as another one.
        (time.id() == id).then_some(time)
    }

    /// 14 digits.
    pub fn id(self) -> String {
        self.utc().format(FORMAT).to_string()
    }

    /// Year, month and day.
    pub fn date(self) -> (u64, u64, u64) {
        let date = self.utc();
        (u64::from(date.year().unsigned_abs()), date.month().into(), date.day().into())
    }

    /// The day within its year, from 0.
    pub fn of_year(self) -> u64 {
        self.utc().ordinal0().into()
    }

    fn utc(self) -> DateTime<Utc> {
        let seconds = i64::try_from(self.0).unwrap_or_default();
        DateTime::from_timestamp(seconds, 0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_back() {
        for (id, seconds) in [
            ("19700101000000", 0),
            ("20000229000000", 951_782_400),
            ("20250323151500", 1_742_742_900),
            ("20251231234500", 1_767_224_700),
            ("20991231235959", 4_102_444_799),
        ] {
            assert_eq!(Time::of_id(id), Some(Time(seconds)), "{id}");
            assert_eq!(Time(seconds).id(), id);
        }
        for id in [
            "",
            "2025032315150",
            "202503231515000",
            "20250230000000",
            "20251399000000",
            "20250001000000",
            "20250100000000",
            "20250101240000",
            "20250101006000",
            "20250101000060",
            "19691231235959",
            "2025032315150x",
            "+0250323151500",
        ] {
            assert_eq!(Time::of_id(id), None, "{id}");
        }
    }

    #[test]
    fn every_day_has_a_date_of_its_own() {
        let mut before = (1969, 12, 31);
        for day in 0..60_000 {
            let time = Time(day * DAY + 17);
            let date = time.date();
            assert!(date > before, "{before:?} {date:?}");
            assert_eq!(Time::of_id(&time.id()), Some(time));
            let first = date.1 == 1 && date.2 == 1;
            assert_eq!(time.of_year() == 0, first);
            before = date;
        }
    }
}
