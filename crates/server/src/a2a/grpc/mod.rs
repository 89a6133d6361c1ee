//! The gRPC binding on the HTTP port: `lf.a2a.v1.A2AService` for 1.0, `a2a.v1.A2AService` for 0.3.
//!
//! A request is one message, read in full within the limits of the other bindings. It is converted to the
//! JSON document of its version and handled as such; the response is converted back. The package must agree
//! with the metadata `a2a-version`; a missing version means 0.3. An error becomes a status with the same
//! details as in the other bindings. A deadline ends the call, never the task. The standard health and
//! reflection services are served as well; they are public.

mod answer;
mod descriptor;
mod health;
pub(super) mod media;
mod message;
pub(super) mod status;

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Version as Http, request::Parts};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use serde_json::Value;
use tokio::time::Instant;
use tonic::Status;
use tower::{ServiceExt as _, util::BoxCloneSyncService};
use wopr_wire::a2a::{
    error::A2aError,
    exchange::{self, Form},
    method::{Operation, Version},
    protobuf::{self, Method},
};

use super::{
    ingress,
    perform::{self, Answer},
    service::Service,
    supported::{Binding, is_served},
};
use crate::{
    Host,
    answers::Crowded,
    auth::{self, AuthError},
    body,
    credential_id::CredentialId,
    message::{Body, BoxError, Request, Response},
    telemetry::Handled,
};

/// The time that a client waits for the response.
const TIMEOUT: &str = "grpc-timeout";
/// A longer timeout counts as no deadline.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Maximum request bytes of one call to a standard service.
const MAX_STANDARD: usize = 16 << 10;

/// A standard service implemented by another crate.
type Standard = BoxCloneSyncService<Request, http::Response<tonic::body::Body>, Infallible>;

#[derive(Clone)]
pub(super) struct Services(Vec<(&'static str, Standard)>);

impl std::fmt::Debug for Services {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.0.iter().map(|(name, _)| name);
        f.debug_list().entries(names).finish()
    }
}

impl Services {
    pub(super) fn new(host: &Arc<Host>) -> Self {
        let mut services = vec![(health::NAME, BoxCloneSyncService::new(health::service(host)))];
        let [v1, v1alpha] = descriptor::reflection();
        services.extend([v1, v1alpha]);
        Self(services)
    }
}

/// Answers any gRPC request.
pub(super) async fn respond(host: Arc<Host>, services: &Services, request: Request) -> Response {
    if request.version() != Http::HTTP_2 {
        return answer::refused(&Status::failed_precondition("gRPC needs HTTP/2"));
    }
    let path = request.uri().path();
    let named = path.strip_prefix('/').and_then(|rest| rest.split_once('/'));
    let Some((service, method)) = named else {
        return answer::refused(&Status::unimplemented("the path names no method"));
    };
    if let Some((_, standard)) = services.0.iter().find(|(name, _)| *name == service) {
        let timeout = host.config().server.request_timeout.as_duration();
        let is_strange = auth::caller(request.extensions()).is_err();
        let request = request.map(|body| bounded(body, timeout, is_strange));
        let Ok(response) = standard.clone().oneshot(request).await;
        return response.map(Body::new);
    }
    let Some((version, method)) = find(service, method) else {
        return answer::refused(&Status::unimplemented("there is no such method"));
    };
    let (head, body) = request.into_parts();
    let caller = auth::caller(&head.extensions);
    let mut response = match call(&host, version, method, &head, body).await {
        Ok(response) => response,
        Err(status) => answer::refused(&status),
    };
    response.extensions_mut().insert(Handled {
        route: method.name,
        caller: caller.ok(),
    });
    response
}

/// The answer to a call whose credential is not accepted.
pub(super) fn unauthenticated(error: &AuthError) -> Response {
    answer::refused(&status::unauthenticated(error))
}

/// Limits a request body: it ends when the client is silent for `timeout`, and fails beyond [`MAX_STANDARD`]
/// bytes. The standard services are public, and reflection reads requests for as long as they arrive. Without
/// these limits, anonymous clients could hold calls open by staying silent, or exhaust memory by sending
/// without end.
fn bounded(body: Body, timeout: Duration, is_strange: bool) -> Body {
    // An anonymous client that sends slowly gets as long as for any other body.
    let end = is_strange.then(|| Instant::now() + timeout);
    let frames = stream::unfold((body, MAX_STANDARD), move |(mut body, left)| async move {
        let until = Instant::now() + timeout;
        let until = end.map_or(until, |end| end.min(until));
        let frame = tokio::time::timeout_at(until, body.frame()).await.ok()??;
        let n_bytes = frame
            .as_ref()
            .ok()
            .and_then(Frame::data_ref)
            .map_or(0, Bytes::len);
        match left.checked_sub(n_bytes) {
            Some(left) => Some((frame, (body, left))),
            None => {
                let error = BoxError::from(Status::resource_exhausted("the requests are too large"));
                Some((Err(error), (Body::empty(), 0)))
            }
        }
    });
    Body::new(StreamBody::new(frames))
}

/// Finds a method of our services.
fn find(service: &str, method: &str) -> Option<(Version, Method)> {
    let package = service.strip_suffix(protobuf::SERVICE)?.strip_suffix('.')?;
    let version = Version::ALL.iter().find(|version| version.package() == package)?;
    if !is_served(Binding::Grpc, *version) {
        return None;
    }
    let operation = Operation::from_grpc_method(*version, method)?;
    Some((*version, protobuf::method(*version, operation)?))
}

async fn call(
    host: &Arc<Host>,
    version: Version,
    method: Method,
    head: &Parts,
    body: Body,
) -> Result<Response, Status> {
    let headers = &head.headers;
    let deadline = deadline(headers)?;
    let caller = auth::caller(&head.extensions).map_err(|error| status::unauthenticated(&error))?;
    let credential = CredentialId::caller(&caller);
    let form = Form::proto(version);
    let refused = |error| status::of(host, &error, version);
    let answered = async {
        let body = ingress::read_body(host, &caller, body, message::HEAD)
            .await
            .map_err(status::no_body)?;
        let bytes = message::open(&body)?;
        ingress::demand_version(&head.uri, headers, version).map_err(|error| refused(error.into()))?;
        perform::demand_offered(method.operation).map_err(|error| refused(error.into()))?;
        let most = wopr_connect::parsed_limit(host.config().server.max_body_bytes);
        let malformed = |error| refused(A2aError::from(error).into());
        let (document, n_parsed) = protobuf::read_within(method.request, bytes, most).map_err(malformed)?;
        let _weight = body::weigh_parsed(host.admission(), bytes.len(), n_parsed, credential)
            .map_err(status::no_body)?;
        let request =
            exchange::Request::decode(method.operation, form, Value::Object(document)).map_err(malformed)?;
        let call = ingress::call(caller, None, version, headers).map_err(|error| refused(error.into()))?;
        Service::new(Arc::clone(host))
            .perform(&call, request)
            .await
            .map_err(refused)
    };
    let answered = match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, answered)
            .await
            .unwrap_or_else(|_| Err(status::too_late())),
        None => answered.await,
    };
    match answered? {
        Answer::Reply(reply) => {
            let message = answer::message(method, &reply.into_document(form))?;
            let message = host
                .admission()
                .answers
                .held(credential, message)
                .await
                .map_err(|Crowded| status::unavailable())?;
            Ok(answer::once(message))
        }
        Answer::Stream(stream) => answer::stream(*stream, method, form, deadline).await,
    }
}

/// Reads the client's deadline from `grpc-timeout`: up to eight digits and a unit.
fn deadline(headers: &HeaderMap) -> Result<Option<Instant>, Status> {
    let Some(value) = headers.get(TIMEOUT) else {
        return Ok(None);
    };
    let timeout = value.to_str().ok().and_then(timeout);
    let timeout = timeout.ok_or_else(|| Status::invalid_argument("grpc-timeout is no timeout"))?;
    Ok((timeout <= MAX_TIMEOUT).then(|| Instant::now() + timeout))
}

fn timeout(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let digits = text.strip_suffix(unit)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        'H' => Some(Duration::from_secs(number * 3600)),
        'M' => Some(Duration::from_secs(number * 60)),
        'S' => Some(Duration::from_secs(number)),
        'm' => Some(Duration::from_millis(number)),
        'u' => Some(Duration::from_micros(number)),
        'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn body_ends_when_client_is_silent() {
        let timeout = Duration::from_secs(5);
        let pieces = stream::unfold(0, |n| async move {
            // sleep: the client slows down, in virtual time
            tokio::time::sleep(Duration::from_secs(n * 2)).await;
            Some((Ok::<_, Infallible>(Bytes::from(n.to_string())), n + 1))
        });
        let body = bounded(Body::from_stream(pieces), timeout, false);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "012");
        assert_eq!(
            bounded(Body::from("all"), timeout, true)
                .collect()
                .await
                .unwrap()
                .to_bytes(),
            "all"
        );
        let drips = stream::unfold((), |()| async {
            // sleep: the client sends slowly, in virtual time
            tokio::time::sleep(Duration::from_secs(2)).await;
            Some((Ok::<_, Infallible>(Bytes::from_static(b"x")), ()))
        });
        let drips = bounded(Body::from_stream(drips), timeout, true);
        assert_eq!(drips.collect().await.unwrap().to_bytes(), "xx");
        let large = Body::from(vec![0; MAX_STANDARD]);
        assert!(bounded(large, timeout, true).collect().await.is_ok());
        let too_large = Body::from(vec![0; MAX_STANDARD + 1]);
        assert!(bounded(too_large, timeout, true).collect().await.is_err());
    }

    #[test]
    fn parses_timeouts() {
        for (text, wanted) in [
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("3S", Some(Duration::from_secs(3))),
            ("99999999m", Some(Duration::from_millis(99_999_999))),
            ("5u", Some(Duration::from_micros(5))),
            ("6n", Some(Duration::from_nanos(6))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("100000000S", None),
            ("1", None),
            ("S", None),
            ("", None),
            ("-1S", None),
            ("1.5S", None),
            ("1s", None),
            ("1ä", None),
        ] {
            assert_eq!(timeout(text), wanted, "{text}");
        }
    }

    #[test]
    fn package_selects_version() {
        fn found(service: &str, method: &str) -> Option<(Version, Operation)> {
            find(service, method).map(|(version, found)| (version, found.operation))
        }
        for version in Version::ALL {
            let service = format!("{}.A2AService", version.package());
            for method in protobuf::methods(*version) {
                assert_eq!(found(&service, method.name), Some((*version, method.operation)));
            }
        }
        assert_eq!(found("a2a.v1.A2AService", "ListTasks"), None);
        assert_eq!(found("lf.a2a.v1.A2AService", "TaskSubscription"), None);
        assert_eq!(found("lf.a2a.v1A2AService", "GetTask"), None);
        assert_eq!(found("A2AService", "GetTask"), None);
    }
}
