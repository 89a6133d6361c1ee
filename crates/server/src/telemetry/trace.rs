//! W3C trace context: reads `traceparent` and continues its trace with a new span.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

pub(super) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Length of the header in the version we write.
const LENGTH: usize = 55;
/// Position of the trace id in the header.
const TRACE: Range<usize> = 3..35;

/// This host's span within a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    trace: u128,
    span: u64,
    flags: u8,
}

impl TraceContext {
    /// Continues the client's trace, or starts a sampled one if the header is missing or invalid.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let parent = headers.get(TRACEPARENT).and_then(|value| parse(value.as_bytes()));
        // Zero is not a valid id. Setting the lowest bit avoids a loop.
        let span = rand::random::<u64>() | 1;
        match parent {
            Some((trace, flags)) => Self { trace, span, flags },
            None => Self {
                trace: rand::random::<u128>() | 1,
                span,
                flags: 1,
            },
        }
    }

    /// Returns the header value and the trace id. Both share one allocation.
    #[must_use]
    pub fn headers(&self) -> (HeaderValue, HeaderValue) {
        let Self { trace, span, flags } = self;
        let mut text = [b'-'; LENGTH];
        write_hex(&mut text[..2], 0);
        write_hex(&mut text[TRACE], *trace);
        write_hex(&mut text[36..52], u128::from(*span));
        write_hex(&mut text[53..], u128::from(*flags));
        let text = Bytes::copy_from_slice(&text);
        let header = |bytes| {
            HeaderValue::from_maybe_shared(bytes).expect("hexadecimal digits and hyphens make a header")
        };
        (header(text.clone()), header(text.slice(TRACE)))
    }
}

/// Parses `version-trace-span-flags`. Later versions may append fields.
fn parse(value: &[u8]) -> Option<(u128, u8)> {
    let text = std::str::from_utf8(value).ok()?;
    let mut fields = text.split('-');
    let version = read_hex(fields.next()?, 2)?;
    let trace = read_hex(fields.next()?, 32)?;
    let span = read_hex(fields.next()?, 16)?;
    let flags = read_hex(fields.next()?, 2)?;
    let is_valid = version != 0xff && trace != 0 && span != 0 && (version > 0 || fields.next().is_none());
    is_valid.then_some((trace, u8::try_from(flags & 1).unwrap_or(0)))
}

/// Fills `text` with the lowest hexadecimal digits of a number.
fn write_hex(text: &mut [u8], mut number: u128) {
    for digit in text.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
}

fn read_hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = text.len() == digits
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    is_hex.then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the header and trace id that follow from an incoming header.
    fn of(text: &str) -> (String, String) {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, text.parse().unwrap());
        let (header, id) = TraceContext::of(&headers).headers();
        (
            header.to_str().unwrap().to_owned(),
            id.to_str().unwrap().to_owned(),
        )
    }

    #[test]
    fn valid_traceparent_is_continued_with_a_new_span() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let (text, id) = of(parent);
        assert_eq!(id, "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(text.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && text.ends_with("-01"));
        assert_ne!(text, parent);
    }

    #[test]
    fn invalid_traceparent_starts_a_trace() {
        for text in [
            "",
            "x",
            "00-0-0-0",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        ] {
            let (header, id) = of(text);
            assert_ne!(id, "4bf92f3577b34da6a3ce929d0e0e4736", "{text}");
            assert_eq!(
                parse(header.as_bytes()).map(|(trace, _)| format!("{trace:032x}")),
                Some(id)
            );
        }
    }
}
