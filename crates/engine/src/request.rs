//! Requests to the engine and their results.

use std::sync::Arc;

use wopr_core::{Object, Origin, Plan, PrincipalId, RunId, Seq, TenantId, Timestamp, TraceContext};
use wopr_store::{BlobRow, IdempotencyKey, IdempotencyRecord, MemoryRow, PushRow};

use crate::View;

/// Parameters of a new run that the caller chooses.
#[derive(Debug, Clone)]
pub struct Start {
    pub tenant: TenantId,
    pub principal: PrincipalId,
    /// The protocol of the request.
    pub origin: Origin,
    pub inputs: Object,
    /// Overrides for this run.
    pub configurable: Object,
    pub tags: Vec<String>,
    pub metadata: Object,
    /// The group of runs that this one belongs to.
    pub context: Option<String>,
    /// W3C trace context of the request, propagated to the run's outgoing calls.
    pub trace: Option<TraceContext>,
}

#[derive(Debug)]
pub struct Create {
    /// From [`crate::Engine::new_run_id`].
    pub run: RunId,
    pub workflow: Arc<Plan>,
    pub start: Start,
    /// Rows committed together with the first append.
    pub side_rows: SideRows,
}

/// Rows committed together with a command.
#[derive(Debug, Default)]
pub struct SideRows {
    /// Makes the command take effect at most once.
    pub idempotency: Option<Idempotency>,
    /// The messages exchanged.
    pub messages: Vec<NewMessage>,
    /// Files that the run refers to.
    pub blobs: Vec<BlobRow>,
    /// What agents remember without an event of this command.
    pub memory: Vec<MemoryRow>,
    /// A subscription to the events from this command on. It exists if and only if the command takes effect.
    pub push: Option<NewSubscription>,
    /// The caller is answered from the run itself and does not read its log next, so the log need not be
    /// cached if the command ends the run.
    pub is_log_unread: bool,
    /// If the decision stops at its limit, the caller sends the run's `continue` timer itself, at once. The timer is
    /// then due only a little later.
    pub continues: bool,
}

/// A subscription to register with a command.
#[derive(Debug, Clone)]
pub struct NewSubscription {
    /// The run to subscribe to. Not necessarily the run that receives the command: for an answer to a child
    /// it is the ancestor that the client knows.
    pub run: RunId,
    /// Replaces a subscription with the same id.
    pub row: PushRow,
    /// Maximum subscriptions of the run.
    pub most: usize,
}

#[derive(Debug, Clone)]
pub struct NewMessage {
    /// Unique within the run.
    pub id: String,
    /// The head of the log when the message came, if that is not the head after this append.
    pub seen: Option<Seq>,
    pub body: Vec<u8>,
}

/// Creates the response to replay, from the run as it is after the append.
pub type Respond = Arc<dyn Fn(&View) -> Vec<u8> + Send + Sync>;

/// Makes a command take effect at most once.
#[derive(Clone)]
pub struct Idempotency {
    pub key: IdempotencyKey,
    /// Digest of the request.
    pub digest: String,
    /// When the record may be deleted.
    pub expires_at: Timestamp,
    pub respond: Respond,
}

impl std::fmt::Debug for Idempotency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Idempotency")
            .field("scope", &self.key.scope)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub enum Done {
    /// The command took effect now. Holds the run after it.
    Fresh(View),
    /// The command had taken effect before. Holds its record.
    Replayed(IdempotencyRecord),
}
