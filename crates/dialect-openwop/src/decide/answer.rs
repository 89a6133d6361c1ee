//! What a node makes of the answer to its interrupt.

use serde_json::{Value, json};
use wopr_kernel::{Answered, Planned as _, Refusal, Seq, StepId, Verdict, fields};

use crate::{
    ApprovalAction, CONTENT_TRUST, Event, Failure, Object, UNTRUSTED, cost::of_value, event::EXCHANGES,
    node::NodeKind,
};

use super::Walk;

/// Maximum number of questions stored for a gate.
const MAX_EXCHANGES: usize = 100;

impl Walk<'_, '_> {
    pub(super) fn answered(&mut self, position: usize, step: &StepId, cause: Seq, answer: Answered) {
        let plan = self.plan;
        // Such a node asks for nothing but money.
        if let Some(node) = plan.nodes[position].kind.model() {
            return self.budget_answered(node, step, cause, &answer);
        }
        let outputs = match answer {
            Answered::Approval {
                action: action @ (ApprovalAction::Reject | ApprovalAction::Timeout),
                feedback,
                ..
            } => return self.rejected(step, cause, action, feedback),
            Answered::Approval {
                action,
                by,
                feedback,
                refine,
                edited,
            } => {
                let mut outputs = fields(json!({
                    "action": action.as_str(),
                    "approved": matches!(action, ApprovalAction::Accept | ApprovalAction::EditAccept),
                }));
                let optional = [
                    ("decidedBy", by.map(Value::String)),
                    ("feedback", feedback.map(Value::String)),
                    ("refineFeedback", refine),
                    ("editedArtifactData", edited),
                ];
                for (name, value) in optional {
                    if let Some(value) = value {
                        outputs.insert(name.to_owned(), value);
                    }
                }
                outputs
            }
            Answered::Clarification { answers } => fields(json!({ "answers": answers })),
            Answered::Value { event, value } => fields(json!({ "event": event, "resumeValue": value })),
            Answered::Verdict { verdict, held } => {
                return self.judged(position, step, cause, verdict, &held);
            }
            Answered::TimedOut => return self.unanswered(position, step, cause),
        };
        let outputs = self.marked(outputs);
        self.complete_node(step, cause, outputs);
    }

    pub(super) fn rejected(
        &mut self,
        step: &StepId,
        cause: Seq,
        action: ApprovalAction,
        feedback: Option<String>,
    ) {
        // Every reader of the run sees its failure.
        let is_shown = !self.plan.is_sensitive_output(&step.node, "feedback");
        let message = match (action, feedback.filter(|_| is_shown)) {
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

    /// Follows the verdict on a decision that a node held.
    fn judged(&mut self, position: usize, step: &StepId, cause: Seq, verdict: Verdict, held: &Value) {
        let plan = self.plan;
        let decision = match verdict {
            Verdict::Ratified => held.get("decision").cloned().unwrap_or_default(),
            Verdict::Replaced(decision) => decision,
            Verdict::Rejected => {
                let failure = Failure::new("decision_rejected", "the held decision was rejected");
                return self.fail_node(step, cause, failure);
            }
        };
        match &plan.nodes[position].kind {
            NodeKind::MockAgent(_) => {
                let outputs = self.marked(fields(json!({ "decision": decision })));
                self.complete_node(step, cause, outputs);
            }
            // No other node holds decisions.
            NodeKind::Pass
            | NodeKind::Delay { .. }
            | NodeKind::Fail { .. }
            | NodeKind::Reject { .. }
            | NodeKind::Stream { .. }
            | NodeKind::Approval(_)
            | NodeKind::Clarification { .. }
            | NodeKind::Interrupt { .. }
            | NodeKind::Conversation(_)
            | NodeKind::Duplicates
            | NodeKind::SetVariable { .. }
            | NodeKind::Template(_)
            | NodeKind::ChannelWrite { .. }
            | NodeKind::SubWorkflow(_)
            | NodeKind::Http(_)
            | NodeKind::Activity(_)
            | NodeKind::Agent(_)
            | NodeKind::Memory(_)
            | NodeKind::Model(_)
            | NodeKind::Tool(_)
            | NodeKind::GivenTool
            | NodeKind::Supervisor(_)
            | NodeKind::Dispatch(_)
            | NodeKind::SideEffect
            | NodeKind::ArtifactEmit { .. }
            | NodeKind::Requires { .. } => {}
        }
    }

    /// Stores a question in the run; the gate stays open.
    pub(super) fn asked(&mut self, step: &StepId, by: &str, question: Option<&str>) -> Result<(), Refusal> {
        let name = format!("{EXCHANGES}{}", step.node);
        let asked = self.state.variables.get(&name).and_then(Value::as_array);
        if asked.is_some_and(|asked| asked.len() >= MAX_EXCHANGES) {
            return Err(Refusal::InvalidAnswer(format!(
                "{MAX_EXCHANGES} questions were asked at this gate, which is the most"
            )));
        }
        let exchange = fields(json!({ "question": question, "askedBy": by }));
        let next = Value::Object(self.marked(exchange));
        let kept = of_value(&next);
        // Charged for the event and for the variable.
        self.spend(2 * kept)
            .and_then(|()| self.hold(kept, 0))
            .map_err(|failure| Refusal::InvalidAnswer(failure.message))?;
        let asked = Event::VariableChanged {
            name,
            previous: None,
            next,
            appends: true,
            node: Some(step.node.clone()),
        };
        let cause = self.last();
        self.emit(cause, asked);
        Ok(())
    }

    /// Outputs made of an answer, marked as untrusted if the answer is.
    pub(super) fn marked(&self, mut outputs: Object) -> Object {
        if self.outside.is_some() {
            outputs.insert(CONTENT_TRUST.to_owned(), UNTRUSTED.into());
        }
        outputs
    }
}
