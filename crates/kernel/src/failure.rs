//! Failures of nodes and runs: a stable code, and a text that clients may read.

use serde::{Deserialize, Serialize};

/// The code of a run that declined its request.
pub const REJECTED: &str = "rejected";

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
}

impl Failure {
    /// A failure that is not retryable.
    #[must_use]
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
            retryable: false,
            reason: None,
        }
    }

    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }
}
