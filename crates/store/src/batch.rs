//! What one append writes: the [`Batch`] and its rows.
//!
//! A batch commits as a whole or not at all. It appends to one run. Messages to other runs are inbox rows of
//! those runs; each child it creates is a new run with an empty log and one inbox row that says how to start.

use wopr_core::{
    ContentHash, NodeId, PrincipalId, RunId, RunKey, RunStatus, Seq, TenantId, Timestamp, WorkflowId,
};

use crate::{Epoch, NewPush};

/// Approximate memory in bytes that a batch takes beyond the bodies of its rows.
const OVERHEAD: usize = 1024;

/// The precondition of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// The run does not exist yet.
    Create,
    /// The log holds exactly this many events.
    At(Seq),
}

/// Everything that commits in one append.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The run whose log grows.
    pub run: RunKey,
    pub guard: Guard,
    /// Their sequence numbers continue the log without a gap.
    pub events: Vec<StoredEvent>,
    /// The summary row after the append. For an existing run only the status and `updated_at` are written;
    /// the other columns keep their values from creation.
    pub summary: Summary,
    /// The A2A task row after the append; `None` leaves the row unchanged.
    pub task: Option<TaskRow>,
    /// A fold of the log up to and including these events.
    pub snapshot: Option<Snapshot>,
    /// Timers to set, after `timers_cleared` is applied; a timer with the same key is replaced.
    pub timers_set: Vec<TimerRow>,
    /// Timers to clear; a missing timer is not an error.
    pub timers_cleared: Vec<TimerKey>,
    /// Effects to enqueue, after `effects_settled` is applied. Keys are expected to be new; an existing row
    /// is replaced and gets a larger fence.
    pub effects_enqueued: Vec<EffectRow>,
    pub effects_settled: Vec<Settled>,
    /// Child runs to create, each with an empty log.
    pub children: Vec<ChildRow>,
    /// Messages to other runs, inserted after `inbox_consumed` is applied.
    pub inbox_sent: Vec<InboxRow>,
    /// Inbox rows of this run that these events account for: (source, source sequence). A missing row is not
    /// an error.
    pub inbox_consumed: Vec<(RunId, Seq)>,
    /// The record of the request that caused this append.
    pub idempotency: Option<IdempotencyRecord>,
    /// A2A messages exchanged; a message whose id the run already has is ignored.
    pub messages: Vec<MessageRow>,
    /// Blobs that events refer to; a blob whose id the run already has is ignored.
    pub blobs: Vec<BlobRow>,
    /// A subscription to create with this append.
    pub push: Option<Box<NewPush>>,
    /// Parks or releases the run's work rows.
    pub hold: Option<Hold>,
}

/// Parks or releases all work rows that the run has once the append is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Stops handing out the rows. The outbox row is affected only if it was already parked.
    Park,
    /// Hands out parked rows again, with their death count reset.
    Release,
}

impl Batch {
    /// Creates a batch of events and a summary, with nothing else.
    #[must_use]
    pub fn new(run: RunKey, guard: Guard, events: Vec<StoredEvent>, summary: Summary) -> Self {
        Self {
            run,
            guard,
            events,
            summary,
            task: None,
            snapshot: None,
            timers_set: Vec::new(),
            timers_cleared: Vec::new(),
            effects_enqueued: Vec::new(),
            effects_settled: Vec::new(),
            children: Vec::new(),
            inbox_sent: Vec::new(),
            inbox_consumed: Vec::new(),
            idempotency: None,
            messages: Vec::new(),
            blobs: Vec::new(),
            push: None,
            hold: None,
        }
    }

    /// The number of events in the log before this append.
    #[must_use]
    pub const fn expected(&self) -> Seq {
        match self.guard {
            Guard::Create => Seq(0),
            Guard::At(seq) => seq,
        }
    }

    /// The number of events in the log after this append.
    #[must_use]
    pub fn head(&self) -> Seq {
        self.expected().plus(self.events.len())
    }

    /// Approximate memory in bytes that the batch holds while it waits.
    pub(crate) fn weight(&self) -> usize {
        let events: usize = self.events.iter().map(|event| event.body.len()).sum();
        let effects: usize = self.effects_enqueued.iter().map(|row| row.body.len()).sum();
        let inbox: usize = self.inbox_sent.iter().map(|row| row.body.len()).sum();
        let messages: usize = self.messages.iter().map(|message| message.body.len()).sum();
        let blobs: usize = self.blobs.iter().map(|blob| blob.bytes.len()).sum();
        let snapshot = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.body.len());
        let idempotency = self.idempotency.as_ref();
        let response = idempotency.map_or(0, |record| record.response.len());
        let children = self.children.len() * OVERHEAD / 2;
        let push = self.push.as_ref().map_or(0, |push| push.row.body.len());
        OVERHEAD + events + effects + inbox + messages + blobs + snapshot + response + children + push
    }
}

/// An event as stored: its position and its versioned encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    pub seq: Seq,
    /// Encoded by `wopr_core::format`.
    pub body: Vec<u8>,
}

/// A fold of a prefix of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The number of events folded in.
    pub head: Seq,
    /// Encoded by `wopr_core::format`.
    pub body: Vec<u8>,
}

/// The row of a run that lists and guards read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub workflow: WorkflowId,
    /// The version that the run is pinned to.
    pub version: ContentHash,
    /// The status after the append.
    pub status: RunStatus,
    /// The principal that created the run.
    pub principal: PrincipalId,
    /// The run and node that created this run.
    pub parent: Option<(RunId, NodeId)>,
    pub created_at: Timestamp,
    /// When the last append happened.
    pub updated_at: Timestamp,
}

/// The state of an A2A task, as RFC 0100 stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskState {
    Submitted,
    Working,
    InputRequired,
    /// Never written by the forward projection.
    AuthRequired,
    Completed,
    Failed,
    Canceled,
    Rejected,
}

impl TaskState {
    pub const ALL: [Self; 8] = [
        Self::Submitted,
        Self::Working,
        Self::InputRequired,
        Self::AuthRequired,
        Self::Completed,
        Self::Failed,
        Self::Canceled,
        Self::Rejected,
    ];

    /// The stored spelling, which is that of A2A 0.3.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Working => "working",
            Self::InputRequired => "input-required",
            Self::AuthRequired => "auth-required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
            Self::Rejected => "rejected",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// The two kinds of interrupt that RFC 0100 distinguishes for an `input-required` task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskInterrupt {
    Approval,
    Clarification,
}

/// The persisted `A2ATaskState` of a run (RFC 0100 §2). The task id is the run id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRow {
    pub context: Option<String>,
    /// The state after the append.
    pub state: TaskState,
    /// `None` for kinds that RFC 0100 does not distinguish.
    pub interrupt: Option<TaskInterrupt>,
    /// When the state last changed.
    pub updated_at: Timestamp,
}

/// Names a timer within its run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerKey(pub String);

/// A timer. When it is due, the run gets the command that the key encodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimerRow {
    pub key: TimerKey,
    pub due: Timestamp,
}

/// Names an effect within its run: `<node>:<ordinal>:<attempt>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EffectKey(pub String);

/// The fencing token of a lease. Each lease of a row gets a larger one; writes with a smaller one are
/// refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

impl Fence {
    /// The first fence of a row whose key may have been used before and removed. The time in milliseconds
    /// exceeds every earlier fence, because no row is leased a thousand times a second.
    pub(crate) fn first_at(now: Timestamp) -> Self {
        Self(u64::try_from(now.millis()).unwrap_or(0))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectRow {
    pub key: EffectKey,
    /// What to execute; opaque to the store.
    pub body: Vec<u8>,
    /// If present, the row is created leased to this epoch until this time, with fence 1; otherwise it waits
    /// to be leased.
    pub leased: Option<(Epoch, Timestamp)>,
}

/// An effect that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    pub key: EffectKey,
    /// The fence of the attempt that produced the outcome. A stale fence or a missing row refuses the whole
    /// batch with [`crate::AppendError::Fenced`]. `None` removes the effect regardless of its lease.
    pub fence: Option<Fence>,
}

/// A child run, created with its parent's append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildRow {
    pub run: RunId,
    /// The initial summary, with status pending.
    pub summary: Summary,
    pub task: TaskRow,
}

/// A message from one run to another. Keyed by (target, source, source sequence), so inserting it twice has
/// no further effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxRow {
    /// The receiving run, in the tenant of the batch.
    pub target: RunId,
    /// The sending run.
    pub source: RunId,
    /// The event of the source that caused the message.
    pub source_seq: Seq,
    /// Opaque to the store.
    pub body: Vec<u8>,
}

/// Names a request that must take effect only once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey {
    pub tenant: TenantId,
    /// The caller.
    pub principal: PrincipalId,
    /// Method and path template, or the A2A scope.
    pub scope: String,
    /// Hash of the key that the caller sent.
    pub key: String,
}

/// The record of a request that took effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyRecord {
    pub key: IdempotencyKey,
    /// Digest of the request; the same key with another digest is a different request.
    pub digest: String,
    /// The run that the request acted on.
    pub run: Option<RunId>,
    /// The response to replay (status and body, opaque to the store); empty if only the run matters.
    pub response: Vec<u8>,
    /// When the record may be deleted.
    pub expires_at: Timestamp,
}

/// An A2A message in the history of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRow {
    /// Unique within the run; messages are ordered by (seq, id).
    pub id: String,
    /// The head of the log when the message was exchanged.
    pub seq: Seq,
    /// The message as JSON of the A2A 1.0 model.
    pub body: Vec<u8>,
}

/// Binary data that a run refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobRow {
    /// Unique within the run.
    pub id: String,
    pub media_type: String,
    pub bytes: Vec<u8>,
}
