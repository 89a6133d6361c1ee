//! Run state: the fold of a run's log, without what only its dialect knows.
//!
//! [`Run::apply`] is the only function that changes a run, live and in recovery. It refuses events that
//! cannot follow, so a log that folds is a legal one: sequence numbers are dense, nothing follows a terminal
//! event, and a node finishes only while it is active.
//!
//! The file is long because the fold is one match over every event, next to the state that it changes.

mod view;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Activity, ApprovalAction, ContentHash, CutAttempt, Dialect, DrainPolicy, EventRef, Failure, ForkMode,
    InterruptKind, Join, KernelEvent, NodeId, Object, Planned, PrincipalId, RecordedRef, RefusalDivergence,
    RunId, RunStarted, RunStatus, Seq, StepId, Timestamp, WorkflowId, event_size::size_of_event, provider,
};

pub use view::{Asked, OpenInterrupt, Streaming};

/// The key that marks untrusted content in documents.
pub const CONTENT_TRUST: &str = "contentTrust";
/// The value of that key.
pub const UNTRUSTED: &str = "untrusted";
/// Replaces a value that is sensitive wherever people see it.
pub const REDACTED: &str = "[REDACTED]";
/// The key, in the metadata of a run, that says where an imported log comes from. Only imports set it.
pub const IMPORTED: &str = "imported";

/// The version of the kernel's fold: grows whenever the state of a log is another one, or has another form.
pub const FOLD: u16 = 5;

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
    pub nodes: Vec<NodeState>,
    /// Indexes of nodes that wait for an answer, in the order in which they asked.
    pub waiting: Vec<usize>,
    pub executions: u32,
    /// The approximate size of the log in bytes.
    pub log_bytes: u64,
    pub paused: bool,
    /// Whether the pause is one that lets no call begin.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_stopped: bool,
    pub cancelling: Option<Cancel>,
    pub active_ms: u64,
    pub running_since: Option<Timestamp>,
    /// Present if the run is a fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked: Option<Forked>,
}

/// How far a fork is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Forked {
    /// Whether it goes on by itself.
    pub has_caught_up: bool,
    /// The event of the source from which a replay differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diverged_at: Option<Seq>,
}

/// An artifact; its content is stored in the event at `seq`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    pub id: String,
    pub seq: Seq,
}

impl Artifact {
    /// The node that created the artifact. The artifact's id is the node's id followed by the ordinal of the
    /// execution: see [`StepId::artifact`].
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
    /// Whether the child has ended and the parent has received that, or no longer waits for it.
    pub ended: bool,
    /// Whether the parent stopped waiting for the child before it learned how the child ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_left: bool,
    /// Whether the child belongs to the source of this branch, and the branch has no result of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_of_source: bool,
    /// The position in its set; `None` for a step's only child.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
}

impl Child {
    /// What the ids of the child's interrupts begin with in its parent: `step:0`, or `step:0.2` in a set.
    #[must_use]
    pub fn path(&self) -> String {
        match self.index {
            None => self.step.key(),
            Some(index) => format!("{}.{index}", self.step.key()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancel {
    pub reason: Option<String>,
    pub by: Option<PrincipalId>,
    pub parent: Option<RunId>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NodeState {
    pub next_ordinal: u32,
    pub phase: Phase,
    /// Whether this node, or a child at this node, ever asked anything.
    pub asked: bool,
    /// The event that its latest interrupt for events has got, if the event has an id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Box<TakenEvent>>,
}

/// An event that an interrupt has got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenEvent {
    pub ordinal: u32,
    pub number: u32,
    /// The hash of the event's id.
    pub id: ContentHash,
}

/// The hash of the id that an event has, in itself or next to it.
pub(crate) fn event_id(value: &Value) -> Option<ContentHash> {
    let inner = value.get("eventPayload").and_then(|event| event.get("eventId"));
    match value.get("eventId").or(inner)? {
        Value::String(id) if !id.is_empty() => Some(hash(id)),
        Value::Number(id) => Some(hash(&id.to_string())),
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    #[default]
    Idle,
    Active(Active),
    Completed,
    Failed(Failure),
    Skipped,
    Cancelled,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Active {
    pub ordinal: u32,
    pub attempt: u32,
    /// When its first attempt began.
    pub started_at: Timestamp,
    /// How many of its attempts a pause has cut.
    #[serde(default, skip_serializing_if = "crate::event::is_zero")]
    pub n_cut: u32,
    pub wait: Wait,
    /// How many interrupts it has opened.
    #[serde(default, skip_serializing_if = "crate::event::is_zero")]
    pub n_interrupts: u32,
    /// When its first attempt called out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub called_at: Option<Timestamp>,
    /// The text streamed so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streamed: Option<Box<Streamed>>,
    /// How many artifacts it has made.
    #[serde(default, skip_serializing_if = "crate::event::is_zero")]
    pub n_artifacts: u32,
    /// How many of its calls have ended, after which it went on.
    #[serde(default, skip_serializing_if = "crate::event::is_zero")]
    pub n_calls: u32,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Streamed {
    pub n_pieces: u32,
    pub text: String,
    /// Whether the last chunk has come.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_whole: bool,
}

/// What an active node waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// A timer of the current attempt.
    Work,
    /// The call of the current attempt.
    Effect(Box<Pending>),
    /// The next attempt.
    Retry { due: Timestamp },
    /// An answer.
    Interrupt(Box<Open>),
    /// Child runs.
    Children(Vec<Member>),
}

/// A call whose outcome a step waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pending {
    pub scheduled_at: Timestamp,
    /// When its worker was last heard of.
    pub heard_at: Timestamp,
    /// The type of the call.
    pub provider: String,
    /// Present once the peer has accepted the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<Box<Activity>>,
    /// When the call fails if it is still under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// How many questions the peer may ask, if that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_questions: Option<u64>,
    /// What the peer asks. The call goes on meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<Box<Open>>,
    /// The question that was answered last, as the peer names it, until the peer goes on; and when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered: Option<(String, Timestamp)>,
    /// How often the peer has accepted the call, or gone on with it in another way.
    #[serde(default, skip_serializing_if = "crate::event::is_zero")]
    pub n_accepted: u32,
    /// How often a worker has sent details.
    #[serde(default, skip_serializing_if = "crate::event::is_zero")]
    pub n_details: u32,
}

/// How long the peer of a call may go on asking what was answered. Then it has ignored the answer.
const IGNORED_AFTER_MS: u64 = 60_000;

impl Pending {
    /// Whether this question of the peer is open.
    #[must_use]
    pub fn asks(&self, key: &str) -> bool {
        let open = self.question.as_ref().and_then(|open| open.remote.as_deref());
        open == Some(key)
    }

    /// When this question of the peer was answered, if none was answered since.
    #[must_use]
    pub fn answered_at(&self, key: &str) -> Option<Timestamp> {
        let answered = self.answered.as_ref().filter(|(answered, _)| answered == key);
        answered.map(|(_, at)| *at)
    }

    /// Whether the answer to this question counts. A peer that has ignored it asks anew.
    #[must_use]
    pub fn has_answer(&self, key: &str, now: Timestamp) -> bool {
        let at = self.answered_at(key);
        at.is_some_and(|at| now.millis_since(at) < IGNORED_AFTER_MS)
    }

    /// Whether a sign of life would move the deadline enough to be worth an event: a quarter of the time that
    /// the worker may be silent.
    #[must_use]
    pub fn is_due_for_heartbeat(&self, now: Timestamp) -> bool {
        let activity = self.activity.as_ref();
        let heartbeat_ms = activity.and_then(|activity| activity.heartbeat_ms);
        heartbeat_ms.is_some_and(|ms| now.millis_since(self.heard_at) >= ms / 4)
    }

    /// The size of what a worker gets, in the units of a run's state.
    #[must_use]
    pub fn weight(&self) -> u64 {
        let activity = self.activity.as_ref();
        activity.map_or(0, |activity| crate::cost::of_value(&activity.input))
    }

    /// When the attempt fails if nothing more is heard of it.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        let activity = self.activity.as_ref();
        let heartbeat_ms = activity.and_then(|activity| activity.heartbeat_ms);
        let silent = heartbeat_ms.map(|ms| self.heard_at.plus_millis(ms));
        [self.timeout(), silent].into_iter().flatten().min()
    }

    /// When the attempt fails, whatever is heard of it.
    #[must_use]
    pub fn timeout(&self) -> Option<Timestamp> {
        let activity = self.activity.as_ref();
        let timeout_ms = activity.and_then(|activity| activity.timeout_ms);
        let timeout = timeout_ms.map(|ms| self.scheduled_at.plus_millis(ms));
        timeout.or(self.deadline)
    }
}

/// A child run that a step waits for, or has waited for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Member {
    pub run: RunId,
    /// The kind and id of the interrupt that the child has opened.
    pub mirror: Option<(InterruptKind, String)>,
    /// Present once the child has ended and its step waits for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Box<ChildEnd>>,
}

/// How a child of a set ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChildEnd {
    /// How many children of the set ended before it.
    pub order: usize,
    pub status: RunStatus,
    pub outputs: Object,
    /// The variables that the step asked for.
    pub report: Object,
    pub error: Option<Failure>,
    pub is_untrusted: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Open {
    pub kind: InterruptKind,
    /// The prompt, rendered as JSON.
    pub data: Value,
    pub requested_at: Timestamp,
    /// `None` if the interrupt has no timeout.
    pub deadline: Option<Timestamp>,
    /// How many interrupts the execution opened before.
    #[serde(default, skip_serializing_if = "crate::event::is_zero")]
    pub number: u32,
    /// What the peer of the step's call names its question by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
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
    pub words: Option<ContentHash>,
    /// How often this voter has voted.
    pub n_votes: u32,
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
            artifacts: Vec::new(),
            children: Vec::new(),
            outputs: None,
            error: None,
            cancelled_by_parent: None,
            cancel_reason: None,
            nodes: Vec::new(),
            waiting: Vec::new(),
            executions: 0,
            log_bytes: 0,
            paused: false,
            is_stopped: false,
            cancelling: None,
            active_ms: 0,
            running_since: None,
            forked: None,
        }
    }
}

impl Run {
    /// The limit of the log in bytes, if the log has reached it.
    #[must_use]
    pub fn full_log(&self) -> Option<u64> {
        let most = self.started.as_ref()?.limits.log_bytes;
        (self.log_bytes >= most).then_some(most)
    }

    /// Folds one event in, after its dialect has.
    ///
    /// # Errors
    /// The event cannot follow; the run and the state must not be used afterwards.
    pub fn apply<D: Dialect>(
        &mut self,
        state: &mut D::State,
        plan: &D::Plan,
        recorded: RecordedRef<'_, D::Event>,
    ) -> Result<(), ApplyError> {
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
            EventRef::Kernel(
                KernelEvent::RunStarted(_)
                    | KernelEvent::RunCancelled { .. }
                    | KernelEvent::RunPaused { .. }
                    | KernelEvent::RunResumed { .. }
            )
        );
        if self.started.is_none() && !begins {
            return Err(ApplyError::Illegal("an event before the start".to_owned()));
        }
        if let EventRef::Kernel(KernelEvent::RunStarted(started)) = recorded.event
            && started.dialect != D::NAME
        {
            let what = format!("a start in the dialect '{}'", started.dialect);
            return Err(ApplyError::Illegal(what));
        }
        D::apply(plan, self, state, recorded)?;
        let end = match recorded.event {
            EventRef::Kernel(event) => {
                self.step(plan, event, recorded.at, recorded.seq, recorded.is_untrusted)?;
                event.terminal()
            }
            EventRef::Dialect(_) => None,
        };
        self.head = self.head.next();
        self.log_bytes = self.log_bytes.saturating_add(size_of_event::<D>(recorded.event));
        self.updated_at = recorded.at;
        let status = self.derive_status(end);
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

    fn derive_status(&self, end: Option<RunStatus>) -> RunStatus {
        if let Some(end) = end {
            end
        } else if self.cancelling.is_some() {
            RunStatus::Cancelling
        } else if self.paused {
            RunStatus::Paused
        } else if self.started.is_none() {
            RunStatus::Pending
        } else {
            let kind = self
                .waiting
                .first()
                .and_then(|&position| self.nodes[position].asks());
            kind.map_or(RunStatus::Running, InterruptKind::waiting_status)
        }
    }

    fn step(
        &mut self,
        plan: &impl Planned,
        event: &KernelEvent,
        at: Timestamp,
        seq: Seq,
        is_untrusted: bool,
    ) -> Result<(), ApplyError> {
        match event {
            KernelEvent::RunStarted(started) => self.start(plan, started, at),
            KernelEvent::RunCompleted { outputs } => {
                self.outputs = Some(outputs.clone());
                Ok(())
            }
            KernelEvent::RunFailed { error, node } => {
                self.error = Some((error.clone(), node.clone()));
                Ok(())
            }
            KernelEvent::RunCancelled { reason, parent, .. } => {
                self.cancelled_by_parent.clone_from(parent);
                self.cancel_reason.clone_from(reason);
                Ok(())
            }
            KernelEvent::CancelRequested { reason, by, parent } => {
                self.cancelling = Some(Cancel {
                    reason: reason.clone(),
                    by: by.clone(),
                    parent: parent.clone(),
                });
                Ok(())
            }
            KernelEvent::RunPaused { drain, cut, .. } => {
                self.paused = true;
                self.is_stopped = *drain == DrainPolicy::Immediate;
                for CutAttempt { step, attempt } in cut {
                    let active = self.active(plan, step)?;
                    if active.attempt != *attempt || !active.may_be_cut() {
                        return Err(illegal("cut of what cannot be repeated", &step.node));
                    }
                    active.wait = Wait::Retry { due: at };
                    active.n_cut += 1;
                    // The next attempt counts in its place.
                    self.executions = self.executions.saturating_sub(1);
                }
                Ok(())
            }
            KernelEvent::RunResumed { .. } => {
                self.paused = false;
                self.is_stopped = false;
                Ok(())
            }
            KernelEvent::NodeStarted { step, attempt, .. } => self.start_node(plan, step, *attempt, at),
            KernelEvent::NodeCompleted { step, .. } => {
                let position = self.finish(plan, step, false)?;
                self.nodes[position].phase = Phase::Completed;
                Ok(())
            }
            KernelEvent::NodeFailed { step, error, .. } => {
                let position = self.finish(plan, step, false)?;
                self.nodes[position].phase = Phase::Failed(error.clone());
                Ok(())
            }
            KernelEvent::NodeSkipped { node, .. } => {
                let position = plan.position(node).ok_or_else(|| illegal("skip", node))?;
                let state = self.nodes.get_mut(position);
                let state = state.ok_or_else(|| illegal("skip before the start", node))?;
                if matches!(state.phase, Phase::Active(_)) {
                    return Err(illegal("skip of an active node", node));
                }
                state.phase = Phase::Skipped;
                Ok(())
            }
            KernelEvent::NodeCancelled { step, .. } => {
                let position = self.finish(plan, step, true)?;
                self.nodes[position].phase = Phase::Cancelled;
                Ok(())
            }
            KernelEvent::NodeRetried { step, delay_ms, .. } => {
                let due = at.plus_millis(*delay_ms);
                self.active(plan, step)?.wait = Wait::Retry { due };
                Ok(())
            }
            KernelEvent::NodeDispatched {
                step,
                child,
                workflow,
            } => {
                let policy = plan
                    .position(&step.node)
                    .and_then(|position| plan.children(position));
                let is_single = policy.is_none_or(|policy| policy.join == Join::Single);
                let member = Member {
                    run: child.clone(),
                    mirror: None,
                    end: None,
                };
                let n_before = match &mut self.active(plan, step)?.wait {
                    Wait::Children(members) => {
                        members.push(member);
                        members.len() - 1
                    }
                    wait => {
                        *wait = Wait::Children(vec![member]);
                        0
                    }
                };
                self.children.push(Child {
                    run: child.clone(),
                    workflow: workflow.clone(),
                    step: step.clone(),
                    ended: false,
                    is_left: false,
                    is_of_source: false,
                    index: (!is_single).then_some(n_before),
                });
                Ok(())
            }
            KernelEvent::ChildEnded {
                step,
                child,
                workflow: _,
                worker: _,
                is_handoff: _,
                status,
                outputs,
                report,
                error,
            } => {
                let Wait::Children(members) = &mut self.active(plan, step)?.wait else {
                    return Err(illegal("an end without children", &step.node));
                };
                let order = members.iter().filter(|member| member.end.is_some()).count();
                let running = members.iter_mut().filter(|member| member.end.is_none());
                let member = running.into_iter().find(|member| member.run == *child);
                let member = member.ok_or_else(|| illegal("the end of no child", &step.node))?;
                // One that is cancelled with its step may still ask.
                let asked = member.mirror.take().is_some();
                if asked && *status != RunStatus::Cancelled {
                    return Err(illegal("the end of a child that asks", &step.node));
                }
                member.end = Some(Box::new(ChildEnd {
                    order,
                    status: *status,
                    outputs: outputs.clone(),
                    report: report.clone(),
                    error: error.as_deref().cloned(),
                    is_untrusted,
                }));
                if let Some(child) = self.children.iter_mut().find(|known| known.run == *child) {
                    child.ended = true;
                }
                if asked
                    && let Some(position) = plan.position(&step.node)
                    && self.nodes[position].asks().is_none()
                {
                    self.waiting.retain(|&waiting| waiting != position);
                }
                Ok(())
            }
            KernelEvent::EffectScheduled {
                step,
                attempt,
                call,
                provider,
                activity,
                deadline,
                max_questions,
            } => {
                let active = self.active(plan, step)?;
                if !active.waits_for_nothing() || active.attempt != *attempt || active.n_calls != *call {
                    return Err(illegal("a call out of turn", &step.node));
                }
                active.called_at.get_or_insert(at);
                active.wait = Wait::Effect(Box::new(Pending {
                    scheduled_at: at,
                    heard_at: at,
                    provider: provider.clone(),
                    handle: None,
                    activity: activity.clone(),
                    deadline: *deadline,
                    max_questions: *max_questions,
                    question: None,
                    answered: None,
                    n_accepted: 0,
                    n_details: 0,
                }));
                Ok(())
            }
            KernelEvent::EffectAccepted {
                step,
                attempt,
                handle,
            } => {
                let pending = self.pending(plan, step, *attempt)?;
                pending.handle = Some(handle.clone());
                pending.n_accepted += 1;
                pending.answered = None;
                Ok(())
            }
            KernelEvent::EffectProgressed {
                step,
                attempt,
                details,
            } => {
                let pending = self.pending(plan, step, *attempt)?;
                pending.heard_at = at;
                pending.n_details += u32::from(!details.is_null());
                Ok(())
            }
            KernelEvent::EffectEnded {
                step, attempt, call, ..
            } => {
                self.pending(plan, step, *attempt)?;
                let active = self.active(plan, step)?;
                if active.n_calls != *call {
                    return Err(illegal("the end of another call", &step.node));
                }
                active.n_calls += 1;
                active.wait = Wait::Work;
                Ok(())
            }
            KernelEvent::InterruptRequested {
                step,
                kind,
                data,
                timeout_ms,
                number,
                remote,
            } => {
                let open = Open {
                    number: *number,
                    remote: remote.clone(),
                    kind: *kind,
                    data: data.clone(),
                    requested_at: at,
                    deadline: timeout_ms.map(|ms| at.plus_millis(ms)),
                    votes: Vec::new(),
                    is_untrusted,
                };
                let active = self.active(plan, step)?;
                if active.n_interrupts != *number {
                    return Err(illegal("interrupt out of turn", &step.node));
                }
                active.n_interrupts += 1;
                match &mut active.wait {
                    Wait::Effect(pending) => pending.question = Some(Box::new(open)),
                    wait => *wait = Wait::Interrupt(Box::new(open)),
                }
                let position = plan
                    .position(&step.node)
                    .ok_or_else(|| illegal("interrupt", &step.node))?;
                self.nodes[position].asked = true;
                self.waiting.push(position);
                Ok(())
            }
            KernelEvent::InterruptResolved {
                step,
                kind,
                value,
                by,
                number,
                action: _,
            } => {
                let position = plan
                    .position(&step.node)
                    .ok_or_else(|| illegal("resolution", &step.node))?;
                let active = self.active(plan, step)?;
                match &mut active.wait {
                    Wait::Interrupt(_) => active.wait = Wait::Work,
                    Wait::Effect(pending) if pending.question.is_some() => {
                        let question = pending.question.take();
                        // Without an answer the peer may ask it again.
                        let question = question.filter(|_| by.is_some());
                        pending.answered = question.and_then(|question| Some((question.remote?, at)));
                    }
                    Wait::Work | Wait::Effect(_) | Wait::Retry { .. } | Wait::Children(_) => {
                        return Err(illegal("resolution without interrupt", &step.node));
                    }
                }
                if *kind == InterruptKind::ExternalEvent {
                    let id = value.as_ref().and_then(event_id);
                    let taken = |id| TakenEvent {
                        ordinal: step.ordinal,
                        number: *number,
                        id,
                    };
                    self.nodes[position].event = id.map(taken).map(Box::new);
                }
                self.waiting.retain(|&waiting| waiting != position);
                Ok(())
            }
            KernelEvent::NodeSuspended {
                step,
                interrupt,
                kind,
                child: Some(child),
                details: _,
            } => {
                let position = plan
                    .position(&step.node)
                    .ok_or_else(|| illegal("suspension", &step.node))?;
                let member = self.active(plan, step)?.member(child);
                let member = member.ok_or_else(|| illegal("suspension without child", &step.node))?;
                member.mirror = Some((*kind, interrupt.clone()));
                self.nodes[position].asked = true;
                if !self.waiting.contains(&position) {
                    self.waiting.push(position);
                }
                Ok(())
            }
            KernelEvent::NodeResumed { step, interrupt, .. } => {
                let position = plan
                    .position(&step.node)
                    .ok_or_else(|| illegal("resumption", &step.node))?;
                if let Wait::Children(members) = &mut self.active(plan, step)?.wait {
                    for member in members {
                        member.mirror.take_if(|(_, id)| id == interrupt);
                    }
                    if self.nodes[position].asks().is_none() {
                        self.waiting.retain(|&waiting| waiting != position);
                    }
                }
                Ok(())
            }
            KernelEvent::ApprovalVoted {
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
            KernelEvent::ArtifactCreated { step, artifact, .. } => {
                // The artifact now contains what was streamed so far.
                if let Ok(active) = self.active(plan, step) {
                    active.streamed = None;
                    active.n_artifacts += 1;
                }
                self.artifacts.push(Artifact {
                    id: artifact.clone(),
                    seq,
                });
                Ok(())
            }
            KernelEvent::NodeSuspended {
                step, child: None, ..
            }
            | KernelEvent::ApprovalRequested { step, .. }
            | KernelEvent::ApprovalReceived { step, .. }
            | KernelEvent::ClarificationRequested { step, .. }
            | KernelEvent::ClarificationResolved { step, .. }
            | KernelEvent::MemoryCompacted { step, .. } => self.active(plan, step).map(drop),
            KernelEvent::MemoryWritten(written) => self.active(plan, &written.step).map(drop),
            KernelEvent::OutputChunk {
                step,
                index,
                chunk,
                is_last,
                number: _,
                end: _,
            } => {
                let streamed = self.active(plan, step)?.streamed.get_or_insert_default();
                if *index == 0 {
                    **streamed = Streamed::default();
                }
                if streamed.n_pieces != *index {
                    return Err(illegal("piece out of turn", &step.node));
                }
                streamed.n_pieces += 1;
                streamed.text.push_str(chunk);
                streamed.is_whole = *is_last;
                Ok(())
            }
            KernelEvent::CapBreached { .. } => Ok(()),
            KernelEvent::ReplayDiverged { source, at, .. }
            | KernelEvent::RefusalDiverged {
                source,
                divergence: RefusalDivergence { at, .. },
            } => {
                // Of a source that was a replay itself, the event is history.
                if self.fork().is_some_and(|fork| fork.source == *source)
                    && let Some(forked) = &mut self.forked
                {
                    forked.diverged_at = Some(*at);
                }
                Ok(())
            }
            KernelEvent::ForkResumed {
                depth, calls_again, ..
            } => {
                self.resume_fork(plan, *depth, *calls_again, at);
                Ok(())
            }
        }
    }

    /// Continues a fork as if no time had passed since the last event, which may be days old.
    fn resume_fork(&mut self, plan: &impl Planned, depth: u32, calls_again: bool, at: Timestamp) {
        let is_own = self.fork().is_some_and(|fork| fork.depth == depth);
        if let Some(forked) = self.forked.as_mut().filter(|_| is_own) {
            forked.has_caught_up = true;
        }
        let gap = at.millis_since(self.updated_at);
        self.running_since = self.running_since.map(|since| since.plus_millis(gap));
        self.paused = false;
        self.is_stopped = false;
        let mut dropped = HashSet::new();
        for (position, node) in self.nodes.iter_mut().enumerate() {
            let Phase::Active(active) = &mut node.phase else {
                continue;
            };
            match &mut active.wait {
                Wait::Retry { due } => {
                    *due = due.plus_millis(gap);
                    active.started_at = active.started_at.plus_millis(gap);
                }
                Wait::Interrupt(open) => {
                    open.deadline = open.deadline.map(|deadline| deadline.plus_millis(gap));
                }
                Wait::Work => {
                    active.streamed = None;
                    active.started_at = at;
                }
                Wait::Effect(_) | Wait::Children(_) if calls_again => {
                    let mut kept = Vec::new();
                    if let Wait::Children(members) = std::mem::replace(&mut active.wait, Wait::Work) {
                        // A set that the kernel judges begins anew as a whole.
                        let policy = plan.children(position);
                        let keeps_ended = policy.is_some_and(|policy| policy.join == Join::Own);
                        for member in members {
                            if keeps_ended && member.end.is_some() {
                                kept.push(member);
                            } else {
                                dropped.insert(member.run);
                            }
                        }
                    }
                    if !kept.is_empty() {
                        active.wait = Wait::Children(kept);
                    }
                    active.called_at = None;
                    active.streamed = None;
                    self.waiting.retain(|&waiting| waiting != position);
                }
                Wait::Effect(_) | Wait::Children(_) => {}
            }
        }
        if calls_again {
            for child in &mut self.children {
                if child.is_left || dropped.contains(&child.run) {
                    child.ended = true;
                    child.is_of_source = true;
                }
            }
        }
    }

    fn start(
        &mut self,
        plan: &impl Planned,
        started: &Arc<RunStarted>,
        at: Timestamp,
    ) -> Result<(), ApplyError> {
        if self.started.is_some() {
            return Err(ApplyError::Illegal("a second start".to_owned()));
        }
        self.nodes = (0..plan.n_nodes()).map(|_| NodeState::default()).collect();
        self.forked = started.fork.as_ref().map(|fork| Forked {
            // A branch from the first event on has nothing to catch up with.
            has_caught_up: fork.mode == ForkMode::Branch && fork.from == Seq(0),
            diverged_at: None,
        });
        self.started = Some(Arc::clone(started));
        self.started_at = Some(at);
        Ok(())
    }

    fn start_node(
        &mut self,
        plan: &impl Planned,
        step: &StepId,
        attempt: u32,
        at: Timestamp,
    ) -> Result<(), ApplyError> {
        let position = plan
            .position(&step.node)
            .ok_or_else(|| illegal("start", &step.node))?;
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
                Phase::Idle
                | Phase::Active(_)
                | Phase::Completed
                | Phase::Failed(_)
                | Phase::Skipped
                | Phase::Cancelled => Err(illegal("retry of an idle node", &step.node)),
            };
        }
        if step.ordinal != state.next_ordinal || matches!(state.phase, Phase::Active(_)) {
            return Err(illegal("start out of turn", &step.node));
        }
        self.executions += 1;
        state.next_ordinal += 1;
        state.phase = Phase::Active(Active {
            ordinal: step.ordinal,
            attempt: 0,
            started_at: at,
            n_cut: 0,
            wait: Wait::Work,
            n_interrupts: 0,
            called_at: None,
            streamed: None,
            n_artifacts: 0,
            n_calls: 0,
        });
        Ok(())
    }

    fn active(&mut self, plan: &impl Planned, step: &StepId) -> Result<&mut Active, ApplyError> {
        let position = plan
            .position(&step.node)
            .ok_or_else(|| illegal("event", &step.node))?;
        match self.nodes.get_mut(position).map(|state| &mut state.phase) {
            Some(Phase::Active(active)) if active.ordinal == step.ordinal => Ok(active),
            _ => Err(illegal("event of an inactive node", &step.node)),
        }
    }

    /// The call of an attempt that is under way.
    fn pending(
        &mut self,
        plan: &impl Planned,
        step: &StepId,
        attempt: u32,
    ) -> Result<&mut Pending, ApplyError> {
        match self.active(plan, step)? {
            Active {
                attempt: current,
                wait: Wait::Effect(pending),
                ..
            } if *current == attempt => Ok(pending),
            _ => Err(illegal("news of no call", &step.node)),
        }
    }

    fn finish(
        &mut self,
        plan: &impl Planned,
        step: &StepId,
        is_cancelled: bool,
    ) -> Result<usize, ApplyError> {
        if let Wait::Children(members) = &self.active(plan, step)?.wait {
            let policy = plan
                .position(&step.node)
                .and_then(|position| plan.children(position));
            // The end of an only child is that of its step.
            let ends_with_step = !is_cancelled && policy.is_none_or(|policy| policy.join == Join::Single);
            let members: HashMap<_, _> = members
                .iter()
                .map(|member| (member.run.clone(), member.end.is_some() || ends_with_step))
                .collect();
            // The latest first: a run may have many children that ended long ago.
            let mut left = members.len();
            for child in self.children.iter_mut().rev() {
                if let Some(has_ended) = members.get(&child.run) {
                    child.ended = true;
                    child.is_left = !has_ended;
                    left -= 1;
                }
                if left == 0 {
                    break;
                }
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
    /// The kind of the first interrupt that is open here or in a child.
    /// Whether the node waits for an answer to a question of its own.
    #[must_use]
    pub const fn is_asking(&self) -> bool {
        matches!(
            self.phase,
            Phase::Active(Active {
                wait: Wait::Interrupt(_),
                ..
            })
        )
    }

    fn asks(&self) -> Option<InterruptKind> {
        let Phase::Active(active) = &self.phase else {
            return None;
        };
        match &active.wait {
            Wait::Interrupt(open) => Some(open.kind),
            Wait::Children(members) => members
                .iter()
                .find_map(|member| member.mirror.as_ref().map(|(kind, _)| *kind)),
            Wait::Effect(pending) => pending.question.as_ref().map(|open| open.kind),
            Wait::Work | Wait::Retry { .. } => None,
        }
    }
}

impl Active {
    /// How many attempts it has made, without those that a pause has cut.
    #[must_use]
    pub const fn n_attempts(&self) -> u32 {
        (self.attempt + 1).saturating_sub(self.n_cut)
    }

    /// Whether a pause may cut the current attempt. It may cut a timer, and a call that the next attempt can repeat.
    pub(crate) fn may_be_cut(&self) -> bool {
        match &self.wait {
            Wait::Work => true,
            Wait::Effect(pending) => pending.handle.is_none() && provider::may_be_cut(&pending.provider),
            Wait::Retry { .. } | Wait::Interrupt(_) | Wait::Children(_) => false,
        }
    }

    /// Whether nothing from outside is to come: there is no wait, or all children have ended that there was one for.
    #[must_use]
    pub fn waits_for_nothing(&self) -> bool {
        match &self.wait {
            Wait::Work => true,
            Wait::Children(members) => members.iter().all(|member| member.end.is_some()),
            Wait::Effect(_) | Wait::Retry { .. } | Wait::Interrupt(_) => false,
        }
    }

    /// The child with this id that the step waits for.
    fn member(&mut self, child: &RunId) -> Option<&mut Member> {
        match &mut self.wait {
            Wait::Children(members) => members.iter_mut().find(|member| member.run == *child),
            Wait::Work | Wait::Effect(_) | Wait::Retry { .. } | Wait::Interrupt(_) => None,
        }
    }
}

/// Whether the fields mark themselves as untrusted.
#[must_use]
pub fn says_untrusted(fields: &Object) -> bool {
    fields.get(CONTENT_TRUST).and_then(Value::as_str) == Some(UNTRUSTED)
}

impl KernelEvent {
    /// Whether the event contains untrusted content, as far as it says so itself. `is_outside`: it records what came from
    /// outside.
    #[must_use]
    pub fn comes_from_outside(&self, is_outside: bool) -> bool {
        if let Self::RunStarted(started) = self {
            return started.is_untrusted();
        }
        let Self::InterruptRequested { data, .. } = self else {
            return is_outside;
        };
        is_outside || data.as_object().is_some_and(says_untrusted)
    }
}

impl RunStarted {
    /// Returns `true` if the run started with untrusted content.
    #[must_use]
    pub fn is_untrusted(&self) -> bool {
        says_untrusted(&self.metadata)
    }
}

pub(crate) fn hash(words: &str) -> ContentHash {
    ContentHash::of(words.as_bytes())
}

/// The error for an event that cannot follow at a node.
#[must_use]
pub fn illegal(what: &str, node: &NodeId) -> ApplyError {
    ApplyError::Illegal(format!("{what} at node '{node}'"))
}
