//! The log port: one append verb, and the reads that views are made of.

use async_trait::async_trait;
use wopr_core::{RunId, RunKey, RunStatus, Seq, TenantId, Timestamp, WorkflowId, parsed_size};

use crate::{
    AppendError, Batch, BlobRow, IdempotencyKey, IdempotencyRecord, InboxRow, MessageRow, ReadError,
    Snapshot, StoredEvent, Summary, TaskRow, TaskState, WriteError,
};

/// A page of events, or of an inbox, ends with the row that brings its bodies to so many bytes.
pub const PAGE_BYTES: usize = 4 << 20;

/// The most inbox rows that a load reads.
pub const INBOX_ROWS: usize = 512;

/// Appending to and reading from the logs of runs.
#[async_trait]
pub trait Log: Send + Sync + 'static {
    /// Appends a batch.
    ///
    /// When this returns `Ok`, every row of the batch is durable and visible to every later read.
    /// When it returns an error other than [`AppendError::Unknown`], nothing of it is.
    ///
    /// # Errors
    /// See [`AppendError`]. An existing unexpired record under the batch's idempotency key wins over every
    /// other reason to refuse; a stale lease wins over a conflict; a conflict of the run wins over one of a child
    /// that exists already, which is told with the child's place and expected 0; what is wrong with a receiver comes
    /// last. The batch's `updated_at` is the time a record has to outlive.
    ///
    /// # Panics
    /// If the batch breaks what its type promises: events that do not continue the log, a snapshot of another
    /// head, a child named twice, a receiver of a child.
    ///
    /// # Cancel safety
    /// Dropping the future does not take the append back: it may still commit.
    async fn append(&self, batch: Batch) -> Result<(), AppendError>;

    /// Reads what is needed to fold a run and to decide, all of it as of one moment, if the bodies are at most so many
    /// bytes. Of a heavier run only the weight is read.
    async fn load_within(&self, run: &RunKey, most: usize) -> Result<Option<Load>, ReadError>;

    /// The same, whatever the run weighs. Not for runs of unknown weight.
    async fn load(&self, run: &RunKey) -> Result<Option<Loaded>, ReadError> {
        match self.load_within(run, usize::MAX).await? {
            Some(Load::Whole(loaded)) => Ok(Some(*loaded)),
            Some(Load::Heavy(weight)) => Err(ReadError::Corrupt(format!("{run} weighs {weight} bytes"))),
            None => Ok(None),
        }
    }

    /// Reads the summary row and the number of events of a run.
    async fn summary(&self, run: &RunKey) -> Result<Option<(Summary, Seq)>, ReadError>;

    /// Reads the numbers of events of some runs, in their order; `None` for one that is not there.
    async fn heads(&self, runs: &[RunKey]) -> Result<Vec<Option<Seq>>, ReadError>;

    /// Whether other processes may append to these logs too.
    fn is_shared(&self) -> bool {
        false
    }

    /// Reads events from a position on, with the run's status and head as of the same moment: at most `limit`, and fewer
    /// if they reach [`PAGE_BYTES`]. However large it is, the first event is always read.
    async fn events(&self, run: &RunKey, from: Seq, limit: usize) -> Result<Option<EventPage>, ReadError>;

    /// Lists runs of a tenant, newest first, after the given run.
    async fn list_runs(
        &self,
        tenant: &TenantId,
        filter: &RunFilter,
        after: Option<&RunId>,
        limit: usize,
    ) -> Result<RunPage, ReadError>;

    /// Reads the task row of a run with the run's head.
    async fn task(&self, run: &RunKey) -> Result<Option<(TaskRow, Seq)>, ReadError>;

    /// Lists task rows, the most recently changed first, after the given place.
    async fn list_tasks(
        &self,
        tenant: &TenantId,
        filter: &TaskFilter,
        after: Option<&TaskCursor>,
        limit: usize,
    ) -> Result<TaskPage, ReadError>;

    /// Reads the newest `limit` messages of a run, oldest first.
    async fn messages(&self, run: &RunKey, limit: usize) -> Result<Vec<MessageRow>, ReadError>;

    /// Reads a blob.
    async fn blob(&self, run: &RunKey, id: &str) -> Result<Option<BlobRow>, ReadError>;

    /// Reads the unexpired record of a request.
    async fn idempotency(
        &self,
        key: &IdempotencyKey,
        now: Timestamp,
    ) -> Result<Option<IdempotencyRecord>, ReadError>;

    /// Records a request that needed no append. An unexpired record that is already there stays and is returned.
    async fn remember(
        &self,
        record: IdempotencyRecord,
        now: Timestamp,
    ) -> Result<Option<IdempotencyRecord>, WriteError>;

    /// Deletes idempotency records that are expired at `now`, at most `limit`, and says how many.
    async fn forget_expired(&self, now: Timestamp, limit: usize) -> Result<usize, WriteError>;
}

/// What a load with a bound on its weight comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Load {
    /// The run is within the bound.
    Whole(Box<Loaded>),
    /// About the bytes of its bodies, which are more. None of them was read.
    Heavy(usize),
}

/// A run as loaded for a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The summary row.
    pub summary: Summary,
    /// The task row.
    pub task: Option<TaskRow>,
    /// How many events the log holds.
    pub head: Seq,
    /// The newest snapshot.
    pub snapshot: Option<Snapshot>,
    /// The events after the snapshot.
    pub tail: Vec<StoredEvent>,
    /// What other runs told this one and no append has consumed, oldest first: at most [`INBOX_ROWS`], and fewer if they
    /// reach [`PAGE_BYTES`].
    pub inbox: Vec<InboxRow>,
}

impl Loaded {
    /// Whether the inbox may hold more than was read.
    #[must_use]
    pub fn is_inbox_cut(&self) -> bool {
        let n_bytes: usize = self.inbox.iter().map(|row| row.body.len()).sum();
        self.inbox.len() >= INBOX_ROWS || n_bytes >= PAGE_BYTES
    }

    /// Roughly the bytes of memory that all its bodies take once they are decoded. Small bodies count as they are stored.
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

/// A page of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPage {
    /// The events.
    pub events: Vec<StoredEvent>,
    /// How many events the log holds.
    pub head: Seq,
    /// The run's status when the log had that many.
    pub status: RunStatus,
}

/// Which runs to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Only these statuses; empty means any.
    pub statuses: Vec<RunStatus>,
    /// Only this workflow.
    pub workflow: Option<WorkflowId>,
    /// Only children of this run.
    pub parent: Option<RunId>,
    /// Only runs this principal created.
    pub principal: Option<wopr_core::PrincipalId>,
}

/// A page of runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPage {
    /// Runs, newest first.
    pub runs: Vec<(RunId, Summary, Seq)>,
    /// Whether there are more.
    pub has_more: bool,
}

/// Which tasks to list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct TaskFilter {
    /// Only this context.
    pub context: Option<String>,
    /// Only this state.
    pub state: Option<TaskState>,
    /// Only tasks that changed at or after this time.
    pub changed_since: Option<Timestamp>,
    /// Only tasks of runs this principal created.
    pub principal: Option<wopr_core::PrincipalId>,
}

/// A place in the list of tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskCursor {
    /// Change time of the last task seen.
    pub updated_at: Timestamp,
    /// The last task seen.
    pub run: RunId,
}

/// A page of tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskPage {
    /// Tasks, the most recently changed first; ties by run id, descending.
    pub tasks: Vec<(RunId, TaskRow)>,
    /// How many tasks match in all.
    pub total: u64,
    /// Whether there are more.
    pub has_more: bool,
}
