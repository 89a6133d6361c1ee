//! The HTTP+JSON binding: a method and a path per operation, with the remaining parameters in the query or
//! body.
//!
//! In 0.3 the documents are ProtoJSON, and some agents use the field names of protocol buffers; both
//! spellings are read.

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderMap, Method, StatusCode};
use serde_json::Value;
use url::Url;
use wopr_wire::{
    a2a::{
        exchange::{self, Form, Reply, Request},
        method::{Operation, Version},
        paths::{self, Names, Verb},
        protobuf,
    },
    json::{self, Object},
    sse,
};

use super::{
    error::{Error, of_body},
    line::{Items, Line, MAX_EVENT, Sending, is_event_stream, read},
};
use crate::{egress::LimitedBody, events};

/// Sends a request and waits for the reply.
pub(super) async fn call(line: &Line, request: Request) -> Result<Reply, Error> {
    let operation = request.operation();
    let response = send(line, request, "application/json", None).await?;
    let answer = read(response).await?;
    if !answer.status.is_success() {
        let error = Error::of_http(answer.status, &answer.headers, &answer.body, &line.secrets);
        return Err(error.about_task(operation));
    }
    let mut document = if answer.body.iter().all(u8::is_ascii_whitespace) {
        Value::Null
    } else {
        json::parse(&answer.body).map_err(|error| of_body(&error, &line.secrets))?
    };
    line.secrets.redact(&mut document);
    let document = canonical(line.version(), operation, document);
    Reply::decode(operation, Form::http(operation, line.version()), document)
        .map_err(|error| line.undecodable(&error))
}

/// Opens a stream. A response that is not a stream is an error.
pub(super) async fn open(line: &Line, request: Request, last: Option<&str>) -> Result<Items, Error> {
    let (operation, version) = (request.operation(), line.version());
    let response = send(line, request, sse::CONTENT_TYPE, last).await?;
    if !is_event_stream(&response) {
        let answer = read(response).await?;
        if !answer.status.is_success() {
            let error = Error::of_http(answer.status, &answer.headers, &answer.body, &line.secrets);
            return Err(error.about_task(operation));
        }
        return Err(Error::NoStream);
    }
    let secrets = line.secrets.clone();
    Ok(Box::pin(events(response.into_body(), MAX_EVENT).map(
        move |event| {
            let event = event?;
            let unreadable = |error: &dyn std::fmt::Display| Error::undecodable(error, &secrets);
            let mut document: Value =
                serde_json::from_str(&event.data).map_err(|error| unreadable(&error))?;
            if document.get("error").is_some() {
                // A broken stream reports its error as the last event.
                let none = HeaderMap::new();
                return Err(Error::of_document(StatusCode::OK, &none, &document, &secrets));
            }
            secrets.redact(&mut document);
            let document = canonical(version, operation, document);
            let item = exchange::read_item(Form::http(operation, version), document);
            let item = item.map_err(|error| unreadable(&error))?;
            Ok((Some(event.id).filter(|id| !id.is_empty()), item))
        },
    )))
}

/// Sends a request, and retries with the fallback method if the agent rejects the first one.
async fn send(
    line: &Line,
    request: Request,
    accept: &'static str,
    last: Option<&str>,
) -> Result<http::Response<LimitedBody>, Error> {
    let (operation, version, names) = (request.operation(), line.version(), request.names());
    let document = request.into_document(Form::http(operation, version))?;
    let verbs = paths::verbs(operation);
    let mut at = 0;
    loop {
        let url = address(line, operation, &names);
        let (method, url, body) = match verbs[at] {
            Verb::Get => (
                Method::GET,
                with_query(url, version, &names, &document),
                Bytes::new(),
            ),
            Verb::Delete => (Method::DELETE, url, Bytes::new()),
            Verb::Post => {
                let body = serde_json::to_vec(&document);
                let body = body.map_err(|error| Error::Unwritable(error.to_string()))?;
                (Method::POST, url, body.into())
            }
        };
        let response = line
            .send(Sending {
                operation,
                content_type: (method == Method::POST).then_some("application/json"),
                method,
                url,
                body,
                accept,
                last,
            })
            .await?;
        at += 1;
        if response.status() != StatusCode::METHOD_NOT_ALLOWED || at == verbs.len() {
            return Ok(response);
        }
    }
}

/// Builds the URL of an operation, below the tenant if the interface has one.
fn address(line: &Line, operation: Operation, names: &Names) -> Url {
    let (_, path) = paths::path_of(line.version(), operation, names);
    line.at(|base| {
        let base = base.trim_end_matches('/');
        match &line.found.tenant {
            Some(tenant) => format!("{base}/{}/{path}", paths::escape(tenant)),
            None => format!("{base}/{path}"),
        }
    })
}

/// Adds the parameters that are not part of the path to the query.
fn with_query(mut url: Url, version: Version, names: &Names, document: &Object) -> Url {
    let mut rest = document.clone();
    paths::unbind(version, names, &mut rest);
    rest.remove("tenant");
    for (name, value) in &rest {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            // No GET request has such parameters.
            Value::Null | Value::Array(_) | Value::Object(_) => continue,
        };
        url.query_pairs_mut().append_pair(name, &text);
    }
    url
}

/// Normalizes the spelling of a response. The card over HTTP is that of JSON-RPC, which has a single
/// spelling.
fn canonical(version: Version, operation: Operation, mut document: Value) -> Value {
    if operation != Operation::GetExtendedAgentCard
        && let (Some(method), Value::Object(object)) = (protobuf::method(version, operation), &mut document)
    {
        protobuf::canonical(method.response, object);
    }
    document
}
