//! The control plane over REST: `/awp/v1/…` on the host's listener, `/v1/…` on one of its own.
//!
//! A request is authenticated, then its body is read, then it becomes a call of an operation. Errors have the shape of
//! the protocol, also those of requests that never reach an operation.

mod description;
mod register;
mod route;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body::Body as _;
use serde_json::{Value, json};
use url::form_urlencoded;
use wopr_app::Scope;
use wopr_core::{Object, WorkflowId};
use wopr_wire::json;

use self::{register::register, route::Route};
use super::{
    call::{Request as Operation, call, import},
    error::{Code, Error},
    execution::find,
    history::{self, Part},
    stable,
    tool::Tool,
};
use crate::{
    Host,
    auth::{self, Caller},
    body::{self, BodyError, Weight},
    credential_id::CredentialId,
    message::{Body, Request, Response},
    telemetry::{self, Handled, NoFault},
};

/// What paths begin with on the host's listener.
const PREFIX: &str = "/awp";
/// The origin of runs that are started over this surface.
const ORIGIN: &str = "awp";
/// The longest idempotency key, in bytes.
const MAX_KEY: usize = 255;

#[derive(Debug)]
pub(crate) struct Face {
    host: Arc<Host>,
    description: Bytes,
    /// The path prefix before the paths of the protocol.
    prefix: &'static str,
}

/// 503: there is no memory for the answer.
pub(crate) fn unavailable() -> Response {
    respond(Err(Error::new(Code::Unavailable, "The host is busy. Try again.")))
}

/// 401: the request has no credential, or one that is not accepted.
pub(crate) fn unauthenticated() -> Response {
    let error = Error::new(Code::AuthError, "The request has no valid credential.");
    let mut response = respond(Err(error.with(json!({ "reason": "missing_or_invalid" }))));
    response
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

impl Face {
    pub(crate) fn new(host: &Arc<Host>) -> Self {
        Self::below(host, PREFIX)
    }

    /// For a listener that serves only this surface.
    pub(crate) fn at_root(host: &Arc<Host>) -> Self {
        Self::below(host, "")
    }

    fn below(host: &Arc<Host>, prefix: &'static str) -> Self {
        // The listener of its own may have any address: paths there are relative to the description's.
        let origin = if prefix.is_empty() { "/" } else { host.public_url() };
        let description = description::document(origin, prefix);
        Self {
            host: Arc::clone(host),
            description: Bytes::from(description.to_string()),
            prefix,
        }
    }

    /// Whether the listener serves nothing else.
    pub(crate) const fn is_alone(&self) -> bool {
        self.prefix.is_empty()
    }

    /// Whether a request is for this surface.
    pub(crate) fn is_wanted(&self, request: &Request) -> bool {
        let rest = request.uri().path().strip_prefix(self.prefix);
        rest.is_some_and(|rest| rest.starts_with('/'))
    }

    pub(crate) async fn answer(&self, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        let path = path.strip_prefix(self.prefix).unwrap_or(path);
        let Some(route) = Route::find(&parts.method, path) else {
            let error = Error::new(Code::NotFound, format!("There is no {} {path}.", parts.method));
            return handled(respond(Err(error)), "unmatched", None);
        };
        let template = route.template();
        if route == Route::Describe {
            let response = bytes_response(StatusCode::OK, self.description.clone());
            return handled(response, template, None);
        }
        let Ok(caller) = auth::caller(&parts.extensions) else {
            return handled(unauthenticated(), template, None);
        };
        let query = parts.uri.query().unwrap_or("");
        let answer = match self.read(&route, &caller, &parts.headers, body).await {
            Ok((body, _weight)) => {
                let performed = self.perform(route, &caller, (query, &parts.headers), body).await;
                performed.map_err(|error| error.for_caller(&caller))
            }
            Err(error) => Err(error),
        };
        handled(respond(answer), template, Some(caller))
    }

    /// Reads the body of a request: an object.
    async fn read(
        &self,
        route: &Route,
        caller: &Caller,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<(Object, Option<Weight>), Error> {
        if !route.has_body() || body.is_end_stream() {
            return Ok((Object::new(), None));
        }
        if body::is_encoded(headers) {
            return Err(Error::new(
                Code::UnsupportedMediaType,
                "The body is compressed. Send it as it is.",
            ));
        }
        let media = headers.get(header::CONTENT_TYPE).map(HeaderValue::to_str);
        let is_json = |media: &str| {
            media
                .split(';')
                .next()
                .is_some_and(|media| media.trim().ends_with("json"))
        };
        if media.is_some_and(|media| !media.is_ok_and(is_json)) {
            return Err(Error::new(Code::Validation, "The body must be application/json."));
        }
        let (admission, server) = (self.host.admission(), &self.host.config().server);
        let credential = CredentialId::caller(caller);
        let (limit, timeout) = (server.max_body_bytes, server.request_timeout.as_duration());
        let read = body::read(admission, body, credential, limit, timeout).await;
        let read = read.and_then(|read| Ok((body::weigh(admission, &read, credential, limit)?, read)));
        let (weight, bytes) = read.map_err(|error| match error {
            BodyError::TooLarge | BodyError::TooManyValues => {
                Error::new(Code::Validation, "The body is larger than this host takes.")
                    .with(json!({ "maxBytes": limit }))
            }
            BodyError::CutOff => Error::new(Code::Validation, "The body was cut off."),
            BodyError::Slow => Error::new(Code::Validation, "The body did not arrive in time."),
            BodyError::Busy => Error::new(Code::Unavailable, "The host is busy. Try again."),
        })?;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok((Object::new(), Some(weight)));
        }
        match json::parse(&bytes) {
            Ok(Value::Object(body)) => Ok((body, Some(weight))),
            Ok(_) => Err(Error::new(Code::Validation, "The body must be an object.")),
            Err(error) => Err(Error::new(
                Code::Validation,
                format!("The body is not valid JSON: {error}."),
            )),
        }
    }

    async fn perform(
        &self,
        route: Route,
        caller: &Caller,
        (query, headers): (&str, &HeaderMap),
        body: Object,
    ) -> Result<(StatusCode, Value), Error> {
        let host = &*self.host;
        let mut body = body;
        let is_registered = matches!(route, Route::Start(_));
        let (tool, execution) = match route {
            Route::Describe => return Ok((StatusCode::OK, Value::Null)),
            Route::Register => return register(host, caller, headers, body).await,
            Route::Workflow(id) => {
                let workflow = self.workflow(caller, &id).await?;
                let definition = wopr_app::definition(&workflow);
                return Ok((StatusCode::OK, json!({ "wf_id": id, "definition": definition })));
            }
            Route::Events(id) => {
                let part = part(query)?;
                let view = find(host, caller, &id, Scope::RunsRead).await?;
                let page = history::page(host, &view, part).await?;
                // The last page shows what the execution asks.
                if part.to.is_none() && page.get("next_cursor").is_none() {
                    stable::look(host.app(), view).await?.0.note(host.app(), caller);
                }
                return Ok((StatusCode::OK, page));
            }
            Route::Checkpoint(id) => {
                let view = find(host, caller, &id, Scope::RunsRead).await?;
                let checkpoint = history::checkpoint(host, &view).await?;
                stable::look(host.app(), view).await?.0.note(host.app(), caller);
                return Ok((StatusCode::OK, checkpoint));
            }
            Route::List => {
                body = listed(query)?;
                (Tool::List, None)
            }
            Route::Import => {
                let operation = Operation {
                    idempotency_key: idempotency_key(headers)?,
                    trace: telemetry::trace_of(headers),
                    ..Operation::new(Tool::Start, body, ORIGIN)
                };
                return Ok((StatusCode::CREATED, import(host, caller, operation).await?));
            }
            Route::Start(id) => {
                let permit = caller.permit_start()?;
                let workflow = WorkflowId::parse(&id).map_err(|_| no_workflow(&id))?;
                let found = host.app().find_workflow(permit, &workflow).await?;
                let found = found.filter(|plan| plan.awp().is_some() && plan.is_active());
                let plan = found.ok_or_else(|| no_workflow(&id))?;
                refuse(&body, "definition")?;
                body.insert("definition".to_owned(), plan.document().clone());
                body.entry("input")
                    .or_insert_with(|| Value::Object(Object::new()));
                (Tool::Start, None)
            }
            Route::Status(id) => (Tool::Status, Some(id)),
            Route::Resume(id) => (Tool::Resume, Some(id)),
            Route::Submit(id) => {
                body.entry("input")
                    .or_insert_with(|| Value::Object(Object::new()));
                (Tool::SubmitActivity, Some(id))
            }
            Route::Signal(id) => {
                body.entry("input")
                    .or_insert_with(|| Value::Object(Object::new()));
                (Tool::Signal, Some(id))
            }
            Route::Cancel(id) => (Tool::Cancel, Some(id)),
        };
        if let Some(execution) = execution {
            refuse(&body, "execution_id")?;
            body.insert("execution_id".to_owned(), execution.into());
        }
        let operation = Operation {
            idempotency_key: idempotency_key(headers)?,
            trace: telemetry::trace_of(headers),
            is_registered,
            ..Operation::new(tool, body, ORIGIN)
        };
        Ok((StatusCode::OK, call(host, caller, operation).await?))
    }

    /// A workflow in the language of the protocol.
    async fn workflow(&self, caller: &Caller, id: &str) -> Result<Arc<wopr_core::Plan>, Error> {
        let workflow = WorkflowId::parse(id).map_err(|_| no_workflow(id))?;
        let found = self.host.app().read_workflow(caller, &workflow).await?;
        let found = found.filter(|plan| plan.awp().is_some());
        found.ok_or_else(|| no_workflow(id))
    }
}

fn no_workflow(id: &str) -> Error {
    Error::new(
        Code::WorkflowNotFound,
        format!("Workflow definition \"{id}\" was not found."),
    )
}

/// Refuses a member of the body that the path says.
fn refuse(body: &Object, name: &str) -> Result<(), Error> {
    match body.contains_key(name) {
        false => Ok(()),
        true => Err(Error::new(
            Code::Validation,
            format!("{name} is said by the path"),
        )),
    }
}

/// The part of a history that a query asks for.
fn part(query: &str) -> Result<Part, Error> {
    let mut part = Part::default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let number = value.parse().ok().filter(|number| *number >= 1);
        let rule = || {
            Error::new(
                Code::Validation,
                format!("{name} must be a whole number from 1 on"),
            )
        };
        let number = Some(number.ok_or_else(rule)?);
        match &*name {
            "from_seq" | "cursor" => part.from = number,
            "to_seq" => part.to = number,
            "limit" => part.limit = number,
            name => {
                return Err(Error::new(
                    Code::Validation,
                    format!("{name} is not a known parameter"),
                ));
            }
        }
    }
    Ok(part)
}

/// The arguments of a list in a query.
fn listed(query: &str) -> Result<Object, Error> {
    let mut arguments = Object::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let value = match &*name {
            "limit" => {
                let rule = || Error::new(Code::Validation, "limit must be from 1 to 100");
                Value::from(value.parse::<u64>().map_err(|_| rule())?)
            }
            _ => Value::from(&*value),
        };
        arguments.insert(name.into_owned(), value);
    }
    Ok(arguments)
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Error> {
    const NAME: &str = "idempotency-key";
    let mut given = headers.get_all(NAME).iter();
    let Some(value) = given.next() else {
        return Ok(None);
    };
    let key = value
        .to_str()
        .ok()
        .filter(|key| (1..=MAX_KEY).contains(&key.len()));
    match key.filter(|_| given.next().is_none()) {
        Some(key) => Ok(Some(key.to_owned())),
        None => Err(Error::new(
            Code::Validation,
            "Idempotency-Key must be 1 to 255 visible characters",
        )),
    }
}

fn respond(answer: Result<(StatusCode, Value), Error>) -> Response {
    let (status, body, code) = match answer {
        Ok((status, body)) => (status, body, None),
        Err(error) => (error.status(), error.body(), Some(error.code)),
    };
    let mut response = bytes_response(status, Bytes::from(body.to_string()));
    if code == Some(Code::UnsupportedMediaType) {
        let (name, codings) = body::ACCEPTED_CODINGS;
        response.headers_mut().insert(name, codings);
    }
    // The protocol has a status of the server's for a run that fails.
    if code == Some(Code::EngineFailure) {
        response.extensions_mut().insert(NoFault);
    }
    response
}

fn bytes_response(status: StatusCode, bytes: Bytes) -> Response {
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("private, no-cache"),
    );
    response
}

fn handled(mut response: Response, route: &'static str, caller: Option<Arc<Caller>>) -> Response {
    response.extensions_mut().insert(Handled { route, caller });
    response
}
