//! An event of every kind between a supervisor and its workers, for tests of forms.

use serde_json::{Value, json};
use wopr_core::{
    Failure, NodeId, RunId, Seq, StepId,
    openwop::{Asks, Criterion, Decision, JoinMode, JoinOutcome, Orchestration},
};

/// Several of a kind where the forms differ.
#[must_use]
pub fn orchestrations() -> Vec<Orchestration> {
    let step = || StepId {
        node: NodeId::parse("dispatch").expect("an id"),
        ordinal: 1,
    };
    let child = || RunId::parse("run_child_0123456789").expect("an id");
    let worker = || "researcher".to_owned();
    let next = Decision::NextWorker {
        workers: vec![worker()],
        inputs: Vec::new(),
        confidence: Some(0.25),
    };
    let fields = |value: Value| value.as_object().cloned().unwrap_or_default();
    let decisions = [
        next.clone(),
        Decision::NextWorker {
            workers: vec![worker()],
            inputs: vec![fields(json!({ "topic": "x" }))],
            confidence: None,
        },
        Decision::AskUser {
            prompt: "Which one?".to_owned(),
            asks: Asks::Words,
        },
        Decision::AskUser {
            prompt: "Go on?".to_owned(),
            asks: Asks::Approval,
        },
        Decision::Terminate {
            reason: Some("goal-reached".to_owned()),
            confidence: Some(1.0),
            criteria: vec![Criterion {
                key: "done".to_owned(),
                met: true,
            }],
        },
    ];
    let decided = decisions.into_iter().map(|decision| Orchestration::Decided {
        step: step(),
        agent: "planner".to_owned(),
        decision,
        iteration: 3,
    });
    let others = [
        Orchestration::ConfidenceEscalated {
            step: step(),
            confidence: 0.25,
            floor: 0.5,
            worker: Some(worker()),
            decision: next,
        },
        Orchestration::HandoffBegan {
            step: step(),
            worker: worker(),
        },
        Orchestration::HandoffSucceeded {
            step: step(),
            worker: worker(),
            child: child(),
        },
        Orchestration::HandoffFailed {
            step: step(),
            worker: worker(),
            error: Failure::new("unknown_child_workflow", "workflow 'researcher' does not exist"),
        },
        Orchestration::Harvested {
            step: step(),
            worker: worker(),
            child: child(),
            keys: vec!["result".to_owned()],
            checksum: None,
        },
        Orchestration::Harvested {
            step: step(),
            worker: worker(),
            child: child(),
            keys: vec!["result".to_owned()],
            checksum: Some("ab".repeat(32)),
        },
        Orchestration::FannedOut {
            step: step(),
            n_children: 3,
            max_concurrency: 2,
            mode: JoinMode::Quorum(2),
        },
        Orchestration::Joined {
            step: step(),
            outcome: JoinOutcome::Satisfied,
            n_completed: 2,
            n_failed: 0,
            n_cancelled: 1,
            order: vec![child()],
        },
        Orchestration::ContextSummarized {
            step: step(),
            iteration: 7,
            replaces: vec![Seq(3), Seq(9)],
            artifact: "lead-6".to_owned(),
            before: 30_000,
            after: 12_000,
        },
    ];
    decided.chain(others).collect()
}
