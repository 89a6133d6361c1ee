//! Why a call to a remote agent failed.
//!
//! The variants keep apart what a caller decides on: whether the peer may have received the request, whether a
//! repetition could succeed, and what the peer itself said. Texts of a peer are untrusted, bounded in size and
//! free of its credential.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, StatusCode};
use serde_json::Value;
use url::Url;
use wopr_wire::{
    a2a::{
        error::Kind,
        method::{Operation, Version},
        rpc,
    },
    json::{BodyError, DecodeError},
};

use crate::redact::Secrets;
use crate::{egress::EgressError, http::retry_after};

/// Maximum length of a peer's text in bytes.
const MAX_TEXT: usize = 8 << 10;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("find an A2A peer named '{0}'")]
    UnknownPeer(String),
    #[error("read the peer's credential from {source_name}")]
    CredentialMissing {
        /// Where the operator said it is.
        source_name: String,
    },
    /// The authorization server granted no access token; the peer was not called.
    #[error("get an access token: {0}")]
    Token(String, #[source] Option<Arc<EgressError>>),
    /// The egress gate refused the request; nothing was sent.
    #[error("{0}")]
    Policy(#[source] EgressError),
    /// No connection was made; nothing was sent.
    #[error("{cause}{}", InBrackets(.origin))]
    Unreachable {
        #[source]
        cause: EgressError,
        /// The origin that was to be reached; empty if it is not known.
        origin: String,
    },
    /// The connection broke after the request may have been sent.
    #[error("{0}")]
    Interrupted(#[source] EgressError),
    #[error("{0}")]
    TimedOut(#[source] EgressError),
    /// The answer is larger than what is held here.
    #[error("take an answer over {limit} bytes, or of too many values")]
    TooLarge {
        /// In bytes.
        limit: usize,
    },
    /// An HTTP or gRPC status that carries no A2A error.
    #[error("{0}")]
    Status(Status),
    /// The peer answered with an A2A error.
    #[error("{0}")]
    Remote(RemoteError),
    #[error("read the answer: {0}")]
    Undecodable(String),
    /// The answer nests deeper than any that is read here.
    #[error("read the answer: it nests too deep")]
    TooDeep,
    #[error("get a stream: the peer answered without one")]
    NoStream,
    /// The peer answered with a task that was not asked for.
    #[error("read the answer: it is another task")]
    OtherTask,
    #[error("find a card at {place}: {status}")]
    CardMissing {
        place: String,
        status: StatusCode,
        retry_after: Option<Duration>,
    },
    /// The card could not be fetched a moment ago, and was not asked for again.
    #[error("fetch the card: a moment ago it was not possible to {why}")]
    CardNotFetched {
        /// The text of the failure then.
        why: String,
        /// Its code.
        code: &'static str,
        is_transient: bool,
    },
    /// The card cannot be read, or no signature of it is valid.
    #[error("accept the card: {0}")]
    CardInvalid(String),
    #[error("accept the card: it is not signed")]
    CardUnsigned,
    /// The card offers no interface that this client can use.
    #[error("find a usable interface among {}", Listed(.offered))]
    NoInterface { offered: Vec<String> },
    /// The card offers no version that this client speaks, or not the wanted one.
    #[error("find a usable version among {}", Listed(.offered))]
    VersionNotSupported { offered: Vec<String> },
    /// The binding lacks the operation in this version; nothing was sent.
    #[error("call {operation:?} over a binding of A2A {version} that lacks it")]
    NotOffered { operation: Operation, version: Version },
    /// The request has no form in this version; nothing was sent.
    #[error("write the request: {0}")]
    Unwritable(String),
}

/// A status without an A2A error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// For gRPC, the equivalent HTTP status.
    pub status: StatusCode,
    pub retry_after: Option<Duration>,
    /// The peer's text, if it has one.
    pub message: String,
    /// The binding's name for the status.
    pub label: String,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "get an answer: the peer answered {}", self.label)
    }
}

/// An A2A error that the peer answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteError {
    /// The error, if A2A or JSON-RPC defines it.
    pub kind: Option<Kind>,
    pub code: i64,
    /// Such as `TASK_NOT_FOUND`; empty if unknown.
    pub reason: &'static str,
    pub message: String,
    /// The binding's name for the error.
    pub label: String,
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "get a result: the peer answered with error {}", self.label)
    }
}

/// An origin in brackets, if there is one.
struct InBrackets<'a>(&'a str);

impl fmt::Display for InBrackets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => Ok(()),
            origin => write!(f, " ({origin})"),
        }
    }
}

struct Listed<'a>(&'a [String]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

impl Error {
    /// Returns `true` if the peer may have received the request, or a part of it.
    #[must_use]
    pub fn may_have_been_sent(&self) -> bool {
        match self {
            Self::Interrupted(_)
            | Self::TooLarge { .. }
            | Self::Status(_)
            | Self::Remote(_)
            | Self::Undecodable(_)
            | Self::TooDeep
            | Self::OtherTask
            | Self::NoStream => true,
            Self::TimedOut(error) => error.may_have_been_sent(),
            Self::UnknownPeer(_)
            | Self::CredentialMissing { .. }
            | Self::Token(..)
            | Self::Policy(_)
            | Self::Unreachable { .. }
            | Self::CardMissing { .. }
            | Self::CardNotFetched { .. }
            | Self::CardInvalid(_)
            | Self::CardUnsigned
            | Self::NoInterface { .. }
            | Self::VersionNotSupported { .. }
            | Self::NotOffered { .. }
            | Self::Unwritable(_) => false,
        }
    }

    /// Returns `true` if the same request could succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { cause: error, .. } | Self::Interrupted(error) | Self::TimedOut(error) => {
                error.is_transient()
            }
            Self::CardNotFetched { is_transient, .. } => *is_transient,
            Self::Token(_, cause) => cause.as_ref().is_some_and(|cause| cause.is_transient()),
            Self::Status(Status { status, .. }) | Self::CardMissing { status, .. } => {
                status.is_server_error() && *status != StatusCode::NOT_IMPLEMENTED
                    || matches!(
                        *status,
                        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT
                    )
            }
            Self::UnknownPeer(_)
            | Self::CredentialMissing { .. }
            | Self::Policy(_)
            | Self::TooLarge { .. }
            | Self::Remote(_)
            | Self::Undecodable(_)
            | Self::TooDeep
            | Self::OtherTask
            | Self::NoStream
            | Self::CardInvalid(_)
            | Self::CardUnsigned
            | Self::NoInterface { .. }
            | Self::VersionNotSupported { .. }
            | Self::NotOffered { .. }
            | Self::Unwritable(_) => false,
        }
    }

    /// The delay that the peer asks for.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        if let Self::Status(Status { retry_after, .. }) | Self::CardMissing { retry_after, .. } = self {
            return *retry_after;
        }
        None
    }

    /// The message that the peer sent with its status or its error, if it sent one.
    #[must_use]
    pub fn words(&self) -> Option<&str> {
        if let Self::Status(Status { message, .. }) | Self::Remote(RemoteError { message, .. }) = self {
            return (!message.is_empty()).then_some(message);
        }
        None
    }

    /// The code of a node that fails with this error.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownPeer(_) => "peer_unknown",
            Self::CredentialMissing { .. } => "credential_missing",
            Self::CardInvalid(_) | Self::NoInterface { .. } => "card_invalid",
            Self::CardUnsigned => "card_unsigned",
            Self::VersionNotSupported { .. } => "version_not_supported",
            Self::Remote(error) if error.kind == Some(Kind::VersionNotSupported) => "version_not_supported",
            Self::CardMissing { .. } if !self.is_transient() => "card_invalid",
            Self::Remote(_) => "remote_failed",
            Self::Status(_) if !self.is_transient() => "remote_failed",
            Self::Undecodable(_)
            | Self::TooDeep
            | Self::OtherTask
            | Self::NoStream
            | Self::TooLarge { .. } => "remote_failed",
            Self::Policy(_) => "egress_refused",
            Self::Token(_, Some(cause)) if matches!(**cause, EgressError::Refused(_)) => "egress_refused",
            Self::CardNotFetched { code, .. } => code,
            Self::Token(..)
            | Self::Unreachable { .. }
            | Self::Interrupted(_)
            | Self::TimedOut(_)
            | Self::Status(_)
            | Self::CardMissing { .. }
            | Self::NotOffered { .. }
            | Self::Unwritable(_) => "external_call_failed",
        }
    }

    /// Returns `true` if the interface did not take the request, so that another one may.
    pub(super) fn is_unanswered(&self) -> bool {
        if self.is_unconnected() {
            return true;
        }
        match self {
            Self::NotOffered { .. } => true,
            // Nothing is at the address, or not by this method, media type or protocol. Redirects are not followed; those
            // that a server may send after it has taken a request do not count.
            Self::Status(Status { status, .. }) => matches!(
                *status,
                StatusCode::NOT_FOUND
                    | StatusCode::METHOD_NOT_ALLOWED
                    | StatusCode::NOT_IMPLEMENTED
                    | StatusCode::GONE
                    | StatusCode::UNSUPPORTED_MEDIA_TYPE
                    | StatusCode::UPGRADE_REQUIRED
                    | StatusCode::MOVED_PERMANENTLY
                    | StatusCode::TEMPORARY_REDIRECT
                    | StatusCode::PERMANENT_REDIRECT
            ),
            // The gate refused it before it was sent. The card may name an interface that it admits.
            Self::Policy(_) => true,
            Self::Remote(error) => {
                matches!(error.kind, Some(Kind::MethodNotFound | Kind::VersionNotSupported))
            }
            Self::UnknownPeer(_)
            | Self::CredentialMissing { .. }
            | Self::Token(..)
            | Self::Unreachable { .. }
            | Self::Interrupted(_)
            | Self::TimedOut(_)
            | Self::TooLarge { .. }
            | Self::Undecodable(_)
            | Self::TooDeep
            | Self::OtherTask
            | Self::NoStream
            | Self::CardMissing { .. }
            | Self::CardNotFetched { .. }
            | Self::CardInvalid(_)
            | Self::CardUnsigned
            | Self::NoInterface { .. }
            | Self::VersionNotSupported { .. }
            | Self::Unwritable(_) => false,
        }
    }

    /// Returns `true` if there was no connection to the interface, so that it cannot have taken the request.
    pub(super) fn is_unconnected(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
            || matches!(self, Self::TimedOut(error) if !error.may_have_been_sent())
    }

    /// Returns `true` if the interface answered, even if with an error.
    pub(super) fn is_answer(&self) -> bool {
        matches!(
            self,
            Self::Remote(_)
                | Self::Status(_)
                | Self::TooLarge { .. }
                | Self::Undecodable(_)
                | Self::TooDeep
                | Self::OtherTask
                | Self::NoStream
        )
    }

    /// The error of a request to a place. Without a connection the text names the origin, which has no credential and no query.
    pub(super) fn of_request(error: EgressError, place: &Url) -> Self {
        match Self::from(error) {
            Self::Unreachable { cause, .. } => Self::Unreachable {
                cause,
                origin: place.origin().ascii_serialization(),
            },
            error => error,
        }
    }

    pub(super) fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Status(Status { status, .. }) if *status == StatusCode::UNAUTHORIZED)
    }

    /// The JSON-RPC error of a response.
    pub(super) fn of_rpc(error: &rpc::RemoteError, secrets: &Secrets) -> Self {
        let kind = Kind::from_code(error.code);
        Self::Remote(RemoteError {
            kind,
            code: error.code,
            reason: kind.map_or("", Kind::reason),
            message: bounded(&secrets.text(&error.message)),
            label: error.code.to_string(),
        })
    }

    /// The error of an HTTP response. In 1.0 the body holds a `google.rpc.Status` under `error`; in 0.3 its
    /// form is undefined.
    pub(super) fn of_http(status: StatusCode, headers: &HeaderMap, body: &[u8], secrets: &Secrets) -> Self {
        let document: Value = serde_json::from_slice(body).unwrap_or_default();
        Self::of_document(status, headers, &document, secrets)
    }

    /// The error of an HTTP status alone.
    pub(super) fn of_status(status: StatusCode, headers: &HeaderMap) -> Self {
        Self::Status(Status {
            status,
            retry_after: retry_after(headers, SystemTime::now()),
            message: String::new(),
            label: status.to_string(),
        })
    }

    /// Like [`Error::of_http`], for a body that was already parsed.
    pub(super) fn of_document(
        status: StatusCode,
        headers: &HeaderMap,
        document: &Value,
        secrets: &Secrets,
    ) -> Self {
        let error = document.get("error").filter(|error| error.is_object());
        let error = error.unwrap_or(document);
        let details = error.get("details").and_then(Value::as_array);
        let reasons = details.into_iter().flatten();
        let mut reasons = reasons.filter_map(|detail| detail.get("reason").and_then(Value::as_str));
        let codes = [document.get("code"), error.get("code")];
        let mut codes = codes.into_iter().flatten().filter_map(Value::as_i64);
        let kind = reasons
            .find_map(Kind::from_reason)
            .or_else(|| codes.find_map(Kind::from_code));
        // `error` is the text or the code of an OAuth 2.0 error.
        let message = ["message", "detail", "title", "error_description", "error"]
            .into_iter()
            .find_map(|name| error.get(name).and_then(Value::as_str));
        let message = bounded(&secrets.text(message.unwrap_or_default()));
        match kind {
            // An internal error says no more than a status of the server, which may pass.
            Some(kind) if kind != Kind::Internal || !status.is_server_error() => Self::Remote(RemoteError {
                kind: Some(kind),
                code: kind.code(),
                reason: kind.reason(),
                message,
                label: format!("{}, {}", status.as_u16(), kind.reason()),
            }),
            Some(_) | None => Self::Status(Status {
                status,
                retry_after: retry_after(headers, SystemTime::now()),
                message,
                label: status.to_string(),
            }),
        }
    }

    /// The error of a request about a task, which the peer may not know. Agents of 0.3 say so by a status and in words
    /// alone. A status without a word of the task may come from something in front of the peer.
    pub(super) fn about_task(self, operation: Operation) -> Self {
        let is_about_task = matches!(
            operation,
            Operation::GetTask | Operation::CancelTask | Operation::SubscribeToTask
        );
        match self {
            Self::Status(status)
                if is_about_task
                    && status.status == StatusCode::NOT_FOUND
                    && status.message.to_lowercase().contains("task") =>
            {
                Self::Remote(RemoteError {
                    kind: Some(Kind::TaskNotFound),
                    code: Kind::TaskNotFound.code(),
                    reason: Kind::TaskNotFound.reason(),
                    message: status.message,
                    label: status.label,
                })
            }
            error => error,
        }
    }

    pub(super) fn undecodable(error: &dyn fmt::Display, secrets: &Secrets) -> Self {
        Self::Undecodable(bounded(&secrets.text(&error.to_string())))
    }
}

impl From<EgressError> for Error {
    fn from(error: EgressError) -> Self {
        match error {
            EgressError::Closed(_)
            | EgressError::Refused(_)
            | EgressError::Method
            | EgressError::Header(_)
            | EgressError::RequestTooLarge { .. }
            | EgressError::Form(_) => Self::Policy(error),
            EgressError::Tls(_)
            | EgressError::Certificate { .. }
            | EgressError::Unresolved(_)
            | EgressError::ConnectTimeout
            | EgressError::Connect(_) => Self::Unreachable {
                cause: error,
                origin: String::new(),
            },
            EgressError::Timeout | EgressError::Stalled => Self::TimedOut(error),
            EgressError::Exchange(_) | EgressError::Busy => Self::Interrupted(error),
            EgressError::HeadersTooLarge { limit } | EgressError::ResponseTooLarge { limit } => {
                Self::TooLarge { limit }
            }
            EgressError::TooManyValues(error) => Self::TooLarge { limit: error.limit },
        }
    }
}

/// The error of a body that could not be read. Its text may quote the body, so secrets are removed.
pub(super) fn of_body(error: &BodyError, secrets: &Secrets) -> Error {
    match error {
        BodyError::TooDeep => Error::TooDeep,
        BodyError::Syntax | BodyError::Shape(_) => Error::undecodable(error, secrets),
    }
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Self {
        Self::Unwritable(error.to_string())
    }
}

/// The start of a text.
pub(super) fn bounded(text: &str) -> String {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn http_error_is_identified_by_reason_number_or_status() {
        let details =
            json!([{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "TASK_NOT_FOUND"}]);
        for (status, document, kind, label, message) in [
            (
                404,
                json!({"error": {"code": 404, "message": "gone", "details": details}}),
                Some(Kind::TaskNotFound),
                "404, TASK_NOT_FOUND",
                "gone",
            ),
            (
                400,
                json!({"code": -32003, "message": "no push"}),
                Some(Kind::PushNotificationNotSupported),
                "400, PUSH_NOTIFICATION_NOT_SUPPORTED",
                "no push",
            ),
            (
                500,
                json!({"error": {"code": 500, "message": "oops", "details": [{"reason": "INTERNAL_ERROR"}]}}),
                None,
                "500 Internal Server Error",
                "oops",
            ),
            (401, json!(null), None, "401 Unauthorized", ""),
            (
                503,
                json!({"error": "busy"}),
                None,
                "503 Service Unavailable",
                "busy",
            ),
            (
                401,
                json!({"error": "invalid_token", "error_description": "expired"}),
                None,
                "401 Unauthorized",
                "expired",
            ),
            (
                404,
                json!({"detail": "Not Found"}),
                None,
                "404 Not Found",
                "Not Found",
            ),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let error = Error::of_document(status, &HeaderMap::new(), &document, &Secrets::default());
            let found = match &error {
                Error::Remote(error) => (error.kind, &error.label, &error.message),
                Error::Status(error) => (None, &error.label, &error.message),
                other => panic!("{other:?}"),
            };
            assert_eq!(
                found,
                (kind, &label.to_owned(), &message.to_owned()),
                "{document}"
            );
        }
        let error = Error::of_http(
            StatusCode::BAD_GATEWAY,
            &HeaderMap::new(),
            b"<html>",
            &Secrets::default(),
        );
        assert!(error.is_transient() && error.may_have_been_sent(), "{error:?}");
    }

    #[test]
    fn unknown_task_is_recognized_by_the_words_of_the_peer() {
        let found = |operation, document: Value| {
            let error = Error::of_document(
                StatusCode::NOT_FOUND,
                &HeaderMap::new(),
                &document,
                &Secrets::default(),
            );
            match error.about_task(operation) {
                Error::Remote(error) => error.kind,
                Error::Status(_) => None,
                other => panic!("{other:?}"),
            }
        };
        let said = json!({"message": "Task not found"});
        for operation in [
            Operation::GetTask,
            Operation::CancelTask,
            Operation::SubscribeToTask,
        ] {
            assert_eq!(found(operation, said.clone()), Some(Kind::TaskNotFound));
        }
        assert_eq!(found(Operation::SendMessage, said), None);
        for of_a_proxy in [json!(null), json!({"detail": "Not Found"}), json!("<html>")] {
            assert_eq!(found(Operation::GetTask, of_a_proxy), None);
        }
    }

    #[test]
    fn node_codes_follow_the_contract() {
        let missing = |status| Error::CardMissing {
            place: String::new(),
            status,
            retry_after: None,
        };
        let version = Error::of_rpc(
            &rpc::RemoteError {
                code: Kind::VersionNotSupported.code(),
                message: String::new(),
                data: None,
            },
            &Secrets::default(),
        );
        for (error, code) in [
            (Error::UnknownPeer(String::new()), "peer_unknown"),
            (Error::CardUnsigned, "card_unsigned"),
            (missing(StatusCode::NOT_FOUND), "card_invalid"),
            (missing(StatusCode::BAD_GATEWAY), "external_call_failed"),
            (version, "version_not_supported"),
            (EgressError::Timeout.into(), "external_call_failed"),
            (EgressError::ConnectTimeout.into(), "external_call_failed"),
            (EgressError::Method.into(), "egress_refused"),
            (Error::NoStream, "remote_failed"),
        ] {
            assert_eq!(error.code(), code, "{error:?}");
        }
    }

    #[test]
    fn without_a_connection_the_text_names_the_origin_only() {
        let place = "https://user:password@planner.example.com:8443/a2a?key=secret";
        let place = place.parse().unwrap();
        let error = Error::of_request(EgressError::ConnectTimeout, &place);
        assert_eq!(
            error.to_string(),
            "connect to the peer in time (https://planner.example.com:8443)"
        );
        assert!(error.is_transient() && !error.may_have_been_sent());
        let error = Error::of_request(EgressError::Timeout, &place);
        assert_eq!(error.to_string(), "get a complete answer in time");
    }

    #[test]
    fn texts_of_a_peer_are_bounded_and_redacted() {
        let text = format!("a-secret-key {}", "é".repeat(MAX_TEXT));
        let error = Error::of_rpc(
            &rpc::RemoteError {
                code: -32603,
                message: text,
                data: None,
            },
            &Secrets::of(["a-secret-key"]),
        );
        let Error::Remote(error) = error else {
            panic!("{error:?}")
        };
        assert!(error.message.len() <= MAX_TEXT && error.message.starts_with("[redacted] é"));
    }
}
