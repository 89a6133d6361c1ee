//! Renders what happens between a supervisor and its workers. The published schemas are closed: the node is in the
//! envelope only.

use wopr_core::{
    RunId,
    openwop::{Orchestration, TOKEN_COUNTER},
};

use super::{Mask, Payload, event_id, failure};

pub(super) const fn event_type(event: &Orchestration) -> &'static str {
    match event {
        Orchestration::Decided { .. } => "runOrchestrator.decided",
        Orchestration::ConfidenceEscalated { .. } => "core.workflowChain.confidence-escalated",
        Orchestration::HandoffBegan { .. }
        | Orchestration::HandoffSucceeded { .. }
        | Orchestration::HandoffFailed { .. }
        | Orchestration::Harvested { .. } => "core.workflowChain.event",
        Orchestration::FannedOut { .. } => "core.dispatch.fanOut",
        Orchestration::Joined { .. } => "core.dispatch.join",
        Orchestration::ContextSummarized { .. } => "context.summarized",
    }
}

/// The event's node and its payload.
pub(super) fn payload<'a>(
    event: &'a Orchestration,
    run: &'a RunId,
    mask: &Mask,
) -> (Option<&'a str>, Payload<'a>) {
    // A worker is named by its workflow.
    let handoff = |phase: &'a str, worker: &'a str, child: Option<&'a RunId>| {
        Payload::new()
            .with("phase", phase)
            .with("workerId", worker)
            .with("parentRunId", run.as_str())
            .maybe("childRunId", child.map(RunId::as_str))
    };
    let payload = match event {
        Orchestration::Decided {
            step,
            agent,
            decision,
            iteration,
        } => Payload::new()
            .with("agentId", agent.as_str())
            .with("decision", mask.subject(&step.node, &decision.to_value()))
            .with("iteration", *iteration),
        Orchestration::ConfidenceEscalated {
            step,
            confidence,
            floor,
            worker,
            decision,
        } => Payload::new()
            .with("confidence", *confidence)
            .with("floor", *floor)
            // It is always an approval that is asked for.
            .with("escalationKind", "escalate")
            .maybe("workerId", worker.as_deref())
            .with("parentRunId", run.as_str())
            .with("originalDecision", mask.subject(&step.node, &decision.to_value())),
        Orchestration::HandoffBegan { step: _, worker } => handoff("dispatch.began", worker, None),
        Orchestration::HandoffSucceeded {
            step: _,
            worker,
            child,
        } => handoff("dispatch.succeeded", worker, Some(child)),
        Orchestration::HandoffFailed {
            step: _,
            worker,
            error,
        } => handoff("dispatch.failed", worker, None).with("error", failure(error)),
        Orchestration::Harvested {
            step,
            worker,
            child,
            keys,
            checksum,
        } => {
            // A hash of what is hidden would let a guess be checked.
            let is_shown = !mask.hides_output(&step.node, "attestation");
            let attestation = checksum.as_ref().filter(|_| is_shown).map(|checksum| {
                let attested = Payload::new().with("checksum", checksum.as_str());
                attested.with("algorithm", "sha256")
            });
            handoff("output.harvested", worker, Some(child))
                .with("harvestedKeys", keys.clone())
                .maybe("attestation", attestation)
        }
        Orchestration::FannedOut {
            step: _,
            n_children,
            max_concurrency,
            mode,
        } => Payload::new()
            .with("fanOutPolicy", "parallel")
            .with("childCount", *n_children)
            .with("maxConcurrency", *max_concurrency)
            .with("joinMode", mode.as_str()),
        Orchestration::Joined {
            step: _,
            outcome,
            n_completed,
            n_failed,
            n_cancelled,
            order,
        } => Payload::new()
            .with("joinOutcome", outcome.as_str())
            .with("completedCount", *n_completed)
            .with("failedCount", *n_failed)
            .with("cancelledCount", *n_cancelled)
            .with("mergeOrder", order.iter().map(RunId::as_str).collect::<Vec<_>>()),
        Orchestration::ContextSummarized {
            step: _,
            iteration,
            replaces,
            artifact,
            before,
            after,
        } => Payload::new()
            .with("iteration", *iteration)
            .with(
                "replacedTurns",
                replaces
                    .iter()
                    .map(|seq| event_id(run, seq.0))
                    .collect::<Vec<_>>(),
            )
            .with("summaryRef", artifact.as_str())
            .with("tokenCounter", TOKEN_COUNTER)
            .with("tokensBefore", *before)
            .with("tokensAfter", *after),
    };
    (Some(event.step().node.as_str()), payload)
}
