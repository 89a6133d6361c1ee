//! Starts runs.

use std::sync::Arc;

use wopr_core::{Object, Origin, Plan, RunId, WorkflowId};
use wopr_engine::{Create, Done, SideRows, Start};

use crate::{App, Caller, Error, Scope};

/// A run to start, as read from a request.
#[derive(Debug)]
pub struct NewRun {
    /// From [`App::new_run_id`].
    pub run: RunId,
    pub origin: Origin,
    pub inputs: Object,
    /// Overrides for this run.
    pub configurable: Object,
    pub tags: Vec<String>,
    pub metadata: Object,
    /// The group of runs it belongs to, if the protocol has such groups.
    pub context: Option<String>,
    /// W3C trace context of the request.
    pub trace: Option<String>,
    pub side_rows: SideRows,
}

impl App {
    /// Starts a run of the workflow with this id. A request that took effect before is replayed, even if the
    /// workflow is gone by now.
    pub async fn start_run(
        &self,
        caller: &Caller,
        workflow: &WorkflowId,
        new: NewRun,
    ) -> Result<Done, Error> {
        caller.require(Scope::RunsCreate)?;
        let found = self.engine.find_workflow(&caller.tenant, workflow).await?;
        match found.filter(|plan| plan.definition.is_active) {
            Some(plan) => self.start_run_of(caller, plan, new).await,
            None => match &new.side_rows.idempotency {
                Some(once) => self.replay(once).await?.ok_or(Error::NoWorkflow),
                None => Err(Error::NoWorkflow),
            },
        }
    }

    /// Starts a run of a workflow that is already looked up.
    pub async fn start_run_of(&self, caller: &Caller, plan: Arc<Plan>, new: NewRun) -> Result<Done, Error> {
        caller.require(Scope::RunsCreate)?;
        let NewRun {
            run,
            origin,
            inputs,
            configurable,
            tags,
            metadata,
            context,
            trace,
            side_rows,
        } = new;
        let create = Create {
            run,
            workflow: plan,
            start: Start {
                tenant: caller.tenant.clone(),
                principal: caller.principal.clone(),
                origin,
                inputs,
                configurable,
                tags,
                metadata,
                context,
                trace,
            },
            side_rows,
        };
        Ok(self.engine.create(create).await?)
    }
}
