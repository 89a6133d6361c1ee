//! What a stream says when a supervisor decides and when work changes hands: a status update in the same state, with
//! a sentence for people and `metadata.openwop.handoff` for programs.
//!
//! Pushes leave these out: they tell of changes of the task, and the task is at work before and after.

use serde_json::{Value, json};
use wopr_core::{
    DialectEvent, Event, KernelEvent, RunId, RunStatus,
    openwop::{self, Act, AgentEvent, Decision, Orchestration, Verdict},
};

use crate::openwop::why_not;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Handoff {
    pub(super) text: String,
    /// The value of `metadata.openwop.handoff`.
    pub(super) about: Value,
}

/// Whether a stream tells of an event.
pub(super) const fn is_told(event: &Event) -> bool {
    match event {
        Event::Kernel(event) => matches!(event, KernelEvent::ChildEnded { is_handoff: true, .. }),
        Event::Dialect(DialectEvent::Openwop(openwop::Event::Orchestration(event))) => match event {
            Orchestration::Decided { .. }
            | Orchestration::HandoffSucceeded { .. }
            | Orchestration::HandoffFailed { .. } => true,
            Orchestration::ConfidenceEscalated { .. }
            | Orchestration::HandoffBegan { .. }
            | Orchestration::Harvested { .. }
            | Orchestration::FannedOut { .. }
            | Orchestration::Joined { .. }
            | Orchestration::ContextSummarized { .. } => false,
        },
        Event::Dialect(DialectEvent::Openwop(openwop::Event::Agent(event))) => {
            matches!(event.act, Act::Verified { .. })
        }
        Event::Dialect(DialectEvent::Openwop(_)) => false,
    }
}

/// The part of an event that a stream shows; `None` if it shows nothing.
pub(super) fn of(event: &Event) -> Option<Handoff> {
    let handed = |phase: &str, worker: &str, child: Option<&RunId>| {
        let mut about = json!({ "phase": phase, "workerId": worker });
        if let Some(child) = child {
            about["childRunId"] = child.as_str().into();
        }
        about
    };
    let event = match event {
        Event::Kernel(KernelEvent::ChildEnded {
            child,
            workflow,
            worker,
            is_handoff: true,
            status,
            error,
            ..
        }) => {
            let worker = worker.as_deref().unwrap_or(workflow.as_str());
            let (word, phase) = match status {
                RunStatus::Completed => ("has completed", "child.completed"),
                RunStatus::Cancelled => ("was cancelled", "child.cancelled"),
                RunStatus::Failed
                | RunStatus::Pending
                | RunStatus::Running
                | RunStatus::Paused
                | RunStatus::WaitingApproval
                | RunStatus::WaitingInput
                | RunStatus::WaitingExternal
                | RunStatus::Cancelling => ("has failed", "child.failed"),
            };
            let mut about = handed(phase, worker, Some(child));
            if let Some(error) = why_not(*status, error.as_deref()) {
                about["error"] = json!({ "code": error.code, "message": error.message });
            }
            let text = format!("{worker} {word}");
            return Some(Handoff { text, about });
        }
        Event::Kernel(_) => return None,
        Event::Dialect(DialectEvent::Openwop(openwop::Event::Orchestration(event))) => event,
        Event::Dialect(DialectEvent::Openwop(openwop::Event::Agent(event))) => return verdict(event),
        Event::Dialect(DialectEvent::Openwop(_)) => return None,
    };
    let (text, about) = match event {
        Orchestration::Decided {
            agent,
            decision,
            iteration,
            ..
        } => {
            let text = match decision {
                Decision::NextWorker { workers, .. } => {
                    format!("{agent} hands over to {}", workers.join(", "))
                }
                Decision::AskUser { .. } => format!("{agent} asks a person"),
                Decision::Terminate { .. } => format!("{agent} is done"),
            };
            let mut about = json!({ "agentId": agent, "decision": decision.kind(), "iteration": iteration });
            if let Some(confidence) = decision.confidence() {
                about["confidence"] = confidence.into();
            }
            (text, about)
        }
        Orchestration::HandoffSucceeded { worker, child, .. } => (
            format!("{worker} is at work"),
            handed("dispatch.succeeded", worker, Some(child)),
        ),
        Orchestration::HandoffFailed { worker, error, .. } => {
            let mut about = handed("dispatch.failed", worker, None);
            about["error"] = json!({ "code": error.code, "message": error.message });
            (format!("{worker} cannot work: {}", error.message), about)
        }
        Orchestration::ConfidenceEscalated { .. }
        | Orchestration::HandoffBegan { .. }
        | Orchestration::Harvested { .. }
        | Orchestration::FannedOut { .. }
        | Orchestration::Joined { .. }
        | Orchestration::ContextSummarized { .. } => return None,
    };
    Some(Handoff { text, about })
}

/// What a verifier said, which names none of what it read.
fn verdict(event: &AgentEvent) -> Option<Handoff> {
    let Act::Verified {
        verdict,
        criteria,
        confidence,
        target: _,
    } = &event.act
    else {
        return None;
    };
    let agent = &event.agent;
    let text = match verdict {
        Verdict::Pass => format!("{agent} passes the work"),
        Verdict::Fail => format!("{agent} rejects the work"),
        Verdict::Revise => format!("{agent} asks for a revision"),
    };
    let mut about = json!({ "agentId": agent, "verdict": verdict.as_str() });
    if !criteria.is_empty() {
        about["criteria"] = json!(criteria);
    }
    if let Some(confidence) = confidence {
        about["confidence"] = (*confidence).into();
    }
    Some(Handoff { text, about })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_has_a_sentence() {
        let events = wopr_testkit::orchestrations().into_iter();
        let events = events.map(openwop::Event::Orchestration);
        let step = wopr_testkit::orchestrations()[0].step().clone();
        let events = events.chain(wopr_testkit::agent_events(&step));
        let events = events.map(|event| Event::Dialect(DialectEvent::Openwop(event)));
        let told: Vec<_> = events
            .filter_map(|event| {
                assert_eq!(is_told(&event), of(&event).is_some(), "{event:?}");
                of(&event).map(|handoff| handoff.text)
            })
            .collect();
        assert_eq!(
            told,
            [
                "planner hands over to researcher",
                "planner hands over to researcher",
                "planner asks a person",
                "planner asks a person",
                "planner is done",
                "researcher is at work",
                "researcher cannot work: workflow 'researcher' does not exist",
                "acme.reader asks for a revision",
            ]
        );
    }
}
