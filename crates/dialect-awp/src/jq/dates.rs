//! Times: seconds since 1970, broken down times as arrays, and texts.
//!
//! All of them are in UTC, and names are English: neither the time zone nor the language of the machine has a part in
//! it. Years are from -9999 to 9999; a time beyond them is an error.

use std::fmt::Write as _;

use jiff::{
    SignedDuration,
    civil::{DateTime, Weekday},
};
use serde_json::Value;
use wopr_kernel::cost::Meter;

use super::{
    machine::{Flow, Stop},
    math, text,
};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// From Sunday on.
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
/// The parts of a broken down time: year, month from 0 on, day, hour, minute, second.
const N_PARTS: usize = 6;
/// Beyond this no part of a broken down time can lead to a year that is offered.
const MOST: f64 = 1e12;
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
/// Units for a conversion of a format.
const CONVERSION: u64 = 8;

fn out_of_range() -> Stop {
    Stop::error("the year of a time is from -9999 to 9999")
}

/// Seconds since 1970 as a time, and the part of a second that is left.
fn time_of(seconds: f64) -> Flow<(DateTime, f64)> {
    let whole = seconds.floor();
    if whole.abs() > MOST {
        return Err(out_of_range());
    }
    #[expect(clippy::cast_possible_truncation, reason = "checked to be in range")]
    let since = SignedDuration::from_secs(whole as i64);
    let time = EPOCH.checked_add(since).map_err(|_| out_of_range())?;
    Ok((time, seconds - whole))
}

fn seconds_of(time: DateTime) -> i64 {
    time.duration_since(EPOCH).as_secs()
}

fn broken_down(time: DateTime, fraction: f64) -> Value {
    let date = time.date();
    let second = f64::from(time.second()) + fraction;
    let parts = [
        f64::from(date.year()),
        f64::from(date.month() - 1),
        f64::from(date.day()),
        f64::from(time.hour()),
        f64::from(time.minute()),
        second,
        f64::from(date.weekday().to_sunday_zero_offset()),
        f64::from(date.day_of_year() - 1),
    ];
    Value::Array(parts.into_iter().map(math::number).collect())
}

/// The time that a broken down time means. What is missing is zero, and parts that are too large carry over.
fn assembled(parts: &[Value], what: &str) -> Flow<DateTime> {
    let mut numbers = [0_i64; N_PARTS];
    for (number, part) in numbers.iter_mut().zip(parts) {
        let n = part
            .as_f64()
            .ok_or_else(|| Stop::error(format!("{what} requires parsed datetime inputs")))?;
        if n.abs() > MOST {
            return Err(out_of_range());
        }
        #[expect(clippy::cast_possible_truncation, reason = "checked to be in range")]
        let n = n as i64;
        *number = n;
    }
    let [year, month, day, hour, minute, second] = numbers;
    let (year, month) = (year + month.div_euclid(12), month.rem_euclid(12) + 1);
    let first = (i16::try_from(year).ok()).zip(i8::try_from(month).ok());
    let first = first.and_then(|(year, month)| DateTime::new(year, month, 1, 0, 0, 0, 0).ok());
    let since = (day - 1) * 86_400 + hour * 3_600 + minute * 60 + second;
    first
        .and_then(|first| first.checked_add(SignedDuration::from_secs(since)).ok())
        .ok_or_else(out_of_range)
}

/// `gmtime`, and `localtime`, which is in UTC, too.
pub(super) fn gmtime(value: &Value, name: &str, meter: &Meter<'_>) -> Flow<Value> {
    let seconds = value
        .as_f64()
        .ok_or_else(|| Stop::error(format!("{name}() requires numeric inputs")))?;
    meter.values(8)?;
    let (time, fraction) = time_of(seconds)?;
    Ok(broken_down(time, fraction))
}

/// `mktime`
pub(super) fn mktime(value: &Value, meter: &Meter<'_>) -> Flow<Value> {
    let Value::Array(parts) = value else {
        return Err(Stop::error("mktime requires array inputs"));
    };
    meter.charge(CONVERSION)?;
    assembled(parts, "mktime").map(|time| seconds_of(time).into())
}

/// `strftime`, and `strflocaltime`, whose time is in UTC, too.
pub(super) fn strftime(value: &Value, format: &Value, name: &str, meter: &Meter<'_>) -> Flow<Value> {
    let what = format!("{name}/1");
    let time = match value {
        Value::Number(n) => time_of(n.as_f64().unwrap_or_default())?.0,
        Value::Array(parts) => assembled(parts, &what)?,
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Object(_) => {
            return Err(Stop::error(format!("{what} requires parsed datetime inputs")));
        }
    };
    let Value::String(format) = format else {
        return Err(Stop::error(format!("{what} requires a string format")));
    };
    let mut written = String::new();
    write(&mut written, time, format, &what, meter)?;
    Ok(Value::String(written))
}

fn write(written: &mut String, time: DateTime, format: &str, what: &str, meter: &Meter<'_>) -> Flow {
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        meter.charge(1)?;
        if letter != '%' {
            written.push(letter);
            continue;
        }
        meter.charge(CONVERSION)?;
        text::fits(written.len())?;
        let mut conversion = letters.next();
        if let Some('E' | 'O') = conversion {
            // Another way to write it, of which English has none.
            conversion = letters.next();
        }
        let Some(conversion) = conversion else {
            written.push('%');
            break;
        };
        if let Some(longer) = combined(conversion) {
            write(written, time, longer, what, meter)?;
        } else if !convert(written, time, conversion) {
            return Err(Stop::error(format!("{what}: %{conversion} is not offered")));
        }
    }
    Ok(())
}

/// The conversions that a conversion stands for.
const fn combined(conversion: char) -> Option<&'static str> {
    Some(match conversion {
        'c' => "%a %b %e %H:%M:%S %Y",
        'D' | 'x' => "%m/%d/%y",
        'F' => "%Y-%m-%d",
        'R' => "%H:%M",
        'r' => "%I:%M:%S %p",
        'T' | 'X' => "%H:%M:%S",
        _ => return None,
    })
}

/// Writes a conversion; false if there is no such conversion.
fn convert(written: &mut String, time: DateTime, conversion: char) -> bool {
    let date = time.date();
    let (year, hour) = (i32::from(date.year()), i32::from(time.hour()));
    let weekday = date.weekday().to_sunday_zero_offset();
    let day_of_year = i32::from(date.day_of_year());
    let hour_of_12 = (hour + 11) % 12 + 1;
    let week_date = date.iso_week_date();
    let name = |names: &[&'static str], n: i8| {
        let n = usize::try_from(n).unwrap_or_default();
        names.get(n).copied().unwrap_or_default()
    };
    let day = name(&DAYS, weekday);
    let month = name(&MONTHS, date.month() - 1);
    let half = if hour < 12 { "AM" } else { "PM" };
    // A text takes what is written to it.
    let written = match conversion {
        '%' => write!(written, "%"),
        'n' => writeln!(written),
        't' => write!(written, "\t"),
        'a' => write!(written, "{}", &day[..3]),
        'A' => write!(written, "{day}"),
        'b' | 'h' => write!(written, "{}", &month[..3]),
        'B' => write!(written, "{month}"),
        'C' => write!(written, "{:02}", year.div_euclid(100)),
        'd' => write!(written, "{:02}", date.day()),
        'e' => write!(written, "{:2}", date.day()),
        'G' => write!(written, "{:04}", week_date.year()),
        'g' => write!(written, "{:02}", i32::from(week_date.year()).rem_euclid(100)),
        'H' => write!(written, "{hour:02}"),
        'I' => write!(written, "{hour_of_12:02}"),
        'j' => write!(written, "{day_of_year:03}"),
        'k' => write!(written, "{hour:2}"),
        'l' => write!(written, "{hour_of_12:2}"),
        'M' => write!(written, "{:02}", time.minute()),
        'm' => write!(written, "{:02}", date.month()),
        'P' => write!(written, "{}", half.to_ascii_lowercase()),
        'p' => write!(written, "{half}"),
        'S' => write!(written, "{:02}", time.second()),
        's' => write!(written, "{}", seconds_of(time)),
        'U' => write!(written, "{:02}", (day_of_year + 6 - i32::from(weekday)) / 7),
        'u' => write!(written, "{}", date.weekday().to_monday_one_offset()),
        'V' => write!(written, "{:02}", week_date.week()),
        'W' => {
            let since_monday = i32::from(date.weekday().to_monday_zero_offset());
            write!(written, "{:02}", (day_of_year + 6 - since_monday) / 7)
        }
        'w' => write!(written, "{weekday}"),
        'Y' => write!(written, "{year:04}"),
        'y' => write!(written, "{:02}", year.rem_euclid(100)),
        'Z' => write!(written, "UTC"),
        'z' => write!(written, "+0000"),
        _ => return false,
    };
    written.is_ok()
}

/// What a text said of a time.
#[derive(Debug, Default)]
struct Read {
    year: Option<i64>,
    century: Option<i64>,
    year_of_century: Option<i64>,
    month: Option<i64>,
    day: Option<i64>,
    day_of_year: Option<i64>,
    hour: i64,
    hour_of_12: Option<i64>,
    is_afternoon: bool,
    minute: i64,
    second: i64,
    since_epoch: Option<i64>,
}

/// `strptime`
pub(super) fn strptime(value: &Value, format: &Value, meter: &Meter<'_>) -> Flow<Value> {
    let (Value::String(text), Value::String(format)) = (value, format) else {
        return Err(Stop::error("strptime/1 requires string inputs and arguments"));
    };
    meter.bytes(text.len())?;
    meter.values(8)?;
    let mut read = Read::default();
    match read.parse(text, format, meter)? {
        Some("") => read.broken_down(),
        Some(_) | None => Err(Stop::error(format!(
            "date \"{}\" does not match format \"{}\"",
            clipped(text),
            clipped(format)
        ))),
    }
}

/// As much of a text as a message shows.
fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(200)]
}

impl Read {
    /// Reads a text as a format says; the rest of the text, or none if they do not match.
    fn parse<'a>(&mut self, mut text: &'a str, format: &str, meter: &Meter<'_>) -> Flow<Option<&'a str>> {
        let mut letters = format.chars();
        while let Some(letter) = letters.next() {
            meter.charge(2)?;
            if letter.is_ascii_whitespace() {
                text = self.spaces(text, meter)?;
                continue;
            }
            if letter != '%' {
                let Some(rest) = text.strip_prefix(letter) else {
                    return Ok(None);
                };
                text = rest;
                continue;
            }
            meter.charge(CONVERSION)?;
            let mut conversion = letters.next();
            if let Some('E' | 'O') = conversion {
                conversion = letters.next();
            }
            let Some(conversion) = conversion else {
                return Ok(None);
            };
            let rest = match (conversion, combined(conversion)) {
                (_, Some(longer)) => self.parse(text, longer, meter)?,
                ('n' | 't', None) => Some(self.spaces(text, meter)?),
                (conversion, None) => self.convert(text, conversion),
            };
            let Some(rest) = rest else { return Ok(None) };
            text = rest;
        }
        Ok(Some(text))
    }

    #[expect(clippy::unused_self, reason = "one of the steps of reading")]
    fn spaces<'a>(&self, text: &'a str, meter: &Meter<'_>) -> Flow<&'a str> {
        let rest = text.trim_start_matches(|letter: char| letter.is_ascii_whitespace());
        meter.bytes(text.len() - rest.len())?;
        Ok(rest)
    }

    fn convert<'a>(&mut self, text: &'a str, conversion: char) -> Option<&'a str> {
        let (rest, n) = match conversion {
            '%' => return text.strip_prefix('%'),
            'a' | 'A' => return named(text, &DAYS).map(|(rest, _)| rest),
            'b' | 'B' | 'h' => {
                let (rest, n) = named(text, &MONTHS)?;
                self.month = Some(n);
                return Some(rest);
            }
            'p' | 'P' => {
                let half = text.get(..2)?;
                self.is_afternoon = half.eq_ignore_ascii_case("pm");
                let is_half = self.is_afternoon || half.eq_ignore_ascii_case("am");
                return is_half.then(|| &text[2..]);
            }
            // Names and offsets of zones are read, and count for nothing.
            'Z' => {
                let rest = text.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
                return (rest.len() < text.len()).then_some(rest);
            }
            'z' => return zone(text),
            'C' => number(text, 2, 0..=99)?,
            'd' | 'e' => number(text, 2, 1..=31)?,
            'G' | 'Y' => number(text, 4, 0..=9_999)?,
            'g' | 'y' => number(text, 2, 0..=99)?,
            'H' | 'k' => number(text, 2, 0..=23)?,
            'I' | 'l' => number(text, 2, 1..=12)?,
            'j' => number(text, 3, 1..=366)?,
            'M' => number(text, 2, 0..=59)?,
            'm' => number(text, 2, 1..=12)?,
            'S' => number(text, 2, 0..=60)?,
            's' => {
                let digits = text.strip_prefix('-').unwrap_or(text);
                let (rest, n) = number(digits, 12, 0..=999_999_999_999)?;
                (rest, if digits.len() < text.len() { -n } else { n })
            }
            'U' | 'W' => number(text, 2, 0..=53)?,
            'V' => number(text, 2, 1..=53)?,
            'u' => number(text, 1, 1..=7)?,
            'w' => number(text, 1, 0..=6)?,
            _ => return None,
        };
        match conversion {
            'C' => self.century = Some(n),
            'd' | 'e' => self.day = Some(n),
            'Y' => self.year = Some(n),
            'y' => self.year_of_century = Some(n),
            'H' | 'k' => (self.hour, self.hour_of_12) = (n, None),
            'I' | 'l' => self.hour_of_12 = Some(n),
            'j' => self.day_of_year = Some(n),
            'M' => self.minute = n,
            'm' => self.month = Some(n - 1),
            'S' => self.second = n,
            's' => self.since_epoch = Some(n),
            // The week and its day follow from the date.
            _ => {}
        }
        Some(rest)
    }

    /// What was read, as a broken down time. Without a date it is the first day of 1970. The day of the week and of the
    /// year are those of the date, also if the month has no such day.
    fn broken_down(&self) -> Flow<Value> {
        if let Some(seconds) = self.since_epoch {
            #[expect(clippy::cast_precision_loss, reason = "of twelve digits at most")]
            let (time, fraction) = time_of(seconds as f64)?;
            return Ok(broken_down(time, fraction));
        }
        let year = match (self.year, self.century, self.year_of_century) {
            (Some(year), _, _) => year,
            (None, Some(century), year) => 100 * century + year.unwrap_or_default(),
            (None, None, Some(year)) if year < 69 => 2_000 + year,
            (None, None, Some(year)) => 1_900 + year,
            (None, None, None) => 1_970,
        };
        let hour = match self.hour_of_12 {
            None => self.hour,
            Some(hour) => hour % 12 + if self.is_afternoon { 12 } else { 0 },
        };
        let (month, day) = match (self.month, self.day, self.day_of_year) {
            (None, None, Some(day_of_year)) => {
                let date = assembled(&[year.into(), 0.into(), day_of_year.into()], "strptime/1")?;
                (i64::from(date.month()) - 1, i64::from(date.day()))
            }
            (month, day, _) => (month.unwrap_or_default(), day.unwrap_or(1)),
        };
        let date = assembled(&[year.into(), month.into(), day.into()], "strptime/1")?;
        let weekday = date.weekday();
        let parts = [
            year,
            month,
            day,
            hour,
            self.minute,
            self.second,
            i64::from(Weekday::to_sunday_zero_offset(weekday)),
            i64::from(date.day_of_year()) - 1,
        ];
        Ok(parts.into_iter().collect())
    }
}

/// A number of at most so many digits, and the rest.
fn number(text: &str, n_digits: usize, range: std::ops::RangeInclusive<i64>) -> Option<(&str, i64)> {
    let text = text.trim_start_matches(' ');
    let n_found = text.bytes().take(n_digits).take_while(u8::is_ascii_digit).count();
    let n = text[..n_found].parse().ok()?;
    range.contains(&n).then_some((&text[n_found..], n))
}

/// A name, or the three letters that it begins with, and the rest.
fn named<'a>(text: &'a str, names: &[&str]) -> Option<(&'a str, i64)> {
    let begins = |name: &str| {
        text.get(..name.len())
            .is_some_and(|part| part.eq_ignore_ascii_case(name))
    };
    let (n, name) = names.iter().enumerate().find(|(_, name)| begins(&name[..3]))?;
    let n_read = if begins(name) { name.len() } else { 3 };
    Some((&text[n_read..], i64::try_from(n).ok()?))
}

/// `Z`, `+01`, `+0130` or `+01:30`.
fn zone(text: &str) -> Option<&str> {
    if let Some(rest) = text.strip_prefix('Z') {
        return Some(rest);
    }
    let offset = text.strip_prefix(['+', '-'])?;
    let two = |text: &str| text.len() >= 2 && text.bytes().take(2).all(|byte| byte.is_ascii_digit());
    if !two(offset) {
        return None;
    }
    let minutes = offset[2..].strip_prefix(':').unwrap_or(&offset[2..]);
    Some(if two(minutes) { &minutes[2..] } else { &offset[2..] })
}
