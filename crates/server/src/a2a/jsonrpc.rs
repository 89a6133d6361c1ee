//! The JSON-RPC binding of both versions, on one address.
//!
//! The name of a method tells its version: 0.3 has slashes, 1.0 capitals. The version header must agree, and a
//! missing one means 0.3, so a 1.0 method without it is refused rather than guessed. Requests of 0.3 are converted
//! on the way in and results on the way out; in between there is one model. Errors answer 200, as JSON-RPC over HTTP does.

use std::{convert::Infallible, sync::Arc};

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use futures_util::stream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use serde::Serialize;
use serde_json::Value;
use wopr_core::WorkflowId;
use wopr_wire::{
    a2a::{
        error::A2aError,
        method::{Operation, VERSION_HEADER, Version},
        model::{
            CancelTaskRequest, GetExtendedAgentCardRequest, GetTaskRequest, ListTasksRequest,
            SendMessageRequest, SubscribeToTaskRequest,
        },
        rpc::{self, Id, Rejection, Request},
        v03,
    },
    json::Decode,
    sse,
};

use super::{
    service::{Call, Error, Service},
    stream::{Item, Step, TaskStream},
    transport,
};
use crate::{
    Host,
    body::{self, BodyError},
};

/// The header a client names the last event it saw in.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// An error, and what a client of which version is told of it under which id.
struct Refused {
    id: Id,
    version: Version,
    error: Error,
}

/// Answers a request to an interface, that of one workflow or that of all.
pub(super) async fn respond(
    host: Arc<Host>,
    interface: Option<WorkflowId>,
    uri: &Uri,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    let caller = match host.keyring().authenticate(headers).await {
        Ok(caller) => caller,
        Err(error) => return transport::unauthenticated(error),
    };
    let body = match read_body(&host, body).await {
        Ok(body) => body,
        Err(response) => return *response,
    };
    let asked = asked_version(uri, headers);
    let envelope = match read_envelope(headers, &body, asked.as_ref()) {
        Ok(envelope) => envelope,
        Err(refused) => return refuse(&refused),
    };
    let Envelope {
        id,
        operation,
        version,
        params,
    } = envelope;
    let call = last_event_id(headers).map(|last_event_id| Call {
        caller,
        interface,
        last_event_id,
        trace: trace_of(headers),
    });
    let service = Service::new(host);
    let answer = match call {
        Ok(call) => dispatch(service, call, operation, version, &id, params).await,
        Err(error) => Err(error.into()),
    };
    answer.unwrap_or_else(|error| refuse(&Refused { id, version, error }))
}

/// The trace context, which by now is this host's own span.
fn trace_of(headers: &HeaderMap) -> Option<String> {
    headers.get("traceparent")?.to_str().ok().map(ToOwned::to_owned)
}

/// Reads the body, bounded in size and time.
async fn read_body(host: &Host, body: Body) -> Result<Bytes, Box<Response>> {
    let config = &host.config().server;
    let patience = config.request_timeout.as_duration();
    let (status, name, message) = match body::read(body, config.max_body_bytes, patience).await {
        Ok(body) => return Ok(body),
        Err(BodyError::TooLarge) => (
            StatusCode::PAYLOAD_TOO_LARGE,
            "RESOURCE_EXHAUSTED",
            "the body is too large",
        ),
        Err(BodyError::CutOff) => (
            StatusCode::BAD_REQUEST,
            "INVALID_ARGUMENT",
            "the body was cut off",
        ),
        Err(BodyError::Slow) => (
            StatusCode::REQUEST_TIMEOUT,
            "DEADLINE_EXCEEDED",
            "the body took too long",
        ),
    };
    let mut response = transport::status_response(status, name, message);
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    Err(Box::new(response))
}

/// The version a client asks for, by header or by query parameter.
fn asked_version(uri: &Uri, headers: &HeaderMap) -> Result<Version, A2aError> {
    if let Some(value) = headers.get(VERSION_HEADER) {
        let text = value.to_str().map_err(|_| A2aError::version_not_supported("?"))?;
        return Version::from_header(Some(text));
    }
    let pairs = uri.query().unwrap_or_default().split('&');
    let named = pairs
        .filter_map(|pair| pair.split_once('='))
        .find(|(name, _)| name.eq_ignore_ascii_case(VERSION_HEADER));
    Version::from_header(named.map(|(_, value)| value))
}

/// The last event a client saw; text that names none is a mistake, not a fresh start.
fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, A2aError> {
    let Some(value) = headers.get(LAST_EVENT_ID) else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or("?").trim();
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse() {
        Ok(id) => Ok(Some(id)),
        Err(_) => Err(A2aError::invalid_param(
            "Last-Event-ID",
            "must be the id of an event",
        )),
    }
}

/// A request that names an operation.
struct Envelope {
    id: Id,
    operation: Operation,
    version: Version,
    params: Option<Value>,
}

fn read_envelope(
    headers: &HeaderMap,
    body: &[u8],
    asked: Result<&Version, &A2aError>,
) -> Result<Envelope, Refused> {
    // An error before the method is known is told in the version asked for; both know these codes.
    let spoken = asked.copied().unwrap_or(Version::V1_0);
    let parsed = Request::parse(body);
    if !is_json(headers) {
        let id = match parsed {
            Ok(request) => request.id,
            Err(Rejection { id, .. }) => id,
        };
        let detail = "requests are application/json".to_owned();
        let error = A2aError::ContentTypeNotSupported { detail }.into();
        return Err(Refused {
            id,
            version: spoken,
            error,
        });
    }
    let Request { id, method, params } = parsed.map_err(|Rejection { id, error }| Refused {
        id,
        version: spoken,
        error: error.into(),
    })?;
    if id == Id::Absent {
        // Nobody would hear of what a notification did, and no method here is one.
        let detail = "id is required: notifications are not taken".to_owned();
        return Err(Refused {
            id,
            version: spoken,
            error: A2aError::InvalidRequest { detail }.into(),
        });
    }
    let refused = |version, error: A2aError| {
        Err(Refused {
            id: id.clone(),
            version,
            error: error.into(),
        })
    };
    let asked = match asked {
        Ok(asked) => *asked,
        Err(error) => return refused(Version::V1_0, error.clone()),
    };
    match (Operation::from_rpc_method(&method), asked) {
        (None, _) | (Some((_, Version::V0_3)), Version::V1_0) => {
            refused(asked, A2aError::MethodNotFound { method })
        }
        (Some((_, Version::V1_0)), Version::V0_3) => refused(
            Version::V1_0,
            A2aError::VersionNotSupported {
                requested: asked.to_string(),
                supported: vec![Version::V1_0.to_string()],
            },
        ),
        (Some((operation, Version::V1_0)), Version::V1_0)
        | (Some((operation, Version::V0_3)), Version::V0_3) => Ok(Envelope {
            id,
            operation,
            version: asked,
            params,
        }),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE);
    let essence = value
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.split(';').next())
        .unwrap_or_default()
        .trim();
    ["application/json", "application/a2a+json", "application/json-rpc"]
        .iter()
        .any(|known| essence.eq_ignore_ascii_case(known))
}

async fn dispatch(
    service: Service,
    call: Call,
    operation: Operation,
    version: Version,
    id: &Id,
    params: Option<Value>,
) -> Result<Response, Error> {
    match operation {
        Operation::SendMessage => {
            let request = decode::<SendMessageRequest, v03::MessageSendParams>(version, params)?;
            let sent = service.send(&call, request).await?;
            Ok(match version {
                Version::V1_0 => success(id, &sent),
                Version::V0_3 => success(id, &v03::SendResult::from(sent)),
            })
        }
        Operation::SendStreamingMessage => {
            let request = decode::<SendMessageRequest, v03::MessageSendParams>(version, params)?;
            let stream = service.send_stream(&call, request).await?;
            Ok(event_stream(stream, version, id.clone()))
        }
        Operation::GetTask => {
            let request = decode::<GetTaskRequest, v03::TaskQueryParams>(version, params)?;
            let task = service.get(&call, request).await?;
            Ok(match version {
                Version::V1_0 => success(id, &task),
                Version::V0_3 => success(id, &v03::Task::from(task)),
            })
        }
        Operation::ListTasks => {
            let request: ListTasksRequest = rpc::decode_params(params)?;
            let tasks = service.list(&call, request).await?;
            Ok(success(id, &tasks))
        }
        Operation::CancelTask => {
            let request = decode::<CancelTaskRequest, v03::TaskIdParams>(version, params)?;
            let task = service.cancel(&call, request).await?;
            Ok(match version {
                Version::V1_0 => success(id, &task),
                Version::V0_3 => success(id, &v03::Task::from(task)),
            })
        }
        Operation::SubscribeToTask => {
            let request = decode::<SubscribeToTaskRequest, v03::TaskIdParams>(version, params)?;
            let stream = service.subscribe(&call, request).await?;
            Ok(event_stream(stream, version, id.clone()))
        }
        Operation::CreatePushConfig
        | Operation::GetPushConfig
        | Operation::ListPushConfigs
        | Operation::DeletePushConfig => Err(A2aError::PushNotificationNotSupported.into()),
        Operation::GetExtendedAgentCard => {
            let _: GetExtendedAgentCardRequest = rpc::decode_params(params)?;
            let card = service.extended_card(&call)?;
            Ok(match version {
                Version::V1_0 => success(id, &card),
                Version::V0_3 => success(id, &v03::AgentCard::from(card)),
            })
        }
    }
}

/// Reads parameters in the client's version.
fn decode<New: Decode, Old: Decode + Into<New>>(
    version: Version,
    params: Option<Value>,
) -> Result<New, A2aError> {
    match version {
        Version::V1_0 => rpc::decode_params(params),
        Version::V0_3 => rpc::decode_params::<Old>(params).map(Into::into),
    }
}

fn success<T: Serialize>(id: &Id, result: &T) -> Response {
    transport::json_response(StatusCode::OK, rpc::encode_result(id, result))
}

fn refuse(refused: &Refused) -> Response {
    let Refused { id, version, error } = refused;
    match error {
        Error::A2a(error) => transport::json_response(StatusCode::OK, rpc::encode_error(id, error, *version)),
        Error::Forbidden(scope) => transport::forbidden(*scope),
        Error::Unavailable => transport::unavailable(),
    }
}

/// A stream as server-sent events, each a whole response.
fn event_stream(stream: TaskStream, version: Version, id: Id) -> Response {
    let chunks = stream::unfold((stream, id), move |(mut stream, id)| async move {
        let chunk = match stream.next().await? {
            Step::KeepAlive => Bytes::from_static(sse::KEEP_ALIVE),
            Step::Items(items) => {
                let mut out = Vec::new();
                for item in items {
                    write(&mut out, item, version, &id);
                }
                Bytes::from(out)
            }
        };
        Some((Ok::<_, Infallible>(chunk), (stream, id)))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    for (name, value) in [
        (header::CONTENT_TYPE, sse::CONTENT_TYPE),
        (header::CACHE_CONTROL, "no-cache"),
        // Proxies that buffer would hold updates back.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

fn write(out: &mut Vec<u8>, item: Item, version: Version, id: &Id) {
    let Item {
        id: event,
        response,
        is_final,
    } = item;
    let head = sse::Head {
        id: event,
        event: None,
    };
    sse::write_line_with(out, head, |out| match version {
        Version::V1_0 => rpc::encode_result_into(out, id, &response),
        Version::V0_3 => {
            let event = v03::StreamEvent::from_model(response, is_final);
            rpc::encode_result_into(out, id, &event);
        }
    });
}
