//! Reads, lists and cancels tasks.

use wopr_app::{Error as AppError, PhaseFilter, SideRows, Summary, VisibleRun};
use wopr_core::{Refusal, RunId, Timestamp, json_size};
use wopr_wire::a2a::{
    error::A2aError,
    model::{CancelTaskRequest, GetTaskRequest, ListTasksRequest, ListTasksResponse, Task, TaskState},
};

use super::{
    conformance,
    error::{Error, of_task},
    page,
    projection::only,
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
        let mut filter = PhaseFilter {
            group: request.context_id,
            since: (request.status_timestamp_after).map(|time| Timestamp::from_millis(time.as_millis())),
            ..PhaseFilter::default()
        };
        let auth = self.host.config().conformance.then(conformance::authentication);
        let wanted = request.status.filter(|state| *state != TaskState::Unspecified);
        if let Some(state) = wanted
            && !only(&mut filter, state, auth)
        {
            return Ok(ListTasksResponse {
                tasks: Vec::new(),
                next_page_token: String::new(),
                page_size,
                total_size: 0,
            });
        }
        let limit = usize::try_from(page_size).unwrap_or(usize::MAX);
        let (app, caller) = (self.host.app(), &call.caller);
        let mut listed = app
            .list_by_phase(caller, filter.clone(), after.as_ref(), limit)
            .await?;
        if let Some((run, summary)) = self.without_context(call, filter).await? {
            listed.total += 1;
            let place = (summary.phase_since, run.run.clone());
            let is_ahead = after.is_none_or(|after| (after.since, after.run) > place);
            let comes_first = |(run, summary): &(VisibleRun, Summary)| {
                (summary.phase_since, &run.run) > (place.0, &place.1)
            };
            let at = listed.runs.partition_point(comes_first);
            if is_ahead && (at < listed.runs.len() || !listed.has_more) {
                listed.runs.insert(at, (run, summary));
                listed.has_more |= listed.runs.len() > limit;
                listed.runs.truncate(limit);
            }
        }
        let shown = Shown {
            history: Some(request.history_length.unwrap_or(0)),
            artifacts: request.include_artifacts,
        };
        let mut tasks = Vec::with_capacity(listed.runs.len());
        let mut next_page_token = String::new();
        let mut n_bytes = 0;
        let mut rows = listed.runs.into_iter().peekable();
        while let Some((run, summary)) = rows.next() {
            let token = page::encode(summary.phase_since, &run.run);
            if let Some(view) = app.view(&run).await? {
                let task = self.task(caller, &view, shown).await?;
                n_bytes += json_size(&task);
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
        call: &Call,
        filter: PhaseFilter,
    ) -> Result<Option<(VisibleRun, Summary)>, Error> {
        let named = filter.group.as_deref().map(RunId::parse);
        let Some(Ok(run)) = named else { return Ok(None) };
        let found = self.host.app().find_ungrouped(&call.caller, run, filter);
        Ok(found.await?)
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
        let run = VisibleRun::from(&view);
        let cancelling = app.cancel_run(&call.caller, &run, reason, SideRows::default());
        let view = match cancelling.await {
            Ok(wopr_app::Done::Fresh(view)) => view,
            // A cancellation has no idempotency key, so it is never replayed.
            Ok(wopr_app::Done::Replayed(_)) => view,
            Err(AppError::Refused(Refusal::Terminal(_))) => return Err(not_cancelable().into()),
            Err(error) => return Err(of_task(&request.id, error)),
        };
        let shown = Shown {
            history: None,
            artifacts: true,
        };
        self.task(&call.caller, &view, shown).await
    }
}
