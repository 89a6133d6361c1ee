//! Builds the responses of handlers: JSON documents, and 304 for a document the client already has.

use http::{HeaderValue, StatusCode, header};

use super::problem::Problem;

use crate::message::{Body, Response};

pub(super) type Answer = Result<Response, Problem>;

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
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("private, no-cache"),
    );
    response
}

/// 304 with an entity tag.
pub(super) fn not_modified(etag: &HeaderValue) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    response.headers_mut().insert(header::ETAG, etag.clone());
    response
}

pub(super) fn etag(text: &str) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{text}\"")).expect("an entity tag is made of hexadecimal digits")
}
