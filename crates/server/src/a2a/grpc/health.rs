//! The standard gRPC health service: the host serves until it stops.
//!
//! The service is public and a watch has no time limit, so the number of watches without a credential is
//! bounded across all clients.

use std::{convert::Infallible, pin::Pin, sync::Arc};

use futures_util::stream::{self, Stream};
use tokio::sync::{Semaphore, watch};
use tonic::{Response, Status};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_check_response::ServingStatus,
    health_server::{self, HealthServer},
};
use tower::Service;
use wopr_wire::a2a::{method::Version, protobuf};

use super::super::supported::{Binding, is_served};
use crate::{Host, auth, message::Request};

pub(super) const NAME: &str = "grpc.health.v1.Health";
/// Maximum number of concurrent watches without a credential.
const MAX_ANONYMOUS: usize = 64;

/// Reports whether the host is stopping.
#[derive(Debug)]
struct Health {
    closing: watch::Receiver<bool>,
    anonymous: Arc<Semaphore>,
}

pub(super) fn service(
    host: &Arc<Host>,
) -> impl Service<
    Request,
    Response = http::Response<tonic::body::Body>,
    Error = Infallible,
    Future: Send + 'static,
> + Clone
+ Send
+ Sync
+ 'static {
    HealthServer::new(Health {
        closing: host.closing(),
        anonymous: Arc::new(Semaphore::new(MAX_ANONYMOUS)),
    })
}

/// Returns `true` if the host has this service. An empty name stands for the whole host.
fn is_known(name: &str) -> bool {
    let is_a2a = |version: &&Version| {
        is_served(Binding::Grpc, **version) && name == format!("{}.{}", version.package(), protobuf::SERVICE)
    };
    name.is_empty() || name == NAME || Version::ALL.iter().any(|version| is_a2a(&version))
}

const fn status(is_closing: bool) -> ServingStatus {
    if is_closing {
        ServingStatus::NotServing
    } else {
        ServingStatus::Serving
    }
}

fn told(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(
        &self,
        request: tonic::Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !is_known(&request.get_ref().service) {
            return Err(Status::not_found("there is no such service"));
        }
        Ok(Response::new(told(status(*self.closing.borrow()))))
    }

    /// Sends the current status, and once more when the host stops. Then the watch ends, because connections
    /// end.
    async fn watch(
        &self,
        request: tonic::Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let is_known = is_known(&request.get_ref().service);
        let slot = match auth::caller(request.extensions()) {
            Ok(_) => None,
            Err(_) => Some(
                Arc::clone(&self.anonymous)
                    .try_acquire_owned()
                    .map_err(|_| Status::resource_exhausted("too many watches without a credential"))?,
            ),
        };
        let closing = self.closing.clone();
        let changes = stream::unfold((closing, None), move |(mut closing, said)| {
            // The stream holds its slot while the client listens.
            let _held = &slot;
            async move {
                let is_closing = match said {
                    None => *closing.borrow_and_update(),
                    Some(true) => return None,
                    Some(false) => closing.wait_for(|closing| *closing).await.is_ok(),
                };
                let status = if is_known {
                    status(is_closing)
                } else {
                    ServingStatus::ServiceUnknown
                };
                Some((Ok(told(status)), (closing, Some(is_closing))))
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
