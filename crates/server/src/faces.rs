//! From a request to a face: what surrounds every request, and who answers it.
//!
//! ```text
//!   cors -> observe -> door -> A2A, if it is in its table of paths
//!                          '-> OpenWOP, which answers for unknown paths too
//! ```
//!
//! These are plain calls. As layers of a router each of them would cost every request several allocations and copies
//! of everything inside, which is as much as either face takes to read a request.

use std::{convert::Infallible, sync::Arc};

use axum::{extract::Request, response::Response};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_http::cors::CorsLayer;

use crate::{Host, a2a, answers, asker::Asker, auth::door, cors, openwop, telemetry};

/// Everything a host answers.
#[derive(Debug, Clone)]
pub struct Faces(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    host: Arc<Host>,
    a2a: a2a::Face,
    openwop: openwop::Face,
    cors: Option<CorsLayer>,
}

impl Faces {
    /// The faces of a host.
    #[must_use]
    pub fn new(host: &Arc<Host>) -> Self {
        Self(Arc::new(Inner {
            host: Arc::clone(host),
            a2a: a2a::Face::new(host),
            openwop: openwop::Face::new(host),
            cors: cors::layer(&host.config().server.cors_origins),
        }))
    }

    /// Answers a request.
    pub async fn answer(&self, request: Request) -> Response {
        let Some(cors) = &self.0.cors else {
            return self.observed(request).await;
        };
        let observed = service_fn(async |request| Ok::<_, Infallible>(self.observed(request).await));
        let Ok(response) = Box::pin(cors.layer(observed).oneshot(request)).await;
        response
    }

    async fn observed(&self, request: Request) -> Response {
        telemetry::observe(&self.0.host, request, async |request| {
            self.admitted(request).await
        })
        .await
    }

    async fn admitted(&self, mut request: Request) -> Response {
        let Inner {
            host, a2a, openwop, ..
        } = &*self.0;
        let asker = Asker::of(request.headers());
        let validity = door::identify(host, &mut request).await;
        let response = match a2a.wanted(&mut request) {
            Some(wanted) => {
                let response = a2a.answer(wanted, request).await;
                answers::held_response(asker, response, a2a::unavailable).await
            }
            None => {
                // Kept apart: it is kilobytes, which a request of the other face need not have.
                let response = Box::pin(openwop.answer(request)).await;
                answers::held_response(asker, response, openwop::unavailable).await
            }
        };
        door::bound(response, validity)
    }
}
