//! The log port: one append verb, and the reads that views are built from.

use async_trait::async_trait;
use wopr_core::{RunId, RunKey, RunStatus, Seq, TenantId, Timestamp, WorkflowId, parsed_size};

use crate::{
    AppendError, Batch, BlobRow, IdempotencyKey, IdempotencyRecord, InboxRow, MessageRow, ReadError,
    Snapshot, StoredEvent, Summary, WriteError,
};

/// Maximum body bytes in a page of events or of an inbox. The row that reaches the limit is still included.
pub const PAGE_BYTES: usize = 4 << 20;

/// Maximum number of inbox rows read by one load.
pub const INBOX_ROWS: usize = 512;

/// Bytes of the messages that are read at once.
pub const MESSAGES_BYTES: usize = 16 << 20;

#[async_trait]
pub trait Log: Send + Sync + 'static {
    /// Appends a batch atomically.
    ///
    /// When this returns `Ok`, every row of the batch is durable and visible to every later read. When it
    /// returns an error other than [`AppendError::Unknown`], nothing was written.
    ///
    /// # Errors
    /// If several checks fail, the first one in this order is reported: an unexpired record under the batch's
    /// idempotency key, a stale lease, a conflict on the run, a child that already exists (a `Conflict` with
    /// `expected` 0 and the child's head), the subscription. A new run without a parent whose alias another one has is a
    /// `Conflict` with `expected` 0. A record is unexpired if it expires after the
    /// batch's `updated_at`.
    ///
    /// # Panics
    /// If the batch breaks an invariant of its type: the events do not continue the log, the snapshot has
    /// another head, a child is named twice, or a new child gets a subscription.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the append: it may still commit.
    async fn append(&self, batch: Batch) -> Result<(), AppendError>;

    /// Reads everything needed to fold a run and decide, as of one moment, if its bodies total at most `most`
    /// bytes. For a heavier run, only the size is read.
    async fn load_within(&self, run: &RunKey, most: usize) -> Result<Option<Load>, ReadError>;

    /// Like [`Log::load_within`], without a limit. Not for runs of unknown size.
    async fn load(&self, run: &RunKey) -> Result<Option<Loaded>, ReadError> {
        match self.load_within(run, usize::MAX).await? {
            Some(Load::Whole(loaded)) => Ok(Some(*loaded)),
            Some(Load::Heavy(weight)) => {
                Err(ReadError::Corrupt(format!("{run} weighs {weight} bytes").into()))
            }
            None => Ok(None),
        }
    }

    /// Reads the summary row of a run and the number of events in its log.
    async fn summary(&self, run: &RunKey) -> Result<Option<(Summary, Seq)>, ReadError>;

    /// Finds the run without a parent that has this alias.
    async fn run_of_alias(&self, tenant: &TenantId, alias: &str) -> Result<Option<RunId>, ReadError>;

    /// Reads the number of events of each run, in the order given; `None` for a missing run.
    async fn heads(&self, runs: &[RunKey]) -> Result<Vec<Option<Seq>>, ReadError>;

    /// Returns `true` if other processes may append to these logs too.
    fn is_shared(&self) -> bool {
        false
    }

    /// Reads events starting at `from`, with the run's status and head as of the same moment. Returns at most
    /// `limit` events, and fewer if their bodies reach [`PAGE_BYTES`]. The first event is always included,
    /// however large it is.
    async fn events(&self, run: &RunKey, from: Seq, limit: usize) -> Result<Option<EventPage>, ReadError>;

    /// Lists the runs of a tenant, newest first, after the given run.
    async fn list_runs(
        &self,
        tenant: &TenantId,
        filter: &RunFilter,
        after: Option<&RunId>,
        limit: usize,
    ) -> Result<RunPage, ReadError>;

    /// Lists the runs of a tenant after the cursor, those that most recently changed their phase first.
    async fn list_by_phase(
        &self,
        tenant: &TenantId,
        filter: &PhaseFilter,
        after: Option<&PhaseCursor>,
        limit: usize,
    ) -> Result<PhasePage, ReadError>;

    /// Reads the newest `limit` messages of a run, oldest first. Those before the newest are left out from where the
    /// bodies have more than [`MESSAGES_BYTES`].
    async fn messages(&self, run: &RunKey, limit: usize) -> Result<Vec<MessageRow>, ReadError>;

    async fn blob(&self, run: &RunKey, id: &str) -> Result<Option<BlobRow>, ReadError>;

    /// Reads the record of a request, unless it has expired at `now`.
    async fn idempotency(
        &self,
        key: &IdempotencyKey,
        now: Timestamp,
    ) -> Result<Option<IdempotencyRecord>, ReadError>;

    /// Records a request that needed no append. If an unexpired record already exists, keeps and returns that
    /// one.
    async fn remember(
        &self,
        record: IdempotencyRecord,
        now: Timestamp,
    ) -> Result<Option<IdempotencyRecord>, WriteError>;

    /// Deletes at most `limit` idempotency records that have expired at `now` and returns how many.
    async fn forget_expired(&self, now: Timestamp, limit: usize) -> Result<usize, WriteError>;
}

/// The result of a load with a size limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Load {
    /// The run is within the limit.
    Whole(Box<Loaded>),
    /// The run exceeds the limit; holds the approximate size of its bodies in bytes. No body was read.
    Heavy(usize),
}

/// A run as loaded for a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    pub summary: Summary,
    /// Number of events in the log.
    pub head: Seq,
    /// The newest snapshot.
    pub snapshot: Option<Snapshot>,
    /// The events after the snapshot.
    pub tail: Vec<StoredEvent>,
    /// Unconsumed messages from other runs, oldest first: at most [`INBOX_ROWS`], and fewer if their bodies
    /// reach [`PAGE_BYTES`].
    pub inbox: Vec<InboxRow>,
}

impl Loaded {
    /// Returns `true` if the inbox may hold more rows than were read.
    #[must_use]
    pub fn is_inbox_cut(&self) -> bool {
        let n_bytes: usize = self.inbox.iter().map(|row| row.body.len()).sum();
        self.inbox.len() >= INBOX_ROWS || n_bytes >= PAGE_BYTES
    }

    /// Approximate memory in bytes that all bodies take once decoded. Small bodies count at their stored
    /// size.
    #[must_use]
    pub fn parsed_size(&self) -> usize {
        const SMALL: usize = 4 << 10;
        let snapshot = self.snapshot.as_ref().map(|snapshot| &snapshot.body);
        let tail = self.tail.iter().map(|event| &event.body);
        let inbox = self.inbox.iter().map(|row| &row.body);
        let size = |body: &Vec<u8>| match body.len() {
            small @ ..=SMALL => small,
            _ => parsed_size(body),
        };
        snapshot.into_iter().chain(tail).chain(inbox).map(size).sum()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPage {
    pub events: Vec<StoredEvent>,
    /// Number of events in the log.
    pub head: Seq,
    /// The run's status as of `head`.
    pub status: RunStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Empty means any status.
    pub statuses: Vec<RunStatus>,
    pub workflow: Option<WorkflowId>,
    /// Only children of this run.
    pub parent: Option<RunId>,
    /// Only runs created by this principal.
    pub principal: Option<wopr_core::PrincipalId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPage {
    /// Newest first.
    pub runs: Vec<(RunId, Summary, Seq)>,
    pub has_more: bool,
}

/// A condition on one column.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Match<T> {
    Is(T),
    /// Another value, or none.
    IsNot(T),
}

impl<T: PartialEq> Match<T> {
    /// Returns `true` if the value meets the condition.
    pub fn accepts(&self, value: Option<&T>) -> bool {
        match self {
            Self::Is(wanted) => value == Some(wanted),
            Self::IsNot(other) => value != Some(other),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct PhaseFilter {
    pub group: Option<String>,
    /// Empty means any status.
    pub statuses: Vec<RunStatus>,
    pub error_code: Option<Match<String>>,
    pub workflow: Option<Match<WorkflowId>>,
    /// Only runs whose phase changed at or after this time.
    pub since: Option<Timestamp>,
    /// Only runs created by this principal.
    pub principal: Option<wopr_core::PrincipalId>,
}

impl PhaseFilter {
    /// Returns `true` if a run with this summary meets every condition.
    #[must_use]
    pub fn accepts(&self, run: &Summary) -> bool {
        let Self {
            group,
            statuses,
            error_code,
            workflow,
            since,
            principal,
        } = self;
        let mut error_code = error_code.iter();
        let mut workflow = workflow.iter();
        (group.is_none() || *group == run.group)
            && (statuses.is_empty() || statuses.contains(&run.status))
            && error_code.all(|code| code.accepts(run.error_code.as_ref()))
            && workflow.all(|workflow| workflow.accepts(Some(&run.workflow)))
            && since.is_none_or(|since| run.phase_since >= since)
            && principal.as_ref().is_none_or(|creator| run.principal == *creator)
    }
}

/// A position in the list of runs by phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhaseCursor {
    /// When the last run seen changed its phase.
    pub since: Timestamp,
    /// The last run seen.
    pub run: RunId,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhasePage {
    /// The latest change of phase first; ties by run id, descending.
    pub runs: Vec<(RunId, Summary)>,
    /// Number of matching runs on all pages.
    pub total: u64,
    pub has_more: bool,
}
