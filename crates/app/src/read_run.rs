//! Finds, lists and waits for runs, and reads their side rows.

use std::future::Future;

use wopr_core::{RunId, RunKey, RunStatus, Seq, TenantId};
use wopr_engine::{Opened, View};
use wopr_store::{BlobRow, MessageRow, RunFilter, RunPage, TaskCursor, TaskFilter, TaskPage, TaskRow};

use crate::{App, Caller, Error, Scope};

impl App {
    /// Returns the key of a run that the caller names and may see. Checks the scope before looking up the
    /// run, so that a missing scope reveals nothing about the run.
    pub async fn find_key(&self, caller: &Caller, id: &str, scope: Scope) -> Result<RunKey, Error> {
        caller.require(scope)?;
        let run = RunId::parse(id).map_err(|_| Error::NoRun)?;
        let key = RunKey::new(caller.tenant.clone(), run);
        match self.sees(caller, &key).await? {
            true => Ok(key),
            false => Err(Error::NoRun),
        }
    }

    /// Reads a run that the caller names and may see.
    pub async fn find_run(&self, caller: &Caller, id: &str, scope: Scope) -> Result<View, Error> {
        let key = self.find_key(caller, id, scope).await?;
        self.engine.view(&key).await?.ok_or(Error::NoRun)
    }

    /// Loads a run that the caller names and may see, to be inspected and then commanded.
    pub async fn open_run(&self, caller: &Caller, id: &str, scope: Scope) -> Result<Opened, Error> {
        let key = self.find_key(caller, id, scope).await?;
        self.open(&key).await
    }

    /// Loads a run to be inspected and then commanded. The caller must have checked that it is visible.
    pub async fn open(&self, key: &RunKey) -> Result<Opened, Error> {
        self.engine.open_run(key).await?.ok_or(Error::NoRun)
    }

    /// Lists runs of a tenant, newest first.
    pub async fn list_runs(
        &self,
        tenant: &TenantId,
        filter: &RunFilter,
        after: Option<&RunId>,
        limit: usize,
    ) -> Result<RunPage, Error> {
        Ok(self
            .engine
            .store()
            .list_runs(tenant, filter, after, limit)
            .await?)
    }

    /// The statuses of the first `limit` children of a run, without removed ones.
    pub async fn children(&self, parent: &View, limit: usize) -> Result<Vec<(RunId, RunStatus)>, Error> {
        let mut shown = Vec::new();
        for child in parent.run.children.iter().take(limit) {
            if let Some((summary, _)) = self
                .engine
                .summary(&parent.key.sibling(child.run.clone()))
                .await?
            {
                shown.push((child.run.clone(), summary.status));
            }
        }
        Ok(shown)
    }

    /// Waits until a run has ended or waits for an answer, and `is_fresh` accepts it, or until `given_up`
    /// completes. Returns the run as it is then.
    pub async fn wait_run(
        &self,
        key: &RunKey,
        is_fresh: impl Fn(&View) -> bool,
        given_up: impl Future<Output = ()>,
    ) -> Result<View, Error> {
        let is_settled = |status: RunStatus| status.is_terminal() || status.is_waiting();
        let mut tail = self.engine.tail(key);
        let mut given_up = std::pin::pin!(given_up);
        loop {
            let summary = self.engine.summary(key).await?;
            if summary.is_none_or(|(summary, _)| is_settled(summary.status)) {
                let view = self.engine.view(key).await?.ok_or(Error::NoRun)?;
                if is_settled(view.run.status) && is_fresh(&view) {
                    return Ok(view);
                }
            }
            tokio::select! {
                () = tail.changed() => {}
                () = &mut given_up => return self.engine.view(key).await?.ok_or(Error::NoRun),
            }
        }
    }

    /// Reads the row with the time of the run's last change of state.
    pub async fn task(&self, key: &RunKey) -> Result<Option<(TaskRow, Seq)>, Error> {
        Ok(self.engine.store().task(key).await?)
    }

    /// Lists runs of a tenant by their last change of state, newest first.
    pub async fn list_tasks(
        &self,
        tenant: &TenantId,
        filter: &TaskFilter,
        after: Option<&TaskCursor>,
        limit: usize,
    ) -> Result<TaskPage, Error> {
        Ok(self
            .engine
            .store()
            .list_tasks(tenant, filter, after, limit)
            .await?)
    }

    /// Reads the newest messages of a run, oldest first.
    pub async fn messages(&self, key: &RunKey, limit: usize) -> Result<Vec<MessageRow>, Error> {
        Ok(self.engine.store().messages(key, limit).await?)
    }

    /// Reads a file of a run.
    pub async fn blob(&self, key: &RunKey, id: &str) -> Result<Option<BlobRow>, Error> {
        Ok(self.engine.store().blob(key, id).await?)
    }
}
