//! The mapping of values to a child run and back.

use serde_json::{Value, json};
use wopr_kernel::{Planned as _, RunId, RunStatus, Seq, Spawn, StepId, fields};

use crate::{
    Event, Failure, Object, cost,
    node::{NodeKind, SubWorkflow},
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
        let spawned = self
            .child_of(sub, step, inputs)
            .and_then(|spawn| self.spawn(step, cause, spawn));
        if let Err(failure) = spawned {
            self.fail_node(step, cause, failure);
        }
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
        let mut cause = cause;
        if status == RunStatus::Completed {
            for (name, from) in &sub.outputs {
                let Some(next) = report.get(from) else { continue };
                let (kept, before) = (cost::of_value(next), self.held_of(name));
                let room = self
                    .spend(2 * kept + before)
                    .and_then(|()| self.hold(kept, before));
                if let Err(failure) = room {
                    return self.fail_node(step, cause, failure);
                }
                let changed = Event::VariableChanged {
                    name: name.clone(),
                    previous: self.state.previous(name),
                    next: next.clone(),
                    appends: false,
                    node: Some(step.node.clone()),
                };
                cause = self.emit(Some(cause), changed);
            }
        }
        let done = fields(json!({
            "childRunId": child.as_str(),
            "childStatus": status.as_str(),
            "result": Value::Object(outputs),
        }));
        self.complete_node(step, cause, done);
    }
}
