//! Reads and follows runs, and reads their side rows.

use std::{borrow::Cow, future::Future, sync::Arc};

use wopr_core::{Event, KernelEvent, Recorded, RunId, RunKey, RunStarted, RunStatus, Seq};
use wopr_engine::{Decided, Engine, Events, Opened, Tail, View};
use wopr_store::{BlobRow, MessageRow, ReadError, Summary};

use crate::{App, Caller, Error, Mask, Scope, VisibleRun};

impl App {
    /// Finds and reads a run.
    pub async fn read_run(&self, caller: &Caller, id: &str, scope: Scope) -> Result<View, Error> {
        let run = self.find_run(caller, id, scope).await?;
        self.view(&run).await?.ok_or(Error::NoRun)
    }

    /// Finds and loads a run, to be inspected and then answered.
    pub async fn open_run(&self, caller: &Caller, id: &str, scope: Scope) -> Result<Opened, Error> {
        let run = self.find_run(caller, id, scope).await?;
        self.open(&run).await
    }

    pub(crate) async fn open(&self, key: &RunKey) -> Result<Opened, Error> {
        self.engine.open_run(key).await?.ok_or(Error::NoRun)
    }

    pub async fn view(&self, run: &VisibleRun) -> Result<Option<View>, Error> {
        Ok(self.engine.view(run).await?)
    }

    /// Reads the summary row of a run and the length of its log, without loading the run.
    pub async fn summary(&self, run: &VisibleRun) -> Result<Option<(Summary, Seq)>, Error> {
        Ok(self.engine.summary(run).await?)
    }

    /// The number of events in a run's log.
    pub async fn head(&self, run: &VisibleRun) -> Result<Option<Seq>, Error> {
        Ok(self.engine.head(run).await?)
    }

    /// Reads at most `limit` events, starting at `from`; fewer if they are large.
    pub async fn events(&self, run: &VisibleRun, from: Seq, limit: usize) -> Result<Option<Events>, Error> {
        Ok(self.engine.events(run, from, limit).await?)
    }

    /// Reads events of a run, from memory if the view or this process has them.
    pub async fn events_of<'v>(
        &self,
        view: &'v View,
        from: Seq,
        limit: usize,
    ) -> Result<Cow<'v, [Recorded]>, Error> {
        if let Some(events) = view.last_events(from, limit) {
            return Ok(Cow::Borrowed(events));
        }
        let page = match self.engine.events_at_hand(&view.key, from, limit) {
            Some(page) => Some(page),
            None => self.engine.events(&view.key, from, limit).await?,
        };
        Ok(page.map(|page| page.events).unwrap_or_default().into())
    }

    /// Reads the last events before `end`.
    pub async fn events_before(
        &self,
        run: &VisibleRun,
        end: Seq,
        limit: usize,
    ) -> Result<Option<Events>, Error> {
        Ok(self.engine.events_before(run, end, limit).await?)
    }

    /// Reads events from the memory of this process. `None` says nothing about the run.
    #[must_use]
    pub fn events_at_hand(&self, run: &VisibleRun, from: Seq, limit: usize) -> Option<Events> {
        self.engine.events_at_hand(run, from, limit)
    }

    /// A run that this process decided recently, in its current state. `None` says nothing about the run.
    #[must_use]
    pub fn at_hand(&self, run: &VisibleRun) -> Option<Arc<Decided>> {
        self.engine.at_hand(run)
    }

    /// A run that ended in this process recently. `None` says nothing about the run.
    #[must_use]
    pub fn ended(&self, run: &VisibleRun) -> Option<Arc<Decided>> {
        self.engine.ended(run)
    }

    /// Follows a run's log: completes whenever it may have grown.
    #[must_use]
    pub fn tail(&self, run: &VisibleRun) -> Tail {
        self.engine.tail(run)
    }

    /// The mask for the events of a run that begin with `first`. A removed run has no mask, and nothing of it may be shown
    /// without one.
    pub async fn mask(
        &self,
        run: &VisibleRun,
        first: &Recorded,
        reads_artifacts: bool,
    ) -> Result<Option<Mask>, Error> {
        Ok(mask_of(&self.engine, run, first, reads_artifacts).await?)
    }

    /// How a run started. `None` if it has not, or has been removed.
    pub async fn beginning(&self, run: &VisibleRun) -> Result<Option<Arc<RunStarted>>, Error> {
        Ok(self.engine.beginning(run).await?)
    }

    /// A child of its own (`Run::own_children`) of a run, unless it is removed.
    pub async fn child(&self, parent: &View, child: &RunId) -> Result<Option<View>, Error> {
        match parent.run.own_children().any(|known| known.run == *child) {
            true => Ok(self.engine.view(&parent.key.sibling(child.clone())).await?),
            false => Ok(None),
        }
    }

    /// The first `limit` children of its own (`Run::own_children`) of a run, without removed ones.
    pub async fn children(&self, parent: &View, limit: usize) -> Result<Vec<(RunId, Summary)>, Error> {
        let mut shown = Vec::new();
        for child in parent.run.own_children().take(limit) {
            let key = parent.key.sibling(child.run.clone());
            if let Some((summary, _)) = self.engine.summary(&key).await? {
                shown.push((child.run.clone(), summary));
            }
        }
        Ok(shown)
    }

    /// Waits until a run has ended or waits for an answer, and `is_fresh` accepts it, or until `given_up`
    /// completes. Returns the run as it is then.
    pub async fn wait_run(
        &self,
        run: &VisibleRun,
        is_fresh: impl Fn(&View) -> bool,
        given_up: impl Future<Output = ()>,
    ) -> Result<View, Error> {
        let mut tail = self.engine.tail(run);
        let mut given_up = std::pin::pin!(given_up);
        loop {
            // Whatever wakes this was most likely appended by this process, which still knows the run.
            let status = match self.engine.status_at_hand(run) {
                Some(status) => Some(status),
                None => (self.engine.summary(run).await?).map(|(summary, _)| summary.status),
            };
            if status.is_none_or(RunStatus::is_settled) {
                let view = self.engine.view(run).await?.ok_or(Error::NoRun)?;
                if view.run.status.is_settled() && is_fresh(&view) {
                    return Ok(view);
                }
            }
            tokio::select! {
                () = tail.changed() => {}
                () = &mut given_up => return self.engine.view(run).await?.ok_or(Error::NoRun),
            }
        }
    }

    /// Reads the newest messages of a run, oldest first.
    pub async fn messages(
        &self,
        caller: &Caller,
        run: &VisibleRun,
        limit: usize,
    ) -> Result<Vec<MessageRow>, Error> {
        caller.require(Scope::RunsRead)?;
        Ok(self.engine.store().messages(run, limit).await?)
    }

    /// The end of a run's log when the last message that `is_own` accepts was exchanged, if it is among the
    /// newest `limit`.
    pub async fn last_message(
        &self,
        run: &VisibleRun,
        limit: usize,
        is_own: impl Fn(&MessageRow) -> bool,
    ) -> Result<Seq, Error> {
        let rows = self.engine.store().messages(run, limit).await?;
        let own = rows.iter().filter(|row| is_own(row));
        Ok(own.map(|row| row.seq).max().unwrap_or_default())
    }

    /// Reads a file that a run refers to.
    pub async fn blob(&self, caller: &Caller, run: &VisibleRun, id: &str) -> Result<Option<BlobRow>, Error> {
        caller.require(Scope::ArtifactsRead)?;
        Ok(self.engine.blob(run, id).await?)
    }
}

/// The mask for the events of a run that begin with `first`. The first event of a log names the workflow version; for
/// others the run's summary does.
pub(crate) async fn mask_of(
    engine: &Engine,
    run: &RunKey,
    first: &Recorded,
    reads_artifacts: bool,
) -> Result<Option<Mask>, ReadError> {
    let (workflow, version) = if let Event::Kernel(KernelEvent::RunStarted(started)) = &first.event {
        (started.workflow.clone(), started.version.clone())
    } else if let Some((summary, _)) = engine.summary(run).await? {
        (summary.workflow, summary.version)
    } else {
        return Ok(None);
    };
    let current = engine.workflow(&run.tenant, &workflow);
    if let Some(plan) = current.filter(|plan| *plan.version() == version) {
        return Ok(Some(Mask::for_reader(&plan, reads_artifacts)));
    }
    let view = engine.view(run).await?;
    Ok(view.map(|view| Mask::for_reader(&view.plan, reads_artifacts)))
}
