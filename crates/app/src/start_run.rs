//! Starting a run.

use std::sync::Arc;

use wopr_core::{Object, Origin, Plan, RunId, WorkflowId};
use wopr_engine::{Create, Done, SideRows, Start};

use crate::{App, Caller, Error, Scope};

/// A run to start, as a face reads it from a request.
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
    /// The group of runs that it belongs to, if its protocol has one.
    pub context: Option<String>,
    /// The request's W3C trace context.
    pub trace: Option<String>,
    pub side_rows: SideRows,
}

impl App {
    /// Starts a run of a workflow that is named by its id. A request that took effect before is answered as it was
    /// then, even if the workflow is gone by now.
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

    /// Starts a run of a workflow that was looked up before.
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
