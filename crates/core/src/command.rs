//! What a run can be told, and what it answers.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    DrainPolicy, Entropy, Failure, InterruptKind, Membership, Object, Origin, Parent, Plan, PrincipalId,
    Recorded, Run, RunId, RunStarted, RunStatus, Seq, StepId, TenantId, Timestamp, WorkflowId,
    measure::{size_of, size_of_object},
};

/// What a run is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Begin.
    Start(Box<StartRun>),
    /// End early.
    Cancel {
        /// Why.
        reason: Option<String>,
        /// Who asks.
        by: Option<PrincipalId>,
    },
    /// Start nothing new.
    Pause {
        /// Why.
        reason: Option<String>,
        /// What happens to running nodes.
        drain: DrainPolicy,
    },
    /// Go on.
    Resume {
        /// Why.
        reason: Option<String>,
    },
    /// An answer to an interrupt.
    Resolve(Resolve),
    /// Sets variables from outside; only a seam of conformance mode does.
    SetVariables(Object),
    /// A timer fired.
    Timer(Timer),
    /// An effect's attempt ended.
    Effect {
        /// Which execution.
        step: StepId,
        /// Which attempt.
        attempt: u32,
        /// Its outputs, or what went wrong.
        outcome: Result<Object, Failure>,
        /// How long the peer asks to be left alone, in milliseconds. Only a failure that is retried heeds it.
        retry_after_ms: Option<u64>,
    },
    /// What other runs told this one.
    RunMessages(Vec<RunMessage>),
}

impl Command {
    /// Roughly how many bytes it carries.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Start(start) => start.size(),
            Self::Resolve(resolve) => size_of(&resolve.value),
            Self::SetVariables(variables) => size_of_object(variables),
            Self::Effect { outcome, .. } => outcome.as_ref().map_or(0, size_of_object),
            Self::RunMessages(messages) => messages.iter().map(RunMessage::size).sum(),
            Self::Cancel { .. } | Self::Pause { .. } | Self::Resume { .. } | Self::Timer(_) => 0,
        }
    }
}

/// How to begin a run; the workflow is the plan's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartRun {
    /// The owner.
    pub tenant: TenantId,
    /// Who starts it.
    pub principal: PrincipalId,
    /// Through which face.
    pub origin: Origin,
    /// What it is given.
    pub inputs: Object,
    /// Per-run overrides.
    pub configurable: Object,
    /// Labels.
    pub tags: Vec<String>,
    /// Kept with it.
    pub metadata: Object,
    /// The A2A context.
    pub context: Option<String>,
    /// W3C trace context of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Where it belongs.
    pub parent: Option<Parent>,
    /// The host's bounds; a run may ask for tighter ones.
    pub bounds: HostBounds,
}

impl StartRun {
    fn size(&self) -> usize {
        size_of_object(&self.inputs) + size_of_object(&self.metadata)
    }

    /// How to begin a run once more that is begun already but nowhere durable.
    #[must_use]
    pub fn again(started: &RunStarted, bounds: HostBounds) -> Self {
        let RunStarted {
            workflow: _,
            version: _,
            tenant,
            principal,
            origin,
            inputs,
            configurable,
            tags,
            metadata,
            context,
            trace,
            parent,
            limits: _,
        } = started.clone();
        Self {
            tenant,
            principal,
            origin,
            inputs,
            configurable,
            tags,
            metadata,
            context,
            trace,
            parent,
            bounds,
        }
    }
}

/// Bounds a host sets for every run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostBounds {
    /// Node executions.
    pub node_executions: u32,
    /// Milliseconds, if bounded.
    pub run_duration_ms: Option<u64>,
}

/// An answer to an interrupt.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolve {
    /// The node that waits.
    pub node: crate::NodeId,
    /// Only this execution of it; `None` takes the open one.
    pub ordinal: Option<u32>,
    /// Only the interrupt of this id, as the run shows it that is told; `None` takes the open one.
    pub interrupt: Option<String>,
    /// The answer.
    pub value: Value,
    /// Who answers.
    pub by: PrincipalId,
    /// In whose name a vote counts, if not `by`'s.
    pub voter: Option<String>,
    /// By what right.
    pub authority: Authority,
    /// Whether the answer is content from outside that nobody here vouches for: what becomes of it is marked
    /// `contentTrust: untrusted` then.
    pub is_untrusted: bool,
}

impl Resolve {
    /// The execution that the answer is for; `None` if any is right.
    ///
    /// # Errors
    /// The id is of no interrupt of the node.
    pub(crate) fn wanted(&self) -> Result<Option<u32>, Refusal> {
        let Some(id) = &self.interrupt else {
            return Ok(self.ordinal);
        };
        let rest = id.strip_prefix(self.node.as_str());
        let ordinal = rest.and_then(|rest| rest.strip_prefix(':')?.parse().ok());
        let ordinal: u32 = ordinal.ok_or(Refusal::NoInterrupt)?;
        match self.ordinal {
            Some(other) if other != ordinal => Err(Refusal::NoInterrupt),
            Some(_) | None => Ok(Some(ordinal)),
        }
    }
}

/// By what right somebody answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authority {
    /// By a credential, whose holder has roles and groups.
    Credential(Membership),
    /// By a token alone. It speaks for a principal, who may be out of reach by now.
    Token {
        /// Whether a role or group of the principal was among those the gate names when the token was made.
        is_member: bool,
    },
}

impl Default for Authority {
    fn default() -> Self {
        Self::Credential(Membership::default())
    }
}

/// A timer by meaning; its text form is its key in the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Timer {
    /// A delay node is over.
    Delay(StepId),
    /// The next attempt is due.
    Retry(StepId, u32),
    /// An interrupt's time is up.
    Interrupt(StepId),
    /// The run's time is up.
    RunDuration,
    /// A decision was cut off; go on.
    Continue,
}

impl Timer {
    /// The key in the store.
    #[must_use]
    pub fn key(&self) -> String {
        match self {
            Self::Delay(step) => format!("delay:{}:{}", step.ordinal, step.node),
            Self::Retry(step, attempt) => format!("retry:{}:{attempt}:{}", step.ordinal, step.node),
            Self::Interrupt(step) => format!("interrupt:{}:{}", step.ordinal, step.node),
            Self::RunDuration => "run-duration".to_owned(),
            Self::Continue => "continue".to_owned(),
        }
    }

    /// Reads a key.
    #[must_use]
    pub fn parse(key: &str) -> Option<Self> {
        let step = |ordinal: &str, node: &str| {
            Some(StepId {
                node: crate::NodeId::parse(node).ok()?,
                ordinal: ordinal.parse().ok()?,
            })
        };
        let (kind, rest) = key.split_once(':').unwrap_or((key, ""));
        match kind {
            "delay" => rest
                .split_once(':')
                .and_then(|(o, n)| step(o, n))
                .map(Self::Delay),
            "interrupt" => rest
                .split_once(':')
                .and_then(|(o, n)| step(o, n))
                .map(Self::Interrupt),
            "retry" => {
                let (ordinal, rest) = rest.split_once(':')?;
                let (attempt, node) = rest.split_once(':')?;
                Some(Self::Retry(step(ordinal, node)?, attempt.parse().ok()?))
            }
            "run-duration" => Some(Self::RunDuration),
            "continue" => Some(Self::Continue),
            _ => None,
        }
    }
}

/// What one run tells another; stored as a row of the target's inbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunMessage {
    /// To a child: begin.
    Start(Box<StartRun>),
    /// To a child: the parent was cancelled or failed.
    ParentEnded {
        /// The parent.
        parent: RunId,
    },
    /// To a parent: the child waits for an answer.
    ChildWaiting {
        /// The execution that created the child.
        step: StepId,
        /// What is asked.
        kind: InterruptKind,
        /// The child's interrupt.
        interrupt: String,
    },
    /// To a parent: the child waits no longer.
    ChildResumed {
        /// The execution that created the child.
        step: StepId,
    },
    /// To a parent: the child has ended.
    ChildEnded {
        /// The execution that created the child.
        step: StepId,
        /// How.
        status: RunStatus,
        /// Its outputs.
        outputs: Object,
        /// The variables the parent asked for, where the child has them.
        report: Object,
        /// Why it failed.
        error: Option<Failure>,
        /// Whether it held content from outside.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_untrusted: bool,
    },
}

impl RunMessage {
    fn size(&self) -> usize {
        match self {
            Self::Start(start) => start.size(),
            Self::ChildEnded { outputs, report, .. } => size_of_object(outputs) + size_of_object(report),
            Self::ParentEnded { .. } | Self::ChildWaiting { .. } | Self::ChildResumed { .. } => 0,
        }
    }
}

/// What a decision may know besides the run, the plan and the command.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The time.
    pub now: Timestamp,
    /// Randomness of this decision.
    pub entropy: Entropy,
    /// The run's id.
    pub run: &'a RunId,
    /// The workflows of its tenant.
    pub catalog: &'a dyn Catalog,
}

/// Looks up the current version of a workflow.
pub trait Catalog: std::fmt::Debug + Sync {
    /// The current plan, if the workflow exists and may be started.
    fn current(&self, workflow: &WorkflowId) -> Option<Arc<Plan>>;

    /// Whether the tree of runs below a root may grow by one.
    fn admits_child(&self, _root: &RunId) -> bool {
        true
    }
}

/// A decision: what to commit, and what to do once it is. One without events can still clear timers and carry
/// run messages, and is to be committed like any other.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The run after the events.
    pub run: Run,
    /// What happened.
    pub events: Vec<Recorded>,
    /// Effects to begin.
    pub effects: Vec<Effect>,
    /// Effects that are over: (step, attempt).
    pub settled: Vec<(StepId, u32)>,
    /// Timers to set.
    pub timers_set: Vec<(Timer, Timestamp)>,
    /// Timers to clear.
    pub timers_cleared: Vec<Timer>,
    /// Children to create.
    pub children: Vec<NewChild>,
    /// What other runs are told: (target, event that says so, what).
    pub messages: Vec<(RunId, Seq, RunMessage)>,
    /// How many of the run messages it was asked about it took in; the others are to be told again.
    pub heard: usize,
}

/// An effect to begin.
#[derive(Debug, Clone, PartialEq)]
pub struct Effect {
    /// Which execution.
    pub step: StepId,
    /// Which attempt.
    pub attempt: u32,
    /// What to do.
    pub call: Call,
}

/// What an effect does.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// An HTTP request.
    Http {
        /// Upper-case method.
        method: String,
        /// Absolute URL.
        url: String,
        /// Header fields.
        headers: Vec<(String, String)>,
        /// Body, as JSON text.
        body: Option<String>,
        /// Time limit of the attempt.
        timeout_ms: u64,
    },
    /// The conformance suite's side effect.
    SideEffect {
        /// What to record.
        payload: Value,
    },
}

/// A child to create.
#[derive(Debug, Clone, PartialEq)]
pub struct NewChild {
    /// Its id.
    pub run: RunId,
    /// What it runs.
    pub workflow: WorkflowId,
    /// The version it starts with.
    pub version: crate::ContentHash,
    /// The node of the parent.
    pub node: crate::NodeId,
    /// How it begins.
    pub start: StartRun,
    /// The event of the parent that creates it.
    pub dispatched: Seq,
}

/// Why a command was not followed; the run is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// What the run was given does not fit the workflow.
    #[error("start the run: {field}: {rule}")]
    InvalidInput {
        /// Which part.
        field: String,
        /// The rule it breaks.
        rule: String,
    },
    /// A per-run bound is outside what the host allows.
    #[error("start the run: configurable.{key} must be between {min} and {max}")]
    OutOfBounds {
        /// Which.
        key: &'static str,
        /// What was asked for.
        value: Value,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// The run has ended.
    #[error("act on a run that is {}", .0.as_str())]
    Terminal(RunStatus),
    /// The run cannot be paused now.
    #[error("pause a run that is {}", .0.as_str())]
    NotPausable(RunStatus),
    /// The run is not paused.
    #[error("resume a run that is {}", .0.as_str())]
    NotPaused(RunStatus),
    /// No such interrupt, ever.
    #[error("find an open interrupt at the node")]
    NoInterrupt,
    /// The interrupt has its answer.
    #[error("answer an interrupt that was already resolved")]
    AlreadyResolved,
    /// The interrupt went with a cancelled run.
    #[error("answer an interrupt of a cancelled run")]
    InterruptCancelled,
    /// The interrupt went with the parent's cancel.
    #[error("answer an interrupt that a parent's cancel closed")]
    InterruptGone,
    /// The answer does not fit the question.
    #[error("accept the answer: {0}")]
    InvalidAnswer(String),
    /// The answer does not match the correlation; the interrupt stays open.
    #[error("match the event: {0}")]
    NoMatch(String),
    /// Whoever answers may not.
    #[error("accept the answer: {0}")]
    NotAllowed(&'static str),
    /// The command is about something that is over; drop it.
    #[error("act on an execution that is over")]
    Stale,
    /// The run has not begun, or has already.
    #[error("act on a run in this state")]
    WrongState,
}
