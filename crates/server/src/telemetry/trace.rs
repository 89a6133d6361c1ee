//! W3C trace context: reading `traceparent`, and being the next span of its trace.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::auth::hex;

/// The header of a trace context.
pub(super) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// This host's span within a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    trace: u128,
    span: u64,
    flags: u8,
}

impl TraceContext {
    /// Continues the caller's trace, or begins a sampled one where the header is missing or does not hold.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let parent = headers.get(TRACEPARENT).and_then(|value| parse(value.as_bytes()));
        // Zero is not a valid id; the chance of drawing one is not worth a loop.
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

    /// The trace's id, 32 hexadecimal digits.
    #[must_use]
    pub fn trace_id(&self) -> String {
        hex(&self.trace.to_be_bytes())
    }

    /// The header's value.
    #[must_use]
    pub fn traceparent(&self) -> String {
        let Self { trace, span, flags } = self;
        let (trace, span) = (hex(&trace.to_be_bytes()), hex(&span.to_be_bytes()));
        ["00", &trace, &span, &hex(&[*flags])].join("-")
    }

    /// The same as a header has it.
    #[must_use]
    pub fn header(&self) -> HeaderValue {
        HeaderValue::try_from(self.traceparent()).expect("hexadecimal digits and hyphens make a header")
    }
}

/// Reads `version-trace-span-flags`; later versions may append further fields.
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

    fn of(text: &str) -> TraceContext {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, text.parse().unwrap());
        TraceContext::of(&headers)
    }

    #[test]
    fn a_valid_trace_is_continued_in_a_new_span() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = of(parent);
        assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        let text = context.traceparent();
        assert!(text.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && text.ends_with("-01"));
        assert_ne!(text, parent);
    }

    #[test]
    fn an_invalid_one_begins_a_trace() {
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
            assert_ne!(of(text).trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736", "{text}");
            assert_eq!(of(text).traceparent().len(), 55, "{text}");
        }
    }
}
