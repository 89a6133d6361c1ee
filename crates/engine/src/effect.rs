//! The port for effects: requests to an executor, and their outcomes.
//!
//! Effects are at-least-once with a stable idempotency key: all attempts of one logical invocation send the
//! same key, so a peer that honors it performs the invocation once. The engine leases, retries and records;
//! an executor performs a single attempt.

use std::{any::Any, fmt, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use wopr_core::{
    Activity, AgentCall, MemoryCall, ModelCall, Produced, RemoteQuestion, RunKey, SecretHeader, StepId,
    TenantId, ToolQuery, ToolRequest, TraceContext, provider, value_size,
};

use crate::{Blobs, Estimate, ScriptedModel};

/// The request of an effect, as stored in its row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// An HTTP call through the egress gate.
    Http(HttpCall),
    /// Work for a worker: parked until its outcome is submitted.
    Activity(Activity),
    /// A message to another agent: parked while the agent works on it.
    Agent(Box<AgentCall>),
    /// A request to a model.
    Model(Box<ModelCall>),
    /// A call of a tool on a tool server.
    Tool(Box<ToolRequest>),
    /// A look at the tools of tool servers.
    ToolList(Box<ToolQuery>),
    /// Reads what agents remember, or prepares what they write. The engine performs it itself.
    Memory(Box<MemoryCall>),
    /// The conformance suite's countable side effect: appends a line to a ledger.
    SideEffect { payload: Value },
}

impl Request {
    /// Whether the call may be made again when nobody knows whether it was made. What its server says of a tool is not
    /// known here, so a tool may only if its node says so.
    #[must_use]
    pub fn may_be_repeated(&self) -> bool {
        match self {
            Self::Tool(call) => call.retry_safe == Some(true),
            Self::Http(_)
            | Self::Activity(_)
            | Self::Agent(_)
            | Self::Model(_)
            | Self::ToolList(_)
            | Self::Memory(_)
            | Self::SideEffect { .. } => true,
        }
    }

    /// The type of the call, as [`wopr_core::Call::provider`].
    pub(crate) const fn provider(&self) -> &'static str {
        match self {
            Self::Http(_) => provider::HTTP,
            Self::Activity(_) => provider::ACTIVITY,
            Self::Agent(_) => provider::AGENT,
            Self::Model(_) => provider::MODEL,
            Self::Tool(_) => provider::TOOL,
            Self::ToolList(_) => provider::TOOL_LIST,
            Self::Memory(_) => provider::MEMORY,
            Self::SideEffect { .. } => provider::SIDE_EFFECT,
        }
    }

    /// Whether the run waits on after the peer has taken the call, and has it cancelled when it ends early.
    pub(crate) const fn is_followed(&self) -> bool {
        match self {
            Self::Agent(call) => call.verb.is_followed(),
            Self::Http(_)
            | Self::Activity(_)
            | Self::Memory(_)
            | Self::Model(_)
            | Self::Tool(_)
            | Self::ToolList(_)
            | Self::SideEffect { .. } => true,
        }
    }

    /// Bytes taken while an attempt is running.
    pub(crate) fn n_bytes(&self) -> usize {
        match self {
            Self::Http(call) => {
                let headers = call.headers.iter();
                let n_bytes = headers.map(|(name, value)| name.len() + value.len());
                call.url.len() + n_bytes.sum::<usize>() + call.body.as_ref().map_or(0, String::len)
            }
            Self::Activity(activity) => value_size(&activity.input),
            Self::Agent(call) => call.size(),
            Self::Model(call) => call.size(),
            Self::Tool(call) => call.size(),
            Self::ToolList(query) => query.size(),
            Self::Memory(call) => call.size(),
            Self::SideEffect { payload } => value_size(payload),
        }
    }
}

/// An HTTP call. `Debug` omits everything that may be secret.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct HttpCall {
    /// Upper-case method.
    pub method: String,
    /// Absolute URL.
    pub url: String,
    /// Header fields, in order.
    pub headers: Vec<(String, String)>,
    /// Headers with secrets, which the call only names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secret_headers: Vec<SecretHeader>,
    /// JSON text, which takes no more memory than its length.
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

#[derive(Debug, Clone)]
pub struct Attempt {
    pub run: RunKey,
    pub step: StepId,
    /// The number of the attempt, from 0.
    pub attempt: u32,
    /// How many calls the step has made before this one.
    pub number: u32,
    /// An earlier attempt, or this one in another process, may have reached the peer.
    pub is_repeat: bool,
    /// An earlier process began this very attempt, and nobody knows how far it came.
    pub is_interrupted: bool,
    /// The same for all attempts and restarts; sent as `Idempotency-Key` where the protocol has one.
    pub idempotency_key: String,
    /// W3C trace context to propagate.
    pub trace: Option<TraceContext>,
    pub request: Request,
    /// Present if the peer has accepted the call before: by this the executor finds it again.
    pub handle: Option<Value>,
    /// How much of what the peer makes is in the run's log, as the executor reported it.
    pub cursor: Option<Value>,
    /// Makes the executor look at the call again, once it is parked.
    pub wake: Wake,
    /// Records what the peer makes while the attempt goes on.
    pub progress: Progress,
    /// Reads the files of messages that the request names.
    pub blobs: Blobs,
    /// Holds the executor's permits until the outcome is recorded.
    pub keep: Keep,
}

/// Wakes a parked call. It may outlive the call, which it then leaves alone.
#[derive(Clone)]
pub struct Wake(Arc<dyn Fn() -> Waking + Send + Sync>);

/// The future of a wake.
pub type Waking = Pin<Box<dyn Future<Output = bool> + Send>>;

impl Wake {
    /// Calls a function to wake the call; it returns `false` if the call is over.
    pub fn new(wake: impl Fn() -> Waking + Send + Sync + 'static) -> Self {
        Self(Arc::new(wake))
    }

    /// Wakes nothing.
    #[must_use]
    pub fn none() -> Self {
        Self::new(|| Box::pin(async { false }))
    }

    /// Has the call looked at now, or as soon as it is parked. Returns `false` if it is over.
    pub async fn now(&self) -> bool {
        (self.0)().await
    }
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wake").finish_non_exhaustive()
    }
}

/// Records what the peer of a call makes, under the lease of its attempt.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn(Vec<Produced>) -> Recording + Send + Sync>);

/// The future of a [`Progress`].
pub type Recording = Pin<Box<dyn Future<Output = Result<(), Lost>> + Send>>;

/// Nobody waits for the attempt any more, or what it made could not be recorded. The executor may as well end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("record what an attempt made")]
pub struct Lost;

impl Progress {
    /// Calls a function to record.
    pub fn new(record: impl Fn(Vec<Produced>) -> Recording + Send + Sync + 'static) -> Self {
        Self(Arc::new(record))
    }

    /// Records nothing.
    #[must_use]
    pub fn none() -> Self {
        Self::new(|_| Box::pin(async { Ok(()) }))
    }

    /// Records what was made. It is durable once this returns.
    ///
    /// # Errors
    /// The attempt has lost its lease, its run no longer waits for it, or the store fails.
    pub async fn made(&self, produced: Vec<Produced>) -> Result<(), Lost> {
        (self.0)(produced).await
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").finish_non_exhaustive()
    }
}

/// Holds permits for the memory of an outcome until the outcome is recorded.
#[derive(Clone, Default)]
pub struct Keep(Arc<Mutex<Vec<Box<dyn Any + Send>>>>);

impl Keep {
    /// Drops `held` once the outcome of the attempt is recorded or discarded.
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

#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The value becomes the outputs of the node.
    Done(Value),
    /// `retryable` failures are retried according to the node's policy.
    Failed {
        /// A stable code, for example `external_call_failed`.
        code: String,
        /// Safe to show to clients.
        message: String,
        /// Another attempt could succeed.
        retryable: bool,
        /// The backoff that the peer requested.
        retry_after: Option<Duration>,
        /// The peer may have the call, and go on with it.
        may_go_on: bool,
        /// The peer took too long.
        is_timeout: bool,
    },
    /// This host gives up the call, and the peer may go on with it. The call fails, without another attempt, and
    /// the peer is told to stop until it listens.
    GivenUp {
        /// By which the executor finds the call again; the one that it was accepted with where absent.
        handle: Option<Value>,
        /// A stable code.
        code: String,
        /// Safe to show to clients.
        message: String,
    },
    /// The peer has cancelled the call, which cancels the run.
    Cancelled {
        /// Safe to show to clients.
        reason: String,
    },
}

impl Outcome {
    /// The same failure, as one of a peer that took too long.
    #[must_use]
    pub fn timed_out(mut self) -> Self {
        if let Self::Failed { is_timeout, .. } = &mut self {
            *is_timeout = true;
        }
        self
    }

    /// Bytes taken until the outcome is recorded.
    pub(crate) fn n_bytes(&self) -> usize {
        match self {
            Self::Done(outputs) => value_size(outputs),
            Self::GivenUp { handle, message, .. } => message.len() + handle.as_ref().map_or(0, value_size),
            Self::Failed { message: text, .. } | Self::Cancelled { reason: text } => text.len(),
        }
    }
}

/// How an attempt ended for now.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// The peer has taken the call and goes on with it. The attempt is parked, without slot and lease, until the
    /// time is over or it is woken.
    Accepted {
        /// By which the executor finds the call again: at most 64 KiB of JSON.
        handle: Value,
        check_after: Option<Duration>,
    },
    /// The peer asks something, and goes on when it is answered. Otherwise like `Accepted`: the handle is another
    /// one than before it asked.
    Interrupted {
        handle: Value,
        question: RemoteQuestion,
        check_after: Option<Duration>,
    },
    /// The peer is still at it. Writes nothing to the log.
    Unchanged {
        check_after: Option<Duration>,
    },
    Ended(Outcome),
    /// The peer has made something; what else is known of the call. Both are recorded at once.
    Produced {
        produced: Vec<Produced>,
        /// By which the executor knows what is recorded: at most 64 KiB of JSON.
        cursor: Value,
        then: Box<Report>,
    },
}

impl From<Outcome> for Report {
    fn from(outcome: Outcome) -> Self {
        Self::Ended(outcome)
    }
}

/// An accepted call whose run no longer waits for it.
#[derive(Debug, Clone)]
pub struct Cancellation {
    pub run: RunKey,
    /// The type of the call.
    pub provider: String,
    pub idempotency_key: String,
    pub trace: Option<TraceContext>,
    pub handle: Value,
}

/// A call that its run no longer waits for, and that its peer may have all the same: no acceptance is recorded.
#[derive(Debug, Clone)]
pub struct Recalling {
    pub run: RunKey,
    pub step: StepId,
    pub attempt: u32,
    /// How many calls the step had made before this one.
    pub number: u32,
    /// As of its attempts.
    pub idempotency_key: String,
    pub trace: Option<TraceContext>,
    pub request: Request,
    /// Reads the files of messages that the request names.
    pub blobs: Blobs,
}

/// What the peer of such a call has.
#[derive(Debug, Clone, PartialEq)]
pub enum Recalled {
    /// This, which is to be cancelled: at most 64 KiB of JSON.
    Found(Value),
    /// Nothing yet, and looking changes nothing. The peer is asked once more a little later.
    Nothing,
    /// Nothing that could be cancelled, now or later.
    Over,
    /// The peer got the request once more, and how it answered was lost, for this reason. It gets the request a few more
    /// times at most.
    Unanswered(String),
    /// The peer got the request once more, and answered what this host cannot use, for this reason. It does not get the
    /// request again.
    Unusable(String),
}

/// The answer to what the peer of an accepted call asked.
#[derive(Debug, Clone)]
pub struct Answering {
    pub run: RunKey,
    /// The type of the call.
    pub provider: String,
    /// The same for all attempts at this answer, and another one for the next answer.
    pub idempotency_key: String,
    pub trace: Option<TraceContext>,
    pub handle: Value,
    /// The interrupt that was answered.
    pub interrupt: String,
    pub value: Value,
}

/// What became of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Answered {
    /// The peer has it and goes on; its call is looked at next.
    Taken,
    /// The peer has ended the call.
    Ended(Outcome),
}

/// Why a peer could not be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tell the peer: {reason}")]
pub struct CancelError {
    reason: String,
    retry_after: Option<Duration>,
}

impl CancelError {
    #[must_use]
    pub const fn new(reason: String) -> Self {
        Self {
            reason,
            retry_after: None,
        }
    }

    /// Has the next try wait for as long as the peer asks for, at least.
    #[must_use]
    pub fn after(mut self, retry_after: Option<Duration>) -> Self {
        self.retry_after = retry_after;
        self
    }

    pub(crate) const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

#[async_trait]
pub trait Executor: Send + Sync + fmt::Debug + 'static {
    /// Performs one attempt, or looks at a call that was accepted. Must always return: enforcing time limits is
    /// up to the executor.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt. As after a crash, it is unknown whether the peer saw the
    /// request.
    async fn run(&self, attempt: Attempt) -> Report;

    /// Tells the peer of an accepted call the answer to what it asked. A failure is tried again for a day.
    async fn answer(&self, _answer: Answering) -> Result<Answered, CancelError> {
        Ok(Answered::Taken)
    }

    /// Whether the peer of a call of this type may go on with it on its own once it has the request. Such a call is
    /// recalled if its run drops it before it is accepted. It must not be one that a pause may cut (see
    /// [`wopr_core::provider::may_be_cut`]).
    fn may_go_on(&self, provider: &str) -> bool {
        provider == provider::AGENT
    }

    /// The model whose replies a test writes, if this host has one. Replays ask it again.
    fn scripted_model(&self) -> Option<&dyn ScriptedModel> {
        None
    }

    /// What a call to a model may take at most, as far as that is known before.
    fn estimate(&self, _tenant: &TenantId, call: &ModelCall) -> Estimate {
        Estimate {
            tokens: call.max_tokens.unwrap_or(0),
            cost_micros: 0,
        }
    }

    /// Looks for what the peer of a dropped call has. The engine repeats a failure for a day.
    async fn recall(&self, _call: Recalling) -> Result<Recalled, CancelError> {
        Ok(Recalled::Nothing)
    }

    /// Tells the peer to stop a call that its run no longer waits for. The engine repeats a failure for a day.
    async fn cancel(&self, _call: Cancellation) -> Result<(), CancelError> {
        Ok(())
    }
}
