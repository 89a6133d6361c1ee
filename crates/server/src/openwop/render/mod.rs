//! Views: runs and events as OpenWOP v1 shows them.
//!
//! This is the one seam where ids become texts and stored types become wire types. Rendering is pure: the same
//! run or event gives the same document, whoever asks and however often.

mod event;
mod snapshot;

use std::sync::Arc;

use serde_json::Value;
use wopr_core::{Object, Plan, RunStatus, Timestamp};
use wopr_wire::{openwop::run, time};

pub use event::{event, event_id, event_type};
pub use snapshot::snapshot;

/// What stands for a value that is kept from views.
pub const REDACTED: &str = "[REDACTED]";
/// The version of the engine, as events carry it.
pub const ENGINE_VERSION: u32 = 1;
/// The version of the log's contract.
pub const EVENT_LOG_SCHEMA_VERSION: u32 = 2;

/// The variables whose values are kept from views.
#[derive(Debug, Clone, Default)]
pub struct Mask(Option<Arc<[String]>>);

impl Mask {
    /// The sensitive variables of a workflow.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let names: Vec<_> = plan
            .variables()
            .iter()
            .filter(|variable| variable.sensitive)
            .map(|variable| variable.name.clone())
            .collect();
        Self((!names.is_empty()).then(|| names.into()))
    }

    /// Whether a variable is kept from views.
    #[must_use]
    pub fn hides(&self, name: &str) -> bool {
        self.0
            .as_ref()
            .is_some_and(|names| names.iter().any(|hidden| hidden == name))
    }

    /// An object whose members are named like variables.
    #[must_use]
    pub fn object(&self, object: &Object) -> Object {
        if self.0.is_none() {
            return object.clone();
        }
        let member = |(name, value): (&String, &Value)| (name.clone(), self.value(name, value));
        object.iter().map(member).collect()
    }

    /// The value of a variable.
    #[must_use]
    pub fn value(&self, name: &str, value: &Value) -> Value {
        if self.hides(name) {
            Value::String(REDACTED.to_owned())
        } else {
            value.clone()
        }
    }
}

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
