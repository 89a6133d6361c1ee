//! The turns of a supervisor: one decision each.

use serde_json::{Value, json};
use wopr_kernel::{Answered, Cap, Seq, StepId, fields};

use crate::{
    CONTENT_TRUST, Decision, Failure, InterruptKind, Object, Orchestration, Supervision, UNTRUSTED, cost,
    decision::Ratification,
    measure::too_deep,
    node::{Decider, Lead, Led, NodeKind, Pattern, Rule, Supervisor},
};

use super::{
    Walk,
    node::{failed, nested},
};

/// What a turn comes to.
enum Turn<'n> {
    /// With the confidence of the agent, if it has an opinion.
    Decided(Decision, Option<f64>),
    /// A model is asked, and its answer ends the turn.
    Asks(&'n Lead),
    /// A person has to say whether the decision counts.
    Held { decision: Decision, observed: f64 },
}

impl Walk<'_, '_> {
    /// Takes one decision.
    pub(super) fn supervise(
        &mut self,
        supervisor: &Supervisor,
        (position, step, attempt): (usize, StepId, u32),
        cause: Seq,
        inputs: Object,
    ) {
        let step = &step;
        let supervision = self.state.supervision.as_ref();
        if let Some(other) = supervision.filter(|known| known.agent != supervisor.agent) {
            let message = format!(
                "agent '{}' decides in this run, and no other one does",
                other.agent
            );
            return self.fail_node(step, cause, Failure::new("validation_error", message));
        }
        let turn = supervision.map_or(0, |known| known.n_decisions) + 1;
        let most = [supervisor.max_turns, self.overrides().max_turns()];
        if let Some(most) = most.into_iter().flatten().min().filter(|most| turn > *most) {
            let node = step.node.clone();
            return self.breach(Cap::LoopIterations, u64::from(most), u64::from(turn), Some(node));
        }
        match self.turn(&supervisor.decider, turn) {
            Ok(Turn::Asks(lead)) => {
                self.ask_model(&lead.model, position, step.clone(), attempt, cause, inputs);
            }
            Ok(Turn::Decided(decision, confidence)) => {
                self.decided(supervisor, step, cause, (decision, confidence));
            }
            Ok(Turn::Held { decision, observed }) => {
                self.hold_turn(supervisor, step, cause, (&decision, observed));
            }
            Err(failure) => self.fail_node(step, cause, failure),
        }
    }

    fn turn<'n>(&self, decider: &'n Decider, turn: u32) -> Result<Turn<'n>, Failure> {
        match decider {
            Decider::Plan(plan) => {
                let next = plan.get(turn as usize - 1).cloned();
                let next = next.unwrap_or_else(|| Decision::terminate("mockPlan-exhausted"));
                Ok(Turn::from(next))
            }
            Decider::Pending { .. } if turn > 1 => Ok(Turn::from(Decision::terminate("mockPlan-exhausted"))),
            Decider::Pending { decision, confidence } if *confidence < self.overrides().threshold() => {
                Ok(Turn::Held {
                    decision: decision.clone(),
                    observed: *confidence,
                })
            }
            Decider::Pending { decision, confidence } => {
                Ok(Turn::Decided(decision.clone(), Some(*confidence)))
            }
            Decider::Rules(rules) => self.by_rules(rules).map(Turn::from),
            Decider::Model(lead) => Ok(Turn::Asks(lead)),
        }
    }

    /// Ends a turn by what its model decided, or lets a person judge that first.
    pub(super) fn led(
        &mut self,
        position: usize,
        supervisor: &Supervisor,
        step: &StepId,
        cause: Seq,
        led: Led,
    ) {
        let Led {
            decision,
            confidence,
            reasoning,
        } = led;
        let mut cause = cause;
        if let Some(reasoning) = reasoning {
            let mut actor = self.actor(position, step, cause, Some(&supervisor.agent), "supervisor");
            if let Err(failure) = self.reason(&mut actor, &reasoning, None) {
                return self.fail_node(step, cause, failure);
            }
            cause = actor.cause;
        }
        match confidence < self.overrides().threshold() {
            true => self.hold_turn(supervisor, step, cause, (&decision, confidence)),
            false => self.decided(supervisor, step, cause, (decision, Some(confidence))),
        }
    }

    /// The decision that is held.
    fn held(&self, position: usize, decider: &Decider, turn: u32) -> Result<Decision, Failure> {
        match self.turn(decider, turn)? {
            Turn::Decided(decision, _) | Turn::Held { decision, .. } => Ok(decision),
            Turn::Asks(lead) => {
                let thinking = self.state.nodes[position].thinking.as_deref();
                let reply = thinking.and_then(|thinking| Some(&thinking.turns.last()?.reply));
                let led = reply.and_then(|reply| self.read_led(lead, &reply.text));
                let lost = || Failure::new("internal_error", "the decision is not in the log");
                led.map(|led| led.decision).ok_or_else(lost)
            }
        }
    }

    fn by_rules(&self, rules: &[Rule]) -> Result<Decision, Failure> {
        let context = self.context();
        for rule in rules {
            let holds = match &rule.when {
                None => true,
                Some(when) => when
                    .holds_in(&context, &self.budget)
                    .map_err(|error| failed("expression_failed", &error))?,
            };
            if holds {
                let value = self.filled(&rule.decision)?;
                return Decision::read(&value).map_err(|rule| Failure::new("invalid_decision", rule));
            }
        }
        Err(Failure::new(
            "no_decision",
            "no rule of the supervisor holds, and it has no decision otherwise",
        ))
    }

    pub(super) fn filled(&self, pattern: &Pattern) -> Result<Value, Failure> {
        let context = self.context();
        let evaluate = |expression: &crate::Expression| {
            let value = expression.evaluate_in(&context, &self.budget);
            value.map_err(|error| failed("expression_failed", &error))
        };
        let value = pattern.fill(&evaluate, &|template| self.render(template))?;
        let value = value.unwrap_or_default();
        self.spend(cost::of_value(&value))?;
        if too_deep(&value) {
            return Err(nested("the decision"));
        }
        Ok(value)
    }

    /// Ends a turn with what its agent decided.
    fn decided(
        &mut self,
        supervisor: &Supervisor,
        step: &StepId,
        cause: Seq,
        (decision, confidence): (Decision, Option<f64>),
    ) {
        let cause = self.announce_decision(step, cause, &supervisor.agent, (&decision, confidence));
        self.counts(supervisor, step, cause, decision);
    }

    /// Records the decision that counts, and ends the turn.
    fn counts(&mut self, supervisor: &Supervisor, step: &StepId, cause: Seq, decision: Decision) {
        let shown = decision.to_value();
        let kept = cost::of_value(&shown);
        let before = self.state.supervision.as_ref().map_or(0, Supervision::weight);
        let room = self.spend(2 * kept).and_then(|()| self.hold(kept, before));
        if let Err(failure) = room {
            return self.fail_node(step, cause, failure);
        }
        let iteration = self
            .state
            .supervision
            .as_ref()
            .map_or(0, |known| known.n_decisions)
            + 1;
        let kind = decision.kind();
        let event = Orchestration::Decided {
            step: step.clone(),
            agent: supervisor.agent.clone(),
            decision,
            iteration,
        };
        let cause = self.emit(Some(cause), event.into());
        let mut outputs = fields(json!({ "kind": kind, "decision": shown, "iteration": iteration }));
        if supervisor.decider.lead().is_some() {
            outputs.insert(CONTENT_TRUST.to_owned(), UNTRUSTED.into());
        }
        self.complete_node(step, cause, outputs);
    }

    /// Asks a person whether a decision counts. Which one does is not recorded before the answer.
    fn hold_turn(
        &mut self,
        supervisor: &Supervisor,
        step: &StepId,
        cause: Seq,
        (decision, observed): (&Decision, f64),
    ) {
        let announced = (decision, Some(observed));
        let cause = self.announce_decision(step, cause, &supervisor.agent, announced);
        let cause = self.escalate_invocation(step, cause);
        let data = json!({
            "agentId": supervisor.agent,
            "threshold": self.overrides().threshold(),
            "observed": observed,
            "decision": decision.to_value(),
        });
        self.interrupt(step, cause, (InterruptKind::LowConfidence, data), None);
    }

    /// Follows the answer to a decision that was held.
    pub(super) fn ratified(&mut self, position: usize, step: &StepId, cause: Seq, answer: &Answered) {
        let plan = self.plan;
        let NodeKind::Supervisor(supervisor) = &plan.nodes[position].kind else {
            return;
        };
        if let (Some(lead), Answered::Approval { .. }) = (supervisor.decider.lead(), answer) {
            return self.budget_answered(&lead.model, step, cause, answer);
        }
        let said = match answer {
            Answered::Value { value, .. } => Ratification::read(value),
            Answered::Approval { .. }
            | Answered::Clarification { .. }
            | Answered::Verdict { .. }
            | Answered::TimedOut => Err("the decision was not ratified".to_owned()),
        };
        let turn = self
            .state
            .supervision
            .as_ref()
            .map_or(0, |known| known.n_decisions)
            + 1;
        let held = match said {
            Ok(Ratification::Replaced(decision)) => match self.held(position, &supervisor.decider, turn) {
                Ok(held) => Ok(decision.made_of(&held)),
                Err(_) => Ok(decision),
            },
            Ok(Ratification::Ratified) => self.held(position, &supervisor.decider, turn),
            Ok(Ratification::Rejected) => Err(Failure::new(
                "decision_rejected",
                "the decision of the supervisor was rejected",
            )),
            Err(rule) => Err(Failure::new("decision_rejected", rule)),
        };
        match held {
            Ok(decision) => self.counts(supervisor, step, cause, decision),
            Err(failure) => self.fail_node(step, cause, failure),
        }
    }
}

impl From<Decision> for Turn<'_> {
    fn from(decision: Decision) -> Self {
        let confidence = decision.confidence();
        Self::Decided(decision, confidence)
    }
}
