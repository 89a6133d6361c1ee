//! Adopts runs whose log was decided elsewhere.

use std::sync::Arc;

use wopr_core::{Decision, Plan, PrincipalId, RunId, TenantId};
use wopr_engine::{Adopt, AdoptedChild, Beginning, Done, SideRows};

use crate::{App, Error, StartPermit};

impl StartPermit<'_> {
    /// The tenant and the principal of a run that its holder starts.
    #[must_use]
    pub fn owner(self) -> (TenantId, PrincipalId) {
        let caller = self.caller();
        (caller.tenant.clone(), caller.principal.clone())
    }
}

impl App {
    /// What a run that is to be adopted is decided with.
    #[must_use]
    pub fn new_beginning(&self) -> Beginning {
        self.engine.new_beginning()
    }

    /// Creates a run of the caller with the log that was decided for it, and the runs below it with theirs, all of it or
    /// nothing.
    pub async fn adopt_run(
        &self,
        permit: StartPermit<'_>,
        (run, workflow): (RunId, Arc<Plan>),
        (decision, children): (Decision, Vec<AdoptedChild>),
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        let (tenant, principal) = permit.owner();
        // The logs say whose runs they are.
        let is_own = |decision: &Decision| {
            let started = decision.run.started.as_ref();
            started.is_some_and(|started| started.tenant == tenant && started.principal == principal)
        };
        if !is_own(&decision) || !children.iter().all(|child| is_own(&child.decision)) {
            return Err(Error::Internal(
                "the log that is adopted names another owner".into(),
            ));
        }
        let adopt = Adopt {
            run,
            workflow,
            decision,
            children,
            side_rows,
        };
        Ok(self.engine.adopt(adopt).await?)
    }
}
