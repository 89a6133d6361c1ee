//! The errors of the control plane: one table of codes and their HTTP statuses, for every surface.

use http::StatusCode;
use serde_json::{Value, json};
use wopr_app::{Error as AppError, Forbidden, NotRegistered, RegisterError};
use wopr_core::{Problems, Refusal, awp::SubmitRefusal};

use super::tool::Tool;
use crate::{auth::Caller, config::TokenScope, telemetry};

macro_rules! codes {
    ($($name:ident = $text:literal, $status:ident;)*) => {
        /// Names an error, on every surface.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $($name,)*
        }

        impl Code {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            #[must_use]
            pub const fn status(self) -> StatusCode {
                match self {
                    $(Self::$name => StatusCode::$status,)*
                }
            }
        }
    };
}

codes! {
    AuthError = "AUTH_ERROR", UNAUTHORIZED;
    AuthForbidden = "AUTH_FORBIDDEN", FORBIDDEN;
    Validation = "VALIDATION_ERROR", BAD_REQUEST;
    InvalidResumePayload = "INVALID_RESUME_PAYLOAD", BAD_REQUEST;
    SubmitValidation = "SUBMIT_VALIDATION_ERROR", BAD_REQUEST;
    CancelValidation = "CANCEL_VALIDATION_ERROR", BAD_REQUEST;
    SignalValidation = "SIGNAL_VALIDATION_ERROR", BAD_REQUEST;
    ExecutionNotFound = "EXECUTION_NOT_FOUND", NOT_FOUND;
    WorkflowNotFound = "WORKFLOW_NOT_FOUND", NOT_FOUND;
    NotFound = "NOT_FOUND", NOT_FOUND;
    UnsupportedMediaType = "UNSUPPORTED_MEDIA_TYPE", UNSUPPORTED_MEDIA_TYPE;
    DuplicateExecutionId = "DUPLICATE_EXECUTION_ID", CONFLICT;
    DuplicateWorkflowId = "DUPLICATE_WORKFLOW_ID", CONFLICT;
    SubmitNotAwaiting = "ACTIVITY_SUBMIT_NOT_AWAITING", CONFLICT;
    SubmitNodeMismatch = "ACTIVITY_SUBMIT_NODE_MISMATCH", CONFLICT;
    SubmitParallelMismatch = "ACTIVITY_SUBMIT_PARALLEL_MISMATCH", CONFLICT;
    CancelNotAllowed = "CANCEL_NOT_ALLOWED", CONFLICT;
    SignalNotAwaiting = "SIGNAL_NOT_AWAITING", CONFLICT;
    SignalNameMismatch = "SIGNAL_NAME_MISMATCH", CONFLICT;
    NondeterminismDetected = "NONDETERMINISM_DETECTED", CONFLICT;
    IdempotencyKeyReused = "IDEMPOTENCY_KEY_REUSED", CONFLICT;
    EngineFailure = "ENGINE_FAILURE", INTERNAL_SERVER_ERROR;
    Internal = "INTERNAL_ERROR", INTERNAL_SERVER_ERROR;
    Unavailable = "UNAVAILABLE", SERVICE_UNAVAILABLE;
}

/// The error of an operation.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    pub code: Code,
    pub message: String,
    pub details: Option<Value>,
}

impl Error {
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: None,
        }
    }

    #[must_use]
    pub fn with(self, details: Value) -> Self {
        Self {
            details: Some(details),
            ..self
        }
    }

    /// The HTTP status of the error.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.code.status()
    }

    /// The error as every surface shows it.
    #[must_use]
    pub fn body(&self) -> Value {
        let mut error = json!({ "code": self.code.as_str(), "message": self.message });
        if let Some(details) = &self.details {
            error["details"] = details.clone();
        }
        json!({ "error": error })
    }

    /// The error as its caller gets it: one that lacks a scope learns which scopes it has.
    pub(super) fn for_caller(mut self, caller: &Caller) -> Self {
        if let (Code::AuthForbidden, Some(Value::Object(details))) = (self.code, &mut self.details) {
            let granted = TokenScope::granted(caller.scopes).map(TokenScope::as_str);
            details.insert("granted_scopes".to_owned(), granted.collect());
        }
        self
    }

    /// What an operation was sent is not what it takes.
    pub(super) fn invalid(tool: Tool, message: impl Into<String>) -> Self {
        Self::new(invalid(tool), message)
    }

    pub(super) fn no_execution(id: &str) -> Self {
        Self::new(
            Code::ExecutionNotFound,
            format!("Execution \"{id}\" was not found."),
        )
        .with(json!({ "execution_id": id }))
    }

    fn unavailable(retry_after_ms: u64) -> Self {
        Self::new(Code::Unavailable, "The host is busy. Try again.")
            .with(json!({ "retry_after_ms": retry_after_ms }))
    }

    fn internal() -> Self {
        Self::new(Code::Internal, "Unexpected internal error.")
    }
}

/// The code for what an operation was sent and does not take.
const fn invalid(tool: Tool) -> Code {
    match tool {
        Tool::Start | Tool::Status | Tool::Resume | Tool::List => Code::Validation,
        Tool::SubmitActivity => Code::SubmitValidation,
        Tool::Signal => Code::SignalValidation,
        Tool::Cancel => Code::CancelValidation,
    }
}

impl From<Forbidden> for Error {
    /// The message names the scope of this host, the details that of the protocol.
    fn from(Forbidden(scope): Forbidden) -> Self {
        let required = TokenScope::needed(scope).map_or(scope.as_str(), TokenScope::as_str);
        Self::new(
            Code::AuthForbidden,
            format!("The credential lacks the scope {}.", scope.as_str()),
        )
        .with(json!({ "reason": "insufficient_scope", "required_scope": required }))
    }
}

impl From<AppError> for Error {
    /// Internal details go to the log, not to the client.
    fn from(error: AppError) -> Self {
        match error {
            AppError::NoRun => Self::new(Code::ExecutionNotFound, "The execution was not found."),
            AppError::NoWorkflow => Self::new(Code::WorkflowNotFound, "The workflow was not found."),
            AppError::Forbidden(forbidden) => forbidden.into(),
            AppError::Refused(refusal) => refusal.into(),
            AppError::Settled(settled) => {
                Self::new(Code::SubmitNotAwaiting, format!("The question {settled}."))
            }
            AppError::KeyReused => Self::new(
                Code::IdempotencyKeyReused,
                "The idempotency key was used for another request.",
            ),
            AppError::AliasTaken => Self::new(
                Code::DuplicateExecutionId,
                "The execution_id is that of another execution.",
            ),
            AppError::TooManySubscriptions { .. } => Self::internal(),
            AppError::Busy { retry_after_ms } => Self::unavailable(retry_after_ms),
            AppError::Unavailable(why) => {
                telemetry::not_served(&why);
                Self::unavailable(1_000)
            }
            AppError::Internal(why) => {
                telemetry::failed_inside(&why);
                Self::internal()
            }
        }
    }
}

impl From<Refusal> for Error {
    /// Refusals that an operation has a code of its own for are mapped there.
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::InvalidInput { field, rule } => {
                let message = match field.as_str() {
                    "inputs" => rule,
                    field => format!("{field} {rule}"),
                };
                Self::new(Code::Validation, message)
            }
            other => Self::new(Code::Validation, format!("The host cannot {other}.")),
        }
    }
}

impl From<SubmitRefusal> for Error {
    fn from(refusal: SubmitRefusal) -> Self {
        let code = match refusal {
            SubmitRefusal::Invalid(_) => Code::SubmitValidation,
            SubmitRefusal::NotAwaiting => Code::SubmitNotAwaiting,
            SubmitRefusal::OtherNode(_) => Code::SubmitNodeMismatch,
            SubmitRefusal::OtherSpan => Code::SubmitParallelMismatch,
        };
        Self::new(code, refusal.to_string())
    }
}

impl From<NotRegistered> for Error {
    fn from(error: NotRegistered) -> Self {
        match error {
            NotRegistered::Forbidden(forbidden) => forbidden.into(),
            NotRegistered::Engine(RegisterError::Invalid(problems)) => problems.into(),
            NotRegistered::Engine(RegisterError::Full(limit)) => Self::new(
                Code::Validation,
                format!("The definition cannot be kept: {limit}."),
            ),
            NotRegistered::Engine(RegisterError::Unavailable(why)) => AppError::Unavailable(why).into(),
            NotRegistered::Engine(RegisterError::Busy(why)) => AppError::from(why).into(),
        }
    }
}

impl From<Problems> for Error {
    fn from(Problems(problems): Problems) -> Self {
        /// The most problems of a definition in an error.
        const MAX_LISTED: usize = 32;
        let listed: Vec<_> = problems
            .iter()
            .take(MAX_LISTED)
            .map(|problem| {
                let mut listed = json!({ "instancePath": problem.pointer, "message": problem.rule });
                if let Some(keyword) = problem.keyword {
                    listed["keyword"] = keyword.into();
                }
                listed
            })
            .collect();
        Self::new(Code::Validation, "The workflow definition is invalid.").with(json!({ "errors": listed }))
    }
}
