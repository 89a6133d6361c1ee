//! Errors as clients see them: maps every failure to a status, a code and details.
//!
//! A problem never carries internal details; those are logged where the problem is created. Refusals of a
//! run, failures of the engine and the store, and invalid requests all pass through this module, so a code
//! has the same meaning on every route.

use std::borrow::Cow;

use http::{HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use wopr_app::{Error as AppError, NotRegistered, RegisterError, Settled, WorkflowLimit};
use wopr_core::{Problems, Refusal};
use wopr_wire::{
    json::{BodyError, DecodeError},
    openwop::{error::ErrorEnvelope, stream::StreamError},
};

use crate::{
    auth::{AuthError, Forbidden},
    message::{Body, Response},
    telemetry,
    tokens::TokenError,
};

/// The time in seconds that a client should wait before it retries.
const RETRY_AFTER: u64 = 1;
/// Maximum number of listed problems of a definition. The message contains the first one.
const MAX_LISTED: usize = 100;

#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    pub status: StatusCode,
    pub envelope: ErrorEnvelope,
    /// Additional header fields. A list, because a map would make every `Result` large.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl Problem {
    #[must_use]
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            envelope: ErrorEnvelope::new(code, message.into()),
            headers: Vec::new(),
        }
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.envelope = self.envelope.with(name, value);
        self
    }

    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// 400: the request is invalid.
    #[must_use]
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "validation_error", message)
    }

    /// 400 that names the field.
    #[must_use]
    pub fn field(name: &str, rule: &str) -> Self {
        Self::invalid(format!("{name} {rule}")).with("field", name)
    }

    /// 404: the resource does not exist, or the caller may not see it. Both look the same.
    #[must_use]
    pub fn not_found(what: &'static str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", what)
    }

    /// 501: this host does not support this part of the protocol.
    #[must_use]
    pub fn not_provided(message: &'static str) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "capability_not_provided", message)
    }

    /// 403: the caller may not do this.
    #[must_use]
    pub fn forbidden(message: &'static str) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// 500; details are in the log.
    #[must_use]
    pub fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal_error",
            "something went wrong on our side",
        )
    }

    /// 503, with the delay in the header and in the details.
    #[must_use]
    pub fn unavailable(retry_after: u64) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "service_unavailable",
            "the host cannot take this request now",
        )
        .with("retryAfter", retry_after)
        .header(header::RETRY_AFTER, HeaderValue::from(retry_after))
    }

    #[must_use]
    pub fn response(self) -> Response {
        let body = serde_json::to_vec(&self.envelope).expect("an envelope of JSON values serialises");
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.extend(self.headers);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

impl From<Problem> for Response {
    fn from(problem: Problem) -> Self {
        problem.response()
    }
}

impl From<AuthError> for Problem {
    fn from(error: AuthError) -> Self {
        let message = match error {
            AuthError::Missing => "a bearer credential is required",
            AuthError::Malformed => "the Authorization header is not a single bearer credential",
            AuthError::Unknown => "the credential is not known",
            AuthError::Revoked => "the credential was revoked",
            AuthError::Expired => "the credential has expired",
        };
        Self::new(StatusCode::UNAUTHORIZED, error.code(), message).header(
            header::WWW_AUTHENTICATE,
            HeaderValue::from_static(error.challenge()),
        )
    }
}

impl From<Forbidden> for Problem {
    fn from(Forbidden(scope): Forbidden) -> Self {
        Self::forbidden("the credential lacks a scope").with("scopeRequired", scope.as_str())
    }
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Self {
        error_of(ErrorEnvelope::from(error))
    }
}

impl From<DecodeError> for Problem {
    fn from(error: DecodeError) -> Self {
        error_of(ErrorEnvelope::from(error))
    }
}

impl From<StreamError> for Problem {
    fn from(error: StreamError) -> Self {
        error_of(ErrorEnvelope::from(error))
    }
}

/// 400 for an invalid request.
fn error_of(envelope: ErrorEnvelope) -> Problem {
    Problem {
        status: StatusCode::BAD_REQUEST,
        envelope,
        headers: Vec::new(),
    }
}

impl From<TokenError> for Problem {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Unknown => no_interrupt(),
            TokenError::Expired => Self::new(StatusCode::GONE, "interrupt_expired", "the token has expired"),
        }
    }
}

pub(crate) fn no_run() -> Problem {
    Problem::not_found("no such run")
}

/// 404: the interrupt never existed, or the caller may not see it.
pub(crate) fn no_interrupt() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "interrupt_not_found", "no such interrupt")
}

impl Problem {
    fn unprocessable(rule: String) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "validation_error", rule)
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let conflict = |code, message: &'static str| Self::new(StatusCode::CONFLICT, code, message);
        match refusal {
            Refusal::InvalidInput { field, rule } => {
                Self::invalid(format!("{field}: {rule}")).with("field", field)
            }
            Refusal::OutOfBounds { key, value, min, max } => {
                Self::invalid(format!("configurable.{key} must be between {min} and {max}"))
                    .with("key", key)
                    .with("value", value)
                    .with("min", min)
                    .with("max", max)
            }
            Refusal::Terminal(status) => {
                conflict("run_terminal", "the run has ended").with("runStatus", status.as_str())
            }
            Refusal::NotPausable(status) => conflict("run_not_pausable", "the run cannot be paused now")
                .with("runStatus", status.as_str()),
            Refusal::NotPaused(status) => {
                conflict("run_not_paused", "the run is not paused").with("runStatus", status.as_str())
            }
            Refusal::LogFull { most } => conflict(
                "run_conflict",
                "the log of the run has reached its limit: the run can be resumed and cancelled, but not paused",
            )
            .with("maxLogBytes", most),
            Refusal::NoInterrupt => no_interrupt(),
            Refusal::AlreadyResolved => conflict("interrupt_already_resolved", "the question is no longer open"),
            Refusal::InterruptCancelled => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "interrupt_cancelled",
                "the run was cancelled",
            ),
            Refusal::InterruptGone => Self::new(
                StatusCode::GONE,
                "interrupt_gone",
                "the run was cancelled by its parent, or with it",
            ),
            Refusal::InvalidAnswer(rule) => Self::invalid(rule).with("field", "resumeValue"),
            Refusal::NoMatch(rule) => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "validation_error", rule)
                .with("field", "resumeValue"),
            Refusal::NotAllowed(rule) => Self::forbidden(rule),
            Refusal::NeedsCredential => Self::new(
                StatusCode::UNAUTHORIZED,
                "unauthenticated",
                "this gate needs an authenticated approver: answer with a credential, not with a token",
            )
            .header(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static(AuthError::Missing.challenge()),
            ),
            Refusal::Stale | Refusal::WrongState => {
                conflict("run_conflict", "the run is not in a state that allows this")
            }
            Refusal::CatchingUp => conflict(
                "run_conflict",
                "the fork has not caught up with its source yet; try again",
            ),
            Refusal::TellsNobody => conflict("run_conflict", "a replay sends no notifications"),
            Refusal::NothingToRetry(status) => {
                conflict("run_conflict", "no node failed this run").with("runStatus", status.as_str())
            }
            Refusal::BeyondLog { from, head } => {
                Self::unprocessable(format!("fromSeq must be within the {head} events of the run"))
                    .with("field", "fromSeq")
                    .with("fromSeq", from.0)
                    .with("eventCount", head.0)
            }
            Refusal::MemoryGone(from) => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "replay_memory_snapshot_unavailable",
                "what the run remembered at this event is no longer kept, or exceeds what the tenant may remember",
            )
            .with("field", "fromSeq")
            .with("fromSeq", from.0),
            Refusal::OtherDefinition(rule) => Self::unprocessable(format!(
                "the run cannot go on with this version of the workflow: {rule}"
            )),
            Refusal::OtherHistory { seq, since } => Self::unprocessable(format!(
                "with this definition and these options something else happens at event {seq}; fork from event {since}"
            ))
            .with("field", "fromSeq")
            .with("fromSeq", since.0),
        }
    }
}

impl From<Settled> for Problem {
    fn from(settled: Settled) -> Self {
        let message = format!("the question {settled}");
        let problem = Self::new(StatusCode::CONFLICT, "interrupt_already_resolved", message)
            .with("reason", settled.as_str());
        match settled {
            Settled::RunEnded(status) => problem.with("runStatus", status.as_str()),
            Settled::Answered { .. } | Settled::TimedOut | Settled::Withdrawn | Settled::Closed => problem,
        }
    }
}

impl From<AppError> for Problem {
    fn from(error: AppError) -> Self {
        match error {
            AppError::NoWorkflow => Self::not_found("no such workflow"),
            AppError::NoRun => no_run(),
            AppError::Forbidden(forbidden) => forbidden.into(),
            AppError::Refused(refusal) => refusal.into(),
            AppError::Settled(settled) => settled.into(),
            AppError::KeyReused => Self::new(
                StatusCode::CONFLICT,
                "idempotency_key_mismatch",
                "the idempotency key was used for another request",
            ),
            AppError::AliasTaken => Self::new(
                StatusCode::CONFLICT,
                "run_conflict",
                "another run has this configurable.executionId: choose another one",
            )
            .with("field", "configurable.executionId"),
            AppError::TooManySubscriptions { most } => {
                let why = format!("the run has {most} receivers already");
                Self::new(StatusCode::CONFLICT, "run_conflict", why)
            }
            AppError::Busy { retry_after_ms } => Self::unavailable(retry_after_ms.div_ceil(1_000).max(1)),
            AppError::Unavailable(why) => {
                telemetry::not_served(&why);
                Self::unavailable(RETRY_AFTER)
            }
            AppError::Internal(why) => {
                telemetry::failed_inside(&why);
                Self::internal()
            }
        }
    }
}

impl From<NotRegistered> for Problem {
    fn from(error: NotRegistered) -> Self {
        match error {
            NotRegistered::Forbidden(forbidden) => forbidden.into(),
            NotRegistered::Engine(error) => error.into(),
        }
    }
}

impl From<RegisterError> for Problem {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::Invalid(problems) => problems.into(),
            RegisterError::Full(limit) => {
                let message = format!("{limit}: DELETE /v1/host/wopr/workflows/{{workflowId}}");
                let problem = Self::new(StatusCode::CONFLICT, "conflict", message);
                match limit {
                    WorkflowLimit::Workflows { most } => problem.with("maxWorkflows", most),
                    WorkflowLimit::Bytes { most, .. } => problem.with("maxWorkflowBytes", most),
                }
            }
            RegisterError::Unavailable(why) => AppError::Unavailable(why).into(),
            RegisterError::Busy(why) => AppError::from(why).into(),
        }
    }
}

/// A problem or a warning of a definition, as responses list it.
pub(crate) fn listed_problem(problem: &wopr_core::Problem) -> Value {
    let mut listed = json!({ "place": problem.place, "rule": problem.rule, "pointer": problem.pointer });
    if let Some(hint) = &problem.hint {
        listed["hint"] = json!(hint);
    }
    listed
}

impl From<Problems> for Problem {
    fn from(Problems(problems): Problems) -> Self {
        let first = problems
            .first()
            .map_or_else(|| "it breaks a rule".to_owned(), ToString::to_string);
        let listed: Vec<_> = problems.iter().take(MAX_LISTED).map(listed_problem).collect();
        Self::invalid(format!("the workflow definition is invalid: {first}"))
            .with("problems", listed)
            .with("problemCount", problems.len())
    }
}
