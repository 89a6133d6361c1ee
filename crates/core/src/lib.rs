//! The kernel of wopr: what a workflow means, and what a run does next.
//!
//! Everything here is pure. A definition is validated into a [`Plan`]; [`decide`] turns a run, a
//! [`Command`] and an [`Input`] (time and entropy as data) into events and work; [`Run::apply`] folds
//! events back into a run, identically live, in recovery and in replay. There is no clock, no
//! randomness, no I/O and no protocol shape in this crate.

mod admission;
mod channel;
mod command;
mod decide;
mod definition;
mod event;
mod expression;
mod failure;
pub mod format;
mod id;
pub mod invariant;
mod measure;
mod node;
mod number;
mod plan;
mod run;
mod schema;
mod status;

pub use command::{
    Call, Catalog, Command, Decision, Effect, HostBounds, Input, NewChild, Notice, Refusal, Resolve,
    StartRun, Timer,
};
pub use decide::{MAX_BYTES, MAX_EVENTS, decide};
pub use definition::{Definition, MAX_EDGES, MAX_NODES, Node, Problem, Problems, Variable, VariableType};
pub use event::{
    ApprovalAction, Cap, DrainPolicy, Event, Limits, Object, Origin, Parent, Recorded, RunStarted, Visit,
};
pub use expression::{Expression, ExpressionError, Template};
pub use failure::{Failure, REJECTED};
pub use id::{
    ContentHash, Entropy, IdError, NodeId, PrincipalId, RunId, RunKey, Seq, TenantId, Timestamp, WorkflowId,
};
pub use measure::{MAX_NESTING, parsed_size};
pub use node::Offer;
pub use plan::Plan;
pub use run::{ApplyError, Artifact, Asked, Child, Open, OpenInterrupt, Run, Streaming};
pub use status::{InterruptKind, RunStatus};
