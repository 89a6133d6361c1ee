//! Commands that a run accepts, and the decisions and refusals that answer them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    AnswerEnd, Call, Dialect, DrainPolicy, Entropy, Failure, Fork, InterruptKind, Membership, NodeId, Object,
    Origin, Parent, PrincipalId, Recorded, Run, RunId, RunStarted, RunStatus, Seq, Startable, StepId,
    TenantId, Timestamp, TraceContext, WorkflowId,
    measure::{size_of, size_of_object},
};

#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    Start(Box<StartRun>),
    /// Starts a run as a fork of another one.
    Fork(Box<StartFork>),
    Cancel {
        reason: Option<String>,
        by: Option<PrincipalId>,
    },
    /// Start no further nodes.
    Pause {
        reason: Option<String>,
        /// How to treat active nodes.
        drain: DrainPolicy,
    },
    Resume {
        reason: Option<String>,
    },
    /// Answers an interrupt.
    Resolve(Resolve),
    /// Sets variables from outside the run; only the conformance test hooks do so.
    SetVariables(Object),
    Timer(Timer),
    /// An attempt of an effect ended.
    Effect {
        step: StepId,
        attempt: u32,
        outcome: Result<Object, Failure>,
        /// The backoff in milliseconds that the peer requested. Applies only if the failure is retried.
        retry_after_ms: Option<u64>,
    },
    /// Whoever performs the call of an attempt has cancelled it, and with it the run.
    EffectCancelled {
        step: StepId,
        attempt: u32,
        reason: String,
    },
    /// This host gives up the call of an attempt that its peer may go on with. The peer is told to stop.
    EffectGivenUp {
        step: StepId,
        attempt: u32,
        /// By which the peer finds the call; the one that it was accepted with where absent.
        handle: Option<Value>,
        failure: Failure,
    },
    /// The peer of an attempt has accepted its call, which is looked at again at `check_at`, or when it is woken.
    Accepted {
        step: StepId,
        attempt: u32,
        handle: Value,
        check_at: Option<Timestamp>,
    },
    /// The peer of an attempt's call asks something, and goes on when it is answered.
    Interrupted {
        step: StepId,
        attempt: u32,
        handle: Value,
        question: RemoteQuestion,
        check_at: Option<Timestamp>,
    },
    /// Whoever performs the call of an attempt is at work.
    Progressed {
        step: StepId,
        attempt: u32,
        details: Value,
        /// The command to apply next in the same decision, such as the end of the call. It applies even if the details are
        /// refused because the attempt has too many.
        then: Option<Box<Command>>,
    },
    /// The peer of an attempt's call has made something before what `then` tells of it.
    Produced {
        step: StepId,
        attempt: u32,
        produced: Vec<Produced>,
        then: Box<Command>,
    },
    /// Messages from other runs.
    RunMessages(Vec<RunMessage>),
}

impl Command {
    /// By which the peer of a call finds it, if the command says so.
    pub(crate) fn handle(&self) -> Option<&Value> {
        match self {
            Self::Accepted { handle, .. } | Self::Interrupted { handle, .. } => Some(handle),
            Self::EffectGivenUp { handle, .. } => handle.as_ref(),
            Self::Start(_)
            | Self::Fork(_)
            | Self::Cancel { .. }
            | Self::Pause { .. }
            | Self::Resume { .. }
            | Self::Resolve(_)
            | Self::SetVariables(_)
            | Self::Timer(_)
            | Self::Effect { .. }
            | Self::EffectCancelled { .. }
            | Self::Progressed { .. }
            | Self::Produced { .. }
            | Self::RunMessages(_) => None,
        }
    }

    /// The approximate payload size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Start(start) => start.size(),
            Self::Fork(start) => start.overlay.as_ref().map_or(0, Overlay::size),
            Self::Resolve(resolve) => size_of(&resolve.value),
            Self::SetVariables(variables) => size_of_object(variables),
            Self::Effect { outcome, .. } => outcome.as_ref().map_or(0, size_of_object),
            Self::EffectGivenUp { handle, .. } => handle.as_ref().map_or(0, size_of),
            Self::Interrupted { handle, question, .. } => size_of(handle) + size_of(&question.data),
            Self::Accepted { handle, .. } => size_of(handle),
            Self::Progressed { details, then, .. } => {
                size_of(details) + then.as_ref().map_or(0, |then| then.size())
            }
            Self::Produced { produced, then, .. } => {
                produced.iter().map(Produced::size).sum::<usize>() + then.size()
            }
            Self::RunMessages(messages) => messages.iter().map(RunMessage::size).sum(),
            Self::Cancel { .. }
            | Self::Pause { .. }
            | Self::Resume { .. }
            | Self::Timer(_)
            | Self::EffectCancelled { .. } => 0,
        }
    }
}

/// Parameters of a new run; the workflow is the plan's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartRun {
    pub tenant: TenantId,
    pub principal: PrincipalId,
    pub origin: Origin,
    pub inputs: Object,
    pub configurable: Object,
    pub tags: Vec<String>,
    pub metadata: Object,
    pub context: Option<String>,
    /// W3C trace context of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceContext>,
    pub parent: Option<Parent>,
    /// The host's limits; a run may request tighter ones.
    pub bounds: HostBounds,
}

impl StartRun {
    fn size(&self) -> usize {
        size_of_object(&self.inputs) + size_of_object(&self.metadata)
    }

    /// Recreates the parameters of a run that was started but never durably stored.
    #[must_use]
    pub fn again(started: &RunStarted, bounds: HostBounds) -> Self {
        let RunStarted {
            dialect: _,
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
            fork: _,
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

/// Parameters of a fork; everything else is its source's.
#[derive(Debug, Clone, PartialEq)]
pub struct StartFork {
    pub fork: Fork,
    /// Only a branch may have one.
    pub overlay: Option<Overlay>,
    pub bounds: HostBounds,
}

/// What a branch changes of its source's parameters.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Overlay {
    /// Members that are added or replaced.
    pub configurable: Object,
    pub tags: Option<Vec<String>>,
    /// Members that are added or replaced.
    pub metadata: Object,
}

impl Overlay {
    fn size(&self) -> usize {
        let tags = self.tags.iter().flatten().map(String::len);
        size_of_object(&self.configurable) + size_of_object(&self.metadata) + tags.sum::<usize>()
    }
}

/// Limits that a host sets for every run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostBounds {
    pub node_executions: u32,
    /// Size of the log in bytes, approximately, after which no node starts.
    pub log_bytes: u64,
    pub run_duration_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Resolve {
    pub node: NodeId,
    /// Restricts the answer to this execution of the node; `None` accepts the open one.
    pub ordinal: Option<u32>,
    /// Restricts the answer to the interrupt with this id, as the run that receives the command shows it;
    /// `None` accepts the open one.
    pub interrupt: Option<String>,
    pub value: Value,
    pub by: PrincipalId,
    /// The voter on whose behalf the vote counts, if not `by`.
    pub voter: Option<String>,
    pub authority: Authority,
    /// Whether the answer is untrusted content. Everything derived from it is then marked
    /// `contentTrust: untrusted`.
    pub is_untrusted: bool,
}

impl Resolve {
    /// Whose vote it is.
    pub(crate) fn voter(&self) -> String {
        self.voter.clone().unwrap_or_else(|| self.by.to_string())
    }

    /// Who is recorded as the answerer. A token may have been passed on, so its vote counts for the principal it was
    /// issued for, but what is said with it is not recorded as that principal's words.
    pub(crate) fn answerer(&self) -> String {
        match &self.authority {
            Authority::Token { .. } => self.by.to_string(),
            Authority::Credential(_) => self.voter(),
        }
    }

    /// The interrupt that the answer targets.
    ///
    /// # Errors
    /// The id does not belong to an interrupt of the node.
    pub(crate) fn wanted(&self) -> Result<Wanted, Refusal> {
        let Some(id) = &self.interrupt else {
            return Ok(Wanted {
                ordinal: self.ordinal,
                number: None,
            });
        };
        let (ordinal, number) = StepId::parse_interrupt(&self.node, id).ok_or(Refusal::NoInterrupt)?;
        match self.ordinal {
            Some(other) if other != ordinal => Err(Refusal::NoInterrupt),
            Some(_) | None => Ok(Wanted {
                ordinal: Some(ordinal),
                number: Some(number),
            }),
        }
    }
}

/// What the peer of a call has made, which becomes part of the run as it arrives.
#[derive(Debug, Clone, PartialEq)]
pub enum Produced {
    /// The next chunk of the text of the next artifact.
    Chunk {
        text: String,
        /// It replaces what was streamed of this artifact before.
        starts: bool,
        is_last: bool,
        /// Of the last chunk of a model's answer.
        end: Option<Box<AnswerEnd>>,
    },
    /// A whole artifact. What was streamed before was its text.
    Artifact {
        /// Human-readable; the node's where absent.
        name: Option<String>,
        content: Value,
    },
}

impl Produced {
    /// The approximate size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Chunk { text, .. } => text.len(),
            Self::Artifact { name, content } => name.as_ref().map_or(0, String::len) + size_of(content),
        }
    }
}

/// A question of the peer of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct RemoteQuestion {
    /// What the peer names it by; another key is another question.
    pub key: String,
    pub kind: InterruptKind,
    pub data: Value,
}

/// The interrupt that an answer is for; `None` accepts any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) ordinal: Option<u32>,
    pub(crate) number: Option<u32>,
}

/// What authorizes an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Authority {
    /// A credential, whose holder has roles and groups.
    Credential(Membership),
    /// A token alone. It speaks for a principal who may no longer be reachable.
    Token {
        /// Whether the principal had a role or group that the gate names when the token was issued.
        is_member: bool,
    },
}

impl Default for Authority {
    fn default() -> Self {
        Self::Credential(Membership::default())
    }
}

/// A timer, identified by its purpose; its text form is its key in the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Timer {
    Delay(StepId),
    /// The next attempt is due.
    Retry(StepId, u32),
    /// An interrupt timed out.
    Interrupt(StepId),
    RunDuration,
    /// A call of an attempt takes too long, or its worker is silent for too long.
    Overdue(StepId, u32),
    /// Continues a decision that stopped at its limit.
    Continue,
}

impl Timer {
    #[must_use]
    pub fn key(&self) -> String {
        match self {
            Self::Delay(step) => format!("delay:{}:{}", step.ordinal, step.node),
            Self::Retry(step, attempt) => format!("retry:{}:{attempt}:{}", step.ordinal, step.node),
            Self::Interrupt(step) => format!("interrupt:{}:{}", step.ordinal, step.node),
            Self::Overdue(step, attempt) => format!("overdue:{}:{attempt}:{}", step.ordinal, step.node),
            Self::RunDuration => "run-duration".to_owned(),
            Self::Continue => "continue".to_owned(),
        }
    }

    #[must_use]
    pub fn parse(key: &str) -> Option<Self> {
        let step = |ordinal: &str, node: &str| {
            Some(StepId {
                node: NodeId::parse(node).ok()?,
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
            "retry" | "overdue" => {
                let (ordinal, rest) = rest.split_once(':')?;
                let (attempt, node) = rest.split_once(':')?;
                let (step, attempt) = (step(ordinal, node)?, attempt.parse().ok()?);
                Some(match kind {
                    "retry" => Self::Retry(step, attempt),
                    _ => Self::Overdue(step, attempt),
                })
            }
            "run-duration" => Some(Self::RunDuration),
            "continue" => Some(Self::Continue),
            _ => None,
        }
    }
}

/// Why a parent cancels a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CascadeReason {
    /// The parent was cancelled, or goes on without the child.
    #[default]
    Cancelled,
    Failed,
    /// The parent completed early.
    Completed,
}

impl CascadeReason {
    /// The reason of the child's cancel.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cancelled => "parent-cancelled",
            Self::Failed => "parent-failed",
            Self::Completed => "parent-completed",
        }
    }

    /// The reason that has this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let all = [Self::Cancelled, Self::Failed, Self::Completed];
        all.into_iter().find(|reason| reason.as_str() == name)
    }
}

/// A message from one run to another, stored as a row in the target's inbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunMessage {
    /// To a child: start.
    Start(Box<StartRun>),
    /// To a child: the parent has ended, or no longer waits for the child.
    ParentEnded {
        parent: RunId,
        #[serde(default)]
        why: CascadeReason,
    },
    /// To a parent: the child waits for an answer. Again with the same interrupt after each turn of a conversation.
    ChildWaiting {
        /// The execution that created the child.
        step: StepId,
        child: RunId,
        kind: InterruptKind,
        /// The id of the child's interrupt.
        interrupt: String,
    },
    /// To a parent: the child no longer waits.
    ChildResumed {
        /// The execution that created the child.
        step: StepId,
        child: RunId,
    },
    /// To a parent: the child has ended.
    ChildEnded {
        /// The execution that created the child.
        step: StepId,
        child: RunId,
        status: RunStatus,
        outputs: Object,
        /// The variables that the parent requested and the child has.
        report: Object,
        error: Option<Failure>,
        /// Whether the child held untrusted content.
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

/// Everything a decision depends on besides the run, the plan and the command.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    pub now: Timestamp,
    /// Entropy for this decision alone.
    pub entropy: Entropy,
    pub run: &'a RunId,
    /// The workflows of the run's tenant.
    pub catalog: &'a dyn Catalog,
}

/// Looks up the current version of a workflow.
pub trait Catalog: std::fmt::Debug + Sync {
    /// The current version, if the workflow exists and may be started.
    fn current(&self, workflow: &WorkflowId) -> Option<Arc<dyn Startable>>;

    /// Whether [`Self::current`] has it. Nothing is started by asking.
    fn knows(&self, workflow: &WorkflowId) -> bool {
        self.current(workflow).is_some()
    }

    /// The failure of a node whose child could not be started. `failure` is the reason that holds now. An imported run is
    /// decided again from its history: then this is the failure that the history records.
    fn failure_of_start(&self, _node: &NodeId, failure: Failure) -> Failure {
        failure
    }

    /// Whether the run tree below `root` may grow by one run.
    fn admits_child(&self, _root: &RunId) -> bool {
        true
    }

    /// Decides a new child from start to end, in at most about `units` of work. `input` is that of the parent's
    /// decision. The caller handles the end as if the child's message had arrived, and the child's log is committed
    /// with the parent's events instead of its start.
    ///
    /// # Errors
    /// The child cannot be decided here, and starts by its own message.
    fn decide_child(
        &self,
        _child: &NewChild,
        _input: &Input<'_>,
        _units: u64,
    ) -> Result<EndedChild, UndecidedChild> {
        Err(UndecidedChild::Waits(0))
    }
}

/// A child that was decided from start to end, together with its parent.
#[derive(Debug)]
pub struct EndedChild {
    /// What the child tells its parent.
    pub message: RunMessage,
    pub n_events: usize,
    /// The size of its log.
    pub n_bytes: usize,
    /// The work it took.
    pub units: u64,
}

/// Why a child was not decided together with its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UndecidedChild {
    /// It may have to wait for something. Holds the work spent to learn that.
    Waits(u64),
    /// It takes more work than was allowed.
    TooMuchWork,
}

/// The result of a command: what the engine commits, and what it does after the commit. A decision without
/// events can still clear timers and carry run messages, so the engine commits it like any other.
#[derive(Debug)]
pub struct Decision<D: Dialect> {
    /// The run with the events applied.
    pub run: Box<Run>,
    pub state: D::State,
    pub events: Vec<Recorded<D::Event>>,
    pub work: Work,
    /// How many of the command's run messages this decision consumed; redeliver the rest.
    pub heard: usize,
}

/// The work that a decision begins and ends, besides its events.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Work {
    /// Effects to start.
    pub effects: Vec<Effect>,
    /// Effects that have ended: (step, attempt).
    pub settled: Vec<(StepId, u32)>,
    /// Effects that the peer has accepted, and that wait to be looked at or woken.
    pub parked: Vec<Parked>,
    /// Accepted calls that the run no longer wants: their peers are to be told.
    pub cancelled: Vec<CancelledCall>,
    /// Accepted calls whose peers asked something, with the answers.
    pub answered: Vec<AnsweredCall>,
    pub timers_set: Vec<(Timer, Timestamp)>,
    pub timers_cleared: Vec<Timer>,
    pub children: Vec<NewChild>,
    /// Messages to other runs: (target, event that caused the message, message).
    pub messages: Vec<(RunId, Seq, RunMessage)>,
}

/// An accepted effect that holds neither slot nor lease until it is due or woken.
#[derive(Debug, Clone, PartialEq)]
pub struct Parked {
    pub step: StepId,
    pub attempt: u32,
    pub handle: Value,
    /// `None` waits until it is woken.
    pub check_at: Option<Timestamp>,
}

/// An accepted call whose peer is to be told that nobody waits for it any more.
#[derive(Debug, Clone, PartialEq)]
pub struct CancelledCall {
    pub step: StepId,
    pub attempt: u32,
    pub provider: String,
    pub handle: Value,
}

/// An accepted call whose peer is to get an answer to what it asked.
#[derive(Debug, Clone, PartialEq)]
pub struct AnsweredCall {
    pub step: StepId,
    pub attempt: u32,
    pub provider: String,
    pub handle: Value,
    /// The interrupt that was answered.
    pub interrupt: String,
    pub value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Effect {
    pub step: StepId,
    pub attempt: u32,
    /// How many calls its execution has made before.
    pub number: u32,
    pub call: Call,
}

#[derive(Debug, Clone, PartialEq)]
pub struct NewChild {
    pub run: RunId,
    pub workflow: WorkflowId,
    /// The version that the child starts with.
    pub version: crate::ContentHash,
    /// The node of the parent that creates it.
    pub node: NodeId,
    pub start: StartRun,
    /// The event of the parent that creates it.
    pub dispatched: Seq,
}

/// Why a command was refused; the run is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The inputs do not match the workflow's declarations.
    #[error("start the run: {field}: {rule}")]
    InvalidInput { field: String, rule: String },
    /// A per-run limit is outside the range that the host allows.
    #[error("start the run: configurable.{key} must be between {min} and {max}")]
    OutOfBounds {
        key: &'static str,
        value: Value,
        min: u64,
        max: u64,
    },
    #[error("act on a run that is {}", .0.as_str())]
    Terminal(RunStatus),
    #[error("pause a run that is {}", .0.as_str())]
    NotPausable(RunStatus),
    #[error("resume a run that is {}", .0.as_str())]
    NotPaused(RunStatus),
    /// No such interrupt has ever existed.
    #[error("find an open interrupt at the node")]
    NoInterrupt,
    #[error("answer an interrupt that was already resolved")]
    AlreadyResolved,
    /// The run was cancelled, which closed the interrupt.
    #[error("answer an interrupt of a cancelled run")]
    InterruptCancelled,
    /// The parent cancelled the run, or took it along when it ended, which closed the interrupt.
    #[error("answer an interrupt that a parent's cancel closed")]
    InterruptGone,
    /// The answer does not match what the interrupt asks for.
    #[error("accept the answer: {0}")]
    InvalidAnswer(String),
    /// The event does not match the correlation; the interrupt stays open.
    #[error("match the event: {0}")]
    NoMatch(String),
    /// The caller is not allowed to answer.
    #[error("accept the answer: {0}")]
    NotAllowed(&'static str),
    /// Only an authenticated caller may answer, and the answer came with a token.
    #[error("accept a token: this gate needs an authenticated approver")]
    NeedsCredential,
    /// The command targets an execution that has ended; drop it.
    #[error("act on an execution that is over")]
    Stale,
    /// The log of the run has reached its limit.
    #[error("pause a run whose log has reached its limit of {most} bytes")]
    LogFull { most: u64 },
    /// The run has not started, or has already started.
    #[error("act on a run in this state")]
    WrongState,
    /// The fork still repeats what its source did.
    #[error("act on a fork that has not caught up with its source yet")]
    CatchingUp,
    /// A replay must reach nobody, so nobody can be told of its events.
    #[error("subscribe to a replay, which tells nobody")]
    TellsNobody,
    /// No node has failed the run.
    #[error("try a run again that is {}", .0.as_str())]
    NothingToRetry(RunStatus),
    /// The run has fewer events.
    #[error("fork at event {from} of a run with {head} events")]
    BeyondLog { from: Seq, head: Seq },
    /// What the run remembered at that event is no longer kept, or cannot be kept twice.
    #[error("remember what the run remembered at event {0}")]
    MemoryGone(Seq),
    /// Another definition does not fit the history of the run.
    #[error("go on with this definition: {0}")]
    OtherDefinition(String),
    /// Deciding again what the source decided does not lead to the event at which the fork is to begin.
    #[error(
        "repeat event {seq} of the source: with this definition and these options something else happens there; fork from event {since}"
    )]
    OtherHistory { seq: Seq, since: Seq },
}
