//! What goes out and what comes back, and how little of it is ever printed.
//!
//! Debug output shows header names, and values only of fields known to be harmless: a redaction
//! that lists secrets misses the next one. Of a url only the origin is shown, since paths and
//! queries carry tokens; of a body only its length.

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use url::Url;
use wopr_core::TenantId;

use super::gate::AnswerShare;

/// One request to send through the gate.
#[derive(Clone)]
pub struct Request {
    /// Any method but CONNECT and TRACE.
    pub method: Method,
    /// Absolute; judged by the gate, not before.
    pub url: Url,
    /// Fields about framing, routing and the connection are the gate's and refused here.
    pub headers: HeaderMap,
    /// Sent as it is; empty sends none.
    pub body: Bytes,
    /// From resolving to the last byte of the answer; never longer than the gate's own limit.
    pub timeout: Option<Duration>,
    /// Bytes of the answer's body; never more than the gate's own limit.
    pub max_response: Option<usize>,
    /// Claims that the answer is parsed as JSON, whatever it says it is. One that says it is JSON always counts as such.
    pub expects_json: bool,
    /// Whose share of the memory for answers this answer takes; the host's own if nobody is named.
    pub tenant: Option<TenantId>,
    /// Claims that the answer's status and fields are all that is wanted: its body is not read, and the connection cut.
    pub head_only: bool,
    /// W3C trace context. A malformed one is left out: a trace is not worth a failed call.
    pub traceparent: Option<String>,
}

impl Request {
    /// A request without fields or body, under the gate's own limits.
    #[must_use]
    pub fn new(method: Method, url: Url) -> Self {
        Self {
            method,
            url,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            timeout: None,
            max_response: None,
            expects_json: false,
            tenant: None,
            head_only: false,
            traceparent: None,
        }
    }

    /// The first field that is not the caller's to set.
    pub(super) fn reserved_header(&self) -> Option<&HeaderName> {
        self.headers.keys().find(|name| is_reserved(name))
    }

    /// The trace context as a field, if it is one.
    pub(super) fn trace_header(&self) -> Option<HeaderValue> {
        let text = self.traceparent.as_deref().filter(|text| is_traceparent(text))?;
        HeaderValue::from_str(text).ok()
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("method", &self.method)
            .field("origin", &self.url.origin().ascii_serialization())
            .field("headers", &Redacted(&self.headers))
            .field("body_len", &self.body.len())
            .field("timeout", &self.timeout)
            .field("traceparent", &self.traceparent)
            .finish_non_exhaustive()
    }
}

/// A complete answer, whatever its status: 3xx included, since redirects are never followed.
#[derive(Clone)]
pub struct Response {
    /// The status the peer sent.
    pub status: StatusCode,
    /// All fields the peer sent, secrets included.
    pub headers: HeaderMap,
    /// At most the limit of the request.
    pub body: Bytes,
    /// What the answer takes of the memory for answers, once it is parsed too. It is given back when the body and the
    /// last of these are dropped.
    pub share: Option<AnswerShare>,
}

impl Response {
    /// Claims that the peer calls its answer JSON.
    #[must_use]
    pub fn is_json(&self) -> bool {
        is_json(&self.headers)
    }
}

/// Claims that the fields of a message call it JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    let media_type = content_type
        .split(';')
        .next()
        .unwrap_or("")
        .trim()
        .to_ascii_lowercase();
    media_type == "application/json" || media_type.ends_with("+json")
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("headers", &Redacted(&self.headers))
            .field("body_len", &self.body.len())
            .finish()
    }
}

struct Redacted<'a>(&'a HeaderMap);

impl fmt::Debug for Redacted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (name, value) in self.0 {
            if is_harmless(name) {
                map.entry(&name.as_str(), value);
            } else {
                map.entry(&name.as_str(), &format_args!("***"));
            }
        }
        map.finish()
    }
}

fn is_harmless(name: &HeaderName) -> bool {
    [
        header::ACCEPT,
        header::CONTENT_LENGTH,
        header::CONTENT_TYPE,
        header::DATE,
        header::RETRY_AFTER,
        header::SERVER,
        header::USER_AGENT,
    ]
    .contains(name)
}

fn is_reserved(name: &HeaderName) -> bool {
    [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::EXPECT,
        header::HOST,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ]
    .contains(name)
        || name.as_str() == "keep-alive"
        || name.as_str().starts_with("proxy-")
}

/// `00-<32 hex>-<16 hex>-<2 hex>`, lower case, ids not all zero, any version but ff.
fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let hex = |part: &str, len: usize| {
        part.len() == len
            && part
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let set = |part: &str| part.bytes().any(|b| b != b'0');
    match parts[..] {
        [version, trace, span, flags] => {
            hex(version, 2)
                && version != "ff"
                && hex(trace, 32)
                && set(trace)
                && hex(span, 16)
                && set(span)
                && hex(flags, 2)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_keeps_secrets() {
        let mut request = Request::new(
            Method::POST,
            "https://example.com/hooks/SECRET?token=SECRET".parse().unwrap(),
        );
        for name in [
            "authorization",
            "cookie",
            "x-api-key",
            "x-a2a-notification-token",
            "idempotency-key",
            "location",
        ] {
            request.headers.insert(name, HeaderValue::from_static("SECRET"));
        }
        request
            .headers
            .insert("content-type", HeaderValue::from_static("application/json"));
        request.body = Bytes::from_static(b"SECRET");
        let shown = format!("{request:?}");
        assert!(!shown.contains("SECRET"), "{shown}");
        assert!(
            shown.contains("https://example.com") && shown.contains("application/json"),
            "{shown}"
        );
        assert!(shown.contains("x-api-key"), "{shown}");

        let mut headers = HeaderMap::new();
        headers.insert("set-cookie", HeaderValue::from_static("SECRET"));
        let response = Response {
            status: StatusCode::OK,
            headers,
            body: Bytes::from_static(b"SECRET"),
            share: None,
        };
        assert!(!format!("{response:?}").contains("SECRET"));
    }

    #[test]
    fn framing_and_routing_fields_are_the_gates() {
        for (name, reserved) in [
            ("host", true),
            ("Content-Length", true),
            ("transfer-encoding", true),
            ("connection", true),
            ("proxy-authorization", true),
            ("keep-alive", true),
            ("authorization", false),
            ("content-type", false),
            ("user-agent", false),
        ] {
            let mut request = Request::new(Method::GET, "https://example.com".parse().unwrap());
            request
                .headers
                .insert(name.parse::<HeaderName>().unwrap(), HeaderValue::from_static("x"));
            assert_eq!(request.reserved_header().is_some(), reserved, "{name}");
        }
    }

    #[test]
    fn only_a_well_formed_trace_context_is_passed_on() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        for (text, valid) in [
            (good, true),
            ("00-00000000000000000000000000000000-b7ad6b7169203331-01", false),
            ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", false),
            ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false),
            ("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", false),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", false),
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nx: y",
                false,
            ),
            ("", false),
        ] {
            assert_eq!(is_traceparent(text), valid, "{text:?}");
        }
    }
}
