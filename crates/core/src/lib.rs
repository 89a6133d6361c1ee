//! The workflow kernel of wopr: it defines what a workflow means and what a run does next.
//!
//! Everything here is pure. The kernel validates a definition into a [`Plan`]. [`decide`] takes a run, a
//! [`Command`] and an [`Input`] (time and entropy as data) and returns events and work. [`Run::apply`] folds
//! events into a run; live execution, recovery and replay all use it. This crate has no clock, no randomness,
//! no I/O and no protocol types.

mod admission;
mod authoring;
mod channel;
mod command;
mod cost;
mod decide;
mod definition;
mod event;
mod exposure;
mod expression;
mod failure;
pub mod format;
mod id;
pub mod invariant;
mod measure;
mod membership;
mod node;
mod number;
mod pattern;
mod plan;
mod problem;
mod run;
mod schema;
mod status;

pub use authoring::{Lint, Place, Warning, definition_schema, locate};
pub use command::{
    Authority, Call, Catalog, Command, Decision, Effect, HostBounds, Input, NewChild, Refusal, Resolve,
    RunMessage, StartRun, Timer,
};
pub use cost::MAX_DECISION_WORK;
pub use decide::{MAX_BYTES, MAX_EVENTS, decide, decide_counted, decide_within};
pub use definition::{Definition, MAX_EDGES, MAX_NODES, Node, Variable, VariableType};
pub use event::{
    ApprovalAction, Cap, DrainPolicy, Event, Limits, Object, Origin, Parent, Recorded, RunStarted, StepId,
};
pub use expression::{Expression, ExpressionError, Read, Template};
pub use failure::{Failure, REJECTED};
pub use id::{
    ContentHash, Entropy, IdError, NodeId, PrincipalId, RunId, RunKey, Seq, TenantId, Timestamp, WorkflowId,
};
pub use measure::{MAX_NESTING, parsed_limit, parsed_size, value_size};
pub use membership::Membership;
pub use node::{HTTP_MAX_TIMEOUT_MS, NodeTypes, written_by};
pub use plan::Plan;
pub use problem::{Problem, Problems, Spot};
pub use run::{
    ApplyError, Artifact, Asked, CONTENT_TRUST, Child, Open, OpenInterrupt, Run, Streaming, UNTRUSTED,
    Untrusted, Vote,
};
pub use status::{InterruptKind, RunStatus};
