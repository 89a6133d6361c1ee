//! What a call of a tool came to, by what the client reports.
//!
//! Four kinds of ends differ in what may follow: the server has refused the call or could not be reached, so it was
//! not made; the tool has failed; the server has answered with an error; or nobody knows. Only in the first case, or
//! where a repetition does no harm, another attempt follows.

use std::time::Duration;

use rmcp::{ServiceError, model as mcp};
use serde_json::{Map, Value, json};
use wopr_core::ToolRequest;
use wopr_engine::Outcome;

use super::{
    blocks,
    http::{self, Unsent},
    listing::Tool,
    server::Unavailable,
    unreadable::{NO_ANSWER, UNREADABLE},
};
use crate::{http::failed, redact::Secrets};

/// Longest text of a server in a failure, in bytes.
const MAX_REASON: usize = 2_000;
/// Maximum size of the outputs of a call, in bytes of JSON. They have texts twice, in `content` and in `text`.
const MAX_RESULT: usize = 2 << 20;
/// The codes of JSON-RPC by which a server says that it did not do what it was asked.
const NOT_DONE: [i32; 4] = [-32700, -32600, -32601, -32602];

/// How a call ended before it was made.
#[derive(Debug)]
pub(super) enum Ended {
    Before(Unavailable),
    Failed(Outcome),
}

/// What a server answered to a call, or why it did not.
#[derive(Debug)]
pub(super) enum Answered {
    Result(mcp::CallToolResponse),
    Error(ServiceError),
    /// The time is over.
    Late,
}

pub(super) fn refused(code: &str, message: String) -> Outcome {
    failed(code, message, false)
}

const LATE: &str = "the time of the call is over";

/// The failure of a call that may have been made, and that is not made again.
pub(super) fn unknown(request: &ToolRequest, why: &str) -> Outcome {
    let message = format!(
        "nobody knows whether '{}' of '{}' was called: {why}; retrySafe allows another call",
        request.tool, request.server
    );
    failed("outcome_unknown", message, false)
}

pub(super) fn outcome(
    request: &ToolRequest,
    tool: &Tool,
    is_repeatable: bool,
    answered: Answered,
    secrets: &Secrets,
) -> Outcome {
    // Another attempt does no harm, or none may follow.
    let may_be_made = |why: &str| match is_repeatable {
        true => failed(
            "tool_call_failed",
            format!("'{}' did not answer: {why}", request.server),
            true,
        ),
        false => unknown(request, why),
    };
    match answered {
        Answered::Result(mcp::CallToolResponse::Complete(result)) => done(request, tool, result, secrets),
        Answered::Result(_) => refused(
            "tool_asks",
            format!(
                "'{}' asks for more input or for time, which this host does not give",
                request.tool
            ),
        ),
        Answered::Late => may_be_made(LATE).timed_out(),
        Answered::Error(ServiceError::McpError(error)) if error.code.0 == UNREADABLE => failed(
            "tool_call_failed",
            format!(
                "'{}' gave an answer that cannot be read: {}",
                request.server,
                cut(&error.message, secrets)
            ),
            is_repeatable,
        ),
        Answered::Error(ServiceError::McpError(error)) if error.code.0 == NO_ANSWER => {
            may_be_made(&cut(&error.message, secrets))
        }
        Answered::Error(ServiceError::McpError(error)) => {
            let message = format!(
                "'{}' answered with the error {}: {}",
                request.server,
                error.code.0,
                cut(&error.message, secrets)
            );
            match NOT_DONE.contains(&error.code.0) {
                true => refused("tool_call_rejected", message),
                false => failed("tool_call_failed", message, is_repeatable),
            }
        }
        Answered::Error(ServiceError::TransportSend(error)) => match Unsent::of(&*error.error) {
            Some(Unsent::Later { why, after }) => later(request, &why, after),
            Some(Unsent::Never { why }) => refused(
                "tool_call_rejected",
                format!("failed to call '{}': {why}", request.server),
            ),
            None => may_be_made(&cut(&http::broken(&*error.error), secrets)),
        },
        Answered::Error(ServiceError::TransportClosed) => may_be_made("the connection broke"),
        Answered::Error(ServiceError::Cancelled { .. }) => may_be_made("the server cancelled it"),
        Answered::Error(ServiceError::Timeout { .. }) => may_be_made(LATE).timed_out(),
        Answered::Error(ServiceError::UnexpectedResponse) => failed(
            "tool_call_failed",
            format!(
                "'{}' gave an answer that cannot be read: it is no result of a tool",
                request.server
            ),
            is_repeatable,
        ),
        Answered::Error(_) => may_be_made("it sent something else than an answer"),
    }
}

fn later(request: &ToolRequest, why: &str, retry_after: Option<Duration>) -> Outcome {
    Outcome::Failed {
        code: "tool_server_unavailable".to_owned(),
        message: format!("failed to call '{}': {why}", request.server),
        retryable: true,
        retry_after,
        may_go_on: false,
        is_timeout: false,
    }
}

fn done(request: &ToolRequest, tool: &Tool, result: mcp::CallToolResult, secrets: &Secrets) -> Outcome {
    let texts: Vec<_> = result.content.iter().filter_map(blocks::text).collect();
    let text = texts.join("\n");
    if result.is_error == Some(true) {
        let said = match (text.is_empty(), &result.structured_content) {
            (false, _) => text,
            (true, Some(said)) => said.to_string(),
            (true, None) => "it says nothing of the reason".to_owned(),
        };
        return refused(
            "tool_failed",
            format!("'{}' failed: {}", request.tool, cut(&said, secrets)),
        );
    }
    // The tool has done its work, so another call would do it twice.
    if let Err(rule) = tool.check_result(result.structured_content.as_ref()) {
        let message = format!(
            "the result does not match the output schema of '{}': {}",
            request.tool,
            cut(&rule, secrets)
        );
        return refused("tool_result_invalid", message);
    }
    let Ok(mut content) = serde_json::to_value(&result.content) else {
        return refused(
            "tool_call_failed",
            format!("'{}' gave content that cannot be written", request.tool),
        );
    };
    blocks::unwrap(&mut content);
    let mut outputs = Map::new();
    outputs.insert("content".to_owned(), content);
    outputs.insert("text".to_owned(), text.into());
    if let Some(structured) = result.structured_content {
        outputs.insert("structuredContent".to_owned(), structured);
    }
    outputs.insert("server".to_owned(), json!(request.server));
    outputs.insert("tool".to_owned(), json!(request.tool));
    outputs.insert("contentTrust".to_owned(), json!("untrusted"));
    let outputs = Value::Object(outputs);
    if wopr_core::value_size(&outputs) > MAX_RESULT {
        return refused(
            "response_too_large",
            format!(
                "the outputs of '{}' exceed {MAX_RESULT} bytes: texts count twice, in 'content' and in 'text'",
                request.tool
            ),
        );
    }
    Outcome::Done(outputs)
}

/// The beginning of a text. A secret is taken out before: of one that the end cuts, the first part would remain.
pub(super) fn cut(text: &str, secrets: &Secrets) -> String {
    let text = secrets.text(text);
    if text.len() <= MAX_REASON {
        return text;
    }
    format!("{}…", &text[..text.floor_char_boundary(MAX_REASON)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_taken_out_before_a_text_is_cut() {
        let mut secrets = Secrets::default();
        secrets.add("s3cret-of-the-operator");
        for before in MAX_REASON - 30..MAX_REASON {
            let text = format!("{} s3cret-of-the-operator", "x".repeat(before));
            let cut = cut(&text, &secrets);
            assert!(
                !cut.contains("s3c"),
                "{before}: {}",
                &cut[before.min(cut.len())..]
            );
        }
    }
}
