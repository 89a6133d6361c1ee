//! Views: runs and events as OpenWOP v1 shows them.
//!
//! This is the one seam where ids become texts and stored types become wire types. Rendering is pure: the same
//! run or event gives the same document through the same mask, however often.

mod event;
mod snapshot;

use wopr_core::{RunStatus, Timestamp};
use wopr_wire::{openwop::run, time};

pub use event::{event, event_id, event_type};
pub use snapshot::snapshot;
pub use wopr_app::Mask;

/// The version of the app, as events carry it.
pub const ENGINE_VERSION: u32 = 1;
/// The version of the log's contract.
pub const EVENT_LOG_SCHEMA_VERSION: u32 = 2;

/// A status as the wire types have it.
#[must_use]
pub const fn status(status: RunStatus) -> run::RunStatus {
    match status {
        RunStatus::Pending => run::RunStatus::Pending,
        RunStatus::Running => run::RunStatus::Running,
        RunStatus::Paused => run::RunStatus::Paused,
        RunStatus::WaitingApproval => run::RunStatus::WaitingApproval,
        RunStatus::WaitingInput => run::RunStatus::WaitingInput,
        RunStatus::WaitingExternal => run::RunStatus::WaitingExternal,
        RunStatus::Completed => run::RunStatus::Completed,
        RunStatus::Failed => run::RunStatus::Failed,
        RunStatus::Cancelling => run::RunStatus::Cancelling,
        RunStatus::Cancelled => run::RunStatus::Cancelled,
    }
}

/// A point in time as the wire types have it.
#[must_use]
pub const fn time(at: Timestamp) -> time::Timestamp {
    time::Timestamp::from_millis(at.millis())
}
