//! Run state: the fold of a run's log.
//!
//! [`Run::apply`] is the only function that changes a run, live and in recovery. It refuses events that
//! cannot follow, so a log that folds is a legal one: sequence numbers are dense, nothing follows a terminal
//! event, and a node finishes only while it is active.
//!
//! The file is long because the fold is one match over every event, next to the state that it changes.

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

/// The state of a run, derived from its log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The number of events folded in.
    pub head: Seq,
    pub status: RunStatus,
    pub started: Option<Arc<RunStarted>>,
    pub started_at: Option<Timestamp>,
    /// Time of the last event.
    pub updated_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub variables: Object,
    pub channels: Object,
    /// Oldest first.
    pub artifacts: Vec<Artifact>,
    /// Oldest first.
    pub children: Vec<Child>,
    pub outputs: Option<Object>,
    /// The failure, and the node that failed.
    pub error: Option<(Failure, Option<NodeId>)>,
    /// The run whose cancel cascaded to this one.
    pub cancelled_by_parent: Option<RunId>,
    /// The reason given with the cancel; `None` until the run is cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
    #[serde(default, skip_serializing_if = "Untrusted::is_empty")]
    pub untrusted: Untrusted,
    pub(crate) nodes: Vec<NodeState>,
    /// Indexes of nodes that wait for an answer, in the order in which they asked.
    pub(crate) waiting: Vec<usize>,
    pub(crate) executions: u32,
    pub(crate) paused: bool,
    pub(crate) cancelling: Option<Cancel>,
    pub(crate) active_ms: u64,
    pub(crate) running_since: Option<Timestamp>,
}

/// An artifact; its content is stored in the event at `seq`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    pub id: String,
    pub seq: Seq,
}

impl Artifact {
    /// The node that created the artifact. The artifact's id is the node's id followed by the ordinal of the
    /// execution.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        self.id.rsplit_once('-').map(|(node, _)| node)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Child {
    pub run: RunId,
    pub workflow: WorkflowId,
    /// The execution that created it.
    pub step: StepId,
    /// Whether the child has ended and the parent has received that.
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
    /// The signals of the incoming forward edges, in edge order.
    pub(crate) slots: Vec<Slot>,
    /// Whether a node without forward edges has used its single start.
    pub(crate) fired: bool,
    /// Back-edge triggers not yet consumed.
    pub(crate) back: u32,
    pub(crate) outputs: Option<Object>,
    /// The latest failure as shown to expressions: `code`, `message` and a reviewer's `feedback`. Connections
    /// do not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<Object>,
    /// Whether any interrupt of this node was ever answered.
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
    /// The text streamed so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) streamed: Option<Box<Streamed>>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Streamed {
    pub(crate) n_pieces: u32,
    pub(crate) text: String,
}

/// What an active node waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Wait {
    /// A timer or an effect of the current attempt.
    Work,
    /// The next attempt.
    Retry { due: Timestamp },
    /// An answer.
    Interrupt(Box<Open>),
    /// A child run.
    Child {
        run: RunId,
        mirror: Option<(InterruptKind, String)>,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Open {
    pub kind: InterruptKind,
    /// The prompt, rendered as JSON.
    pub data: Value,
    pub requested_at: Timestamp,
    /// `None` if the interrupt has no timeout.
    pub deadline: Option<Timestamp>,
    /// The latest vote of each voter.
    pub votes: Vec<Vote>,
    /// Whether the prompt was rendered while the run held untrusted content.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_untrusted: bool,
}

/// The latest vote of one voter at a gate that requires several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    pub voter: String,
    pub action: ApprovalAction,
    /// The hash of the voter's comment.
    pub(crate) words: Option<ContentHash>,
    /// How often this voter has voted.
    pub(crate) n_votes: u32,
}

/// Why an event cannot follow. A log with such an event was corrupted or written by a bug.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The event's sequence number is not the head of the log.
    #[error("apply event {found} to a log of {head}")]
    Gap {
        /// The number of events folded in.
        head: Seq,
        /// The event's sequence number.
        found: Seq,
    },
    #[error("apply an event after the terminal one")]
    AfterTerminal,
    /// The event requires a state that the run is not in.
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
    /// The `previous` value for an event that changes the variable. A `null` is left out: stored, it would
    /// deserialize as `None`.
    pub(crate) fn previous(&self, name: &str) -> Option<Value> {
        let value = self.variables.get(name);
        value.filter(|value| !value.is_null()).cloned()
    }

    /// Folds events into this run.
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
    /// The event cannot follow; the run must not be used afterwards.
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
        // A child can be cancelled or quarantined before it receives its start message.
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
                // The artifact now contains what was streamed so far.
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
                // A rejection fails the node next, and its comment belongs to that failure.
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
        // A variable stays unset despite its default if the parent mapped it from an unset variable
        // (RFC 0022).
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
    /// Stores the failure's fields, and keeps the feedback of the decision that caused it.
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

pub(crate) fn hash(words: &str) -> ContentHash {
    ContentHash::of(words.as_bytes())
}

fn illegal(what: &str, node: &NodeId) -> ApplyError {
    ApplyError::Illegal(format!("{what} at node '{node}'"))
}
