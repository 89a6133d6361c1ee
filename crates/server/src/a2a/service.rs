//! What every operation of A2A on runs begins with, in the 1.0 model and apart from any binding: the call, and which
//! runs it may see.
//!
//! A binding knows who calls and which address was used, decodes a request, has one operation done and encodes what it
//! gives. A task is a view of a run: nothing is kept here, so every answer is as durable as the log. What a caller may
//! not see does not exist for it, and no `tenant` in a request selects one.

use std::sync::Arc;

use wopr_core::{RunId, RunKey, WorkflowId};
use wopr_engine::View;
use wopr_wire::a2a::{error::A2aError, method::Version};

use super::error::Error;
use crate::{
    Host,
    auth::{Caller, Scope},
};

/// Who calls, and how.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// Who.
    pub(super) caller: Caller,
    /// The workflow whose address was used.
    pub(super) interface: Option<WorkflowId>,
    /// The version that is spoken, for what is signed in the form it is sent in.
    pub(super) version: Version,
    /// The event a broken stream ended with.
    pub(super) last_event_id: Option<u64>,
    /// This request's place in its trace.
    pub(super) trace: Option<String>,
}

/// The operations.
#[derive(Debug, Clone)]
pub(super) struct Service {
    pub(super) host: Arc<Host>,
}

impl Service {
    /// Serves the tasks of a host.
    pub(super) fn new(host: Arc<Host>) -> Self {
        Self { host }
    }

    /// The run of a task the caller may see.
    pub(super) async fn visible(&self, call: &Call, id: &str) -> Result<View, Error> {
        let missing = || Error::from(A2aError::task_not_found(id));
        let caller = &call.caller;
        if !caller.may(Scope::RunsRead) {
            return Err(missing());
        }
        let run = RunId::parse(id).map_err(|_| missing())?;
        let key = RunKey::new(caller.tenant.clone(), run);
        if let Some(owner) = self.owner(caller) {
            // From the row that tells whether there is a task at all: nobody learns by what an answer costs that
            // another has it.
            let summary = self.host.engine().store().summary(&key).await?;
            if summary.is_none_or(|(summary, _)| summary.principal != owner) {
                return Err(missing());
            }
        }
        self.host.engine().view(&key).await?.ok_or_else(missing)
    }

    /// Whose tasks alone a caller sees, if tasks are private.
    pub(super) fn owner(&self, caller: &Caller) -> Option<wopr_core::PrincipalId> {
        let is_private = self.host.config().a2a.private_tasks;
        is_private.then(|| caller.principal.clone())
    }
}

/// Demands a scope.
pub(super) fn require(caller: &Caller, scope: Scope) -> Result<(), Error> {
    caller
        .require(scope)
        .map_err(|missing| Error::Forbidden(missing.0))
}
