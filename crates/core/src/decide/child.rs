//! Child runs: creating them and handling their messages.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    CONTENT_TRUST, Event, Failure, NewChild, Object, Parent, Refusal, RunId, RunMessage, RunStatus, Seq,
    StartRun, StepId, UNTRUSTED, cost,
    node::{NodeKind, SubWorkflow},
    plan::Plan,
    run::{Active, Wait},
};

use super::{
    Before, DecisionBuilder,
    node::fields,
    start::{check_configurable, check_inputs},
    too_much_work,
};

/// Maximum nesting of child runs.
const MAX_DEPTH: usize = 32;

impl DecisionBuilder<'_> {
    pub(super) fn dispatch_child(&mut self, sub: &SubWorkflow, step: &StepId, cause: Seq, inputs: Object) {
        match self.new_child(sub, step, inputs) {
            Err(failure) => self.fail_node(step, cause, failure),
            Ok(mut child) => {
                child.dispatched = self.record(
                    Some(cause),
                    Event::NodeDispatched {
                        step: step.clone(),
                        child: child.run.clone(),
                        workflow: child.workflow.clone(),
                    },
                );
                self.children.push(child);
            }
        }
    }

    fn new_child(&self, sub: &SubWorkflow, step: &StepId, ports: Object) -> Result<NewChild, Failure> {
        let Some(started) = &self.run.started else {
            return Err(Failure::new("internal_error", "the run has not started"));
        };
        let plan = self.input.catalog.current(&sub.workflow).ok_or_else(|| {
            Failure::new(
                "unknown_child_workflow",
                format!("workflow '{}' does not exist", sub.workflow),
            )
        })?;
        let mut ancestors = started
            .parent
            .as_ref()
            .map_or_else(Vec::new, |parent| parent.ancestors.clone());
        ancestors.push(started.workflow.clone());
        if ancestors.contains(&sub.workflow) {
            let message = format!("workflow '{}' is among its own ancestors", sub.workflow);
            return Err(Failure::new("subworkflow_cycle_detected", message));
        }
        if ancestors.len() > MAX_DEPTH {
            let message = format!("child runs nest more than {MAX_DEPTH} deep");
            return Err(Failure::new("subworkflow_depth_exceeded", message));
        }
        let mut unset = Vec::new();
        let mut inputs = sub.static_inputs.clone();
        inputs.extend(ports);
        for (child, parent) in &sub.inputs {
            if let Some(value) = self.run.variables.get(parent) {
                inputs.insert(child.clone(), self.copy(value)?);
            } else {
                inputs.remove(child);
                unset.push(child.clone());
            }
        }
        let mut metadata = Object::new();
        let maps_untrusted = || {
            sub.inputs
                .iter()
                .any(|(_, from)| self.run.untrusted.variables.contains(from))
        };
        let position = self.plan.position(&step.node);
        let reads_untrusted = || position.is_some_and(|position| self.reads_untrusted(position));
        if started.is_untrusted() || maps_untrusted() || reads_untrusted() {
            metadata.insert(CONTENT_TRUST.to_owned(), UNTRUSTED.into());
        }
        // A child that failed to start would leave its parent waiting forever.
        let configurable = Object::new();
        check_inputs(&plan, &inputs)
            .and_then(|()| check_configurable(&plan, &configurable, &self.budget))
            .map_err(|refusal| {
                if self.budget.is_spent() {
                    return too_much_work();
                }
                Failure::new("invalid_child_inputs", refusal.to_string())
            })?;
        if let Some(variable) = plan
            .variables()
            .iter()
            .find(|v| v.required && unset.contains(&v.name))
        {
            let message = format!("inputs.{} is required, and not set here", variable.name);
            return Err(Failure::new("invalid_child_inputs", message));
        }
        // Checked last, so that only children that can start are counted.
        let root = started
            .parent
            .as_ref()
            .map(|parent| parent.root.as_ref().unwrap_or(&parent.run));
        if !self.input.catalog.admits_child(root.unwrap_or(self.input.run)) {
            let message = "the tree of runs has as many as this host allows (limits.max_descendants)";
            return Err(Failure::new("descendant_limit_exceeded", message));
        }
        let run = RunId::for_child(self.input.now, self.input.entropy, &step.node, step.ordinal);
        Ok(NewChild {
            run,
            workflow: sub.workflow.clone(),
            version: plan.version().clone(),
            node: step.node.clone(),
            dispatched: Seq(0),
            start: StartRun {
                tenant: started.tenant.clone(),
                principal: started.principal.clone(),
                origin: started.origin,
                inputs,
                configurable,
                tags: started.tags.clone(),
                metadata,
                context: None,
                trace: started.trace.clone(),
                parent: Some(Parent {
                    run: self.input.run.clone(),
                    root: root.cloned(),
                    node: step.node.clone(),
                    ordinal: step.ordinal,
                    report: {
                        let names: BTreeSet<_> = sub.outputs.iter().map(|(_, child)| child.clone()).collect();
                        names.into_iter().collect()
                    },
                    ancestors,
                    unset,
                }),
                bounds: crate::HostBounds {
                    node_executions: started.limits.node_executions,
                    run_duration_ms: None,
                },
            },
        })
    }

    pub(super) fn message(&mut self, message: RunMessage) -> Result<(), Refusal> {
        match message {
            RunMessage::Start(start) => {
                if self.run.started.is_none() && self.run.status.is_terminal() {
                    self.notify_parent_of_unstarted(*start);
                    return Ok(());
                }
                match self.start(*start) {
                    // Duplicate start messages are ignored.
                    Err(Refusal::WrongState) => Ok(()),
                    other => other,
                }
            }
            RunMessage::ParentEnded { parent } => {
                match self.cancel(Some("parent-cancelled".to_owned()), None, Some(parent)) {
                    Ok(()) | Err(Refusal::Terminal(_)) => Ok(()),
                    Err(refusal) => Err(refusal),
                }
            }
            RunMessage::ChildWaiting {
                step,
                kind,
                interrupt,
            } => {
                if let Some((
                    _,
                    Active {
                        wait: Wait::Child { run, .. },
                        ..
                    },
                )) = self.active(&step)
                {
                    let child = Some(run.clone());
                    // Two children may open interrupts at nodes with the same id; the path to the child
                    // distinguishes them.
                    let interrupt = format!("{}/{interrupt}", step.key());
                    self.record(
                        self.last(),
                        Event::NodeSuspended {
                            step,
                            interrupt,
                            kind,
                            child,
                        },
                    );
                }
                Ok(())
            }
            RunMessage::ChildResumed { step } => {
                if let Some((
                    _,
                    Active {
                        wait:
                            Wait::Child {
                                mirror: Some((_, interrupt)),
                                ..
                            },
                        ..
                    },
                )) = self.active(&step)
                {
                    let interrupt = interrupt.clone();
                    self.record(
                        self.last(),
                        Event::NodeResumed {
                            step,
                            interrupt,
                            value: None,
                        },
                    );
                }
                Ok(())
            }
            RunMessage::ChildEnded {
                step,
                status,
                outputs,
                report,
                error,
                is_untrusted,
            } => {
                self.outside = is_untrusted.then(|| step.node.clone());
                self.child_ended(&step, status, outputs, &report, error);
                Ok(())
            }
        }
    }

    fn child_ended(
        &mut self,
        step: &StepId,
        status: RunStatus,
        outputs: Object,
        report: &Object,
        error: Option<Failure>,
    ) {
        let plan: &Plan = self.plan;
        let Some((
            position,
            Active {
                wait: Wait::Child { run, mirror },
                ..
            },
        )) = self.active(step)
        else {
            return;
        };
        let NodeKind::SubWorkflow(sub) = &plan.nodes[position].kind else {
            return;
        };
        let child = run.clone();
        let mirrored = mirror.as_ref().map(|(_, interrupt)| interrupt.clone());
        let cause = self.last().unwrap_or_default();
        if self.run.cancelling.is_some() {
            self.record(
                Some(cause),
                Event::NodeCancelled {
                    step: step.clone(),
                    reason: "run-cancelled".to_owned(),
                },
            );
            self.end_cancel_if_done();
            return;
        }
        if status != RunStatus::Completed && sub.fail_parent {
            let failure = match (status, error) {
                (RunStatus::Cancelled, _) => {
                    Failure::new("subworkflow_child_cancelled", "the child run was cancelled")
                }
                (_, Some(error)) => {
                    let message = format!("the child run failed: {}: {}", error.code, error.message);
                    let failure = Failure::new("subworkflow_child_failed", message);
                    match error.reason {
                        Some(reason) => failure.because(reason),
                        None => failure,
                    }
                }
                (_, None) => Failure::new("subworkflow_child_failed", "the child run failed"),
            };
            return self.fail_node(step, cause, failure);
        }
        let mut cause = cause;
        if let Some(interrupt) = mirrored {
            cause = self.record(
                Some(cause),
                Event::NodeResumed {
                    step: step.clone(),
                    interrupt,
                    value: None,
                },
            );
        }
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
                cause = self.record(
                    Some(cause),
                    Event::VariableChanged {
                        name: name.clone(),
                        previous: self.run.previous(name),
                        next: next.clone(),
                        appends: false,
                        node: Some(step.node.clone()),
                    },
                );
            }
        }
        let done = fields(json!({
            "childRunId": child.as_str(),
            "childStatus": status.as_str(),
            "result": Value::Object(outputs),
        }));
        self.complete_node(step, cause, done);
    }

    /// Notifies the parent of a run that was cancelled before it started; only the start message names the
    /// parent.
    fn notify_parent_of_unstarted(&mut self, start: StartRun) {
        let Some(parent) = start.parent else { return };
        let ended = RunMessage::ChildEnded {
            step: StepId {
                node: parent.node,
                ordinal: parent.ordinal,
            },
            status: self.run.status,
            outputs: Object::new(),
            report: Object::new(),
            error: None,
            is_untrusted: false,
        };
        self.messages
            .push((parent.run, self.last().unwrap_or_default(), ended));
    }

    /// Notifies the parent of the state it mirrors: that this run waits, continues or has ended.
    pub(super) fn tell_parent(&mut self, before: &Before) {
        let Some(parent) = self.run.parent().cloned() else {
            return;
        };
        let Some(seq) = self.events.last().map(|recorded| recorded.seq) else {
            return;
        };
        let step = StepId {
            node: parent.node,
            ordinal: parent.ordinal,
        };
        let message = if self.run.status.is_terminal() {
            if before.was_terminal {
                return;
            }
            let variables = &self.run.variables;
            RunMessage::ChildEnded {
                step,
                status: self.run.status,
                outputs: self.run.outputs.clone().unwrap_or_default(),
                report: parent
                    .report
                    .iter()
                    .filter_map(|name| Some((name.clone(), variables.get(name)?.clone())))
                    .collect(),
                error: self.run.error.as_ref().map(|(failure, _)| failure.clone()),
                is_untrusted: self.run.holds_untrusted(),
            }
        } else {
            let now = self.run.interrupt(self.plan).map(|open| (open.kind(), open.id()));
            match (&before.interrupt, now) {
                (None, None) => return,
                (Some(old), Some(new)) if *old == new => return,
                (_, Some((kind, interrupt))) => RunMessage::ChildWaiting {
                    step,
                    kind,
                    interrupt,
                },
                (Some(_), None) => RunMessage::ChildResumed { step },
            }
        };
        self.messages.push((parent.run, seq, message));
    }
}
