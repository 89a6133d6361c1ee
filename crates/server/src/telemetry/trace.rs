//! W3C trace context in the headers of requests and in messages. What is continued gets a new span, that of this host.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use wopr_core::TraceContext;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Position of the trace id in `traceparent`.
const ID: Range<usize> = 3..35;

/// The trace context of a request, with this host's span, as headers.
#[derive(Debug, Clone)]
pub(super) struct TraceHeaders {
    parent: HeaderValue,
    state: Option<HeaderValue>,
    id: HeaderValue,
}

impl TraceHeaders {
    /// Continues the client's trace, or starts a sampled one if the client sent no valid one.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let (parent, states) = values(headers);
        let continued = parent.and_then(|parent| TraceContext::continued(parent, states, new_span()));
        let context =
            continued.unwrap_or_else(|| TraceContext::begun(rand::random::<u128>() | 1, new_span()));
        let header = |text: Bytes| {
            HeaderValue::from_maybe_shared(text).expect("a trace context is of printable ASCII")
        };
        let parent = Bytes::copy_from_slice(context.parent().as_bytes());
        let state = context
            .state()
            .map(|state| Bytes::copy_from_slice(state.as_bytes()));
        Self {
            // They share their text.
            id: header(parent.slice(ID)),
            parent: header(parent),
            state: state.map(header),
        }
    }

    /// The trace id as text.
    pub(super) const fn id(&self) -> &HeaderValue {
        &self.id
    }

    /// Replaces the trace context of a request or a response.
    pub(super) fn replace(self, headers: &mut HeaderMap) {
        headers.insert(TRACEPARENT, self.parent);
        match self.state {
            Some(state) => headers.insert(TRACESTATE, state),
            None => headers.remove(TRACESTATE),
        };
    }
}

/// The trace context that the run of a request passes on. The middleware has replaced the client's span by that of this
/// host.
pub(crate) fn trace_of(headers: &HeaderMap) -> Option<TraceContext> {
    let (parent, states) = values(headers);
    TraceContext::parse(parent?, states)
}

/// The trace context that a message itself carries. It takes precedence over that of the request, with which a proxy may
/// have carried the message. A malformed one counts as absent.
pub(crate) fn trace_in(parent: Option<&Value>, state: Option<&Value>) -> Option<TraceContext> {
    let state = state.and_then(Value::as_str).map(str::as_bytes);
    TraceContext::continued(parent?.as_str()?.as_bytes(), state, new_span())
}

/// The values of both headers. Nobody knows which of several parents is meant, so they count as none.
fn values(headers: &HeaderMap) -> (Option<&[u8]>, impl Iterator<Item = &[u8]>) {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let parent = match (parents.next(), parents.next()) {
        (Some(parent), None) => Some(parent.as_bytes()),
        (Some(_), Some(_)) | (None, _) => None,
    };
    let states = headers.get_all(TRACESTATE).iter().map(HeaderValue::as_bytes);
    (parent, states)
}

/// Zero is not a valid id. Setting the lowest bit avoids a loop.
fn new_span() -> u64 {
    rand::random::<u64>() | 1
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    /// The headers that follow from those of a client, and the trace id.
    fn of(given: &[(&'static str, &str)]) -> (TraceContext, String) {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(*name, value.parse().unwrap());
        }
        let trace = TraceHeaders::of(&headers);
        let id = trace.id().to_str().unwrap().to_owned();
        trace.replace(&mut headers);
        assert_eq!(headers.get_all(TRACEPARENT).iter().count(), 1);
        (trace_of(&headers).unwrap(), id)
    }

    #[test]
    fn valid_traceparent_is_continued_with_a_new_span() {
        let states = [("tracestate", "a=1, b=2"), ("tracestate", "c=3")];
        let (context, id) = of(&[&[("traceparent", PARENT)], &states[..]].concat());
        assert_eq!(id, ID);
        assert!(context.parent().starts_with(&format!("00-{ID}-")) && context.parent().ends_with("-01"));
        assert_ne!(context.parent(), PARENT);
        assert_eq!(context.state(), Some("a=1,b=2,c=3"));
    }

    #[test]
    fn invalid_traceparent_starts_a_trace_without_the_state_of_another() {
        for parents in [
            &[][..],
            &["x"],
            &[PARENT, PARENT],
            &["00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"],
        ] {
            let mut given: Vec<_> = parents.iter().map(|parent| ("traceparent", *parent)).collect();
            given.push(("tracestate", "a=1"));
            let (context, id) = of(&given);
            assert_ne!(id, ID, "{parents:?}");
            assert_eq!(context.state(), None, "{parents:?}");
        }
    }

    #[test]
    fn messages_carry_a_trace_only_with_a_valid_parent() {
        let context = trace_in(Some(&json!(PARENT)), Some(&json!("a=1"))).unwrap();
        assert!(context.parent().starts_with(&format!("00-{ID}-")) && context.parent() != PARENT);
        assert_eq!(context.state(), Some("a=1"));
        let context = trace_in(Some(&json!(PARENT)), Some(&json!(["a=1"]))).unwrap();
        assert_eq!(context.state(), None);
        for parent in [None, Some(json!("x")), Some(json!(1))] {
            assert_eq!(trace_in(parent.as_ref(), Some(&json!("a=1"))), None);
        }
    }
}
