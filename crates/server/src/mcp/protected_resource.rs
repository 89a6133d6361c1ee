//! OAuth 2.0 metadata of this server as a protected resource (RFC 9728): where clients get tokens.
//!
//! It exists only if the host accepts the tokens of an issuer. API keys and certificates need no metadata.

use http::{HeaderValue, Method, StatusCode, header};
use serde_json::{Value, json};
use wopr_app::Scope;

use super::PATH;
use crate::{
    Host,
    auth::AuthError,
    message::{Body, Response},
};

/// Where the metadata is, below the origin; the path of the resource may follow.
pub(super) const METADATA: &str = "/.well-known/oauth-protected-resource";

/// The metadata; `None` if the host accepts no tokens.
fn document(host: &Host) -> Option<Value> {
    let issuer = &host.config().auth.oidc.as_ref()?.issuer;
    Some(json!({
        "resource": super::resource(host.public_url()),
        "resource_name": "wopr",
        "authorization_servers": [issuer],
        "bearer_methods_supported": ["header"],
        "scopes_supported": Scope::ALL.iter().map(|scope| scope.as_str()).collect::<Vec<_>>(),
    }))
}

pub(super) fn respond(host: &Host, method: &Method) -> Response {
    let Some(document) = document(host) else {
        return plain(
            StatusCode::NOT_FOUND,
            "this host accepts no OAuth tokens: use an API key",
        );
    };
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "read the metadata by GET");
        let allowed = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(header::ALLOW, allowed);
        return response;
    }
    let mut response = plain(StatusCode::OK, document.to_string());
    let caching = HeaderValue::from_static("public, max-age=300");
    response.headers_mut().insert(header::CACHE_CONTROL, caching);
    response
}

/// The value of `WWW-Authenticate` for a request without a caller.
pub(super) fn challenge(host: &Host, error: AuthError) -> HeaderValue {
    let challenge = match host.config().auth.oidc {
        None => error.challenge().to_owned(),
        Some(_) => format!(
            "{}, resource_metadata=\"{}{METADATA}{PATH}\"",
            error.challenge(),
            host.public_url()
        ),
    };
    HeaderValue::from_str(&challenge).unwrap_or_else(|_| HeaderValue::from_static(error.challenge()))
}

/// A response that is not a message of the protocol: JSON metadata, or `{"error": text}`.
fn plain(status: StatusCode, text: impl Into<String>) -> Response {
    let text = text.into();
    let body = match status {
        StatusCode::OK => text,
        _ => json!({ "error": text }).to_string(),
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let media = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, media);
    response
}
