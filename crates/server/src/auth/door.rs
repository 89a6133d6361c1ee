//! Who calls, asked once for each request, before any face sees it.
//!
//! The answer goes with the request. A face decides whether it needs one: what is public is so for everybody, also for
//! those whose credential is wrong.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use http::Extensions;

use super::{AuthError, Caller};
use crate::Host;

/// What was found out about a request.
#[derive(Debug, Clone)]
struct Verdict(Result<Caller, AuthError>);

/// Finds the caller of a request and lets it pass, found or not.
pub(crate) async fn identify(State(host): State<Arc<Host>>, mut request: Request, next: Next) -> Response {
    let verdict = host.auth().identify(request.headers()).await;
    request.extensions_mut().insert(Verdict(verdict));
    next.run(request).await
}

/// The caller of a request.
///
/// # Errors
/// See [`AuthError`]. A request that did not come through the door has none.
pub fn caller(extensions: &Extensions) -> Result<Caller, AuthError> {
    let verdict = extensions.get::<Verdict>();
    verdict.map_or(Err(AuthError::Missing), |verdict| verdict.0.clone())
}
