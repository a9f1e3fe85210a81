//! Times as batch ids have them: 14 digits, UTC, and back.

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
        let part = |from: usize, to: usize| id.get(from..to)?.parse::<u64>().ok();
        let (year, month, day) = (part(0, 4)?, part(4, 6)?, part(6, 8)?);
        let (hour, minute, second) = (part(8, 10)?, part(10, 12)?, part(12, 14)?);
        if year < 1970 {
            return None;
        }
        let time = Time(days(year, month, day) * DAY + hour * 3_600 + minute * 60 + second);
        // A date that does not exist comes out as another one.
        (time.id() == id).then_some(time)
    }

    /// 14 digits.
    pub fn id(self) -> String {
        let (year, month, day) = self.date();
        let (hour, minute, second) = (self.0 % DAY / 3_600, self.0 % 3_600 / 60, self.0 % 60);
        format!("{year:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}")
    }

    /// Year, month and day.
    pub fn date(self) -> (u64, u64, u64) {
        // Years are counted from March here, so that the day that not all have is the last.
        let days = self.0 / DAY + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let date = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        (era * 400 + year + u64::from(month <= 2), month, date)
    }

    /// The day within its year, from 0.
    pub fn of_year(self) -> u64 {
        let (year, _, _) = self.date();
        self.0 / DAY - days(year, 1, 1)
    }
}

/// Days since the beginning of 1970; for a date that does not exist, those of another one.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = year - u64::from(month <= 2);
    let (era, of_era) = (year / 400, year % 400);
    let month = (month + 9) % 12;
    let of_year = (153 * month + 2) / 5 + day;
    let day = of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    (era * 146_097 + day).saturating_sub(719_469)
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
