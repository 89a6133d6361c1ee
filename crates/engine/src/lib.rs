//! The runtime around the kernel: load a run, decide, commit, and only then act.
//!
//! ```text
//!   faces -> Engine -> lock(run) -> load + fold -> decide -> append -> wake tails
//!                                                              |-> work     (effects, timers, deliveries)
//!                                                              |-> inboxes  (children, parents)
//!                                                              '-> outboxes (updates to deliver)
//! ```
//!
//! A waiting run takes no memory: it exists only as rows. Recovery is the first round of each loop, which
//! reads work rows and never all runs. This crate contains no HTTP and no SQL.

mod adopted_children;
mod adopting;
mod blobs;
mod budgeting;
mod budgets;
mod call_deliveries;
mod catalog;
mod clock;
mod commanding;
mod commit;
mod committing;
mod complete_on_drop;
mod decision_pool;
mod descendants;
mod effect;
mod effects;
mod engine;
mod entropy;
mod error;
mod follow_up;
mod forks;
mod hints;
mod holdings;
mod inbox;
mod lease_clock;
mod load_budget;
mod loading;
mod locks;
mod logs;
mod lost_activities;
mod memory_shares;
mod notifier;
mod options;
mod outboxes;
mod panics;
mod parks;
mod pinned;
mod pool;
mod pushes;
mod quarantine;
mod rates;
mod recalls;
mod recent_runs;
mod remembering;
mod removing;
mod request;
mod retention;
mod run_backoff;
mod run_budgets;
mod run_ids;
mod scripted;
mod spending;
mod stats;
mod tail;
mod task_pool;
mod throttle;
mod timekeeping;
mod timers;
mod tries;
mod uncertain_commit;
mod view;
mod waiting;
mod whole_children;
mod worker_queues;
mod worker_roster;
mod workers;

pub use adopted_children::AdoptedChild;
pub use adopting::{Adopt, Beginning};
pub use blobs::{Blob, Blobs, BlobsError, MAX_BLOBS, MAX_BYTES as MAX_BLOB_BYTES, ReadingBlobs};
pub use budgets::{Bound, Budget, Estimate, OnBreach};
pub use call_deliveries::{CallMessage, ListedCallDelivery};
pub use catalog::{RegisterError, Registered};
pub use clock::{Clock, SteadyClock, Steps, SystemClock};
pub use effect::{
    Answered, Answering, Attempt, CancelError, Cancellation, Executor, HttpCall, Keep, Lost, Outcome,
    Progress, Recalled, Recalling, Recording, Report, Request, Wake, Waking,
};
pub use engine::{Engine, Prepared, StartError};
pub use error::CommandError;
pub use forks::ForkRun;
pub use holdings::WorkflowLimit;
pub use load_budget::TIMES_DECIDED;
pub use memory_shares::{MAX_BYTES as MAX_MEMORY_BYTES, MAX_ROWS as MAX_MEMORY_ROWS};
pub use notifier::{Delivery, Notifier, Undelivered};
pub use options::Options;
pub use pushes::Options as PushOptions;
pub use quarantine::QUARANTINED;
pub use recent_runs::Decided;
pub use remembering::{MAX_OF_SCOPE as MAX_MEMORY_OF_SCOPE, NoSecrets, Secrets};
pub use removing::WorkflowRemoval;
pub use request::{Create, Done, Idempotency, NewMessage, NewSubscription, Respond, SideRows, Start};
pub use scripted::ScriptedModel;
pub use spending::{Spent, spent_of};
pub use stats::Stats;
pub use tail::Tail;
pub use throttle::{Throttle, Throttles};
pub use view::{Events, Opened, View};
pub use worker_roster::SeenWorker;
pub use workers::{ActivityCall, EndedActivity, LeasedActivity, WorkerLease, WorkerLimits, WorkerOptions};

use wopr_store::{slots, turns};
