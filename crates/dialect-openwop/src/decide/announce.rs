//! Agent events of supervisors, dispatches and models: start and end of work, decisions, handoffs.
//!
//! These events accompany others, which are the record: nothing follows from them. So they do not go by the verbs of
//! `act.rs`, which may fail a step. What they repeat has passed the bounds of the decision or of the node.

use serde_json::Value;
use wopr_kernel::{Planned as _, Seq, StepId};

use crate::{
    Act, AgentEvent, Decision, Event, Failure, Invocation, Outcome, cost,
    node::{ModelAnswer, ModelNode, NodeKind, Remote},
};

use super::Walk;

/// The code of a step whose model refused to answer.
pub(super) const REFUSED: &str = "envelope_refused_by_provider";
/// The code of a step whose model gave no valid document.
pub(super) const INVALID: &str = "envelope_payload_invalid";
/// The published schema wants so many characters in the id of an agent.
const SHORTEST_ID: usize = 3;

impl Walk<'_, '_> {
    /// Says what a supervisor decided. The inputs of workers are only in the decision itself.
    pub(super) fn announce_decision(
        &mut self,
        step: &StepId,
        cause: Seq,
        agent: &str,
        (decision, confidence): (&Decision, Option<f64>),
    ) -> Seq {
        let mut shown = decision.to_value();
        if let Value::Object(fields) = &mut shown {
            fields.remove("nextWorkerInputs");
        }
        let act = Act::Decided {
            decision: shown,
            confidence,
            reasoning: None,
        };
        self.announce(step, cause, agent, act)
    }

    /// Says that the supervisor's work goes on at a worker, which is another agent.
    pub(super) fn announce_handoff(&mut self, step: &StepId, decided: Seq, to: &str) {
        let Some(from) = self.state.supervision.as_ref().map(|known| known.agent.clone()) else {
            return;
        };
        if from != to {
            let act = Act::HandedOff {
                to: to.to_owned(),
                reason: None,
                context: None,
            };
            self.announce(step, decided, &from, act);
        }
    }

    /// Records that a model begins work as an agent. A model node without an agent records nothing.
    pub(super) fn begin_invocation(
        &mut self,
        position: usize,
        step: &StepId,
        started: Seq,
        node: &ModelNode,
    ) -> Seq {
        let Some(agent) = self.played_by_model(position) else {
            return started;
        };
        let pinned = self.plan.nodes[position].agent.as_ref();
        let overrides = self.overrides();
        let provider = overrides.provider().unwrap_or(&node.provider);
        let own = node.model.as_deref().filter(|_| provider == node.provider);
        // How many tools a whole server has is known only when it is asked.
        let is_counted = node.tools.servers.is_empty();
        let invocation = Invocation {
            model_class: pinned.and_then(|agent| agent.model_class.clone()),
            model: overrides.model().or(own).map(str::to_owned),
            provider: Some(provider.to_owned()),
            version: pinned.and_then(|agent| agent.version.clone()),
            n_tools: is_counted.then_some(node.tools.offered.len() as u64),
            has_memory: pinned.map(|agent| agent.memory_ref.is_some()),
        };
        self.announce(step, started, &agent, Act::Invoked(invocation))
    }

    /// Says that an agent has done its work, if it has begun: `failure` says why it could not.
    pub(super) fn end_invocation(&mut self, step: &StepId, cause: Seq, failure: Option<&Failure>) -> Seq {
        let (outcome, is_valid) = match failure.map(|failure| failure.code.as_str()) {
            None => (Outcome::Completed, Some(true)),
            Some(REFUSED) => (Outcome::Refused, None),
            Some(INVALID) => (Outcome::Failed, Some(false)),
            Some(_) => (Outcome::Failed, None),
        };
        self.finish_invocation(step, cause, outcome, is_valid)
    }

    /// Says that an agent has done its work, and that a person judges its decision.
    pub(super) fn escalate_invocation(&mut self, step: &StepId, cause: Seq) -> Seq {
        self.finish_invocation(step, cause, Outcome::Escalated, Some(true))
    }

    fn finish_invocation(
        &mut self,
        step: &StepId,
        cause: Seq,
        outcome: Outcome,
        is_valid: Option<bool>,
    ) -> Seq {
        let has_begun = (self.state.acting.begun(&step.node)).is_some_and(|begun| begun.is_invoked);
        let Some(position) = self.plan.position(&step.node).filter(|_| has_begun) else {
            return cause;
        };
        let Some(agent) = self.played_by_model(position) else {
            return cause;
        };
        let wants_document = self.plan.nodes[position]
            .kind
            .model()
            .is_some_and(|model| matches!(model.answer, ModelAnswer::Document(_)));
        let act = Act::Finished {
            outcome,
            confidence: None,
            is_valid: is_valid.filter(|_| wants_document),
        };
        self.announce(step, cause, &agent, act)
    }

    /// The agent that the model of a node plays.
    pub(super) fn played_by_model(&self, position: usize) -> Option<String> {
        let node = &self.plan.nodes[position];
        node.kind.model()?;
        Some(match &node.kind {
            NodeKind::Supervisor(supervisor) => supervisor.agent.clone(),
            _ => node.agent.as_ref()?.agent_id.clone(),
        })
    }

    fn announce(&mut self, step: &StepId, cause: Seq, agent: &str, act: Act) -> Seq {
        let event = AgentEvent {
            step: step.clone(),
            // The bracket around an agent's work has one id, however often its model is asked.
            attempt: 0,
            agent: agent.to_owned(),
            act,
        };
        // Where the budget does not suffice, nothing is left of it, and the step that goes on fails.
        let _ = self.spend(cost::bytes(event.size()));
        self.emit(Some(cause), Event::Agent(Box::new(event)))
    }
}

/// The id of the agent that a worker is.
pub(super) fn agent_of_worker(worker: &str) -> String {
    match Remote::of(worker) {
        Some(remote) => format!("agent:{}", remote.peer),
        None if worker.chars().count() < SHORTEST_ID => format!("worker:{worker}"),
        None => worker.to_owned(),
    }
}
