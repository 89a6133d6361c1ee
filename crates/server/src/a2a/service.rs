//! What every operation of A2A on runs begins with, in the 1.0 model and apart from any binding: the call, and which
//! runs it may see.
//!
//! A binding knows who calls and which address was used, decodes a request, has one operation done and encodes what it
//! gives. A task is a view of a run: nothing is kept here, so every answer is as durable as the log. A task of another
//! tenant, or of another principal where tasks are private, does not exist for a caller, and no `tenant` in a request
//! selects one. A scope that is missing is named. What a task shows passes a [`Mask`](wopr_app::Mask).

use std::sync::Arc;

use wopr_app::{Error as AppError, Opened, View};
use wopr_core::WorkflowId;
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

    /// The run of a task that the caller reads.
    pub(super) async fn visible(&self, call: &Call, id: &str) -> Result<View, Error> {
        self.find(call, id, Scope::RunsRead).await
    }

    /// The run of a task that the caller does something with. A missing scope is said before anything is looked up, so
    /// it tells nothing of the task.
    pub(super) async fn find(&self, call: &Call, id: &str, scope: Scope) -> Result<View, Error> {
        let found = self.host.app().find_run(&call.caller, id, scope).await;
        found.map_err(|error| task_error(id, error))
    }

    /// The run of a task that the caller is about to command, loaded once.
    pub(super) async fn open(&self, call: &Call, id: &str, scope: Scope) -> Result<Opened, Error> {
        let opened = self.host.app().open_run(&call.caller, id, scope).await;
        opened.map_err(|error| task_error(id, error))
    }
}

/// An unknown run is an unknown task, by the id that the client sent.
fn task_error(id: &str, error: AppError) -> Error {
    match error {
        AppError::NoRun => A2aError::task_not_found(id).into(),
        error => error.into(),
    }
}

/// Whether a caller is told what a run came to, besides that it ended. Who only answers or cancels the run of another
/// is not.
pub(super) fn reads_result(caller: &Caller, view: &View) -> bool {
    caller.may(Scope::RunsRead) || view.summary.principal == caller.principal
}

/// Demands a scope.
pub(super) fn require(caller: &Caller, scope: Scope) -> Result<(), Error> {
    caller
        .require(scope)
        .map_err(|missing| Error::Forbidden(missing.0))
}
