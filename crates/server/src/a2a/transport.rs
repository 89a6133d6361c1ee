//! What the face answers at the level of HTTP: who may not call, and what is in the way before a request is read.
//!
//! These have no place in an envelope of a binding, so every binding shares them. Their body is that of the
//! HTTP+JSON binding, `google.rpc.Status` under `error`.

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use futures_util::{StreamExt as _, stream};
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

/// A stream ends where its task goes on. Its body is broken off with this, so that nobody takes it for the end.
#[derive(Debug, thiserror::Error)]
#[error("tell the rest of a stream")]
struct BrokenOff;

/// A stream as server-sent events, each as `write` appends it. What it begins with has its room before there is a head:
/// who finds none is told so, and comes again.
pub(super) async fn event_stream(
    mut stream: TaskStream,
    mut write: impl FnMut(&mut Vec<u8>, Item) + Send + 'static,
) -> Response {
    let opening = match stream.opening() {
        None => None,
        Some(item) => match held_events(&stream, &mut write, vec![item]).await {
            Ok(chunk) => Some(Ok(chunk)),
            Err(Crowded) => return unavailable(),
        },
    };
    let rest = stream::unfold(Some((stream, write)), |running| async move {
        let (mut stream, mut write) = running?;
        let next = match stream.next().await {
            Some(Step::KeepAlive) => Ok(Bytes::from_static(KEEP_ALIVE)),
            // Where there is no room the client comes back with its last id.
            Some(Step::Items(items)) => held_events(&stream, &mut write, items)
                .await
                .map_err(|Crowded| BrokenOff),
            None if stream.was_broken() => Err(BrokenOff),
            None => return None,
        };
        // After an error there is nothing more.
        let goes_on = next.is_ok();
        if !goes_on {
            // What was said so far is sent: a body that fails at once takes it along.
            tokio::task::yield_now().await;
        }
        Some((next, goes_on.then_some((stream, write))))
    });
    let chunks = stream::iter(opening).chain(rest);
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

/// Events of a stream as bytes that have their room.
async fn held_events(
    stream: &TaskStream,
    write: &mut impl FnMut(&mut Vec<u8>, Item),
    items: Vec<Item>,
) -> Result<Bytes, Crowded> {
    let mut out = Vec::new();
    for item in items {
        write(&mut out, item);
    }
    answers::held(stream.credential(), Bytes::from(out)).await
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
