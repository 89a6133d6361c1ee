//! What one append writes: the [`Batch`] and its rows.
//!
//! A batch commits as a whole or not at all. It appends to one run. Messages to other runs are inbox rows of
//! those runs; each child it creates is a new run with an empty log and one inbox row that says how to start, or with a
//! log of its own and the work that it leaves.

use wopr_core::{
    ContentHash, InterruptKind, NodeId, PrincipalId, RunId, RunKey, RunStatus, Seq, TenantId, Timestamp,
    WorkflowId,
};

use crate::{Epoch, MemoryRow, NewPush, Offer, Queue, SpentRow};

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
    /// The summary row after the append. For an existing run only the phase and `updated_at` are written; the
    /// other columns keep their values from creation.
    pub summary: Summary,
    /// A fold of the log up to and including these events.
    pub snapshot: Option<Snapshot>,
    /// Work rows to remove.
    pub work_ended: Vec<Ended>,
    /// Work rows whose lease ends without removing them.
    pub work_parked: Vec<Parked>,
    /// Leases that the batch relies on, and that go on: a lost one refuses the whole batch with
    /// [`crate::AppendError::Fenced`].
    pub work_held: Vec<(WorkKey, Fence)>,
    /// Work rows that get another key, after `work_ended` and `work_parked` are applied.
    pub work_moved: Vec<Moved>,
    /// Work rows to create, after `work_ended` and `work_moved` are applied. An existing row is replaced: it loses its lease,
    /// gets a larger fence and has no deaths.
    pub work_set: Vec<WorkRow>,
    /// Child runs to create.
    pub children: Vec<ChildRow>,
    /// Messages to other runs, inserted after `inbox_consumed` is applied.
    pub inbox_sent: Vec<InboxRow>,
    /// Inbox rows of this run that these events account for: (source, source sequence). A missing row is not
    /// an error.
    pub inbox_consumed: Vec<(RunId, Seq)>,
    /// The record of the request that caused this append.
    pub idempotency: Option<IdempotencyRecord>,
    /// Messages exchanged with clients; a message whose id the run already has is ignored.
    pub messages: Vec<MessageRow>,
    /// Blobs that events refer to; a blob whose id the run already has is ignored.
    pub blobs: Vec<BlobRow>,
    /// What agents remember from now on.
    pub memory: Vec<MemoryRow>,
    /// What is added to the counts of the run's tenant.
    pub spent: Vec<SpentRow>,
    /// A subscription to create with this append.
    pub push: Option<Box<NewPush>>,
    /// Quarantines or releases the run's work and mailbox rows.
    pub hold: Option<Hold>,
}

/// Quarantines or releases the timers, effects and mailbox rows that the run has once the append is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Stops handing out the rows. The outbox row is affected only if it was already quarantined.
    Quarantine,
    /// Hands out quarantined rows again, with their death count reset.
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
            snapshot: None,
            work_ended: Vec::new(),
            work_parked: Vec::new(),
            work_held: Vec::new(),
            work_moved: Vec::new(),
            work_set: Vec::new(),
            children: Vec::new(),
            inbox_sent: Vec::new(),
            inbox_consumed: Vec::new(),
            idempotency: None,
            messages: Vec::new(),
            blobs: Vec::new(),
            memory: Vec::new(),
            spent: Vec::new(),
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

    /// The number of descendants with which a run begins that the batch creates. [`crate::Store::grant`] adds to it.
    pub(crate) const fn n_descendants(&self) -> u64 {
        self.children.len() as u64
    }

    /// Approximate memory in bytes that the batch holds while it waits.
    pub(crate) fn weight(&self) -> usize {
        let events: usize = self.events.iter().map(|event| event.body.len()).sum();
        let work: usize = self.work_set.iter().map(|row| row.body.len()).sum();
        let parked = self.work_parked.iter().filter_map(|row| row.body.as_ref());
        let parked: usize = parked.map(Vec::len).sum();
        let inbox: usize = self.inbox_sent.iter().map(|row| row.body.len()).sum();
        let messages: usize = self.messages.iter().map(|message| message.body.len()).sum();
        let blobs: usize = self.blobs.iter().map(|blob| blob.bytes.len()).sum();
        let snapshot = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.body.len());
        let idempotency = self.idempotency.as_ref();
        let response = idempotency.map_or(0, |record| record.response.len());
        let logs = self.children.iter().flat_map(|child| &child.events);
        let children = self.children.len() * OVERHEAD / 2 + logs.map(|event| event.body.len()).sum::<usize>();
        let left = self.children.iter().map(ChildRow::weight_of_rest).sum::<usize>();
        let push = self.push.as_ref().map_or(0, |push| push.row.body.len());
        let memory: usize = self.memory.iter().map(MemoryRow::size).sum();
        OVERHEAD
            + memory
            + events
            + work
            + parked
            + inbox
            + messages
            + blobs
            + snapshot
            + response
            + children
            + left
            + push
    }
}

impl ChildRow {
    /// Approximate memory in bytes of what the child has besides its log.
    fn weight_of_rest(&self) -> usize {
        let snapshot = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.body.len());
        snapshot + self.work.iter().map(|row| row.body.len()).sum::<usize>()
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
///
/// The run's *phase* is what `status`, `waiting_on` and `error_code` say together, and which questions are open. A turn of a
/// conversation asks for the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub workflow: WorkflowId,
    /// The version that the run is pinned to.
    pub version: ContentHash,
    /// The status after the append.
    pub status: RunStatus,
    /// The kind of the first open interrupt of a run that waits for an answer.
    pub waiting_on: Option<InterruptKind>,
    /// The code of the error of a failed run, at most [`ERROR_CODE_BYTES`] of it.
    pub error_code: Option<String>,
    /// When the phase last changed. The append that changes it has this as its `updated_at`.
    pub phase_since: Timestamp,
    /// The principal that created the run.
    pub principal: PrincipalId,
    /// The run and node that created this run.
    pub parent: Option<(RunId, NodeId)>,
    /// What the run shares with other runs that belong to the same conversation.
    pub group: Option<String>,
    /// The name that its creator gave the run. No two runs without a parent share one in a tenant; that of a child
    /// follows from its parent's.
    pub alias: Option<String>,
    pub created_at: Timestamp,
    /// When the last append happened.
    pub updated_at: Timestamp,
}

/// The part of an error code that a summary keeps, in bytes: indexes hold it.
pub const ERROR_CODE_BYTES: usize = 128;

impl Summary {
    /// The summary of a run that was just created.
    #[must_use]
    pub const fn new(
        workflow: WorkflowId,
        version: ContentHash,
        principal: PrincipalId,
        created_at: Timestamp,
    ) -> Self {
        Self {
            workflow,
            version,
            status: RunStatus::Pending,
            waiting_on: None,
            error_code: None,
            phase_since: created_at,
            principal,
            parent: None,
            group: None,
            alias: None,
            created_at,
            updated_at: created_at,
        }
    }

    /// The summary after an append at `now` that leaves the run in this phase.
    #[must_use]
    pub fn after(
        &self,
        status: RunStatus,
        waiting_on: Option<InterruptKind>,
        error_code: Option<&str>,
        now: Timestamp,
    ) -> Self {
        let error_code = error_code.map(|code| &code[..code.floor_char_boundary(ERROR_CODE_BYTES)]);
        let is_same =
            (self.status, self.waiting_on, self.error_code.as_deref()) == (status, waiting_on, error_code);
        Self {
            status,
            waiting_on,
            error_code: error_code.map(str::to_owned),
            phase_since: if is_same { self.phase_since } else { now },
            updated_at: now,
            ..self.clone()
        }
    }

    /// Returns `true` if the append with this summary may have changed the phase.
    pub(crate) fn may_begin_phase(&self) -> bool {
        self.phase_since == self.updated_at
    }
}

/// Names a work row within its run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkKey {
    pub queue: Queue,
    /// A timer's encoded command, an effect's `<ordinal>:<attempt>:<node>`, a word and the same for a delivery to
    /// the peer of a call, `KEPT:<ordinal>:<node>` for a call that may have to be recalled, or a subscription's id.
    pub name: String,
}

impl WorkKey {
    pub fn timer(name: impl Into<String>) -> Self {
        Self {
            queue: Queue::Timers,
            name: name.into(),
        }
    }

    pub fn effect(name: impl Into<String>) -> Self {
        Self {
            queue: Queue::Effects,
            name: name.into(),
        }
    }

    /// A delivery to the peer of a call. Its name begins with a lower-case letter, which attempts' names do not,
    /// so one index finds the deliveries.
    pub fn call_delivery(name: impl Into<String>) -> Self {
        let name = name.into();
        debug_assert!(
            name.starts_with(|first: char| first.is_ascii_lowercase()),
            "{name}"
        );
        Self {
            queue: Queue::Effects,
            name,
        }
    }

    /// Whether this is a delivery to the peer of a call.
    #[must_use]
    pub fn is_call_delivery(&self) -> bool {
        self.queue == Queue::Effects && self.name.as_str() >= "a"
    }

    pub fn delivery(name: impl Into<String>) -> Self {
        Self {
            queue: Queue::Deliveries,
            name: name.into(),
        }
    }
}

/// The fencing token of a lease. Each lease of a row gets a larger one; writes with a smaller one are
/// refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

impl Fence {
    /// The first fence of a row whose key may have been used before and removed. The time in milliseconds
    /// exceeds every earlier fence, because no row is leased a thousand times a second.
    fn first_at(now: Timestamp) -> Self {
        Self(u64::try_from(now.millis()).unwrap_or(0))
    }
}

/// A row of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkRow {
    pub key: WorkKey,
    pub state: WorkState,
    /// What to do; opaque to the store. Empty if the key says it all.
    pub body: Vec<u8>,
}

/// The state in which a work row is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkState {
    /// The row can be leased from this time on.
    Due(Timestamp),
    /// The row is leased to this epoch until this time. The fence of an effect created so is 1.
    Leased(Epoch, Timestamp),
    /// The row waits until it is woken.
    Parked,
    /// The row waits in a worker queue; see [`crate::Offers`].
    Offered(Offer),
}

impl WorkState {
    /// The columns `due` and `epoch`.
    pub(crate) const fn columns(&self) -> (Option<Timestamp>, Option<Epoch>) {
        match self {
            Self::Due(due) => (Some(*due), None),
            Self::Leased(epoch, until) => (Some(*until), Some(*epoch)),
            Self::Parked | Self::Offered(_) => (None, None),
        }
    }

    /// The columns `worker_queue` and `ready`.
    pub(crate) const fn offer(&self) -> Option<&Offer> {
        match self {
            Self::Offered(offer) => Some(offer),
            Self::Due(_) | Self::Leased(..) | Self::Parked => None,
        }
    }
}

impl WorkRow {
    /// A timer. When it is due, the run gets the command that the name encodes.
    pub fn timer(name: impl Into<String>, due: Timestamp) -> Self {
        Self {
            key: WorkKey::timer(name),
            state: WorkState::Due(due),
            body: Vec::new(),
        }
    }

    /// The fence of the row if its key is new; `now` is the time of the write.
    pub(crate) fn first_fence(&self, now: Timestamp) -> Fence {
        match self.key.queue {
            // Each attempt has a key of its own.
            Queue::Effects => Fence(u64::from(matches!(self.state, WorkState::Leased(..)))),
            Queue::Timers | Queue::Deliveries => Fence::first_at(now),
        }
    }

    /// The work row of a new subscription.
    pub(crate) fn subscription(id: &str) -> Self {
        Self {
            key: WorkKey::delivery(id),
            state: WorkState::Parked,
            body: Vec::new(),
        }
    }
}

/// A work row to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub key: WorkKey,
    /// The fence of the lease that produced the outcome. A stale fence or a missing row refuses the whole
    /// batch with [`crate::AppendError::Fenced`]. `None` removes the row in any state; a missing row is not
    /// an error.
    pub fence: Option<Fence>,
}

/// A work row whose lease ends while the row stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parked {
    pub key: WorkKey,
    /// The fence of the lease. If the lease is lost, the whole batch is refused with
    /// [`crate::AppendError::Fenced`].
    pub fence: Fence,
    /// When the row can be leased again; `None` if it waits until it is woken. As with
    /// [`crate::Then::Park`].
    pub due: Option<Timestamp>,
    /// Replaces the body of the row.
    pub body: Option<Vec<u8>>,
}

/// A work row that gets another key and keeps its body, because it is to be done in another way. It is offered to no
/// worker any more. A row that has that key
/// already is replaced. If there is no row to move, nothing happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    pub key: WorkKey,
    /// The new key, in the same queue.
    pub to: WorkKey,
    /// The fence of the lease, which then ends; its deaths are forgotten. A stale fence or a missing row refuses the
    /// whole batch with [`crate::AppendError::Fenced`]. With `None`, a row that is leased stays so under its new
    /// key, with its fence.
    pub fence: Option<Fence>,
    /// When a row without lease can be leased; `None` if it waits until it is woken.
    pub due: Option<Timestamp>,
}

/// A child run, created with its parent's append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildRow {
    pub run: RunId,
    /// The summary after the events: pending if there are none.
    pub summary: Summary,
    /// The log of a child that was decided with its parent. Empty if the child starts by a message.
    pub events: Vec<StoredEvent>,
    /// A fold of all these events.
    pub snapshot: Option<Snapshot>,
    /// The work that they leave. No two rows have the same key.
    pub work: Vec<WorkRow>,
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
    /// What the key is unique within, such as a method and a path template.
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

/// A message in the history of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRow {
    /// Unique within the run. Messages are ordered by `seq`, and those with the same `seq` as they were appended.
    pub id: String,
    /// The head of the log when the message was exchanged.
    pub seq: Seq,
    /// Opaque to the store.
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
