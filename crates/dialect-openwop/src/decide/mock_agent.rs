//! Plays the script of a mock agent: reasoning, calls, handoff, decision, in this order.

use wopr_kernel::{Seq, StepId};

use crate::{
    Failure, Object, Transport, Verbosity,
    node::{MockAgent, Reasoning},
};

use super::{
    Walk,
    act::{Actor, Returned},
};

impl Walk<'_, '_> {
    pub(super) fn mock_agent(&mut self, position: usize, step: &StepId, started: Seq, mock: &MockAgent) {
        let mut actor = self.actor(position, step, started, mock.agent.as_deref(), "mock-agent");
        if let Err(failure) = self.play(&mut actor, mock) {
            return self.fail_node(step, actor.cause, failure);
        }
        if let Some(decision) = &mock.decision
            && let Some(confidence) = decision.confidence
            && let Some(threshold) = self.exceeds_confidence(decision.confidence)
        {
            return self.hold_decision(&actor, &decision.decision, confidence, threshold);
        }
        self.complete_node(step, actor.cause, Object::new());
    }

    fn play(&mut self, actor: &mut Actor, mock: &MockAgent) -> Result<(), Failure> {
        if let Some(reasoning) = &mock.reasoning {
            self.say(actor, reasoning)?;
        }
        for call in &mock.calls {
            let inputs = call.inputs.clone();
            let id = self.call_tool(actor, &call.tool, inputs, Some(Transport::Native))?;
            let (outcome, error) = match &call.outcome {
                Ok(outcome) => (Some(outcome.clone()), None),
                Err(error) => (None, Some(error.clone())),
            };
            let returned = Returned {
                status: call.status(),
                outcome,
                error,
                duration_ms: call.duration_ms,
            };
            self.return_from_tool(actor, &id, &call.tool, returned)?;
        }
        if let Some(handoff) = &mock.handoff {
            let context = handoff.context.clone();
            self.hand_off(actor, &handoff.to_agent_id, handoff.reason.as_deref(), context)?;
        }
        if let Some(decision) = &mock.decision {
            let reasoning = decision.reasoning.as_deref();
            self.decide(actor, decision.decision.clone(), decision.confidence, reasoning)?;
        }
        Ok(())
    }

    fn say(&mut self, actor: &mut Actor, reasoning: &Reasoning) -> Result<(), Failure> {
        let tokens = reasoning.token_count;
        if let Some(pieces) = &reasoning.stream_chunks {
            return self.reason_in_pieces(actor, pieces, tokens);
        }
        let all = reasoning.trace.as_ref().filter(|_| match self.verbosity() {
            Verbosity::Full => true,
            Verbosity::Summary | Verbosity::Off => false,
        });
        self.reason(actor, all.unwrap_or(&reasoning.summary), tokens)
    }
}
