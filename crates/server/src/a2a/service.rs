//! The basis of every A2A operation, in the 1.0 model and independent of the binding: the call, and access to
//! runs.
//!
//! A binding authenticates the caller, decodes the request, calls one operation and encodes its result. A
//! task is a view of a run and this module stores nothing, so every answer is as durable as the log. Tasks of
//! other tenants, and of other principals if tasks are private, do not exist for a caller; no `tenant` in a
//! request changes that. An error names the missing scope. The content of a task passes through a
//! [`Mask`](wopr_app::Mask).

use std::sync::Arc;

use wopr_app::{Opened, View};
use wopr_core::{TraceContext, WorkflowId};
use wopr_wire::a2a::method::Version;

use super::error::{Error, of_task};
use crate::{
    Host,
    auth::{Caller, Scope},
};

/// The context of a request.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) caller: Arc<Caller>,
    /// The workflow whose address was used, if any.
    pub(super) interface: Option<WorkflowId>,
    /// The version of the request; signatures depend on it.
    pub(super) version: Version,
    /// The last event that the client saw before its stream broke.
    pub(super) last_event_id: Option<u64>,
    /// The W3C trace context of the request.
    pub(super) trace: Option<TraceContext>,
}

#[derive(Debug, Clone)]
pub(super) struct Service {
    pub(super) host: Arc<Host>,
}

impl Service {
    pub(super) fn new(host: Arc<Host>) -> Self {
        Self { host }
    }

    /// Finds the run of a task that the caller may read.
    pub(super) async fn visible(&self, call: &Call, id: &str) -> Result<View, Error> {
        self.find(call, id, Scope::RunsRead).await
    }

    /// Finds the run of a task. A missing scope is reported before any lookup, so the error reveals nothing
    /// about the task.
    pub(super) async fn find(&self, call: &Call, id: &str, scope: Scope) -> Result<View, Error> {
        let found = self.host.app().read_run(&call.caller, id, scope).await;
        found.map_err(|error| of_task(id, error))
    }

    /// Loads the run of a task for a command.
    pub(super) async fn open(&self, call: &Call, id: &str, scope: Scope) -> Result<Opened, Error> {
        let opened = self.host.app().open_run(&call.caller, id, scope).await;
        opened.map_err(|error| of_task(id, error))
    }
}

pub(super) fn require(caller: &Caller, scope: Scope) -> Result<(), Error> {
    Ok(caller.require(scope)?)
}
