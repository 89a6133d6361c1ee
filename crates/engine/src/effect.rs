//! The port to the outside: what the engine asks an executor to do, and what it gets back.
//!
//! An effect is at-least-once with a stable key: the same key reaches the outside on every attempt of one
//! logical invocation, so a peer that honours idempotency keys sees one. The engine leases, retries and
//! records; an executor only performs one attempt.

use std::{any::Any, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use wopr_core::{RunKey, value_size};

/// What to do, as stored in the effect's row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Request {
    /// An HTTP call through the egress gate.
    Http(HttpCall),
    /// The conformance suite's countable side effect: appends a line to a ledger.
    SideEffect {
        /// What to record.
        payload: Value,
    },
}

impl Request {
    /// The bytes it takes while it is attempted.
    pub(crate) fn n_bytes(&self) -> usize {
        match self {
            Self::Http(call) => {
                let headers = call.headers.iter();
                let n_bytes = headers.map(|(name, value)| name.len() + value.len());
                call.url.len() + n_bytes.sum::<usize>() + call.body.as_ref().map_or(0, String::len)
            }
            Self::SideEffect { payload } => value_size(payload),
        }
    }
}

/// An HTTP call. Shown without what could be secret.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct HttpCall {
    /// Upper-case method.
    pub method: String,
    /// Absolute URL.
    pub url: String,
    /// Header fields, in order.
    pub headers: Vec<(String, String)>,
    /// Body, as JSON text, which takes no more memory than its length; `None` sends none.
    pub body: Option<String>,
    /// Time limit of one attempt.
    pub timeout_ms: u64,
}

impl fmt::Debug for HttpCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("HttpCall")
            .field("method", &self.method)
            .field("headers", &names)
            .finish_non_exhaustive()
    }
}

/// One attempt to perform.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The run it belongs to.
    pub run: RunKey,
    /// Stable over attempts and restarts; sent as `Idempotency-Key` where the protocol has one.
    pub idempotency_key: String,
    /// W3C trace context to propagate.
    pub traceparent: Option<String>,
    /// What to do.
    pub request: Request,
    /// Keeps what the executor holds for the outcome.
    pub keep: Keep,
}

/// Keeps what an executor holds of a budget, for the memory of its outcome, until the outcome is recorded.
#[derive(Clone, Default)]
pub struct Keep(Arc<Mutex<Vec<Box<dyn Any + Send>>>>);

impl Keep {
    /// Drops something once the outcome of the attempt is recorded, or nobody wants it.
    pub fn until_recorded(&self, held: impl Any + Send) {
        self.0.lock().push(Box::new(held));
    }

    pub(crate) fn let_go(&self) {
        drop(std::mem::take(&mut *self.0.lock()));
    }
}

impl fmt::Debug for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Keep").field(&self.0.lock().len()).finish()
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Done; the outputs become the node's.
    Done(Value),
    /// Not done. `retryable` failures are retried as the node's policy says.
    Failed {
        /// Stable code, for example `external_call_failed`.
        code: String,
        /// What a client may read.
        message: String,
        /// Whether another attempt could succeed.
        retryable: bool,
        /// How long the peer asks to be left alone.
        retry_after: Option<Duration>,
    },
}

impl Outcome {
    /// The bytes it takes until it is recorded.
    pub(crate) fn n_bytes(&self) -> usize {
        match self {
            Self::Done(outputs) => value_size(outputs),
            Self::Failed { message, .. } => message.len(),
        }
    }
}

/// Performs attempts.
#[async_trait]
pub trait Executor: Send + Sync + fmt::Debug + 'static {
    /// Performs one attempt and always comes back: time limits are the executor's.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt; whether the outside saw it is unknown, as with a crash.
    async fn run(&self, attempt: Attempt) -> Outcome;
}
