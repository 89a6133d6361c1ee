//! Pushes a message to a receiver that a client registered: a single POST through the gate.
//!
//! Only a 2xx response counts as delivered. A redirect is a failure, because its target has not been checked.
//! The caller provides body and headers and schedules retries.

use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, header::InvalidHeaderValue};
use url::Url;
use wopr_core::TraceContext;
use wopr_engine::Undelivered;

use crate::{
    egress::{EgressError, Gate, Request, Response, Seam},
    http::retry_after,
};

/// The headers in which receivers look for the token of a registration: the name of A2A 0.3, and the
/// unprefixed name of 1.0.
const TOKEN: [HeaderName; 2] = [
    HeaderName::from_static("x-a2a-notification-token"),
    HeaderName::from_static("a2a-notification-token"),
];

#[derive(Debug, Clone)]
pub struct Push {
    pub url: Url,
    /// Lets the receiver recognize the sender.
    pub token: Option<HeaderValue>,
    /// The complete value of the `Authorization` header.
    pub authorization: Option<HeaderValue>,
    pub content_type: HeaderValue,
    pub body: Bytes,
    /// W3C trace context.
    pub trace: Option<TraceContext>,
}

/// Converts text to a header value that `Debug` hides.
///
/// # Errors
/// Returns an error if the text is not a valid header value.
pub fn secret_header(text: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    let mut value = HeaderValue::from_bytes(text.as_bytes())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Sends a push.
///
/// # Errors
/// Returns an error if the delivery is not confirmed; the receiver may have received the push anyway.
///
/// # Cancel safety
/// Dropping the future closes the connection; the receiver may or may not have received the push.
pub async fn push(gate: &Gate, push: Push) -> Result<(), Undelivered> {
    match gate.request(Seam::Push, request(push)).await {
        Ok(Response { status, .. }) if status.is_success() => Ok(()),
        Ok(Response { status, headers, .. }) => Err(Undelivered {
            reason: answered(status),
            retry_after: retry_after(&headers, SystemTime::now()),
        }),
        Err(error) => Err(failed(&error)),
    }
}

fn request(push: Push) -> Request {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, push.content_type);
    if let Some(token) = push.token {
        for name in TOKEN {
            headers.insert(name, token.clone());
        }
    }
    if let Some(authorization) = push.authorization {
        headers.insert(header::AUTHORIZATION, authorization);
    }
    let mut request = Request::new(Method::POST, push.url);
    request.headers = headers;
    request.body = push.body;
    // The status decides, so do not wait for the body of a slow receiver.
    request.head_only = true;
    request.trace = push.trace;
    request
}

fn answered(status: StatusCode) -> String {
    if status.is_redirection() {
        format!("answered {}, and redirects are not followed", status.as_u16())
    } else {
        format!("answered {}", status.as_u16())
    }
}

/// The messages of the gate contain no address and nothing that was sent.
fn failed(error: &EgressError) -> Undelivered {
    Undelivered {
        reason: format!("could not {error}"),
        retry_after: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_sent_in_both_headers_and_hidden_in_debug() {
        let push = Push {
            url: "https://example.com/SECRET".parse().unwrap(),
            token: Some(secret_header("SECRET").unwrap()),
            authorization: Some(secret_header("Bearer SECRET").unwrap()),
            content_type: HeaderValue::from_static("application/json"),
            body: Bytes::from_static(b"SECRET"),
            trace: None,
        };
        assert!(!format!("{:?}", push.token).contains("SECRET"));
        let request = request(push);
        assert_eq!(request.headers["x-a2a-notification-token"], "SECRET");
        assert_eq!(request.headers["a2a-notification-token"], "SECRET");
        assert_eq!(request.headers["authorization"], "Bearer SECRET");
        assert_eq!(request.headers["content-type"], "application/json");
        assert!(!format!("{request:?}").contains("SECRET"));
    }

    #[test]
    fn invalid_header_text_is_rejected() {
        assert!(secret_header("a\r\nhost: b").is_err());
        assert!(secret_header("ä").is_ok());
    }
}
