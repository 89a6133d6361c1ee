//! Failures of nodes and runs: a stable code, and a text that clients may read.

use serde::{Deserialize, Serialize};

use crate::{RunId, RunStatus};

/// The code of a run that declined its request.
pub const REJECTED: &str = "rejected";
/// The reason of a failure of a call whose peer took too long.
pub const TIMED_OUT: &str = "timeout";

/// The error of a node or a run, as the log stores it and every protocol shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// A stable code: of the host, or one that the workflow defines.
    pub code: String,
    /// Human-readable; contains no internals.
    pub message: String,
    /// Whether another attempt could succeed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retryable: bool,
    /// Distinguishes failures with the same code, such as a gate that timed out from one that was rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The worker without whose failure there would be none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Box<WorkerFailure>>,
}

/// Why a worker did not do its work. Each part is bounded, as a run keeps the last one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerFailure {
    /// The worker, as whoever handed the work over names it.
    pub worker: String,
    /// Absent if no run could be created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<RunId>,
    pub code: String,
    pub message: String,
    /// Whether the texts are those of a peer or a model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_untrusted: bool,
}

/// Longest name of a worker, and longest code, in bytes.
const MAX_NAME: usize = 256;
/// Longest message of a worker's failure, in bytes.
const MAX_MESSAGE: usize = 1024;

impl WorkerFailure {
    #[must_use]
    pub fn new(worker: &str, child: Option<&RunId>, error: &Failure, is_untrusted: bool) -> Self {
        Self {
            worker: cut(worker, MAX_NAME),
            child: child.cloned(),
            code: cut(&error.code, MAX_NAME),
            message: cut(&error.told(), MAX_MESSAGE),
            is_untrusted: is_untrusted || error.worker.as_ref().is_some_and(|worker| worker.is_untrusted),
        }
    }
}

fn cut(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most.min(text.len()))].to_owned()
}

impl Failure {
    /// The failure of a step whose child run ended like this, and not in success.
    #[must_use]
    pub fn of_child(status: RunStatus, error: Option<&Self>) -> Self {
        match (status, error) {
            (RunStatus::Cancelled, _) => {
                Self::new("subworkflow_child_cancelled", "the child run was cancelled")
            }
            (_, Some(error)) => {
                let message = format!("the child run failed: {}: {}", error.code, error.told());
                let failure = Self::new("subworkflow_child_failed", message);
                match &error.reason {
                    Some(reason) => failure.because(reason.clone()),
                    None => failure,
                }
            }
            (_, None) => Self::new("subworkflow_child_failed", "the child run failed"),
        }
    }

    /// A failure that is not retryable.
    #[must_use]
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
            retryable: false,
            reason: None,
            worker: None,
        }
    }

    /// What failed, and the worker that made it fail.
    #[must_use]
    pub fn told(&self) -> String {
        match &self.worker {
            None => self.message.clone(),
            Some(worker) => format!(
                "{}; worker '{}' failed last: {}: {}",
                self.message, worker.worker, worker.code, worker.message
            ),
        }
    }

    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }
}
