//! What faces ask of the engine, and what they get.

use std::sync::Arc;

use wopr_core::{Object, Origin, Plan, PrincipalId, RunId, TenantId, Timestamp};
use wopr_store::{BlobRow, IdempotencyKey, IdempotencyRecord, PushRow};

use crate::View;

/// How a run is begun, as a face knows it.
#[derive(Debug, Clone)]
pub struct Start {
    /// The owner.
    pub tenant: TenantId,
    /// Who starts it.
    pub principal: PrincipalId,
    /// Through which face.
    pub origin: Origin,
    /// What it is given.
    pub inputs: Object,
    /// Per-run overrides.
    pub configurable: Object,
    /// Labels.
    pub tags: Vec<String>,
    /// Kept with it.
    pub metadata: Object,
    /// The A2A context.
    pub context: Option<String>,
    /// W3C trace context of the request, for the run's calls to the outside.
    pub trace: Option<String>,
}

/// A run to create.
#[derive(Debug)]
pub struct Create {
    /// Its id, from [`crate::Engine::new_run_id`].
    pub run: RunId,
    /// The version of the workflow that it runs.
    pub workflow: Arc<Plan>,
    /// How it is begun.
    pub start: Start,
    /// What commits with it.
    pub side_rows: SideRows,
}

/// Side rows of a command.
#[derive(Debug, Default)]
pub struct SideRows {
    /// Makes the command take effect once.
    pub idempotency: Option<Idempotency>,
    /// A2A messages exchanged.
    pub messages: Vec<NewMessage>,
    /// Bytes the run refers to.
    pub blobs: Vec<BlobRow>,
    /// Who is told what happens to the run from this command on; there if and only if the command takes effect.
    pub push: Option<NewSubscription>,
    /// Claims that who asks is answered from the run itself and does not read its log next, so that the log of a run
    /// that ends need not be kept in memory for that.
    pub is_log_unread: bool,
}

/// Somebody who wants to be told what happens to a run.
#[derive(Debug, Clone)]
pub struct NewSubscription {
    /// The run, which need not be the one that takes the command: an answer to a child is told of as its parent's.
    pub run: RunId,
    /// Who, and where; one of the same id is replaced.
    pub row: PushRow,
    /// Most receivers the run may have.
    pub most: usize,
}

/// An A2A message to keep.
#[derive(Debug, Clone)]
pub struct NewMessage {
    /// Unique within the run.
    pub id: String,
    /// The message.
    pub body: Vec<u8>,
}

/// Makes the response to replay from the run as it is after the append.
pub type Respond = Arc<dyn Fn(&View) -> Vec<u8> + Send + Sync>;

/// Makes a command take effect once.
#[derive(Clone)]
pub struct Idempotency {
    /// Names the request.
    pub key: IdempotencyKey,
    /// Digest of the request.
    pub digest: String,
    /// When the record may be forgotten.
    pub expires_at: Timestamp,
    /// Makes the response to replay.
    pub respond: Respond,
}

impl std::fmt::Debug for Idempotency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Idempotency")
            .field("scope", &self.key.scope)
            .finish_non_exhaustive()
    }
}

/// How a command ended.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "the large variant is the common one and is moved once"
)]
pub enum Done {
    /// It took effect; the run as it is now.
    Fresh(View),
    /// It had taken effect before.
    Replayed(IdempotencyRecord),
}
