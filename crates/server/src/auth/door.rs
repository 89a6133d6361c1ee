//! Who calls, asked once for each request, before any face sees it.
//!
//! The answer goes with the request. A face decides whether it needs one: what is public is so for everybody, also for
//! those whose credential is wrong. What is answered to a key lasts no longer than the key.

use axum::{extract::Request, response::Response};
use http::Extensions;

use super::{Admitted, AuthError, Caller, keyring::Validity, lasting};
use crate::Host;

/// What was found out about a request.
#[derive(Debug, Clone)]
struct Verdict(Result<Caller, AuthError>);

/// Who was known by the certificate of a connection; goes with each of its requests.
#[derive(Debug, Clone)]
pub(crate) struct Certified(pub(crate) Caller);

/// Finds the caller of a request and notes it there, found or not; gives how long the answer may last, if that is
/// bounded. A credential in the request goes before the connection's certificate, also when it is wrong: who presents
/// one means it.
pub(crate) async fn identify(host: &Host, request: &mut Request) -> Option<Validity> {
    let mut admitted = host.auth().identify(request.headers()).await;
    if let (Err(AuthError::Missing), Some(Certified(caller))) = (&admitted, request.extensions().get()) {
        admitted = Ok(Caller::clone(caller).into());
    }
    let (verdict, validity) = match admitted {
        Ok(Admitted { caller, validity }) => (Ok(caller), validity),
        Err(error) => (Err(error), None),
    };
    request.extensions_mut().insert(Verdict(verdict));
    validity
}

/// Ends an answer with what bounds it.
pub(crate) fn bound(answer: Response, validity: Option<Validity>) -> Response {
    match validity {
        Some(validity) => answer.map(|body| lasting::bound(body, validity)),
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
