//! Requests and responses, with `Debug` output that reveals no secrets.
//!
//! `Debug` shows all header names, but values of known harmless headers only, because a deny-list of secret
//! headers would miss the next one. It shows the origin of a URL only, since paths and queries contain
//! tokens, and the length of a body only.

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method, StatusCode, header};
use url::Url;
use wopr_core::{TenantId, TraceContext};

use super::{gate::AnswerShare, stream::Protocol};

/// A request to send through the gate.
#[derive(Clone)]
pub struct Request {
    /// Any method except CONNECT and TRACE.
    pub method: Method,
    /// Absolute. Only the gate checks it.
    pub url: Url,
    /// The gate sets the headers for framing, routing and the connection, and rejects them here.
    pub headers: HeaderMap,
    /// Sent unchanged; empty means no body.
    pub body: Bytes,
    /// From the start of name resolution to the last byte of the response; capped by the limit of the gate.
    pub timeout: Option<Duration>,
    /// Maximum bytes of the response body; capped by the limit of the gate.
    pub max_response: Option<usize>,
    /// The caller parses the body as JSON whatever its content type, so charge the memory of the parsed form.
    /// A response with a JSON content type is always charged for it.
    pub expects_json: bool,
    /// The tenant charged for the memory of the response; `None` charges the host.
    pub tenant: Option<TenantId>,
    /// The caller needs status and headers only: the body is not read, and the connection is closed.
    pub head_only: bool,
    /// W3C trace context. Whoever sets its headers instead is overruled.
    pub trace: Option<TraceContext>,
    /// Deliveries always use HTTP/1.1.
    pub protocol: Protocol,
}

impl Request {
    /// A request without headers and body, with the default limits of the gate.
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
            trace: None,
            protocol: Protocol::Http1,
        }
    }

    /// The first header that callers may not set.
    pub(super) fn reserved_header(&self) -> Option<&HeaderName> {
        self.headers.keys().find(|name| is_reserved_header(name))
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
            .field("trace", &self.trace)
            .finish_non_exhaustive()
    }
}

/// A complete response with any status; 3xx included, because redirects are never followed.
#[derive(Clone)]
pub struct Response {
    pub status: StatusCode,
    /// All headers that the peer sent, secrets included.
    pub headers: HeaderMap,
    /// Not longer than the limit of the request.
    pub body: Bytes,
    /// The memory share of the response, including its parsed form. It is released when the body and all
    /// clones of the share are dropped.
    pub share: Option<AnswerShare>,
}

impl Response {
    /// Returns `true` if the content type is JSON.
    #[must_use]
    pub fn is_json(&self) -> bool {
        is_json(&self.headers)
    }
}

/// Returns `true` if the content type is JSON.
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

/// Whether this header belongs to the transport, so that callers cannot set it.
#[must_use]
pub fn is_reserved_header(name: &HeaderName) -> bool {
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

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn debug_output_hides_secrets() {
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
    fn framing_and_routing_headers_are_reserved() {
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
}
