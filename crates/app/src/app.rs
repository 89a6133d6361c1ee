//! The handle that faces have: what a caller may see, and reads that need no more than that.

use std::sync::Arc;

use wopr_core::{Plan, PrincipalId, RunId, RunKey, Seq, TenantId, Timestamp, WorkflowId};
use wopr_engine::{Decided, Engine, Events, Stats, Tail, View};
use wopr_store::Summary;

use crate::{Caller, Error, LastReads};

/// What an operator decides about use cases.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// A caller sees only the runs that its principal created.
    pub private_runs: bool,
    /// How long the record of a request that took effect is kept.
    pub idempotency_retention_ms: u64,
    /// Push subscriptions that a run may have.
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

    /// How far each caller has read each run.
    #[must_use]
    pub const fn last_reads(&self) -> &LastReads {
        &self.last_reads
    }

    /// The principal whose runs alone a caller sees; `None` where runs are not private.
    #[must_use]
    pub fn owner(&self, caller: &Caller) -> Option<PrincipalId> {
        self.options.private_runs.then(|| caller.principal.clone())
    }

    /// Whether a caller sees a run, if it exists. A caller cannot name a run of another tenant.
    pub async fn sees(&self, caller: &Caller, run: &RunKey) -> Result<bool, Error> {
        let Some(owner) = self.owner(caller) else {
            return Ok(true);
        };
        if self.engine.creator_at_hand(run).as_ref() == Some(&owner) {
            return Ok(true);
        }
        // The same row tells whether the run exists at all, so the time that an answer takes does not tell a caller
        // that another principal has such a run.
        let summary = self.engine.summary(run).await?;
        Ok(summary.is_some_and(|(summary, _)| summary.principal == owner))
    }

    /// A run, which the caller is known to see.
    pub async fn view(&self, key: &RunKey) -> Result<Option<View>, Error> {
        Ok(self.engine.view(key).await?)
    }

    /// The summary row of a run and the length of its log, without loading the run.
    pub async fn summary(&self, key: &RunKey) -> Result<Option<(Summary, Seq)>, Error> {
        Ok(self.engine.summary(key).await?)
    }

    /// Events from a position on: at most `limit`, and fewer if they are large.
    pub async fn events(&self, key: &RunKey, from: Seq, limit: usize) -> Result<Option<Events>, Error> {
        Ok(self.engine.events(key, from, limit).await?)
    }

    /// The last events before a position.
    pub async fn events_before(&self, key: &RunKey, end: Seq, limit: usize) -> Result<Option<Events>, Error> {
        Ok(self.engine.events_before(key, end, limit).await?)
    }

    /// Events that this process has in memory. `None` says nothing about the run.
    #[must_use]
    pub fn events_at_hand(&self, key: &RunKey, from: Seq, limit: usize) -> Option<Events> {
        self.engine.events_at_hand(key, from, limit)
    }

    /// A run that ended in this process a moment ago. `None` says nothing about the run.
    #[must_use]
    pub fn ended(&self, key: &RunKey) -> Option<Arc<Decided>> {
        self.engine.ended(key)
    }

    /// Tells when the log of a run may have grown.
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

    /// Whether the store answers and takes writes. The error is for the log.
    pub async fn ready(&self) -> Result<(), Error> {
        Ok(self.engine.store().ready().await?)
    }

    /// Does work for a tenant that takes processor time, in turn with decisions on the tenant's runs.
    pub async fn compute<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        n_bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        Ok(self.engine.compute(tenant, n_bytes, work).await?)
    }

    /// The current version of a workflow as far as this process knows.
    #[must_use]
    pub fn workflow(&self, tenant: &TenantId, id: &WorkflowId) -> Option<Arc<Plan>> {
        self.engine.workflow(tenant, id)
    }
}
