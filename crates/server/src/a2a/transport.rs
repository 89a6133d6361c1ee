//! HTTP responses that all bindings share: authentication failures, and errors before the request is decoded.
//!
//! These errors have no place in the envelope of a binding. Their body is that of the HTTP+JSON binding:
//! `google.rpc.Status` under `error`.

use bytes::Bytes;
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
    answers::Crowded,
    auth::{AuthError, Scope},
    body::{self, BodyError},
    config,
    message::{Body, Response},
};

/// The time in seconds that a client should wait before it retries.
pub(super) const RETRY_AFTER: u64 = 1;
/// A comment that keeps a stream open. No empty line follows it: once some readers, such as httpx-sse, have
/// seen an id, they take an empty line for an event without data.
const KEEP_ALIVE: &[u8] = b":keepalive\n";

/// The specification revision that selects error statuses.
pub(super) fn profile(host: &Host) -> ErrorProfile {
    match host.config().a2a.error_profile {
        config::ErrorProfile::V1_0_0 => ErrorProfile::V1_0_0,
        config::ErrorProfile::V1_0_1 => ErrorProfile::V1_0_1,
    }
}

pub(super) fn json_response(status: StatusCode, body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// An A2A error in the HTTP+JSON binding.
pub(super) fn error_response(host: &Host, error: &A2aError, version: Version) -> Response {
    let profile = profile(host);
    let status = StatusCode::from_u16(error.http_status(profile));
    let body = error.rest_body(version, profile).to_string().into_bytes();
    json_response(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), body)
}

/// An error that is not in the A2A error table.
pub(super) fn status_response(status: StatusCode, name: &str, message: &str) -> Response {
    let body = status_body(status.as_u16(), name, message, Value::Array(Vec::new()));
    json_response(status, body.to_string().into_bytes())
}

/// 401: authentication failed.
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

/// Any error of an operation in the HTTP+JSON binding.
pub(super) fn refuse(host: &Host, error: &Error, version: Version) -> Response {
    match error {
        Error::A2a(error) => error_response(host, error, version),
        Error::Forbidden(scope) => forbidden(*scope),
        Error::Unavailable => unavailable(),
    }
}

/// The request body could not be read.
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

/// 415: the body is compressed, which we do not support.
pub(super) fn encoded() -> Response {
    let mut response = status_response(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "INVALID_ARGUMENT",
        "the body is compressed; send it as it is",
    );
    let (name, codings) = body::ACCEPTED_CODINGS;
    response.headers_mut().insert(name, codings);
    response
}

/// 404: the path is unknown.
pub(super) fn nothing(message: &str) -> Response {
    status_response(StatusCode::NOT_FOUND, "NOT_FOUND", message)
}

/// 405: the path supports other verbs.
pub(super) fn not_allowed(verbs: &[Verb], message: &str) -> Response {
    let mut response = status_response(StatusCode::METHOD_NOT_ALLOWED, "UNIMPLEMENTED", message);
    let names: Vec<_> = verbs.iter().map(|verb| verb.as_str()).collect();
    if let Ok(allow) = HeaderValue::from_str(&names.join(", ")) {
        response.headers_mut().insert(header::ALLOW, allow);
    }
    response
}

/// 405: the document is only read.
pub(super) fn only_read(message: &str) -> Response {
    let mut response = not_allowed(&[Verb::Get], message);
    let allow = HeaderValue::from_static("GET, HEAD");
    response.headers_mut().insert(header::ALLOW, allow);
    response
}

/// Ends the body of a stream with an error while its task continues, so that the client does not take it for
/// the end.
#[derive(Debug, thiserror::Error)]
#[error("tell the rest of a stream")]
struct BrokenOff;

/// A stream of server-sent events, encoded by `write`. Memory for the first item is reserved before the
/// response begins, so a failure is reported as 503 and the client can retry.
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
            // On memory shortage, the client resumes with its last id.
            Some(Step::Items(items)) => held_events(&stream, &mut write, items)
                .await
                .map_err(|Crowded| BrokenOff),
            None if stream.was_broken() => Err(BrokenOff),
            None => return None,
        };
        // Nothing follows an error.
        let goes_on = next.is_ok();
        if !goes_on {
            // Let the body flush: a body that fails at once discards what it has not sent.
            tokio::task::yield_now().await;
        }
        Some((next, goes_on.then_some((stream, write))))
    });
    events(Body::from_stream(stream::iter(opening).chain(rest)))
}

/// A response of server-sent events.
pub(super) fn events(body: Body) -> Response {
    let mut response = Response::new(body);
    for (name, value) in [
        (header::CONTENT_TYPE, sse::CONTENT_TYPE),
        (header::CACHE_CONTROL, "no-cache"),
        // Keep proxies from buffering updates.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Encodes events and reserves memory for them.
async fn held_events(
    stream: &TaskStream,
    write: &mut impl FnMut(&mut Vec<u8>, Item),
    items: Vec<Item>,
) -> Result<Bytes, Crowded> {
    let mut out = Vec::new();
    for item in items {
        write(&mut out, item);
    }
    stream.hold(Bytes::from(out)).await
}

/// 503: the store is unavailable, or there is no memory for the answer.
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
