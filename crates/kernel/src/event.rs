//! The events in a run's log: a closed set of the kernel's own, and those of a dialect.
//!
//! An event is deterministic: it holds no random id, no id of its own run and no clock reading, except where a
//! protocol requires a timestamp in the payload (then it is the recorded command time). [`Recorded`] adds the
//! envelope. Faces render each variant to exactly one event of their protocol. Variant names are stored and
//! must never change.
//!
//! The file is long because the set is closed: one enum, and what readers ask of every variant.

use std::{borrow::Cow, fmt, sync::Arc};

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::{
    AnswerEnd, ContentHash, Failure, Fork, Given, InterruptKind, NodeId, PrincipalId, RefusalDivergence,
    RunId, RunStatus, Seq, TenantId, Timestamp, TraceContext, WorkflowId,
};

pub type Object = Map<String, Value>;

/// An event of a run, of the kernel or of its dialect `X`.
#[derive(Clone, PartialEq)]
pub enum Event<X> {
    Kernel(KernelEvent),
    Dialect(X),
}

impl<X: fmt::Debug> fmt::Debug for Event<X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(event) => event.fmt(f),
            Self::Dialect(event) => event.fmt(f),
        }
    }
}

impl<X> Event<X> {
    /// The kernel's event, if it is one.
    pub const fn kernel(&self) -> Option<&KernelEvent> {
        match self {
            Self::Kernel(event) => Some(event),
            Self::Dialect(_) => None,
        }
    }

    pub const fn as_ref(&self) -> EventRef<'_, X> {
        match self {
            Self::Kernel(event) => EventRef::Kernel(event),
            Self::Dialect(event) => EventRef::Dialect(event),
        }
    }

    /// The final status of the run, if this event is a terminal one.
    pub const fn terminal(&self) -> Option<RunStatus> {
        match self {
            Self::Kernel(event) => event.terminal(),
            Self::Dialect(_) => None,
        }
    }
}

impl<X: Serialize> Serialize for Event<X> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Kernel(event) => event.serialize(serializer),
            Self::Dialect(event) => event.serialize(serializer),
        }
    }
}

impl<X> From<KernelEvent> for Event<X> {
    fn from(event: KernelEvent) -> Self {
        Self::Kernel(event)
    }
}

/// A borrowed [`Event`].
#[derive(Debug)]
pub enum EventRef<'e, X> {
    Kernel(&'e KernelEvent),
    Dialect(&'e X),
}

impl<X> Clone for EventRef<'_, X> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<X> Copy for EventRef<'_, X> {}

/// An event with its envelope.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded<X> {
    /// Position in the log.
    pub seq: Seq,
    /// Time of the command that caused the event.
    pub at: Timestamp,
    /// The earlier event of this run that led to this one.
    pub cause: Option<Seq>,
    /// Whether the event carries untrusted content.
    pub is_untrusted: bool,
    /// What was given from outside, if this is the first event that followed from it.
    pub given: Option<Box<Given>>,
    pub event: Event<X>,
}

impl<X> Recorded<X> {
    pub fn as_ref(&self) -> RecordedRef<'_, X> {
        RecordedRef {
            seq: self.seq,
            at: self.at,
            cause: self.cause,
            is_untrusted: self.is_untrusted,
            given: self.given.as_deref(),
            event: self.event.as_ref(),
        }
    }

    /// Wraps a dialect's event in the type that all dialects share.
    pub fn map<Y>(self, wrap: impl FnOnce(X) -> Y) -> Recorded<Y> {
        Recorded {
            seq: self.seq,
            at: self.at,
            cause: self.cause,
            is_untrusted: self.is_untrusted,
            given: self.given,
            event: match self.event {
                Event::Kernel(event) => Event::Kernel(event),
                Event::Dialect(event) => Event::Dialect(wrap(event)),
            },
        }
    }
}

/// What a fold, or a fork of the run, needs of a [`Recorded`] event.
#[derive(Debug)]
pub struct RecordedRef<'e, X> {
    pub seq: Seq,
    pub at: Timestamp,
    pub cause: Option<Seq>,
    pub is_untrusted: bool,
    pub given: Option<&'e Given>,
    pub event: EventRef<'e, X>,
}

impl<X> Clone for RecordedRef<'_, X> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<X> Copy for RecordedRef<'_, X> {}

/// The way by which a run was started, in the words of the face that started it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Origin(Cow<'static, str>);

impl Origin {
    #[must_use]
    pub const fn new(word: &'static str) -> Self {
        Self(Cow::Borrowed(word))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The position of a child run in its run tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    pub run: RunId,
    /// The root of the run tree, unless that is `run` itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<RunId>,
    /// The node of the parent run that created the child.
    pub node: NodeId,
    pub ordinal: u32,
    /// Variables of the child that the parent receives when the child ends.
    pub report: Vec<String>,
    /// The workflows of all ancestors, root first.
    pub ancestors: Vec<WorkflowId>,
    /// Variables of the child that stay unset despite their default, because the parent variables mapped to
    /// them are unset.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unset: Vec<String>,
    /// The scope of what its agents remember, if it shares its parent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
}

/// Limits of a run, fixed when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum number of node executions.
    pub node_executions: u32,
    /// Size of the log in bytes, approximately, after which no node starts.
    pub log_bytes: u64,
    /// Maximum time in milliseconds, not counting time spent in `waiting-*` and `paused`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_duration_ms: Option<u64>,
}

/// Identifies one execution of a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepId {
    pub node: NodeId,
    /// 0 for the first execution; loops increment it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ordinal: u32,
}

pub(crate) fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl StepId {
    /// The execution as a text, which is also the id and key of its first interrupt.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}:{}", self.node, self.ordinal)
    }

    /// Reads the id of an interrupt of a node: the ordinal of its execution, and the interrupt's number.
    #[must_use]
    pub fn parse_interrupt(node: &NodeId, id: &str) -> Option<(u32, u32)> {
        let rest = id.strip_prefix(node.as_str())?.strip_prefix(':')?;
        let (ordinal, number) = match rest.split_once(':') {
            None => (rest, "0"),
            // The first interrupt has no number.
            Some((_, "0")) => return None,
            Some(parts) => parts,
        };
        let number_of = |text: &str| text.parse().ok().filter(|n: &u32| n.to_string() == text);
        Some((number_of(ordinal)?, number_of(number)?))
    }

    /// The id of an artifact of this execution, by how many it made before.
    #[must_use]
    pub fn artifact(&self, number: u32) -> String {
        match number {
            0 => format!("{}-{}", self.node, self.ordinal),
            _ => format!("{}-{}.{number}", self.node, self.ordinal),
        }
    }

    /// The id of an interrupt of this execution, by how many it opened before.
    #[must_use]
    pub fn interrupt(&self, number: u32) -> String {
        match number {
            0 => self.key(),
            _ => format!("{}:{number}", self.key()),
        }
    }
}

/// The five actions of an approver, and the one that only a timer can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalAction {
    /// Complete the gate.
    Accept,
    /// Fail the gate.
    Reject,
    /// Complete the gate with feedback for another round.
    Refine,
    /// Complete the gate with an edited artifact.
    EditAccept,
    /// Ask a question; the gate stays open.
    Ask,
    /// The gate timed out; counts as a rejection.
    Timeout,
}

impl ApprovalAction {
    /// The spelling in a resume value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Reject => "reject",
            Self::Refine => "refine",
            Self::EditAccept => "edit-accept",
            Self::Ask => "ask",
            Self::Timeout => "timeout",
        }
    }

    /// Parses an action that a caller may take; `edit` is a synonym of `edit-accept`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "accept" => Some(Self::Accept),
            "reject" => Some(Self::Reject),
            "refine" => Some(Self::Refine),
            "edit-accept" | "edit" => Some(Self::EditAccept),
            "ask" => Some(Self::Ask),
            _ => None,
        }
    }
}

/// The events that every run has, whatever its language. An event is the kernel's if the engine, or the face of
/// another protocol, must understand it without knowing the dialect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelEvent {
    /// Carries everything that a fold needs besides the definition.
    RunStarted(Arc<RunStarted>),
    RunCompleted {
        /// Outputs of the terminal nodes.
        outputs: Object,
    },
    RunFailed {
        error: Failure,
        node: Option<NodeId>,
    },
    RunCancelled {
        reason: Option<String>,
        by: Option<PrincipalId>,
        /// The parent whose cancel cascaded to this run.
        parent: Option<RunId>,
    },
    /// The cancel was accepted, but child runs are still ending.
    CancelRequested {
        reason: Option<String>,
        by: Option<PrincipalId>,
        /// The parent whose cancel cascaded to this run.
        parent: Option<RunId>,
    },
    /// No node starts until the run is resumed.
    RunPaused {
        reason: Option<String>,
        /// Whether active nodes may finish.
        drain: DrainPolicy,
        /// The attempts that were cut. Another one of each follows once the run is resumed.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        cut: Vec<CutAttempt>,
    },
    RunResumed {
        reason: Option<String>,
    },
    /// A node started an attempt.
    NodeStarted {
        step: StepId,
        type_id: String,
        /// 0 for the first attempt.
        #[serde(default, skip_serializing_if = "is_zero")]
        attempt: u32,
    },
    NodeCompleted {
        step: StepId,
        outputs: Object,
        /// Where the run goes from here; only its dialect reads it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        routing: Vec<u32>,
    },
    /// A node failed after its last attempt.
    NodeFailed {
        step: StepId,
        error: Failure,
        /// The number of attempts made.
        attempts: u32,
        /// Where the run goes from here; only its dialect reads it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        routing: Vec<u32>,
    },
    /// An attempt failed and another one is scheduled.
    NodeRetried {
        step: StepId,
        /// The next attempt; 1 for the first retry.
        attempt: u32,
        /// The delay before that attempt.
        delay_ms: u64,
        error: Failure,
    },
    /// The node's trigger rule can no longer be satisfied.
    NodeSkipped {
        node: NodeId,
        reason: String,
    },
    /// A cancel stopped the node.
    NodeCancelled {
        step: StepId,
        reason: String,
    },
    /// The node waits for an answer to its own interrupt or to its child's.
    NodeSuspended {
        step: StepId,
        interrupt: String,
        kind: InterruptKind,
        /// The child that opened the interrupt, unless this node did.
        child: Option<RunId>,
        /// Why it waits, for readers.
        #[serde(default, skip_serializing_if = "Object::is_empty")]
        details: Object,
    },
    /// The node continues after an answer.
    NodeResumed {
        step: StepId,
        /// The interrupt that was closed.
        interrupt: String,
        /// The answer, if the interrupt was this node's own.
        value: Option<Value>,
    },
    /// A node created a child run.
    NodeDispatched {
        step: StepId,
        child: RunId,
        workflow: WorkflowId,
    },
    /// A child of a set has ended; its step may wait for others.
    ChildEnded {
        step: StepId,
        child: RunId,
        workflow: WorkflowId,
        /// What the step calls the child's workflow, if not by its id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker: Option<String>,
        /// The language has recorded the child as work that was handed over.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_handoff: bool,
        status: RunStatus,
        outputs: Object,
        /// The variables that the step asked for.
        #[serde(default, skip_serializing_if = "Object::is_empty")]
        report: Object,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Box<Failure>>,
    },
    /// An attempt calls out.
    EffectScheduled {
        step: StepId,
        #[serde(default, skip_serializing_if = "is_zero")]
        attempt: u32,
        /// How many calls its execution has made before.
        #[serde(default, skip_serializing_if = "is_zero")]
        call: u32,
        /// The type of the call; part of the key by which peers recognize a repeated call.
        provider: String,
        /// What workers get, if the call is theirs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        activity: Option<Box<Activity>>,
        /// When the call fails if it is still under way. The time of an activity is among what workers get.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
        /// How many questions its peer may ask, if that is limited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_questions: Option<u64>,
    },
    /// The peer has taken the call and goes on with it.
    EffectAccepted {
        step: StepId,
        #[serde(default, skip_serializing_if = "is_zero")]
        attempt: u32,
        /// By which the call is found again; only its executor reads it.
        handle: Value,
    },
    /// Whoever performs the call is at work.
    EffectProgressed {
        step: StepId,
        #[serde(default, skip_serializing_if = "is_zero")]
        attempt: u32,
        details: Value,
    },
    /// A call ended, and its step goes on. The outcome of a step's only call is the step's.
    EffectEnded {
        step: StepId,
        #[serde(default, skip_serializing_if = "is_zero")]
        attempt: u32,
        /// How many calls its execution had made before.
        #[serde(default, skip_serializing_if = "is_zero")]
        call: u32,
        provider: String,
        /// Everything that the run observes of the call.
        outcome: Object,
    },
    InterruptRequested {
        step: StepId,
        kind: InterruptKind,
        /// The prompt, rendered as JSON.
        data: Value,
        /// How long the interrupt stays open.
        timeout_ms: Option<u64>,
        /// How many interrupts the execution opened before.
        #[serde(default, skip_serializing_if = "is_zero")]
        number: u32,
        /// What the peer of the step's call names its question by, if the question is the peer's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remote: Option<String>,
    },
    InterruptResolved {
        step: StepId,
        kind: InterruptKind,
        /// The answer; absent on a timeout.
        value: Option<Value>,
        /// Absent on a timeout.
        by: Option<String>,
        action: Option<ApprovalAction>,
        #[serde(default, skip_serializing_if = "is_zero")]
        number: u32,
    },
    ApprovalRequested {
        step: StepId,
        data: Value,
    },
    ApprovalVoted {
        step: StepId,
        voter: String,
        action: ApprovalAction,
        /// The voter's comment.
        feedback: Option<String>,
    },
    ApprovalReceived {
        step: StepId,
        action: ApprovalAction,
        /// Absent on a timeout.
        by: Option<String>,
        /// The comment on an accept or a reject.
        feedback: Option<String>,
        /// The requested changes.
        refine: Option<Value>,
        edited: Option<Value>,
        decided_at: Timestamp,
    },
    ClarificationRequested {
        step: StepId,
        questions: Value,
    },
    ClarificationResolved {
        step: StepId,
        answers: Object,
        by: Option<String>,
    },
    ArtifactCreated {
        step: StepId,
        /// Unique within the run.
        artifact: String,
        artifact_type: String,
        /// Human-readable name.
        name: String,
        /// A text or any other JSON value.
        content: Value,
    },
    /// An agent remembers something from now on. The same append writes the entry.
    MemoryWritten(Box<MemoryWritten>),
    /// One entry stands for several others, which are forgotten.
    MemoryCompacted {
        step: StepId,
        scope: String,
        /// The entry that stands for them.
        output: String,
        sources: Vec<String>,
        /// The size of its content.
        n_bytes: u64,
    },
    /// A node emitted a chunk of its streamed text. The first chunk replaces what was streamed before.
    OutputChunk {
        step: StepId,
        /// Position of the chunk in the stream, from 0.
        #[serde(default, skip_serializing_if = "is_zero")]
        index: u32,
        chunk: String,
        is_last: bool,
        /// How many artifacts its execution had made before the one that the text becomes part of.
        #[serde(default, skip_serializing_if = "is_zero")]
        number: u32,
        /// Of the last chunk of a model's answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<Box<AnswerEnd>>,
    },
    /// A limit was exceeded; the run or the node fails next.
    CapBreached {
        kind: Cap,
        limit: u64,
        observed: u64,
        /// The node whose start would have exceeded it.
        node: Option<NodeId>,
    },
    /// A replay departs from its source with the next event. Only the first difference is recorded.
    ReplayDiverged {
        source: RunId,
        /// The event of the source that the next event differs from.
        at: Seq,
        kind: Divergence,
        /// The execution, or the node, at which it was found.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        point: Option<String>,
    },
    /// A replay ends here: it would refuse where its source did not, or the other way round.
    RefusalDiverged {
        source: RunId,
        divergence: RefusalDivergence,
    },
    /// A fork goes on by itself: its source has no more to give.
    ForkResumed {
        /// Counts the forks that led to this run: which of them goes on.
        depth: u32,
        /// Whether calls and children that were under way are begun again.
        calls_again: bool,
        /// The status of the run before.
        from: RunStatus,
    },
}

/// How a replay differs from its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Divergence {
    /// The same event with other content.
    Output,
    /// The source has an event where the replay has none.
    Missing,
    /// The replay has an event where the source has none.
    Extra,
    /// Another event.
    TypeMismatch,
}

impl Divergence {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Missing => "missing",
            Self::Extra => "extra",
            Self::TypeMismatch => "type-mismatch",
        }
    }

    /// Whether the source has an event that the replay's differs from.
    #[must_use]
    pub const fn has_original(self) -> bool {
        match self {
            Self::Output | Self::Missing | Self::TypeMismatch => true,
            Self::Extra => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStarted {
    /// The language of the workflow.
    pub dialect: Cow<'static, str>,
    pub workflow: WorkflowId,
    /// The version that the run keeps until its end.
    pub version: ContentHash,
    pub tenant: TenantId,
    pub principal: PrincipalId,
    pub origin: Origin,
    pub inputs: Object,
    /// Per-run overrides, passed to nodes unchanged.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub configurable: Object,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Arbitrary data that the caller attached to the run.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub metadata: Object,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// W3C trace context of the request that started the run; its outbound calls carry it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceContext>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// Where the run was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<Fork>,
    pub limits: Limits,
}

/// An entry that an agent wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryWritten {
    pub step: StepId,
    pub scope: String,
    pub id: String,
    /// Without secrets.
    pub content: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// The agent of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

impl RunStarted {
    /// The scope of what the run's agents remember: see [`crate::Run::memory_scope`].
    #[must_use]
    pub fn memory_scope(&self, own: &RunId) -> String {
        // The fork of a child has no parent. What it remembers is its own.
        let parent = self.parent.as_ref().filter(|_| self.fork.is_none());
        let shared = parent.and_then(|parent| parent.memory.clone());
        shared.unwrap_or_else(|| own.memory_scope())
    }

    /// Whether the runs that this fork comes from used this scope where the fork uses its own.
    #[must_use]
    pub fn replaces_memory_scope(&self, scope: &str) -> bool {
        let Some(fork) = &self.fork else {
            return false;
        };
        let shared = self.parent.as_ref().and_then(|parent| parent.memory.as_deref());
        let mut sources = fork
            .recorders
            .iter()
            .map(|recorder| &recorder.run)
            .chain([&fork.source]);
        shared == Some(scope) || sources.any(|source| source.memory_scope() == scope)
    }
}

/// A call that a worker performs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Workers ask for the activities of a queue.
    pub queue: String,
    pub input: Value,
    /// How long one attempt may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How long a worker may be silent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_ms: Option<u64>,
}

/// How a pause treats active nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainPolicy {
    /// Cut the attempts that can be repeated, and begin no call.
    Immediate,
    /// Let active nodes finish.
    #[default]
    DrainCurrentNode,
}

/// An attempt that a pause cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutAttempt {
    pub step: StepId,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: u32,
}

impl DrainPolicy {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Immediate => "immediate",
            Self::DrainCurrentNode => "drain-current-node",
        }
    }
}

/// A limit that a run can exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cap {
    NodeExecutions,
    RunDuration,
    /// Answers of a model that are no document of their schema.
    Schema,
    BudgetTokens,
    /// In millionths of a US dollar.
    BudgetCost,
    BudgetDuration,
    /// Turns of a loop that decides anew each time.
    LoopIterations,
}

impl Cap {
    /// The name of the limit.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NodeExecutions => "node-executions",
            Self::RunDuration => "run-duration",
            Self::Schema => "schema",
            Self::BudgetTokens => "budget-tokens",
            Self::BudgetCost => "budget-cost",
            // The protocol has one word for both.
            Self::BudgetDuration => "run-duration",
            Self::LoopIterations => "loop-iterations",
        }
    }

    /// The error code of a run that exceeded the limit.
    #[must_use]
    pub const fn error_code(self) -> &'static str {
        match self {
            Self::NodeExecutions => "recursion_limit_exceeded",
            Self::RunDuration => "run_timeout",
            Self::Schema => "envelope_truncation_unrecoverable",
            Self::BudgetTokens | Self::BudgetCost | Self::BudgetDuration => "budget_exhausted",
            Self::LoopIterations => "loop_limit_exceeded",
        }
    }
}

impl KernelEvent {
    /// The final status of the run, if this event is a terminal one.
    #[must_use]
    pub const fn terminal(&self) -> Option<RunStatus> {
        match self {
            Self::RunCompleted { .. } => Some(RunStatus::Completed),
            Self::RunFailed { .. } => Some(RunStatus::Failed),
            Self::RunCancelled { .. } => Some(RunStatus::Cancelled),
            Self::RunStarted(_)
            | Self::CancelRequested { .. }
            | Self::RunPaused { .. }
            | Self::RunResumed { .. }
            | Self::NodeStarted { .. }
            | Self::NodeCompleted { .. }
            | Self::NodeFailed { .. }
            | Self::NodeRetried { .. }
            | Self::NodeSkipped { .. }
            | Self::NodeCancelled { .. }
            | Self::NodeSuspended { .. }
            | Self::NodeResumed { .. }
            | Self::NodeDispatched { .. }
            | Self::ChildEnded { .. }
            | Self::EffectScheduled { .. }
            | Self::EffectAccepted { .. }
            | Self::EffectProgressed { .. }
            | Self::EffectEnded { .. }
            | Self::InterruptRequested { .. }
            | Self::InterruptResolved { .. }
            | Self::ApprovalRequested { .. }
            | Self::ApprovalVoted { .. }
            | Self::ApprovalReceived { .. }
            | Self::ClarificationRequested { .. }
            | Self::ClarificationResolved { .. }
            | Self::ArtifactCreated { .. }
            | Self::MemoryWritten(_)
            | Self::MemoryCompacted { .. }
            | Self::OutputChunk { .. }
            | Self::CapBreached { .. }
            | Self::ReplayDiverged { .. }
            | Self::RefusalDiverged { .. }
            | Self::ForkResumed { .. } => None,
        }
    }

    /// Returns `true` if a run waits for other answers after the event than before it.
    #[must_use]
    pub const fn changes_questions(&self) -> bool {
        matches!(self, Self::NodeSuspended { .. } | Self::NodeResumed { .. })
    }
}
