//! Calls to other agents, as those agents and operators see them.

use std::time::Duration;

use wopr_core::{RunId, RunKey, StepId};
use wopr_engine::ListedCallDelivery;
use wopr_store::{CallDeliveryCursor, CallDeliveryFilter};

use crate::{App, Caller, Error, Scope};

/// How long after a push its task is looked at, so that one look serves many pushes.
const PACE: Duration = Duration::from_millis(100);

impl App {
    /// Has the task of a call looked at, because its agent says that it has changed. The call
    /// is named by its attempt and by how many calls the step had made before. Returns `false` and does nothing if it is
    /// over. The face has checked that the agent may say so.
    pub async fn wake_call(&self, run: &RunKey, step: &StepId, call: (u32, u32)) -> Result<bool, Error> {
        Ok(self.engine.wake_effect_after(run, step, call, PACE).await?)
    }

    /// Lists cancels and answers that the agents of calls have not had yet, for the runs that the caller may see, of
    /// one run or of all.
    pub async fn list_call_deliveries(
        &self,
        caller: &Caller,
        run: Option<RunId>,
        is_given_up: bool,
        after: Option<&CallDeliveryCursor>,
        limit: usize,
    ) -> Result<Vec<ListedCallDelivery>, Error> {
        caller.require(Scope::WebhooksManage)?;
        let filter = CallDeliveryFilter {
            tenant: caller.tenant.clone(),
            run,
            principal: self.owner(caller),
            parked: is_given_up,
        };
        Ok(self.engine.call_deliveries(&filter, after, limit).await?)
    }
}
