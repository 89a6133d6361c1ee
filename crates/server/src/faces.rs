//! Routes requests to the faces, through the middleware around every request.
//!
//! ```text
//!   cors -> observe -> authenticate -> A2A, if the path is in its table
//!                                  '-> MCP, if the path is its
//!                                  '-> Agent Workflow, below /awp
//!                                  '-> OpenWOP, also for unknown paths
//! ```
//!
//! The middleware consists of plain function calls. As router layers, each would cost every request several
//! allocations and copies of everything inside it, as much as a face needs to parse a request.

use std::{convert::Infallible, sync::Arc};

use futures_util::{FutureExt as _, future::Either};
use http::Version;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_http::cors::CorsLayer;

use crate::{
    Host, a2a,
    admission::{self, Admission, NoRoom, Slot},
    auth::{
        self, Caller,
        authenticate::{self, Identified},
    },
    awp, cors,
    credential_id::CredentialId,
    mcp,
    message::{Request, Response},
    openwop, telemetry,
};

#[derive(Debug, Clone)]
pub struct Faces(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    host: Arc<Host>,
    a2a: a2a::Face,
    awp: awp::Face,
    mcp: mcp::Face,
    openwop: openwop::Face,
    cors: Option<CorsLayer>,
}

impl Faces {
    #[must_use]
    pub fn new(host: &Arc<Host>) -> Self {
        Self::with(host, awp::Face::new(host))
    }

    /// The faces of a listener that serves the Agent Workflow Protocol alone.
    pub(crate) fn for_awp(host: &Arc<Host>) -> Self {
        Self::with(host, awp::Face::at_root(host))
    }

    fn with(host: &Arc<Host>, awp: awp::Face) -> Self {
        Self(Arc::new(Inner {
            host: Arc::clone(host),
            a2a: a2a::Face::new(host),
            awp,
            mcp: mcp::Face::new(host),
            openwop: openwop::Face::new(host),
            cors: cors::layer(&host.config().server.cors_origins),
        }))
    }

    pub(crate) fn admission(&self) -> &Admission {
        self.0.host.admission()
    }

    /// Authenticates a request without waiting, and stores the caller in its extensions.
    pub(crate) fn recognize<B>(&self, request: &mut http::Request<B>) -> Option<Arc<Caller>> {
        authenticate::recognize(&self.0.host, request)
    }

    pub fn answer(&self, request: Request) -> impl Future<Output = Response> + Send {
        match &self.0.cors {
            None => Either::Left(self.observed(request)),
            Some(cors) => Either::Right(self.shared(cors, request).boxed()),
        }
    }

    /// Answers a request that a page of another origin may have made.
    async fn shared(&self, cors: &CorsLayer, request: Request) -> Response {
        let observed = service_fn(async |request| Ok::<_, Infallible>(self.observed(request).await));
        let Ok(response) = cors.layer(observed).oneshot(request).await;
        response
    }

    /// No `async fn`, here and above: each would hold the request and the future it awaits once more.
    fn observed(&self, request: Request) -> impl Future<Output = Response> + Send {
        telemetry::observe(&self.0.host, request, |request| self.admitted(request))
    }

    async fn admitted(&self, mut request: Request) -> Response {
        let Inner {
            host,
            a2a,
            awp,
            mcp,
            openwop,
            ..
        } = &*self.0;
        let slot = request.extensions().get::<Slot>().cloned();
        let Identified { caller, validity } = authenticate::identify(host, &mut request).await;
        let is_http2 = request.version() >= Version::HTTP_2;
        let is_grpc = a2a::is_grpc(request.headers());
        let refused = || admission::refusal(is_http2, is_grpc);
        if let (Some(slot), Some(caller)) = (&slot, &caller)
            && let Err(NoRoom) = slot.recognized(host.admission(), caller)
        {
            return refused();
        }
        let is_alone = awp.is_alone();
        let of_mcp = (!is_alone)
            .then(|| mcp::Face::wanted(request.uri().path()))
            .flatten();
        let of_a2a = (!is_alone).then(|| a2a.wanted(&mut request)).flatten();
        let lasting = validity.clone();
        let (response, unavailable): (_, fn() -> Response) = match (of_a2a, of_mcp) {
            // Boxed, like all that follow: the futures take kilobytes, and would be copied several times.
            (Some(wanted), _) => {
                let answered = auth::while_valid(lasting, Box::pin(a2a.answer(wanted, request))).await;
                let answered = answered.unwrap_or_else(|error| a2a::unauthenticated(error, is_grpc));
                (answered, a2a::unavailable)
            }
            (None, Some(place)) => {
                let answered = auth::while_valid(lasting, Box::pin(mcp.answer(place, request))).await;
                let answered = answered.unwrap_or_else(|error| mcp::unauthenticated(host, error));
                (answered, mcp::unavailable)
            }
            (None, None) if awp.is_wanted(&request) => {
                let answered = auth::while_valid(lasting, Box::pin(awp.answer(request))).await;
                let answered = answered.unwrap_or_else(|_| awp::unauthenticated());
                (answered, awp::unavailable)
            }
            (None, None) => {
                let answered = auth::while_valid(lasting, Box::pin(openwop.answer(request))).await;
                let answered = answered.unwrap_or_else(|error| openwop::Problem::from(error).into());
                (answered, openwop::unavailable)
            }
        };
        let response = match (caller, slot) {
            (Some(caller), _) => {
                let answers = &host.admission().answers;
                answers
                    .held_response(CredentialId::caller(&caller), response, unavailable)
                    .await
            }
            (None, Some(slot)) => admission::answered(&slot, response, refused),
            (None, None) => response,
        };
        authenticate::bound(response, validity)
    }
}
