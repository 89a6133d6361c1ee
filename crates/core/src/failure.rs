//! What went wrong with a node or a run: a stable code and a text a client may read.

use serde::{Deserialize, Serialize};

/// The code of a run that declined what it was asked to do; only `core.a2a.reject` fails with it.
pub const REJECTED: &str = "rejected";

/// The error of a node or a run, as the log keeps it and every face shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Stable code of the OpenWOP catalogue or a workflow's own.
    pub code: String,
    /// Text for people; no internals.
    pub message: String,
    /// Whether another attempt could succeed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retryable: bool,
    /// Tells apart what has one code: a gate that timed out from one that was rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Failure {
    /// A failure that another attempt would repeat.
    #[must_use]
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
            retryable: false,
            reason: None,
        }
    }

    /// The failure with its reason.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }
}
