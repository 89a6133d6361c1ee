//! The port to the outside: what the engine asks an executor to do, and what it gets back.
//!
//! An effect is at-least-once with a stable key: the same key reaches the outside on every attempt of one
//! logical invocation, so a peer that honours idempotency keys sees one. The engine leases, retries and
//! records; an executor only performs one attempt.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use wopr_core::RunKey;

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

/// An HTTP call. Shown without what could be secret.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct HttpCall {
    /// Upper-case method.
    pub method: String,
    /// Absolute URL.
    pub url: String,
    /// Header fields, in order.
    pub headers: Vec<(String, String)>,
    /// JSON body; `None` sends none.
    pub body: Option<Value>,
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

/// Performs attempts.
#[async_trait]
pub trait Executor: Send + Sync + fmt::Debug + 'static {
    /// Performs one attempt and always comes back: time limits are the executor's.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt; whether the outside saw it is unknown, as with a crash.
    async fn run(&self, attempt: Attempt) -> Outcome;
}
