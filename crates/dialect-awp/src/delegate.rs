//! Delegates: work that another agent does.
//!
//! In process, the protocol says what `agent_id` names: an agent of the host's configuration (`a2a`; without one of that
//! name the default one, with `agent_id` as what is asked of it), a tool that the operator has made an agent (`mcp`), or
//! code of the program around the host (`sdk`). A host that has none of the kind answers with the mock, offline. An
//! answer of an agent is untrusted.

use serde_json::{Value, json};
use wopr_kernel::{AgentCall, AgentReach, AgentVerb, Call, Failure, Object, Seq, StepId, fields};

use crate::{
    activity,
    decide::{Next, complete, fail, jq_failure},
    definition::{Kind, Protocol},
    in_process::wrapped,
    mapping::Mapping,
    options::{self, ActivityMode},
};

/// The agent that is asked where the host has none with the name.
const DEFAULT_PEER: &str = "default";
/// The code of a call to an agent that the host does not have.
const UNKNOWN_PEER: &str = "peer_unknown";
/// The code where it has others.
const AGENT_NOT_FOUND: &str = "DELEGATE_AGENT_NOT_FOUND";
/// The agents that are called: the named one, and the default one.
const MAX_CALLS: u32 = 2;

/// Begins an attempt of a delegate.
pub(crate) fn begin(
    next: &mut Next<'_>,
    (agent_id, protocol, mapping): (&str, Protocol, &Mapping),
    position: usize,
    (step, attempt): (&StepId, u32),
    started: Seq,
) {
    let input = match input(next, mapping) {
        Ok(input) => input,
        Err(failure) => return fail(next, step, started, failure),
    };
    match (activity::mode(next), protocol) {
        (ActivityMode::HostMediated, _) => {
            let more = fields(json!({
                "agentId": agent_id,
                "protocol": protocol.as_str(),
                "delegateInput": input,
            }));
            activity::begin(next, position, step, attempt, started, more);
        }
        (ActivityMode::InProcess, protocol) => {
            // An attempt before this one found that the host does not have the named agent.
            let is_unknown = next.active(step).is_some_and(|(_, active)| active.n_calls > 0);
            let peer = if is_unknown { DEFAULT_PEER } else { agent_id };
            let call = call(next, (peer, agent_id, protocol), input, (position, step));
            next.call(step.clone(), attempt, started, call);
        }
    }
}

/// A call to an agent, which is asked for `agent_id` unless it is the one.
fn call(
    next: &Next<'_>,
    (peer, agent_id, protocol): (&str, &str, Protocol),
    input: Object,
    (position, step): (usize, &StepId),
) -> Call {
    let started = next.run.started.as_ref();
    let correlation = started.map(|started| {
        let execution = match protocol {
            // A tool never receives the correlation id; it only appears in histories.
            Protocol::Mcp => options::execution_id(&started.configurable, next.input.run),
            Protocol::A2a | Protocol::Sdk => options::id_for_agents(started, next.input.run),
        };
        options::correlation_id(&execution, step, 0)
    });
    Call::Agent(Box::new(AgentCall {
        verb: AgentVerb::INVOKE,
        peer: peer.to_owned(),
        reach: match protocol {
            Protocol::A2a => AgentReach::Delegate,
            Protocol::Mcp => AgentReach::Tool,
            Protocol::Sdk => AgentReach::Embedded,
        },
        correlation,
        skill: (peer != agent_id).then(|| agent_id.to_owned()),
        text: input.get("task").and_then(Value::as_str).map(str::to_owned),
        data: Some(Value::Object(input)),
        files: Vec::new(),
        context: None,
        version: None,
        binding: None,
        output_modes: Vec::new(),
        caller: next.plan.definition.workflow.to_string(),
        timeout_ms: next.plan.at(position).timeout_ms,
    }))
}

/// Goes on after a call to an agent: with its answer, with the default agent, or with the mock.
pub(crate) fn ended(next: &mut Next<'_>, step: &StepId, cause: Seq, outcome: Result<Object, Failure>) {
    let Some((position, active)) = next.active(step) else {
        return;
    };
    let (attempt, n_calls) = (active.attempt, active.n_calls);
    let plan = next.plan;
    let Kind::Delegate {
        agent_id,
        protocol,
        mapping,
    } = &plan.at(position).kind
    else {
        return;
    };
    let unknown = match outcome {
        Ok(answer) if activity::mode(next) == ActivityMode::InProcess => {
            return complete(next, step, cause, output(answer));
        }
        Err(failure)
            if [UNKNOWN_PEER, AGENT_NOT_FOUND].contains(&failure.code.as_str())
                && activity::mode(next) == ActivityMode::InProcess =>
        {
            failure
        }
        outcome => return activity::ended(next, step, cause, outcome),
    };
    let input = match input(next, mapping) {
        Ok(input) => input,
        Err(failure) => return fail(next, step, cause, failure),
    };
    let has_default = *protocol == Protocol::A2a && agent_id != DEFAULT_PEER;
    if has_default && n_calls + 1 < MAX_CALLS {
        let told = fields(json!({ "error": { "code": unknown.code, "message": unknown.message } }));
        let cause = next.end_call(step, cause, told);
        let asked = (DEFAULT_PEER, agent_id.as_str(), *protocol);
        let call = call(next, asked, input, (position, step));
        return next.call(step.clone(), attempt, cause, call);
    }
    if unknown.code == AGENT_NOT_FOUND {
        return activity::ended(next, step, cause, Err(unknown));
    }
    complete(next, step, cause, mock_output(*protocol, &input));
}

/// The code of a delegate's failure in the words of this language.
pub(crate) fn code(failure: &Failure) -> &str {
    match failure.code.as_str() {
        "remote_failed" | "rejected_by_remote" => "A2A_TASK_FAILED",
        "credential_missing" => "A2A_CREDENTIALS_MISSING",
        "external_call_failed"
        | "egress_refused"
        | "input_required_by_remote"
        | "auth_required_by_remote"
        | "too_many_questions"
        | "card_invalid"
        | "card_unsigned"
        | "version_not_supported" => "A2A_PROVIDER_ERROR",
        _ => activity::code(failure),
    }
}

/// The attempt as the correlation id counts it; see [`options::correlation_id`].
pub(crate) const fn counted(mode: ActivityMode, attempt: u32) -> u32 {
    match mode {
        ActivityMode::HostMediated => attempt,
        ActivityMode::InProcess => 0,
    }
}

/// The task of an agent by what the host finds it again.
pub(crate) fn task_of_handle(handle: &Value) -> Option<String> {
    let handle = handle.get("tasksHttp").unwrap_or(handle);
    handle.get("taskId").and_then(Value::as_str).map(str::to_owned)
}

/// The task that the mock says it has made.
pub(crate) fn mock_task(correlation: &str) -> String {
    format!("a2a-task-{}", correlation.replace(':', "-"))
}

/// What an agent's answer adds to the state: its data, else its text.
fn output(mut answer: Object) -> Object {
    match (answer.remove("data"), answer.remove("text")) {
        (Some(data), _) if !data.is_null() => wrapped(data),
        (_, Some(Value::String(text))) if !text.is_empty() => fields(json!({ "text": text })),
        (Some(_) | None, _) => fields(json!({ "delegate_status": "completed" })),
    }
}

fn input(next: &Next<'_>, mapping: &Mapping) -> Result<Object, Failure> {
    let evaluated = mapping.evaluate(next.state.document(), next.input.now, &next.budget);
    evaluated.map_err(|(name, error)| {
        let message = format!("input_mapping \"{name}\": {error}");
        jq_failure("delegate_failed", &error, message)
    })
}

/// What the mock of an agent answers.
fn mock_output(protocol: Protocol, input: &Object) -> Object {
    match protocol {
        Protocol::A2a => {
            let patch = match input.get("task").and_then(Value::as_str) {
                Some(task) => {
                    let task: String = task.chars().take(120).collect();
                    format!("// mock A2A patch for: {task}")
                }
                None => "// mock A2A patch (no task in delegate input)".to_owned(),
            };
            fields(json!({ "patch": patch, "delegate_status": "completed" }))
        }
        Protocol::Mcp | Protocol::Sdk => {
            fields(json!({ "delegate_status": "completed", "protocol": protocol.as_str() }))
        }
    }
}
