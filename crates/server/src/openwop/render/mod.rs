//! Views: runs and events as OpenWOP v1 shows them.
//!
//! This is the one seam where ids become texts and stored types become wire types. Rendering is pure: the same
//! run or event gives the same document, whoever asks and however often.

mod event;
mod snapshot;

use std::sync::Arc;

use serde_json::Value;
use wopr_core::{NodeId, Object, Plan, RunStatus, Timestamp};
use wopr_wire::{openwop::run, time};

pub use event::{event, event_id, event_type};
pub use snapshot::snapshot;

/// What stands for a value that is kept from views.
pub const REDACTED: &str = "[REDACTED]";
/// The version of the engine, as events carry it.
pub const ENGINE_VERSION: u32 = 1;
/// The version of the log's contract.
pub const EVENT_LOG_SCHEMA_VERSION: u32 = 2;

/// What a workflow keeps from views: variables, channels and outputs that it marks as sensitive.
#[derive(Debug, Clone, Default)]
pub struct Mask(Option<Arc<Plan>>);

/// Outputs of gates that an answer becomes as a whole.
const WHOLE_ANSWERS: [&str; 3] = ["answers", "event", "resumeValue"];

impl Mask {
    /// What a workflow keeps to itself.
    #[must_use]
    pub fn of(plan: &Arc<Plan>) -> Self {
        Self(plan.has_sensitive().then(|| Arc::clone(plan)))
    }

    /// Whether an output is kept from views.
    #[must_use]
    pub fn hides_output(&self, node: &NodeId, port: &str) -> bool {
        let plan = self.0.as_ref();
        plan.is_some_and(|plan| plan.is_sensitive_output(node, port))
    }

    /// An object whose members are named like variables or channels, or like nodes with their outputs.
    #[must_use]
    pub fn object(&self, object: &Object) -> Object {
        if self.0.is_none() {
            return object.clone();
        }
        let member = |(name, value): (&String, &Value)| (name.clone(), self.value(name, value));
        object.iter().map(member).collect()
    }

    /// The value of a variable or a channel, or of what carries a node's name.
    #[must_use]
    pub fn value(&self, name: &str, value: &Value) -> Value {
        let Some(plan) = &self.0 else { return value.clone() };
        if plan.is_sensitive(name) {
            return redacted();
        }
        match (NodeId::parse(name), value) {
            (Ok(node), Value::Object(outputs)) => Value::Object(self.outputs(&node, outputs)),
            _ => value.clone(),
        }
    }

    /// The outputs of a node.
    #[must_use]
    pub fn outputs(&self, node: &NodeId, outputs: &Object) -> Object {
        let member = |(port, value): (&String, &Value)| (port.clone(), self.output(node, port, value));
        outputs.iter().map(member).collect()
    }

    /// One output of a node.
    #[must_use]
    pub fn output(&self, node: &NodeId, port: &str, value: &Value) -> Value {
        if self.hides_output(node, port) {
            redacted()
        } else {
            value.clone()
        }
    }

    /// What a run ended with: the outputs of its last node, or of its last ones by their names.
    #[must_use]
    pub fn result(&self, outputs: &Object) -> Object {
        let Some(plan) = &self.0 else {
            return outputs.clone();
        };
        let member = |(name, value): (&String, &Value)| {
            let shown = if plan.is_sensitive_result(name) {
                redacted()
            } else {
                self.value(name, value)
            };
            (name.clone(), shown)
        };
        outputs.iter().map(member).collect()
    }

    /// What a node was answered, which becomes its outputs.
    #[must_use]
    pub fn answer(&self, node: &NodeId, answer: &Value) -> Value {
        match answer {
            _ if WHOLE_ANSWERS.iter().any(|port| self.hides_output(node, port)) => redacted(),
            Value::Object(parts) => Value::Object(self.outputs(node, parts)),
            other => other.clone(),
        }
    }
}

fn redacted() -> Value {
    Value::String(REDACTED.to_owned())
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
