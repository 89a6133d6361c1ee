//! Renders events as OpenWOP v1 documents (section 10.6), one document per event.
//!
//! Payloads contain nothing that a replay could not reproduce: no clock except where the specification requires one, and
//! the id of no run but the one that recorded the event first. Events that v1 does not define are vendor events under
//! `vendor.wopr.`.
//!
//! The file is long because each question about an event is one exhaustive match. Families of events have modules.

mod agent;
mod conversation;
mod orchestration;
mod payload;

use std::borrow::Cow;

use serde_json::{Value, json};
use wopr_core::{
    AnswerEnd, ApprovalAction, Authority, CONTENT_TRUST, Cap, CascadeReason, DialectEvent, Event, Failure,
    Fork, Given, InterruptKind, KernelEvent, ModelStop, NodeId, Object, Origin, PrincipalId, Recorded,
    RefusalDivergence, RunId, RunKey, RunStarted, RunStatus, StepId, UNTRUSTED, WorkerFailure,
    openwop::{self, EnvelopeEvent},
    provider,
};
use wopr_wire::openwop::event::{RunEventDoc, SCHEMA_VERSION};

use super::{ENGINE_VERSION_TEXT, Mask, interrupt, time};
use wopr_app::{EDITED, View};

pub use payload::Payload;

/// An event to write out.
pub type Shown<'a> = RunEventDoc<Cow<'a, str>, Payload<'a>>;

/// The event as a document of its own.
#[must_use]
pub fn owned(shown: Shown<'_>) -> RunEventDoc {
    let RunEventDoc {
        event_id,
        run_id,
        node_id,
        event_type,
        sequence,
        timestamp,
        schema_version,
        engine_version,
        causation_id,
        payload,
    } = shown;
    RunEventDoc {
        event_id: event_id.into_owned(),
        run_id: run_id.into_owned(),
        node_id: node_id.map(Cow::into_owned),
        event_type: event_type.into_owned(),
        sequence,
        timestamp,
        schema_version,
        engine_version: engine_version.map(Cow::into_owned),
        causation_id: causation_id.map(Cow::into_owned),
        payload: payload.into_value(),
    }
}

/// The id of an event: run id and sequence number.
#[must_use]
pub fn event_id(run: &RunId, seq: u64) -> String {
    let run = run.as_str();
    let mut digits = itoa::Buffer::new();
    // Without the formatter, which takes several times as long: every event has one or two.
    [run, ".", digits.format(seq)].concat()
}

/// The log of a run, as a reader sees it.
#[derive(Debug, Clone, Copy)]
pub struct Log<'a> {
    pub key: &'a RunKey,
    pub mask: &'a Mask,
    /// Where the run comes from, if it is a fork.
    pub fork: Option<&'a Fork>,
}

impl<'a> Log<'a> {
    /// The log of a run that is no fork.
    #[must_use]
    pub const fn new(key: &'a RunKey, mask: &'a Mask) -> Self {
        Self {
            key,
            mask,
            fork: None,
        }
    }

    /// The log of this run.
    #[must_use]
    pub fn of(view: &'a View, mask: &'a Mask) -> Self {
        Self {
            key: &view.key,
            mask,
            fork: view.run.fork(),
        }
    }

    #[must_use]
    pub fn event(&self, recorded: &'a Recorded) -> Shown<'a> {
        // Children and events that a payload names belong to the run that recorded the event first.
        let recorder = self.fork.and_then(|fork| fork.recorder(recorded.seq));
        event(
            recorded,
            &self.key.run,
            recorder.unwrap_or(&self.key.run),
            self.mask,
        )
    }
}

/// Whether the payload of an event names its run, or an event of it.
#[must_use]
pub const fn names_run(event: &Event) -> bool {
    match event {
        Event::Kernel(event) => {
            matches!(
                event,
                KernelEvent::ChildEnded { is_handoff: true, .. } | KernelEvent::OutputChunk { .. }
            )
        }
        Event::Dialect(DialectEvent::Openwop(event)) => {
            matches!(event, openwop::Event::Orchestration(_) | openwop::Event::Agent(_))
        }
    }
}

fn event<'a>(recorded: &'a Recorded, run: &'a RunId, recorder: &'a RunId, mask: &'a Mask) -> Shown<'a> {
    let (node, mut payload) = masked_payload(&recorded.event, recorder, mask);
    if is_open(&recorded.event) {
        if recorded.is_untrusted {
            payload = payload.with(CONTENT_TRUST, UNTRUSTED);
        }
        payload = payload.maybe("actingPrincipal", acting_principal(recorded));
    }
    RunEventDoc {
        event_id: event_id(run, recorded.seq.0).into(),
        run_id: run.as_str().into(),
        node_id: node.map(Cow::Borrowed),
        event_type: event_type(&recorded.event).into(),
        sequence: recorded.seq.0,
        timestamp: time(recorded.at),
        schema_version: SCHEMA_VERSION,
        engine_version: Some(ENGINE_VERSION_TEXT.into()),
        causation_id: recorded.cause.map(|cause| event_id(run, cause.0).into()),
        payload,
    }
}

/// Who answered or voted with a credential of their own in the name of another principal, which the event names.
fn acting_principal(recorded: &Recorded) -> Option<&str> {
    let Some(Given::Answer(answer)) = recorded.given.as_deref() else {
        return None;
    };
    let by = answer.by.as_str();
    let is_own = matches!(answer.authority, Authority::Credential(_));
    let is_other = answer.voter.as_deref().is_some_and(|voter| voter != by);
    (is_own && is_other).then_some(by)
}

fn masked_payload<'a>(
    event: &'a Event,
    recorder: &'a RunId,
    mask: &'a Mask,
) -> (Option<&'a str>, Payload<'a>) {
    let (node, payload) = payload(event, recorder, mask);
    // A question has a schema, whose properties may have any name, and no values of the run.
    match event.kernel() {
        Some(KernelEvent::InterruptRequested { .. }) => (node, payload),
        Some(_) | None => (node, payload.without_secrets(mask)),
    }
}

/// Returns `true` if two events say the same to a reader, except when and in which run they happened.
#[must_use]
pub fn is_same_shown(events: [&Event; 2], masks: [&Mask; 2], run: &RunId) -> bool {
    let [a, b] = events;
    if event_type(a) != event_type(b) {
        return false;
    }
    let shown = |event, mask| {
        let (node, payload) = masked_payload(event, run, mask);
        (node, payload.without_clocks())
    };
    shown(a, masks[0]) == shown(b, masks[1])
}

/// Returns `true` if the published schema allows additional members in the event's payload.
const fn is_open(event: &Event) -> bool {
    match event {
        Event::Kernel(event) => !matches!(
            event,
            KernelEvent::InterruptRequested { .. }
                | KernelEvent::NodeDispatched { .. }
                | KernelEvent::ChildEnded { is_handoff: true, .. }
                | KernelEvent::MemoryCompacted { .. }
                | KernelEvent::RefusalDiverged { .. }
        ),
        Event::Dialect(DialectEvent::Openwop(event)) => match event {
            openwop::Event::VariableChanged { .. } => true,
            openwop::Event::ChannelWritten { .. }
            | openwop::Event::Orchestration(_)
            | openwop::Event::ProviderUsage { .. }
            | openwop::Event::Envelope { .. } => false,
            openwop::Event::PromptComposed { .. } => true,
            openwop::Event::Agent(event) => agent::is_open(event),
            openwop::Event::Conversation(_) => true,
        },
    }
}

#[must_use]
pub const fn event_type(event: &Event) -> &'static str {
    let event = match event {
        Event::Kernel(event) => event,
        Event::Dialect(DialectEvent::Openwop(openwop::Event::VariableChanged { .. })) => {
            return "variable.changed";
        }
        Event::Dialect(DialectEvent::Openwop(openwop::Event::ChannelWritten { .. })) => {
            return "channel.written";
        }
        Event::Dialect(DialectEvent::Openwop(openwop::Event::PromptComposed { .. })) => {
            return "vendor.wopr.prompt.composed";
        }
        Event::Dialect(DialectEvent::Openwop(openwop::Event::ProviderUsage { .. })) => {
            return "provider.usage";
        }
        Event::Dialect(DialectEvent::Openwop(openwop::Event::Envelope { event, .. })) => {
            return match event {
                EnvelopeEvent::RetryAttempted { .. } => "envelope.retry.attempted",
                EnvelopeEvent::RetryExhausted { .. } => "envelope.retry.exhausted",
                EnvelopeEvent::Refusal { .. } => "envelope.refusal",
                EnvelopeEvent::Truncated { .. } => "envelope.truncated",
                EnvelopeEvent::NlToFormat { .. } => "envelope.nlToFormat.engaged",
                EnvelopeEvent::FenceStripped | EnvelopeEvent::BracesFound { .. } => {
                    "envelope.recovery.applied"
                }
            };
        }
        Event::Dialect(DialectEvent::Openwop(openwop::Event::Agent(event))) => return agent::name(event),
        Event::Dialect(DialectEvent::Openwop(openwop::Event::Conversation(event))) => {
            return conversation::name(event);
        }
        Event::Dialect(DialectEvent::Openwop(openwop::Event::Orchestration(event))) => {
            return orchestration::event_type(event);
        }
    };
    match event {
        KernelEvent::RunStarted(_) => "run.started",
        KernelEvent::RunCompleted { .. } => "run.completed",
        KernelEvent::RunFailed { .. } => "run.failed",
        KernelEvent::RunCancelled { .. } => "run.cancelled",
        KernelEvent::CancelRequested { .. } => "vendor.wopr.run.cancelling",
        KernelEvent::RunPaused { .. } => "run.paused",
        KernelEvent::RunResumed { .. } => "run.resumed",
        KernelEvent::NodeStarted { .. } => "node.started",
        KernelEvent::NodeCompleted { .. } => "node.completed",
        KernelEvent::NodeFailed { .. } => "node.failed",
        KernelEvent::NodeRetried { .. } => "node.retried",
        KernelEvent::NodeSkipped { .. } => "node.skipped",
        KernelEvent::NodeCancelled { .. } => "node.cancelled",
        KernelEvent::NodeSuspended { .. } => "node.suspended",
        KernelEvent::NodeResumed { .. } => "node.resumed",
        KernelEvent::NodeDispatched { .. } => "node.dispatched",
        KernelEvent::ChildEnded { is_handoff: true, .. } => "core.workflowChain.event",
        // Of a chain, it would be the only event.
        KernelEvent::ChildEnded {
            is_handoff: false, ..
        } => "vendor.wopr.child.ended",
        KernelEvent::EffectScheduled { .. } => "vendor.wopr.effect.scheduled",
        KernelEvent::EffectAccepted { .. } => "vendor.wopr.effect.accepted",
        KernelEvent::EffectProgressed { .. } => "vendor.wopr.effect.progressed",
        KernelEvent::EffectEnded { .. } => "vendor.wopr.effect.ended",
        KernelEvent::InterruptRequested { .. } => "interrupt.requested",
        KernelEvent::InterruptResolved { .. } => "interrupt.resolved",
        KernelEvent::ApprovalRequested { .. } => "approval.requested",
        KernelEvent::ApprovalVoted { .. } => "vendor.wopr.approval.voted",
        KernelEvent::ApprovalReceived { .. } => "approval.received",
        KernelEvent::ClarificationRequested { .. } => "clarification.requested",
        KernelEvent::ClarificationResolved { .. } => "clarification.resolved",
        KernelEvent::ArtifactCreated { .. } => "artifact.created",
        KernelEvent::MemoryWritten(_) => "memory.written",
        KernelEvent::MemoryCompacted { .. } => "memory.compacted",
        KernelEvent::OutputChunk { .. } => "output.chunk",
        KernelEvent::CapBreached { .. } => "cap.breached",
        KernelEvent::ReplayDiverged { .. } => "replay.diverged",
        KernelEvent::RefusalDiverged { .. } => "replay.divergedAtRefusal",
        KernelEvent::ForkResumed { .. } => "run.resuming",
    }
}

/// The event's node and its payload.
fn payload<'a>(event: &'a Event, run: &'a RunId, mask: &'a Mask) -> (Option<&'a str>, Payload<'a>) {
    let of = |step: &'a StepId, payload: Payload<'a>| (Some(step.node.as_str()), payload);
    let event = match event {
        Event::Kernel(event) => event,
        Event::Dialect(DialectEvent::Openwop(event)) => return openwop_payload(event, run, mask),
    };
    match event {
        KernelEvent::RunStarted(started) => (None, run_started(started, mask)),
        KernelEvent::RunCompleted { outputs } => (None, Payload::new().with("outputs", mask.result(outputs))),
        KernelEvent::RunFailed { error, node } => {
            let failed = node.as_ref().map(NodeId::as_str);
            let payload = Payload::new()
                .with("error", failure(error))
                .maybe("failedNodeId", failed);
            (None, payload)
        }
        KernelEvent::RunCancelled { reason, by, parent }
        | KernelEvent::CancelRequested { reason, by, parent } => {
            let by_parent = parent.as_ref().map(|_| CascadeReason::default().as_str());
            let payload = Payload::new()
                .maybe("reason", reason.as_deref().or(by_parent))
                .maybe("cancelledBy", by.as_ref().map(PrincipalId::as_str))
                .maybe("parentRunId", parent.as_ref().map(RunId::as_str));
            (None, payload)
        }
        KernelEvent::RunPaused { reason, drain, cut } => {
            // The protocol has a place for one.
            let one = match &cut[..] {
                [one] => Some(one),
                [] | [_, _, ..] => None,
            };
            let payload = Payload::new()
                .maybe("reason", reason.as_deref())
                .with("drainPolicy", drain.as_str())
                .maybe("interruptedNodeId", one.map(|cut| cut.step.node.as_str()))
                .maybe("interruptedAttempt", one.map(|cut| cut.attempt));
            (None, payload)
        }
        KernelEvent::RunResumed { reason } => (None, Payload::new().maybe("reason", reason.as_deref())),
        KernelEvent::NodeStarted {
            step,
            type_id,
            attempt,
        } => of(
            step,
            Payload::node(step)
                .with("typeId", type_id.as_str())
                .with("attempt", *attempt),
        ),
        KernelEvent::NodeCompleted {
            step,
            outputs,
            routing: _,
        } => of(
            step,
            Payload::node(step).with("outputs", mask.outputs(&step.node, outputs)),
        ),
        KernelEvent::NodeFailed {
            step,
            error,
            attempts,
            routing: _,
        } => of(
            step,
            Payload::node(step)
                .with("error", failure(error))
                .with("attempts", (*attempts).max(1)),
        ),
        KernelEvent::NodeRetried {
            step,
            attempt,
            delay_ms,
            error,
        } => of(
            step,
            Payload::node(step)
                .with("attempt", (*attempt).max(1))
                .with("delayMs", *delay_ms)
                .with("lastError", failure(error)),
        ),
        KernelEvent::NodeSkipped { node, reason } => {
            let payload = Payload::new().with("nodeId", node.as_str());
            (Some(node.as_str()), payload.with("reason", reason.as_str()))
        }
        KernelEvent::NodeCancelled { step, reason } => {
            of(step, Payload::node(step).with("reason", reason.as_str()))
        }
        KernelEvent::NodeSuspended {
            step,
            interrupt,
            kind,
            child,
            details,
        } => {
            let payload = Payload::of(details)
                .with("nodeId", step.node.as_str())
                .with("interruptId", interrupt.as_str())
                .with("kind", kind.as_str())
                .with("key", interrupt.as_str())
                .maybe("childRunId", child.as_ref().map(RunId::as_str));
            of(step, payload)
        }
        KernelEvent::NodeResumed {
            step,
            interrupt,
            value,
        } => of(
            step,
            Payload::node(step).with("interruptId", interrupt.as_str()).maybe(
                "resumeValue",
                value.as_ref().map(|value| mask.answer(&step.node, value)),
            ),
        ),
        // The schema is closed: the node is in the envelope only.
        KernelEvent::NodeDispatched {
            step,
            child,
            workflow,
        } => of(
            step,
            Payload::new()
                .with("childRunId", child.as_str())
                .with("childWorkflowId", workflow.as_str()),
        ),
        // The schema is closed here, too. A worker is named by its workflow.
        KernelEvent::ChildEnded {
            step,
            child,
            workflow,
            worker,
            is_handoff: true,
            status,
            error,
            ..
        } => of(
            step,
            Payload::new()
                .with(
                    "phase",
                    match status {
                        RunStatus::Completed => "child.completed",
                        RunStatus::Cancelled => "child.cancelled",
                        RunStatus::Failed
                        | RunStatus::Pending
                        | RunStatus::Running
                        | RunStatus::Paused
                        | RunStatus::WaitingApproval
                        | RunStatus::WaitingInput
                        | RunStatus::WaitingExternal
                        | RunStatus::Cancelling => "child.failed",
                    },
                )
                .with("workerId", worker.as_deref().unwrap_or(workflow.as_str()))
                .with("parentRunId", run.as_str())
                .with("childRunId", child.as_str())
                .maybe(
                    "error",
                    why_not(*status, error.as_deref()).map(|error| failure(&error)),
                ),
        ),
        KernelEvent::ChildEnded {
            step,
            child,
            workflow,
            is_handoff: false,
            status,
            error,
            ..
        } => of(
            step,
            Payload::new()
                .with("childRunId", child.as_str())
                .with("childWorkflowId", workflow.as_str())
                .with("status", status.as_str())
                .maybe("error", error.as_deref().map(failure)),
        ),
        // What a worker gets is for workers only.
        KernelEvent::EffectScheduled {
            step,
            attempt,
            call,
            provider,
            activity,
            deadline,
            // A bound on the call, no part of what happened.
            max_questions: _,
        } => of(
            step,
            Payload::node(step)
                .with("attempt", *attempt)
                .maybe("call", Some(*call).filter(|call| *call > 0))
                .with("provider", provider.as_str())
                .maybe("queue", activity.as_ref().map(|activity| activity.queue.as_str()))
                .maybe("deadline", deadline.map(|deadline| time(deadline).to_string())),
        ),
        // The handle is between the executor and its peer, but for what names an agent's task.
        KernelEvent::EffectAccepted {
            step,
            attempt,
            handle,
        } => {
            let named = |name: &str| handle.get(name).and_then(Value::as_str);
            of(
                step,
                Payload::node(step)
                    .with("attempt", *attempt)
                    .maybe("peer", named("peer"))
                    .maybe("taskId", named("taskId")),
            )
        }
        KernelEvent::EffectProgressed {
            step,
            attempt,
            details,
        } => of(
            step,
            Payload::node(step)
                .with("attempt", *attempt)
                .with("details", mask.said(&step.node, "details", details)),
        ),
        // What came of it is in the events that follow.
        KernelEvent::EffectEnded {
            step,
            attempt,
            call,
            provider,
            outcome,
        } => {
            // A hash of what is hidden, such as an input in the prompt, would let a guess be checked.
            let is_shown = provider == provider::MODEL && mask.hides_nothing();
            let key = outcome.get("cacheKey").filter(|_| is_shown);
            let payload = Payload::node(step)
                .with("attempt", *attempt)
                .with("call", *call)
                .with("provider", provider.as_str())
                .maybe("cacheKey", key.and_then(Value::as_str));
            of(step, payload)
        }
        // The published schema is closed: node and id are in the envelope and the key.
        KernelEvent::InterruptRequested {
            step,
            kind,
            data,
            timeout_ms,
            number,
            remote,
        } => {
            let is_remote = remote.is_some();
            let shown = match mask.question(&step.node, data) {
                Cow::Borrowed(data) => interrupt::data_of(*kind, data, is_remote),
                Cow::Owned(data) => Cow::Owned(interrupt::data_of(*kind, &data, is_remote).into_owned()),
            };
            of(
                step,
                Payload::new()
                    .with("kind", kind.as_str())
                    .with("key", step.interrupt(*number))
                    .with("data", shown)
                    .maybe("resumeSchema", interrupt::resume_schema(data))
                    .maybe("timeoutMs", *timeout_ms),
            )
        }
        KernelEvent::InterruptResolved {
            step,
            kind,
            value,
            by,
            action,
            number,
        } => {
            let value = value.as_ref().map(|value| mask.answer(&step.node, value));
            let hides_words = mask.keeps_output(&step.node, "refineFeedback");
            let payload = resolved(step, *kind, value.as_ref(), by.as_deref(), *action, hides_words);
            of(step, payload.with("interruptId", step.interrupt(*number)))
        }
        KernelEvent::ApprovalRequested { step, data } => of(step, approval_requested(step, data)),
        KernelEvent::ApprovalVoted {
            step,
            voter,
            action,
            feedback,
        } => of(
            step,
            Payload::node(step)
                .with("interruptId", step.key())
                .with("voter", voter.as_str())
                .with("action", action.as_str())
                .maybe("feedback", words(feedback.as_ref(), step, mask)),
        ),
        KernelEvent::ApprovalReceived {
            step,
            action,
            by,
            feedback,
            refine,
            edited,
            decided_at,
        } => of(
            step,
            Payload::node(step)
                .with("interruptId", step.key())
                .with("action", action.as_str())
                .maybe("decidedBy", by.as_deref())
                .with("decidedAt", time(*decided_at).to_string())
                .maybe("feedback", words(feedback.as_ref(), step, mask))
                .maybe(
                    "refineFeedback",
                    refine
                        .clone()
                        .filter(|_| !mask.keeps_output(&step.node, "refineFeedback")),
                )
                .maybe(
                    "editedArtifactData",
                    edited
                        .as_ref()
                        .map(|edited| mask.part(&step.node, EDITED, edited)),
                ),
        ),
        KernelEvent::ClarificationRequested { step, questions } => of(
            step,
            Payload::node(step)
                .with("interruptId", step.key())
                .with("questions", questions.clone()),
        ),
        KernelEvent::ClarificationResolved { step, answers, by } => of(
            step,
            Payload::node(step)
                .with("interruptId", step.key())
                .with("answers", given(answers, step, mask))
                .maybe("answeredBy", by.as_deref()),
        ),
        // The content has its own URL.
        KernelEvent::MemoryWritten(written) => of(&written.step, agent::written(written)),
        // The schema is closed.
        KernelEvent::MemoryCompacted {
            step,
            scope,
            output,
            sources,
            n_bytes,
        } => of(
            step,
            Payload::new()
                .with("memoryRef", scope.as_str())
                .with("outputId", output.as_str())
                .with("sourceIds", sources.clone())
                .with("sourceCount", sources.len())
                .with("trigger", "host-managed")
                .with("byteSize", *n_bytes),
        ),
        KernelEvent::ArtifactCreated {
            step,
            artifact,
            artifact_type,
            name,
            content: _,
        } => of(
            step,
            Payload::node(step)
                .with("artifactId", artifact.as_str())
                .with("artifactType", artifact_type.as_str())
                .with("summary", name.as_str())
                .with("registered", false),
        ),
        KernelEvent::OutputChunk {
            step,
            index,
            chunk,
            is_last,
            number: _,
            end,
        } => of(
            step,
            Payload::node(step)
                .with("runId", run.as_str())
                // Chunks belong to the output port `text`.
                .with(
                    "chunk",
                    mask.output(&step.node, "text", &Value::from(chunk.as_str())),
                )
                .with("isLast", *is_last)
                // The schema is open for members of ours: 0 says that the text begins anew.
                .with("index", *index)
                .maybe("meta", end.as_deref().map(answer_end)),
        ),
        KernelEvent::CapBreached {
            kind,
            limit,
            observed,
            node,
        } => {
            let amount = |n: u64| match kind {
                // Dollars, which the log counts in millionths.
                #[expect(clippy::cast_precision_loss, reason = "an amount of money for people")]
                Cap::BudgetCost => json!(n as f64 / 1e6),
                Cap::NodeExecutions
                | Cap::RunDuration
                | Cap::LoopIterations
                | Cap::Schema
                | Cap::BudgetTokens
                | Cap::BudgetDuration => json!(n),
            };
            let payload = Payload::new()
                .with("kind", kind.as_str())
                .with("limit", amount(*limit))
                .with("observed", amount(*observed))
                .maybe("nodeId", node.as_ref().map(NodeId::as_str));
            (node.as_ref().map(NodeId::as_str), payload)
        }
        KernelEvent::ReplayDiverged {
            source,
            at,
            kind,
            point,
        } => {
            let original = kind.has_original();
            let payload = Payload::new()
                .with("sourceRunId", source.as_str())
                .with("atSequence", at.0)
                .maybe("originalEventId", original.then(|| event_id(source, at.0)))
                .with("divergenceKind", kind.as_str())
                .maybe("divergencePoint", point.as_deref());
            (None, payload)
        }
        KernelEvent::RefusalDiverged { source, divergence } => {
            let RefusalDivergence {
                at,
                step,
                original,
                reason,
            } = divergence;
            let payload = Payload::new()
                .with("sourceRunId", source.as_str())
                .with("atSequence", at.0)
                .with("nodeId", step.node.as_str())
                .with("originalEventId", event_id(source, at.0))
                .with("originalEnvelopeKind", original.as_str())
                .with("replayEnvelopeKind", original.other().as_str())
                .maybe("refusalReason", reason.as_deref());
            of(step, payload)
        }
        KernelEvent::ForkResumed {
            depth: _,
            calls_again: _,
            from,
        } => (None, Payload::new().with("fromStatus", super::status_word(*from))),
    }
}

/// The payload of an event that only this language has.
fn openwop_payload<'a>(
    event: &'a openwop::Event,
    run: &'a RunId,
    mask: &'a Mask,
) -> (Option<&'a str>, Payload<'a>) {
    match event {
        openwop::Event::VariableChanged {
            name,
            previous,
            next,
            appends,
            node,
        } => {
            let payload = Payload::new()
                .with("name", name.as_str())
                .maybe("previous", previous.as_ref().map(|value| mask.value(name, value)))
                .with(if *appends { "appended" } else { "next" }, mask.value(name, next))
                .maybe("nodeId", node.as_ref().map(NodeId::as_str));
            (node.as_ref().map(NodeId::as_str), payload)
        }
        // The schema is closed: limits of the channel are in the definition.
        openwop::Event::ChannelWritten {
            channel,
            value,
            reducer,
            ttl_ms: _,
            max_size: _,
            node,
            written_at,
        } => {
            let payload = Payload::new()
                .with("channel", channel.as_str())
                .with("value", mask.value(channel, value))
                .with("reducer", reducer.as_str())
                .with("nodeId", node.as_str())
                .with("writtenAt", time(*written_at).to_string());
            (Some(node.as_str()), payload)
        }
        openwop::Event::Orchestration(event) => orchestration::payload(event, run, mask),
        openwop::Event::Conversation(event) => {
            (Some(event.step.node.as_str()), conversation::payload(event, mask))
        }
        openwop::Event::Agent(event) => (Some(event.step.node.as_str()), agent::payload(event, run, mask)),
        // The words may contain what readers must not see; the hash tells whether they are the same.
        openwop::Event::PromptComposed {
            step,
            messages,
            hash,
            summarizing: _,
        } => {
            let hash = Some(hash.as_str()).filter(|_| mask.hides_nothing());
            let payload = Payload::node(step)
                .with("messages", messages.len())
                .maybe("hash", hash);
            (Some(step.node.as_str()), payload)
        }
        openwop::Event::ProviderUsage {
            step,
            provider,
            model,
            usage,
        } => {
            let payload = Payload::node(step)
                .with("provider", provider.as_str())
                .with("model", model.as_str())
                .with("inputTokens", usage.input_tokens)
                .with("outputTokens", usage.output_tokens)
                .with("totalTokens", usage.total_tokens())
                .maybe("cacheReadTokens", usage.cache_read_tokens)
                .maybe("cacheWriteTokens", usage.cache_write_tokens)
                .maybe("costEstimateUsd", usage.cost_usd)
                .maybe("currency", usage.cost_usd.map(|_| "USD"));
            (Some(step.node.as_str()), payload)
        }
        openwop::Event::Envelope { step, event } => {
            let payload = envelope(Payload::node(step), step, event, mask);
            (Some(step.node.as_str()), payload)
        }
    }
}

/// What a step made of a model's answer. The schemas are closed, and none has room for the answer itself.
fn envelope<'a>(payload: Payload<'a>, step: &StepId, event: &'a EnvelopeEvent, mask: &Mask) -> Payload<'a> {
    match event {
        EnvelopeEvent::RetryAttempted {
            attempt,
            reason,
            error,
        } => payload
            .with("attempt", *attempt)
            .with("reason", reason.as_str())
            .with(
                "previousError",
                mask.said(&step.node, "data", &error.as_str().into()),
            ),
        EnvelopeEvent::RetryExhausted {
            total_attempts,
            reason,
            error,
        } => payload
            .with("totalAttempts", *total_attempts)
            .with("finalReason", reason.as_str())
            .with(
                "finalError",
                mask.said(&step.node, "data", &error.as_str().into()),
            ),
        EnvelopeEvent::Refusal {
            provider,
            model,
            text,
        } => payload
            .with("provider", provider.as_str())
            .with("model", model.as_str())
            .maybe(
                "refusalText",
                text.as_ref()
                    .map(|text| mask.said(&step.node, "text", &text.as_str().into())),
            ),
        EnvelopeEvent::Truncated {
            provider,
            model,
            output_tokens,
            is_retried: _,
        } => payload
            .with("provider", provider.as_str())
            .with("model", model.as_str())
            .with("stopReason", "max_tokens")
            .with("partialPayloadAvailable", false)
            .with("outputTokenCount", *output_tokens),
        EnvelopeEvent::NlToFormat { envelope_type } => payload
            .with("originalEnvelopeType", envelope_type.as_str())
            .with("fallbackCalls", 1_u64),
        EnvelopeEvent::FenceStripped => payload.with("path", "markdown-fence"),
        EnvelopeEvent::BracesFound { offset } => {
            payload.with("path", "brace-walker").with("byteOffset", *offset)
        }
    }
}

/// The transport of the request that started a run, in the words of the specification (section 10.6). Requests of other
/// languages come by REST.
fn transport(origin: &Origin) -> &str {
    match origin.as_str() {
        known @ ("mcp" | "a2a" | "ui") => known,
        _ => "rest",
    }
}

fn run_started<'a>(started: &'a RunStarted, mask: &'a Mask) -> Payload<'a> {
    let RunStarted {
        dialect: _,
        workflow,
        version,
        tenant,
        principal,
        origin,
        inputs,
        configurable: _,
        tags,
        metadata,
        context: _,
        parent,
        trace: _,
        // In the snapshot. The event of a fork is its source's.
        fork: _,
        limits: _,
    } = started;
    Payload::new()
        .with("workflowId", workflow.as_str())
        .with("workflowVersion", version.as_str())
        .with("inputs", mask.inputs(inputs))
        .with("transport", transport(origin))
        .with("engineVersion", ENGINE_VERSION_TEXT)
        .with(
            "owner",
            Payload::new()
                .with("tenant", tenant.as_str())
                .with("principal", principal.as_str()),
        )
        .maybe("tags", (!tags.is_empty()).then_some(&tags[..]))
        .maybe(
            "metadata",
            (!metadata.is_empty()).then_some(Cow::Borrowed(metadata)),
        )
        .maybe("parentRunId", parent.as_ref().map(|parent| parent.run.as_str()))
        .maybe("parentNodeId", parent.as_ref().map(|parent| parent.node.as_str()))
}

/// Masks answers by question, which become the output `answers`, or another one that has all of them.
fn given(answers: &Object, step: &StepId, mask: &Mask) -> Object {
    let shown = |answer: &Value| match mask.hides_whole_answers(&step.node) {
        true => mask.answer(&step.node, answer),
        false => mask.output(&step.node, "answers", answer),
    };
    let answers = answers.iter();
    answers
        .map(|(question, answer)| (question.clone(), shown(answer)))
        .collect()
}

/// Masks the reviewer's feedback, which becomes the output `feedback`.
fn words(feedback: Option<&String>, step: &StepId, mask: &Mask) -> Option<Value> {
    feedback.map(|words| mask.output(&step.node, "feedback", &words.as_str().into()))
}

fn resolved<'a>(
    step: &'a StepId,
    kind: InterruptKind,
    value: Option<&Value>,
    by: Option<&'a str>,
    action: Option<ApprovalAction>,
    hides_words: bool,
) -> Payload<'a> {
    let mut payload = Payload::node(step)
        .with("interruptId", step.key())
        .with("kind", kind.as_str())
        .maybe("resumeValue", value.cloned())
        .maybe("resolvedBy", by);
    let part = |name: &str| {
        let part = value.and_then(|value| value.get(name));
        part.filter(|part| !part.is_null()).cloned()
    };
    let is_timeout = value.is_none() && by.is_none();
    if let Some(action) = action {
        payload = payload.with("action", action.as_str());
        // Action and decision are separate axes (RFC 0183). A refinement decides nothing yet, so it has only
        // an action.
        match action {
            ApprovalAction::Accept => payload = payload.with("decision", "granted"),
            ApprovalAction::EditAccept => {
                payload = payload
                    .with("decision", "granted")
                    .maybe("editedArtifactData", part("editedArtifactData"));
            }
            ApprovalAction::Reject | ApprovalAction::Timeout => {
                payload = payload.with("decision", "rejected");
            }
            ApprovalAction::Refine => {
                // The legacy `decision: rejected` with feedback is a refinement of the whole.
                let words = part("feedback").or(part("comment")).or(part("reason"));
                let legacy = || words.map(|text| json!({ "scope": "whole", "text": text }));
                let refinement = part("refineFeedback").or_else(legacy).filter(|_| !hides_words);
                payload = payload.maybe("refineFeedback", refinement);
            }
            ApprovalAction::Ask => {}
        }
    }
    if is_timeout {
        payload = payload.with("outcome", "rejected").with("reason", "timeout");
    }
    payload
}

fn approval_requested<'a>(step: &'a StepId, data: &'a Value) -> Payload<'a> {
    let part = |name: &str| data.get(name).filter(|part| !part.is_null()).cloned();
    // The action is called `edit` when it is offered, and `edit-accept` when it is taken.
    let offered = |action: &Value| match action.as_str() {
        Some("edit-accept") => json!("edit"),
        _ => action.clone(),
    };
    let actions = data.get("actions").and_then(Value::as_array);
    let actions: Vec<_> = actions.into_iter().flatten().map(offered).collect();
    Payload::node(step)
        .with("interruptId", step.key())
        .with(
            "artifactId",
            part("artifactId").unwrap_or_else(|| step.node.as_str().into()),
        )
        .with(
            "artifactType",
            part("artifactType").unwrap_or_else(|| "approval".into()),
        )
        .with("actions", Value::from(actions))
        .maybe("title", part("title"))
        .maybe("approversList", part("approversList"))
        .maybe("requiredApprovals", part("requiredApprovals"))
}

/// Why a worker gave nothing back. A run that was cancelled has no error of its own.
pub(crate) fn why_not(status: RunStatus, error: Option<&Failure>) -> Option<Cow<'_, Failure>> {
    match (error, status) {
        (Some(error), _) => Some(Cow::Borrowed(error)),
        (None, RunStatus::Completed) => None,
        (None, status) => Some(Cow::Owned(Failure::of_child(status, None))),
    }
}

fn failure(failure: &Failure) -> Value {
    let mut shown = json!({
        "code": failure.code,
        "message": if failure.message.is_empty() { &failure.code } else { &failure.message },
        "retryable": failure.retryable,
    });
    let details = failure_details(failure);
    if !details.is_empty() {
        shown["details"] = Value::Object(details);
    }
    shown
}

/// The `meta` of the last chunk of a model's answer, with the published names.
fn answer_end(end: &AnswerEnd) -> Value {
    let AnswerEnd { model, stop, usage } = end;
    json!({
        "finishReason": match stop {
            ModelStop::End => "stop",
            ModelStop::Length => "length",
            ModelStop::Tools => "tool_calls",
            ModelStop::Refusal => "content_filter",
        },
        "model": model,
        "usage": {
            "promptTokens": usage.input_tokens,
            "completionTokens": usage.output_tokens,
            "totalTokens": usage.input_tokens.saturating_add(usage.output_tokens),
        },
    })
}

/// What a failure says besides its code and its message.
pub(crate) fn failure_details(failure: &Failure) -> Object {
    let mut details = Object::new();
    if let Some(reason) = &failure.reason {
        details.insert("reason".to_owned(), reason.as_str().into());
    }
    if let Some(worker) = &failure.worker {
        let WorkerFailure {
            worker,
            child,
            code,
            message,
            is_untrusted,
        } = &**worker;
        let shown = Payload::new()
            .with("workerId", worker.as_str())
            .maybe("childRunId", child.as_ref().map(RunId::as_str))
            .with("code", code.as_str())
            .with("message", message.as_str())
            .maybe(CONTENT_TRUST, is_untrusted.then_some(UNTRUSTED));
        details.insert("workerFailure".to_owned(), shown.into_value());
    }
    details
}

#[cfg(test)]
mod tests;
