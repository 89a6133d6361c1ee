//! The JSON-RPC binding: every request is a POST to one URL.

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use reqwest::{Method, Response, header::CONTENT_TYPE};
use serde_json::Value;
use wopr_wire::{
    a2a::{
        exchange::{self, Form, Reply, Request},
        rpc::{self, Id},
    },
    sse,
};

use super::{
    line::{Items, Line},
    refusal,
};
use crate::{
    client,
    exit::{Exit, Failure},
};

/// Sends a request and waits for the reply.
pub(super) async fn call(line: &Line, request: Request) -> Result<Reply> {
    let operation = request.operation();
    let response = post(line, request, "application/json", None).await?;
    let result = result_of(line, response).await?;
    Reply::decode(operation, Form::rpc(line.version()), result).map_err(|error| line.unreadable(&error))
}

/// Opens a stream. A response that is not a stream is an error.
pub(super) async fn open(line: &Line, request: Request, last: Option<&str>) -> Result<Items> {
    let form = Form::rpc(line.version());
    let response = post(line, request, sse::CONTENT_TYPE, last).await?;
    if !client::is_event_stream(&response) {
        result_of(line, response).await?;
        return Err(client::no_stream(line.endpoint()).into());
    }
    Ok(Box::pin(client::events(response).map(move |event| {
        let event = event?;
        let response = rpc::Response::parse(event.data.as_bytes()).context("read an event of the stream")?;
        let result = response.outcome.map_err(|error| refusal::of_rpc(&error))?;
        let item = exchange::read_item(form, result).context("read an event of the stream")?;
        Ok((Some(event.id).filter(|id| !id.is_empty()), item))
    })))
}

async fn post(line: &Line, request: Request, accept: &str, last: Option<&str>) -> Result<Response> {
    let operation = request.operation();
    let method = operation.rpc_method(line.version()).ok_or_else(|| {
        Failure::new(
            Exit::Failed,
            format!("A2A {} has no such operation over JSON-RPC", line.version()),
        )
        .hint("its HTTP+JSON binding has it: --binding http-json, if the agent offers that")
    })?;
    let params = request.into_document(Form::rpc(line.version()));
    let params = params.context("write the request")?;
    let body = rpc::encode_request(&Id::Int(1), method, &params).context("write the request")?;
    let request = line
        .request(operation, Method::POST, line.at(str::to_owned))
        .header(CONTENT_TYPE, "application/json")
        .body(body);
    line.send(request, accept, last).await
}

/// Extracts the result from a response, or its error.
async fn result_of(line: &Line, response: Response) -> Result<Value> {
    let status = response.status();
    let body = line.read(response).await?;
    match rpc::Response::parse(&body) {
        Ok(response) => Ok(response.outcome.map_err(|error| refusal::of_rpc(&error))?),
        Err(_) if !status.is_success() => Err(refusal::of_http(status, &body, line.has_key()).into()),
        Err(error) => Err(line.unreadable(&error)),
    }
}
