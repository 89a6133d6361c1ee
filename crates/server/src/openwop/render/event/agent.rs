//! What agents do, as `agent.*` events (RFC 0002, 0023, 0024, 0077 and 0090).

use serde_json::{Value, json};
use wopr_core::{
    MemoryWritten, NodeId, RunId,
    openwop::{Act, AgentEvent, CallError, Invocation, Target, Transport, Verbosity},
};

use super::{Mask, Payload, event_id};

pub(super) const fn name(event: &AgentEvent) -> &'static str {
    match &event.act {
        Act::Invoked(_) => "agent.invocation.started",
        Act::ReasoningDelta { .. } => "agent.reasoning.delta",
        Act::Reasoned { .. } => "agent.reasoned",
        Act::ToolCalled { .. } => "agent.toolCalled",
        Act::ToolReturned { .. } => "agent.toolReturned",
        Act::HandedOff { .. } => "agent.handoff",
        Act::Decided { .. } => "agent.decided",
        Act::Verified { .. } => "agent.verified",
        Act::Finished { .. } => "agent.invocation.completed",
    }
}

/// Whether the published schema allows additional members.
pub(super) const fn is_open(event: &AgentEvent) -> bool {
    !matches!(event.act, Act::Verified { .. })
}

/// The payload. What an agent thinks and says may contain what its node makes, so it is masked as the output of
/// that name, and hidden if any output of the node is.
pub(super) fn payload<'a>(event: &'a AgentEvent, run: &RunId, mask: &Mask) -> Payload<'a> {
    let AgentEvent {
        step,
        attempt,
        agent,
        act,
    } = event;
    let shown = |port: &str, value: &Value| mask.said(&step.node, port, value);
    let words = |port: &str, text: &str| shown(port, &Value::String(text.to_owned()));
    let passed = |port: &str, value: &Option<Value>| {
        let value = value.as_ref();
        value.map(|value| mask.passed(&step.node, port, value))
    };
    let own = || Payload::new().with("agentId", agent.as_str());
    // Counts the attempts of the execution; it is in no other event of the log.
    let invocation = || format!("{}:{attempt}", step.key());
    match act {
        Act::Invoked(Invocation {
            model_class,
            model,
            provider,
            version,
            n_tools,
            has_memory,
        }) => own()
            .with("invocationId", invocation())
            .with("source", "workflow-node")
            .maybe("modelClass", model_class.as_deref())
            .maybe("resolvedModel", model.as_deref())
            .maybe("resolvedProvider", provider.as_deref())
            .maybe("resolvedAgentVersion", version.as_deref())
            .maybe("toolSurfaceCount", *n_tools)
            .maybe("memoryBound", *has_memory),
        Act::ReasoningDelta {
            delta,
            sequence,
            verbosity,
        } => own()
            .with("delta", words("reasoning", delta))
            .with("sequence", *sequence)
            .maybe("verbosity", verbosity.map(Verbosity::as_str)),
        Act::Reasoned {
            reasoning,
            verbosity,
            tokens,
        } => own()
            .with("reasoning", words("reasoning", reasoning))
            .maybe("verbosity", verbosity.map(Verbosity::as_str))
            .maybe("tokenCount", *tokens),
        Act::ToolCalled {
            call,
            tool,
            inputs,
            args_hash,
            principal,
            transport,
        } => {
            let given = passed("inputs", inputs);
            // Where anything of the inputs is hidden so is their hash: whoever guesses it could check the guess.
            let hash = args_hash.as_deref();
            let hash = hash.filter(|hash| given == *inputs && words("inputs", hash) == **hash);
            own()
                .with("toolName", tool.as_str())
                .with("callId", call.as_str())
                .maybe("inputs", given)
                .maybe("argsHash", hash)
                .maybe("principal", principal.as_deref())
                .maybe("transport", transport.map(Transport::as_str))
        }
        Act::ToolReturned {
            call,
            tool,
            status,
            outcome,
            error,
            duration_ms,
        } => own()
            .with("toolName", tool.as_str())
            .with("callId", call.as_str())
            .with("status", status.as_str())
            .maybe("outcome", passed("outcome", outcome))
            .maybe(
                "error",
                error.as_ref().map(|error| failed(error, mask, &step.node)),
            )
            .maybe("durationMs", *duration_ms),
        Act::HandedOff { to, reason, context } => Payload::new()
            .with("fromAgentId", agent.as_str())
            .with("toAgentId", to.as_str())
            .maybe("reason", reason.as_deref().map(|reason| words("reason", reason)))
            .maybe("context", passed("context", context)),
        Act::Decided {
            decision,
            confidence,
            reasoning,
        } => own()
            .with("decision", shown("decision", decision))
            .maybe("confidence", *confidence)
            .maybe(
                "reasoning",
                reasoning.as_deref().map(|text| words("reasoning", text)),
            ),
        Act::Verified {
            target,
            verdict,
            criteria,
            confidence,
        } => own()
            .with(
                "target",
                match target {
                    Target::Event(seq) => event_id(run, seq.0),
                    Target::Id(id) => id.clone(),
                },
            )
            .with("verdict", verdict.as_str())
            .maybe(
                "criteria",
                Some(criteria.clone())
                    .filter(|criteria| !criteria.is_empty() && !mask.hides_outputs(&step.node)),
            )
            .maybe("confidence", *confidence),
        Act::Finished {
            outcome,
            confidence,
            is_valid,
        } => own()
            .with("invocationId", invocation())
            .with("outcome", outcome.as_str())
            .maybe("schemaValidated", *is_valid)
            .maybe("confidence", *confidence),
    }
}

/// An entry, without its content: who may read the log need not be who may read the memory.
pub(super) fn written(written: &MemoryWritten) -> Payload<'_> {
    Payload::node(&written.step)
        .with("memoryRef", written.scope.as_str())
        .with("memoryId", written.id.as_str())
        .maybe("agentId", written.agent.as_deref())
        .maybe("tags", Some(&written.tags[..]).filter(|tags| !tags.is_empty()))
}

/// The failure of a tool, as the agent gets it.
fn failed(error: &CallError, mask: &Mask, node: &NodeId) -> Value {
    let message = mask.said(node, "error", &error.message.as_str().into());
    let mut shown = json!({ "code": error.code, "message": message });
    if let Some(details) = error.details.as_ref().filter(|_| !mask.hides_outputs(node)) {
        shown["details"] = details.clone();
    }
    shown
}
