//! Agents that are tools: the operator names a server and a tool for each, and a call of the agent is one call of the
//! tool. What the caller sends are its arguments, and what it gives is the answer.

use serde_json::{Value, json};
use wopr_core::{AgentCall, ToolRequest, UNTRUSTED};
use wopr_engine::Outcome;

use super::failure::{cut, failed};
use crate::mcp::{Asked, ToolServers};

pub(super) const AGENT_NOT_FOUND: &str = "DELEGATE_AGENT_NOT_FOUND";
const PROTOCOL_ERROR: &str = "DELEGATE_PROTOCOL_ERROR";

/// An agent that is a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolAgent {
    /// The name by which workflows call it.
    pub name: String,
    /// The name of its server in this host's configuration.
    pub server: String,
    pub tool: String,
}

/// Makes one attempt.
pub(crate) async fn ask(
    agents: &[ToolAgent],
    servers: &ToolServers,
    call: &AgentCall,
    asked: Asked<'_>,
) -> Outcome {
    if agents.is_empty() {
        return failed("peer_unknown", "no agent of this host is a tool".to_owned());
    }
    let Some(agent) = agents.iter().find(|agent| agent.name == call.peer) else {
        let message = format!("no tool of this host is the agent '{}'", call.peer);
        return failed(AGENT_NOT_FOUND, cut(&message));
    };
    let arguments = match &call.data {
        Some(Value::Object(arguments)) => arguments.clone(),
        Some(_) | None => return failed("invalid_input", "a tool takes an object".to_owned()),
    };
    let request = ToolRequest {
        server: agent.server.clone(),
        tool: agent.tool.clone(),
        arguments,
        retry_safe: None,
        timeout_ms: call.timeout_ms,
    };
    match servers.call(&request, asked).await {
        Outcome::Done(answer) => Outcome::Done(outputs(call, answer)),
        Outcome::Failed {
            code,
            message,
            retryable,
            retry_after,
            may_go_on,
            is_timeout,
        } => Outcome::Failed {
            message: format!("{message} ({code})"),
            code: match code.as_str() {
                "tool_server_unknown" => AGENT_NOT_FOUND.to_owned(),
                _ => PROTOCOL_ERROR.to_owned(),
            },
            retryable,
            retry_after,
            may_go_on,
            is_timeout,
        },
        ended @ (Outcome::GivenUp { .. } | Outcome::Cancelled { .. }) => ended,
    }
}

/// What a tool gives, in the form of an agent's answer: its structured result, else its text, else its parts.
fn outputs(call: &AgentCall, mut answer: Value) -> Value {
    let text = answer["text"].as_str().unwrap_or_default().to_owned();
    let data = match answer["structuredContent"].take() {
        Value::Object(result) => Some(Value::Object(result)),
        _ if text.is_empty() => Some(json!({ "content": answer["content"].take() })),
        _ => None,
    };
    // A tool has no task, so the call is named after itself.
    let correlation = call.correlation.as_deref().unwrap_or_default();
    json!({
        "text": text,
        "data": data,
        "artifacts": [],
        "state": "completed",
        "taskId": format!("mcp-task-{}", correlation.replace(':', "-")),
        "contextId": "",
        "peer": call.peer,
        "contentTrust": UNTRUSTED,
    })
}
