//! Dispatches requests to handlers: route, credential, scopes and body, in this order for every route.
//!
//! Below `/v1`, a missing credential is reported before an unknown path or method, so unauthenticated clients
//! learn nothing about the routes. Bodies are read after that, limited in size and time.

use std::sync::Arc;

use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body::Body as _;

use super::{
    call::Call,
    interrupt_page, openapi,
    problem::Problem,
    route::{Access, Input, Route},
    routes,
};
use crate::{
    Host, admission,
    auth::{self, Caller},
    body::{self, BodyError, Weight},
    credential_id::CredentialId,
    message::{Body, Request, Response},
    page,
    telemetry::Handled,
};

/// Maximum body size of requests that need only a token.
const MAX_PUBLIC: usize = 256 << 10;

#[derive(Debug)]
pub(crate) struct Face {
    host: Arc<Host>,
    /// The OpenAPI document, rendered once.
    openapi: Bytes,
}

impl Face {
    pub(crate) fn new(host: &Arc<Host>) -> Self {
        let document = openapi::document(host.public_url(), host.config().conformance);
        Self {
            host: Arc::clone(host),
            openapi: Bytes::from(document.to_string()),
        }
    }

    pub(crate) async fn answer(&self, request: Request) -> Response {
        let host = Arc::clone(&self.host);
        let (parts, body) = request.into_parts();
        let found = routes::find(&parts.method, parts.uri.path(), host.config().conformance);
        let mut caller = None;
        let route = found.route.map_or("unmatched", |route| route.path);
        let has_page = found.route.is_some_and(|route| route.is_page);
        let is_page = has_page && page::prefers_html(&parts.headers);
        let answer = match found.route {
            Some(route) => match admit(&host, route, &found.params, &parts.extensions) {
                Err(problem) => Err(problem),
                Ok(who) => {
                    caller = who;
                    let credential = match &caller {
                        Some(caller) => CredentialId::caller(caller),
                        None => admission::asker_of(&parts.extensions),
                    };
                    match read_body(&host, route, credential, &parts.headers, body).await {
                        Err(problem) => Err(problem),
                        Ok((body, _weight)) => {
                            let call = Call {
                                host,
                                openapi: self.openapi.clone(),
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
        let mut response = match answer {
            Ok(response) => response,
            Err(problem) if is_page => interrupt_page::problem(problem),
            Err(problem) => problem.into(),
        };
        if has_page {
            response
                .headers_mut()
                .insert(header::VARY, HeaderValue::from_static("Accept"));
        }
        response.extensions_mut().insert(Handled { route, caller });
        response
    }
}

/// The error for a path without a matching route: authentication first, then whether another method exists.
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

/// Checks the credential before the body is read.
fn admit(
    host: &Host,
    route: &Route,
    params: &[String],
    extensions: &Extensions,
) -> Result<Option<Arc<Caller>>, Problem> {
    match route.access {
        Access::Public => Ok(auth::caller(extensions).ok()),
        Access::Token => {
            let token = params.first().map_or("", String::as_str);
            host.tokens().open(token, host.app().now())?;
            Ok(None)
        }
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
    credential: CredentialId,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Bytes, Option<Weight>), Problem> {
    if matches!(route.input, Input::None) || body.is_end_stream() {
        return Ok((Bytes::new(), None));
    }
    if body::is_encoded(headers) {
        let (name, codings) = body::ACCEPTED_CODINGS;
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "the body is compressed; send it as it is",
        )
        .header(name, codings));
    }
    check_media_type(route, headers)?;
    let limit = match route.access {
        Access::Scopes(_) => host.config().server.max_body_bytes,
        Access::Public | Access::Token => host.config().server.max_body_bytes.min(MAX_PUBLIC),
    };
    let timeout = host.config().server.request_timeout.as_duration();
    let read = body::read(host.admission(), body, credential, limit, timeout).await;
    match read.and_then(|read| Ok((body::weigh(host.admission(), &read, credential, limit)?, read))) {
        Ok((weight, read)) => Ok((read, Some(weight))),
        Err(BodyError::TooLarge) => Err(too_large(limit)),
        Err(BodyError::TooManyValues) => Err(too_many_values(limit)),
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

fn too_many_values(limit: usize) -> Problem {
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "payload_too_large",
        "the body holds more values than this host takes: in memory it would be larger than allowed",
    )
    .with("maxRequestBodyBytes", limit)
    .with("maxParsedBodyBytes", wopr_connect::parsed_limit(limit))
}

/// Accepts JSON or no media type, and on routes with a page also forms.
fn check_media_type(route: &Route, headers: &HeaderMap) -> Result<(), Problem> {
    if route.is_page && page::is_form(headers) {
        return Ok(());
    }
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
        Err(unsupported_media_type())
    }
}

pub(super) fn unsupported_media_type() -> Problem {
    Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media_type",
        "the body must be application/json",
    )
}
