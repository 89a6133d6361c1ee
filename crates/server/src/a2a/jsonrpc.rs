//! The JSON-RPC binding of both versions, on one address.
//!
//! The method name selects the version: 0.3 uses slashes, 1.0 capitalized names. The version header must
//! agree. A missing header means 0.3, so a 1.0 method without it is rejected. Requests of 0.3 are converted
//! on the way in and results on the way out, so there is only one model. Errors have status 200, as is usual
//! for JSON-RPC over HTTP. Clients of 0.3 read the answer to a streaming method as an event stream and nothing else,
//! so an error is its only event there. A request without an id is always rejected, after its method and parameters have
//! been checked.

use http::{HeaderMap, StatusCode, header, request::Parts};
use serde_json::Value;
use std::sync::Arc;
use wopr_wire::{
    a2a::{
        error::A2aError,
        exchange::{self, Document, Form},
        method::{Operation, Version},
        plain, protobuf,
        rpc::{self, Id, Rejection, Request},
    },
    json::{self, Object},
    sse,
};

use super::{
    error::Error,
    ingress,
    perform::{self, Answer},
    routes::Interface,
    service::{Call, Service},
    supported::{Binding, is_served},
    transport,
};
use crate::{
    Host,
    auth::{self, Caller},
    body,
    message::{Body, Response},
    telemetry::Handled,
};

/// The address of the binding, as logs and metrics name it.
const ROUTE: &str = "/a2a";

/// An error, with the request id and the version in which to report it.
struct Refused {
    id: Id,
    version: Version,
    error: Error,
    form: ErrorForm,
}

/// The form of an error response.
#[derive(Debug, Clone, Copy)]
enum ErrorForm {
    Json,
    /// An event stream that ends after one event.
    Event,
}

impl ErrorForm {
    /// The form for an operation of a version, asked for with these headers.
    fn of(operation: Operation, version: Version, headers: &HeaderMap) -> Self {
        match version {
            Version::V0_3 if operation.is_streaming() && accepts_events(headers) => Self::Event,
            Version::V0_3 | Version::V1_0 => Self::Json,
        }
    }
}

/// Returns `true` if the `Accept` header of the request names event streams.
fn accepts_events(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).into_iter();
    let mut ranges = accepted
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    ranges.any(|range| {
        let media = range.split(';').next().unwrap_or_default().trim();
        media.eq_ignore_ascii_case(sse::CONTENT_TYPE)
    })
}

pub(super) async fn respond(host: Arc<Host>, interface: Interface, head: Parts, body: Body) -> Response {
    let caller = match auth::caller(&head.extensions) {
        Ok(caller) => caller,
        Err(error) => return transport::unauthenticated(error),
    };
    let handled = Handled {
        route: ROUTE,
        caller: Some(caller.clone()),
    };
    let mut response = answer(host, interface, caller, head, body).await;
    response.extensions_mut().insert(handled);
    response
}

async fn answer(
    host: Arc<Host>,
    interface: Interface,
    caller: Arc<Caller>,
    head: Parts,
    body: Body,
) -> Response {
    if body::is_encoded(&head.headers) {
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
    let asked = match read(&head, &body, caller, interface) {
        Ok(asked) => asked,
        Err(refused) => return refuse(&refused),
    };
    // Free the request while the answer waits for the disk.
    drop((head, body));
    let Asked {
        id,
        call,
        request,
        errors,
    } = asked;
    let version = call.version;
    let form = Form::rpc(version);
    match Service::new(host).perform(&call, request).await {
        Ok(Answer::Reply(reply)) => {
            let body = rpc::encode_result(&id, &reply.into_document(form));
            transport::json_response(StatusCode::OK, body)
        }
        Ok(Answer::Stream(stream)) => {
            transport::event_stream(*stream, move |out, item| {
                let head = sse::Head {
                    id: item.id,
                    event: None,
                };
                let document = Document::item(item.response, item.is_final, form);
                sse::write_line_with(out, head, |out| rpc::encode_result_into(out, &id, &document));
            })
            .await
        }
        Err(error) => refuse(&Refused {
            id,
            version,
            error,
            form: errors,
        }),
    }
}

/// A decoded request.
struct Asked {
    id: Id,
    call: Call,
    request: exchange::Request,
    /// The form of its errors.
    errors: ErrorForm,
}

fn read(head: &Parts, body: &[u8], caller: Arc<Caller>, interface: Interface) -> Result<Asked, Refused> {
    let headers = &head.headers;
    let asked = ingress::asked_version(&head.uri, headers);
    let is_plain = asked == Ok(Version::V1_0)
        && is_served(Binding::JsonRpc, Version::V1_0)
        && ingress::demand_json(headers).is_ok();
    if is_plain && let Some((id, request)) = plain::send_message(body) {
        let read = || {
            let call = ingress::call(caller, interface, Version::V1_0, headers)?;
            perform::demand_offered(Operation::SendMessage)?;
            Ok((call, exchange::Request::SendMessage(request)))
        };
        return asked_by(id, Version::V1_0, ErrorForm::Json, read());
    }
    let Envelope {
        id,
        operation,
        version,
        params,
    } = read_envelope(headers, body, asked.as_ref())?;
    let read = || -> Result<_, A2aError> {
        let call = ingress::call(caller, interface, version, headers)?;
        perform::demand_offered(operation)?;
        let params = params.filter(|params| !params.is_null());
        let mut params = params.unwrap_or_else(|| Value::Object(Object::new()));
        respell(version, operation, &mut params);
        Ok((
            call,
            exchange::Request::decode(operation, Form::rpc(version), params)?,
        ))
    };
    let mut read = read();
    if id == Id::Absent && read.is_ok() {
        // No A2A method is a notification: its client would never see the result.
        let detail = "id is required: notifications are not taken".to_owned();
        read = Err(A2aError::InvalidRequest { detail });
    }
    asked_by(id, version, ErrorForm::of(operation, version, headers), read)
}

/// Converts member names in protobuf spelling (`history_length`), which HTTP+JSON accepts as well.
fn respell(version: Version, operation: Operation, params: &mut Value) {
    let Value::Object(members) = params else { return };
    match (version, protobuf::method(version, operation)) {
        (Version::V1_0, Some(method)) => protobuf::canonical(method.request, members),
        // The parameters of 0.3 do not have the shape of its protobuf messages.
        (Version::V0_3, _) | (Version::V1_0, None) => json::camel_names(members),
    }
}

fn asked_by(
    id: Id,
    version: Version,
    form: ErrorForm,
    read: Result<(Call, exchange::Request), A2aError>,
) -> Result<Asked, Refused> {
    match read {
        Ok((call, request)) => Ok(Asked {
            id,
            call,
            request,
            errors: form,
        }),
        Err(error) => Err(Refused {
            id,
            version,
            error: error.into(),
            form,
        }),
    }
}

/// A request whose method is known.
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
    // Errors before the method is known use the requested version; both versions have these codes.
    let spoken = asked.copied().unwrap_or(Version::V1_0);
    let parsed = Request::parse(body);
    if let Err(error) = ingress::demand_json(headers) {
        let id = match parsed {
            Ok(request) => request.id,
            Err(Rejection { id, .. }) => id,
        };
        return Err(Refused {
            id,
            version: spoken,
            error: error.into(),
            form: ErrorForm::Json,
        });
    }
    let Request { id, method, params } = parsed.map_err(|Rejection { id, error }| Refused {
        id,
        version: spoken,
        error: error.into(),
        form: ErrorForm::Json,
    })?;
    let refused = |version, error: A2aError| {
        Err(Refused {
            id: id.clone(),
            version,
            error: error.into(),
            form: ErrorForm::Json,
        })
    };
    let asked = match asked {
        Ok(asked) => *asked,
        Err(error) => return refused(Version::V1_0, error.clone()),
    };
    let named =
        Operation::from_rpc_method(&method).filter(|(_, version)| is_served(Binding::JsonRpc, *version));
    match (named, asked) {
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

fn refuse(refused: &Refused) -> Response {
    let Refused {
        id,
        version,
        error,
        form,
    } = refused;
    match error {
        Error::A2a(error) if matches!(form, ErrorForm::Event) => {
            let mut out = Vec::new();
            let head = sse::Head {
                id: None,
                event: None,
            };
            sse::write_line_with(&mut out, head, |out| {
                rpc::encode_error_into(out, id, error, *version);
            });
            transport::events(Body::from(out))
        }
        Error::A2a(error) => transport::json_response(StatusCode::OK, rpc::encode_error(id, error, *version)),
        Error::Forbidden(scope) => transport::forbidden(*scope),
        Error::Unavailable => transport::unavailable(),
    }
}
