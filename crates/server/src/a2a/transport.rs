//! What the face answers at the level of HTTP: who may not call, and what is in the way before a request is read.
//!
//! These have no place in an envelope of a binding, so every binding shares them. Their body is that of the
//! HTTP+JSON binding, `google.rpc.Status` under `error`.

use std::convert::Infallible;

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use futures_util::stream;
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde_json::Value;
use wopr_wire::{
    a2a::{
        error::{A2aError, ErrorProfile, status_body},
        method::Version,
        paths::Verb,
    },
    sse,
};

use super::{
    error::Error,
    stream::{Item, Step, TaskStream},
};
use crate::{
    Host,
    answers::{self, Crowded},
    auth::{AuthError, Scope},
    body::BodyError,
    config,
};

/// How long a client should wait when the store does not answer, in seconds.
pub(super) const RETRY_AFTER: u64 = 1;
/// A comment that keeps a stream open. No empty line follows it, which some readers, httpx-sse among them, take for
/// an event without data once they have seen an id.
const KEEP_ALIVE: &[u8] = b":keepalive\n";

/// The revision whose statuses this host answers with.
pub(super) fn profile(host: &Host) -> ErrorProfile {
    match host.config().a2a.error_profile {
        config::ErrorProfile::V1_0_0 => ErrorProfile::V1_0_0,
        config::ErrorProfile::V1_0_1 => ErrorProfile::V1_0_1,
    }
}

/// JSON under a status.
pub(super) fn json_response(status: StatusCode, body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// An error of the table as the HTTP+JSON binding shows it.
pub(super) fn error_response(host: &Host, error: &A2aError, version: Version) -> Response {
    let profile = profile(host);
    let status = StatusCode::from_u16(error.http_status(profile));
    let body = error.rest_body(version, profile).to_string().into_bytes();
    json_response(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), body)
}

/// An error that has no row in the table.
pub(super) fn status_response(status: StatusCode, name: &str, message: &str) -> Response {
    let body = status_body(status.as_u16(), name, message, Value::Array(Vec::new()));
    json_response(status, body.to_string().into_bytes())
}

/// 401: the request has no caller.
pub(super) fn unauthenticated(error: AuthError) -> Response {
    let message = match error {
        AuthError::Missing => "a bearer credential is required",
        AuthError::Malformed | AuthError::Unknown | AuthError::Revoked => "the credential is not accepted",
        AuthError::Expired => "the credential has expired",
    };
    let mut response = status_response(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", message);
    let challenge = HeaderValue::from_static(error.challenge());
    response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    response
}

/// 403: the caller lacks a scope.
pub(super) fn forbidden(scope: Scope) -> Response {
    let message = format!("the credential lacks the scope {}", scope.as_str());
    let mut response = status_response(StatusCode::FORBIDDEN, "PERMISSION_DENIED", &message);
    let challenge = format!(
        "Bearer realm=\"wopr\", error=\"insufficient_scope\", scope=\"{}\"",
        scope.as_str()
    );
    if let Ok(challenge) = HeaderValue::from_str(&challenge) {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    }
    response
}

/// Whatever kept an operation from being done, as the HTTP+JSON binding shows it.
pub(super) fn refuse(host: &Host, error: &Error, version: Version) -> Response {
    match error {
        Error::A2a(error) => error_response(host, error, version),
        Error::Forbidden(scope) => forbidden(*scope),
        Error::Unavailable => unavailable(),
    }
}

/// There is no body to read a request from.
pub(super) fn no_body(error: BodyError) -> Response {
    let mut response = match error {
        BodyError::TooLarge => status_response(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RESOURCE_EXHAUSTED",
            "the body is too large",
        ),
        BodyError::TooManyValues => status_response(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RESOURCE_EXHAUSTED",
            "the body holds too many values",
        ),
        BodyError::CutOff => status_response(
            StatusCode::BAD_REQUEST,
            "INVALID_ARGUMENT",
            "the body was cut off",
        ),
        BodyError::Slow => status_response(
            StatusCode::REQUEST_TIMEOUT,
            "DEADLINE_EXCEEDED",
            "the body took too long",
        ),
        BodyError::Busy => unavailable(),
    };
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

/// 415: the body is compressed, which nothing here is.
pub(super) fn encoded() -> Response {
    let mut response = status_response(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "INVALID_ARGUMENT",
        "the body is compressed; send it as it is",
    );
    let identity = HeaderValue::from_static("identity");
    response.headers_mut().insert(header::ACCEPT_ENCODING, identity);
    response
}

/// 404: nothing is at the path.
pub(super) fn nothing(message: &str) -> Response {
    status_response(StatusCode::NOT_FOUND, "NOT_FOUND", message)
}

/// 405: the path takes other verbs.
pub(super) fn not_allowed(verbs: &[Verb], message: &str) -> Response {
    let mut response = status_response(StatusCode::METHOD_NOT_ALLOWED, "UNIMPLEMENTED", message);
    let names: Vec<_> = verbs.iter().map(|verb| verb.as_str()).collect();
    if let Ok(allow) = HeaderValue::from_str(&names.join(", ")) {
        response.headers_mut().insert(header::ALLOW, allow);
    }
    response
}

/// A stream as server-sent events, each as `write` appends it.
pub(super) fn event_stream(
    stream: TaskStream,
    write: impl FnMut(&mut Vec<u8>, Item) + Send + 'static,
) -> Response {
    let chunks = stream::unfold((stream, write), |(mut stream, mut write)| async move {
        let chunk = match stream.next().await? {
            Step::KeepAlive => Bytes::from_static(KEEP_ALIVE),
            Step::Items(items) => {
                let mut out = Vec::new();
                for item in items {
                    write(&mut out, item);
                }
                match answers::held(stream.asker(), Bytes::from(out)).await {
                    Ok(chunk) => chunk,
                    // There is no room for it: the client comes back with its last id.
                    Err(Crowded) => return None,
                }
            }
        };
        Some((Ok::<_, Infallible>(chunk), (stream, write)))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    for (name, value) in [
        (header::CONTENT_TYPE, sse::CONTENT_TYPE),
        (header::CACHE_CONTROL, "no-cache"),
        // Proxies that buffer would hold updates back.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

/// 503: the store does not take this now, or there is no room for an answer.
pub(crate) fn unavailable() -> Response {
    let mut response = status_response(
        StatusCode::SERVICE_UNAVAILABLE,
        "UNAVAILABLE",
        "the host cannot take this request now",
    );
    let retry_after = HeaderValue::from(RETRY_AFTER);
    response.headers_mut().insert(header::RETRY_AFTER, retry_after);
    response
}
