//! The closed set of things that can have happened to a run.
//!
//! An event is the deterministic part: it holds no random id, no run id of its own and no clock
//! reading except where OpenWOP requires one in a payload (then it is the recorded command time).
//! [`Recorded`] adds the envelope. Each variant renders to exactly one OpenWOP v1 event; the
//! faces do that. Stored names are the variants' names and may never change (see `format`).

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    ContentHash, Failure, InterruptKind, NodeId, PrincipalId, RunId, RunStatus, Seq, TenantId, Timestamp,
    WorkflowId,
};

/// A JSON object.
pub type Object = Map<String, Value>;

/// An event with its envelope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// Place in the log.
    pub seq: Seq,
    /// Time of the command that caused it.
    pub at: Timestamp,
    /// The event of this run that led to it.
    pub cause: Option<Seq>,
    /// Whether there is content in it from outside that nobody here vouches for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_untrusted: bool,
    /// What happened.
    pub event: Event,
}

/// Through which face a run was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// OpenWOP REST, the command line.
    Rest,
    /// Agent2Agent.
    A2a,
}

impl Origin {
    /// The spelling of `run.started.transport`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rest => "rest",
            Self::A2a => "a2a",
        }
    }
}

/// Where a child run belongs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// The run that created it.
    pub run: RunId,
    /// The run at the root of the tree, if that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<RunId>,
    /// The node of that run.
    pub node: NodeId,
    /// Which execution of the node.
    pub ordinal: u32,
    /// Variables of the child that its end reports.
    pub report: Vec<String>,
    /// The workflows above it, the root first.
    pub ancestors: Vec<WorkflowId>,
    /// Variables of the child that stay unset whatever their default: mapped from ones the parent had not set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unset: Vec<String>,
}

/// Bounds of a run, fixed when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Node executions before the run is stopped.
    pub node_executions: u32,
    /// Milliseconds outside `waiting-*` and `paused` before the run is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_duration_ms: Option<u64>,
}

/// How an execution of a node is named in the log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepId {
    /// The node.
    pub node: NodeId,
    /// 0 for its first execution; loops count up.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ordinal: u32,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl StepId {
    /// Interrupt id and key of this execution.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}:{}", self.node, self.ordinal)
    }
}

/// The five approval actions, and the one only a timer takes (RFC 0183).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalAction {
    /// Go on.
    Accept,
    /// Fail the gate.
    Reject,
    /// Go on with feedback for another round.
    Refine,
    /// Go on with an edited artifact.
    EditAccept,
    /// A question; the gate stays open.
    Ask,
    /// The gate's time ran out; counts as a rejection.
    Timeout,
}

impl ApprovalAction {
    /// The spelling of a resume value.
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

    /// Reads an action a caller may take; `edit` is a synonym of `edit-accept`.
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

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The run began; carries everything a fold needs besides the definition.
    RunStarted(Arc<RunStarted>),
    /// The workflow reached its end.
    RunCompleted {
        /// Outputs of the last nodes.
        outputs: Object,
    },
    /// An error ended the run.
    RunFailed {
        /// What went wrong.
        error: Failure,
        /// The node it went wrong in.
        node: Option<NodeId>,
    },
    /// A cancel ended the run.
    RunCancelled {
        /// Why.
        reason: Option<String>,
        /// Who asked.
        by: Option<PrincipalId>,
        /// The parent whose cancel cascaded here.
        parent: Option<RunId>,
    },
    /// A cancel was accepted; children are still ending.
    CancelRequested {
        /// Why.
        reason: Option<String>,
        /// Who asked.
        by: Option<PrincipalId>,
        /// The parent whose cancel cascaded here.
        parent: Option<RunId>,
    },
    /// Nothing new starts until the run is resumed.
    RunPaused {
        /// Why.
        reason: Option<String>,
        /// Whether running nodes may finish.
        drain: DrainPolicy,
    },
    /// The run goes on.
    RunResumed {
        /// Why.
        reason: Option<String>,
    },
    /// A node began an attempt.
    NodeStarted {
        /// Which execution.
        step: StepId,
        /// Its type.
        type_id: String,
        /// 0 for the first attempt.
        #[serde(default, skip_serializing_if = "is_zero")]
        attempt: u32,
    },
    /// A node finished.
    NodeCompleted {
        /// Which execution.
        step: StepId,
        /// Its outputs by port.
        outputs: Object,
        /// Indexes of outgoing edges whose condition did not hold.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        untaken: Vec<u32>,
    },
    /// A node failed for good.
    NodeFailed {
        /// Which execution.
        step: StepId,
        /// What went wrong.
        error: Failure,
        /// How many attempts were made.
        attempts: u32,
        /// Indexes of outgoing edges whose condition did not hold.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        untaken: Vec<u32>,
    },
    /// An attempt failed; another follows after a delay.
    NodeRetried {
        /// Which execution.
        step: StepId,
        /// The attempt to come, 1 for the first retry.
        attempt: u32,
        /// How long until then.
        delay_ms: u64,
        /// What went wrong.
        error: Failure,
    },
    /// A node's trigger can no longer be met.
    NodeSkipped {
        /// The node.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// A node was stopped by a cancel.
    NodeCancelled {
        /// Which execution.
        step: StepId,
        /// Why.
        reason: String,
    },
    /// A node waits for an answer, its own or its child's.
    NodeSuspended {
        /// Which execution.
        step: StepId,
        /// The interrupt it waits for.
        interrupt: String,
        /// What is asked.
        kind: InterruptKind,
        /// The child that asks, if it is not this node.
        child: Option<RunId>,
    },
    /// A node goes on after an answer.
    NodeResumed {
        /// Which execution.
        step: StepId,
        /// The interrupt that ended.
        interrupt: String,
        /// The answer, if it was this node's own.
        value: Option<Value>,
    },
    /// A node created a child run.
    NodeDispatched {
        /// Which execution.
        step: StepId,
        /// The child.
        child: RunId,
        /// What it runs.
        workflow: WorkflowId,
    },
    /// An interrupt opened.
    InterruptRequested {
        /// Which execution.
        step: StepId,
        /// What is asked.
        kind: InterruptKind,
        /// The question.
        data: Value,
        /// How long it stays open.
        timeout_ms: Option<u64>,
    },
    /// An interrupt closed.
    InterruptResolved {
        /// Which execution.
        step: StepId,
        /// What was asked.
        kind: InterruptKind,
        /// The answer; absent on a timeout.
        value: Option<Value>,
        /// Who answered; absent on a timeout.
        by: Option<String>,
        /// The action of an approval.
        action: Option<ApprovalAction>,
    },
    /// An approval is asked for.
    ApprovalRequested {
        /// Which execution.
        step: StepId,
        /// The question, as in the interrupt.
        data: Value,
    },
    /// One of several needed votes was given.
    ApprovalVoted {
        /// Which execution.
        step: StepId,
        /// Whose vote.
        voter: String,
        /// The vote.
        action: ApprovalAction,
        /// The voter's words.
        feedback: Option<String>,
    },
    /// An approval was decided.
    ApprovalReceived {
        /// Which execution.
        step: StepId,
        /// The decision.
        action: ApprovalAction,
        /// Who decided; absent on a timeout.
        by: Option<String>,
        /// Words with an accept or a reject.
        feedback: Option<String>,
        /// What to change.
        refine: Option<Value>,
        /// The artifact as edited.
        edited: Option<Value>,
        /// When it was decided.
        decided_at: Timestamp,
    },
    /// Questions are asked.
    ClarificationRequested {
        /// Which execution.
        step: StepId,
        /// The questions.
        questions: Value,
    },
    /// Questions were answered.
    ClarificationResolved {
        /// Which execution.
        step: StepId,
        /// Answers by question id.
        answers: Object,
        /// Who answered.
        by: Option<String>,
    },
    /// A variable was set by a node or a child's report.
    VariableChanged {
        /// Its name.
        name: String,
        /// Its value before; none for `null`, which is read as none.
        previous: Option<Value>,
        /// Its value now, or what was added to the list that it is.
        next: Value,
        /// Whether `next` was added to a list; there is no `previous` then.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        appends: bool,
        /// The node that set it.
        node: Option<NodeId>,
    },
    /// A value was written to a channel.
    ChannelWritten {
        /// The channel.
        channel: String,
        /// The write's input.
        value: Value,
        /// How it is folded in.
        reducer: String,
        /// Entries older than this are dropped at the write.
        ttl_ms: Option<u64>,
        /// Entries kept at most.
        max_size: Option<u64>,
        /// The node that wrote.
        node: NodeId,
        /// When.
        written_at: Timestamp,
    },
    /// A node made an artifact.
    ArtifactCreated {
        /// Which execution.
        step: StepId,
        /// Its id, unique within the run.
        artifact: String,
        /// Its type.
        artifact_type: String,
        /// A name for people.
        name: String,
        /// Its content: a text, or any JSON.
        content: Value,
    },
    /// A node said a piece of the text it streams.
    OutputChunk {
        /// Which execution.
        step: StepId,
        /// Its place among the pieces, from 0.
        #[serde(default, skip_serializing_if = "is_zero")]
        index: u32,
        /// The piece.
        chunk: String,
        /// Whether none follows.
        is_last: bool,
    },
    /// A bound was exceeded; the run fails next.
    CapBreached {
        /// Which bound.
        kind: Cap,
        /// The bound.
        limit: u64,
        /// What was observed.
        observed: u64,
        /// The node that would have exceeded it.
        node: Option<NodeId>,
    },
}

/// How a run begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStarted {
    /// The workflow.
    pub workflow: WorkflowId,
    /// The version it stays with.
    pub version: ContentHash,
    /// The owner.
    pub tenant: TenantId,
    /// Who started it.
    pub principal: PrincipalId,
    /// Through which face.
    pub origin: Origin,
    /// What it was given.
    pub inputs: Object,
    /// Per-run overrides, handed to nodes unchanged.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub configurable: Object,
    /// Labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Anything the caller wants to keep with it.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub metadata: Object,
    /// The A2A context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// W3C trace context of the request that started it, for its calls to the outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Where it belongs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// Its bounds.
    pub limits: Limits,
}

/// What a pause does to running nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainPolicy {
    /// Stop between events.
    Immediate,
    /// Let running nodes reach their end.
    #[default]
    DrainCurrentNode,
}

impl DrainPolicy {
    /// OpenWOP's spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Immediate => "immediate",
            Self::DrainCurrentNode => "drain-current-node",
        }
    }
}

/// A bound that can be exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cap {
    /// Node executions.
    NodeExecutions,
    /// Time.
    RunDuration,
}

impl Cap {
    /// OpenWOP's name of the bound.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NodeExecutions => "node-executions",
            Self::RunDuration => "run-duration",
        }
    }

    /// The error code of a run that exceeded it.
    #[must_use]
    pub const fn error_code(self) -> &'static str {
        match self {
            Self::NodeExecutions => "recursion_limit_exceeded",
            Self::RunDuration => "run_timeout",
        }
    }
}

impl Event {
    /// The status this event ends a run with, if it is a terminal one.
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
            | Self::InterruptRequested { .. }
            | Self::InterruptResolved { .. }
            | Self::ApprovalRequested { .. }
            | Self::ApprovalVoted { .. }
            | Self::ApprovalReceived { .. }
            | Self::ClarificationRequested { .. }
            | Self::ClarificationResolved { .. }
            | Self::VariableChanged { .. }
            | Self::ChannelWritten { .. }
            | Self::ArtifactCreated { .. }
            | Self::OutputChunk { .. }
            | Self::CapBreached { .. } => None,
        }
    }
}
