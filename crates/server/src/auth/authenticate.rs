//! Who calls, asked once for each request, before any face sees it.
//!
//! The answer goes with the request. A face decides whether it needs one: what is public is so for everybody, also for
//! those whose credential is wrong. What is answered to a key lasts no longer than the key.

use axum::{extract::Request, response::Response};
use http::{Extensions, HeaderMap};

use super::{
    AuthError, Caller,
    certificates::Certified,
    lasting,
    verdict::{Admitted, Validity},
};
use crate::{Host, a2a};

/// What was found out about a request.
#[derive(Debug, Clone)]
struct Verdict(Result<Caller, AuthError>);

/// Who was recognized before the request was looked at further.
#[derive(Debug, Clone)]
struct Recognized(Admitted);

/// Who a request is from, if anybody, and how long the answer may last, if that is bounded.
#[derive(Debug)]
pub(crate) struct Identified {
    pub(crate) caller: Option<Caller>,
    pub(crate) validity: Option<Validity>,
}

/// Finds the caller of a request as far as that takes no waiting, and notes it there. Whoever is not found may be still
/// by [`identify`], which asks the store and the issuer.
pub(crate) fn recognize<B>(host: &Host, request: &mut http::Request<B>) -> Option<Caller> {
    let found = host.auth().recognize(request.headers());
    let admitted = certified(host, request, found)?.ok()?;
    let caller = admitted.caller.clone();
    request.extensions_mut().insert(Recognized(admitted));
    Some(caller)
}

/// Finds the caller of a request and notes it there, found or not. A credential in the request goes before the
/// connection's certificate, also when it is wrong: who presents one means it. A certificate says nothing about a page in
/// a browser, which sends it along whatever page asked.
pub(crate) async fn identify(host: &Host, request: &mut Request) -> Identified {
    let admitted = match request.extensions_mut().remove::<Recognized>() {
        Some(Recognized(admitted)) => Ok(admitted),
        None => {
            let found = host.auth().identify(request.headers()).await;
            certified(host, request, Some(found)).unwrap_or(Err(AuthError::Missing))
        }
    };
    let (verdict, validity) = match admitted {
        Ok(Admitted { caller, validity }) => (Ok(caller), validity),
        Err(error) => (Err(error), None),
    };
    let caller = verdict.as_ref().ok().cloned();
    request.extensions_mut().insert(Verdict(verdict));
    Identified { caller, validity }
}

/// What was found by a credential, or by the certificate of the connection where there is none.
fn certified<B>(
    host: &Host,
    request: &http::Request<B>,
    found: Option<Result<Admitted, AuthError>>,
) -> Option<Result<Admitted, AuthError>> {
    match (&found, request.extensions().get::<Certified>()) {
        (Some(Err(AuthError::Missing)), Some(certified))
            if !is_of_page(request.headers(), host.public_url()) =>
        {
            Some(certified.admitted())
        }
        _ => found,
    }
}

/// Claims that a page of another origin than this host's had the request made.
fn is_of_page(headers: &HeaderMap, public_url: &str) -> bool {
    let is = |name: &str, own: &[&str]| {
        let mut values = headers.get_all(name).iter();
        values.any(|value| value.to_str().map_or(true, |value| !own.contains(&value)))
    };
    is("origin", &[public_url]) || is("sec-fetch-site", &["none", "same-origin"])
}

/// Ends an answer with what bounds it.
pub(crate) fn bound(answer: Response, validity: Option<Validity>) -> Response {
    match validity {
        Some(validity) => {
            let is_grpc = a2a::is_grpc(answer.headers());
            answer.map(|body| lasting::bound(body, validity, is_grpc))
        }
        None => answer,
    }
}

/// Lets a request without a credential pass as somebody.
pub(crate) fn admit(extensions: &mut Extensions, somebody: impl FnOnce() -> Caller) {
    if caller(extensions) == Err(AuthError::Missing) {
        extensions.insert(Verdict(Ok(somebody())));
    }
}

/// The caller of a request.
///
/// # Errors
/// See [`AuthError`]. A request that did not come through the door has none.
pub fn caller(extensions: &Extensions) -> Result<Caller, AuthError> {
    let verdict = extensions.get::<Verdict>();
    verdict.map_or(Err(AuthError::Missing), |verdict| verdict.0.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_another_origin_is_told_by_what_browsers_send() {
        let own = "https://wopr.test";
        for (fields, wanted) in [
            (&[][..], false),
            (&[("origin", own)][..], false),
            (&[("origin", own), ("sec-fetch-site", "same-origin")][..], false),
            (&[("sec-fetch-site", "none")][..], false),
            (&[("origin", "https://evil.test")][..], true),
            (&[("origin", "null")][..], true),
            (&[("origin", "\u{e4}")][..], true),
            (&[("sec-fetch-site", "cross-site")][..], true),
            (&[("sec-fetch-site", "same-site")][..], true),
            (&[("origin", own), ("origin", "https://evil.test")][..], true),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
            }
            assert_eq!(is_of_page(&headers, own), wanted, "{fields:?}");
        }
    }
}
