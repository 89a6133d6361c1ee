//! Lists the runs that a caller may see.

use wopr_core::{RunId, RunKey, RunStatus, Seq};
use wopr_store::{PhaseCursor, PhaseFilter, RunFilter, Summary};

use crate::{App, Caller, Error, Scope, VisibleRun};

/// A page of runs.
#[derive(Debug)]
pub struct RunPage {
    /// Newest first, each with its summary and the length of its log.
    pub runs: Vec<(VisibleRun, Summary, Seq)>,
    pub has_more: bool,
}

/// A page of runs by their last change of phase.
#[derive(Debug)]
pub struct PhasePage {
    /// The latest change of phase first; ties by run id, descending.
    pub runs: Vec<(VisibleRun, Summary)>,
    /// Number of matching runs on all pages.
    pub total: u64,
    pub has_more: bool,
}

impl App {
    /// Lists runs, newest first. If runs are private, `principal` of the filter is the caller.
    pub async fn list_runs(
        &self,
        caller: &Caller,
        filter: RunFilter,
        after: Option<&RunId>,
        limit: usize,
    ) -> Result<RunPage, Error> {
        caller.require(Scope::RunsRead)?;
        self.list(caller, filter, after, limit).await
    }

    /// Lists runs that wait for an answer, newest first.
    pub async fn list_waiting_runs(
        &self,
        caller: &Caller,
        after: Option<&RunId>,
        limit: usize,
    ) -> Result<RunPage, Error> {
        caller.require(Scope::ApprovalsRespond)?;
        let statuses = RunStatus::ALL.into_iter().filter(|status| status.is_waiting());
        let filter = RunFilter {
            statuses: statuses.collect(),
            ..RunFilter::default()
        };
        self.list(caller, filter, after, limit).await
    }

    async fn list(
        &self,
        caller: &Caller,
        filter: RunFilter,
        after: Option<&RunId>,
        limit: usize,
    ) -> Result<RunPage, Error> {
        let filter = RunFilter {
            principal: self.owner(caller).or(filter.principal),
            ..filter
        };
        let store = self.engine.store();
        let page = store.list_runs(&caller.tenant, &filter, after, limit).await?;
        let runs = page.runs.into_iter();
        Ok(RunPage {
            runs: runs
                .map(|(run, summary, head)| (visible(caller, run), summary, head))
                .collect(),
            has_more: page.has_more,
        })
    }

    /// Lists runs by their last change of phase, newest first. If runs are private, `principal` of the filter
    /// is the caller.
    pub async fn list_by_phase(
        &self,
        caller: &Caller,
        filter: PhaseFilter,
        after: Option<&PhaseCursor>,
        limit: usize,
    ) -> Result<PhasePage, Error> {
        caller.require(Scope::RunsRead)?;
        let filter = self.own_phases(caller, filter);
        let store = self.engine.store();
        let page = store.list_by_phase(&caller.tenant, &filter, after, limit).await?;
        let runs = page.runs.into_iter();
        Ok(PhasePage {
            runs: runs
                .map(|(run, summary)| (visible(caller, run), summary))
                .collect(),
            total: page.total,
            has_more: page.has_more,
        })
    }

    /// Finds one run by its id, if [`Self::list_by_phase`] would list it and it belongs to no group.
    pub async fn find_ungrouped(
        &self,
        caller: &Caller,
        run: RunId,
        filter: PhaseFilter,
    ) -> Result<Option<(VisibleRun, Summary)>, Error> {
        caller.require(Scope::RunsRead)?;
        let filter = PhaseFilter {
            group: None,
            ..self.own_phases(caller, filter)
        };
        let run = visible(caller, run);
        let found = self.engine.summary(&run).await?;
        let found = found.filter(|(summary, _)| summary.group.is_none() && filter.accepts(summary));
        Ok(found.map(|(summary, _)| (run, summary)))
    }

    fn own_phases(&self, caller: &Caller, filter: PhaseFilter) -> PhaseFilter {
        PhaseFilter {
            principal: self.owner(caller).or(filter.principal),
            ..filter
        }
    }
}

/// A run that a list filtered by tenant and owner contains.
fn visible(caller: &Caller, run: RunId) -> VisibleRun {
    VisibleRun::new(RunKey::new(caller.tenant.clone(), run))
}
