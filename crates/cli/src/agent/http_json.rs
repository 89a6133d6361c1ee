//! HTTP+JSON: an operation is a method and a path, and its parameters are what the path leaves over.
//!
//! In 0.3 the documents are ProtoJSON, and some agents spell it as protocol buffers do; both are read.

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

/// Asks and waits for the reply.
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

/// Opens a stream; an answer that is none is an error.
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
            // A stream that breaks says so as its last event.
            return Err(refusal::of_document(StatusCode::OK, &document, has_key).into());
        }
        let document = canonical(version, operation, document);
        let item = exchange::read_item(Form::http(operation, version), document);
        let item = item.context("read an event of the stream")?;
        Ok((Some(event.id).filter(|id| !id.is_empty()), item))
    })))
}

/// Sends a request, by another method where the agent does not take the first.
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

/// Where an operation is; below its tenant, if the interface has one.
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

/// Puts what the path does not say into the query.
fn with_query(mut url: Url, version: Version, names: &Names, document: &Object) -> Url {
    let mut rest = document.clone();
    paths::unbind(version, names, &mut rest);
    rest.remove("tenant");
    for (name, value) in &rest {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            // No request that is sent by GET has any.
            Value::Null | Value::Array(_) | Value::Object(_) => continue,
        };
        url.query_pairs_mut().append_pair(name, &text);
    }
    url
}

/// Respells an answer as it is read. The card over HTTP is the one of JSON-RPC, which has one spelling.
fn canonical(version: Version, operation: Operation, mut document: Value) -> Value {
    if operation != Operation::GetExtendedAgentCard
        && let (Some(method), Value::Object(object)) = (protobuf::method(version, operation), &mut document)
    {
        protobuf::canonical(method.response, object);
    }
    document
}
