//! The kernel of wopr: what a workflow means, and what a run does next.
//!
//! Everything here is pure. A definition is validated into a plan; `decide` turns a run, a
//! command and an input (time and entropy as data) into events and work; `apply` folds
//! events back into a run, identically live, in recovery and in replay. There is no clock, no
//! randomness, no I/O and no protocol shape in this crate.

mod id;
mod status;

pub use id::{ContentHash, Entropy, IdError, NodeId, PrincipalId, RunId, RunKey, Seq, TenantId, Timestamp, WorkflowId};
pub use status::{InterruptKind, RunStatus};
