//! The ways in which a text may be encoded as another one: percent-encoded, as in the query of a URL, or as a part of
//! something in base64.

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use memchr::memmem;

use super::steps::{self, Exhausted, Steps};

/// Both alphabets of base64, with or without padding.
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// What base64 shows of a text wherever it lies in what is encoded, in both alphabets. Each character holds six bits, so
/// there are three ways to begin; characters that hold bits of what surrounds the text are left out.
pub(super) fn in_base64(secret: &str) -> Vec<String> {
    let mut found = Vec::new();
    for engine in [STANDARD, URL_SAFE] {
        for before in 0..3 {
            let mut bytes = vec![0; before];
            bytes.extend_from_slice(secret.as_bytes());
            let encoded = engine.encode(&bytes);
            let (from, to) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
            if let Some(inner) = encoded.get(from..to)
                && !found.iter().any(|known| known == inner)
            {
                found.push(inner.to_owned());
            }
        }
    }
    found
}

/// Decodes a text that is base64 from its first character to its last, changes the bytes, and encodes them again. `None`
/// if it is no base64.
pub(super) fn rewritten(text: &str, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Option<String> {
    for engine in [STANDARD, URL_SAFE] {
        if let Ok(bytes) = engine.decode(text) {
            return Some(engine.encode(change(bytes)));
        }
    }
    None
}

/// The bytes with another text in the place of a secret.
pub(super) fn replaced_in_bytes(bytes: &[u8], secret: &str, replacement: &str) -> Vec<u8> {
    let secret = secret.as_bytes();
    let (mut replaced, mut rest) = (Vec::with_capacity(bytes.len()), bytes);
    while let Some(at) = memmem::find(rest, secret) {
        replaced.extend_from_slice(&rest[..at]);
        replaced.extend_from_slice(replacement.as_bytes());
        rest = &rest[at + secret.len()..];
    }
    replaced.extend_from_slice(rest);
    replaced
}

/// The text with the secret replaced where some of its characters are percent-encoded; `None` if it is nowhere.
pub(super) fn percent_replaced(text: &str, secret: &str, replacement: &str) -> Option<String> {
    let mut steps = Steps::for_text(text.len());
    steps::replaced(text, replacement, |from| {
        percent_from(text, from, secret, &mut steps)
    })
}

/// Returns `true` if a text contains the secret with some of its characters percent-encoded.
pub(super) fn percent_occurs_in(text: &str, secret: &str) -> bool {
    !matches!(
        percent_from(text, 0, secret, &mut Steps::for_text(text.len())),
        Ok(None)
    )
}

/// Where the secret next is.
fn percent_from(
    text: &str,
    from: usize,
    secret: &str,
    steps: &mut Steps,
) -> Result<Option<(usize, usize)>, Exhausted> {
    let (bytes, first) = (text.as_bytes(), secret.as_bytes().first());
    if !text.contains('%') {
        return Ok(None);
    }
    for start in from..bytes.len() {
        if (Some(&bytes[start]) == first || bytes[start] == b'%')
            && let Some(end) = percent_end(bytes, start, secret, steps)?
            && text.is_char_boundary(start)
            && text.is_char_boundary(end)
        {
            return Ok(Some((start, end)));
        }
    }
    Ok(None)
}

/// Where the secret ends that begins at this byte.
fn percent_end(
    text: &[u8],
    start: usize,
    secret: &str,
    steps: &mut Steps,
) -> Result<Option<usize>, Exhausted> {
    let mut at = start;
    for byte in secret.bytes() {
        steps.take()?;
        let next = match text.get(at) {
            Some(b'%') => escaped(text, at, byte).or((byte == b'%').then_some(at + 1)),
            Some(b'+') if byte == b' ' => Some(at + 1),
            Some(other) if *other == byte => Some(at + 1),
            Some(_) | None => None,
        };
        match next {
            Some(next) => at = next,
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}

/// Where the escape of a byte ends, which may itself be percent-encoded, any number of times.
fn escaped(text: &[u8], at: usize, byte: u8) -> Option<usize> {
    let mut at = at + 1;
    loop {
        let digits = str::from_utf8(text.get(at..at + 2)?).ok()?;
        let written = u8::from_str_radix(digits, 16).ok()?;
        at += 2;
        if written == byte {
            return Some(at);
        }
        if written != b'%' {
            return None;
        }
    }
}
