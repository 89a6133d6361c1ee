//! W3C trace context, which a run passes on with its calls.
//!
//! A malformed context is dropped and never an error, because a trace is not worth a failed request. The host adds no
//! member to `tracestate`.

use std::fmt::{Display, Write as _};

use serde::{Deserialize, Serialize};

/// Length of a `traceparent` in the version we write.
const PARENT: usize = 55;
/// Most members of a `tracestate`.
const MAX_MEMBERS: usize = 32;
/// Longest `tracestate` that is passed on. The specification wants at least as much.
const MAX_STATE: usize = 512;
/// Longest key and longest value of a member.
const MAX_TEXT: usize = 256;

/// A span within a trace, and the state of the tracing systems that took part in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceContext {
    parent: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<String>,
}

impl TraceContext {
    /// Begins a sampled trace. Neither id may be zero.
    #[must_use]
    pub fn begun(trace: u128, span: u64) -> Self {
        Self {
            parent: written(format_args!("{trace:032x}"), format_args!("{span:016x}"), 1),
            state: None,
        }
    }

    /// Reads the values of `traceparent` and `tracestate`, of which there may be several. Without a valid
    /// `traceparent` there is no context; a malformed `tracestate` is left out.
    pub fn parse<'s>(parent: &[u8], states: impl IntoIterator<Item = &'s [u8]>) -> Option<Self> {
        let Parent { trace, span, flags } = Parent::read(parent)?;
        Some(Self {
            parent: written(trace, span, flags),
            state: state(states),
        })
    }

    /// Reads a context as [`TraceContext::parse`] does, and continues its trace with a span of this host, which may not
    /// be zero.
    pub fn continued<'s>(
        parent: &[u8],
        states: impl IntoIterator<Item = &'s [u8]>,
        span: u64,
    ) -> Option<Self> {
        let Parent { trace, flags, .. } = Parent::read(parent)?;
        Some(Self {
            parent: written(trace, format_args!("{span:016x}"), flags),
            state: state(states),
        })
    }

    /// The value of `traceparent`: `00-TRACE-SPAN-FLAGS`.
    #[must_use]
    pub fn parent(&self) -> &str {
        &self.parent
    }

    /// The value of `tracestate`, not empty.
    #[must_use]
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }
}

struct Parent<'p> {
    trace: &'p str,
    span: &'p str,
    flags: u8,
}

impl<'p> Parent<'p> {
    /// Parses `version-trace-span-flags`. Later versions may append fields.
    fn read(value: &'p [u8]) -> Option<Self> {
        let mut fields = std::str::from_utf8(value).ok()?.split('-');
        let version = hex(fields.next()?, 2)?;
        let trace = hex(fields.next()?, 32).filter(|trace| is_set(trace))?;
        let span = hex(fields.next()?, 16).filter(|span| is_set(span))?;
        let flags = u8::from_str_radix(hex(fields.next()?, 2)?, 16).ok()?;
        let is_valid = match version {
            "ff" => false,
            "00" => fields.next().is_none(),
            _later => true,
        };
        // Only the flag `sampled` is defined for all versions.
        is_valid.then_some(Self {
            trace,
            span,
            flags: flags & 1,
        })
    }
}

fn written(trace: impl Display, span: impl Display, flags: u8) -> String {
    let mut text = String::with_capacity(PARENT);
    // Writing to a string never fails.
    let _ = write!(text, "00-{trace}-{span}-{flags:02x}");
    text
}

fn hex(text: &str, n_digits: usize) -> Option<&str> {
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    (text.len() == n_digits && text.bytes().all(is_digit)).then_some(text)
}

fn is_set(id: &str) -> bool {
    id.bytes().any(|digit| digit != b'0')
}

/// Joins the members of all lists, if all of them are well-formed and they are within the limits. Several members with
/// one key are kept, as the specification allows.
fn state<'s>(lists: impl IntoIterator<Item = &'s [u8]>) -> Option<String> {
    let members = lists.into_iter().flat_map(|list| list.split(|b| *b == b','));
    // Empty members are allowed, and mean nothing.
    let members = members
        .map(<[u8]>::trim_ascii)
        .filter(|member| !member.is_empty());
    let mut state = String::new();
    for (n, member) in members.enumerate() {
        if n == MAX_MEMBERS || !is_member(member) {
            return None;
        }
        if n > 0 {
            state.push(',');
        }
        state.push_str(std::str::from_utf8(member).ok()?);
        if state.len() > MAX_STATE {
            return None;
        }
    }
    (!state.is_empty()).then_some(state)
}

/// Whether this is `key=value`.
fn is_member(member: &[u8]) -> bool {
    let Some(at) = member.iter().position(|b| *b == b'=') else {
        return false;
    };
    let (key, value) = (&member[..at], &member[at + 1..]);
    let is_alphanumeric = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_key = key.first().is_some_and(is_alphanumeric)
        && key
            .iter()
            .all(|b| is_alphanumeric(b) || matches!(b, b'_' | b'-' | b'*' | b'/' | b'@'));
    let is_value = !value.is_empty() && value.iter().all(|b| matches!(b, b' '..=b'~') && *b != b'=');
    is_key && is_value && key.len() <= MAX_TEXT && value.len() <= MAX_TEXT
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn parsed(parent: &str, states: &[&str]) -> Option<TraceContext> {
        TraceContext::parse(parent.as_bytes(), states.iter().map(|state| state.as_bytes()))
    }

    #[test]
    fn valid_traceparent_is_continued_with_another_span() {
        let context = TraceContext::continued(PARENT.as_bytes(), [b"a=1".as_slice()], 0x1f).unwrap();
        assert_eq!(context.parent(), format!("00-{TRACE}-000000000000001f-01"));
        assert_eq!(context.state(), Some("a=1"));
        let begun = TraceContext::begun(0xab, 0x1f);
        assert_eq!(parsed(begun.parent(), &[]), Some(begun));
    }

    #[test]
    fn later_versions_are_read_as_far_as_they_are_known() {
        let later = format!("01-{TRACE}-00f067aa0ba902b7-03-more");
        assert_eq!(parsed(&later, &[]).unwrap().parent(), PARENT);
    }

    #[test]
    fn malformed_traceparent_gives_no_context() {
        for text in [
            "",
            "x",
            "00-0-0-0",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\nx: y",
        ] {
            assert_eq!(parsed(text, &["a=1"]), None, "{text:?}");
        }
    }

    #[test]
    fn lists_of_tracestate_are_joined() {
        for (states, wanted) in [
            (&["a=1"][..], "a=1"),
            (&["a=1 , b=2,,", "\tc=3"], "a=1,b=2,c=3"),
            (&["t0@v-1_*/=x y~!", "a=1,a=2"], "t0@v-1_*/=x y~!,a=1,a=2"),
        ] {
            assert_eq!(
                parsed(PARENT, states).unwrap().state(),
                Some(wanted),
                "{states:?}"
            );
        }
    }

    #[test]
    fn malformed_or_too_long_tracestate_is_left_out() {
        let members = |n: usize| (0..n).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
        let long = |n: usize| format!("a={},b={}", "x".repeat(256), "y".repeat(n));
        for (state, is_kept) in [
            (members(32), true),
            (members(33), false),
            (long(251), true),
            (long(252), false),
            (format!("{}=1", "k".repeat(256)), true),
            (format!("{}=1", "k".repeat(257)), false),
            (format!("k={}", "v".repeat(257)), false),
            (String::new(), false),
            (" ,".to_owned(), false),
            ("a".to_owned(), false),
            ("a=".to_owned(), false),
            ("=1".to_owned(), false),
            ("A=1".to_owned(), false),
            ("a =1".to_owned(), false),
            ("a=1=2".to_owned(), false),
            ("a=\u{e4}".to_owned(), false),
            ("a=1\r\nx: y".to_owned(), false),
        ] {
            let context = parsed(PARENT, &[&state]).unwrap();
            assert_eq!(context.parent(), PARENT);
            assert_eq!(context.state().is_some(), is_kept, "{state:?}");
        }
    }
}
