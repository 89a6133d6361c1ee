//! A run: the fold of its log.
//!
//! [`Run::apply`] is the only way a run changes, live and in recovery. It refuses what cannot follow, so a
//! log that folds is a legal one: sequences are dense, nothing follows a terminal event, and a node is
//! only finished while it is active.
//!
//! The file is long because the fold is one match over every event, and the state it changes stands beside it.

mod trigger;
mod trust;
mod view;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    ApprovalAction, ContentHash, Event, Failure, InterruptKind, NodeId, Object, Plan, PrincipalId, Recorded,
    RunId, RunStarted, RunStatus, Seq, StepId, Timestamp, WorkflowId, channel,
};

use trigger::{Signal, Slot};
use view::project;

pub(crate) use trigger::Readiness;
pub use trust::{CONTENT_TRUST, UNTRUSTED, Untrusted};
pub(crate) use trust::{Content, says_untrusted};
pub use view::{Asked, OpenInterrupt, Streaming};
pub(crate) use view::{Context, artifact_content};

/// What the log says of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// How many events are folded in.
    pub head: Seq,
    /// Where it stands.
    pub status: RunStatus,
    /// How it began, once it has.
    pub started: Option<Arc<RunStarted>>,
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
    /// Why it was cancelled, once it is and if anybody said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
    /// What of it comes from outside.
    #[serde(default, skip_serializing_if = "Untrusted::is_empty")]
    pub untrusted: Untrusted,
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

impl Artifact {
    /// The node that made it: its id is the node's with the ordinal of the execution.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        self.id.rsplit_once('-').map(|(node, _)| node)
    }
}

/// A child run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Child {
    /// The run.
    pub run: RunId,
    /// What it runs.
    pub workflow: WorkflowId,
    /// The execution that created it.
    pub step: StepId,
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
    /// What the incoming forward edges said, in their order.
    pub(crate) slots: Vec<Slot>,
    /// Whether a node without forward edges has had its one start.
    pub(crate) fired: bool,
    /// Back-edge triggers not yet consumed.
    pub(crate) back: u32,
    pub(crate) outputs: Option<Object>,
    /// What its latest failure says of itself: `code`, `message` and a reviewer's `feedback`. Connections do not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<Object>,
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
    /// What it has said of a text it streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) streamed: Option<Box<Streamed>>,
}

/// The pieces of a streamed text so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Streamed {
    pub(crate) n_pieces: u32,
    pub(crate) text: String,
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
    /// The vote of each voter so far.
    pub votes: Vec<Vote>,
    /// Whether the question was rendered while the run held untrusted content.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_untrusted: bool,
}

/// What a voter last said at a gate that asks several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// Whose it is.
    pub voter: String,
    /// The vote.
    pub action: ApprovalAction,
    /// The hash of the voter's words.
    pub(crate) words: Option<ContentHash>,
    /// How often the voter has voted.
    pub(crate) n_votes: u32,
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
            cancel_reason: None,
            untrusted: Untrusted::default(),
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
    /// A variable's value, as an event tells it that gives the variable another one. A `null` is left out there: stored
    /// it would be read as none.
    pub(crate) fn previous(&self, name: &str) -> Option<Value> {
        let value = self.variables.get(name);
        value.filter(|value| !value.is_null()).cloned()
    }

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
        // A child may be cancelled, or quarantined, before it has heard that it begins.
        let begins = matches!(
            recorded.event,
            Event::RunStarted(_)
                | Event::RunCancelled { .. }
                | Event::RunPaused { .. }
                | Event::RunResumed { .. }
        );
        if self.started.is_none() && !begins {
            return Err(ApplyError::Illegal("an event before the start".to_owned()));
        }
        self.step(plan, recorded)?;
        self.untrusted.follow(plan, recorded);
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

    fn derive_status(&self, event: &Event) -> RunStatus {
        if let Some(end) = event.terminal() {
            end
        } else if self.cancelling.is_some() {
            RunStatus::Cancelling
        } else if self.paused {
            RunStatus::Paused
        } else if self.started.is_none() {
            RunStatus::Pending
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
            Event::RunCancelled { reason, parent, .. } => {
                self.cancelled_by_parent.clone_from(parent);
                self.cancel_reason.clone_from(reason);
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
            Event::NodeStarted { step, attempt, .. } => self.start_node(plan, step, *attempt),
            Event::NodeCompleted {
                step,
                outputs,
                untaken,
            } => {
                let position = self.finish(plan, step)?;
                project(plan, position, outputs, &mut self.variables);
                self.nodes[position].phase = Phase::Completed;
                self.nodes[position].outputs = Some(outputs.clone());
                self.nodes[position].error = None;
                self.signal(plan, position, Signal::Success, untaken);
                Ok(())
            }
            Event::NodeFailed {
                step, error, untaken, ..
            } => {
                let position = self.finish(plan, step)?;
                self.nodes[position].phase = Phase::Failed(error.clone());
                self.nodes[position].outputs = None;
                self.nodes[position].describe(error);
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
            Event::NodeCancelled { step, .. } => {
                let position = self.finish(plan, step)?;
                self.nodes[position].phase = Phase::Cancelled;
                Ok(())
            }
            Event::NodeRetried { step, delay_ms, .. } => {
                let due = recorded.at.plus_millis(*delay_ms);
                self.active(plan, step)?.wait = Wait::Retry { due };
                Ok(())
            }
            Event::NodeDispatched {
                step,
                child,
                workflow,
            } => {
                self.active(plan, step)?.wait = Wait::Child {
                    run: child.clone(),
                    mirror: None,
                };
                self.children.push(Child {
                    run: child.clone(),
                    workflow: workflow.clone(),
                    step: step.clone(),
                    ended: false,
                });
                Ok(())
            }
            Event::InterruptRequested {
                step,
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
                    is_untrusted: recorded.is_untrusted,
                };
                self.active(plan, step)?.wait = Wait::Interrupt(Box::new(open));
                let position = plan
                    .position(&step.node)
                    .ok_or_else(|| illegal("interrupt", &step.node))?;
                self.waiting.push(position);
                Ok(())
            }
            Event::InterruptResolved { step, .. } => {
                let position = plan
                    .position(&step.node)
                    .ok_or_else(|| illegal("resolution", &step.node))?;
                let active = self.active(plan, step)?;
                if !matches!(active.wait, Wait::Interrupt(_)) {
                    return Err(illegal("resolution without interrupt", &step.node));
                }
                active.wait = Wait::Work;
                self.nodes[position].answered = true;
                self.waiting.retain(|&waiting| waiting != position);
                Ok(())
            }
            Event::NodeSuspended {
                step,
                interrupt,
                kind,
                child: Some(_),
            } => {
                let position = plan
                    .position(&step.node)
                    .ok_or_else(|| illegal("suspension", &step.node))?;
                let Wait::Child { mirror, .. } = &mut self.active(plan, step)?.wait else {
                    return Err(illegal("suspension without child", &step.node));
                };
                *mirror = Some((*kind, interrupt.clone()));
                if !self.waiting.contains(&position) {
                    self.waiting.push(position);
                }
                Ok(())
            }
            Event::NodeResumed { step, .. } => {
                let position = plan
                    .position(&step.node)
                    .ok_or_else(|| illegal("resumption", &step.node))?;
                if let Wait::Child { mirror, .. } = &mut self.active(plan, step)?.wait {
                    *mirror = None;
                    self.waiting.retain(|&waiting| waiting != position);
                }
                Ok(())
            }
            Event::ApprovalVoted {
                step,
                voter,
                action,
                feedback,
            } => {
                let Wait::Interrupt(open) = &mut self.active(plan, step)?.wait else {
                    return Err(illegal("vote without interrupt", &step.node));
                };
                let earlier = open.votes.iter().find(|vote| vote.voter == *voter);
                let n_votes = earlier.map_or(0, |vote| vote.n_votes) + 1;
                open.votes.retain(|vote| vote.voter != *voter);
                open.votes.push(Vote {
                    voter: voter.clone(),
                    action: *action,
                    words: feedback.as_deref().map(hash),
                    n_votes,
                });
                Ok(())
            }
            Event::VariableChanged {
                name, next, appends, ..
            } => {
                match self.variables.get_mut(name) {
                    Some(Value::Array(items)) if *appends => items.push(next.clone()),
                    _ if *appends => drop(self.variables.insert(name.clone(), vec![next.clone()].into())),
                    _ => drop(self.variables.insert(name.clone(), next.clone())),
                }
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
            Event::ArtifactCreated { step, artifact, .. } => {
                // What was streamed so far is in the artifact now.
                if let Ok(active) = self.active(plan, step) {
                    active.streamed = None;
                }
                self.artifacts.push(Artifact {
                    id: artifact.clone(),
                    seq: recorded.seq,
                });
                Ok(())
            }
            Event::ApprovalReceived { step, feedback, .. } => {
                self.active(plan, step)?;
                let position = plan
                    .position(&step.node)
                    .ok_or_else(|| illegal("decision", &step.node))?;
                // A rejection fails the node next, and its words belong to that failure.
                self.nodes[position].error = feedback
                    .as_ref()
                    .map(|words| Object::from_iter([("feedback".to_owned(), Value::String(words.clone()))]));
                Ok(())
            }
            Event::NodeSuspended {
                step, child: None, ..
            }
            | Event::ApprovalRequested { step, .. }
            | Event::ClarificationRequested { step, .. }
            | Event::ClarificationResolved { step, .. } => self.active(plan, step).map(drop),
            Event::OutputChunk {
                step, index, chunk, ..
            } => {
                let streamed = self.active(plan, step)?.streamed.get_or_insert_default();
                if streamed.n_pieces != *index {
                    return Err(illegal("piece out of turn", &step.node));
                }
                streamed.n_pieces += 1;
                streamed.text.push_str(chunk);
                Ok(())
            }
            Event::CapBreached { .. } => Ok(()),
        }
    }

    fn start(&mut self, plan: &Plan, started: &Arc<RunStarted>, at: Timestamp) -> Result<(), ApplyError> {
        if self.started.is_some() {
            return Err(ApplyError::Illegal("a second start".to_owned()));
        }
        for variable in plan.variables() {
            if let Some(value) = &variable.default_value {
                self.variables.insert(variable.name.clone(), value.clone());
            }
        }
        // What the parent mapped from a variable that was not set stays unset, whatever the default (RFC 0022).
        for name in started.parent.iter().flat_map(|parent| &parent.unset) {
            self.variables.remove(name);
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
                slots: vec![Slot::default(); node.forward.len()],
                ..NodeState::default()
            })
            .collect();
        self.started = Some(Arc::clone(started));
        self.started_at = Some(at);
        Ok(())
    }

    fn start_node(&mut self, plan: &Plan, step: &StepId, attempt: u32) -> Result<(), ApplyError> {
        let position = plan
            .position(&step.node)
            .ok_or_else(|| illegal("start", &step.node))?;
        let ready = self.readiness(plan, position);
        let state = self
            .nodes
            .get_mut(position)
            .ok_or_else(|| illegal("start before the run's", &step.node))?;
        if attempt > 0 {
            return match &mut state.phase {
                Phase::Active(active)
                    if active.ordinal == step.ordinal
                        && active.attempt + 1 == attempt
                        && matches!(active.wait, Wait::Retry { .. }) =>
                {
                    active.attempt = attempt;
                    active.wait = Wait::Work;
                    self.executions += 1;
                    Ok(())
                }
                _ => Err(illegal("retry of an idle node", &step.node)),
            };
        }
        if step.ordinal != state.next_ordinal || matches!(state.phase, Phase::Active(_)) {
            return Err(illegal("start out of turn", &step.node));
        }
        if ready == Readiness::Skip || !state.consume(ready) {
            return Err(illegal("start of a node that is not ready", &step.node));
        }
        self.executions += 1;
        state.next_ordinal += 1;
        state.phase = Phase::Active(Active {
            ordinal: step.ordinal,
            attempt: 0,
            wait: Wait::Work,
            streamed: None,
        });
        Ok(())
    }

    fn active(&mut self, plan: &Plan, step: &StepId) -> Result<&mut Active, ApplyError> {
        let position = plan
            .position(&step.node)
            .ok_or_else(|| illegal("event", &step.node))?;
        match self.nodes.get_mut(position).map(|state| &mut state.phase) {
            Some(Phase::Active(active)) if active.ordinal == step.ordinal => Ok(active),
            _ => Err(illegal("event of an inactive node", &step.node)),
        }
    }

    fn finish(&mut self, plan: &Plan, step: &StepId) -> Result<usize, ApplyError> {
        if let Wait::Child { run, .. } = &self.active(plan, step)?.wait {
            let run = run.clone();
            if let Some(child) = self.children.iter_mut().find(|child| child.run == run) {
                child.ended = true;
            }
        }
        let position = plan
            .position(&step.node)
            .ok_or_else(|| illegal("end", &step.node))?;
        self.waiting.retain(|&waiting| waiting != position);
        Ok(position)
    }
}

impl NodeState {
    /// Keeps what a failure says, with the feedback of the decision that caused it.
    fn describe(&mut self, failure: &Failure) {
        let decision = self.error.take().filter(|error| !error.contains_key("code"));
        let mut error = decision.unwrap_or_default();
        error.insert("code".to_owned(), Value::String(failure.code.clone()));
        error.insert("message".to_owned(), Value::String(failure.message.clone()));
        if let Some(reason) = &failure.reason {
            error.insert("reason".to_owned(), Value::String(reason.clone()));
        }
        self.error = Some(error);
    }
}

/// The hash of a voter's words.
pub(crate) fn hash(words: &str) -> ContentHash {
    ContentHash::of(words.as_bytes())
}

fn illegal(what: &str, node: &NodeId) -> ApplyError {
    ApplyError::Illegal(format!("{what} at node '{node}'"))
}
