//! Timestamps in the format of the protocols: `YYYY-MM-DDTHH:mm:ss.sssZ` (A2A 1.0 section 5, OpenWOP v1
//! section 10.1).
//!
//! A [`Timestamp`] counts milliseconds since the Unix epoch. Its text form always has three fractional digits
//! and a `Z`. Parsing accepts any RFC 3339 text with any offset and truncates to milliseconds. This module
//! does not read a clock.

use std::fmt;

use jiff::{civil::DateTime, tz::Offset};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::Value;

use crate::json::{Decode, DecodeError};

const TEXT_LEN: usize = 24;

/// A timestamp with millisecond precision that RFC 3339 can represent.
///
/// Invariant: the value lies between [`Timestamp::MIN`] and [`Timestamp::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("read a timestamp: expected RFC 3339 with an offset")]
pub struct TimestampError;

impl Timestamp {
    /// The start of year 0.
    pub const MIN: Self = Self(-62_167_219_200_000);
    /// Near the end of year 9999: the last instant that is within range in every time zone.
    pub const MAX: Self = Self(253_402_207_200_000);

    /// Takes milliseconds since the Unix epoch, clamped to [`Timestamp::MIN`] and [`Timestamp::MAX`].
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        if millis < Self::MIN.0 {
            Self::MIN
        } else if millis > Self::MAX.0 {
            Self::MAX
        } else {
            Self(millis)
        }
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Parses RFC 3339 text.
    ///
    /// # Errors
    /// Returns an error if the text has no offset, is malformed, or lies outside the years 0 to 9999.
    pub fn parse(text: &str) -> Result<Self, TimestampError> {
        if let Some(instant) = parse_own_form(text.as_bytes()) {
            return Ok(instant);
        }
        let instant: jiff::Timestamp = text.parse().map_err(|_| TimestampError)?;
        Self::checked(instant).ok_or(TimestampError)
    }

    fn checked(instant: jiff::Timestamp) -> Option<Self> {
        let millis = instant.as_millisecond();
        (Self::MIN.0..=Self::MAX.0)
            .contains(&millis)
            .then_some(Self(millis))
    }

    /// Writes the text form into a fixed-size buffer, without allocating.
    fn text(self) -> [u8; TEXT_LEN] {
        let instant =
            jiff::Timestamp::from_millisecond(self.0).expect("MIN and MAX lie inside the range of jiff");
        let civil = Offset::UTC.to_datetime(instant);
        let mut out = *b"0000-00-00T00:00:00.000Z";
        digits(&mut out[0..4], civil.year().unsigned_abs());
        digits(&mut out[5..7], civil.month().unsigned_abs().into());
        digits(&mut out[8..10], civil.day().unsigned_abs().into());
        digits(&mut out[11..13], civil.hour().unsigned_abs().into());
        digits(&mut out[14..16], civil.minute().unsigned_abs().into());
        digits(&mut out[17..19], civil.second().unsigned_abs().into());
        digits(&mut out[20..23], civil.millisecond().unsigned_abs());
        out
    }
}

fn digits(out: &mut [u8], mut number: u16) {
    for place in out.iter_mut().rev() {
        *place = b'0' + u8::try_from(number % 10).expect("a digit fits a byte");
        number /= 10;
    }
}

/// Fast path: parses only the exact format this module writes; the general parser handles the rest.
fn parse_own_form(text: &[u8]) -> Option<Timestamp> {
    let shape = b"0000-00-00T00:00:00.000Z";
    if text.len() != TEXT_LEN {
        return None;
    }
    for (given, wanted) in text.iter().zip(shape) {
        let fits = if *wanted == b'0' {
            given.is_ascii_digit()
        } else {
            given == wanted
        };
        if !fits {
            return None;
        }
    }
    let number = |from: usize, to: usize| {
        text[from..to]
            .iter()
            .fold(0_i16, |n, d| n * 10 + i16::from(d - b'0'))
    };
    let small = |from: usize| i8::try_from(number(from, from + 2)).ok();
    let second = small(17)?;
    let millis = number(20, 23);
    let civil = DateTime::new(
        number(0, 4),
        small(5)?,
        small(8)?,
        small(11)?,
        small(14)?,
        second,
        i32::from(millis) * 1_000_000,
    )
    .ok()?;
    Timestamp::checked(Offset::UTC.to_timestamp(civil).ok()?)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).expect("only ASCII was written"))
    }
}

impl std::str::FromStr for Timestamp {
    type Err = TimestampError;

    fn from_str(text: &str) -> Result<Self, TimestampError> {
        Self::parse(text)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(std::str::from_utf8(&self.text()).expect("only ASCII was written"))
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(D::Error::custom)
    }
}

impl Decode for Timestamp {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let Value::String(text) = value else {
            return Err(DecodeError::wrong_type("a timestamp"));
        };
        Self::parse(&text).map_err(|_| DecodeError::invalid("must be an RFC 3339 timestamp"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_always_has_milliseconds_and_a_z() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (1_790_000_000_007, "2026-09-21T14:13:20.007Z"),
            (Timestamp::MIN.0, "0000-01-01T00:00:00.000Z"),
            (i64::MAX, "9999-12-30T22:00:00.000Z"),
        ] {
            assert_eq!(Timestamp::from_millis(millis).to_string(), text);
            assert_eq!(
                Timestamp::parse(text).unwrap().as_millis(),
                millis.min(Timestamp::MAX.0),
                "{text}"
            );
        }
    }

    #[test]
    fn parses_other_rfc_3339_forms() {
        for text in [
            "2026-01-02T03:04:05Z",
            "2026-01-02T03:04:05.000000Z",
            "2026-01-02T04:04:05+01:00",
            "2026-01-02T03:04:05.000999Z",
        ] {
            assert_eq!(
                Timestamp::parse(text).unwrap().to_string(),
                "2026-01-02T03:04:05.000Z",
                "{text}"
            );
        }
    }

    #[test]
    fn malformed_timestamps_are_rejected() {
        for text in [
            "",
            "now",
            "2026-01-02",
            "2026-01-02T03:04:05",
            "2026-13-02T03:04:05.000Z",
            "２０26",
        ] {
            assert_eq!(Timestamp::parse(text), Err(TimestampError), "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_round_trips(millis in Timestamp::MIN.0..=Timestamp::MAX.0) {
            let text = Timestamp::from_millis(millis).to_string();
            prop_assert_eq!(Timestamp::parse(&text).unwrap().as_millis(), millis);
            let general: jiff::Timestamp = text.parse().unwrap();
            prop_assert_eq!(general.as_millisecond(), millis);
        }
    }
}
