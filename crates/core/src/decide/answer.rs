//! Answers to interrupts.
//!
//! An answer is checked against the open interrupt before anything is recorded, so a refused answer leaves
//! the run unchanged. A gate that times out counts as rejected, whatever its `onTimeout` requests.

mod read;

use serde_json::{Value, json};

use crate::{
    ApprovalAction, Authority, CONTENT_TRUST, Event, Failure, InterruptKind, Object, Refusal, Resolve, Seq,
    StepId, Timer, UNTRUSTED,
    cost::of_value,
    measure::{MAX_NESTING, too_deep},
    node::{ApprovalGate, NodeKind},
    plan::Plan,
    run::{Active, Open, Phase, Wait, hash},
};

use super::{DecisionBuilder, node::fields};

use read::{Answer, matching_event, read_answers, without_claims};

/// Prefix of the variable that stores the questions asked at a gate.
pub(super) const EXCHANGES: &str = "_askExchanges:";
/// Maximum number of questions stored for a gate.
const MAX_EXCHANGES: usize = 100;
/// How often one voter may change a vote.
const MAX_VOTES: u32 = 20;

impl DecisionBuilder<'_> {
    pub(super) fn resolve(&mut self, resolve: &Resolve) -> Result<(), Refusal> {
        self.outside = resolve.is_untrusted.then(|| resolve.node.clone());
        let plan: &Plan = self.plan;
        let position = plan.position(&resolve.node).ok_or(Refusal::NoInterrupt)?;
        let wanted = resolve.wanted()?;
        let state = self.run.nodes.get(position).ok_or(Refusal::NoInterrupt)?;
        let open = match &state.phase {
            Phase::Active(Active {
                ordinal,
                wait: Wait::Interrupt(open),
                ..
            }) if wanted.is_none_or(|wanted| wanted == *ordinal) => {
                Some((self.step(position, *ordinal), open.clone()))
            }
            Phase::Active(_)
            | Phase::Idle
            | Phase::Completed
            | Phase::Failed(_)
            | Phase::Skipped
            | Phase::Cancelled => None,
        };
        let Some((step, open)) = open else {
            let asks = matches!(
                plan.nodes[position].kind,
                NodeKind::Approval(_) | NodeKind::Clarification { .. } | NodeKind::Interrupt { .. }
            );
            let past = wanted.is_none_or(|ordinal| ordinal < state.next_ordinal);
            let latest = wanted.is_none_or(|ordinal| ordinal.saturating_add(1) == state.next_ordinal);
            let by_parent = self.run.cancelled_by_parent.is_some()
                || (self.run.cancelling.as_ref()).is_some_and(|cancel| cancel.parent.is_some());
            return Err(match &state.phase {
                _ if !asks || !past => Refusal::NoInterrupt,
                Phase::Cancelled if latest && by_parent => Refusal::InterruptGone,
                Phase::Cancelled if latest => Refusal::InterruptCancelled,
                _ if state.answered => Refusal::AlreadyResolved,
                // The interrupt belongs to an earlier execution of the node, which has ended.
                _ if wanted.is_some() && !latest => Refusal::AlreadyResolved,
                _ => Refusal::NoInterrupt,
            });
        };
        // The timer may fire late; the result must not depend on that.
        if open.deadline.is_some_and(|deadline| deadline <= self.input.now) {
            return Err(Refusal::AlreadyResolved);
        }
        if too_deep(&resolve.value) {
            return Err(Refusal::InvalidAnswer(format!(
                "it nests more than {MAX_NESTING} levels deep"
            )));
        }
        match &plan.nodes[position].kind {
            NodeKind::Approval(gate) => self.approve(gate, &step, &open, resolve),
            NodeKind::Clarification { questions, .. } => {
                let answers = read_answers(questions, &resolve.value, &self.budget)?;
                let by = Some(resolve.by.to_string());
                let resolved = self.close(
                    &step,
                    open.kind,
                    Some(json!({ "answers": answers })),
                    by.clone(),
                    None,
                );
                let event = Event::ClarificationResolved {
                    step: step.clone(),
                    answers: answers.clone(),
                    by,
                };
                let cause = self.record(Some(resolved), event);
                let cause = self.resume_node(&step, cause, without_claims(&resolve.value));
                let outputs = self.marked(fields(json!({ "answers": answers })));
                self.complete_node(&step, cause, outputs);
                Ok(())
            }
            NodeKind::Interrupt { kind, data, .. } => {
                let event = match kind {
                    InterruptKind::ExternalEvent => matching_event(data, &resolve.value)?,
                    InterruptKind::Custom | InterruptKind::Approval | InterruptKind::Clarification => {
                        &resolve.value
                    }
                };
                let outputs = self.marked(fields(json!({ "event": event, "resumeValue": resolve.value })));
                let by = Some(resolve.by.to_string());
                let cause = self.close(&step, open.kind, Some(resolve.value.clone()), by, None);
                let cause = self.resume_node(&step, cause, resolve.value.clone());
                self.complete_node(&step, cause, outputs);
                Ok(())
            }
            _ => Err(Refusal::NoInterrupt),
        }
    }

    fn approve(
        &mut self,
        gate: &ApprovalGate,
        step: &StepId,
        open: &Open,
        resolve: &Resolve,
    ) -> Result<(), Refusal> {
        let by_token = matches!(resolve.authority, Authority::Token { .. });
        if gate.auth_required && by_token {
            return Err(Refusal::NotAllowed(
                "this gate needs an authenticated approver, a token is not enough",
            ));
        }
        let mut answer = Answer::read(&resolve.value)?;
        if answer.legacy_refine && !gate.actions.contains(&ApprovalAction::Refine) {
            answer.action = ApprovalAction::Reject;
            answer.refine = None;
        }
        if !gate.actions.contains(&answer.action) {
            let offered: Vec<_> = gate.actions.iter().map(|action| action.as_str()).collect();
            return Err(Refusal::InvalidAnswer(format!(
                "action '{}' is not offered here; offered are {}",
                answer.action.as_str(),
                offered.join(", ")
            )));
        }
        let voter = resolve.voter.clone().unwrap_or_else(|| resolve.by.to_string());
        gate.check(&voter, &resolve.authority)?;
        // A token may have been passed on. The vote counts for the principal it was issued for, but the token
        // is recorded as the answerer.
        let answerer = if by_token {
            resolve.by.to_string()
        } else {
            voter.clone()
        };
        let decided_by = match answer.action {
            ApprovalAction::Ask => {
                return self.ask(step, &answerer, &answer);
            }
            ApprovalAction::Accept if gate.required > 1 => {
                let accepts = self.vote(step, open, &voter, &answer, ApprovalAction::Accept)?;
                if accepts < gate.required {
                    return Ok(());
                }
                format!("quorum:{accepts}-of-{}", gate.required)
            }
            // A refinement decides for all voters, so it needs the quorum as well.
            ApprovalAction::Refine if gate.required > 1 => {
                let refines = self.vote(step, open, &voter, &answer, ApprovalAction::Refine)?;
                if refines < gate.required {
                    return Ok(());
                }
                format!("quorum:{refines}-of-{}", gate.required)
            }
            ApprovalAction::Reject if gate.required > 1 && gate.majority => {
                let rejects = self.vote(step, open, &voter, &answer, ApprovalAction::Reject)?;
                if rejects * 2 <= gate.required {
                    return Ok(());
                }
                format!("quorum:{rejects}-of-{}", gate.required)
            }
            ApprovalAction::Accept
            | ApprovalAction::Reject
            | ApprovalAction::Refine
            | ApprovalAction::EditAccept
            | ApprovalAction::Timeout => answerer,
        };
        self.decide_gate(
            step,
            &answer,
            Some(decided_by),
            Some(without_claims(&resolve.value)),
        );
        Ok(())
    }

    /// Records a vote and counts the votes with the same action. A voter's later vote replaces the earlier
    /// one; an identical vote is not recorded again.
    fn vote(
        &mut self,
        step: &StepId,
        open: &Open,
        voter: &str,
        answer: &Answer,
        action: ApprovalAction,
    ) -> Result<u32, Refusal> {
        let others = open.votes.iter().filter(|vote| vote.voter != voter);
        let alike = others.filter(|vote| vote.action == action).count();
        let count = u32::try_from(alike + 1).unwrap_or(u32::MAX);
        if let Some(earlier) = open.votes.iter().find(|vote| vote.voter == voter) {
            let words = answer.words();
            if earlier.action == action && earlier.words == words.as_deref().map(hash) {
                return Ok(count);
            }
            if earlier.n_votes >= MAX_VOTES {
                return Err(Refusal::InvalidAnswer(format!(
                    "this vote was changed {MAX_VOTES} times, which is the most"
                )));
            }
        }
        let event = Event::ApprovalVoted {
            step: step.clone(),
            voter: voter.to_owned(),
            action,
            feedback: answer.words(),
        };
        self.record(self.last(), event);
        Ok(count)
    }

    /// Stores a question in the run; the gate stays open.
    fn ask(&mut self, step: &StepId, by: &str, answer: &Answer) -> Result<(), Refusal> {
        let name = format!("{EXCHANGES}{}", step.node);
        let asked = self.run.variables.get(&name).and_then(Value::as_array);
        if asked.is_some_and(|asked| asked.len() >= MAX_EXCHANGES) {
            return Err(Refusal::InvalidAnswer(format!(
                "{MAX_EXCHANGES} questions were asked at this gate, which is the most"
            )));
        }
        let exchange = fields(json!({ "question": answer.feedback, "askedBy": by }));
        let next = Value::Object(self.marked(exchange));
        let kept = of_value(&next);
        // Charged for the event and for the variable.
        self.spend(2 * kept)
            .and_then(|()| self.hold(kept, 0))
            .map_err(|failure| Refusal::InvalidAnswer(failure.message))?;
        self.record(
            self.last(),
            Event::VariableChanged {
                name,
                previous: None,
                next,
                appends: true,
                node: Some(step.node.clone()),
            },
        );
        Ok(())
    }

    fn decide_gate(&mut self, step: &StepId, answer: &Answer, by: Option<String>, value: Option<Value>) {
        let action = answer.action;
        let resolved = self.close(
            step,
            InterruptKind::Approval,
            value.clone(),
            by.clone(),
            Some(action),
        );
        let cause = self.record(
            Some(resolved),
            Event::ApprovalReceived {
                step: step.clone(),
                action,
                by: by.clone(),
                feedback: answer.feedback.clone(),
                refine: answer.refine.clone(),
                edited: answer.edited.clone(),
                decided_at: self.input.now,
            },
        );
        match action {
            ApprovalAction::Reject | ApprovalAction::Timeout => {
                // Every reader of the run sees its failure.
                let is_shown = !self.plan.is_sensitive_output(&step.node, "feedback");
                let message = match (action, answer.feedback.as_ref().filter(|_| is_shown)) {
                    (ApprovalAction::Timeout, _) => "the approval timed out".to_owned(),
                    (_, Some(feedback)) => format!("the approval was rejected: {feedback}"),
                    (_, None) => "the approval was rejected".to_owned(),
                };
                let mut failure = Failure::new("approval_rejected", message);
                if action == ApprovalAction::Timeout {
                    failure = failure.because("timeout");
                }
                self.fail_node(step, cause, failure);
            }
            ApprovalAction::Accept
            | ApprovalAction::Refine
            | ApprovalAction::EditAccept
            | ApprovalAction::Ask => {
                let cause = self.resume_node(step, cause, value.unwrap_or_default());
                let mut outputs = fields(json!({
                    "action": action.as_str(),
                    "approved": matches!(action, ApprovalAction::Accept | ApprovalAction::EditAccept),
                }));
                let optional = [
                    ("decidedBy", by.map(Value::String)),
                    ("feedback", answer.feedback.clone().map(Value::String)),
                    ("refineFeedback", answer.refine.clone()),
                    ("editedArtifactData", answer.edited.clone()),
                ];
                for (name, value) in optional {
                    if let Some(value) = value {
                        outputs.insert(name.to_owned(), value);
                    }
                }
                let outputs = self.marked(outputs);
                self.complete_node(step, cause, outputs);
            }
        }
    }

    /// Outputs made of an answer, marked as untrusted if the answer is.
    fn marked(&self, mut outputs: Object) -> Object {
        if self.outside.is_some() {
            outputs.insert(CONTENT_TRUST.to_owned(), UNTRUSTED.into());
        }
        outputs
    }

    fn close(
        &mut self,
        step: &StepId,
        kind: InterruptKind,
        value: Option<Value>,
        by: Option<String>,
        action: Option<ApprovalAction>,
    ) -> Seq {
        if self.active(step).is_some_and(|(_, active)| has_deadline(active)) {
            self.timers_cleared.push(Timer::Interrupt(step.clone()));
        }
        self.record(
            self.last(),
            Event::InterruptResolved {
                step: step.clone(),
                kind,
                value,
                by,
                action,
            },
        )
    }

    fn resume_node(&mut self, step: &StepId, cause: Seq, value: Value) -> Seq {
        let event = Event::NodeResumed {
            step: step.clone(),
            interrupt: step.key(),
            value: Some(value),
        };
        self.record(Some(cause), event)
    }

    pub(super) fn interrupt_timed_out(&mut self, step: &StepId) -> Result<(), Refusal> {
        let Some((
            _,
            Active {
                wait: Wait::Interrupt(open),
                ..
            },
        )) = self.active(step)
        else {
            return Ok(());
        };
        let kind = open.kind;
        match kind {
            InterruptKind::Approval => {
                let answer = Answer {
                    action: ApprovalAction::Timeout,
                    feedback: None,
                    refine: None,
                    edited: None,
                    legacy_refine: false,
                };
                self.decide_gate(step, &answer, None, None);
            }
            InterruptKind::Clarification | InterruptKind::ExternalEvent | InterruptKind::Custom => {
                let cause = self.close(step, kind, None, None, None);
                self.fail_node(
                    step,
                    cause,
                    Failure::new("interrupt_timeout", "nobody answered in time"),
                );
            }
        }
        Ok(())
    }
}

impl ApprovalGate {
    /// Refuses an answer from somebody this gate does not ask. The approvers list is binding by itself; the
    /// references name, together, the principals, roles and groups that may answer.
    fn check(&self, voter: &str, authority: &Authority) -> Result<(), Refusal> {
        let is_in = |list: &[String]| list.iter().any(|name| name == voter);
        if !self.approvers.is_empty() && !is_in(&self.approvers) {
            return Err(Refusal::NotAllowed("the approver is not on this gate's list"));
        }
        let is_member = || match authority {
            Authority::Credential(membership) => membership.is_named_by(&self.data),
            Authority::Token { is_member } => *is_member,
        };
        if self.has_refs && !is_in(&self.refs) && !is_member() {
            return Err(Refusal::NotAllowed(
                "the approver is not among the principals, roles and groups that this gate asks",
            ));
        }
        Ok(())
    }
}

pub(super) fn has_deadline(active: &Active) -> bool {
    matches!(&active.wait, Wait::Interrupt(open) if open.deadline.is_some())
}
