//! What one append writes: the [`Batch`] and its rows.
//!
//! Either every row of a batch is durable or none is. A batch appends to one run; what it
//! tells other runs are inbox rows of theirs, and the children it creates are new runs with an
//! empty log and one inbox row that says how to start.

use wopr_core::{
    ContentHash, NodeId, PrincipalId, RunId, RunKey, RunStatus, Seq, TenantId, Timestamp, WorkflowId,
};

use crate::{Epoch, NewPush};

/// What a batch costs beyond the bytes of its rows, roughly.
const OVERHEAD: usize = 1024;

/// What must hold for an append to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// The run does not exist yet.
    Create,
    /// The log holds exactly this many events.
    At(Seq),
}

/// All that commits together.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The run whose log grows.
    pub run: RunKey,
    /// What must hold.
    pub guard: Guard,
    /// The events; their sequence numbers continue the log without a gap.
    pub events: Vec<StoredEvent>,
    /// The summary row after the append. Of an existing run only the status and the time of the last append are
    /// written; the rest stays as it was created.
    pub summary: Summary,
    /// The A2A task row after the append; `None` leaves the row as it is.
    pub task: Option<TaskRow>,
    /// A fold of the log up to and including these events.
    pub snapshot: Option<Snapshot>,
    /// Timers to set, after those to clear are cleared; a timer with the same key is replaced.
    pub timers_set: Vec<TimerRow>,
    /// Timers to clear; a missing one is no error.
    pub timers_cleared: Vec<TimerKey>,
    /// Effects to enqueue, after those that are over are gone. Keys are new; a row that is there nevertheless is
    /// replaced under a larger fence.
    pub effects_enqueued: Vec<EffectRow>,
    /// Effects that are over.
    pub effects_settled: Vec<Settled>,
    /// Child runs to create: a summary and task row each, an empty log, one inbox row.
    pub children: Vec<ChildRow>,
    /// What other runs are told, after what these events account for is gone.
    pub inbox_sent: Vec<InboxRow>,
    /// Inbox rows of this run that these events account for: (source, source sequence). A missing one is no error.
    pub inbox_consumed: Vec<(RunId, Seq)>,
    /// The record of the request that caused this append.
    pub idempotency: Option<IdempotencyRecord>,
    /// A2A messages exchanged; one whose id the run knows already is ignored.
    pub messages: Vec<MessageRow>,
    /// Bytes that events refer to; one whose id the run knows already is ignored.
    pub blobs: Vec<BlobRow>,
    /// Somebody who wants to be told what happens.
    pub push: Option<Box<NewPush>>,
    /// Whether the run's work rows are handed out from now on.
    pub hold: Option<Hold>,
}

/// What an append does to all work rows of its run that are there by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// They are handed out no more; what is told of the run only if that was parked already.
    Park,
    /// Those that were parked are handed out again, as if nobody had died.
    Release,
}

impl Batch {
    /// A batch that writes events and a summary and nothing else.
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

    /// The number of events the log holds before this append.
    #[must_use]
    pub const fn expected(&self) -> Seq {
        match self.guard {
            Guard::Create => Seq(0),
            Guard::At(seq) => seq,
        }
    }

    /// The number of events the log holds after this append.
    #[must_use]
    pub fn head(&self) -> Seq {
        self.expected().plus(self.events.len())
    }

    /// About how many bytes it keeps alive while it waits.
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

/// One event as stored: its place and its versioned encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// Place in the log.
    pub seq: Seq,
    /// Encoding of `wopr_core::format`.
    pub body: Vec<u8>,
}

/// A fold of a log's prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// How many events are folded in.
    pub head: Seq,
    /// Encoding of `wopr_core::format`.
    pub body: Vec<u8>,
}

/// The row of a run that lists and guards read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The workflow.
    pub workflow: WorkflowId,
    /// The pinned version.
    pub version: ContentHash,
    /// Status after the append.
    pub status: RunStatus,
    /// Who created the run.
    pub principal: PrincipalId,
    /// The run and node that created it.
    pub parent: Option<(RunId, NodeId)>,
    /// Creation time.
    pub created_at: Timestamp,
    /// Time of the last append.
    pub updated_at: Timestamp,
}

/// The state of an A2A task, as RFC 0100 stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// `submitted`
    Submitted,
    /// `working`
    Working,
    /// `input-required`
    InputRequired,
    /// `auth-required`; never written by the forward projection.
    AuthRequired,
    /// `completed`
    Completed,
    /// `failed`
    Failed,
    /// `canceled`
    Canceled,
    /// `rejected`
    Rejected,
}

impl TaskState {
    /// Every state.
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

    /// The stored spelling, that of A2A 0.3.
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

    /// Reads the stored spelling.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// Which of the two kinds RFC 0100 names an `input-required` task waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskInterrupt {
    /// `approval`
    Approval,
    /// `clarification`
    Clarification,
}

/// The persisted `A2ATaskState` of a run (RFC 0100 §2). Task id and run id are the batch's run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRow {
    /// The A2A context.
    pub context: Option<String>,
    /// State after the append.
    pub state: TaskState,
    /// Present for the two kinds the record can name.
    pub interrupt: Option<TaskInterrupt>,
    /// When the state last changed.
    pub updated_at: Timestamp,
}

/// Names a timer within its run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerKey(pub String);

/// A timer: when `due` has come, the run gets the command the key stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimerRow {
    /// Its name.
    pub key: TimerKey,
    /// When it fires.
    pub due: Timestamp,
}

/// Names an effect within its run: `<node>:<ordinal>:<attempt>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EffectKey(pub String);

/// The right to settle one attempt. Grows each time a lease is handed out; an old one is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

impl Fence {
    /// Where the fences of something begin that may have been there before and was removed: behind those of then,
    /// for none is handed out a thousand times a second.
    pub(crate) fn first_at(now: Timestamp) -> Self {
        Self(u64::try_from(now.millis()).unwrap_or(0))
    }
}

/// An effect to enqueue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectRow {
    /// Its name.
    pub key: EffectKey,
    /// What to do; opaque to the store.
    pub body: Vec<u8>,
    /// If present the row is born leased to this epoch until this time, with fence 1; else it waits for a lease.
    pub leased: Option<(Epoch, Timestamp)>,
}

/// An effect that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// Its name.
    pub key: EffectKey,
    /// The lease the outcome was won under; a stale one refuses the whole batch with
    /// [`crate::AppendError::Fenced`], and so does a row that is gone. `None` drops the effect whoever holds it.
    pub fence: Option<Fence>,
}

/// A child run, created with its parent's append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildRow {
    /// The new run.
    pub run: RunId,
    /// Its summary, status pending.
    pub summary: Summary,
    /// Its task row.
    pub task: TaskRow,
}

/// What one run tells another. Keyed (target, source, source sequence), so telling it twice is telling it once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxRow {
    /// Who is told (same tenant as the batch).
    pub target: RunId,
    /// Who tells.
    pub source: RunId,
    /// The event of the source that says it.
    pub source_seq: Seq,
    /// What; opaque to the store.
    pub body: Vec<u8>,
}

/// Names a request that must take effect once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey {
    /// The tenant.
    pub tenant: TenantId,
    /// The caller.
    pub principal: PrincipalId,
    /// Method and path template, or the A2A scope.
    pub scope: String,
    /// The caller's key, hashed.
    pub key: String,
}

/// The record of a request that took effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyRecord {
    /// Its name.
    pub key: IdempotencyKey,
    /// Digest of the request; the same key with another digest is another request.
    pub digest: String,
    /// The run it acted on.
    pub run: Option<RunId>,
    /// The response to replay (status and body, opaque to the store); empty where only the run matters.
    pub response: Vec<u8>,
    /// When the record may be forgotten.
    pub expires_at: Timestamp,
}

/// An A2A message of a run's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRow {
    /// Unique within the run; order of exchange is (seq, id).
    pub id: String,
    /// The head of the log when the message was exchanged.
    pub seq: Seq,
    /// The message as the 1.0 model's JSON.
    pub body: Vec<u8>,
}

/// Bytes a run refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobRow {
    /// Unique within the run.
    pub id: String,
    /// Media type.
    pub media_type: String,
    /// The bytes.
    pub bytes: Vec<u8>,
}
