//! The application's handle for protocol faces: visibility of runs, and reads that need no further rules.

use std::sync::Arc;

use wopr_core::{Plan, PrincipalId, RunId, RunKey, Seq, TenantId, Timestamp, WorkflowId};
use wopr_engine::{Decided, Engine, Events, Stats, Tail, View};
use wopr_store::Summary;

use crate::{Caller, Error, LastReads};

/// Settings of the use cases that an operator chooses.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// A caller sees only the runs that its principal created.
    pub private_runs: bool,
    /// How long the idempotency record of a request is kept.
    pub idempotency_retention_ms: u64,
    /// Maximum push subscriptions of a run.
    pub max_subscriptions: usize,
}

#[derive(Debug)]
pub struct App {
    pub(crate) engine: Engine,
    pub(crate) options: Options,
    pub(crate) last_reads: LastReads,
}

impl App {
    #[must_use]
    pub fn new(engine: Engine, options: Options) -> Self {
        Self {
            engine,
            options,
            last_reads: LastReads::default(),
        }
    }

    /// The last read position of each caller in each run.
    #[must_use]
    pub const fn last_reads(&self) -> &LastReads {
        &self.last_reads
    }

    /// The principal whose runs the caller is restricted to; `None` if runs are not private.
    #[must_use]
    pub fn owner(&self, caller: &Caller) -> Option<PrincipalId> {
        self.options.private_runs.then(|| caller.principal.clone())
    }

    /// Returns `true` if the caller may see the run, which need not exist. A caller can only name runs of its
    /// own tenant.
    pub async fn sees(&self, caller: &Caller, run: &RunKey) -> Result<bool, Error> {
        let Some(owner) = self.owner(caller) else {
            return Ok(true);
        };
        if self.engine.creator_at_hand(run).as_ref() == Some(&owner) {
            return Ok(true);
        }
        // The same row says if the run exists at all, so the response time does not reveal that another
        // principal has such a run.
        let summary = self.engine.summary(run).await?;
        Ok(summary.is_some_and(|(summary, _)| summary.principal == owner))
    }

    /// Reads a run. The caller must have checked that it is visible.
    pub async fn view(&self, key: &RunKey) -> Result<Option<View>, Error> {
        Ok(self.engine.view(key).await?)
    }

    /// Reads the summary row of a run and the length of its log, without loading the run.
    pub async fn summary(&self, key: &RunKey) -> Result<Option<(Summary, Seq)>, Error> {
        Ok(self.engine.summary(key).await?)
    }

    /// Reads at most `limit` events, starting at `from`; fewer if they are large.
    pub async fn events(&self, key: &RunKey, from: Seq, limit: usize) -> Result<Option<Events>, Error> {
        Ok(self.engine.events(key, from, limit).await?)
    }

    /// Reads the last events before `end`.
    pub async fn events_before(&self, key: &RunKey, end: Seq, limit: usize) -> Result<Option<Events>, Error> {
        Ok(self.engine.events_before(key, end, limit).await?)
    }

    /// Reads events from the memory of this process. `None` says nothing about the run.
    #[must_use]
    pub fn events_at_hand(&self, key: &RunKey, from: Seq, limit: usize) -> Option<Events> {
        self.engine.events_at_hand(key, from, limit)
    }

    /// A run that ended in this process recently. `None` says nothing about the run.
    #[must_use]
    pub fn ended(&self, key: &RunKey) -> Option<Arc<Decided>> {
        self.engine.ended(key)
    }

    /// Follows a run's log: completes whenever it may have grown.
    #[must_use]
    pub fn tail(&self, key: &RunKey) -> Tail {
        self.engine.tail(key)
    }

    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.engine.now()
    }

    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    #[must_use]
    pub fn new_run_id(&self) -> RunId {
        self.engine.new_run_id()
    }

    /// Checks that the store answers and accepts writes. The error is for the log.
    pub async fn ready(&self) -> Result<(), Error> {
        Ok(self.engine.store().ready().await?)
    }

    /// Runs CPU-bound work for a tenant, in turn with decisions on its runs.
    pub async fn compute<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        n_bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        Ok(self.engine.compute(tenant, n_bytes, work).await?)
    }

    /// The current version of a workflow known to this process.
    #[must_use]
    pub fn workflow(&self, tenant: &TenantId, id: &WorkflowId) -> Option<Arc<Plan>> {
        self.engine.workflow(tenant, id)
    }
}
