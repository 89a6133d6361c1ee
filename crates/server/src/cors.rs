//! Which web pages may call this host from a browser, and what of an answer they may read.
//!
//! A page is admitted by its origin. It may send any header: a browser does not decide which ones matter, and none of
//! them is a credential that a browser adds by itself, for there are no cookies here.

use http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::config::WebOrigin;

/// How long a browser may remember what it was told.
const MAX_AGE: std::time::Duration = std::time::Duration::from_secs(3600);

/// What a page may read besides what every page may.
const EXPOSED: [HeaderName; 10] = [
    header::CONTENT_LOCATION,
    header::ETAG,
    header::LOCATION,
    header::RETRY_AFTER,
    header::WWW_AUTHENTICATE,
    HeaderName::from_static("a2a-extensions"),
    HeaderName::from_static("openwop-idempotent-replay"),
    HeaderName::from_static("openwop-workflow-version"),
    HeaderName::from_static("x-a2a-extensions"),
    HeaderName::from_static("x-request-id"),
];

/// The layer for these origins; none where no page may call.
pub(crate) fn layer(origins: &[WebOrigin]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let listed: Option<Vec<HeaderValue>> = origins.iter().map(WebOrigin::value).collect();
    // One entry for any makes the list any.
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
