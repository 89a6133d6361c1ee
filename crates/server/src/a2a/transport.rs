//! What the face answers at the level of HTTP: who may not call, and what is in the way before a request is read.
//!
//! These have no place in an envelope of a binding, so every binding shares them. Their body is that of the
//! HTTP+JSON binding, `google.rpc.Status` under `error`.

use axum::{body::Body, response::Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::Value;
use wopr_wire::a2a::error::{A2aError, ErrorProfile, status_body};

use crate::{
    Host,
    auth::{AuthError, Scope},
    config,
};

/// How long a client should wait when the store does not answer, in seconds.
const RETRY_AFTER: u64 = 1;

/// The revision whose statuses this host answers with.
fn profile(host: &Host) -> ErrorProfile {
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
pub(super) fn error_response(host: &Host, error: &A2aError) -> Response {
    let profile = profile(host);
    let status = StatusCode::from_u16(error.http_status(profile));
    let body = error.rest_body(profile).to_string().into_bytes();
    json_response(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), body)
}

/// An error that has no row in the table.
pub(super) fn status_response(status: StatusCode, name: &str, message: &str) -> Response {
    let body = status_body(status.as_u16(), name, message, Value::Array(Vec::new()));
    json_response(status, body.to_string().into_bytes())
}

/// 401: the request has no caller.
pub(super) fn unauthenticated(error: AuthError) -> Response {
    let (message, challenge) = match error {
        AuthError::Missing => ("a bearer credential is required", "Bearer realm=\"wopr\""),
        AuthError::Malformed | AuthError::Unknown | AuthError::Revoked => (
            "the credential is not accepted",
            "Bearer realm=\"wopr\", error=\"invalid_token\"",
        ),
    };
    let mut response = status_response(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", message);
    let challenge = HeaderValue::from_static(challenge);
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

/// 405: a binding is called by `POST` alone.
pub(super) fn only_post() -> Response {
    let mut response = status_response(
        StatusCode::METHOD_NOT_ALLOWED,
        "UNIMPLEMENTED",
        "send JSON-RPC requests by POST",
    );
    let allow = HeaderValue::from_static("POST");
    response.headers_mut().insert(header::ALLOW, allow);
    response
}

/// 503: the store does not take this now.
pub(super) fn unavailable() -> Response {
    let mut response = status_response(
        StatusCode::SERVICE_UNAVAILABLE,
        "UNAVAILABLE",
        "the host cannot take this request now",
    );
    let retry_after = HeaderValue::from(RETRY_AFTER);
    response.headers_mut().insert(header::RETRY_AFTER, retry_after);
    response
}
