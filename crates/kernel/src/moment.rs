//! Times as text, for values that a run keeps: the one form of RFC 3339 with milliseconds and a `Z`.

use crate::Timestamp;

pub(crate) const DAY_MS: i64 = 86_400_000;
/// The first and the last moment of the years 0 to 9999.
const EARLIEST: i64 = -62_167_219_200_000;
const LATEST: i64 = 253_402_300_799_999;

impl Timestamp {
    /// The time as text. A time outside the years 0 to 9999 is shown as the nearest one within.
    #[must_use]
    pub fn to_text(self) -> String {
        let millis = self.millis().clamp(EARLIEST, LATEST);
        let (year, month, day) = civil(millis.div_euclid(DAY_MS));
        let of_day = millis.rem_euclid(DAY_MS);
        let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
        let (second, milli) = (of_day / 1_000 % 60, of_day % 1_000);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
    }

    /// Parses exactly what [`Self::to_text`] writes.
    #[must_use]
    pub fn parse_text(text: &str) -> Option<Self> {
        let number = |from: usize, to: usize| {
            let digits = text.get(from..to)?;
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| digits.parse::<i64>().ok()).flatten()
        };
        let days = days(number(0, 4)?, number(5, 7)?, number(8, 10)?);
        let of_day = (number(11, 13)? * 3_600 + number(14, 16)? * 60 + number(17, 19)?) * 1_000;
        let time = Self::from_millis(days * DAY_MS + of_day + number(20, 23)?);
        // Whatever is no such text, or no such date, is written in another way.
        (time.to_text() == text).then_some(time)
    }
}

/// Year, month and day of a number of days since 1970, in the Gregorian calendar.
pub(crate) fn civil(days: i64) -> (i64, i64, i64) {
    // Years begin in March here, so that the leap day is the last of its year, and eras of 400 years are alike.
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

/// The inverse of [`civil`], also for days that no month has.
pub(crate) fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let from_march = (month + 9).rem_euclid(12);
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_the_calendar() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (951_782_400_123, "2000-02-29T00:00:00.123Z"),
            (1_700_000_000_001, "2023-11-14T22:13:20.001Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (EARLIEST, "0000-01-01T00:00:00.000Z"),
            (LATEST, "9999-12-31T23:59:59.999Z"),
        ] {
            let time = Timestamp::from_millis(millis);
            assert_eq!(time.to_text(), text);
            assert_eq!(Timestamp::parse_text(text), Some(time));
        }
        assert_eq!(
            Timestamp::from_millis(i64::MAX).to_text(),
            "9999-12-31T23:59:59.999Z"
        );
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "2023-02-29T00:00:00.000Z",
            "2023-13-01T00:00:00.000Z",
            "2023-01-01T24:00:00.000Z",
            "2023-01-01T00:00:00Z",
            "2023-01-01T00:00:00.000+00:00",
            "2023-01-01t00:00:00.000z",
            "+023-01-01T00:00:00.000Z",
            "2023-01-01T00:00:00.000ZZ",
            "２023-01-01T00:00:00.000Z",
        ] {
            assert_eq!(Timestamp::parse_text(text), None, "{text}");
        }
    }

    #[test]
    fn every_day_of_four_centuries_is_read_as_it_is_written() {
        for day in -150_000..150_000 {
            let time = Timestamp::from_millis(day * DAY_MS + 12_345);
            assert_eq!(Timestamp::parse_text(&time.to_text()), Some(time));
        }
    }
}
