//! Filters of texts.

use super::{Call, MAX_ITEMS, Result, many};
use crate::expression::{
    ExpressionError, MAX_OUTPUT,
    eval::searching,
    out::Out,
    value::{Val, fail},
};

/// Transforms a text; the result may be at most three times as long.
pub(super) fn changed<'a>(call: Call<'a, '_, '_>, change: impl FnOnce(&str) -> String) -> Result<Val<'a>> {
    let text = call.text()?;
    // Case is looked up for each character.
    call.meter.charge(text.as_str().len() as u64)?;
    call.done()?;
    let made = change(text.as_str());
    if made.len() > MAX_OUTPUT {
        return Err(ExpressionError::TooLong(MAX_OUTPUT));
    }
    Ok(Val::text(made))
}

pub(super) fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(char::to_uppercase);
    first
        .into_iter()
        .flatten()
        .chain(chars.as_str().to_lowercase().chars())
        .collect()
}

pub(super) fn titled(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut begins = true;
    for c in text.chars() {
        if matches!(c, '-' | '(' | '{' | '[' | '<') || c.is_whitespace() {
            out.push(c);
            begins = true;
        } else if begins {
            out.extend(c.to_uppercase());
            begins = false;
        } else {
            out.extend(c.to_lowercase());
        }
    }
    out
}

pub(super) fn indent<'a>(mut call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let width = match call.optional("width") {
        None | Some(Val::None | Val::Undefined) => 4,
        Some(width) => {
            let width = width.as_int().and_then(|width| usize::try_from(width).ok());
            width.ok_or_else(|| fail("the width is not a whole number of at least 0"))?
        }
    };
    let at_first = call.optional_flag("first")?;
    let at_blank = call.optional_flag("blank")?;
    let text = call.text()?;
    let meter = call.meter;
    call.done()?;
    if width > MAX_OUTPUT {
        return Err(ExpressionError::TooLong(MAX_OUTPUT));
    }
    meter.bytes(2 * width)?;
    let margin = " ".repeat(width);
    let mut out = Out::new(meter);
    for (at, line) in text.as_str().lines().enumerate() {
        if at > 0 {
            out.push("\n")?;
        }
        if (at > 0 || at_first) && (!line.is_empty() || at_blank) {
            out.push(&margin)?;
        }
        out.push(line)?;
    }
    out.finish().map(Val::text)
}

pub(super) fn join<'a>(mut call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let between = call.optional_text("d")?;
    let attribute = call.optional_text("attribute")?;
    let items = call.bounded()?;
    let meter = call.meter;
    call.done()?;
    let mut out = Out::new(meter);
    for (at, item) in items.iter().enumerate() {
        if let (Some(between), true) = (&between, at > 0) {
            out.push(between.as_str())?;
        }
        match &attribute {
            Some(path) => out.print(&item.path(path.as_str(), meter)?)?,
            None => out.print(&item)?,
        }
    }
    out.finish().map(Val::text)
}

pub(super) fn replace<'a>(mut call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let from = call.needed_text("from")?;
    let to = call.needed_text("to")?;
    let text = call.text()?;
    let meter = call.meter;
    call.done()?;
    let (text, from, to) = (text.as_str(), from.as_str(), to.as_str());
    if from.len() > text.len() {
        meter.bytes(2 * text.len())?;
        return Ok(Val::text(text.to_owned()));
    }
    // The text is searched twice.
    meter.charge(2 * searching(text, from))?;
    let grown = text.matches(from).count().saturating_mul(to.len());
    if text.len().saturating_add(grown) > MAX_OUTPUT {
        return Err(ExpressionError::TooLong(MAX_OUTPUT));
    }
    meter.bytes(2 * (text.len() + grown))?;
    Ok(Val::text(text.replace(from, to)))
}

pub(super) fn split<'a>(mut call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let at = call.optional_text("at")?;
    let most = match call.optional("maxsplits") {
        None | Some(Val::None | Val::Undefined) => usize::MAX,
        Some(most) => {
            let most = most
                .as_int()
                .ok_or_else(|| fail("maxsplits is not a whole number"))?;
            usize::try_from(most).map_or(usize::MAX, |most| most.saturating_add(1))
        }
    };
    let text = call.text()?;
    let meter = call.meter;
    call.done()?;
    let text = text.as_str();
    meter.bytes(2 * text.len())?;
    let mut parts = Vec::new();
    let mut push = |part: &str| -> Result<()> {
        if parts.len() == MAX_ITEMS {
            return Err(many());
        }
        meter.values(4)?;
        meter.bytes(part.len())?;
        parts.push(Val::text(part.to_owned()));
        Ok(())
    };
    match &at {
        Some(at) if at.as_str().len() > text.len() => push(text)?,
        Some(at) => {
            meter.charge(searching(text, at.as_str()))?;
            for part in text.splitn(most, at.as_str()) {
                push(part)?;
            }
        }
        None => {
            let mut rest = text.trim_start();
            let mut n = 1;
            while !rest.is_empty() {
                let end = if n < most {
                    rest.find(char::is_whitespace)
                } else {
                    None
                };
                let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
                push(part)?;
                rest = after.trim_start();
                n += 1;
            }
        }
    }
    Ok(Val::list(parts))
}

pub(super) fn trim<'a>(mut call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let chars = call.optional_text("chars")?;
    let text = call.text()?;
    let meter = call.meter;
    call.done()?;
    let text = text.as_str();
    let trimmed = match &chars {
        None => text.trim(),
        Some(chars) => {
            let chars = chars.as_str();
            // Each character of the text may be compared with each of `chars`.
            let most = (text.len() as u64).saturating_mul(1 + chars.len() as u64 / 4);
            meter.charge(most)?;
            meter.bytes(4 * chars.len())?;
            let chars: Vec<_> = chars.chars().collect();
            text.trim_matches(&chars[..])
        }
    };
    meter.bytes(2 * text.len())?;
    Ok(Val::text(trimmed.to_owned()))
}
