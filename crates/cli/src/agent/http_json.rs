//! The HTTP+JSON binding: a method and a path per operation, with the remaining parameters in the query or
//! body.
//!
//! In 0.3 the documents are ProtoJSON, and some agents use the field names of protocol buffers; both
//! spellings are read.

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use reqwest::{Method, Response, StatusCode, header::CONTENT_TYPE};
use serde_json::Value;
use url::Url;
use wopr_wire::{
    a2a::{
        exchange::{self, Form, Reply, Request},
        method::{Operation, Version},
        paths::{self, Names, Verb},
        protobuf,
    },
    json::Object,
    sse,
};

use super::{
    line::{Items, Line},
    refusal,
};
use crate::client;

/// Sends a request and waits for the reply.
pub(super) async fn call(line: &Line, tenant: Option<&str>, request: Request) -> Result<Reply> {
    let operation = request.operation();
    let response = send(line, tenant, request, "application/json", None).await?;
    let status = response.status();
    let body = line.read(response).await?;
    if !status.is_success() {
        return Err(refusal::of_http(status, &body, line.has_key()).into());
    }
    let document = if body.iter().all(u8::is_ascii_whitespace) {
        Value::Null
    } else {
        serde_json::from_slice(&body).map_err(|error| line.unreadable(&error))?
    };
    let document = canonical(line.version(), operation, document);
    Reply::decode(operation, Form::http(operation, line.version()), document)
        .map_err(|error| line.unreadable(&error))
}

/// Opens a stream. A response that is not a stream is an error.
pub(super) async fn open(
    line: &Line,
    tenant: Option<&str>,
    request: Request,
    last: Option<&str>,
) -> Result<Items> {
    let (operation, version, has_key) = (request.operation(), line.version(), line.has_key());
    let response = send(line, tenant, request, sse::CONTENT_TYPE, last).await?;
    if !client::is_event_stream(&response) {
        let status = response.status();
        let body = line.read(response).await?;
        if !status.is_success() {
            return Err(refusal::of_http(status, &body, has_key).into());
        }
        return Err(client::no_stream(line.endpoint()).into());
    }
    Ok(Box::pin(client::events(response).map(move |event| {
        let event = event?;
        let document: Value = serde_json::from_str(&event.data).context("read an event of the stream")?;
        if document.get("error").is_some() {
            // A broken stream reports its error as the last event.
            return Err(refusal::of_document(StatusCode::OK, &document, has_key).into());
        }
        let document = canonical(version, operation, document);
        let item = exchange::read_item(Form::http(operation, version), document);
        let item = item.context("read an event of the stream")?;
        Ok((Some(event.id).filter(|id| !id.is_empty()), item))
    })))
}

/// Sends a request, and retries with the fallback method if the agent rejects the first one.
async fn send(
    line: &Line,
    tenant: Option<&str>,
    request: Request,
    accept: &str,
    last: Option<&str>,
) -> Result<Response> {
    let (operation, version, names) = (request.operation(), line.version(), request.names());
    let document = request.into_document(Form::http(operation, version));
    let document = document.context("write the request")?;
    let verbs = paths::verbs(operation);
    let mut at = 0;
    loop {
        let verb = verbs[at];
        let url = address(line, tenant, operation, &names);
        let request = match verb {
            Verb::Get => line.request(
                operation,
                Method::GET,
                with_query(url, version, &names, &document),
            ),
            Verb::Delete => line.request(operation, Method::DELETE, url),
            Verb::Post => line
                .request(operation, Method::POST, url)
                .header(CONTENT_TYPE, "application/json")
                .body(serde_json::to_vec(&document).context("write the request")?),
        };
        let response = line.send(request, accept, last).await?;
        at += 1;
        if response.status() != StatusCode::METHOD_NOT_ALLOWED || at == verbs.len() {
            return Ok(response);
        }
    }
}

/// Builds the URL of an operation, below the tenant if the interface has one.
fn address(line: &Line, tenant: Option<&str>, operation: Operation, names: &Names) -> Url {
    let (_, path) = paths::path_of(line.version(), operation, names);
    line.at(|base| {
        let base = base.trim_end_matches('/');
        match tenant {
            Some(tenant) => format!("{base}/{}/{path}", client::escape(tenant)),
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
