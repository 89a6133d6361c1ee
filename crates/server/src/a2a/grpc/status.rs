//! What kept a call from being done, as a status of gRPC.

use tonic::{Code, Status, metadata::MetadataValue};
use wopr_wire::a2a::{error::A2aError, protobuf::rpc_status};

use super::super::{
    service::Error,
    transport::{RETRY_AFTER, profile},
};
use crate::{Host, auth::AuthError, body::BodyError};

/// An error of an operation.
pub(in crate::a2a) fn of(host: &Host, error: &Error) -> Status {
    match error {
        Error::A2a(error) => of_a2a(host, error),
        Error::Forbidden(scope) => {
            Status::permission_denied(format!("the credential lacks the scope {}", scope.as_str()))
        }
        Error::Unavailable => unavailable(),
    }
}

/// The host cannot take this now.
pub(super) fn unavailable() -> Status {
    let mut status = Status::unavailable("the host cannot take this request now");
    let wait = MetadataValue::from(RETRY_AFTER);
    status.metadata_mut().insert("retry-after", wait);
    status
}

fn of_a2a(host: &Host, error: &A2aError) -> Status {
    let code = error.grpc_status(profile(host)).code();
    let message = error.to_string();
    match error.data() {
        Some(data) => {
            let details = data.as_array().map_or(&[][..], Vec::as_slice);
            let details = rpc_status(code, &message, details);
            Status::with_details(Code::from(code), message, details.into())
        }
        None => Status::new(Code::from(code), message),
    }
}

/// The request has no caller.
pub(super) fn unauthenticated(error: &AuthError) -> Status {
    let message = match error {
        AuthError::Missing => "a bearer credential is required",
        AuthError::Malformed | AuthError::Unknown | AuthError::Revoked => "the credential is not accepted",
        AuthError::Expired => "the credential has expired",
    };
    Status::unauthenticated(message)
}

/// There is no body to read a message from.
pub(super) fn no_body(error: BodyError) -> Status {
    match error {
        BodyError::TooLarge => Status::resource_exhausted("the message is too large"),
        BodyError::CutOff => Status::cancelled("the message was cut off"),
        BodyError::Slow => Status::deadline_exceeded("the message took too long"),
        BodyError::Busy => unavailable(),
    }
}

/// The deadline of the client has passed.
pub(super) fn too_late() -> Status {
    Status::deadline_exceeded("the deadline has passed; the task goes on")
}

/// A stream ends before its task does.
pub(super) fn broken_off() -> Status {
    Status::unavailable("the stream was broken off; subscribe again")
}
