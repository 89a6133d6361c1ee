//! The Agent Workflow language: tokens walk a graph of nodes over one state document.
//!
//! [`Plan::compile`] holds a document against its schema and against the rules of the graph. [`Awp`] is the
//! [`Dialect`](wopr_kernel::Dialect): it folds outputs into the state document and says which node follows. Pure, like the
//! kernel: no clock, no randomness, no I/O.

mod activity;
mod canonical;
mod decide;
mod definition;
mod delegate;
mod diagnostic;
mod duration;
mod graph;
mod history;
mod import;
mod in_process;
mod interrupt;
mod jq;
mod mapping;
mod options;
mod phase;
mod plan;
mod reader;
mod recorded;
mod reducer;
mod rows;
mod signature;
mod span;
mod state;
mod submit;
mod subworkflow;
mod walk;

pub use canonical::{canonical, definition_hash};
pub use decide::{Awp, NoEvent};
pub use definition::workflow_id;
pub use diagnostic::Diagnostic;
pub use history::{History, HistoryPosition, HistoryWriter, RECORD_SCHEMA_VERSION, Row, RowKind, Wanted};
pub use import::{GivenChild, Import, ImportError, Imported, ImportedChild, import};
pub use in_process::{InProcess, InProcessError};
pub use jq::{Filter, JqError, is_true};
pub use options::{
    ACTIVITY_MODE, ActivityMode, CHILD_MARK, EXECUTION_ID, PARALLEL_ACTIVITIES, add_in_process, alias,
    child_alias, child_execution_id, is_parallel,
};
pub use phase::{
    AgentQuestion, AwaitedActivity, AwaitedDelegate, AwaitedSignal, ExecutionPhase, ExecutionStatus,
    agent_questions, awaited_signals, phase, question, status,
};
pub use plan::{Plan, validate};
pub use rows::{GivenRows, MAX_ROWS, REDACTED, RowError, SECRET_MEMBERS};
pub use signature::{SignatureError, SignatureMode, TrustPolicy, stripped as unsigned};
pub use span::ParallelSpan;
pub use state::State;
pub use submit::{HostOutcome, Submission, SubmitRefusal, Submitted, check_input, check_submission};
