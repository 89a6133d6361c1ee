//! Filters of numbers.

use super::{Call, Result};
use crate::expression::value::{Text, Val, fail};

pub(super) fn abs<'a>(call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let value = match &call.value {
        Val::Int(n) => Val::Int(n.checked_abs().ok_or_else(|| fail("overflow on abs"))?),
        Val::Float(n) => Val::Float(n.abs()),
        Val::Undefined | Val::None | Val::Bool(_) | Val::Text(_) | Val::Seq(_) | Val::Map(_) => {
            return Err(fail("cannot get absolute value"));
        }
    };
    call.done()?;
    Ok(value)
}

pub(super) fn number<'a>(call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let value = call.value.clone();
    call.done()?;
    if value.is_number() {
        Ok(value)
    } else {
        Err(fail(format!("{} is not a number", value.kind())))
    }
}

pub(super) fn to_float<'a>(mut call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let otherwise = call.optional("default");
    let value = call.value.clone();
    let meter = call.meter;
    call.done()?;
    let wrong = match &value {
        Val::Undefined | Val::None => return Ok(otherwise.unwrap_or(Val::Float(0.0))),
        Val::Text(text) => {
            meter.bytes(4 * text.as_str().len())?;
            match text.as_str().parse() {
                Ok(n) => return Ok(Val::Float(n)),
                Err(_) => "the text is no number".to_owned(),
            }
        }
        other => match other.as_float() {
            Some(n) => return Ok(Val::Float(n)),
            None => format!("cannot convert {} to float", other.kind()),
        },
    };
    otherwise.ok_or_else(|| fail(wrong))
}

pub(super) fn to_int<'a>(mut call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let otherwise = call.optional("default");
    let base = match call.optional("base") {
        None | Some(Val::None | Val::Undefined) => 10,
        Some(base) => match base.as_int().and_then(|base| u32::try_from(base).ok()) {
            Some(base @ 2..=36) => base,
            _ => return Err(fail("the base of a number is within 2 to 36")),
        },
    };
    let value = call.value.clone();
    let meter = call.meter;
    call.done()?;
    let wrong = match &value {
        Val::Undefined | Val::None => return Ok(otherwise.unwrap_or(Val::Int(0))),
        Val::Float(n) => return Ok(Val::Int(truncated(*n))),
        Val::Text(text) => {
            meter.bytes(4 * text.as_str().len())?;
            let text = text.as_str();
            match parse_int(text, base) {
                Some(n) => return Ok(Val::Int(n)),
                None => match text.parse::<f64>() {
                    Ok(n) => return Ok(Val::Int(truncated(n))),
                    Err(_) => "the text is no number".to_owned(),
                },
            }
        }
        other => match other.as_int() {
            Some(n) => return Ok(Val::Int(n)),
            None => format!("cannot convert {} to integer", other.kind()),
        },
    };
    otherwise.ok_or_else(|| fail(wrong))
}

fn parse_int(text: &str, base: u32) -> Option<i128> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = match base {
        2 => "0b",
        8 => "0o",
        16 => "0x",
        _ => "",
    };
    let lead = digits.get(..prefix.len());
    let digits = match lead.filter(|lead| lead.eq_ignore_ascii_case(prefix)) {
        Some(_) => &digits[prefix.len()..],
        None => digits,
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let n = i128::from_str_radix(digits, base).ok()?;
    if is_negative { n.checked_neg() } else { Some(n) }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "what is out of range becomes the nearest number in it"
)]
fn truncated(n: f64) -> i128 {
    n as i128
}

pub(super) fn round<'a>(mut call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let precision = match call.optional("precision") {
        None | Some(Val::None | Val::Undefined) => 0,
        Some(precision) => match precision.as_int() {
            Some(precision) => i32::try_from(precision.clamp(-400, 400)).unwrap_or(0),
            None => return Err(fail("the precision is not a whole number")),
        },
    };
    let method = call.optional_text("method")?;
    let value = call.value.clone();
    call.done()?;
    let method = method.as_ref().map_or("common", Text::as_str);
    if !["common", "ceil", "floor"].contains(&method) {
        return Err(fail("method must be common, ceil or floor"));
    }
    match value {
        Val::Int(n) if precision >= 0 => Ok(Val::Int(n)),
        Val::Int(n) => round_int(n, precision.unsigned_abs(), method).map(Val::Int),
        Val::Float(n) => round_float(n, precision, method).map(Val::Float),
        other => Err(fail(format!("cannot round value ({})", other.kind()))),
    }
}

fn round_int(n: i128, places: u32, method: &str) -> Result<i128> {
    let too_large = || fail("rounded value is too large to represent");
    let Some(factor) = 10_i128.checked_pow(places) else {
        return match method {
            "ceil" if n > 0 => Err(too_large()),
            "floor" if n < 0 => Err(too_large()),
            _ => Ok(0),
        };
    };
    let (quotient, rest) = (n.div_euclid(factor), n.rem_euclid(factor));
    let goes_up = match method {
        "ceil" => rest > 0,
        "floor" => false,
        _ => rest > factor - rest || (rest == factor - rest && quotient % 2 != 0),
    };
    let rounded = quotient + i128::from(goes_up);
    rounded.checked_mul(factor).ok_or_else(too_large)
}

fn round_float(n: f64, precision: i32, method: &str) -> Result<f64> {
    if !n.is_finite() {
        return Ok(n);
    }
    if method == "common" && precision >= 0 {
        // Rounds the decimal digits; halves go to the even digit.
        let places = usize::try_from(precision).unwrap_or(0);
        return format!("{n:.places$}")
            .parse()
            .map_err(|_| fail("unable to round value"));
    }
    let factor = 10_f64.powi(precision.abs());
    let scaled = if precision < 0 { n / factor } else { n * factor };
    if !scaled.is_finite() {
        return Ok(n);
    }
    let rounded = match method {
        "ceil" => scaled.ceil(),
        "floor" => scaled.floor(),
        _ => scaled.round_ties_even(),
    };
    let rounded = if precision < 0 {
        rounded * factor
    } else {
        rounded / factor
    };
    if rounded.is_finite() {
        Ok(rounded + 0.0)
    } else {
        Err(fail("rounded value is too large to represent"))
    }
}
