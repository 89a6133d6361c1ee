//! The closed list of workflow languages.
//!
//! A [`Plan`] is a compiled workflow of any of them, a [`Run`] the state of one of its runs. [`decide`] and
//! [`Run::apply`] dispatch to the dialect once and are monomorphic behind that; [`mod@format`] is the stored form of
//! events and snapshots. Everything else is the kernel's, which this crate passes on: the rest of the house
//! depends on this crate alone. Pure, like the kernel and the dialects.

pub mod format;
pub mod invariant;
mod program;

pub use program::{
    AwpHistory, Decision, DialectEvent, DialectId, Imported, ImportedChild, Plan, Run, State, decide,
    decide_counted, decide_counted_within, decide_fork, decide_within, import_awp,
};

/// An event of a run of any dialect.
pub type Event = wopr_kernel::Event<DialectEvent>;
/// An event of any dialect with its envelope.
pub type Recorded = wopr_kernel::Recorded<DialectEvent>;

pub use wopr_dialect_awp as awp;
pub use wopr_dialect_awp::TrustPolicy as SignaturePolicy;
pub use wopr_dialect_awp::{InProcess, InProcessError};
pub use wopr_dialect_openwop as openwop;
pub use wopr_dialect_openwop::{
    Definition, Expression, ExpressionError, HTTP_MAX_TIMEOUT_MS, Lint, MAX_EDGES, MAX_NODES, Node, Place,
    Read, Template, Turn, Untrusted, Variable, VariableType, Warning, definition_schema, locate,
};
pub use wopr_kernel::cost;
pub use wopr_kernel::{
    Activity, AgentCall, AgentReach, AgentVerb, AnswerEnd, AnsweredCall, ApplyError, ApprovalAction,
    Artifact, Asked, Authority, BudgetKey, BudgetPeriod, BudgetScope, BudgetUnit, BudgetWindow,
    CONTENT_TRUST, Call, CancelledCall, Cap, CascadeReason, Catalog, Child, Command, ContentHash, Counted,
    CutAttempt, Divergence, DrainPolicy, Effect, EndedChild, Entropy, Failure, Fork, ForkMode, Given,
    GivenAnswer, GivenEnd, GivenOutcome, GivenResult, HostBounds, IMPORTED, IdError, Input, InterruptKind,
    KernelEvent, Limits, ListedTool, MAX_BYTES, MAX_EVENTS, Membership, MemoryCall, MemoryRead,
    MemoryWritten, ModelCall, ModelMessage, ModelReply, ModelStop, ModelTool, ModelUsage, MoreMoney,
    NewChild, NewMemory, NodeId, NodeTypes, Object, OnOverBudget, Open, OpenInterrupt, Origin, OverBudget,
    OverRunBudget, Overlay, Parent, Planned, PrincipalId, Problem, Problems, Produced, REDACTED,
    REFUSAL_DIVERGED, REJECTED, Recorder, Refusal, RefusalDivergence, RemoteQuestion, ReplyKind, Resolve,
    Rules, RunBound, RunId, RunKey, RunMessage, RunSpending, RunStarted, RunStatus, SOURCE_MISSING,
    SecretHeader, Seq, Spot, StartFork, StartRun, Startable, StepId, Streaming, TIMED_OUT, TenantId, Timer,
    Timestamp, TooMuchWork, ToolCall, ToolQuery, ToolRequest, TraceContext, UNTRUSTED, UndecidedChild, Vote,
    WantedTools, Work, WorkerFailure, WorkflowId,
    cost::MAX_DECISION_WORK,
    dollars, hex,
    measure::{MAX_NESTING, json_size, parsed_limit, parsed_size, too_deep, value_size},
    micros, provider,
};
