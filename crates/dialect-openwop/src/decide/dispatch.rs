//! Follows a supervisor's decision: hands work over to child runs, asks a person, or ends the run.
//!
//! All workers of one decision belong to one execution of the node. In sequence, each gets what the one before gave
//! back. At the same time, what they give back is merged once, after the join, in the order in which they ended.

use serde_json::{Value, json};
use wopr_kernel::{
    Answered, Cap, ChildEnd, RunId, RunStatus, Seq, Spawn, StepId, WorkerFailure, WorkflowId, fields,
};

use crate::{
    ApprovalAction, Asks, Decision, Event, Failure, InterruptKind, JoinOutcome, Object, Orchestration, cost,
    decision::FLOOR,
    node::{
        Dispatch, Fan, FanOut, NodeKind, OnChildFailure, Remote, SKILL, agent_workflow_id, approval_data,
        question,
    },
    state::{Dispatching, Stage},
};

use super::{
    Walk,
    announce::agent_of_worker,
    join::{Ends, Verdict, judge},
};

/// The code of a worker that the host does not know.
pub(super) const UNKNOWN_WORKFLOW: &str = "unknown_child_workflow";

impl Walk<'_, '_> {
    /// Follows the latest decision.
    pub(super) fn dispatch(&mut self, position: usize, node: &Dispatch, step: &StepId, started: Seq) {
        let Some((cause, decision)) = self.task(position) else {
            let message = "no supervisor of this run has decided yet";
            return self.fail_node(step, started, Failure::new("no_pending_decision", message));
        };
        let n_dispatches = self
            .state
            .supervision
            .as_ref()
            .map_or(0, |known| known.n_dispatches);
        if let Some(most) = node.max_turns.filter(|most| n_dispatches > *most) {
            let (most, node) = (u64::from(most), step.node.clone());
            return self.breach(Cap::LoopIterations, most, u64::from(n_dispatches), Some(node));
        }
        if self.dispatching(position).is_some_and(Dispatching::has_begun) {
            // A branch goes on with the workers that had not ended.
            return self.go_on_with(position, node, step, cause, &decision);
        }
        if let Some(confidence) = decision.confidence().filter(|confidence| *confidence < FLOOR) {
            return self.escalate(step, cause, &decision, confidence);
        }
        self.follow_decision(position, node, step, cause, decision);
    }

    /// The decision that an execution follows, with its event.
    pub(super) fn task(&self, position: usize) -> Option<(Seq, Decision)> {
        let dispatching = self.dispatching(position)?;
        Some((dispatching.cause, dispatching.decision.clone()?))
    }

    fn dispatching(&self, position: usize) -> Option<&Dispatching> {
        self.state.nodes.get(position)?.dispatching.as_deref()
    }

    /// Asks for an approval of a decision, before anything follows from it.
    fn escalate(&mut self, step: &StepId, cause: Seq, decision: &Decision, confidence: f64) {
        let worker = match decision {
            Decision::NextWorker { workers, .. } => workers.first().cloned(),
            Decision::AskUser { .. } | Decision::Terminate { .. } => None,
        };
        let event = Orchestration::ConfidenceEscalated {
            step: step.clone(),
            confidence,
            floor: FLOOR,
            worker,
            decision: decision.clone(),
        };
        let escalated = self.emit(Some(cause), event.into());
        let title =
            format!("Follow the supervisor's decision? Its confidence is {confidence}, below {FLOOR}");
        let data = approval_data(step.node.as_str(), &title, Some(decision.to_value()));
        self.interrupt(step, escalated, (InterruptKind::Approval, data), None);
    }

    fn follow_decision(
        &mut self,
        position: usize,
        node: &Dispatch,
        step: &StepId,
        cause: Seq,
        decision: Decision,
    ) {
        match decision {
            Decision::NextWorker { workers, .. } => {
                let n_workers = workers.len();
                match node.fan_out {
                    FanOut::Reject if n_workers > 1 => {
                        let message =
                            format!("the decision names {n_workers} workers, and fanOutPolicy is reject");
                        return self.fail_node(step, cause, Failure::new("fan_out_unsupported", message));
                    }
                    FanOut::Parallel(fan) if !fan.mode.is_possible(n_workers) => {
                        let message = format!("no quorum of {n_workers} workers can be that large");
                        return self.fail_node(step, cause, Failure::new("impossible_join", message));
                    }
                    FanOut::Parallel(fan) if n_workers > 1 => {
                        let event = Orchestration::FannedOut {
                            step: step.clone(),
                            n_children: u32::try_from(n_workers).unwrap_or(u32::MAX),
                            max_concurrency: fan.max_concurrency,
                            mode: fan.mode,
                        };
                        self.emit(Some(cause), event.into());
                    }
                    FanOut::Parallel(_) | FanOut::Reject | FanOut::Sequential => {}
                }
                self.go_on(position, node, step);
            }
            Decision::AskUser { prompt, asks } => {
                let ask = match (asks, &node.conversation) {
                    (Asks::Words, Some(conversation)) => {
                        return self.ask_in_turns(position, step, cause, conversation, &prompt);
                    }
                    (Asks::Words, None) => (InterruptKind::Clarification, question(&prompt)),
                    (Asks::Approval, _) => {
                        let data = approval_data(step.node.as_str(), &prompt, None);
                        (InterruptKind::Approval, data)
                    }
                };
                self.interrupt(step, cause, ask, None);
            }
            decision @ Decision::Terminate { .. } => self.end_loop(position, step, cause, &decision),
        }
    }

    /// Goes on with a decision some of whose children have begun.
    fn go_on_with(
        &mut self,
        position: usize,
        node: &Dispatch,
        step: &StepId,
        cause: Seq,
        decision: &Decision,
    ) {
        match decision {
            Decision::Terminate { .. } => self.end_loop(position, step, cause, decision),
            Decision::NextWorker { .. } | Decision::AskUser { .. } => self.go_on(position, node, step),
        }
    }

    /// Follows an answer: to the question of a decision, or whether a decision is to be followed.
    pub(super) fn dispatch_answered(&mut self, position: usize, step: &StepId, cause: Seq, answer: Answered) {
        let plan = self.plan;
        let NodeKind::Dispatch(node) = &plan.nodes[position].kind else {
            return;
        };
        let is_escalation = (self.dispatching(position)).is_some_and(|known| known.stage == Stage::Answered);
        match answer {
            Answered::Approval {
                action, feedback, by, ..
            } => {
                let is_accepted = matches!(action, ApprovalAction::Accept | ApprovalAction::EditAccept);
                if is_escalation && is_accepted {
                    let Some((decided, decision)) = self.task(position) else {
                        return;
                    };
                    return self.follow_decision(position, node, step, decided, decision);
                }
                let mut outputs = fields(json!({ "action": action.as_str(), "approved": is_accepted }));
                for (name, value) in [("feedback", feedback), ("decidedBy", by)] {
                    if let Some(value) = value {
                        outputs.insert(name.to_owned(), value.into());
                    }
                }
                let outputs = self.marked(outputs);
                self.complete_node(step, cause, outputs);
            }
            Answered::Clarification { mut answers } => {
                let answer = answers.remove(crate::node::QUESTION).unwrap_or_default();
                let outputs = self.marked(fields(json!({ "answer": answer })));
                self.complete_node(step, cause, outputs);
            }
            Answered::Value { .. } | Answered::Verdict { .. } | Answered::TimedOut => {
                let failure = Failure::new("interrupt_timeout", "nobody answered in time");
                self.fail_node(step, cause, failure);
            }
        }
    }

    /// Begins as many handoffs as may run now, and ends the execution after the last one.
    fn go_on(&mut self, position: usize, node: &Dispatch, step: &StepId) {
        let most = match node.fan_out {
            FanOut::Parallel(fan) => fan.max_concurrency,
            FanOut::Sequential | FanOut::Reject => 1,
        };
        loop {
            self.begin_branch();
            let Some(dispatching) = self.dispatching(position) else {
                return;
            };
            let ends = Ends::of(dispatching);
            if let Some(fan) = parallel(node) {
                if judge(fan, &ends) != Verdict::Open {
                    return self.join(position, node, fan, step);
                }
            } else if ends.is_complete() {
                return self.complete_sequence(position, step);
            }
            let is_full = ends.running >= most as usize;
            match dispatching.next() {
                Some((index, _)) if !is_full => self.hand_over(position, node, step, index),
                Some(_) | None => return,
            }
        }
    }

    /// Begins the handoff to one worker.
    fn hand_over(&mut self, position: usize, node: &Dispatch, step: &StepId, index: usize) {
        let Some((decided, Decision::NextWorker { workers, inputs, .. })) = self.task(position) else {
            return;
        };
        let Some(worker) = workers.get(index).cloned() else {
            return;
        };
        let given = inputs.get(index).cloned().unwrap_or_default();
        let run_of = |walk: &Self| walk.worker_run(position, node, &worker, given);
        self.begin_handoff(step, decided, (&worker, &agent_of_worker(&worker)), run_of);
    }

    /// Hands work over to a child: the run that is made for it, or why there is none. The worker is an agent.
    pub(super) fn begin_handoff(
        &mut self,
        step: &StepId,
        decided: Seq,
        (worker, agent): (&str, &str),
        run_of: impl FnOnce(&Self) -> Result<Spawn, Failure>,
    ) {
        let worker = worker.to_owned();
        let began = Orchestration::HandoffBegan {
            step: step.clone(),
            worker: worker.clone(),
        };
        let began = self.emit(Some(decided), began.into());
        let spawned = run_of(self).and_then(|spawn| self.spawn_member(step, decided, spawn));
        let event = match spawned {
            Ok((child, _)) => Orchestration::HandoffSucceeded {
                step: step.clone(),
                worker,
                child,
            },
            Err(error) => Orchestration::HandoffFailed {
                step: step.clone(),
                worker,
                error,
            },
        };
        let is_made = matches!(event, Orchestration::HandoffSucceeded { .. });
        self.emit(Some(began), event.into());
        if is_made {
            self.announce_handoff(step, decided, agent);
        }
    }

    fn worker_run(
        &self,
        position: usize,
        node: &Dispatch,
        worker: &str,
        mut given: Object,
    ) -> Result<Spawn, Failure> {
        let (workflow, remote) = workflow_of(worker)?;
        self.may_hand_over(&workflow, remote.as_ref())?;
        let (mut inputs, mut unset) = (Object::new(), Vec::new());
        let mut is_untrusted = super::trust::reads_untrusted(self, position);
        for (child, parent) in node.inputs_of(worker) {
            if let Some(value) = self.state.variables.get(parent) {
                inputs.insert(child.clone(), self.copy(value)?);
                is_untrusted |= self.state.untrusted.variables.contains(parent);
            } else {
                unset.push(child.clone());
            }
        }
        self.spend(cost::of_object(&given))?;
        if remote.is_some() {
            // Only the worker's name says it.
            given.remove(SKILL);
        }
        unset.retain(|name| !given.contains_key(name));
        inputs.extend(given);
        if let Some(skill) = remote.and_then(|remote| remote.skill) {
            inputs.insert(SKILL.to_owned(), skill.into());
        }
        let report = node.outputs_of(worker).iter().map(|(_, child)| child.clone());
        Ok(Spawn {
            workflow,
            is_chosen_by_host: remote.is_some(),
            inputs,
            unset,
            is_untrusted,
            report: report.collect(),
        })
    }

    /// Checks that a child of this workflow may be created for a worker.
    pub(super) fn may_hand_over(
        &self,
        workflow: &WorkflowId,
        remote: Option<&Remote<'_>>,
    ) -> Result<(), Failure> {
        self.may_spawn(workflow).map_err(|failure| match remote {
            Some(remote) if failure.code == UNKNOWN_WORKFLOW => unknown_agent(remote.peer),
            Some(_) | None => failure,
        })
    }

    /// Follows the end of a child.
    pub(super) fn worker_ended(&mut self, position: usize, step: &StepId, cause: Seq, child: &RunId) {
        let plan = self.plan;
        let NodeKind::Dispatch(node) = &plan.nodes[position].kind else {
            return;
        };
        let Some((decided, decision)) = self.task(position) else {
            return;
        };
        // A verifier gives back a verdict, and nothing to merge.
        if decision.kind() == "next-worker"
            && parallel(node).is_none()
            && let Some(end) = self.end_of(step, child)
            && let Err(failure) = self.harvest(position, node, step, cause, (child.clone(), end))
        {
            return self.fail_node(step, cause, failure);
        }
        self.go_on_with(position, node, step, decided, &decision);
    }

    /// Takes over what a child that completed gave back.
    fn harvest(
        &mut self,
        position: usize,
        node: &Dispatch,
        step: &StepId,
        cause: Seq,
        (child, end): (RunId, ChildEnd),
    ) -> Result<(), Failure> {
        let handoff = self
            .dispatching(position)
            .and_then(|known| known.of_child(&child));
        let Some(worker) = handoff.map(|handoff| handoff.worker.clone()) else {
            return Ok(());
        };
        let mapping = node.outputs_of(&worker);
        if end.status != RunStatus::Completed || mapping.is_empty() {
            return Ok(());
        }
        if end.is_untrusted {
            self.outside = Some(step.node.clone());
        }
        self.take_over(step, cause, mapping, &end.report)?;
        let event = Orchestration::Harvested {
            step: step.clone(),
            worker,
            child,
            keys: mapping.iter().map(|(name, _)| name.clone()).collect(),
            checksum: None,
        };
        self.emit(Some(cause), event.into());
        Ok(())
    }

    /// Sets the variables of a mapping. What the child does not have stays as it is.
    pub(super) fn take_over(
        &mut self,
        step: &StepId,
        cause: Seq,
        mapping: &[(String, String)],
        report: &Object,
    ) -> Result<(), Failure> {
        for (name, from) in mapping {
            let Some(next) = report.get(from) else { continue };
            let (kept, before) = (cost::of_value(next), self.held_of(name));
            self.spend(2 * kept + before)
                .and_then(|()| self.hold(kept, before))?;
            let changed = Event::VariableChanged {
                name: name.clone(),
                previous: self.state.previous(name),
                next: next.clone(),
                appends: false,
                node: Some(step.node.clone()),
            };
            self.emit(Some(cause), changed);
        }
        Ok(())
    }

    fn complete_sequence(&mut self, position: usize, step: &StepId) {
        let cause = self.last().unwrap_or_default();
        match self.results(position, step) {
            Ok(children) => {
                let mut outputs = Object::new();
                if let Some(last) = children.last() {
                    for name in ["childRunId", "childStatus", "error"] {
                        if let Some(value) = last.get(name) {
                            outputs.insert(name.to_owned(), value.clone());
                        }
                    }
                }
                outputs.insert("children".to_owned(), children.into());
                self.complete_node(step, cause, outputs);
            }
            Err(failure) => self.fail_node(step, cause, failure),
        }
    }

    /// What became of each worker, in the order of the decision.
    fn results(&mut self, position: usize, step: &StepId) -> Result<Vec<Value>, Failure> {
        let ends = self.ends(step);
        if ends.iter().any(|(_, end)| end.is_untrusted) {
            self.outside = Some(step.node.clone());
        }
        let Some(dispatching) = self.dispatching(position) else {
            return Ok(Vec::new());
        };
        let mut results = Vec::with_capacity(dispatching.handoffs.len());
        for handoff in &dispatching.handoffs {
            let Some(ended) = &handoff.end else { continue };
            let mut result = json!({ "workflowId": handoff.worker, "childStatus": ended.status.as_str() });
            if let Some(child) = &handoff.child {
                result["childRunId"] = child.as_str().into();
                let end = ends.iter().find(|(run, _)| run == child).map(|(_, end)| end);
                if let Some(end) = end.filter(|end| end.status == RunStatus::Completed) {
                    self.spend(cost::of_object(&end.outputs))?;
                    result["result"] = Value::Object(end.outputs.clone());
                }
            }
            if let Some(error) = &ended.error {
                result["error"] = json!({ "code": error.code, "message": error.message });
            }
            results.push(result);
        }
        Ok(results)
    }

    /// Cancels the workers that no longer count, and ends the execution once all have ended.
    fn join(&mut self, position: usize, node: &Dispatch, fan: Fan, step: &StepId) {
        self.cancel_rest(step);
        let Some(dispatching) = self.dispatching(position) else {
            return;
        };
        let ends = Ends::of(dispatching);
        if ends.running > 0 {
            return;
        }
        let fanned_out = dispatching.fanned_out;
        let (outcome, counting) = match judge(fan, &ends) {
            Verdict::Open => return,
            Verdict::Joined { outcome, counting } => (outcome, counting),
        };
        let counting = dispatching.in_order_of_ends().into_iter().take(counting);
        let order: Vec<_> = counting
            .filter_map(|(handoff, _)| handoff.child.clone())
            .collect();
        let mut cause = self.last().unwrap_or_default();
        if let Some(fanned_out) = fanned_out {
            let event = Orchestration::Joined {
                step: step.clone(),
                outcome,
                n_completed: ends.count(RunStatus::Completed),
                n_failed: ends.count(RunStatus::Failed),
                n_cancelled: ends.count(RunStatus::Cancelled),
                order: order.clone(),
            };
            cause = self.emit(Some(fanned_out), event.into());
        }
        if fan.on_failure == OnChildFailure::FailFast && outcome == JoinOutcome::Failed {
            let failure = self.first_failure(position, step);
            return self.fail_node(step, cause, failure);
        }
        for child in order {
            let Some(end) = self.end_of(step, &child) else {
                continue;
            };
            let ended = self
                .dispatching(position)
                .and_then(|known| known.of_child(&child));
            let ended = ended.map_or(cause, |handoff| handoff.latest);
            if let Err(failure) = self.harvest(position, node, step, ended, (child, end)) {
                return self.fail_node(step, cause, failure);
            }
        }
        match self.results(position, step) {
            Ok(children) => {
                let outputs = json!({ "joinOutcome": outcome.as_str(), "children": children });
                let cause = self.last().unwrap_or(cause);
                self.complete_node(step, cause, fields(outputs));
            }
            Err(failure) => self.fail_node(step, cause, failure),
        }
    }

    /// The failure of a node one of whose workers did not complete.
    fn first_failure(&mut self, position: usize, step: &StepId) -> Failure {
        let ends = self.ends(step);
        let dispatching = self.dispatching(position);
        let mut handoffs = dispatching.into_iter().flat_map(|known| &known.handoffs);
        let failed = handoffs.find_map(|handoff| {
            let end = handoff.end.as_ref()?;
            let error = end.error.as_ref()?;
            let (worker, code, message) = (&handoff.worker, &error.code, &error.message);
            let end = ends.iter().find(|(run, _)| Some(run) == handoff.child.as_ref());
            let is_untrusted = end.is_some_and(|(_, end)| end.is_untrusted);
            Some((
                format!("worker '{worker}' failed: {code}: {message}"),
                WorkerFailure::new(worker, handoff.child.as_ref(), error, is_untrusted),
            ))
        });
        match failed {
            None => Failure::new("child_failed", "a worker did not complete"),
            Some((message, worker)) => {
                if worker.is_untrusted {
                    self.outside = Some(step.node.clone());
                }
                Failure {
                    worker: Some(Box::new(worker)),
                    ..Failure::new("child_failed", message)
                }
            }
        }
    }
}

/// The failure of a child run that would ask an agent that the operator has not configured.
pub(super) fn unknown_agent(peer: &str) -> Failure {
    let message = format!("agent '{peer}' is not configured on this host");
    Failure::new("peer_unknown", message)
}

/// The workflow of a worker, and the agent that it asks, if it does.
pub(super) fn workflow_of(worker: &str) -> Result<(WorkflowId, Option<Remote<'_>>), Failure> {
    let remote = Remote::of(worker);
    let workflow = match &remote {
        Some(remote) => agent_workflow_id(remote.peer),
        // The host's own workflows are no workers: whoever decides would choose the tool.
        None => {
            let workflow = WorkflowId::parse(worker).ok();
            workflow.filter(|id| !id.is_of_host()).ok_or_else(|| {
                let message = format!("workflow '{worker}' does not exist");
                Failure::new(UNKNOWN_WORKFLOW, message)
            })?
        }
    };
    Ok((workflow, remote))
}

/// How the workers of this node work at the same time, if they do.
const fn parallel(node: &Dispatch) -> Option<Fan> {
    match node.fan_out {
        FanOut::Parallel(fan) => Some(fan),
        FanOut::Sequential | FanOut::Reject => None,
    }
}
