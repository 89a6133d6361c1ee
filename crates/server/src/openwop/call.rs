//! From a request to a handler: matching, credentials, scopes, bodies; in this order, for every route alike.
//!
//! Who may not call learns nothing about routes: below `/v1` a missing credential is answered before anything
//! else is looked at. Bodies are read only after that, bounded in size and time.

use std::{borrow::Cow, sync::Arc};

use axum::{
    body::{Body, Bytes, HttpBody as _},
    extract::Request,
    response::Response,
};
use futures_util::future::BoxFuture;
use http::{Extensions, HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use url::form_urlencoded;
use wopr_core::{RunId, RunKey};
use wopr_wire::json::{self, Decode};

use super::{
    problem::Problem,
    routes::{self, Access, Input, Route},
};
use crate::{
    Host,
    auth::{self, Caller},
    body::{self, BodyError},
    telemetry::Handled,
};

/// What a handler answers.
pub(super) type Answer = Result<Response, Problem>;
/// A handler.
pub(super) type Handler = fn(Call) -> BoxFuture<'static, Answer>;

/// A request that passed the door.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) host: Arc<Host>,
    pub(super) route: &'static Route,
    /// Present on every route that is not public.
    caller: Option<Caller>,
    params: Vec<String>,
    uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Call {
    /// Who calls.
    pub(super) fn caller(&self) -> &Caller {
        self.caller
            .as_ref()
            .expect("only public routes are called without a caller")
    }

    /// The path parameter at a place.
    pub(super) fn param(&self, index: usize) -> &str {
        self.params.get(index).map_or("", String::as_str)
    }

    /// Path parameters, in order.
    pub(super) fn params(&self) -> &[String] {
        &self.params
    }

    /// The run the path names, as the caller's: what cannot be a run's id is an unknown run.
    pub(super) fn run(&self) -> Result<RunKey, Problem> {
        let run = RunId::parse(self.param(0)).map_err(|_| no_run())?;
        Ok(RunKey::new(self.caller().tenant.clone(), run))
    }

    /// The first value of a query parameter.
    pub(super) fn query(&self, name: &str) -> Option<Cow<'_, str>> {
        self.queries()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value)
    }

    /// Every query parameter.
    pub(super) fn queries(&self) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
        form_urlencoded::parse(self.uri.query().unwrap_or("").as_bytes())
    }

    /// A header field that is plain text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The body as the wanted document; a blank one counts as `{}` where the route allows it.
    pub(super) fn decode<T: Decode>(&self) -> Result<T, Problem> {
        let value = match self.route.input {
            Input::None | Input::Optional(_) => json::from_slice_or_empty(&self.body),
            Input::Required(_) => json::from_slice(&self.body),
        };
        Ok(value?)
    }

    /// Whether the request names this version of what it asks for already.
    pub(super) fn has_current(&self, etag: &str) -> bool {
        let Some(known) = self.header("if-none-match") else {
            return false;
        };
        known
            .split(',')
            .map(|tag| tag.trim().trim_start_matches("W/"))
            .any(|tag| tag == "*" || tag == etag)
    }
}

/// 404 for a run.
pub(super) fn no_run() -> Problem {
    Problem::not_found("no such run")
}

/// Answers every request this face gets.
pub(crate) async fn dispatch(host: Arc<Host>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let found = routes::find(&parts.method, parts.uri.path(), host.config().conformance);
    let mut caller = None;
    let route = found.route.map_or("unmatched", |route| route.path);
    let answer = match found.route {
        Some(route) => match admit(route, &parts.extensions) {
            Err(problem) => Err(problem),
            Ok(who) => {
                caller = who;
                match read_body(&host, route, caller.as_ref(), &parts.headers, body).await {
                    Err(problem) => Err(problem),
                    Ok(body) => {
                        let call = Call {
                            host,
                            route,
                            caller: caller.clone(),
                            params: found.params,
                            uri: parts.uri,
                            headers: parts.headers,
                            body,
                        };
                        (route.handler)(call).await
                    }
                }
            }
        },
        None => Err(refuse(&parts.extensions, parts.uri.path(), &found.allowed)),
    };
    let mut response = answer.unwrap_or_else(Response::from);
    response.extensions_mut().insert(Handled { route, caller });
    response
}

/// Why nothing is at a path: first who asks, then whether it is there by another method.
fn refuse(extensions: &Extensions, path: &str, allowed: &[Method]) -> Problem {
    if routes::is_versioned(path)
        && let Err(error) = auth::caller(extensions)
    {
        return error.into();
    }
    if let Some(reason) = routes::not_provided(path) {
        return Problem::not_provided(reason);
    }
    if allowed.is_empty() {
        return Problem::not_found("no such resource");
    }
    let names: Vec<_> = allowed.iter().map(Method::as_str).collect();
    let problem = Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "the resource does not take this method",
    );
    let problem = problem.with("allowed", names.clone());
    match HeaderValue::from_str(&names.join(", ")) {
        Ok(value) => problem.header(header::ALLOW, value),
        Err(_) => problem,
    }
}

fn admit(route: &Route, extensions: &Extensions) -> Result<Option<Caller>, Problem> {
    match route.access {
        Access::Public => Ok(None),
        Access::Scopes(scopes) => {
            let caller = auth::caller(extensions)?;
            for scope in scopes {
                caller.require(*scope)?;
            }
            Ok(Some(caller))
        }
    }
}

async fn read_body(
    host: &Host,
    route: &Route,
    caller: Option<&Caller>,
    headers: &HeaderMap,
    body: Body,
) -> Result<Bytes, Problem> {
    if matches!(route.input, Input::None) {
        return Ok(Bytes::new());
    }
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    check_media_type(headers)?;
    let limit = host.config().server.max_body_bytes;
    let patience = host.config().server.request_timeout.as_duration();
    match body::read(body, caller, limit, patience).await {
        Ok(read) => Ok(read),
        Err(BodyError::TooLarge) => Err(too_large(limit)),
        Err(BodyError::CutOff) => Err(Problem::invalid("the body was cut off")),
        Err(BodyError::Busy) => {
            Err(Problem::unavailable(1).header(header::CONNECTION, HeaderValue::from_static("close")))
        }
        Err(BodyError::Slow) => Err(Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "request_timeout",
            "the body did not arrive in time",
        )
        .header(header::CONNECTION, HeaderValue::from_static("close"))),
    }
}

fn too_large(limit: usize) -> Problem {
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "payload_too_large",
        "the body is larger than this host takes",
    )
    .with("maxRequestBodyBytes", limit)
    .header(header::CONNECTION, HeaderValue::from_static("close"))
}

/// JSON, or no type at all.
fn check_media_type(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let essence = value
        .to_str()
        .unwrap_or("")
        .split(';')
        .next()
        .unwrap_or("")
        .trim();
    let is_json = essence.eq_ignore_ascii_case("application/json")
        || (essence.len() > 5 && essence.as_bytes()[essence.len() - 5..].eq_ignore_ascii_case(b"+json"));
    if is_json {
        Ok(())
    } else {
        Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "the body must be application/json",
        ))
    }
}

/// A JSON answer.
pub(super) fn json_response(status: StatusCode, body: &impl serde::Serialize) -> Answer {
    match serde_json::to_vec(body) {
        Ok(bytes) => Ok(bytes_response(status, bytes)),
        Err(error) => {
            tracing::error!(%error, "answer does not serialise");
            Err(Problem::internal())
        }
    }
}

/// A JSON answer of ready bytes. Answers about runs are the caller's alone.
pub(super) fn bytes_response(status: StatusCode, bytes: impl Into<Body>) -> Response {
    let mut response = Response::new(bytes.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("private, no-cache"),
    );
    response
}

/// 304 under an entity tag.
pub(super) fn not_modified(etag: &HeaderValue) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    response.headers_mut().insert(header::ETAG, etag.clone());
    response
}

/// An entity tag.
pub(super) fn etag(text: &str) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{text}\"")).expect("an entity tag is made of hexadecimal digits")
}
