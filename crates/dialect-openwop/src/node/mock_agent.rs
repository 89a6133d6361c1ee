//! `core.conformance.mock-agent`: an agent whose acts are in its settings (RFC 0023).

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{CallError, CallStatus, decide::MAX_CALLS, definition::Node};

pub(crate) const TYPE: &str = "core.conformance.mock-agent";

/// The summary of a reasoning that the settings only ask for.
const SUMMARY: &str = "A scripted agent reasoned.";

#[derive(Debug)]
pub(crate) struct MockAgent {
    /// Instead of the node's agent.
    pub agent: Option<String>,
    pub reasoning: Option<Reasoning>,
    pub calls: Vec<Call>,
    pub handoff: Option<Handoff>,
    pub decision: Option<Decision>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Reasoning {
    pub summary: String,
    /// What is recorded if the run asks for all of it.
    pub trace: Option<String>,
    pub token_count: Option<u64>,
    pub stream_chunks: Option<Vec<String>>,
}

#[derive(Debug)]
pub(crate) struct Call {
    pub tool: String,
    pub inputs: Option<Value>,
    pub outcome: Result<Value, CallError>,
    pub duration_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Handoff {
    pub to_agent_id: String,
    pub reason: Option<String>,
    pub context: Option<Value>,
}

#[derive(Debug)]
pub(crate) struct Decision {
    pub decision: Value,
    pub confidence: Option<f64>,
    pub reasoning: Option<String>,
}

/// The settings as they are written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    agent_id: Option<String>,
    mock_reasoning: Option<Value>,
    #[serde(default)]
    mock_tool_calls: Vec<WrittenCall>,
    mock_handoff: Option<Handoff>,
    mock_decision: Option<WrittenDecision>,
    mock_confidence: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenCall {
    tool_id: String,
    arguments: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    result: Option<Value>,
    error: Option<WrittenError>,
    duration_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenError {
    error: String,
    message: String,
    details: Option<Map<String, Value>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenDecision {
    #[serde(deserialize_with = "present")]
    decision: Option<Value>,
    confidence: Option<f64>,
    reasoning: Option<String>,
}

/// Tells `null` from an absent member.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl MockAgent {
    pub(super) fn read(node: &Node) -> Result<Self, String> {
        let document = Value::Object(node.config.clone());
        let written: Written =
            serde_json::from_value(document).map_err(|error| format!("config: {error}"))?;
        is_id("config.agentId", written.agent_id.as_deref())?;
        let to = written.mock_handoff.as_ref().map(|to| to.to_agent_id.as_str());
        is_id("config.mockHandoff.toAgentId", to)?;
        let calls = written.mock_tool_calls.into_iter().enumerate();
        let calls: Vec<_> = calls
            .map(|(n, call)| {
                call.read()
                    .map_err(|rule| format!("config.mockToolCalls[{n}]: {rule}"))
            })
            .collect::<Result<_, _>>()?;
        if calls.len() > MAX_CALLS {
            return Err(format!("config.mockToolCalls has more than {MAX_CALLS} entries"));
        }
        let decision = match (written.mock_decision, written.mock_confidence) {
            (Some(decision), _) => Some(Decision {
                decision: decision.decision.unwrap_or_default(),
                confidence: decision.confidence,
                reasoning: decision.reasoning,
            }),
            (None, Some(confidence)) => Some(Decision {
                decision: serde_json::json!({ "kind": "scripted" }),
                confidence: Some(confidence),
                reasoning: None,
            }),
            (None, None) => None,
        };
        for confidence in [
            decision.as_ref().and_then(|d| d.confidence),
            written.mock_confidence,
        ] {
            if confidence.is_some_and(|confidence| !(0.0..=1.0).contains(&confidence)) {
                return Err("config: a confidence is not within 0 to 1".to_owned());
            }
        }
        Ok(Self {
            agent: written.agent_id,
            reasoning: match written.mock_reasoning {
                None | Some(Value::Bool(false)) => None,
                Some(Value::Bool(true)) => Some(Reasoning {
                    summary: SUMMARY.to_owned(),
                    trace: None,
                    token_count: None,
                    stream_chunks: None,
                }),
                Some(reasoning) => {
                    let read = serde_json::from_value(reasoning);
                    Some(read.map_err(|error| format!("config.mockReasoning: {error}"))?)
                }
            },
            calls,
            handoff: written.mock_handoff,
            decision,
        })
    }
}

impl WrittenCall {
    fn read(self) -> Result<Call, &'static str> {
        let outcome = match (self.result, self.error) {
            (Some(_), Some(_)) => return Err("it has both result and error"),
            (None, None) => return Err("it has neither result nor error"),
            (Some(result), None) => Ok(result),
            (None, Some(error)) => Err(CallError {
                code: error.error,
                message: error.message,
                details: error.details.map(Value::Object),
            }),
        };
        if self.tool_id.is_empty() {
            return Err("its toolId is empty");
        }
        Ok(Call {
            tool: self.tool_id,
            inputs: self.arguments,
            outcome,
            duration_ms: self.duration_ms,
        })
    }
}

impl Call {
    pub(crate) fn status(&self) -> CallStatus {
        match &self.outcome {
            Ok(_) => CallStatus::Ok,
            Err(error) => match error.code.as_str() {
                "forbidden" => CallStatus::Forbidden,
                "rate_limited" => CallStatus::RateLimited,
                _ => CallStatus::Error,
            },
        }
    }
}

fn is_id(field: &str, id: Option<&str>) -> Result<(), String> {
    match id {
        Some(id) if !(3..=256).contains(&id.chars().count()) => {
            Err(format!("{field} is not a string of 3 to 256 characters"))
        }
        Some(_) | None => Ok(()),
    }
}
