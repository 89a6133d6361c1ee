//! Pushing something to a receiver that a client named: one POST, sent once, through the gate.
//!
//! Only an answer of 2xx is a delivery. A redirect is a failure like any other, since nobody checked where it leads.
//! What goes into the body and the headers, and when to try again, is not decided here.

use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, header::InvalidHeaderValue};
use url::Url;
use wopr_engine::Undelivered;

use crate::{
    egress::{EgressError, Gate, Request, Response, Seam},
    http::retry_after,
};

/// The names under which receivers look for the token of a registration: that of A2A 0.3, and the one without prefix
/// that came with 1.0.
const TOKEN: [HeaderName; 2] = [
    HeaderName::from_static("x-a2a-notification-token"),
    HeaderName::from_static("a2a-notification-token"),
];

/// Something to push.
#[derive(Debug, Clone)]
pub struct Push {
    /// Where to.
    pub url: Url,
    /// What the receiver knows the sender by.
    pub token: Option<HeaderValue>,
    /// The whole field `Authorization`.
    pub authorization: Option<HeaderValue>,
    /// The body's media type.
    pub content_type: HeaderValue,
    /// The body.
    pub body: Bytes,
    /// W3C trace context.
    pub traceparent: Option<String>,
}

/// Reads a text as the value of a field that is never shown.
///
/// # Errors
/// It cannot stand in a field.
pub fn secret_header(text: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    let mut value = HeaderValue::from_bytes(text.as_bytes())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Pushes.
///
/// # Errors
/// The receiver did not take it, as far as can be told; it may have seen it.
///
/// # Cancel safety
/// Dropping the future cuts the connection; whether the receiver saw the push is unknown.
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
    // Its status says whether it was taken, whatever a receiver says besides, and however slowly.
    request.head_only = true;
    request.traceparent = push.traceparent;
    request
}

fn answered(status: StatusCode) -> String {
    if status.is_redirection() {
        format!("answered {}, and redirects are not followed", status.as_u16())
    } else {
        format!("answered {}", status.as_u16())
    }
}

/// The gate's own words hold no address and no byte of what was sent.
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
    fn the_token_goes_by_both_names_and_is_never_shown() {
        let push = Push {
            url: "https://example.com/SECRET".parse().unwrap(),
            token: Some(secret_header("SECRET").unwrap()),
            authorization: Some(secret_header("Bearer SECRET").unwrap()),
            content_type: HeaderValue::from_static("application/json"),
            body: Bytes::from_static(b"SECRET"),
            traceparent: None,
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
    fn what_cannot_stand_in_a_field_is_refused() {
        assert!(secret_header("a\r\nhost: b").is_err());
        assert!(secret_header("ä").is_ok());
    }
}
