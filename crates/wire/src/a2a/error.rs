//! The errors of A2A and how each binding shows them (A2A 1.0 section 3.3.2 and 5.4).
//!
//! [`Kind`] is the table: code, reason, HTTP status and gRPC status. [`A2aError`] is one occurrence with
//! what the client may know about it. Texts and metadata go to clients, so nothing internal belongs
//! into them. Authentication, rate limits and overload are answered by the HTTP layer, see
//! [`status_body`] for their shape.

use std::fmt;

use serde_json::{Value, json};

use super::method::Version;
use crate::json::{BodyError, DecodeError, Object};

/// The domain of every reason.
const DOMAIN: &str = "a2a-protocol.org";
const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";
const BAD_REQUEST: &str = "type.googleapis.com/google.rpc.BadRequest";

/// The revision of the specification whose statuses are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ErrorProfile {
    /// 1.0.1 and later.
    #[default]
    V1_0_1,
    /// 1.0.0, which the public conformance kit pins.
    V1_0_0,
}

impl ErrorProfile {
    /// Reads the name used in configuration.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "1.0.1" => Some(Self::V1_0_1),
            "1.0.0" => Some(Self::V1_0_0),
            _ => None,
        }
    }
}

/// The gRPC statuses the errors map to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrpcStatus {
    /// 3
    InvalidArgument,
    /// 5
    NotFound,
    /// 9
    FailedPrecondition,
    /// 12
    Unimplemented,
    /// 13
    Internal,
}

impl GrpcStatus {
    /// The name, as in `google.rpc.Code`.
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

    /// The number.
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
        /// A row of the table of errors.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[$doc])* $name,)+
        }

        impl Kind {
            /// Every row.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The JSON-RPC code.
            #[must_use]
            pub const fn code(self) -> i64 {
                match self { $(Self::$name => $code,)+ }
            }

            /// The stable name, as in `google.rpc.ErrorInfo`.
            #[must_use]
            pub const fn reason(self) -> &'static str {
                match self { $(Self::$name => $reason,)+ }
            }

            /// The HTTP status.
            #[must_use]
            pub const fn http_status(self, profile: ErrorProfile) -> u16 {
                match profile {
                    ErrorProfile::V1_0_1 => match self { $(Self::$name => $http,)+ },
                    ErrorProfile::V1_0_0 => match self { $(Self::$name => $old_http,)+ },
                }
            }

            /// The gRPC status.
            #[must_use]
            pub const fn grpc_status(self, profile: ErrorProfile) -> GrpcStatus {
                match profile {
                    ErrorProfile::V1_0_1 => match self { $(Self::$name => GrpcStatus::$grpc,)+ },
                    ErrorProfile::V1_0_0 => match self { $(Self::$name => GrpcStatus::$old_grpc,)+ },
                }
            }

            /// Finds the row of a JSON-RPC code.
            #[must_use]
            pub const fn from_code(code: i64) -> Option<Self> {
                match code { $($code => Some(Self::$name),)+ _ => None }
            }

            /// Finds the row of a reason.
            #[must_use]
            pub fn from_reason(reason: &str) -> Option<Self> {
                match reason { $($reason => Some(Self::$name),)+ _ => None }
            }
        }
    };
}

kinds! {
    /// No such task, or not this client's.
    TaskNotFound = -32001, "TASK_NOT_FOUND", 404 / 404, NotFound / NotFound;
    /// The task has ended.
    TaskNotCancelable = -32002, "TASK_NOT_CANCELABLE", 400 / 409, FailedPrecondition / FailedPrecondition;
    /// Push notifications are not offered.
    PushNotificationNotSupported = -32003, "PUSH_NOTIFICATION_NOT_SUPPORTED", 400 / 400,
        FailedPrecondition / Unimplemented;
    /// The operation is not offered, or not for this task as it stands.
    UnsupportedOperation = -32004, "UNSUPPORTED_OPERATION", 400 / 400, FailedPrecondition / Unimplemented;
    /// A media type is not understood, or none of the accepted ones can be given.
    ContentTypeNotSupported = -32005, "CONTENT_TYPE_NOT_SUPPORTED", 400 / 415,
        InvalidArgument / InvalidArgument;
    /// An agent's answer does not follow the protocol.
    InvalidAgentResponse = -32006, "INVALID_AGENT_RESPONSE", 500 / 502, Internal / Internal;
    /// The longer card is offered and missing.
    ExtendedAgentCardNotConfigured = -32007, "EXTENDED_AGENT_CARD_NOT_CONFIGURED", 400 / 400,
        FailedPrecondition / FailedPrecondition;
    /// The client did not ask for an extension that is required. Not in 0.3.
    ExtensionSupportRequired = -32008, "EXTENSION_SUPPORT_REQUIRED", 400 / 400,
        FailedPrecondition / FailedPrecondition;
    /// The version of the request is not spoken here. Not in 0.3.
    VersionNotSupported = -32009, "VERSION_NOT_SUPPORTED", 400 / 400, FailedPrecondition / Unimplemented;
    /// The body is not JSON.
    Parse = -32700, "PARSE_ERROR", 400 / 400, InvalidArgument / InvalidArgument;
    /// The body is JSON and no JSON-RPC request.
    InvalidRequest = -32600, "INVALID_REQUEST", 400 / 400, InvalidArgument / InvalidArgument;
    /// No such method.
    MethodNotFound = -32601, "METHOD_NOT_FOUND", 404 / 404, Unimplemented / Unimplemented;
    /// The parameters do not fit.
    InvalidParams = -32602, "INVALID_PARAMS", 400 / 400, InvalidArgument / InvalidArgument;
    /// Something broke here.
    Internal = -32603, "INTERNAL_ERROR", 500 / 500, Internal / Internal;
}

/// A parameter that does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldViolation {
    /// The path of the field, such as `message.parts[0]`; empty for the parameters as a whole.
    pub field: String,
    /// What is wrong with it.
    pub description: String,
}

/// An error as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum A2aError {
    /// No such task, or not this client's: the two look the same.
    #[error("task not found")]
    TaskNotFound {
        /// The id the client gave.
        task_id: String,
    },
    /// The task has ended.
    #[error("task cannot be canceled")]
    TaskNotCancelable {
        /// The task.
        task_id: String,
    },
    /// Push notifications are not offered.
    #[error("push notifications are not supported")]
    PushNotificationNotSupported,
    /// The operation is not offered, or not for this task as it stands.
    #[error("unsupported operation: {detail}")]
    UnsupportedOperation {
        /// What and why.
        detail: String,
    },
    /// A media type is not understood, or none of the accepted ones can be given.
    #[error("content type not supported: {detail}")]
    ContentTypeNotSupported {
        /// Which, or why.
        detail: String,
    },
    /// An agent's answer does not follow the protocol.
    #[error("invalid agent response: {detail}")]
    InvalidAgentResponse {
        /// What is wrong with it.
        detail: String,
    },
    /// The longer card is offered and missing.
    #[error("extended agent card is not configured")]
    ExtendedAgentCardNotConfigured,
    /// The client did not ask for an extension that is required.
    #[error("extension support required: {uri}")]
    ExtensionSupportRequired {
        /// The extension.
        uri: String,
    },
    /// The version of the request is not spoken here.
    #[error("version not supported: {requested}{}", silent(requested))]
    VersionNotSupported {
        /// What the client asked for.
        requested: String,
        /// What it may ask for.
        supported: Vec<String>,
    },
    /// The body is not JSON.
    #[error("parse error")]
    Parse,
    /// The body is JSON and no JSON-RPC request.
    #[error("invalid request: {detail}")]
    InvalidRequest {
        /// What is wrong with it.
        detail: String,
    },
    /// No such method.
    #[error("method not found: {method}")]
    MethodNotFound {
        /// The name the client gave.
        method: String,
    },
    /// The parameters do not fit.
    #[error("invalid parameters{}", Listed(violations))]
    InvalidParams {
        /// Which, and why.
        violations: Vec<FieldViolation>,
    },
    /// Something broke here; the log knows more.
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

/// Who asks for 0.3 need not know it.
fn silent(requested: &str) -> &'static str {
    if requested == Version::V0_3.to_string() {
        " (as a call without A2A-Version asks for)"
    } else {
        ""
    }
}

impl A2aError {
    /// Reports a task that is missing or foreign.
    #[must_use]
    pub fn task_not_found(task_id: impl Into<String>) -> Self {
        Self::TaskNotFound {
            task_id: task_id.into(),
        }
    }

    /// Reports a version that is not spoken here, with those that are.
    #[must_use]
    pub fn version_not_supported(requested: impl Into<String>) -> Self {
        Self::VersionNotSupported {
            requested: requested.into(),
            supported: Version::ALL.iter().map(ToString::to_string).collect(),
        }
    }

    /// Reports one parameter that does not fit.
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

    /// Reports an operation that is not offered.
    #[must_use]
    pub fn unsupported(detail: impl Into<String>) -> Self {
        Self::UnsupportedOperation {
            detail: detail.into(),
        }
    }

    /// The row of the table.
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

    /// The JSON-RPC code in a version. 0.3 knows -32001 to -32007 only; what came later is an
    /// unsupported operation there, and its data still names the reason.
    #[must_use]
    pub const fn code_in(&self, version: Version) -> i64 {
        match (version, self.kind()) {
            (Version::V0_3, Kind::ExtensionSupportRequired | Kind::VersionNotSupported) => {
                Kind::UnsupportedOperation.code()
            }
            (Version::V0_3 | Version::V1_0, kind) => kind.code(),
        }
    }

    /// The name by which clients of 0.3 know the error where there is no code of JSON-RPC. The text of 0.3 names
    /// none: these are the names of what the SDKs raise.
    #[must_use]
    pub const fn old_name(&self) -> &'static str {
        match self.kind() {
            Kind::TaskNotFound => "TaskNotFoundError",
            Kind::TaskNotCancelable => "TaskNotCancelableError",
            Kind::PushNotificationNotSupported => "PushNotificationNotSupportedError",
            // What came after 0.3, as in `code_in`.
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

    /// The text of a status of gRPC. Clients of 0.3 know an error by the name before its text.
    #[must_use]
    pub fn grpc_message(&self, version: Version) -> String {
        match version {
            Version::V0_3 => format!("{}: {self}", self.old_name()),
            Version::V1_0 => self.to_string(),
        }
    }

    /// The stable name.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        self.kind().reason()
    }

    /// The HTTP status of the HTTP+JSON binding. JSON-RPC answers 200 whatever happens.
    #[must_use]
    pub const fn http_status(&self, profile: ErrorProfile) -> u16 {
        self.kind().http_status(profile)
    }

    /// The gRPC status.
    #[must_use]
    pub const fn grpc_status(&self, profile: ErrorProfile) -> GrpcStatus {
        self.kind().grpc_status(profile)
    }

    /// What the client may know, as the metadata of `google.rpc.ErrorInfo`: text by name.
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

    /// The details: an array of one `google.rpc.ErrorInfo`, or for parameters one
    /// `google.rpc.BadRequest`. The other errors of JSON-RPC have none.
    #[must_use]
    pub fn data(&self) -> Option<Value> {
        match self {
            Self::Parse | Self::InvalidRequest { .. } | Self::MethodNotFound { .. } | Self::Internal => None,
            Self::InvalidParams { violations } => {
                let violations: Vec<Value> = violations
                    .iter()
                    .map(
                        |violation| json!({ "field": violation.field, "description": violation.description }),
                    )
                    .collect();
                Some(json!([{ "@type": BAD_REQUEST, "fieldViolations": violations }]))
            }
            Self::TaskNotFound { .. }
            | Self::TaskNotCancelable { .. }
            | Self::PushNotificationNotSupported
            | Self::UnsupportedOperation { .. }
            | Self::ContentTypeNotSupported { .. }
            | Self::InvalidAgentResponse { .. }
            | Self::ExtendedAgentCardNotConfigured
            | Self::ExtensionSupportRequired { .. }
            | Self::VersionNotSupported { .. } => {
                let mut info = Object::new();
                info.insert("@type".into(), ERROR_INFO.into());
                info.insert("reason".into(), self.reason().into());
                info.insert("domain".into(), DOMAIN.into());
                let metadata = self.metadata();
                if !metadata.is_empty() {
                    info.insert("metadata".into(), metadata.into());
                }
                Some(Value::Array(vec![info.into()]))
            }
        }
    }

    /// The body of the HTTP+JSON binding: `google.rpc.Status` under `error`. The text of 0.3 does not say what an error
    /// looks like, and its clients know one by the number of JSON-RPC or by its name, so the body has these beside it.
    #[must_use]
    pub fn rest_body(&self, version: Version, profile: ErrorProfile) -> Value {
        let details = self.data().unwrap_or_else(|| Value::Array(Vec::new()));
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

/// The body of an error of the HTTP+JSON binding that has no row in the table, such as a missing
/// credential (401, `UNAUTHENTICATED`). `details` is an array.
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
            BodyError::Syntax => Self::Parse,
            BodyError::Shape(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests;
