//! The HTTP+JSON binding of both versions.
//!
//! The path selects the operation and the version. The version header must agree; a missing one means 0.3, so
//! a 1.0 path without it is rejected. Path, query and body are combined into one document, which is then
//! decoded as in any other binding. Errors are `google.rpc.Status`, including those that occur before the
//! first event of a stream.

use std::sync::Arc;

use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderValue, StatusCode, header, request::Parts};
use serde_json::Value;
use url::form_urlencoded;
use wopr_wire::{
    a2a::{
        error::A2aError,
        exchange::{Document, Form, Reply, Request},
        method::{Operation, VERSION_HEADER, Version},
        model::query_object,
        paths::{self, Verb},
        protobuf,
    },
    json::{self, Decode as _, DecodeError, Object},
    sse,
};

use super::{
    card,
    error::Error,
    ingress,
    perform::{self, Answer},
    routes::Rest,
    service::Service,
    transport,
};
use crate::{
    Host, auth, body,
    message::{Body, Response},
    telemetry::Handled,
};

/// The A2A media type. Responses default to `application/json`, which every client can read.
const A2A_JSON: &str = "application/a2a+json";

/// Answers a request to a path of the binding. Responses and errors use the A2A media type if the client
/// accepts it by name.
pub(super) async fn respond(host: Arc<Host>, place: Rest, head: &Parts, body: Body) -> Response {
    let mut response = answer(host, place, head, body).await;
    let told = response.headers().get(header::CONTENT_TYPE);
    if told.is_some_and(|told| told == "application/json") && accepts_a2a_json(&head.headers) {
        let media = HeaderValue::from_static(A2A_JSON);
        response.headers_mut().insert(header::CONTENT_TYPE, media);
    }
    response
}

async fn answer(host: Arc<Host>, place: Rest, head: &Parts, body: Body) -> Response {
    let headers = &head.headers;
    let caller = match auth::caller(&head.extensions) {
        Ok(caller) => caller,
        Err(error) => return transport::unauthenticated(error),
    };
    let Some((operation, template)) = place.operation else {
        return transport::not_allowed(&place.verbs, "the path does not take this method");
    };
    let handled = Handled {
        route: template,
        caller: Some(caller.clone()),
    };
    if body::is_encoded(headers) {
        return transport::encoded();
    }
    let body = match ingress::read_body(&host, &caller, body, 0).await {
        Ok(body) => body,
        Err(error) => return transport::no_body(error),
    };
    let _weight = match ingress::weigh(&host, &caller, &body) {
        Ok(weight) => weight,
        Err(error) => return transport::no_body(error),
    };
    let form = Form::http(operation, place.version);
    let service = Service::new(Arc::clone(&host));
    let read = || -> Result<_, Error> {
        ingress::demand_version(&head.uri, headers, place.version)?;
        perform::demand_offered(operation)?;
        let document = document(&place, operation, head, &body)?;
        let call = ingress::call(caller, place.interface.clone(), place.version, headers)?;
        let request = Request::decode(operation, form, document).map_err(A2aError::from)?;
        Ok((call, request))
    };
    let read = read();
    // Free the body while the answer waits for the disk, or for the run.
    drop(body);
    let answered = match read {
        Ok((call, request)) => service.perform(&call, request).await,
        Err(error) => Err(error),
    };
    let mut response = match answered {
        Ok(Answer::Reply(reply)) => {
            let body = match (*reply, place.version) {
                (Reply::Card(card), Version::V0_3) => card::old_http(&host, card),
                (reply, Version::V0_3 | Version::V1_0) => serde_json::to_vec(&reply.into_document(form)),
            };
            match body {
                Ok(body) => reply_response(headers, operation, body),
                Err(error) => {
                    tracing::error!(%error, "a2a reply does not serialise");
                    transport::error_response(&host, &A2aError::Internal, place.version)
                }
            }
        }
        Ok(Answer::Stream(stream)) => {
            transport::event_stream(*stream, move |out, item| {
                let frame = sse::Head {
                    id: item.id,
                    event: None,
                };
                let document = Document::item(item.response, item.is_final, form);
                if let Err(error) = sse::write_json(out, frame, &document) {
                    tracing::error!(%error, "a2a update does not serialise");
                }
            })
            .await
        }
        Err(error) => transport::refuse(&host, &error, place.version),
    };
    response.extensions_mut().insert(handled);
    response
}

/// Responds to an unknown path below an interface. A caller that fails authentication does not learn that the
/// path is unknown.
pub(super) fn nothing(extensions: &Extensions) -> Response {
    match auth::caller(extensions) {
        Ok(_) => transport::nothing("there is no such operation"),
        Err(error) => transport::unauthenticated(error),
    }
}

/// Returns `true` if the operation needs no body.
const fn may_be_blank(operation: Operation) -> bool {
    match operation {
        Operation::CancelTask | Operation::SubscribeToTask => true,
        Operation::SendMessage
        | Operation::SendStreamingMessage
        | Operation::GetTask
        | Operation::ListTasks
        | Operation::CreatePushConfig
        | Operation::GetPushConfig
        | Operation::ListPushConfigs
        | Operation::DeletePushConfig
        | Operation::GetExtendedAgentCard => false,
    }
}

/// Combines path, query and body into one document.
fn document(place: &Rest, operation: Operation, head: &Parts, body: &Bytes) -> Result<Value, Error> {
    let mut object = if Verb::from_name(head.method.as_str()) == Some(Verb::Post) {
        let mut object = read_object(operation, &head.headers, body)?;
        // The JSON mapping requires readers to accept alternative member names, and the SDKs use them.
        if let Some(method) = protobuf::method(place.version, operation) {
            protobuf::canonical(method.request, &mut object);
        }
        object
    } else {
        let pairs = form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes());
        let pairs = pairs.filter(|(name, _)| !name.eq_ignore_ascii_case(VERSION_HEADER));
        let pairs = pairs.map(|(name, value)| (json::camel_name(&name).into_owned(), value));
        Object::decode(query_object(pairs)).map_err(A2aError::from)?
    };
    paths::bind(place.version, operation, &place.names, &mut object).map_err(A2aError::from)?;
    if let Some(tenant) = &place.tenant {
        bind_tenant(tenant, &mut object).map_err(A2aError::from)?;
    }
    Ok(Value::Object(object))
}

fn read_object(operation: Operation, headers: &HeaderMap, body: &Bytes) -> Result<Object, A2aError> {
    if may_be_blank(operation) && body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Object::new());
    }
    ingress::demand_json(headers)?;
    Ok(json::from_slice(body)?)
}

/// Requires that path and body name the same tenant if both do. The tenant selects nothing.
fn bind_tenant(tenant: &str, request: &mut Object) -> Result<(), DecodeError> {
    let given = request.insert("tenant".to_owned(), tenant.into());
    match given {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(given)) if given.is_empty() || given == tenant => Ok(()),
        Some(_) => Err(DecodeError::invalid("is not the one in the path").in_field("tenant")),
    }
}

fn reply_response(headers: &HeaderMap, operation: Operation, body: Vec<u8>) -> Response {
    match operation {
        Operation::GetExtendedAgentCard => card::of_caller(headers, body),
        Operation::SendMessage
        | Operation::SendStreamingMessage
        | Operation::GetTask
        | Operation::ListTasks
        | Operation::CancelTask
        | Operation::SubscribeToTask
        | Operation::CreatePushConfig
        | Operation::GetPushConfig
        | Operation::ListPushConfigs
        | Operation::DeletePushConfig => transport::json_response(StatusCode::OK, body),
    }
}

/// Returns `true` if the client accepts the A2A media type by name.
fn accepts_a2a_json(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let is_named = parts
                .next()
                .is_some_and(|essence| essence.eq_ignore_ascii_case(A2A_JSON));
            let is_refused = parts.any(|part| part.strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0)));
            is_named && !is_refused
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a2a_media_type_is_used_only_if_named() {
        for (accept, wanted) in [
            ("application/a2a+json", true),
            ("text/html, Application/A2A+JSON;q=0.5", true),
            ("application/json", false),
            ("*/*", false),
            ("application/a2a+json;q=0", false),
            ("application/a2a+json; q=0.0, */*", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(accepts_a2a_json(&headers), wanted, "{accept}");
        }
    }
}
