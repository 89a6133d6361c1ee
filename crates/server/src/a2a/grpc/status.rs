//! Converts errors to gRPC statuses.
//!
//! A status travels in header fields, for which clients accept 8 KiB, and an error may quote the client's
//! input. Texts are therefore truncated until the status fits.

use http::HeaderMap;
use serde_json::Value;
use tonic::{Code, Status, metadata::MetadataValue};
use wopr_wire::a2a::{error::A2aError, method::Version, protobuf::rpc_status};

use super::super::{
    error::Error,
    transport::{RETRY_AFTER, profile},
};
use crate::{Host, auth::AuthError, body::BodyError};

/// Maximum size of the status fields, measured as HTTP/2 does. The rest of the 8 KiB is left for other
/// fields.
const MAX_FIELDS: usize = 7 << 10;
/// Bytes that HTTP/2 counts per field in addition to its name and value.
const FIELD_OVERHEAD: usize = 32;
/// Maximum text lengths in bytes, tried in turn until a status fits.
const CUTS: [usize; 5] = [1024, 512, 256, 128, 64];
/// Maximum list length once truncation is needed.
const MAX_MANY: usize = 8;

pub(in crate::a2a) fn of(host: &Host, error: &Error, version: Version) -> Status {
    match error {
        Error::A2a(error) => of_a2a(host, error, version),
        Error::Forbidden(scope) => {
            Status::permission_denied(format!("the credential lacks the scope {}", scope.as_str()))
        }
        Error::Unavailable => unavailable(),
    }
}

/// The host cannot serve the request now.
pub(super) fn unavailable() -> Status {
    let mut status = Status::unavailable("the host cannot take this request now");
    let wait = MetadataValue::from(RETRY_AFTER);
    status.metadata_mut().insert("retry-after", wait);
    status
}

fn of_a2a(host: &Host, error: &A2aError, version: Version) -> Status {
    fitting(
        error.grpc_status(profile(host)).code(),
        &error.grpc_message(version),
        Some(&Value::Array(error.details())),
    )
}

fn fitting(code: i32, message: &str, data: Option<&Value>) -> Status {
    let mut status = whole(code, message, data);
    for most in CUTS {
        if fields_len(&status) <= MAX_FIELDS {
            break;
        }
        let data = data.map(|data| shortened(data, most));
        status = whole(code, cut(message, most), data.as_ref());
    }
    status
}

fn whole(code: i32, message: &str, data: Option<&Value>) -> Status {
    let Some(data) = data else {
        return Status::new(Code::from(code), message);
    };
    let details = data.as_array().map_or(&[][..], Vec::as_slice);
    let details = rpc_status(code, message, details);
    Status::with_details(Code::from(code), message, details.into())
}

/// The size of the status in the response headers.
fn fields_len(status: &Status) -> usize {
    let mut fields = HeaderMap::new();
    if status.add_header(&mut fields).is_err() {
        return usize::MAX;
    }
    let field = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        name.as_str().len() + value.len() + FIELD_OVERHEAD
    };
    fields.iter().map(field).sum()
}

/// Truncates the texts and lists of a value.
fn shortened(value: &Value, most: usize) -> Value {
    match value {
        Value::String(text) => cut(text, most).into(),
        Value::Array(many) => many
            .iter()
            .take(MAX_MANY)
            .map(|one| shortened(one, most))
            .collect(),
        Value::Object(members) => {
            let members = members.iter();
            Value::Object(
                members
                    .map(|(name, value)| (name.clone(), shortened(value, most)))
                    .collect(),
            )
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// Truncates a text to at most `most` bytes, at a character boundary.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// Authentication failed.
pub(super) fn unauthenticated(error: &AuthError) -> Status {
    let message = match error {
        AuthError::Missing => "a bearer credential is required",
        AuthError::Malformed | AuthError::Unknown | AuthError::Revoked => "the credential is not accepted",
        AuthError::Expired => "the credential has expired",
    };
    Status::unauthenticated(message)
}

/// The request body could not be read.
pub(super) fn no_body(error: BodyError) -> Status {
    match error {
        BodyError::TooLarge => Status::resource_exhausted("the message is too large"),
        BodyError::TooManyValues => Status::resource_exhausted("the message holds too many values"),
        BodyError::CutOff => Status::cancelled("the message was cut off"),
        BodyError::Slow => Status::deadline_exceeded("the message took too long"),
        BodyError::Busy => unavailable(),
    }
}

/// The client's deadline has passed.
pub(super) fn too_late() -> Status {
    Status::deadline_exceeded("the deadline has passed; the task goes on")
}

/// The stream ended before its task.
pub(super) fn broken_off() -> Status {
    Status::unavailable("the stream was broken off; subscribe again")
}

#[cfg(test)]
mod tests {
    use wopr_wire::a2a::{error::FieldViolation, protobuf::status_reason};

    use super::*;

    fn check(error: &A2aError) -> Status {
        let status = fitting(3, &error.to_string(), error.data().as_ref());
        assert!(fields_len(&status) <= MAX_FIELDS, "{}", fields_len(&status));
        status
    }

    #[test]
    fn short_status_is_not_truncated() {
        for error in [
            A2aError::task_not_found("t-1"),
            A2aError::invalid_param("message.parts", "ä".repeat(300)),
            A2aError::Internal,
        ] {
            let status = check(&error);
            assert_eq!(status.message(), error.to_string());
        }
    }

    #[test]
    fn long_text_is_truncated_at_a_character_boundary() {
        for text in ["x", "ä", "\u{1f980}", "%", "\n"] {
            for n in [2_000, 10_000, 1 << 20] {
                let text = text.repeat(n);
                let status = check(&A2aError::task_not_found(&text));
                let reason = status_reason(status.details());
                assert_eq!(reason.as_deref(), Some("TASK_NOT_FOUND"));
                check(&A2aError::invalid_param(&text, text.clone()));
                check(&A2aError::version_not_supported(&text));
                check(&A2aError::unsupported(text));
            }
        }
        let violation = FieldViolation {
            field: "f".repeat(300),
            description: "d".repeat(300),
        };
        let violations = vec![violation; 500];
        check(&A2aError::InvalidParams { violations });
    }
}
