//! Builds the responses of handlers: JSON documents, and 304 for a document the client already has.

use http::{HeaderName, HeaderValue, StatusCode, header};

use super::{call::Call, problem::Problem};

use crate::message::{Body, Response};

pub(super) type Answer = Result<Response, Problem>;

/// Only the caller may cache the response.
const OWN: HeaderValue = HeaderValue::from_static("private, no-cache");
/// Everybody may cache the response.
pub(super) const PUBLIC: HeaderValue = HeaderValue::from_static("public, max-age=300");

pub(super) fn json_response(status: StatusCode, body: &impl serde::Serialize) -> Answer {
    match serde_json::to_vec(body) {
        Ok(bytes) => Ok(bytes_response(status, bytes)),
        Err(error) => {
            tracing::error!(%error, "answer does not serialise");
            Err(Problem::internal())
        }
    }
}

/// A JSON response from encoded bytes. Only the caller may cache it, because it may be about the caller's
/// runs.
pub(super) fn bytes_response(status: StatusCode, bytes: impl Into<Body>) -> Response {
    let mut response = Response::new(bytes.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, OWN);
    response
}

/// Answers with a document that has an entity tag, or with 304 if the client already has it. Both have these headers: a cache
/// updates its copy by those of a 304 (RFC 9110, section 15.4.5).
pub(super) fn tagged(
    call: &Call,
    etag: &HeaderValue,
    shared: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
    document: impl FnOnce() -> Answer,
) -> Answer {
    let mut response = if etag.to_str().is_ok_and(|tag| call.has_current(tag)) {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        document()?
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, etag.clone());
    for (name, value) in shared {
        headers.insert(name, value);
    }
    Ok(response)
}

/// The headers of a document that depends on the caller.
pub(super) fn of_caller() -> [(HeaderName, HeaderValue); 2] {
    [
        (header::CACHE_CONTROL, OWN),
        (header::VARY, HeaderValue::from_static("authorization")),
    ]
}

/// The headers of a document that is the same for everybody.
pub(super) fn of_everybody() -> [(HeaderName, HeaderValue); 1] {
    [(header::CACHE_CONTROL, PUBLIC)]
}

pub(super) fn etag(text: &str) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{text}\"")).expect("an entity tag is made of hexadecimal digits")
}
