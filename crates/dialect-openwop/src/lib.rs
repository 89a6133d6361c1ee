//! The OpenWOP workflow language.
//!
//! [`Plan::compile`] validates a definition. [`Openwop`] is the [`Dialect`](wopr_kernel::Dialect): it folds the
//! events that only this language gives a meaning to, and says which nodes start next. Pure, like the kernel:
//! no clock, no randomness, no I/O.

mod acting;
mod admission;
mod agent;
mod authoring;
mod channel;
mod context;
mod conversing;
mod decide;
mod decision;
mod definition;
mod envelope;
mod event;
mod exposure;
mod expression;
mod node;
mod offers;
mod overrides;
mod plan;
mod redaction;
mod start;
mod state;
mod thinking;
mod transcript;
mod trigger;
mod trust;

pub use agent::AgentRef;
pub use authoring::{Lint, Place, Warning, definition_schema, locate};
pub use conversing::Conversation;
pub use decide::{MAX_MEMORY_CONTENT, Openwop};
pub use decision::{Asks, Criterion, Decision};
pub use definition::{Definition, MAX_EDGES, MAX_NODES, Node, Variable, VariableType};
pub use event::{
    Act, AgentEvent, CallError, CallStatus, Change, ConversationEvent, EnvelopeEvent, EnvelopeFault, Event,
    Invocation, JoinMode, JoinOutcome, Orchestration, Outcome, Role, Summarizing, Target, Transport, Turn,
    Verbosity, Verdict,
};
pub use expression::{Expression, ExpressionError, Read, Template};
pub use node::{
    HTTP_MAX_TIMEOUT_MS, MAX_FAN_OUT, MAX_REPAIRS, MAX_TRANSCRIPT, MAX_WINDOW as MAX_TRANSCRIPT_WINDOW,
    TOKEN_COUNTER, agent_workflow, agent_workflow_id, tool_workflow, tool_workflow_id,
};
pub use plan::Plan;
pub use redaction::assigns;
pub use state::{State, Supervision};
pub use trust::Untrusted;
pub use wopr_kernel::fence;
pub use wopr_schema::{SchemaProblem, check_schema};

use wopr_kernel::{
    ApprovalAction, CONTENT_TRUST, ContentHash, Failure, InterruptKind, MAX_PROBLEMS, NodeId, Object,
    Problem, Problems, REJECTED, RunId, Spot, Timestamp, UNTRUSTED, WorkflowId, cost, measure, too_much_work,
    whole,
};
use wopr_schema as schema;
