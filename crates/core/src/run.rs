//! A run: the fold of its log.
//!
//! [`Run::apply`] is the only way a run changes, live and in recovery. It refuses what cannot follow, so a
//! log that folds is a legal one: sequences are dense, nothing follows a terminal event, and a node is
//! only finished while it is active.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    ApprovalAction, Event, Failure, InterruptKind, NodeId, Object, Parent, Plan, PrincipalId, Recorded,
    RunId, RunStarted, RunStatus, Seq, Timestamp, Visit, WorkflowId, channel, definition::TriggerRule,
};

/// What the log says of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// How many events are folded in.
    pub head: Seq,
    /// Where it stands.
    pub status: RunStatus,
    /// How it began, once it has.
    pub started: Option<Box<RunStarted>>,
    /// When it began.
    pub started_at: Option<Timestamp>,
    /// Time of the last event.
    pub updated_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Its variables.
    pub variables: Object,
    /// Its channels.
    pub channels: Object,
    /// Its artifacts, oldest first.
    pub artifacts: Vec<Artifact>,
    /// Its children, oldest first.
    pub children: Vec<Child>,
    /// What it ended with.
    pub outputs: Option<Object>,
    /// What it failed with, and in which node.
    pub error: Option<(Failure, Option<NodeId>)>,
    /// The run whose cancel cascaded here.
    pub cancelled_by_parent: Option<RunId>,
    pub(crate) nodes: Vec<NodeState>,
    /// Indexes of nodes that wait for an answer, the first asked first.
    pub(crate) waiting: Vec<usize>,
    pub(crate) executions: u32,
    pub(crate) paused: bool,
    pub(crate) cancelling: Option<Cancel>,
    pub(crate) active_ms: u64,
    pub(crate) running_since: Option<Timestamp>,
}

/// An artifact; its content is in the event at `seq`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Its id.
    pub id: String,
    /// The event that made it.
    pub seq: Seq,
}

/// A child run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Child {
    /// The run.
    pub run: RunId,
    /// What it runs.
    pub workflow: WorkflowId,
    /// The execution that created it.
    pub visit: Visit,
    /// Whether it has ended, as far as the parent knows.
    pub ended: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cancel {
    pub(crate) reason: Option<String>,
    pub(crate) by: Option<PrincipalId>,
    pub(crate) parent: Option<RunId>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct NodeState {
    pub(crate) next_ordinal: u32,
    pub(crate) phase: Phase,
    pub(crate) slots: Vec<Option<Signal>>,
    /// Whether this round's forward edges have triggered the node already.
    pub(crate) fired: bool,
    /// Back-edge triggers not yet consumed.
    pub(crate) back: u32,
    pub(crate) outputs: Option<Object>,
    /// Whether an interrupt of this node was ever answered.
    pub(crate) answered: bool,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    #[default]
    Idle,
    Active(Active),
    Completed,
    Failed(Failure),
    Skipped,
    Cancelled,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Active {
    pub(crate) ordinal: u32,
    pub(crate) attempt: u32,
    pub(crate) wait: Wait,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Wait {
    /// For a timer or an effect of the attempt.
    Work,
    /// For the next attempt.
    Retry { due: Timestamp },
    /// For an answer.
    Interrupt(Box<Open>),
    /// For a child.
    Child {
        run: RunId,
        mirror: Option<(InterruptKind, String)>,
    },
}

/// An open interrupt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Open {
    /// What is asked.
    pub kind: InterruptKind,
    /// The question.
    pub data: Value,
    /// Since when.
    pub requested_at: Timestamp,
    /// Until when, if it times out.
    pub deadline: Option<Timestamp>,
    /// Votes so far: (voter, action).
    pub votes: Vec<(String, ApprovalAction)>,
}

/// What an edge tells its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Signal {
    Success,
    Failure,
    /// The source was skipped.
    Skipped,
    /// The edge's condition did not hold; counts as skipped, but cannot trigger on its own.
    Untaken,
}

/// The interrupt that a run waits for, as faces show it.
#[derive(Debug, Clone, Copy)]
pub struct OpenInterrupt<'a> {
    /// The node that waits.
    pub node: &'a NodeId,
    /// Which execution of it.
    pub ordinal: u32,
    /// Where the question is.
    pub asked: Asked<'a>,
}

/// Where the question of an interrupt is.
#[derive(Debug, Clone, Copy)]
pub enum Asked<'a> {
    /// This run asks.
    Here(&'a Open),
    /// A child asks, of this kind and with this interrupt id.
    Child(&'a RunId, InterruptKind, &'a str),
}

impl OpenInterrupt<'_> {
    /// What is asked.
    #[must_use]
    pub fn kind(&self) -> InterruptKind {
        match self.asked {
            Asked::Here(open) => open.kind,
            Asked::Child(_, kind, _) => kind,
        }
    }

    /// Interrupt id and key.
    #[must_use]
    pub fn id(&self) -> String {
        match self.asked {
            Asked::Here(_) => format!("{}:{}", self.node, self.ordinal),
            Asked::Child(_, _, id) => id.to_owned(),
        }
    }
}

/// Why an event cannot follow. A log that holds such an event was damaged, or written by a bug.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The event's place is not the end of the log.
    #[error("apply event {found} to a log of {head}")]
    Gap {
        /// Events folded in.
        head: Seq,
        /// The event's place.
        found: Seq,
    },
    /// The run has ended.
    #[error("apply an event after the terminal one")]
    AfterTerminal,
    /// The event needs a state the run is not in.
    #[error("apply {0}")]
    Illegal(String),
}

impl Default for Run {
    fn default() -> Self {
        Self {
            head: Seq(0),
            status: RunStatus::Pending,
            started: None,
            started_at: None,
            updated_at: Timestamp::default(),
            ended_at: None,
            variables: Object::new(),
            channels: Object::new(),
            artifacts: Vec::new(),
            children: Vec::new(),
            outputs: None,
            error: None,
            cancelled_by_parent: None,
            nodes: Vec::new(),
            waiting: Vec::new(),
            executions: 0,
            paused: false,
            cancelling: None,
            active_ms: 0,
            running_since: None,
        }
    }
}

impl Run {
    /// Folds events onto this run.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub fn fold<'e>(
        mut self,
        plan: &Plan,
        events: impl IntoIterator<Item = &'e Recorded>,
    ) -> Result<Self, ApplyError> {
        for event in events {
            self.apply(plan, event)?;
        }
        Ok(self)
    }

    /// Folds one event in.
    ///
    /// # Errors
    /// See [`ApplyError`]; the run is then not to be used.
    pub fn apply(&mut self, plan: &Plan, recorded: &Recorded) -> Result<(), ApplyError> {
        if recorded.seq != self.head {
            return Err(ApplyError::Gap {
                head: self.head,
                found: recorded.seq,
            });
        }
        if self.status.is_terminal() {
            return Err(ApplyError::AfterTerminal);
        }
        self.step(plan, recorded)?;
        self.head = self.head.next();
        self.updated_at = recorded.at;
        let status = self.derive_status(&recorded.event);
        match (self.running_since, status == RunStatus::Running) {
            (None, true) => self.running_since = Some(recorded.at),
            (Some(since), false) => {
                self.active_ms += recorded.at.millis_since(since);
                self.running_since = None;
            }
            (None, false) | (Some(_), true) => {}
        }
        self.status = status;
        if status.is_terminal() {
            self.ended_at = Some(recorded.at);
        }
        Ok(())
    }

    /// The parent, if this run is a child.
    #[must_use]
    pub fn parent(&self) -> Option<&Parent> {
        self.started.as_ref().and_then(|started| started.parent.as_ref())
    }

    /// The first interrupt that is open, here or in a child.
    #[must_use]
    pub fn interrupt<'a>(&'a self, plan: &'a Plan) -> Option<OpenInterrupt<'a>> {
        self.interrupts(plan).next()
    }

    /// Every interrupt that is open, the first asked first.
    pub fn interrupts<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = OpenInterrupt<'a>> {
        self.waiting.iter().filter_map(|&position| {
            let Phase::Active(active) = &self.nodes[position].phase else {
                return None;
            };
            let asked = match &active.wait {
                Wait::Interrupt(open) => Asked::Here(open),
                Wait::Child {
                    run,
                    mirror: Some((kind, id)),
                } => Asked::Child(run, *kind, id),
                Wait::Child { mirror: None, .. } | Wait::Work | Wait::Retry { .. } => return None,
            };
            Some(OpenInterrupt {
                node: &plan.nodes[position].id,
                ordinal: active.ordinal,
                asked,
            })
        })
    }

    /// Each node that has begun, with its state as OpenWOP words it and how often it ran.
    pub fn node_states<'a>(
        &'a self,
        plan: &'a Plan,
    ) -> impl Iterator<Item = (&'a NodeId, &'static str, u32)> {
        self.nodes.iter().zip(&plan.nodes).filter_map(|(state, node)| {
            let word = match &state.phase {
                Phase::Idle => return None,
                Phase::Active(active) => match active.wait {
                    Wait::Interrupt(_) => "suspended",
                    Wait::Child { .. } | Wait::Work => "running",
                    Wait::Retry { .. } => "retrying",
                },
                Phase::Completed => "completed",
                Phase::Failed(_) => "failed",
                Phase::Skipped => "skipped",
                Phase::Cancelled => "cancelled",
            };
            Some((&node.id, word, state.next_ordinal))
        })
    }

    /// The node a client would name as current: the first that waits, else the first that is active.
    #[must_use]
    pub fn current_node<'a>(&self, plan: &'a Plan) -> Option<&'a NodeId> {
        let position = self.waiting.first().copied().or_else(|| {
            self.nodes
                .iter()
                .position(|state| matches!(state.phase, Phase::Active(_)))
        })?;
        plan.nodes.get(position).map(|node| &node.id)
    }

    /// When the run's duration bound is reached if it goes on running; `None` without a bound or while it does not run.
    #[must_use]
    pub fn duration_deadline(&self) -> Option<Timestamp> {
        let limit = self.started.as_ref()?.limits.run_duration_ms?;
        Some(
            self.running_since?
                .plus_millis(limit.saturating_sub(self.active_ms)),
        )
    }

    /// What expressions and templates see.
    pub(crate) fn context(&self, plan: &Plan) -> Value {
        let mut context = self.variables.clone();
        let nodes: Object = self
            .nodes
            .iter()
            .zip(&plan.nodes)
            .filter_map(|(state, node)| Some((node.id.to_string(), Value::Object(state.outputs.clone()?))))
            .collect();
        context.insert("nodes".to_owned(), Value::Object(nodes));
        context.insert("variables".to_owned(), Value::Object(self.variables.clone()));
        context.insert("channels".to_owned(), Value::Object(self.channels.clone()));
        if let Some(started) = &self.started {
            context.insert("inputs".to_owned(), Value::Object(started.inputs.clone()));
            context.insert(
                "configurable".to_owned(),
                Value::Object(started.configurable.clone()),
            );
        }
        Value::Object(context)
    }

    fn derive_status(&self, event: &Event) -> RunStatus {
        if let Some(end) = event.terminal() {
            end
        } else if self.cancelling.is_some() {
            RunStatus::Cancelling
        } else if self.paused {
            RunStatus::Paused
        } else {
            self.waiting.first().map_or(RunStatus::Running, |&position| {
                match &self.nodes[position].phase {
                    Phase::Active(Active {
                        wait: Wait::Interrupt(open),
                        ..
                    }) => open.kind.waiting_status(),
                    Phase::Active(Active {
                        wait:
                            Wait::Child {
                                mirror: Some((kind, _)),
                                ..
                            },
                        ..
                    }) => kind.waiting_status(),
                    Phase::Active(_)
                    | Phase::Idle
                    | Phase::Completed
                    | Phase::Failed(_)
                    | Phase::Skipped
                    | Phase::Cancelled => RunStatus::Running,
                }
            })
        }
    }

    fn step(&mut self, plan: &Plan, recorded: &Recorded) -> Result<(), ApplyError> {
        match &recorded.event {
            Event::RunStarted(started) => self.start(plan, started, recorded.at),
            Event::RunCompleted { outputs } => {
                self.outputs = Some(outputs.clone());
                Ok(())
            }
            Event::RunFailed { error, node } => {
                self.error = Some((error.clone(), node.clone()));
                Ok(())
            }
            Event::RunCancelled { parent, .. } => {
                self.cancelled_by_parent.clone_from(parent);
                Ok(())
            }
            Event::CancelRequested { reason, by, parent } => {
                self.cancelling = Some(Cancel {
                    reason: reason.clone(),
                    by: by.clone(),
                    parent: parent.clone(),
                });
                Ok(())
            }
            Event::RunPaused { .. } => {
                self.paused = true;
                Ok(())
            }
            Event::RunResumed { .. } => {
                self.paused = false;
                Ok(())
            }
            Event::NodeStarted { visit, attempt, .. } => self.start_node(plan, visit, *attempt),
            Event::NodeCompleted {
                visit,
                outputs,
                untaken,
            } => {
                let position = self.finish(plan, visit)?;
                self.project_outputs(plan, position, outputs);
                self.nodes[position].phase = Phase::Completed;
                self.nodes[position].outputs = Some(outputs.clone());
                self.signal(plan, position, Signal::Success, untaken);
                Ok(())
            }
            Event::NodeFailed {
                visit,
                error,
                untaken,
                ..
            } => {
                let position = self.finish(plan, visit)?;
                self.nodes[position].phase = Phase::Failed(error.clone());
                self.nodes[position].outputs = None;
                self.signal(plan, position, Signal::Failure, untaken);
                Ok(())
            }
            Event::NodeSkipped { node, .. } => {
                let position = plan.position(node).ok_or_else(|| illegal("skip", node))?;
                let ready = self.readiness(plan, position);
                let state = self
                    .nodes
                    .get_mut(position)
                    .ok_or_else(|| illegal("skip before the start", node))?;
                if !state.consume(ready) {
                    return Err(illegal("skip out of turn", node));
                }
                state.phase = Phase::Skipped;
                self.signal(plan, position, Signal::Skipped, &[]);
                Ok(())
            }
            Event::NodeCancelled { visit, .. } => {
                let position = self.finish(plan, visit)?;
                self.nodes[position].phase = Phase::Cancelled;
                Ok(())
            }
            Event::NodeRetried { visit, delay_ms, .. } => {
                let due = recorded.at.plus_millis(*delay_ms);
                self.active(plan, visit)?.wait = Wait::Retry { due };
                Ok(())
            }
            Event::NodeDispatched {
                visit,
                child,
                workflow,
            } => {
                self.active(plan, visit)?.wait = Wait::Child {
                    run: child.clone(),
                    mirror: None,
                };
                self.children.push(Child {
                    run: child.clone(),
                    workflow: workflow.clone(),
                    visit: visit.clone(),
                    ended: false,
                });
                Ok(())
            }
            Event::InterruptRequested {
                visit,
                kind,
                data,
                timeout_ms,
            } => {
                let open = Open {
                    kind: *kind,
                    data: data.clone(),
                    requested_at: recorded.at,
                    deadline: timeout_ms.map(|ms| recorded.at.plus_millis(ms)),
                    votes: Vec::new(),
                };
                self.active(plan, visit)?.wait = Wait::Interrupt(Box::new(open));
                let position = plan
                    .position(&visit.node)
                    .ok_or_else(|| illegal("interrupt", &visit.node))?;
                self.waiting.push(position);
                Ok(())
            }
            Event::InterruptResolved { visit, .. } => {
                let position = plan
                    .position(&visit.node)
                    .ok_or_else(|| illegal("resolution", &visit.node))?;
                let active = self.active(plan, visit)?;
                if !matches!(active.wait, Wait::Interrupt(_)) {
                    return Err(illegal("resolution without interrupt", &visit.node));
                }
                active.wait = Wait::Work;
                self.nodes[position].answered = true;
                self.waiting.retain(|&waiting| waiting != position);
                Ok(())
            }
            Event::NodeSuspended {
                visit,
                interrupt,
                kind,
                child: Some(_),
            } => {
                let position = plan
                    .position(&visit.node)
                    .ok_or_else(|| illegal("suspension", &visit.node))?;
                let Wait::Child { mirror, .. } = &mut self.active(plan, visit)?.wait else {
                    return Err(illegal("suspension without child", &visit.node));
                };
                *mirror = Some((*kind, interrupt.clone()));
                if !self.waiting.contains(&position) {
                    self.waiting.push(position);
                }
                Ok(())
            }
            Event::NodeResumed { visit, .. } => {
                let position = plan
                    .position(&visit.node)
                    .ok_or_else(|| illegal("resumption", &visit.node))?;
                if let Wait::Child { mirror, .. } = &mut self.active(plan, visit)?.wait {
                    *mirror = None;
                    self.waiting.retain(|&waiting| waiting != position);
                }
                Ok(())
            }
            Event::ApprovalVoted {
                visit, voter, action, ..
            } => {
                let Wait::Interrupt(open) = &mut self.active(plan, visit)?.wait else {
                    return Err(illegal("vote without interrupt", &visit.node));
                };
                open.votes.retain(|(other, _)| other != voter);
                open.votes.push((voter.clone(), *action));
                Ok(())
            }
            Event::VariableChanged { name, next, .. } => {
                self.variables.insert(name.clone(), next.clone());
                Ok(())
            }
            Event::ChannelWritten {
                channel,
                value,
                reducer,
                ttl_ms,
                max_size,
                written_at,
                ..
            } => {
                let write = channel::Write {
                    value,
                    reducer,
                    ttl_ms: *ttl_ms,
                    max_size: *max_size,
                    at: *written_at,
                };
                let next = channel::fold(self.channels.get(channel), &write);
                self.variables.insert(channel.clone(), next.clone());
                self.channels.insert(channel.clone(), next);
                Ok(())
            }
            Event::ArtifactCreated { artifact, .. } => {
                self.artifacts.push(Artifact {
                    id: artifact.clone(),
                    seq: recorded.seq,
                });
                Ok(())
            }
            Event::NodeSuspended { child: None, .. }
            | Event::ApprovalRequested { .. }
            | Event::ApprovalReceived { .. }
            | Event::ClarificationRequested { .. }
            | Event::ClarificationResolved { .. }
            | Event::CapBreached { .. } => Ok(()),
        }
    }

    fn start(&mut self, plan: &Plan, started: &RunStarted, at: Timestamp) -> Result<(), ApplyError> {
        if self.started.is_some() {
            return Err(ApplyError::Illegal("a second start".to_owned()));
        }
        for variable in plan.variables() {
            if let Some(value) = &variable.default_value {
                self.variables.insert(variable.name.clone(), value.clone());
            }
        }
        for (name, value) in &started.inputs {
            self.variables.insert(name.clone(), value.clone());
        }
        for (name, declaration) in &plan.definition.channels {
            if let Some(value) = declaration.get("default") {
                self.channels.insert(name.clone(), value.clone());
            }
        }
        self.nodes = plan
            .nodes
            .iter()
            .map(|node| NodeState {
                slots: vec![None; node.forward.len()],
                ..NodeState::default()
            })
            .collect();
        self.started = Some(Box::new(started.clone()));
        self.started_at = Some(at);
        Ok(())
    }

    fn start_node(&mut self, plan: &Plan, visit: &Visit, attempt: u32) -> Result<(), ApplyError> {
        let position = plan
            .position(&visit.node)
            .ok_or_else(|| illegal("start", &visit.node))?;
        self.executions += 1;
        let ready = self.readiness(plan, position);
        let state = self
            .nodes
            .get_mut(position)
            .ok_or_else(|| illegal("start before the run's", &visit.node))?;
        if attempt > 0 {
            return match &mut state.phase {
                Phase::Active(active) if active.ordinal == visit.ordinal => {
                    active.attempt = attempt;
                    active.wait = Wait::Work;
                    Ok(())
                }
                _ => Err(illegal("retry of an idle node", &visit.node)),
            };
        }
        if visit.ordinal != state.next_ordinal || matches!(state.phase, Phase::Active(_)) {
            return Err(illegal("start out of turn", &visit.node));
        }
        if ready == Readiness::Skip || !state.consume(ready) {
            return Err(illegal("start of a node that is not ready", &visit.node));
        }
        state.next_ordinal += 1;
        state.phase = Phase::Active(Active {
            ordinal: visit.ordinal,
            attempt: 0,
            wait: Wait::Work,
        });
        Ok(())
    }

    fn active(&mut self, plan: &Plan, visit: &Visit) -> Result<&mut Active, ApplyError> {
        let position = plan
            .position(&visit.node)
            .ok_or_else(|| illegal("event", &visit.node))?;
        match self.nodes.get_mut(position).map(|state| &mut state.phase) {
            Some(Phase::Active(active)) if active.ordinal == visit.ordinal => Ok(active),
            _ => Err(illegal("event of an inactive node", &visit.node)),
        }
    }

    fn finish(&mut self, plan: &Plan, visit: &Visit) -> Result<usize, ApplyError> {
        if let Wait::Child { run, .. } = &self.active(plan, visit)?.wait {
            let run = run.clone();
            if let Some(child) = self.children.iter_mut().find(|child| child.run == run) {
                child.ended = true;
            }
        }
        let position = plan
            .position(&visit.node)
            .ok_or_else(|| illegal("end", &visit.node))?;
        self.waiting.retain(|&waiting| waiting != position);
        Ok(position)
    }

    /// Outputs become variables: under the port's name where the workflow declares it, else under the node's id.
    fn project_outputs(&mut self, plan: &Plan, position: usize, outputs: &Object) {
        let mut rest = Object::new();
        for (port, value) in outputs {
            if plan.declares(port) {
                self.variables.insert(port.clone(), value.clone());
            } else {
                rest.insert(port.clone(), value.clone());
            }
        }
        if !rest.is_empty() {
            self.variables
                .insert(plan.nodes[position].id.to_string(), Value::Object(rest));
        }
    }

    fn signal(&mut self, plan: &Plan, position: usize, signal: Signal, untaken: &[u32]) {
        for &edge in &plan.nodes[position].out {
            let taken = !untaken.iter().any(|&untaken| untaken as usize == edge);
            let signal = if taken { signal } else { Signal::Untaken };
            let PlanEdgeView { target, rule, slot } = view(plan, edge);
            let state = &mut self.nodes[target];
            match slot {
                None if acceptable(rule, signal) && matches!(signal, Signal::Success | Signal::Failure) => {
                    state.back += 1
                }
                None => {}
                Some(slot) => {
                    state.slots[slot] = Some(signal);
                    if state.fired && state.slots.iter().all(Option::is_some) {
                        state.new_round();
                    }
                }
            }
        }
    }

    /// Whether a node may start now, can never start in this round, or must wait.
    pub(crate) fn readiness(&self, plan: &Plan, position: usize) -> Readiness {
        let Some(state) = self.nodes.get(position) else {
            return Readiness::NotYet;
        };
        if matches!(state.phase, Phase::Active(_)) {
            return Readiness::NotYet;
        }
        let forward = &plan.nodes[position].forward;
        if forward.is_empty() && !state.fired {
            return Readiness::Forward;
        }
        if !state.fired && !forward.is_empty() {
            let mut all = true;
            let mut any = false;
            let mut has_any = false;
            for (slot, &edge) in state.slots.iter().zip(forward) {
                let rule = view(plan, edge).rule;
                let accepted = slot.is_some_and(|signal| acceptable(rule, signal));
                match rule {
                    TriggerRule::AnySuccess | TriggerRule::AnyFailed => {
                        has_any = true;
                        any |= accepted;
                    }
                    TriggerRule::AllSuccess | TriggerRule::AllComplete | TriggerRule::NoneFailed => {
                        all &= accepted
                    }
                }
            }
            if all && (any || !has_any) && !self.only_untaken(plan, position) {
                return Readiness::Forward;
            }
        }
        if state.back > 0 {
            return Readiness::Back;
        }
        if !state.fired && !forward.is_empty() && state.slots.iter().all(Option::is_some) {
            return Readiness::Skip;
        }
        Readiness::NotYet
    }

    /// Whether no forward edge was taken: a join of such edges is not triggered, whatever its rule.
    fn only_untaken(&self, plan: &Plan, position: usize) -> bool {
        let state = &self.nodes[position];
        !plan.nodes[position].forward.is_empty()
            && state.slots.iter().all(|slot| *slot == Some(Signal::Untaken))
    }
}

impl NodeState {
    /// Takes the trigger that made the node ready; `false` if there is none.
    fn consume(&mut self, ready: Readiness) -> bool {
        match ready {
            Readiness::Forward => {
                self.fired = true;
                if !self.slots.is_empty() && self.slots.iter().all(Option::is_some) {
                    self.new_round();
                }
            }
            Readiness::Back => self.back -= 1,
            Readiness::Skip => self.new_round(),
            Readiness::NotYet => return false,
        }
        true
    }

    fn new_round(&mut self) {
        self.slots.fill(None);
        self.fired = false;
    }
}

/// What a node's edges allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readiness {
    Forward,
    Back,
    Skip,
    NotYet,
}

struct PlanEdgeView {
    target: usize,
    rule: TriggerRule,
    slot: Option<usize>,
}

fn view(plan: &Plan, edge: usize) -> PlanEdgeView {
    let edge = &plan.edges[edge];
    PlanEdgeView {
        target: edge.target,
        rule: edge.rule,
        slot: edge.slot,
    }
}

fn acceptable(rule: TriggerRule, signal: Signal) -> bool {
    match rule {
        TriggerRule::AllSuccess | TriggerRule::AnySuccess => signal == Signal::Success,
        TriggerRule::AllComplete => true,
        TriggerRule::NoneFailed => signal != Signal::Failure,
        TriggerRule::AnyFailed => signal == Signal::Failure,
    }
}

fn illegal(what: &str, node: &NodeId) -> ApplyError {
    ApplyError::Illegal(format!("{what} at node '{node}'"))
}

/// The content of an artifact made of a node's outputs: the output named `text`, else all of them.
pub(crate) fn artifact_content(outputs: &Object) -> Value {
    outputs.get("text").cloned().unwrap_or_else(|| json!(outputs))
}
