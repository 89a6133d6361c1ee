//! Authenticates each request once, before it reaches a face.
//!
//! The result travels with the request, and the face decides whether it needs a caller: public resources are
//! public even for clients with a wrong credential. A response to an authenticated request lasts no longer than
//! its credential.

use std::sync::Arc;

use http::{Extensions, HeaderMap};

use super::{
    AuthError, Caller,
    certificates::Certified,
    lasting,
    verdict::{Admitted, Validity},
};
use crate::{
    Host, a2a,
    message::{Request, Response},
};

/// The result of authenticating a request whose caller was not found without waiting.
#[derive(Debug, Clone)]
struct Verdict(Result<Arc<Caller>, AuthError>);

/// A caller that was found without waiting.
#[derive(Debug, Clone)]
struct Recognized(Admitted);

/// The caller of a request, if any, and how long the response may last, if limited.
#[derive(Debug)]
pub(crate) struct Identified {
    pub(crate) caller: Option<Arc<Caller>>,
    pub(crate) validity: Option<Validity>,
}

/// Authenticates a request without waiting, and stores the caller in its extensions. If this returns `None`,
/// [`identify`] may still find a caller, as it asks the store and the issuer.
pub(crate) fn recognize<B>(host: &Host, request: &mut http::Request<B>) -> Option<Arc<Caller>> {
    let found = host.auth().recognize(request.headers());
    let admitted = certified(host, request, found)?.ok()?;
    let caller = admitted.caller.clone();
    request.extensions_mut().insert(Recognized(admitted));
    Some(caller)
}

/// Authenticates a request and stores the result in its extensions. A credential in the request takes
/// precedence over the connection's certificate, even a wrong one, because the client sent it on purpose. The
/// certificate is ignored for requests made by pages of other origins, as browsers send it along with any
/// page's request.
pub(crate) async fn identify(host: &Host, request: &mut Request) -> Identified {
    if let Some(Recognized(Admitted { caller, validity })) = request.extensions_mut().get_mut() {
        return Identified {
            caller: Some(Arc::clone(caller)),
            validity: validity.take(),
        };
    }
    let found = host.auth().identify(request.headers()).await;
    let admitted = certified(host, request, Some(found)).unwrap_or(Err(AuthError::Missing));
    let (verdict, validity) = match admitted {
        Ok(Admitted { caller, validity }) => (Ok(caller), validity),
        Err(error) => (Err(error), None),
    };
    let caller = verdict.as_ref().ok().cloned();
    request.extensions_mut().insert(Verdict(verdict));
    Identified { caller, validity }
}

/// Falls back to the connection's certificate if the request has no credential.
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

/// Returns `true` if a page of another origin may have caused the request.
fn is_of_page(headers: &HeaderMap, public_url: &str) -> bool {
    let is = |name: &str, own: &[&str]| {
        let mut values = headers.get_all(name).iter();
        values.any(|value| value.to_str().map_or(true, |value| !own.contains(&value)))
    };
    is("origin", &[public_url]) || is("sec-fetch-site", &["none", "same-origin"])
}

/// Ends a response when its credential is no longer valid.
pub(crate) fn bound(answer: Response, validity: Option<Validity>) -> Response {
    match validity {
        Some(validity) => {
            let is_grpc = a2a::is_grpc(answer.headers());
            answer.map(|body| lasting::bound(body, validity, is_grpc))
        }
        None => answer,
    }
}

/// Treats a request without a credential as one of `somebody`.
pub(crate) fn admit(extensions: &mut Extensions, somebody: impl FnOnce() -> Arc<Caller>) {
    if caller(extensions) == Err(AuthError::Missing) {
        extensions.insert(Verdict(Ok(somebody())));
    }
}

/// The caller of a request.
///
/// # Errors
/// If the request was not authenticated, or never passed authentication.
pub fn caller(extensions: &Extensions) -> Result<Arc<Caller>, AuthError> {
    if let Some(Recognized(admitted)) = extensions.get() {
        return Ok(Arc::clone(&admitted.caller));
    }
    let verdict = extensions.get::<Verdict>();
    verdict.map_or(Err(AuthError::Missing), |verdict| verdict.0.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_other_origins_are_detected_by_their_headers() {
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
