//! Renders runs and events as OpenWOP v1 documents.
//!
//! This is the only place where ids become strings and stored types become wire types. Rendering is pure: the
//! same run or event and the same mask always give the same document.

mod event;
mod interrupt;
mod snapshot;

use wopr_core::{RunStatus, Timestamp};
use wopr_wire::{openwop::run, time};

pub use event::{Log, Payload, Shown, event_id, event_type, is_same_shown, names_run, owned};
pub(crate) use event::{failure_details, why_not};
pub(crate) use interrupt::resume_schema;
pub use snapshot::snapshot;
pub use wopr_app::Mask;

/// The engine version in events.
pub const ENGINE_VERSION: u32 = 1;
/// The same as a text.
const ENGINE_VERSION_TEXT: &str = "1";
pub const EVENT_LOG_SCHEMA_VERSION: u32 = 2;

#[must_use]
/// The spelling of a status.
pub const fn status_word(status: RunStatus) -> &'static str {
    status.as_str()
}

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

#[must_use]
pub const fn time(at: Timestamp) -> time::Timestamp {
    time::Timestamp::from_millis(at.millis())
}
