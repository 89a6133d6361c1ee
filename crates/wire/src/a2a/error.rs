//! The errors of A2A and their representation in each binding (A2A 1.0 sections 3.3.2 and 5.4).
//!
//! [`Kind`] is the table: code, reason, HTTP status and gRPC status. [`A2aError`] is one occurrence, with the details
//! the client may see. Messages and metadata are sent to clients, so they must not contain internal information. The
//! HTTP layer answers authentication failures, rate limits and overload, in the format of [`status_body`].

use std::fmt;

use serde_json::{Value, json};

use super::method::Version;
use crate::json::{BodyError, DecodeError, Object};

/// The domain of all reasons.
const DOMAIN: &str = "a2a-protocol.org";
const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";
const BAD_REQUEST: &str = "type.googleapis.com/google.rpc.BadRequest";

/// The specification revision that determines the statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ErrorProfile {
    /// 1.0.1 and later.
    #[default]
    V1_0_1,
    /// 1.0.0, which the public conformance kit requires.
    V1_0_0,
}

impl ErrorProfile {
    /// Parses the name used in configuration.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "1.0.1" => Some(Self::V1_0_1),
            "1.0.0" => Some(Self::V1_0_0),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrpcStatus {
    InvalidArgument,
    NotFound,
    FailedPrecondition,
    Unimplemented,
    Internal,
}

impl GrpcStatus {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::NotFound => "NOT_FOUND",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
        }
    }

    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::InvalidArgument => 3,
            Self::NotFound => 5,
            Self::FailedPrecondition => 9,
            Self::Unimplemented => 12,
            Self::Internal => 13,
        }
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $reason:literal, $http:literal / $old_http:literal,
       $grpc:ident / $old_grpc:ident;)+) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[$doc])* $name,)+
        }

        impl Kind {
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            #[must_use]
            pub const fn code(self) -> i64 {
                match self { $(Self::$name => $code,)+ }
            }

            /// The stable name, as in `google.rpc.ErrorInfo`.
            #[must_use]
            pub const fn reason(self) -> &'static str {
                match self { $(Self::$name => $reason,)+ }
            }

            #[must_use]
            pub const fn http_status(self, profile: ErrorProfile) -> u16 {
                match profile {
                    ErrorProfile::V1_0_1 => match self { $(Self::$name => $http,)+ },
                    ErrorProfile::V1_0_0 => match self { $(Self::$name => $old_http,)+ },
                }
            }

            #[must_use]
            pub const fn grpc_status(self, profile: ErrorProfile) -> GrpcStatus {
                match profile {
                    ErrorProfile::V1_0_1 => match self { $(Self::$name => GrpcStatus::$grpc,)+ },
                    ErrorProfile::V1_0_0 => match self { $(Self::$name => GrpcStatus::$old_grpc,)+ },
                }
            }

            #[must_use]
            pub const fn from_code(code: i64) -> Option<Self> {
                match code { $($code => Some(Self::$name),)+ _ => None }
            }

            #[must_use]
            pub fn from_reason(reason: &str) -> Option<Self> {
                match reason { $($reason => Some(Self::$name),)+ _ => None }
            }
        }
    };
}

kinds! {
    /// The task does not exist, or belongs to another client.
    TaskNotFound = -32001, "TASK_NOT_FOUND", 404 / 404, NotFound / NotFound;
    /// The task has ended.
    TaskNotCancelable = -32002, "TASK_NOT_CANCELABLE", 400 / 409, FailedPrecondition / FailedPrecondition;
    PushNotificationNotSupported = -32003, "PUSH_NOTIFICATION_NOT_SUPPORTED", 400 / 400,
        FailedPrecondition / Unimplemented;
    /// The agent does not support the operation, or not in the task's current state.
    UnsupportedOperation = -32004, "UNSUPPORTED_OPERATION", 400 / 400, FailedPrecondition / Unimplemented;
    /// The agent does not support a media type, or cannot produce any accepted one.
    ContentTypeNotSupported = -32005, "CONTENT_TYPE_NOT_SUPPORTED", 400 / 415,
        InvalidArgument / InvalidArgument;
    InvalidAgentResponse = -32006, "INVALID_AGENT_RESPONSE", 500 / 502, Internal / Internal;
    /// The agent declares an extended card but has none.
    ExtendedAgentCardNotConfigured = -32007, "EXTENDED_AGENT_CARD_NOT_CONFIGURED", 400 / 400,
        FailedPrecondition / FailedPrecondition;
    /// The client did not activate a required extension. Not in 0.3.
    ExtensionSupportRequired = -32008, "EXTENSION_SUPPORT_REQUIRED", 400 / 400,
        FailedPrecondition / FailedPrecondition;
    /// Not in 0.3.
    VersionNotSupported = -32009, "VERSION_NOT_SUPPORTED", 400 / 400, FailedPrecondition / Unimplemented;
    Parse = -32700, "PARSE_ERROR", 400 / 400, InvalidArgument / InvalidArgument;
    /// The body is JSON but not a JSON-RPC request.
    InvalidRequest = -32600, "INVALID_REQUEST", 400 / 400, InvalidArgument / InvalidArgument;
    MethodNotFound = -32601, "METHOD_NOT_FOUND", 404 / 404, Unimplemented / Unimplemented;
    InvalidParams = -32602, "INVALID_PARAMS", 400 / 400, InvalidArgument / InvalidArgument;
    Internal = -32603, "INTERNAL_ERROR", 500 / 500, Internal / Internal;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldViolation {
    /// The path of the field, such as `message.parts[0]`; empty for the parameters as a whole.
    pub field: String,
    pub description: String,
}

/// An error as the client sees it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum A2aError {
    /// The task does not exist or belongs to another client; the response does not reveal which.
    #[error("task not found")]
    TaskNotFound { task_id: String },
    #[error("task cannot be canceled")]
    TaskNotCancelable { task_id: String },
    #[error("push notifications are not supported")]
    PushNotificationNotSupported,
    #[error("unsupported operation: {detail}")]
    UnsupportedOperation { detail: String },
    #[error("content type not supported: {detail}")]
    ContentTypeNotSupported { detail: String },
    #[error("invalid agent response: {detail}")]
    InvalidAgentResponse { detail: String },
    /// The agent declares an extended card but has none.
    #[error("extended agent card is not configured")]
    ExtendedAgentCardNotConfigured,
    #[error("extension support required: {uri}")]
    ExtensionSupportRequired { uri: String },
    #[error("version not supported: {requested}{}", silent(requested))]
    VersionNotSupported {
        requested: String,
        supported: Vec<String>,
    },
    #[error("parse error")]
    Parse,
    #[error("invalid request: {detail}")]
    InvalidRequest { detail: String },
    #[error("method not found: {method}")]
    MethodNotFound { method: String },
    #[error("invalid parameters{}", Listed(violations))]
    InvalidParams { violations: Vec<FieldViolation> },
    /// An internal error; only the log has the details.
    #[error("internal error")]
    Internal,
}

struct Listed<'a>(&'a [FieldViolation]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, violation) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { ": " } else { "; " })?;
            let field = if violation.field.is_empty() {
                "params"
            } else {
                &violation.field
            };
            write!(f, "{field} {}", violation.description)?;
        }
        Ok(())
    }
}

/// Explains a request for 0.3 that the client may not know it made: omitting the version header means 0.3.
fn silent(requested: &str) -> &'static str {
    if requested == Version::V0_3.to_string() {
        ", which a call without the header A2A-Version asks for; for 1.0 send A2A-Version: 1.0"
    } else {
        ""
    }
}

impl A2aError {
    /// Reports a task that does not exist or belongs to another client.
    #[must_use]
    pub fn task_not_found(task_id: impl Into<String>) -> Self {
        Self::TaskNotFound {
            task_id: task_id.into(),
        }
    }

    /// Reports an unsupported version, together with the supported ones.
    #[must_use]
    pub fn version_not_supported(requested: impl Into<String>) -> Self {
        Self::VersionNotSupported {
            requested: requested.into(),
            supported: Version::ALL.iter().map(ToString::to_string).collect(),
        }
    }

    #[must_use]
    pub fn invalid_param(field: impl Into<String>, description: impl Into<String>) -> Self {
        let violation = FieldViolation {
            field: field.into(),
            description: description.into(),
        };
        Self::InvalidParams {
            violations: vec![violation],
        }
    }

    #[must_use]
    pub fn unsupported(detail: impl Into<String>) -> Self {
        Self::UnsupportedOperation {
            detail: detail.into(),
        }
    }

    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::TaskNotFound { .. } => Kind::TaskNotFound,
            Self::TaskNotCancelable { .. } => Kind::TaskNotCancelable,
            Self::PushNotificationNotSupported => Kind::PushNotificationNotSupported,
            Self::UnsupportedOperation { .. } => Kind::UnsupportedOperation,
            Self::ContentTypeNotSupported { .. } => Kind::ContentTypeNotSupported,
            Self::InvalidAgentResponse { .. } => Kind::InvalidAgentResponse,
            Self::ExtendedAgentCardNotConfigured => Kind::ExtendedAgentCardNotConfigured,
            Self::ExtensionSupportRequired { .. } => Kind::ExtensionSupportRequired,
            Self::VersionNotSupported { .. } => Kind::VersionNotSupported,
            Self::Parse => Kind::Parse,
            Self::InvalidRequest { .. } => Kind::InvalidRequest,
            Self::MethodNotFound { .. } => Kind::MethodNotFound,
            Self::InvalidParams { .. } => Kind::InvalidParams,
            Self::Internal => Kind::Internal,
        }
    }

    /// The JSON-RPC code of 1.0.
    #[must_use]
    pub const fn code(&self) -> i64 {
        self.kind().code()
    }

    /// The JSON-RPC code in a version. 0.3 defines -32001 to -32007 only; later errors become an unsupported
    /// operation there, and their data still contains the reason.
    #[must_use]
    pub const fn code_in(&self, version: Version) -> i64 {
        match (version, self.kind()) {
            (Version::V0_3, Kind::ExtensionSupportRequired | Kind::VersionNotSupported) => {
                Kind::UnsupportedOperation.code()
            }
            (Version::V0_3 | Version::V1_0, kind) => kind.code(),
        }
    }

    /// The name 0.3 clients expect where there is no JSON-RPC code. The 0.3 specification defines no names;
    /// these are the exception names of the SDKs.
    #[must_use]
    pub const fn old_name(&self) -> &'static str {
        match self.kind() {
            Kind::TaskNotFound => "TaskNotFoundError",
            Kind::TaskNotCancelable => "TaskNotCancelableError",
            Kind::PushNotificationNotSupported => "PushNotificationNotSupportedError",
            // Added after 0.3, see `code_in`.
            Kind::UnsupportedOperation | Kind::ExtensionSupportRequired | Kind::VersionNotSupported => {
                "UnsupportedOperationError"
            }
            Kind::ContentTypeNotSupported => "ContentTypeNotSupportedError",
            Kind::InvalidAgentResponse => "InvalidAgentResponseError",
            Kind::ExtendedAgentCardNotConfigured => "ExtendedAgentCardNotConfiguredError",
            Kind::Parse => "JSONParseError",
            Kind::InvalidRequest => "InvalidRequestError",
            Kind::MethodNotFound => "MethodNotFoundError",
            Kind::InvalidParams => "InvalidParamsError",
            Kind::Internal => "InternalError",
        }
    }

    /// The message of the gRPC status. 0.3 clients recognize the error by the name that precedes the text.
    #[must_use]
    pub fn grpc_message(&self, version: Version) -> String {
        match version {
            Version::V0_3 => format!("{}: {self}", self.old_name()),
            Version::V1_0 => self.to_string(),
        }
    }

    #[must_use]
    pub const fn reason(&self) -> &'static str {
        self.kind().reason()
    }

    /// The HTTP status in the HTTP+JSON binding; JSON-RPC responses always have status 200.
    #[must_use]
    pub const fn http_status(&self, profile: ErrorProfile) -> u16 {
        self.kind().http_status(profile)
    }

    #[must_use]
    pub const fn grpc_status(&self, profile: ErrorProfile) -> GrpcStatus {
        self.kind().grpc_status(profile)
    }

    /// The metadata of `google.rpc.ErrorInfo`, with string values only.
    #[must_use]
    pub fn metadata(&self) -> Object {
        let mut metadata = Object::new();
        match self {
            Self::TaskNotFound { task_id } | Self::TaskNotCancelable { task_id } => {
                metadata.insert("taskId".into(), task_id.as_str().into());
            }
            Self::ExtensionSupportRequired { uri } => {
                metadata.insert("extension".into(), uri.as_str().into());
            }
            Self::VersionNotSupported { requested, supported } => {
                metadata.insert("requestedVersion".into(), requested.as_str().into());
                metadata.insert("supportedVersions".into(), supported.join(",").into());
            }
            Self::PushNotificationNotSupported
            | Self::UnsupportedOperation { .. }
            | Self::ContentTypeNotSupported { .. }
            | Self::InvalidAgentResponse { .. }
            | Self::ExtendedAgentCardNotConfigured
            | Self::Parse
            | Self::InvalidRequest { .. }
            | Self::MethodNotFound { .. }
            | Self::InvalidParams { .. }
            | Self::Internal => {}
        }
        metadata
    }

    /// The error details of JSON-RPC: an array with one `google.rpc.ErrorInfo`, or one `google.rpc.BadRequest` for
    /// invalid parameters. The other JSON-RPC errors have none: their code says all.
    #[must_use]
    pub fn data(&self) -> Option<Value> {
        match self {
            Self::Parse | Self::InvalidRequest { .. } | Self::MethodNotFound { .. } | Self::Internal => None,
            Self::InvalidParams { violations } => Some(Value::Array(vec![bad_request(violations)])),
            Self::TaskNotFound { .. }
            | Self::TaskNotCancelable { .. }
            | Self::PushNotificationNotSupported
            | Self::UnsupportedOperation { .. }
            | Self::ContentTypeNotSupported { .. }
            | Self::InvalidAgentResponse { .. }
            | Self::ExtendedAgentCardNotConfigured
            | Self::ExtensionSupportRequired { .. }
            | Self::VersionNotSupported { .. } => Some(Value::Array(vec![self.info()])),
        }
    }

    /// The details of a `google.rpc.Status`, in HTTP+JSON and gRPC: a `google.rpc.ErrorInfo`, without which a client sees
    /// only the status, and for invalid parameters a `google.rpc.BadRequest` after it.
    #[must_use]
    pub fn details(&self) -> Vec<Value> {
        let mut details = vec![self.info()];
        if let Self::InvalidParams { violations } = self {
            details.push(bad_request(violations));
        }
        details
    }

    fn info(&self) -> Value {
        let mut info = Object::new();
        info.insert("@type".into(), ERROR_INFO.into());
        info.insert("reason".into(), self.reason().into());
        info.insert("domain".into(), DOMAIN.into());
        let metadata = self.metadata();
        if !metadata.is_empty() {
            info.insert("metadata".into(), metadata.into());
        }
        info.into()
    }

    /// The HTTP+JSON body: a `google.rpc.Status` under `error`. The 0.3 specification does not define the
    /// error body, and 0.3 clients recognize errors by JSON-RPC code or by name, so the body of 0.3 contains
    /// both in addition.
    #[must_use]
    pub fn rest_body(&self, version: Version, profile: ErrorProfile) -> Value {
        let details = Value::Array(self.details());
        let mut body = status_body(
            self.http_status(profile),
            self.grpc_status(profile).name(),
            &self.to_string(),
            details,
        );
        if version == Version::V0_3 {
            body["code"] = self.code_in(version).into();
            body["message"] = self.to_string().into();
            body["type"] = self.old_name().into();
        }
        body
    }
}

/// The HTTP+JSON body of an error outside the table, such as missing credentials (401, `UNAUTHENTICATED`).
/// `details` is an array.
#[must_use]
pub fn status_body(http_status: u16, status: &str, message: &str, details: Value) -> Value {
    let mut error = json!({ "code": http_status, "status": status, "message": message });
    if details.as_array().is_some_and(|details| !details.is_empty()) {
        error["details"] = details;
    }
    json!({ "error": error })
}

impl From<DecodeError> for A2aError {
    fn from(error: DecodeError) -> Self {
        Self::invalid_param(error.path(), error.problem().to_string())
    }
}

impl From<BodyError> for A2aError {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::Syntax | BodyError::TooDeep => Self::Parse,
            BodyError::Shape(error) => error.into(),
        }
    }
}

fn bad_request(violations: &[FieldViolation]) -> Value {
    let violations: Vec<_> = violations
        .iter()
        .map(|violation| json!({ "field": violation.field, "description": violation.description }))
        .collect();
    json!({ "@type": BAD_REQUEST, "fieldViolations": violations })
}

#[cfg(test)]
mod tests;
