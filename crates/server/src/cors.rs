//! CORS: the web pages that may call this host from a browser, and the response headers they may read.
//!
//! A page is allowed by its origin. It may send any header: there are no cookies here, so browsers add no
//! credential to a request by themselves.

use http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::config::WebOrigin;

/// How long a browser may cache a preflight response.
const MAX_AGE: std::time::Duration = std::time::Duration::from_secs(3600);

/// Headers a page may read in addition to the CORS-safelisted ones.
const EXPOSED: [HeaderName; 11] = [
    header::CONTENT_LOCATION,
    header::ETAG,
    header::LOCATION,
    header::RETRY_AFTER,
    header::WWW_AUTHENTICATE,
    HeaderName::from_static("a2a-extensions"),
    HeaderName::from_static("mcp-session-id"),
    HeaderName::from_static("openwop-idempotent-replay"),
    HeaderName::from_static("openwop-workflow-version"),
    HeaderName::from_static("x-a2a-extensions"),
    HeaderName::from_static("x-request-id"),
];

/// Returns the layer for these origins, or `None` if there are none.
pub(crate) fn layer(origins: &[WebOrigin]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let listed: Option<Vec<HeaderValue>> = origins.iter().map(WebOrigin::value).collect();
    // A single `*` allows every origin.
    let allowed = listed.map_or_else(AllowOrigin::any, AllowOrigin::list);
    Some(
        CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods([
                Method::GET,
                Method::HEAD,
                Method::POST,
                Method::PUT,
                Method::DELETE,
            ])
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(EXPOSED)
            .max_age(MAX_AGE),
    )
}
