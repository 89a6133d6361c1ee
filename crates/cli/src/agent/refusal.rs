//! Converts an agent's error responses for display.

use reqwest::StatusCode;
use serde_json::Value;
use wopr_wire::a2a::{error::Kind, rpc::RemoteError};

use crate::{
    client::{self, exit_of},
    exit::{Exit, Failure},
    output::plain,
};

const NOT_ALLOWED: &str = "the agent knows this key, which may not do this";
const NO_KEY: &str = "give a key with --key or WOPR_API_KEY; it goes only where the card itself lies";

/// An A2A error, or one specific to the binding.
#[derive(Debug)]
pub(super) struct Refusal<'a> {
    /// The A2A error, if it is one.
    pub(super) kind: Option<Kind>,
    pub(super) message: &'a str,
    /// The binding's name for the error.
    pub(super) label: &'a str,
    /// The exit code unless `kind` determines it.
    pub(super) exit: Exit,
    /// The agent accepted the credential but denied the operation.
    pub(super) is_forbidden: bool,
}

impl Refusal<'_> {
    pub(super) fn into_failure(self, has_key: bool) -> Failure {
        let exit = match self.kind {
            Some(Kind::TaskNotFound) => Exit::NotFound,
            Some(_) => Exit::Failed,
            None => self.exit,
        };
        let label = plain(self.label);
        let text = match self.message {
            "" => format!("the agent refused it ({label})"),
            message => format!("the agent answered: {} ({label})", plain(message)),
        };
        let failure = Failure::new(exit, text);
        match (self.kind, exit) {
            (Some(Kind::PushNotificationNotSupported), _) => failure
                .hint("this agent sends no push notifications; follow the task with `wopr a2a subscribe`"),
            (Some(Kind::VersionNotSupported), _) => failure.hint("--protocol picks another version"),
            (Some(Kind::ExtendedAgentCardNotConfigured), _) => {
                failure.hint("the agent has one card for everybody: leave out --extended")
            }
            (None, Exit::Unauthorised) if self.is_forbidden && has_key => failure.hint(NOT_ALLOWED),
            (None, Exit::Unauthorised) if !has_key => failure.hint(NO_KEY),
            (None, Exit::Unauthorised) => failure.hint(client::WRONG_KEY),
            (_, _) => failure,
        }
    }
}

pub(super) fn of_rpc(error: &RemoteError) -> Failure {
    Refusal {
        kind: Kind::from_code(error.code),
        message: &error.message,
        label: &error.code.to_string(),
        exit: Exit::Failed,
        is_forbidden: false,
    }
    .into_failure(true)
}

/// Converts an HTTP error. In 1.0 the body holds a `google.rpc.Status` under `error`; in 0.3 its form is
/// undefined.
pub(super) fn of_http(status: StatusCode, body: &[u8], has_key: bool) -> Failure {
    let document: Value = serde_json::from_slice(body).unwrap_or_default();
    of_document(status, &document, has_key)
}

/// Like [`of_http`], for a body that was already parsed.
pub(super) fn of_document(status: StatusCode, document: &Value, has_key: bool) -> Failure {
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
    let message = ["message", "detail", "title"]
        .into_iter()
        .find_map(|name| error.get(name).and_then(Value::as_str));
    Refusal {
        kind,
        message: message.unwrap_or_default(),
        label: &match kind {
            Some(kind) => format!("{}, {kind_name}", status.as_u16(), kind_name = kind.reason()),
            None => status.to_string(),
        },
        exit: exit_of(status),
        is_forbidden: status == StatusCode::FORBIDDEN,
    }
    .into_failure(has_key)
}

/// The response is malformed.
pub(super) fn unreadable(endpoint: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(
        Exit::Failed,
        format!(
            "cannot read the answer of {endpoint}: {}",
            plain(&error.to_string())
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn http_error_is_identified_by_reason_number_or_status() {
        let details =
            json!([{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "TASK_NOT_FOUND"}]);
        for (status, document, exit, text) in [
            (
                404,
                json!({"error": {"code": 404, "message": "gone", "details": details}}),
                Exit::NotFound,
                "the agent answered: gone (404, TASK_NOT_FOUND)",
            ),
            (
                400,
                json!({"code": -32003, "message": "no\u{1b}[31m push"}),
                Exit::Failed,
                "the agent answered: no[31m push (400, PUSH_NOTIFICATION_NOT_SUPPORTED)",
            ),
            (
                401,
                json!(null),
                Exit::Unauthorised,
                "the agent refused it (401 Unauthorized)",
            ),
            (
                503,
                json!({"error": "busy"}),
                Exit::Busy,
                "the agent refused it (503 Service Unavailable)",
            ),
            (
                404,
                json!({"detail": "Not Found"}),
                Exit::NotFound,
                "the agent answered: Not Found (404 Not Found)",
            ),
        ] {
            let failure = of_document(StatusCode::from_u16(status).unwrap(), &document, false);
            assert_eq!(
                (failure.exit(), failure.to_string()),
                (exit, text.to_owned()),
                "{document}"
            );
        }
        assert_eq!(
            of_http(StatusCode::BAD_GATEWAY, b"<html>", true).exit(),
            Exit::Failed
        );
    }
}
