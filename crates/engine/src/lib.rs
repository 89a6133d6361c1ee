//! The runtime around the kernel: it loads, decides, commits, and only then acts.
//!
//! ```text
//!   faces -> Engine -> lock(run) -> load + fold -> decide -> append -> wake tails
//!                                                              |-> effects  (leased, renewed, recorded)
//!                                                              |-> timers   (rows; one loop)
//!                                                              |-> inboxes  (children, parents)
//!                                                              '-> pushes   (receivers of updates)
//! ```
//!
//! A run that waits is rows and nothing else. Recovery is the loops' first round: they read work rows, never all
//! runs. There is no HTTP here and no SQL.

mod catalog;
mod clock;
mod commanding;
mod commit;
mod committing;
mod descendants;
mod desk;
mod dice;
mod doubt;
mod effect;
mod effects;
mod engine;
mod error;
mod follow_up;
mod hands;
mod hints;
mod holdings;
mod inbox;
mod lease_clock;
mod loading;
mod locks;
mod logs;
mod options;
mod panics;
mod pinned;
mod push;
mod pushes;
mod quarantine;
mod recent;
mod request;
mod retention;
mod room;
mod run_ids;
mod setbacks;
mod stats;
mod steadfast;
mod tail;
mod timekeeping;
mod timers;
mod view;

pub use catalog::{RegisterError, Registered};
pub use clock::{Clock, SteadyClock, Steps, SystemClock};
pub use commit::{AUTH_REQUIRED_WORKFLOW, asks_for_authentication, task_state};
pub use effect::{Attempt, Executor, HttpCall, Keep, Outcome, Request};
pub use engine::{Engine, Prepared, StartError};
pub use error::CommandError;
pub use holdings::WorkflowLimit;
pub use options::Options;
pub use push::{Courier, Parcel, Undelivered};
pub use pushes::Options as PushOptions;
pub use quarantine::QUARANTINED;
pub use recent::Decided;
pub use request::{Create, Done, Extras, NewMessage, NewReceiver, Once, Respond, Start};
pub use room::TIMES_DECIDED;
pub use stats::Stats;
pub use tail::Tail;
pub use view::{Events, View};

use wopr_store::{slots, turns};
