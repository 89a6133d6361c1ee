//! The mapping of values to a child run and back.

use serde_json::{Value, json};
use wopr_kernel::{Answered, Planned as _, RunId, RunStatus, Seq, Spawn, StepId, fields};

use crate::{
    ApprovalAction, Failure, InterruptKind, Object, Orchestration, cost,
    node::{Attestation, NodeKind, SubWorkflow, checksum, harvest},
    redaction::unhide,
    state::PendingHarvest,
};

use super::Walk;

/// How a child run ended.
pub(super) struct Ended {
    pub(super) child: RunId,
    pub(super) status: RunStatus,
    pub(super) outputs: Object,
    pub(super) report: Object,
}

impl Walk<'_, '_> {
    pub(super) fn dispatch_child(&mut self, sub: &SubWorkflow, step: &StepId, cause: Seq, inputs: Object) {
        let position = self.plan.position(&step.node);
        let state = position.and_then(|position| self.state.nodes.get(position));
        if let Some(decided) = state.and_then(|state| Some(state.dispatching.as_ref()?.cause)) {
            return self.hand_over_to(sub, step, decided, inputs);
        }
        let spawned = self
            .child_of(sub, step, inputs)
            .and_then(|spawn| self.spawn(step, cause, spawn));
        if let Err(failure) = spawned {
            self.fail_node(step, cause, failure);
        }
    }

    /// Creates the child as a handoff, whose transitions are recorded.
    fn hand_over_to(&mut self, sub: &SubWorkflow, step: &StepId, cause: Seq, inputs: Object) {
        let worker = sub.workflow.to_string();
        let began = Orchestration::HandoffBegan {
            step: step.clone(),
            worker: worker.clone(),
        };
        let began = self.emit(Some(cause), began.into());
        let spawned = self
            .child_of(sub, step, inputs)
            .and_then(|spawn| self.spawn_member(step, cause, spawn));
        match spawned {
            Ok((child, _)) => {
                let succeeded = Orchestration::HandoffSucceeded {
                    step: step.clone(),
                    worker,
                    child,
                };
                self.emit(Some(began), succeeded.into());
            }
            Err(error) => {
                let failed = Orchestration::HandoffFailed {
                    step: step.clone(),
                    worker,
                    error: error.clone(),
                };
                let failed = self.emit(Some(began), failed.into());
                self.fail_node(step, failed, error);
            }
        }
    }

    /// Follows the end of a child that was handed work.
    pub(super) fn handed_over(&mut self, position: usize, step: &StepId, cause: Seq, child: &RunId) {
        let plan = self.plan;
        let NodeKind::SubWorkflow(sub) = &plan.nodes[position].kind else {
            return;
        };
        let Some(end) = self.end_of(step, child) else {
            return;
        };
        if end.status != RunStatus::Completed && sub.fail_parent {
            return self.fail_node(step, cause, Failure::of_child(end.status, end.error.as_ref()));
        }
        if end.status == RunStatus::Completed && sub.needs_approval() {
            return self.ask_for_harvest(sub, step, cause, &end.outputs, &end.report);
        }
        let ended = Ended {
            child: child.clone(),
            status: end.status,
            outputs: end.outputs,
            report: end.report,
        };
        self.child_ended(position, step, cause, ended);
    }

    /// Asks whether what a child has given back counts.
    fn ask_for_harvest(
        &mut self,
        sub: &SubWorkflow,
        step: &StepId,
        cause: Seq,
        outputs: &Object,
        report: &Object,
    ) {
        let harvest = harvest(&sub.outputs, outputs, report);
        // It is kept in the state, and in the question.
        let kept = cost::of_object(outputs) + cost::of_object(report) + cost::of_object(&harvest);
        if let Err(failure) = self.spend(2 * kept).and_then(|()| self.hold(kept, 0)) {
            return self.fail_node(step, cause, failure);
        }
        let mut data = json!({
            "artifactId": step.node.as_str(),
            "artifactType": "sub-run-outputs",
            "title": format!("Take over the outputs of '{}'?", sub.workflow),
            "artifactData": harvest,
            "actions": ["accept", "reject", "edit-accept", "ask"],
        });
        let attestation = sub.attestation.as_ref();
        let approvers = attestation.and_then(Attestation::approvers);
        if let Some(approvers) = approvers.filter(|approvers| !approvers.is_empty()) {
            data["approversList"] = json!(approvers);
        }
        self.interrupt(step, cause, (InterruptKind::Approval, data), None);
    }

    /// Follows the answer to whether what a child has given back counts.
    pub(super) fn harvest_answered(&mut self, position: usize, step: &StepId, cause: Seq, answer: Answered) {
        let plan = self.plan;
        let NodeKind::SubWorkflow(sub) = &plan.nodes[position].kind else {
            return;
        };
        let dispatching = self.state.nodes[position].dispatching.as_ref();
        let pending = dispatching.and_then(|dispatching| dispatching.pending.clone());
        let Some(PendingHarvest {
            child,
            mut outputs,
            mut report,
            is_untrusted,
        }) = pending
        else {
            return;
        };
        let (action, feedback, edited) = match answer {
            Answered::Approval {
                action,
                feedback,
                edited,
                ..
            } => (action, feedback, edited),
            Answered::Clarification { .. }
            | Answered::Value { .. }
            | Answered::Verdict { .. }
            | Answered::TimedOut => (ApprovalAction::Timeout, None, None),
        };
        match (action, edited) {
            (ApprovalAction::Accept, _) => {}
            (ApprovalAction::EditAccept, Some(Value::Object(mut edited))) => {
                let original = match sub.outputs.is_empty() {
                    true => &mut outputs,
                    false => &mut report,
                };
                unhide(&mut edited, original);
                *original = edited;
            }
            (
                ApprovalAction::EditAccept
                | ApprovalAction::Reject
                | ApprovalAction::Refine
                | ApprovalAction::Ask
                | ApprovalAction::Timeout,
                _,
            ) => {
                if sub.fail_parent {
                    return self.rejected(step, cause, action, feedback);
                }
                let done = json!({
                    "childRunId": child.as_str(),
                    "childStatus": RunStatus::Completed.as_str(),
                    "merged": false,
                });
                return self.complete_node(step, cause, fields(done));
            }
        }
        if is_untrusted {
            self.outside = Some(step.node.clone());
        }
        let ended = Ended {
            child,
            status: RunStatus::Completed,
            outputs,
            report,
        };
        // What follows names the end of the child as its cause, not the approval.
        let dispatching = self.state.nodes[position].dispatching.as_ref();
        let ended_at = dispatching.and_then(|known| Some(known.of_child(&ended.child)?.latest));
        self.child_ended(position, step, ended_at.unwrap_or(cause), ended);
    }

    fn child_of(&self, sub: &SubWorkflow, step: &StepId, ports: Object) -> Result<Spawn, Failure> {
        self.may_spawn(&sub.workflow)?;
        let mut unset = Vec::new();
        let mut inputs = sub.static_inputs.clone();
        inputs.extend(ports);
        for (child, parent) in &sub.inputs {
            if let Some(value) = self.state.variables.get(parent) {
                inputs.insert(child.clone(), self.copy(value)?);
            } else {
                inputs.remove(child);
                unset.push(child.clone());
            }
        }
        let mut mapped = sub.inputs.iter();
        let maps_untrusted = mapped.any(|(_, from)| self.state.untrusted.variables.contains(from));
        let position = self.plan.position(&step.node);
        let reads_untrusted = || position.is_some_and(|at| super::trust::reads_untrusted(self, at));
        Ok(Spawn {
            workflow: sub.workflow.clone(),
            is_chosen_by_host: false,
            inputs,
            unset,
            is_untrusted: maps_untrusted || reads_untrusted(),
            report: sub.outputs.iter().map(|(_, child)| child.clone()).collect(),
        })
    }

    pub(super) fn child_ended(&mut self, position: usize, step: &StepId, cause: Seq, ended: Ended) {
        let plan = self.plan;
        let NodeKind::SubWorkflow(sub) = &plan.nodes[position].kind else {
            return;
        };
        let Ended {
            child,
            status,
            outputs,
            report,
        } = ended;
        let (mut cause, mut attested) = (cause, None);
        if status == RunStatus::Completed {
            if let Err(failure) = self.take_over(step, cause, &sub.outputs, &report) {
                return self.fail_node(step, cause, failure);
            }
            let is_handoff = self.state.nodes[position].dispatching.is_some();
            if sub.attestation.is_some() {
                let harvest = harvest(&sub.outputs, &outputs, &report);
                if let Err(failure) = self.spend(2 * cost::of_object(&harvest)) {
                    return self.fail_node(step, cause, failure);
                }
                attested = Some(checksum(&harvest));
            }
            if is_handoff && !sub.outputs.is_empty() {
                let harvested = Orchestration::Harvested {
                    step: step.clone(),
                    worker: sub.workflow.to_string(),
                    child: child.clone(),
                    keys: sub.outputs.iter().map(|(name, _)| name.clone()).collect(),
                    checksum: attested.clone(),
                };
                cause = self.emit(Some(cause), harvested.into());
            } else if !sub.outputs.is_empty() {
                cause = self.last().unwrap_or(cause);
            }
        }
        let mut done = fields(json!({
            "childRunId": child.as_str(),
            "childStatus": status.as_str(),
            "result": Value::Object(outputs),
        }));
        if let Some(checksum) = attested {
            let attestation = json!({ "checksum": checksum, "algorithm": "sha256" });
            done.insert("attestation".to_owned(), attestation);
        }
        self.complete_node(step, cause, done);
    }
}
