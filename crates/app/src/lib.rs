//! The application layer of wopr: each use case exists once and serves every protocol.
//!
//! A use case takes a [`Caller`], checks that the caller may perform it, makes it take effect once, and fails
//! with an [`Error`]. Protocol faces parse requests into use cases and render the results; they see neither
//! the engine nor the store. This crate contains no protocol, URL or header.

mod activities;
mod adopt_run;
mod answer_interrupt;
mod app;
mod budgets;
mod caller;
mod calls;
mod command_run;
mod conversation;
mod deliveries;
mod error;
mod expired_runs;
mod fork_run;
mod idempotency;
mod keys;
mod last_reads;
mod list_runs;
mod mask;
mod open_interrupts;
mod questions;
mod read_run;
mod scopes;
mod secrets;
mod select_question;
mod settled_question;
mod staleness;
mod start_run;
mod subscriptions;
mod visible_run;
mod workflows;

pub use activities::{ActivityAttempt, Heartbeat, WorkerQueues};
pub use answer_interrupt::{NodeAnswer, NodeAnswerError, TokenAnswer};
pub use app::{App, Options, Principals};
pub use caller::{Caller, Forbidden, GrantedScopes};
pub use conversation::Conversation;
pub use deliveries::ListedDelivery;
pub use error::Error;
pub use fork_run::{DIFFERENCE_BYTES, EventDiff, MAX_DIFFERENCES, NewFork, RetryWith, RunDiff};
pub use keys::{AddedKey, ApiKey, KeyPage, MAX_KEYS, NewKey, REVOKED_FOR_MS};
pub use list_runs::{PhasePage, RunPage};
pub use mask::{
    EDITED, Mask, REDACTED, definition, hide_members, is_redacted_definition, reads_artifacts, reads_result,
    reads_result_of, reference,
};
pub use open_interrupts::{OpenInterrupts, Waiting};
pub use questions::{AskedAt, MAX_SHOWN, Question};
pub use scopes::{Scope, Scopes};
pub use secrets::{MAX_SECRETS, SealedSecret, ShownSecret};
pub use select_question::{Selected, Selector, Unselected};
pub use settled_question::Settled;
pub use start_run::{NewRun, StartPermit};
pub use subscriptions::{FoundSubscription, ManagedSubscription, SealSubscription, SubscriptionSlot};
pub use visible_run::VisibleRun;
pub use workflows::NotRegistered;

// Types that use cases take and return besides their own.
pub use wopr_engine::{
    AdoptedChild, Beginning, CallMessage, Decided, Delivery, Done, EndedActivity, Events, Idempotency,
    LeasedActivity, ListedCallDelivery, NewMessage, NewSubscription, Notifier, OnBreach, Opened,
    RegisterError, Registered, SeenWorker, SideRows, Spent, Tail, Undelivered, View, WorkerLease,
    WorkflowLimit, WorkflowRemoval,
};
pub use wopr_store::{
    BlobRow, CallDeliveryCursor, DeliveryCursor, Fence, IdempotencyKey, IdempotencyRecord, Match, MessageRow,
    OfferedQueue, PhaseCursor, PhaseFilter, Put, RunFilter, Summary, Update,
};
