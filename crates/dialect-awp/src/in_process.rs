//! Activities that this host does itself: a model it may ask, the tools of its servers, and fixed outputs of steps.
//!
//! What the host has is recorded in the run when it starts, under `configurable.inProcess`, so what a run does follows from
//! its log alone. A node with an output among `configurable.mockOutputs` has that output. Where the host has nothing, a mock
//! does the work of all nodes; where it has something, a node for which it has nothing fails, unless mocks are allowed too.
//!
//! A model reads the state only between markers if nobody vouches for it, and what a tool gives is untrusted.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use wopr_kernel::{
    Call, Failure, ModelCall, ModelMessage, ModelStop, Object, OverBudget, Seq, StepId, TIMED_OUT,
    ToolRequest, cost, fence, fields,
    measure::{may_be_parsed, object_too_deep},
};

use crate::{
    activity::{self, attempt_failed},
    decide::Next,
    definition::{Kind, Node},
    options::{IN_PROCESS, MOCK_OUTPUTS},
    recorded::{Recorded, recorded},
};

/// The most bytes of the fixed outputs of steps: each run that starts has them in its log.
const MAX_STEPS: usize = 64 << 10;
/// The most bytes of what a model is asked.
const MAX_PROMPT: usize = 1 << 20;
/// The longest time of a call, and that of a node without one, in milliseconds.
const MAX_TIMEOUT_MS: u64 = 600_000;
const MODEL_TIMEOUT_MS: u64 = 120_000;
const TOOL_TIMEOUT_MS: u64 = 45_000;
/// What a model is asked by a node without a prompt if the state is empty.
const NO_PROMPT: &str = "Respond according to the system instructions.";

const NOT_CONFIGURED: &str = "COMPOSITE_EXECUTOR_NOT_CONFIGURED";
const MODEL_INVALID: &str = "LLM_CONFIG_INVALID";
const MODEL_FAILED: &str = "LLM_PROVIDER_ERROR";
const OVER_BUDGET: &str = "BUDGET_EXCEEDED";

/// What a host does activities with.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InProcess {
    /// The provider of models that `llm_call` nodes ask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Whether `tool_call` nodes call the tools of the host's servers.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tools: bool,
    /// The outputs of `step` nodes by their handlers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Object>,
    /// Whether a mock does what nothing else is there for.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mocks: bool,
}

/// Why a host cannot do activities with this.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InProcessError {
    #[error("the outputs of steps must have at most {MAX_STEPS} bytes in all")]
    TooLarge,
    #[error("the outputs of steps nest too deep")]
    TooDeep,
}

impl InProcess {
    /// Whether the host has anything. Otherwise mocks do all activities.
    #[must_use]
    pub const fn has_any(&self) -> bool {
        self.model.is_some() || self.tools || self.steps.is_some()
    }

    /// Checks what every run would have in its log.
    ///
    /// # Errors
    /// It is too much.
    pub fn check(&self) -> Result<(), InProcessError> {
        let Some(steps) = &self.steps else { return Ok(()) };
        if object_too_deep(steps) {
            return Err(InProcessError::TooDeep);
        }
        let n_bytes = Value::Object(steps.clone()).to_string().len();
        match n_bytes > MAX_STEPS {
            true => Err(InProcessError::TooLarge),
            false => Ok(()),
        }
    }

    pub(crate) fn to_value(&self) -> Value {
        json!(self)
    }

    pub(crate) fn read(value: &Value) -> Option<Self> {
        Self::deserialize(value).ok()
    }
}

/// Begins an attempt of an activity.
pub(crate) fn begin(next: &mut Next<'_>, position: usize, (step, attempt): (&StepId, u32), cause: Seq) {
    let work = match recorded(next, step, attempt) {
        Some(Recorded::Completed(output)) => Work::Done(output),
        // No other attempt would find more.
        Some(Recorded::Failed(failure)) if failure.code == OVER_BUDGET => {
            return activity::ended(next, step, cause, Err(failure));
        }
        Some(Recorded::Failed(failure)) => Work::Failed(failure),
        Some(Recorded::Later) => Work::Called(activity::done_elsewhere(next.plan.at(position), step)),
        None => work(next, next.plan.at(position), step),
    };
    match work {
        Work::Done(output) => activity::ended(next, step, cause, Ok(output)),
        Work::Failed(failure) => attempt_failed(next, step, cause, failure),
        Work::Called(call) => next.call(step.clone(), attempt, cause, call),
    }
}

/// What an attempt comes to.
enum Work {
    Done(Object),
    Failed(Failure),
    Called(Call),
}

fn work(next: &mut Next<'_>, node: &Node, step: &StepId) -> Work {
    let Some(started) = next.run.started.as_ref() else {
        return Work::Done(Object::new());
    };
    let mocked = started.configurable.get(MOCK_OUTPUTS);
    let mocked = mocked.and_then(|outputs| outputs.get(step.node.as_str()));
    if let Some(Value::Object(output)) = mocked {
        return Work::Done(output.clone());
    }
    let Some(host) = started.configurable.get(IN_PROCESS) else {
        return Work::Done(Object::new());
    };
    match &node.kind {
        Kind::Step if let Some(Value::Object(outputs)) = host.get("steps") => match of_handler(node, outputs)
        {
            Ok(output) => Work::Done(output),
            Err(failure) => Work::Failed(failure),
        },
        Kind::Tool if host.get("tools") == Some(&Value::Bool(true)) => Work::Called(tool(node)),
        Kind::Llm { output_schema } if let Some(provider) = host.get("model").and_then(Value::as_str) => {
            let (provider, has_schema) = (provider.to_owned(), output_schema.is_some());
            match model(next, node, provider, has_schema) {
                Ok(call) => Work::Called(call),
                Err(failure) => Work::Failed(failure),
            }
        }
        _ if host.get("mocks") == Some(&Value::Bool(true)) => Work::Done(Object::new()),
        kind => Work::Failed(Failure::new(
            NOT_CONFIGURED,
            format!(
                "this host has nothing that does {} activities in process",
                kind.name()
            ),
        )),
    }
}

/// The fixed output of a step's handler.
fn of_handler(node: &Node, outputs: &Object) -> Result<Object, Failure> {
    let Some(handler) = node.config.get("handler").and_then(Value::as_str) else {
        let message = format!("node \"{}\" names no handler", node.id);
        return Err(Failure::new("STEP_CONFIG_INVALID", message));
    };
    let Some(output) = outputs.get(handler) else {
        let message = format!("this host has no output for the handler \"{handler}\"");
        return Err(Failure::new("HANDLER_NOT_FOUND", message));
    };
    if output.get("ok") == Some(&Value::Bool(false))
        && let Some(error) = output.get("error").and_then(Value::as_str)
    {
        let code = output.get("code").and_then(Value::as_str);
        return Err(Failure::new(code.unwrap_or("HANDLER_ERROR"), error));
    }
    Ok(wrapped(output.clone()))
}

/// The member that an output becomes which is no object.
pub(crate) const LONE_OUTPUT: &str = "value";

/// An output that is no object becomes one.
pub(crate) fn wrapped(output: Value) -> Object {
    match output {
        Value::Object(output) => output,
        value => fields(json!({ LONE_OUTPUT: value })),
    }
}

fn text_of<'n>(node: &'n Node, member: &str) -> Option<&'n str> {
    node.config.get(member).and_then(Value::as_str)
}

fn tool(node: &Node) -> Call {
    let text = |member: &str| text_of(node, member).unwrap_or_default().to_owned();
    let arguments = node.config.get("arguments").and_then(Value::as_object);
    Call::Tool(Box::new(ToolRequest {
        server: text("server"),
        tool: text("tool"),
        arguments: arguments.cloned().unwrap_or_default(),
        retry_safe: None,
        timeout_ms: Some(node.timeout_ms.unwrap_or(TOOL_TIMEOUT_MS).min(TOOL_TIMEOUT_MS)),
    }))
}

/// The question to a model. Its prompts are the document's; the state takes their place where there are none.
fn model(next: &mut Next<'_>, node: &Node, provider: String, has_schema: bool) -> Result<Call, Failure> {
    for member in ["system_prompt", "user_prompt", "prompt", "model"] {
        if node
            .config
            .get(member)
            .is_some_and(|said| !said.is_string() && !said.is_null())
        {
            let message = format!("\"{member}\" of node \"{}\" is no text", node.id);
            return Err(Failure::new(MODEL_INVALID, message));
        }
    }
    let mut messages = Vec::new();
    if let Some(system) = text_of(node, "system_prompt") {
        let content = system.to_owned();
        messages.push(ModelMessage::System { content });
    }
    let content = match text_of(node, "user_prompt").or_else(|| text_of(node, "prompt")) {
        Some(prompt) => prompt.to_owned(),
        None if next.state.fields().is_empty() => NO_PROMPT.to_owned(),
        None => {
            let state = next.state.document();
            next.spend(2 * cost::of_value(state))?;
            let state = state.to_string();
            match next.state.is_untrusted {
                true => fence("state", &state),
                false => state,
            }
        }
    };
    messages.push(ModelMessage::User { content });
    if messages.iter().map(ModelMessage::size).sum::<usize>() > MAX_PROMPT {
        let message = format!("what node \"{}\" asks has more than {MAX_PROMPT} bytes", node.id);
        return Err(Failure::new(MODEL_INVALID, message));
    }
    let schema = has_schema
        .then(|| node.config.get("output_schema").cloned())
        .flatten();
    Ok(Call::Model(Box::new(ModelCall {
        provider,
        model: text_of(node, "model").map(str::to_owned),
        messages,
        tools: Vec::new(),
        temperature: None,
        max_tokens: None,
        schema,
        streams: false,
        script: None,
        timeout_ms: node.timeout_ms.unwrap_or(MODEL_TIMEOUT_MS).min(MAX_TIMEOUT_MS),
        granted: Vec::new(),
        has_run_budget: false,
    })))
}

/// Goes on after a call: with what the model or the tool gave.
pub(crate) fn ended(next: &mut Next<'_>, step: &StepId, cause: Seq, outcome: Result<Object, Failure>) {
    let Some((position, active)) = next.active(step) else {
        return;
    };
    let attempt = active.attempt;
    if recorded(next, step, attempt).is_some() {
        return activity::ended(next, step, cause, outcome);
    }
    let plan = next.plan;
    let outcome = match (&plan.at(position).kind, outcome) {
        // This language has no question for more, and another attempt would find the same.
        (Kind::Llm { .. }, Ok(reply)) if let Some(over) = OverBudget::read(&reply) => {
            Err(Failure::new(OVER_BUDGET, over.message()))
        }
        (Kind::Llm { output_schema }, Ok(reply)) => match said(next, &reply, output_schema.is_some()) {
            Ok(output) => Ok(output),
            Err(failure) => return attempt_failed(next, step, cause, failure),
        },
        (Kind::Tool, Ok(answer)) => Ok(given(answer)),
        (_, outcome) => outcome,
    };
    activity::ended(next, step, cause, outcome);
}

/// What a reply adds to the state: the JSON object that it is, else its text.
fn said(next: &mut Next<'_>, reply: &Object, has_schema: bool) -> Result<Object, Failure> {
    let stop = reply
        .get("stop")
        .and_then(|stop| ModelStop::deserialize(stop).ok());
    if stop == Some(ModelStop::Refusal) {
        return Err(Failure::new(MODEL_FAILED, "the model refused to answer"));
    }
    let text = reply.get("text").unwrap_or(&Value::Null);
    next.spend(2 * cost::of_value(text))?;
    let text = text.as_str().unwrap_or_default();
    let parsed = may_be_parsed(text)
        .then(|| serde_json::from_str(text).ok())
        .flatten();
    match parsed {
        Some(Value::Object(output)) => Ok(output),
        Some(value) if has_schema => Ok(wrapped(value)),
        None if has_schema => Err(Failure::new(
            activity::OUTPUT_SCHEMA_VIOLATION,
            "the model answered with something else than JSON",
        )),
        Some(_) | None => Ok(fields(json!({ "text": text }))),
    }
}

/// What a tool's answer adds to the state: its structured result, else its text, else its parts.
fn given(mut answer: Object) -> Object {
    let text = answer.remove("text").filter(|text| text.as_str() != Some(""));
    match (answer.remove("structuredContent"), text) {
        (Some(result), _) if !result.is_null() => wrapped(result),
        (_, Some(text)) => fields(json!({ "text": text })),
        (_, None) => fields(json!({ "content": answer.remove("content") })),
    }
}

/// The code of a failure to ask a model.
pub(crate) fn code_of_model(failure: &Failure) -> &str {
    match failure.code.as_str() {
        _ if is_timeout(failure) => activity::TIMEOUT,
        "model_provider_unknown" | "model_unknown" => MODEL_INVALID,
        "credential_missing" => "LLM_CREDENTIALS_MISSING",
        "model_call_failed"
        | "model_call_rejected"
        | "external_call_failed"
        | "egress_refused"
        | "response_too_large" => MODEL_FAILED,
        _ => activity::code(failure),
    }
}

/// The code of a failure to call a tool.
pub(crate) fn code_of_tool<'f>(node: &Node, failure: &'f Failure) -> &'f str {
    match failure.code.as_str() {
        _ if is_timeout(failure) => match node.timeout_ms {
            Some(timeout) if timeout <= TOOL_TIMEOUT_MS => activity::TIMEOUT,
            Some(_) | None => "ACTIVITY_TIMEOUT",
        },
        "tool_server_unknown" => "MCP_SERVER_NOT_CONFIGURED",
        "tool_failed" => "MCP_TOOL_EXECUTION_ERROR",
        "tool_arguments_invalid" => "INVALID_TOOL_CALL_CONFIG",
        "tool_server_unavailable" => "MCP_CONNECTION_CLOSED",
        "tool_refused" | "tool_unknown" | "tool_call_rejected" | "tool_asks" | "tool_result_invalid" => {
            "MCP_PROTOCOL_ERROR"
        }
        "tool_call_failed" | "outcome_unknown" | "response_too_large" | "tools_too_large"
        | "credential_missing" => "MCP_CLIENT_ERROR",
        _ => activity::code(failure),
    }
}

/// Whether the model or the tool took too long.
fn is_timeout(failure: &Failure) -> bool {
    failure.reason.as_deref() == Some(TIMED_OUT)
}
