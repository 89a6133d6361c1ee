//! Child runs: creating them and handling their messages.

use std::collections::BTreeSet;

use crate::{
    Active, CONTENT_TRUST, CascadeReason, ChildEnd, ChildPolicy, ContentHash, Dialect, Event, Failure,
    HostBounds, Join, KernelEvent, Member, NewChild, Object, OnFailure, OpenInterrupt, Parent, Planned,
    Refusal, RunId, RunMessage, RunStatus, Seq, StartRun, StepId, Trigger, UNTRUSTED, UndecidedChild, Wait,
    WorkflowId,
    cost::{self, MESSAGES_PAUSE},
    join::{Tally, Verdict},
};

use super::{Before, DecisionBuilder, too_much_work};

/// Maximum nesting of child runs.
const MAX_DEPTH: usize = 32;
/// Maximum number of children that a step may wait for. Each is two events of a decision.
pub const MAX_SET: usize = 200;

/// The work that a child may take to be decided together with its parent.
const CHILD_WORK: u64 = MESSAGES_PAUSE;

/// The codes with which [`DecisionBuilder::may_spawn`] fails.
pub(super) const CREATION_CODES: [&str; 4] = [
    "unknown_child_workflow",
    "peer_unknown",
    "subworkflow_cycle_detected",
    "subworkflow_depth_exceeded",
];

/// A child run that a step wants.
#[derive(Debug)]
pub struct Spawn {
    pub workflow: WorkflowId,
    /// `true` if the host chose the workflow, which may then be one that belongs to the host.
    pub is_chosen_by_host: bool,
    pub inputs: Object,
    /// Inputs that stay unset despite their default.
    pub unset: Vec<String>,
    /// Whether anything the child gets is untrusted.
    pub is_untrusted: bool,
    /// Variables of the child that the step gets when it ends.
    pub report: Vec<String>,
}

/// Requirements and options of a child run, besides its inputs.
#[derive(Debug, Default)]
pub struct ChildTerms {
    /// The version that the child's workflow must have; the current one where absent.
    pub version: Option<ContentHash>,
    /// The overrides of a child in the language of its parent; one in another language gets none.
    pub configurable: Object,
    /// A child in another language reports [all variables that it shows](crate::Startable::shown_variables).
    pub reports_variables: bool,
}

fn unknown(workflow: &WorkflowId) -> Failure {
    Failure::new(
        "unknown_child_workflow",
        format!("workflow '{workflow}' does not exist"),
    )
}

impl<D: Dialect> DecisionBuilder<'_, D> {
    /// Creates a child run, for which the step then waits. Fails if it could not start.
    pub fn spawn(&mut self, step: &StepId, cause: Seq, spawn: Spawn) -> Result<(), Failure> {
        self.spawn_on(step, cause, spawn, ChildTerms::default())
    }

    /// Like [`Self::spawn`], on these terms.
    pub fn spawn_on(
        &mut self,
        step: &StepId,
        cause: Seq,
        spawn: Spawn,
        terms: ChildTerms,
    ) -> Result<(), Failure> {
        if let Some(recorded) = self.recorded_child(step) {
            self.record_child(step, cause, recorded?, spawn.workflow);
            return Ok(());
        }
        let child = self.new_child(step, None, spawn, terms)?;
        self.dispatch(step, cause, child);
        Ok(())
    }

    /// Creates the children of a set, for which the step then waits as its [`ChildPolicy`] says. Fails, and
    /// creates none, if one could not start or the join can never hold.
    pub fn spawn_set(&mut self, step: &StepId, cause: Seq, spawns: Vec<Spawn>) -> Result<(), Failure> {
        let n_children = spawns.len();
        if n_children > MAX_SET {
            let message = format!("a step has {n_children} children, and {MAX_SET} is the most");
            return Err(Failure::new("child_set_limit_exceeded", message));
        }
        let position = self.plan.position(&step.node);
        let policy = position.and_then(|position| self.plan.children(position));
        if !policy.is_some_and(|policy| policy.join.is_possible(n_children)) {
            let message = format!("no join of {n_children} children can hold");
            return Err(Failure::new("impossible_join", message));
        }
        let mut n_recorded = 0;
        while let Some(spawn) = spawns.get(n_recorded) {
            let workflow = spawn.workflow.clone();
            let Some(recorded) = self.recorded_child(step) else {
                break;
            };
            self.record_child(step, cause, recorded?, workflow);
            n_recorded += 1;
        }
        if n_recorded == n_children {
            return Ok(());
        }
        // A branch that goes its own way between two children has none of those that its source had. All are checked,
        // so that a host that lacks room learns how much.
        let spawns = spawns.into_iter().enumerate();
        let children: Vec<_> = spawns
            .map(|(index, spawn)| self.new_child(step, Some(index), spawn, ChildTerms::default()))
            .collect();
        for child in children.into_iter().collect::<Result<Vec<_>, _>>()? {
            self.dispatch(step, cause, child);
        }
        Ok(())
    }

    /// Decides the next new child that need not wait, and returns its message. Without one, the children that are left
    /// start by messages of their own.
    pub(super) fn decide_next_child(&mut self) -> Option<RunMessage> {
        while !self.run.status.is_terminal() && self.has_room_for_children() {
            let child = self.work.children.get(self.tried)?;
            let step = StepId {
                node: child.node.clone(),
                ordinal: child.start.parent.as_ref()?.ordinal,
            };
            // The step may have ended by what another child did.
            if self.mirrored(&step, &child.run).is_some() {
                let units = self.left().map_or(CHILD_WORK, |left| left.min(CHILD_WORK));
                let decided = self.input.catalog.decide_child(child, &self.input, units);
                match decided {
                    Ok(ended) => {
                        self.tried += 1;
                        self.child_events += ended.n_events;
                        self.bytes += ended.n_bytes;
                        self.renew_budget(ended.units);
                        return Some(ended.message);
                    }
                    Err(UndecidedChild::Waits(units)) => self.worked += units,
                    Err(UndecidedChild::TooMuchWork) if units == CHILD_WORK => self.worked += units,
                    // Where more work is allowed, it might be decided here.
                    Err(UndecidedChild::TooMuchWork) => {
                        self.worked = self.worked.saturating_add(CHILD_WORK);
                        return None;
                    }
                }
            }
            self.tried += 1;
        }
        None
    }

    /// Records a child that the source of this replay created.
    fn record_child(&mut self, step: &StepId, cause: Seq, child: RunId, workflow: WorkflowId) -> Seq {
        let step = step.clone();
        self.record(
            Some(cause),
            KernelEvent::NodeDispatched {
                step,
                child,
                workflow,
            },
        )
    }

    /// Creates one more child of a step that judges its children itself ([`Join::Own`]). Fails if it could not
    /// start. Returns the child, and the event that records it.
    pub fn spawn_member(&mut self, step: &StepId, cause: Seq, spawn: Spawn) -> Result<(RunId, Seq), Failure> {
        let n_before = self.members(step).len();
        if n_before >= MAX_SET {
            let message = format!("a step has more than {MAX_SET} children");
            return Err(Failure::new("child_set_limit_exceeded", message));
        }
        if let Some(recorded) = self.recorded_child(step) {
            let child = recorded?;
            let dispatched = self.record_child(step, cause, child.clone(), spawn.workflow.clone());
            // Where a branch begins right after it, the child is that of its source, and the step gets one of its own.
            if !self.go_live_if_at_branch() {
                return Ok((child, dispatched));
            }
        }
        // A branch that has just gone its own way has none of the children that its source had.
        let n_before = self.members(step).len();
        let child = self.new_child(step, Some(n_before), spawn, ChildTerms::default())?;
        let run = child.run.clone();
        Ok((run, self.dispatch(step, cause, child)))
    }

    fn dispatch(&mut self, step: &StepId, cause: Seq, mut child: NewChild) -> Seq {
        child.dispatched = self.record(
            Some(cause),
            KernelEvent::NodeDispatched {
                step: step.clone(),
                child: child.run.clone(),
                workflow: child.workflow.clone(),
            },
        );
        let dispatched = child.dispatched;
        self.work.children.push(child);
        dispatched
    }

    /// The workflows of the ancestors of a child of this run, root first.
    ///
    /// # Errors
    /// The child would be among its own ancestors, or nest too deep.
    fn ancestors(&self, workflow: &WorkflowId) -> Result<Vec<WorkflowId>, Failure> {
        let Some(started) = &self.run.started else {
            return Err(Failure::new("internal_error", "the run has not started"));
        };
        let parent = started.parent.as_ref();
        let mut ancestors = parent.map_or_else(Vec::new, |parent| parent.ancestors.clone());
        ancestors.push(started.workflow.clone());
        if ancestors.contains(workflow) {
            let message = format!("workflow '{workflow}' is among its own ancestors");
            return Err(Failure::new("subworkflow_cycle_detected", message));
        }
        if ancestors.len() > MAX_DEPTH {
            let message = format!("child runs nest more than {MAX_DEPTH} deep");
            return Err(Failure::new("subworkflow_depth_exceeded", message));
        }
        Ok(ancestors)
    }

    /// Checks that a step may create a child of this workflow, before its inputs are gathered.
    pub fn may_spawn(&self, workflow: &WorkflowId) -> Result<(), Failure> {
        if let Some(recorded) = self.recorded_refusal() {
            return recorded;
        }
        self.current(workflow)?;
        self.ancestors(workflow).map(drop)
    }

    fn current(&self, workflow: &WorkflowId) -> Result<std::sync::Arc<dyn crate::Startable>, Failure> {
        self.input
            .catalog
            .current(workflow)
            .ok_or_else(|| unknown(workflow))
    }

    fn new_child(
        &self,
        step: &StepId,
        index: Option<usize>,
        spawn: Spawn,
        terms: ChildTerms,
    ) -> Result<NewChild, Failure> {
        let ChildTerms {
            version,
            configurable,
            reports_variables,
        } = terms;
        let Spawn {
            workflow,
            is_chosen_by_host,
            inputs,
            unset,
            is_untrusted,
            report,
        } = spawn;
        let Some(started) = &self.run.started else {
            return Err(Failure::new("internal_error", "the run has not started"));
        };
        if workflow.is_of_host() && !is_chosen_by_host {
            return Err(unknown(&workflow));
        }
        let child = self.current(&workflow)?;
        if let Some(version) = version.filter(|version| version != child.version()) {
            let found = child.version();
            let message = format!("workflow '{workflow}' is version {found}, and {version} is wanted");
            return Err(Failure::new("child_version_mismatch", message));
        }
        let ancestors = self.ancestors(&workflow)?;
        let mut metadata = Object::new();
        if started.is_untrusted() || is_untrusted {
            metadata.insert(CONTENT_TRUST.to_owned(), UNTRUSTED.into());
        }
        let is_of_language = child.dialect() == D::NAME;
        let configurable = match is_of_language {
            true => configurable,
            false => Object::new(),
        };
        // A child that failed to start would leave its parent waiting forever.
        child
            .check_child(&inputs, &configurable, &unset, &self.budget)
            .map_err(|rule| {
                if self.budget.is_spent() {
                    return too_much_work();
                }
                Failure::new("invalid_child_inputs", rule)
            })?;
        // Checked last, so that only children that can start are counted.
        let root = self
            .run
            .parent()
            .map(|parent| parent.root.as_ref().unwrap_or(&parent.run));
        if !self.input.catalog.admits_child(root.unwrap_or(self.input.run)) {
            let message = "the tree of runs has as many as this host allows (limits.max_descendants)";
            return Err(Failure::new("descendant_limit_exceeded", message));
        }
        let run = RunId::for_child(
            self.input.now,
            self.input.entropy,
            &step.node,
            step.ordinal,
            index,
        );
        let mut report: BTreeSet<_> = report.into_iter().collect();
        if reports_variables && !is_of_language {
            report.extend(child.shown_variables());
        }
        let position = self.plan.position(&step.node);
        let isolates_memory = position.is_some_and(|position| self.plan.isolates_memory(position));
        Ok(NewChild {
            run,
            workflow,
            version: child.version().clone(),
            node: step.node.clone(),
            dispatched: Seq(0),
            start: StartRun {
                tenant: started.tenant.clone(),
                principal: started.principal.clone(),
                origin: started.origin.clone(),
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
                    report: report.into_iter().collect(),
                    ancestors,
                    unset,
                    memory: (!isolates_memory).then(|| self.run.memory_scope(self.input.run)),
                }),
                bounds: HostBounds {
                    node_executions: started.limits.node_executions,
                    log_bytes: started.limits.log_bytes,
                    run_duration_ms: None,
                },
            },
        })
    }

    pub(super) fn message(&mut self, message: RunMessage) -> Result<Trigger, Refusal> {
        match message {
            RunMessage::Start(start) => {
                if self.run.started.is_none() && self.run.status.is_terminal() {
                    self.notify_parent_of_unstarted(*start);
                    return Ok(Trigger::Advance);
                }
                match self.start(start) {
                    // Duplicate start messages are ignored.
                    Err(Refusal::WrongState) => Ok(Trigger::Advance),
                    other => other,
                }
            }
            RunMessage::ParentEnded { parent, why } => {
                match self.cancel(Some(why.as_str().to_owned()), None, Some(parent)) {
                    Ok(()) | Err(Refusal::Terminal(_)) => Ok(Trigger::Advance),
                    Err(refusal) => Err(refusal),
                }
            }
            RunMessage::ChildWaiting {
                step,
                child,
                kind,
                interrupt,
            } => {
                if self.mirrored(&step, &child).is_some() {
                    // Two children may open interrupts at nodes with the same id; the path to the child
                    // distinguishes them.
                    let path = self.run.path_to(&child).unwrap_or_else(|| step.key());
                    let interrupt = format!("{path}/{interrupt}");
                    self.record(
                        self.last(),
                        KernelEvent::NodeSuspended {
                            step,
                            interrupt,
                            kind,
                            child: Some(child),
                            details: Object::new(),
                        },
                    );
                }
                Ok(Trigger::Advance)
            }
            RunMessage::ChildResumed { step, child } => {
                if let Some(Some(interrupt)) = self.mirrored(&step, &child) {
                    self.resume_mirror(step, self.last(), interrupt);
                }
                Ok(Trigger::Advance)
            }
            RunMessage::ChildEnded {
                step,
                child,
                status,
                outputs,
                report,
                error,
                is_untrusted,
            } => {
                self.outside = is_untrusted.then(|| step.node.clone());
                let ended = Ended {
                    child,
                    status,
                    outputs,
                    report,
                    error,
                };
                Ok(self.child_ended(step, ended))
            }
        }
    }

    /// The id of the interrupt of a child that a step waits for, as the step mirrors it. `None` if the step does
    /// not wait for the child, or no longer.
    fn mirrored(&self, step: &StepId, child: &RunId) -> Option<Option<String>> {
        let (_, active) = self.active(step)?;
        let Wait::Children(members) = &active.wait else {
            return None;
        };
        let mut running = members.iter().filter(|member| member.end.is_none());
        let member = running.find(|member| member.run == *child)?;
        Some(member.mirror.as_ref().map(|(_, interrupt)| interrupt.clone()))
    }

    fn resume_mirror(&mut self, step: StepId, cause: Option<Seq>, interrupt: String) -> Seq {
        self.record(
            cause,
            KernelEvent::NodeResumed {
                step,
                interrupt,
                value: None,
            },
        )
    }

    fn child_ended(&mut self, step: StepId, ended: Ended) -> Trigger {
        let Some(mirror) = self.mirrored(&step, &ended.child) else {
            return Trigger::Advance;
        };
        let position = self.plan.position(&step.node);
        let policy = position.and_then(|position| Some((position, self.plan.children(position)?)));
        let Some((position, policy)) = policy else {
            return Trigger::Advance;
        };
        if policy.join != Join::Single {
            return self.member_ended(position, step, policy, mirror, ended);
        }
        let on_failure = policy.on_failure;
        let mut cause = self.last().unwrap_or_default();
        if self.run.cancelling.is_some() {
            self.record(
                Some(cause),
                KernelEvent::NodeCancelled {
                    step,
                    reason: "run-cancelled".to_owned(),
                },
            );
            self.end_cancel_if_done();
            return Trigger::Advance;
        }
        if ended.status != RunStatus::Completed && on_failure == OnFailure::Fail {
            let failure = ended.failure();
            return Trigger::Failed { step, cause, failure };
        }
        if let Some(interrupt) = mirror {
            cause = self.resume_mirror(step.clone(), Some(cause), interrupt);
        }
        Trigger::ChildEnded {
            position,
            step,
            cause,
            child: ended.child,
            status: ended.status,
            outputs: ended.outputs,
            report: ended.report,
        }
    }

    /// Records the end of a child of a set, and follows what it means for the join.
    fn member_ended(
        &mut self,
        position: usize,
        step: StepId,
        policy: ChildPolicy,
        mirror: Option<String>,
        mut ended: Ended,
    ) -> Trigger {
        let mut cause = self.last().unwrap_or_default();
        if let Some(interrupt) = mirror {
            cause = self.resume_mirror(step.clone(), Some(cause), interrupt);
        }
        let is_cancelling = self.run.cancelling.is_some();
        if is_cancelling {
            // Nobody reads them any more.
            (ended.outputs, ended.report) = (Object::new(), Object::new());
        }
        let kept = cost::of_object(&ended.outputs) + cost::of_object(&ended.report);
        let excess = self.spend(kept).and_then(|()| self.hold(kept, 0)).err();
        if excess.is_some() {
            (ended.outputs, ended.report) = (Object::new(), Object::new());
        }
        let failure = (ended.status != RunStatus::Completed).then(|| ended.failure());
        let workflow = self
            .run
            .children
            .iter()
            .rev()
            .find(|child| child.run == ended.child);
        let Some(workflow) = workflow.map(|child| child.workflow.clone()) else {
            return Trigger::Advance;
        };
        let cause_of_end = D::cause_of_end(self.plan, &self.state, &step, &ended.child);
        let worker = D::worker_of(self.plan, &self.state, &step, &ended.child);
        let is_handoff = worker.is_some();
        let worker = worker.filter(|worker| worker != workflow.as_str());
        let child = ended.child.clone();
        if self.go_live_if_at_branch() && self.mirrored(&step, &child).is_none() {
            // A branch begins right here, and the child is that of its source.
            self.given = None;
            return Trigger::Advance;
        }
        cause = self.record(
            Some(cause_of_end.unwrap_or(cause)),
            KernelEvent::ChildEnded {
                step: step.clone(),
                child: ended.child,
                workflow,
                worker,
                is_handoff,
                status: ended.status,
                outputs: ended.outputs,
                report: ended.report,
                error: ended.error.map(Box::new),
            },
        );
        if let Some(failure) = excess {
            self.cancel_rest(&step);
            return Trigger::Failed { step, cause, failure };
        }
        if is_cancelling {
            if self.members(&step).iter().all(|member| member.end.is_some()) {
                let reason = "run-cancelled".to_owned();
                self.record(Some(cause), KernelEvent::NodeCancelled { step, reason });
                self.end_cancel_if_done();
            }
            return Trigger::Advance;
        }
        if policy.join == Join::Own {
            return Trigger::MemberEnded {
                position,
                step,
                cause,
                child,
            };
        }
        let holds = match policy.join.judge(self.tally(&step), policy.on_failure) {
            Verdict::Open => return Trigger::Advance,
            Verdict::Holds => true,
            Verdict::Fails => false,
        };
        let ended = self.ends(&step);
        if ended.iter().any(|(_, end)| end.is_untrusted) {
            self.outside = Some(step.node.clone());
        }
        cause = self.cancel_rest(&step).unwrap_or(cause);
        match failure {
            Some(failure) if !holds && policy.on_failure == OnFailure::Fail => {
                Trigger::Failed { step, cause, failure }
            }
            Some(_) | None => Trigger::ChildrenJoined {
                position,
                step,
                cause,
                holds,
                ended,
            },
        }
    }

    fn members(&self, step: &StepId) -> &[Member] {
        match self.active(step) {
            Some((
                _,
                Active {
                    wait: Wait::Children(members),
                    ..
                },
            )) => members,
            Some(_) | None => &[],
        }
    }

    fn tally(&self, step: &StepId) -> Tally {
        let members = self.members(step);
        let ends = || members.iter().filter_map(|member| member.end.as_ref());
        let completed = ends().filter(|end| end.status == RunStatus::Completed).count();
        Tally {
            created: members.len(),
            completed,
            failed: ends().count() - completed,
        }
    }

    /// How a child of a set has ended, if it has.
    pub fn end_of(&self, step: &StepId, child: &RunId) -> Option<ChildEnd> {
        let member = self.members(step).iter().find(|member| member.run == *child)?;
        member.end.as_deref().cloned()
    }

    /// The children of a set that have ended, the first to end first.
    pub fn ends(&self, step: &StepId) -> Vec<(RunId, ChildEnd)> {
        let members = self.members(step).iter();
        let ended = members.filter_map(|member| Some((member.run.clone(), *member.end.clone()?)));
        let mut ended: Vec<_> = ended.collect();
        ended.sort_by_key(|(_, end)| end.order);
        ended
    }

    /// Cancels the children of a set that are still running and closes what they ask. Returns the last event, if
    /// there is one.
    pub fn cancel_rest(&mut self, step: &StepId) -> Option<Seq> {
        let running = self.members(step).iter().filter(|member| member.end.is_none());
        let running: Vec<_> = running
            .map(|member| {
                let mirror = member.mirror.as_ref().map(|(_, interrupt)| interrupt.clone());
                (member.run.clone(), mirror)
            })
            .collect();
        let mut last = None;
        for (child, mirror) in running {
            if let Some(interrupt) = mirror {
                last = Some(self.resume_mirror(step.clone(), self.last(), interrupt));
            }
            self.notify_child(child, CascadeReason::Cancelled);
        }
        last
    }

    /// Records the last transition of the handoffs of a step that ends before its workers, which are cancelled with it.
    /// A worker that is not cancelled goes on, and so its handoff has none.
    pub(super) fn end_handoffs(&mut self, step: &StepId) {
        if !self.propagates(step) {
            return;
        }
        let running = self.members(step).iter().filter(|member| member.end.is_none());
        let running: Vec<_> = running.map(|member| member.run.clone()).collect();
        for child in running {
            let Some(worker) = D::worker_of(self.plan, &self.state, step, &child) else {
                continue;
            };
            // A branch has none of the children of its source.
            self.begin_branch();
            if self.mirrored(step, &child).is_none() {
                continue;
            }
            let mut known = self.run.children.iter().rev();
            let workflow = known
                .find(|known| known.run == child)
                .map(|known| known.workflow.clone());
            let Some(workflow) = workflow else {
                continue;
            };
            let cause = D::cause_of_end(self.plan, &self.state, step, &child).or(self.last());
            self.record_any(
                cause,
                Event::Kernel(KernelEvent::ChildEnded {
                    step: step.clone(),
                    child,
                    worker: Some(worker).filter(|worker| worker != workflow.as_str()),
                    workflow,
                    is_handoff: true,
                    status: RunStatus::Cancelled,
                    outputs: Object::new(),
                    report: Object::new(),
                    error: None,
                }),
            );
        }
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
            child: self.input.run.clone(),
            status: self.run.status,
            outputs: Object::new(),
            report: Object::new(),
            error: None,
            is_untrusted: false,
        };
        self.work
            .messages
            .push((parent.run, self.last().unwrap_or_default(), ended));
    }

    /// Whether this decision changed what an interrupt asks that was open before: somebody took a turn here, or a child
    /// reports one.
    fn asks_anew(&self, open: &OpenInterrupt<'_>) -> bool {
        self.events.iter().any(|recorded| match &recorded.event {
            Event::Kernel(KernelEvent::NodeSuspended {
                interrupt,
                child: Some(_),
                ..
            }) => *interrupt == open.id(),
            Event::Kernel(_) => false,
            Event::Dialect(event) => D::asks_anew(event).is_some_and(|step| *step == open.step()),
        })
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
            let variables = D::variables(&self.state);
            RunMessage::ChildEnded {
                step,
                child: self.input.run.clone(),
                status: self.run.status,
                outputs: self.run.outputs.clone().unwrap_or_default(),
                report: parent
                    .report
                    .iter()
                    .filter_map(|name| Some((name.clone(), variables.get(name)?.clone())))
                    .collect(),
                error: self.run.error.as_ref().map(|(failure, _)| failure.clone()),
                is_untrusted: D::holds_untrusted(&self.run, &self.state),
            }
        } else {
            let open = self.run.interrupt(self.plan);
            let is_anew = open.as_ref().is_some_and(|open| self.asks_anew(open));
            let now = open.map(|open| (open.kind(), open.id()));
            match (&before.interrupt, now) {
                (None, None) => return,
                (Some(old), Some(new)) if *old == new && !is_anew => return,
                (_, Some((kind, interrupt))) => RunMessage::ChildWaiting {
                    step,
                    child: self.input.run.clone(),
                    kind,
                    interrupt,
                },
                (Some(_), None) => RunMessage::ChildResumed {
                    step,
                    child: self.input.run.clone(),
                },
            }
        };
        self.work.messages.push((parent.run, seq, message));
    }
}

/// How a child run ended.
struct Ended {
    child: RunId,
    status: RunStatus,
    outputs: Object,
    report: Object,
    error: Option<Failure>,
}

impl Ended {
    fn failure(&self) -> Failure {
        Failure::of_child(self.status, self.error.as_ref())
    }
}
