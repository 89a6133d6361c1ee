//! The JSON-RPC binding: every request is a POST to one URL.

use futures_util::StreamExt as _;
use http::{Method, StatusCode};
use serde_json::Value;
use wopr_wire::{
    a2a::{
        error::Kind,
        exchange::{self, Form, Reply, Request},
        rpc::{self, Id},
    },
    sse,
};

use super::{
    error::{Error, of_body},
    line::{Items, Line, MAX_EVENT, Sending, is_event_stream, read},
};
use crate::{egress::LimitedBody, events};

/// The id of every request: each has an exchange of its own.
const ID: Id = Id::Int(1);

/// Sends a request and waits for the reply.
pub(super) async fn call(line: &Line, request: Request) -> Result<Reply, Error> {
    let operation = request.operation();
    let response = post(line, request, "application/json", None).await?;
    let result = result_of(line, response).await?;
    Reply::decode(operation, Form::rpc(line.version()), result).map_err(|error| line.undecodable(&error))
}

/// Opens a stream. A response that is not a stream is an error.
pub(super) async fn open(line: &Line, request: Request, last: Option<&str>) -> Result<Items, Error> {
    let form = Form::rpc(line.version());
    let response = post(line, request, sse::CONTENT_TYPE, last).await?;
    if !is_event_stream(&response) {
        result_of(line, response).await?;
        return Err(Error::NoStream);
    }
    let secrets = line.secrets.clone();
    Ok(Box::pin(events(response.into_body(), MAX_EVENT).map(
        move |event| {
            let event = event?;
            let unreadable = |error: &dyn std::fmt::Display| Error::undecodable(error, &secrets);
            let response = rpc::Response::parse(event.data.as_bytes()).map_err(|error| unreadable(&error))?;
            check_id(&response)?;
            let mut result = response
                .outcome
                .map_err(|error| Error::of_rpc(&error, &secrets))?;
            secrets.redact(&mut result);
            let item = exchange::read_item(form, result).map_err(|error| unreadable(&error))?;
            Ok((Some(event.id).filter(|id| !id.is_empty()), item))
        },
    )))
}

async fn post(
    line: &Line,
    request: Request,
    accept: &'static str,
    last: Option<&str>,
) -> Result<http::Response<LimitedBody>, Error> {
    let (operation, version) = (request.operation(), line.version());
    let method = operation
        .rpc_method(version)
        .ok_or(Error::NotOffered { operation, version })?;
    let params = request.into_document(Form::rpc(version))?;
    let body =
        rpc::encode_request(&ID, method, &params).map_err(|error| Error::Unwritable(error.to_string()))?;
    line.send(Sending {
        operation,
        method: Method::POST,
        url: line.at(str::to_owned),
        content_type: Some("application/json"),
        body: body.into(),
        accept,
        last,
    })
    .await
}

/// Extracts the result from a response, or its error.
async fn result_of(line: &Line, response: http::Response<LimitedBody>) -> Result<Value, Error> {
    let answer = read(response).await?;
    let of_http = || Error::of_http(answer.status, &answer.headers, &answer.body, &line.secrets);
    if answer.status == StatusCode::UNAUTHORIZED {
        // Whatever its body says, the credential was refused.
        return Err(of_http());
    }
    // Whatever the body says, the peer has not taken the request and says when to come back.
    let is_pressed = matches!(
        answer.status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    );
    match rpc::Response::parse(&answer.body) {
        Ok(response) if !is_pressed => {
            check_id(&response)?;
            let mut result = match response.outcome {
                Ok(result) => result,
                // The status tells more than that it failed inside.
                Err(error) if answer.status.is_server_error() && says_no_more(&error) => {
                    return Err(of_http());
                }
                Err(error) => return Err(Error::of_rpc(&error, &line.secrets)),
            };
            line.secrets.redact(&mut result);
            Ok(result)
        }
        Ok(_) => Err(Error::of_status(answer.status, &answer.headers)),
        Err(_) if !answer.status.is_success() => Err(of_http()),
        Err(error) => Err(of_body(&error, &line.secrets)),
    }
}

/// Whether an error is none of A2A's own, and says no more than that the peer failed.
fn says_no_more(error: &rpc::RemoteError) -> bool {
    matches!(Kind::from_code(error.code), None | Some(Kind::Internal))
}

/// Refuses the answer to another request. An error may have no id: its peer could not read ours.
fn check_id(response: &rpc::Response) -> Result<(), Error> {
    match (&response.id, &response.outcome) {
        (id, _) if *id == ID => Ok(()),
        (Id::Null, Err(_)) => Ok(()),
        _ => Err(Error::Undecodable(
            "it is the answer to another request".to_owned(),
        )),
    }
}
