//! The HTML document around every page, and its security headers.

use std::sync::LazyLock;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderName, HeaderValue, StatusCode, header};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest as _, Sha256};

use crate::message::{Body, Response};

/// The style of every page, inlined because pages load nothing.
const STYLE: &str = include_str!("style.css");

/// Allows no scripts and no loading, and only the inline style. Forms may be submitted only to this origin.
/// Frames are forbidden to prevent clickjacking.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = STANDARD.encode(Sha256::digest(STYLE.as_bytes()));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{hash}'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    );
    HeaderValue::from_str(&policy).expect("a policy is printable ASCII")
});

pub(crate) fn document(title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="robots" content="noindex, nofollow";
                title { (title) " · wopr" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main { (body) }
            }
        }
    }
}

/// A page as a response. Nothing may cache it, and links must not send its address, which may be a
/// credential, as referrer.
pub(crate) fn respond(status: StatusCode, page: Markup) -> Response {
    let mut response = Response::new(Body::from(page.into_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let fixed = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::VARY, "Accept"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY.clone());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn style_needs_no_escaping_and_loads_nothing() {
        for sign in ["</", "<!", "url(", "@import", "expression("] {
            assert!(!STYLE.contains(sign), "{sign}");
        }
    }

    #[test]
    fn title_is_escaped() {
        let page = document("<script>", &html! {}).into_string();
        assert!(page.contains("<title>&lt;script&gt; · wopr</title>"), "{page}");
    }
}
