//! The kernel of wopr: what every run does, whatever the language of its workflow.
//!
//! Everything here is pure. [`decide()`] takes a run, a [`Command`] and an [`Input`] (time and entropy as data) and
//! returns events and work; [`Run::apply`] folds events into a run, live, in recovery and in replay. The kernel
//! owns the life cycle, attempts and retries, effects, timers, interrupts and their answers, child runs, limits
//! and the metering of work. A [`Dialect`] compiles one workflow language and says which steps follow. The
//! kernel has no clock, no randomness, no I/O, and knows no language and no protocol.

mod call;
mod command;
pub mod cost;
mod decide;
mod dialect;
mod event;
mod event_size;
mod failure;
mod fence;
mod fork;
mod given;
mod id;
pub mod invariant;
mod join;
mod later_work;
mod limits;
pub mod measure;
mod membership;
mod model;
mod moment;
mod problem;
mod refusal;
mod rules;
mod run;
mod run_budget;
mod shared_budget;
mod status;
mod trace;

pub use call::{
    AgentCall, AgentReach, AgentVerb, Call, ListedTool, MemoryCall, MemoryRead, NewMemory, SecretHeader,
    ToolQuery, ToolRequest, WantedTools, provider,
};
pub use command::{
    AnsweredCall, Authority, CancelledCall, CascadeReason, Catalog, Command, Decision, Effect, EndedChild,
    HostBounds, Input, NewChild, Overlay, Parked, Produced, Refusal, RemoteQuestion, Resolve, RunMessage,
    StartFork, StartRun, Timer, UndecidedChild, Work,
};
pub use decide::{
    Attempted, ChildTerms, Counted, DecisionBuilder, MAX_BYTES, MAX_CHILD_EVENTS, MAX_EVENTS, MAX_SET,
    REFUSAL_DIVERGED, SOURCE_MISSING, Source, Spawn, TooMuchWork, decide, decide_within, fields,
    too_much_work,
};
pub use dialect::{
    Answered, ChildPolicy, Dialect, NodeTypes, OnFailure, Planned, Retries, Startable, Trigger, Verdict,
};
pub use event::{
    Activity, ApprovalAction, Cap, CutAttempt, Divergence, DrainPolicy, Event, EventRef, KernelEvent, Limits,
    MemoryWritten, Object, Origin, Parent, Recorded, RecordedRef, RunStarted, StepId,
};
pub use failure::{Failure, REJECTED, TIMED_OUT, WorkerFailure};
pub use fence::{fence, neutral};
pub use fork::{Fork, ForkMode, Recorder};
pub use given::{Given, GivenAnswer, GivenEnd, GivenOutcome, GivenResult};
pub use id::{
    ContentHash, Entropy, IdError, NodeId, PrincipalId, RunId, RunKey, Seq, TenantId, Timestamp, WorkflowId,
    hex,
};
pub use join::Join;
pub use limits::whole;
pub use membership::Membership;
pub use model::{AnswerEnd, ModelCall, ModelMessage, ModelReply, ModelStop, ModelTool, ModelUsage, ToolCall};
pub use problem::{MAX_PROBLEMS, Problem, Problems, Spot};
pub use refusal::{RefusalDivergence, ReplyKind};
pub use rules::{AnswerSchema, ApprovalRules, Question, Rules};
pub use run::{
    Active, ApplyError, Artifact, Asked, CONTENT_TRUST, Child, ChildEnd, FOLD, Forked, IMPORTED, Member,
    NodeState, Open, OpenInterrupt, Pending, Phase, REDACTED, Run, Streamed, Streaming, TakenEvent,
    UNTRUSTED, Vote, Wait, illegal, says_untrusted,
};
pub use run_budget::{OverRunBudget, RunBound, RunSpending};
pub use shared_budget::{
    AskedMore, BudgetKey, BudgetPeriod, BudgetScope, BudgetUnit, BudgetWindow, MoreMoney, OnOverBudget,
    OverBudget, dollars, micros,
};
pub use status::{InterruptKind, RunStatus};
pub use trace::TraceContext;
