//! The operations of A2A on runs, in the 1.0 model and apart from any binding.
//!
//! A binding knows who calls and which address was used, decodes a request, calls one function here and encodes
//! what it gives. A task is a view of a run: nothing is kept here, so every answer is as durable as the log. What a
//! caller may not see does not exist for it, and no `tenant` in a request selects one.

use std::sync::Arc;

use wopr_core::{Command, Refusal, RunId, RunKey, RunStatus, TenantId, WorkflowId};
use wopr_engine::{CommandError, Extras, View};
use wopr_store::{ReadError, TaskFilter, TaskRow};
use wopr_wire::a2a::{
    error::A2aError,
    method::Version,
    model::{CancelTaskRequest, GetTaskRequest, ListTasksRequest, ListTasksResponse, Task},
};

use super::{page, projection::stored_state, push, render::Shown};
use crate::{
    Host,
    auth::{Caller, Scope},
};

/// Tasks on a page of a list whose client does not say.
const PAGE_SIZE: u32 = 50;
/// Bytes of a page beyond which it ends early, as text: what clients of gRPC take by default, with room to spare.
const PAGE_BYTES: usize = 2 << 20;
/// The reason of a run cancelled through this face (RFC 0100).
const CANCEL_REASON: &str = "cross_protocol_cancel";

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

/// Why an operation did not happen.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    /// An error of the protocol.
    #[error(transparent)]
    A2a(#[from] A2aError),
    /// The caller lacks a scope.
    #[error("act without the scope {}", .0.as_str())]
    Forbidden(Scope),
    /// The store does not take this now.
    #[error("reach the store")]
    Unavailable,
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        CommandError::from(error).into()
    }
}

impl From<CommandError> for Error {
    /// What went wrong inside goes to the log, not to the client.
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::UnknownWorkflow => {
                A2aError::invalid_param(super::select::FIELD, "is not the id of a skill").into()
            }
            CommandError::NotFound => A2aError::task_not_found("").into(),
            CommandError::Refused(refusal) => refused(refusal).into(),
            CommandError::KeyReused => {
                A2aError::invalid_param("message.messageId", "was used for another message").into()
            }
            CommandError::TooManyReceivers { most } => push::full(most),
            CommandError::Busy { .. } => Self::Unavailable,
            CommandError::Unavailable(why) => {
                tracing::warn!(error = %why, "store unavailable");
                Self::Unavailable
            }
            CommandError::Internal(why) => {
                tracing::error!(error = %why, "a2a operation failed");
                A2aError::Internal.into()
            }
        }
    }
}

/// What a refusal of the kernel is to a client.
fn refused(refusal: Refusal) -> A2aError {
    match refusal {
        Refusal::InvalidInput { field, rule } => {
            A2aError::invalid_param("message.parts", format!("do not fit the skill: {field} {rule}"))
        }
        Refusal::OutOfBounds { key, min, max, .. } => A2aError::invalid_param(
            "message.parts",
            format!("do not fit the skill: {key} must be between {min} and {max}"),
        ),
        Refusal::InvalidAnswer(rule) | Refusal::NoMatch(rule) => {
            A2aError::invalid_param("message.parts", format!("do not answer the task: {rule}"))
        }
        Refusal::NotAllowed(rule) => A2aError::unsupported(rule),
        Refusal::Terminal(status) => A2aError::unsupported(format!("the task is {}", task_word(status))),
        Refusal::NotPausable(_)
        | Refusal::NotPaused(_)
        | Refusal::NoInterrupt
        | Refusal::AlreadyResolved
        | Refusal::InterruptCancelled
        | Refusal::InterruptGone
        | Refusal::Stale
        | Refusal::WrongState => A2aError::unsupported("the task does not wait for a message"),
    }
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

    /// Reads a task.
    pub(super) async fn get(&self, call: &Call, request: GetTaskRequest) -> Result<Task, Error> {
        let view = self.visible(call, &request.id).await?;
        let shown = Shown {
            history: request.history_length,
            artifacts: true,
        };
        self.task(&call.caller, &view, shown).await
    }

    /// Lists the tasks a caller sees, the latest change first. Their messages are shown only where asked for, and a
    /// page of large ones has fewer of them than was asked for.
    pub(super) async fn list(
        &self,
        call: &Call,
        request: ListTasksRequest,
    ) -> Result<ListTasksResponse, Error> {
        require(&call.caller, Scope::RunsRead)?;
        let page_size = request.page_size.unwrap_or(PAGE_SIZE);
        let after = match &request.page_token {
            None => None,
            Some(token) => Some(page::decode(token)?),
        };
        let filter = TaskFilter {
            context: request.context_id,
            state: request.status.and_then(stored_state),
            changed_since: (request.status_timestamp_after)
                .map(|time| wopr_core::Timestamp::from_millis(time.as_millis())),
            principal: self.owner(&call.caller),
        };
        let limit = usize::try_from(page_size).unwrap_or(usize::MAX);
        let tenant = &call.caller.tenant;
        let store = self.host.engine().store();
        let mut listed = store.list_tasks(tenant, &filter, after.as_ref(), limit).await?;
        if listed.total == 0 {
            listed.tasks.extend(self.without_context(tenant, &filter).await?);
            listed.total = listed.tasks.len() as u64;
        }
        let shown = Shown {
            history: Some(request.history_length.unwrap_or(0)),
            artifacts: request.include_artifacts,
        };
        let mut tasks = Vec::with_capacity(listed.tasks.len());
        let mut next_page_token = String::new();
        let mut n_bytes = 0;
        let mut rows = listed.tasks.into_iter().peekable();
        while let Some((run, row)) = rows.next() {
            let token = page::encode(row.updated_at, &run);
            let key = RunKey::new(tenant.clone(), run);
            if let Some(view) = self.host.engine().view(&key).await? {
                let task = self.task(&call.caller, &view, shown).await?;
                n_bytes += page::size_of(&task);
                tasks.push(task);
            }
            let has_more = rows.peek().is_some() || listed.has_more;
            if has_more && (n_bytes > PAGE_BYTES || rows.peek().is_none()) {
                next_page_token = token;
                break;
            }
        }
        Ok(ListTasksResponse {
            tasks,
            next_page_token,
            page_size,
            total_size: listed.total,
        })
    }

    /// The run whose id a client takes for a context, because one that no message began has no other.
    async fn without_context(
        &self,
        tenant: &TenantId,
        filter: &TaskFilter,
    ) -> Result<Option<(RunId, TaskRow)>, Error> {
        let named = filter.context.as_deref().map(RunId::parse);
        let Some(Ok(run)) = named else { return Ok(None) };
        let store = self.host.engine().store();
        let key = RunKey::new(tenant.clone(), run);
        // Whose it is comes first, as where a task is read.
        if let Some(owner) = &filter.principal {
            let summary = store.summary(&key).await?;
            if summary.is_none_or(|(summary, _)| summary.principal != *owner) {
                return Ok(None);
            }
        }
        let Some((row, _)) = store.task(&key).await? else {
            return Ok(None);
        };
        let fits = row.context.is_none()
            && filter.state.is_none_or(|state| row.state == state)
            && filter.changed_since.is_none_or(|since| row.updated_at >= since);
        Ok(fits.then_some((key.run, row)))
    }

    /// Cancels a task. It is working while its children still end.
    pub(super) async fn cancel(&self, call: &Call, request: CancelTaskRequest) -> Result<Task, Error> {
        let view = self.visible(call, &request.id).await?;
        require(&call.caller, Scope::RunsCancel)?;
        let not_cancelable = || A2aError::TaskNotCancelable {
            task_id: request.id.clone(),
        };
        if view.run.status.is_terminal() {
            return Err(not_cancelable().into());
        }
        let command = Command::Cancel {
            reason: Some(CANCEL_REASON.to_owned()),
            by: Some(call.caller.principal.clone()),
        };
        let done = self
            .host
            .engine()
            .command(&view.key, command, Extras::default())
            .await;
        let view = match done {
            Ok(wopr_engine::Done::Fresh(view)) => view,
            // A cancel carries no key, so nothing is replayed.
            Ok(wopr_engine::Done::Replayed(_)) => view,
            Err(CommandError::Refused(Refusal::Terminal(_))) => return Err(not_cancelable().into()),
            Err(error) => return Err(error.into()),
        };
        let shown = Shown {
            history: None,
            artifacts: true,
        };
        self.task(&call.caller, &view, shown).await
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
    fn owner(&self, caller: &Caller) -> Option<wopr_core::PrincipalId> {
        let is_private = self.host.config().a2a.private_tasks;
        is_private.then(|| caller.principal.clone())
    }
}

/// How this protocol spells a status.
pub(super) const fn task_word(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Cancelled => "canceled",
        RunStatus::Cancelling => "being canceled",
        RunStatus::Pending
        | RunStatus::Running
        | RunStatus::Paused
        | RunStatus::WaitingApproval
        | RunStatus::WaitingInput
        | RunStatus::WaitingExternal
        | RunStatus::Completed
        | RunStatus::Failed => status.as_str(),
    }
}

/// Demands a scope.
pub(super) fn require(caller: &Caller, scope: Scope) -> Result<(), Error> {
    caller
        .require(scope)
        .map_err(|missing| Error::Forbidden(missing.0))
}

/// Claims that the client of a run has something to do, or nothing more to expect.
pub(super) const fn is_settled(status: RunStatus) -> bool {
    status.is_terminal() || status.is_waiting()
}
