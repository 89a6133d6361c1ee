//! Reads, lists and cancels tasks.

use wopr_app::{Error as AppError, SideRows, TaskFilter, TaskRow};
use wopr_core::{Refusal, RunId, RunKey, TenantId};
use wopr_wire::a2a::{
    error::A2aError,
    model::{CancelTaskRequest, GetTaskRequest, ListTasksRequest, ListTasksResponse, Task},
};

use super::{
    error::Error,
    page,
    projection::stored_state,
    render::Shown,
    service::{Call, Service, require},
};
use crate::auth::Scope;

const PAGE_SIZE: u32 = 50;
/// A page ends early beyond this size in bytes of JSON. gRPC clients accept 4 MiB by default; this leaves a
/// margin.
const PAGE_BYTES: usize = 2 << 20;
/// The reason of runs cancelled through A2A (RFC 0100).
const CANCEL_REASON: &str = "cross_protocol_cancel";

impl Service {
    pub(super) async fn get(&self, call: &Call, request: GetTaskRequest) -> Result<Task, Error> {
        let view = self.visible(call, &request.id).await?;
        let shown = Shown {
            history: request.history_length,
            artifacts: true,
        };
        self.task(&call.caller, &view, shown).await
    }

    /// Lists the tasks that a caller may see, most recently changed first. Messages are included only on
    /// request. A page of large tasks may hold fewer than the client asked for.
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
            principal: self.host.app().owner(&call.caller),
        };
        let limit = usize::try_from(page_size).unwrap_or(usize::MAX);
        let tenant = &call.caller.tenant;
        let app = self.host.app();
        let mut listed = app.list_tasks(tenant, &filter, after.as_ref(), limit).await?;
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
            if let Some(view) = self.host.app().view(&key).await? {
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

    /// Finds a run by its id used as a context, which runs not started by a message have instead of their
    /// own.
    async fn without_context(
        &self,
        tenant: &TenantId,
        filter: &TaskFilter,
    ) -> Result<Option<(RunId, TaskRow)>, Error> {
        let named = filter.context.as_deref().map(RunId::parse);
        let Some(Ok(run)) = named else { return Ok(None) };
        let app = self.host.app();
        let key = RunKey::new(tenant.clone(), run);
        // Check the owner first, as when reading a task.
        if let Some(owner) = &filter.principal {
            let summary = app.summary(&key).await?;
            if summary.is_none_or(|(summary, _)| summary.principal != *owner) {
                return Ok(None);
            }
        }
        let Some((row, _)) = app.task(&key).await? else {
            return Ok(None);
        };
        let fits = row.context.is_none()
            && filter.state.is_none_or(|state| row.state == state)
            && filter.changed_since.is_none_or(|since| row.updated_at >= since);
        Ok(fits.then_some((key.run, row)))
    }

    /// Cancels a task. The task is working until its children have ended.
    pub(super) async fn cancel(&self, call: &Call, request: CancelTaskRequest) -> Result<Task, Error> {
        let view = self.find(call, &request.id, Scope::RunsCancel).await?;
        let not_cancelable = || A2aError::TaskNotCancelable {
            task_id: request.id.clone(),
        };
        if view.run.status.is_terminal() {
            return Err(not_cancelable().into());
        }
        let reason = Some(CANCEL_REASON.to_owned());
        let app = self.host.app();
        let cancelling = app.cancel_run(&call.caller, &view.key, reason, SideRows::default());
        let view = match cancelling.await {
            Ok(wopr_app::Done::Fresh(view)) => view,
            // A cancellation has no idempotency key, so it is never replayed.
            Ok(wopr_app::Done::Replayed(_)) => view,
            Err(AppError::Refused(Refusal::Terminal(_))) => return Err(not_cancelable().into()),
            Err(error) => return Err(error.into()),
        };
        let shown = Shown {
            history: None,
            artifacts: true,
        };
        self.task(&call.caller, &view, shown).await
    }
}
