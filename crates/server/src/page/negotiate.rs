//! Content negotiation, and the origin check of submitted forms.

use http::{HeaderMap, Uri, header};

/// Returns `true` if `Accept` prefers HTML to JSON, as browsers do. Without a preference, clients get JSON.
pub(crate) fn prefers_html(headers: &HeaderMap) -> bool {
    let quality = |wanted: [&str; 3]| {
        let mut best = None;
        for value in headers.get_all(header::ACCEPT) {
            for range in value.to_str().unwrap_or("").split(',') {
                let (name, q) = media_range(range);
                // The more specific range wins, regardless of order.
                let rank = wanted.iter().position(|wanted| name.eq_ignore_ascii_case(wanted));
                if let Some(rank) = rank
                    && best.is_none_or(|(known, _)| rank < known)
                {
                    best = Some((rank, q));
                }
            }
        }
        best.map_or(0, |(_, q)| q)
    };
    let html = quality(["text/html", "text/*", "*/*"]);
    html > 0 && html > quality(["application/json", "application/*", "*/*"])
}

/// A media range and its quality in thousandths.
pub(crate) fn media_range(text: &str) -> (&str, u32) {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().unwrap_or("");
    let q = parts.find_map(|part| {
        let (name, value) = part.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then_some(value.trim())
    });
    let thousandths = |q: &str| {
        let (whole, fraction) = q.split_once('.').unwrap_or((q, ""));
        let digits = format!("{fraction:0<3}");
        let fraction: u32 = digits.get(..3)?.parse().ok()?;
        Some((whole.parse::<u32>().ok()?.min(1) * 1_000 + fraction).min(1_000))
    };
    (name, q.map_or(1_000, |q| thousandths(q).unwrap_or(0)))
}

/// Returns `true` if the body is a URL-encoded form.
pub(crate) fn is_form(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE);
    let essence = value.and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = essence.split(';').next().unwrap_or("").trim();
    essence.eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

/// Returns `true` if another site submitted the form. Browsers send its origin; other clients do not.
///
/// Pages with the referrer policy `no-referrer`, such as ours, send `Origin: null` with their forms, so
/// `null` is ignored. Current browsers also send `Sec-Fetch-Site`, which takes precedence.
pub(crate) fn is_foreign(headers: &HeaderMap, public_url: &str) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(site) = text("sec-fetch-site") {
        return !matches!(site, "same-origin" | "none");
    }
    let Some(origin) = text("origin").filter(|origin| *origin != "null") else {
        return false;
    };
    let Ok(origin) = origin.parse::<Uri>() else {
        return true;
    };
    let ours = public_url.parse::<Uri>().ok();
    let is_public = ours.is_some_and(|ours| {
        ours.scheme_str() == origin.scheme_str() && ours.authority() == origin.authority()
    });
    // The host may be reached by a name other than the public one.
    let is_asked = origin.authority().is_some_and(|authority| {
        text("host").is_some_and(|host| authority.as_str().eq_ignore_ascii_case(host))
    });
    !(is_public || is_asked)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn accepting(values: &[&'static str]) -> HeaderMap {
        values
            .iter()
            .map(|value| (header::ACCEPT, HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn html_is_sent_only_if_preferred() {
        for accept in [
            &["text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"][..],
            &["text/html"],
            &["TEXT/HTML; charset=utf-8 ; q=0.9, application/json;q=0.8"],
            &["application/json;q=0.1", "text/*"],
            &["application/json;q=0, */*"],
        ] {
            assert!(prefers_html(&accepting(accept)), "{accept:?}");
        }
        for accept in [
            &[][..],
            &["*/*"],
            &["application/json"],
            &["text/html, application/json"],
            &["application/json, text/html;q=0.9"],
            &["text/html;q=0"],
            &["text/html;q=nonsense"],
            &["*/*, text/html;q=0.5"],
            &["text/plain"],
        ] {
            assert!(!prefers_html(&accepting(accept)), "{accept:?}");
        }
    }

    #[test]
    fn detects_forms_of_other_sites() {
        let judge = |fields: &[(&'static str, &'static str)]| {
            let headers: HeaderMap = fields
                .iter()
                .map(|(name, value)| {
                    (
                        http::HeaderName::from_static(name),
                        HeaderValue::from_static(value),
                    )
                })
                .collect();
            is_foreign(&headers, "https://wopr.example/base")
        };
        for own in [
            &[][..],
            &[("origin", "null")],
            &[("origin", "https://wopr.example")],
            &[("origin", "http://10.0.0.1:8080"), ("host", "10.0.0.1:8080")],
            &[("sec-fetch-site", "same-origin"), ("origin", "null")],
            &[("sec-fetch-site", "none")],
        ] {
            assert!(!judge(own), "{own:?}");
        }
        for other in [
            &[("origin", "https://evil.example")][..],
            &[("origin", "http://wopr.example")],
            &[("origin", "https://wopr.example:444")],
            &[("origin", "nonsense nonsense")],
            &[
                ("sec-fetch-site", "cross-site"),
                ("origin", "https://wopr.example"),
            ],
            &[("sec-fetch-site", "same-site")],
        ] {
            assert!(judge(other), "{other:?}");
        }
    }
}
