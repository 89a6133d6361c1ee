//! What an agent says when it does not do what it was asked, for a person.

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

/// An error of the table, or of the binding's own.
#[derive(Debug)]
pub(super) struct Refusal<'a> {
    /// The row of the table, if it is one.
    pub(super) kind: Option<Kind>,
    /// What the agent says.
    pub(super) message: &'a str,
    /// How the binding names it.
    pub(super) label: &'a str,
    /// How the command ends if the table does not say.
    pub(super) exit: Exit,
    /// Whether it knows who asks, and who may not.
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

/// An error of JSON-RPC.
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

/// An error of HTTP, whose body may say more: `google.rpc.Status` under `error` in 1.0, in 0.3 whatever the agent likes.
pub(super) fn of_http(status: StatusCode, body: &[u8], has_key: bool) -> Failure {
    let document: Value = serde_json::from_slice(body).unwrap_or_default();
    of_document(status, &document, has_key)
}

/// The same with a body that was read.
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

/// An answer that is not what it should be.
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
    fn an_error_of_http_is_known_by_its_reason_its_number_or_its_status() {
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
