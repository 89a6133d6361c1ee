//! Decodes request paths for faces that match routes themselves.
//!
//! Paths are split before percent-decoding, so an encoded slash is part of a segment and an encoded colon is a
//! colon.

use std::borrow::Cow;

/// Splits and percent-decodes a path; `None` if it is not valid UTF-8.
pub(crate) fn decode(path: &str) -> Option<Vec<Cow<'_, str>>> {
    path.strip_prefix('/')?.split('/').map(decode_segment).collect()
}

fn decode_segment(segment: &str) -> Option<Cow<'_, str>> {
    if !segment.contains('%') {
        return Some(segment.into());
    }
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let high = char::from(rest.next()?).to_digit(16)?;
        let low = char::from(rest.next()?).to_digit(16)?;
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(bytes).ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_slashes_do_not_split_a_segment() {
        assert_eq!(decode("/a2a/message%3Asend").unwrap(), ["a2a", "message:send"]);
        assert_eq!(decode("/a%2Fb/%c3%a4").unwrap(), ["a/b", "ä"]);
        assert_eq!(decode("/").unwrap(), [""]);
        for path in ["", "a", "*", "/%", "/%1", "/%zz", "/%ff"] {
            assert_eq!(decode(path), None, "{path}");
        }
    }
}
