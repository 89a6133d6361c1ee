//! The application's handle for protocol faces.

use std::{fmt::Debug, sync::Arc};

use wopr_core::{Membership, PrincipalId, RunId, TenantId, Timestamp};
use wopr_engine::{Engine, Stats};

use crate::{Caller, Error, last_reads::LastReads};

/// Settings of the use cases that an operator chooses.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// A caller sees only the runs that its principal created.
    pub private_runs: bool,
    /// Every caller may answer in the name of others. Otherwise that requires `keys:manage`.
    pub open_voting: bool,
    /// How long the idempotency record of a request is kept.
    pub idempotency_retention_ms: u64,
    /// Maximum push subscriptions of a run.
    pub max_subscriptions: usize,
}

/// The principals that the host knows.
pub trait Principals: Debug + Send + Sync {
    /// The roles and groups of a principal of a tenant. Empty if the host does not know it.
    fn membership(&self, tenant: &TenantId, principal: &PrincipalId) -> Membership;
}

#[derive(Debug)]
pub struct App {
    pub(crate) engine: Engine,
    pub(crate) options: Options,
    pub(crate) principals: Arc<dyn Principals>,
    pub(crate) last_reads: LastReads,
}

impl App {
    #[must_use]
    pub fn new(engine: Engine, options: Options, principals: Arc<dyn Principals>) -> Self {
        Self {
            engine,
            options,
            principals,
            last_reads: LastReads::default(),
        }
    }

    /// The principal whose runs the caller is restricted to; `None` if runs are not private.
    pub(crate) fn owner(&self, caller: &Caller) -> Option<PrincipalId> {
        self.options.private_runs.then(|| caller.principal.clone())
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

    /// Runs CPU-bound work of a caller, in turn with decisions on its tenant's runs.
    pub async fn compute<T: Send + 'static>(
        &self,
        caller: &Caller,
        n_bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        Ok(self.engine.compute(&caller.tenant, n_bytes, work).await?)
    }
}
