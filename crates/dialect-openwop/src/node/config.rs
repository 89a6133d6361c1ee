//! Parses a node's `config`: typed fields, the known keys of each type, and errors that name the field.

use serde_json::{Map, Value};

use super::{CONVERSATION, MEMORY_COMPACT, MEMORY_READ, MEMORY_WRITE, MOCK_AGENT, TOOL_CALL, agent, model};
use crate::{
    expression::{Expression, Template, is_template},
    schema::Allowance,
    whole,
};

/// Maximum number of chunks of a streamed text.
pub(crate) const MAX_PIECES: usize = 1_000;

/// Maximum number of names in a list of approvers.
pub(crate) const MAX_NAMES: usize = 1_000;

/// Fields that only approvals have: they restrict who may answer.
pub(crate) const RESTRICTIONS: [&str; 10] = [
    "approversList",
    "approverRefs",
    "approverRoleRefs",
    "approverGroupRefs",
    "audience",
    "requiredApprovals",
    "rejectionPolicy",
    "profile",
    "onTimeout",
    "timeoutMs",
];

/// A value to assign.
#[derive(Debug)]
pub(crate) enum Assigned {
    Static(Value),
    Expression(Expression),
    Template(Template),
    /// Only the input port provides the value.
    Input,
}

/// The chunks of a streamed text.
#[derive(Debug)]
pub(crate) enum Pieces {
    /// Each template is rendered when its chunk is due.
    Templates(Vec<Template>),
    /// The items of the list that the expression evaluates to.
    List(Expression),
}

/// The keys that a type's configuration may have; `None` if the configuration is open.
pub(crate) fn known_keys(type_id: &str) -> Option<&'static [&'static str]> {
    Some(match type_id {
        "core.delay" => &["delayMs", "durationMs", "ms", "delaySeconds"],
        "core.fail" => &["code", "message", "retryable"],
        "core.a2a.reject" => &["message"],
        "core.stream" => &["chunks", "expression", "intervalMs"],
        "core.template" => &["template"],
        "core.setVariable" => &["name", "variableName", "variable", "value", "expression"],
        "core.channelWrite" => &["channelName", "channel", "value", "reducer", "ttlMs", "maxSize"],
        "core.approvalGate" => &[
            "title",
            "description",
            "prompt",
            "actions",
            "requiredApprovals",
            "rejectionPolicy",
            "approversList",
            "timeoutMs",
            "artifactId",
            "artifactType",
            "artifactData",
            "optionLabels",
            "approverRefs",
            "approverGroupRefs",
            "approverRoleRefs",
            "overrideScopes",
            "onTimeout",
            "profile",
        ],
        "core.clarificationGate" => &[
            "questions",
            "timeoutMs",
            "title",
            "description",
            "prompt",
            "artifactId",
        ],
        "core.interrupt" => &[
            "kind",
            "data",
            "resumeSchema",
            "timeoutMs",
            "title",
            "description",
            "prompt",
            "artifactId",
        ],
        "core.subWorkflow" => &[
            "workflowId",
            "inputMapping",
            "outputMapping",
            "inputs",
            "onChildFailure",
            "propagateCancellation",
            "waitForCompletion",
            "memoryScopeIsolation",
            "outputAttestation",
        ],
        "core.orchestrator.supervisor" => &[
            "agentId",
            "decision",
            "rules",
            "model",
            "workers",
            "transcriptWindow",
            "contextBudget",
            "verifier",
            "maxLoopIterations",
            "iterationCap",
            "mockDispatchPlan",
            "mockDecisions",
            "mockConfidence",
            "mockPendingDecision",
        ],
        "core.dispatch" => &[
            "askUserRouting",
            "workerDispatchModel",
            "fanOutPolicy",
            "iterationCap",
            "inputMapping",
            "outputMapping",
            "perWorkerInputMappings",
            "perWorkerOutputMappings",
            "maxConcurrency",
            "joinPolicy",
            "memoryScopeIsolation",
        ],
        "core.a2a.invoke" => &[
            "peer",
            "skill",
            "message",
            "data",
            "timeoutMs",
            "protocolVersion",
            "binding",
            "acceptedOutputModes",
        ],
        agent::CONVERSE => &[
            "peer",
            "baseUrl",
            "skill",
            "message",
            "data",
            "maxTurns",
            "timeoutMs",
            "protocolVersion",
            "binding",
            "acceptedOutputModes",
        ],
        agent::SEND => &[
            "peer",
            "baseUrl",
            "skill",
            "message",
            "data",
            "timeoutMs",
            "protocolVersion",
            "binding",
            "acceptedOutputModes",
        ],
        agent::GET_TASK | agent::CANCEL_TASK => &[
            "peer",
            "baseUrl",
            "taskId",
            "timeoutMs",
            "protocolVersion",
            "binding",
        ],
        agent::DISCOVER => &["peer", "baseUrl", "timeoutMs"],
        model::CALL_PROMPT => &[
            "provider",
            "model",
            "systemPrompt",
            "prompt",
            "promptId",
            "messages",
            "temperature",
            "maxTokens",
            "timeoutMs",
            "stream",
            "expectsStreaming",
            "tools",
            "maxToolRounds",
            "mcp",
        ],
        model::STRUCTURED_OUTPUT => &[
            "provider",
            "model",
            "systemPrompt",
            "prompt",
            "messages",
            "outputSchema",
            "temperature",
            "maxTokens",
            "timeoutMs",
            "retryOnInvalidJson",
            "tools",
            "maxToolRounds",
        ],
        "core.activity" => &["queue", "input", "timeoutMs", "heartbeatMs"],
        CONVERSATION => &[
            "title",
            "prompt",
            "channel",
            "outcomeSchema",
            "maxTurns",
            "timeoutMs",
            "lifecycle",
            "mockAutoResume",
            "turnCount",
        ],
        MEMORY_WRITE | MEMORY_COMPACT => &["memoryRef", "content", "tags", "ttlMs", "id"],
        MEMORY_READ => &["memoryRef", "id", "tag", "limit"],
        MOCK_AGENT => &[
            "agentId",
            "mockReasoning",
            "mockToolCalls",
            "mockHandoff",
            "mockDecision",
            "mockConfidence",
        ],
        TOOL_CALL => &["server", "tool", "arguments", "retrySafe", "timeoutMs"],
        "core.http.request" => &["method", "url", "headers", "body", "timeoutMs"],
        _ => return None,
    })
}

/// The fields that may name the variable of a `core.setVariable`, in order of precedence.
pub(super) const VARIABLE_FIELDS: [&str; 3] = ["name", "variableName", "variable"];
/// The fields that may name the channel of a `core.channelWrite`, in order of precedence.
pub(super) const CHANNEL_FIELDS: [&str; 2] = ["channelName", "channel"];

/// The variable or channel that a node writes its `value` to, given its configuration as in the document.
#[must_use]
pub(crate) fn written_by<'c>(type_id: &str, config: &'c Map<String, Value>) -> Option<&'c str> {
    let fields: &[&str] = match type_id {
        "core.setVariable" => &VARIABLE_FIELDS,
        "core.channelWrite" => &CHANNEL_FIELDS,
        _ => return None,
    };
    fields.iter().find_map(|field| config.get(*field)?.as_str())
}

#[derive(Clone, Copy)]
pub(super) struct Config<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Config<'a> {
    pub(super) fn text(self, field: &str) -> Result<Option<&'a str>, String> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(format!("config.{field} is not a string")),
        }
    }

    /// The first of these fields that is present.
    pub(super) fn first(self, fields: &[&str]) -> Result<Option<&'a str>, String> {
        let texts = fields.iter().map(|field| self.text(field));
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        Ok(texts.into_iter().flatten().next())
    }

    pub(super) fn flag(self, field: &str) -> Result<Option<bool>, String> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(format!("config.{field} is not a boolean")),
        }
    }

    pub(super) fn millis(self, field: &str) -> Result<Option<u64>, String> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => whole(value)
                .map(Some)
                .ok_or_else(|| format!("config.{field} is not a whole number of at least 0")),
        }
    }

    pub(super) fn names(self, field: &str) -> Result<Vec<String>, String> {
        let list = match self.0.get(field) {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(list)) if list.len() <= MAX_NAMES => list,
            Some(Value::Array(_)) => return Err(format!("config.{field} has more than {MAX_NAMES} names")),
            Some(_) => return Err(format!("config.{field} is not an array")),
        };
        let name = |name: &Value| name.as_str().map(ToOwned::to_owned);
        let names: Option<_> = list.iter().map(name).collect();
        names.ok_or_else(|| format!("config.{field} holds something other than strings"))
    }

    /// Refuses members of an interrupt's data that its gate would ignore.
    pub(super) fn check_data(
        self,
        data: &Map<String, Value>,
        gate: &str,
        more: &[&str],
    ) -> Result<(), String> {
        let known = known_keys(gate).unwrap_or_default();
        let is_known = |key: &String| known.contains(&key.as_str()) || more.contains(&key.as_str());
        match data.keys().find(|key| !is_known(key)) {
            None => Ok(()),
            Some(unknown) => Err(format!(
                "config.data.{unknown} is not known; {gate} has {}",
                known.join(", ")
            )),
        }
    }

    /// Refuses members of open data that appear to restrict who may answer, or how often.
    pub(super) fn check_open_data(self, data: &Map<String, Value>) -> Result<(), String> {
        match data.keys().find(|key| RESTRICTIONS.contains(&key.as_str())) {
            None => Ok(()),
            Some(field) => Err(format!(
                "config.data.{field} restricts approvals only; this kind of interrupt has no such rule"
            )),
        }
    }

    pub(super) fn delay(self) -> Result<Option<u64>, String> {
        for field in ["durationMs", "ms", "delayMs"] {
            if let Some(ms) = self.millis(field)? {
                return Ok(Some(ms));
            }
        }
        Ok(self.millis("delaySeconds")?.map(|s| s.saturating_mul(1_000)))
    }

    pub(super) fn mapping(self, field: &str) -> Result<Vec<(String, String)>, String> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Object(map)) => map
                .iter()
                .map(|(to, from)| {
                    let from = from
                        .as_str()
                        .ok_or_else(|| format!("config.{field}.{to} is not a string"))?;
                    Ok((to.clone(), from.to_owned()))
                })
                .collect(),
            Some(_) => Err(format!("config.{field} is not an object")),
        }
    }

    pub(super) fn pieces(self, allowance: &Allowance) -> Result<Pieces, String> {
        match (self.0.get("chunks"), self.text("expression")?) {
            (Some(_), Some(_)) => Err("config has both chunks and expression".to_owned()),
            (None, None) => Err("config has neither chunks nor expression".to_owned()),
            (None, Some(source)) => Expression::compile(source, allowance)
                .map(Pieces::List)
                .map_err(|e| format!("config.expression: {e}")),
            (Some(Value::Array(items)), None) if (1..=MAX_PIECES).contains(&items.len()) => items
                .iter()
                .enumerate()
                .map(|(n, item)| {
                    let source = item
                        .as_str()
                        .ok_or_else(|| format!("config.chunks[{n}] is not a string"))?;
                    Template::compile(source, allowance).map_err(|e| format!("config.chunks[{n}]: {e}"))
                })
                .collect::<Result<_, _>>()
                .map(Pieces::Templates),
            (Some(_), None) => Err(format!(
                "config.chunks is not an array of 1 to {MAX_PIECES} texts"
            )),
        }
    }

    pub(super) fn assigned(self, allowance: &Allowance) -> Result<Assigned, String> {
        if let Some(source) = self.text("expression")? {
            return Expression::compile(source, allowance)
                .map(Assigned::Expression)
                .map_err(|e| format!("config.expression: {e}"));
        }
        match self.0.get("value") {
            None => Ok(Assigned::Input),
            Some(Value::String(text)) if is_template(text) => Template::compile(text, allowance)
                .map(Assigned::Template)
                .map_err(|e| format!("config.value: {e}")),
            Some(value) => Ok(Assigned::Static(value.clone())),
        }
    }
}
