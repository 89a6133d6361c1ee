//! Transports: ways to agents that have tasks, but no card.
//!
//! The task API of the Agent Workflow Protocol is one. An embedder adds its own by [`AgentTransport`], under the name
//! by which workflows call the agent: to reach a runtime that speaks something else, or code in this process.
//!
//! A transport submits a task, and says what has become of it. The host does the rest: it records the task before the
//! run goes on, looks at it at the transport's interval, also after a restart, and follows cancels and answers.

use std::{fmt::Debug, time::Duration};

use async_trait::async_trait;
use serde_json::Value;
use wopr_core::{TenantId, TraceContext};

use super::tasks_http::{CREDENTIALS_MISSING, PROVIDER_ERROR};
use crate::{
    a2a::{Error, Polling, RemoteTask, TaskApi},
    http::refused_by_gate,
};

/// A way to an agent. Every method may be called again after a restart, with the same arguments.
#[async_trait]
pub trait AgentTransport: Debug + Send + Sync {
    /// How often a task is looked at, how long it may take, and what its questions do.
    fn polling(&self) -> Polling {
        Polling::default()
    }

    /// Submits a task. Every attempt has the same key and the same correlation id: an agent that has the task already
    /// answers with it.
    async fn submit(&self, task: NewTask<'_>) -> Result<RemoteTask, TransportError>;

    /// Looks at a task.
    async fn get(&self, task: TaskOf<'_>) -> Result<RemoteTask, TransportError>;

    /// Cancels a task that the run no longer needs. A task that has ended stays unchanged. A failure that is `retryable`
    /// is tried again for a day. By default, the agent goes on with the task.
    async fn cancel(&self, _task: TaskOf<'_>) -> Result<(), TransportError> {
        Ok(())
    }

    /// Whether an answer to a question of the agent can be sent. If not, the answer is the result of the call, and the
    /// agent is not told.
    fn takes_answers(&self) -> bool {
        false
    }

    /// Sends what somebody has answered. The key is the same in every attempt at one answer.
    async fn answer(&self, _task: TaskOf<'_>, _answer: &Value, _key: &str) -> Result<(), TransportError> {
        Ok(())
    }
}

/// A task to submit.
#[derive(Debug, Clone, Copy)]
pub struct NewTask<'a> {
    pub tenant: &'a TenantId,
    /// The agent that is asked, in the transport's words.
    pub agent_id: &'a str,
    /// The workflow's name for the task.
    pub correlation_id: &'a str,
    /// By which an agent recognizes a repeated submission.
    pub idempotency_key: &'a str,
    pub input: &'a Value,
    pub trace: Option<&'a TraceContext>,
}

/// A task that was submitted.
#[derive(Debug, Clone, Copy)]
pub struct TaskOf<'a> {
    pub tenant: &'a TenantId,
    pub id: &'a str,
}

/// The error of a transport.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TransportError {
    /// The code with which the call fails.
    pub code: String,
    pub message: String,
    /// The failure may pass: the host tries again.
    pub retryable: bool,
    pub retry_after: Option<Duration>,
}

impl TransportError {
    /// A failure that stays.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            code: PROVIDER_ERROR.to_owned(),
            message: message.into(),
            retryable: false,
            retry_after: None,
        }
    }

    /// A failure that may pass.
    #[must_use]
    pub fn transient(message: impl Into<String>) -> Self {
        Self {
            retryable: true,
            ..Self::new(message)
        }
    }
}

impl From<Error> for TransportError {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::CredentialMissing { .. } => CREDENTIALS_MISSING,
            _ => PROVIDER_ERROR,
        };
        let said = match &error {
            Error::Status(status) => status.message.as_str(),
            Error::Remote(remote) => remote.message.as_str(),
            _ => "",
        };
        let message = match (&error, said) {
            (Error::Policy(refused), _) => refused_by_gate(refused),
            (_, "") => format!("failed to {error}"),
            (_, said) => format!("failed to {error}: {said}"),
        };
        Self {
            code: code.to_owned(),
            message,
            retryable: error.is_transient(),
            retry_after: error.retry_after(),
        }
    }
}

/// The task API. It has no way to cancel a task, nor to answer a question.
#[async_trait]
impl AgentTransport for TaskApi {
    fn polling(&self) -> Polling {
        Self::polling(self)
    }

    async fn submit(&self, task: NewTask<'_>) -> Result<RemoteTask, TransportError> {
        let NewTask {
            agent_id,
            correlation_id,
            idempotency_key,
            input,
            ..
        } = task;
        let submitted = Self::submit(self, agent_id, correlation_id, idempotency_key, input).await;
        submitted.map_err(TransportError::from)
    }

    async fn get(&self, task: TaskOf<'_>) -> Result<RemoteTask, TransportError> {
        Self::get(self, task.id).await.map_err(TransportError::from)
    }
}
